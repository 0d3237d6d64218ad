/* sink.h - the launcher's own stdout or stderr, written without ever waiting for its reader.
 *
 * Why: a pager, a frozen terminal or a full pipe must not keep the supervisor from seeing that a rank died. Pipes and
 * terminals are opened again, non-blocking, because the flag on the inherited description would also be the user's
 * shell's. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_OUTPUT_SINK_H
#define DSC_LAUNCHER_OUTPUT_SINK_H

#include "base/alloc.h"

enum {
    DSC_SINK_QUEUE_BYTES = 4 * 1024 * 1024,
    DSC_SINK_FULL_BYTES = 2 * 1024 * 1024, /* no more is read from ranks while this much waits */
};

typedef enum dsc_sink_kind {
    DSC_SINK_NONBLOCKING, /* own non-blocking description */
    DSC_SINK_SOCKET,      /* inherited, MSG_DONTWAIT */
    DSC_SINK_PLAIN        /* a file, which never makes one wait for long; or what could not be opened again */
} dsc_sink_kind;

typedef struct dsc_sink {
    dsc_alloc *alloc;
    int fd;
    dsc_sink_kind kind;
    bool own_fd;
    bool tty;
    bool broken;    /* the reader is gone: everything is dropped */
    int reason;     /* errno of what broke it */
    bool waiting;   /* the last write would have waited: poll for writing */
    bool polled;    /* the loop does so already */
    char *queue;    /* queue[head..tail) is not written yet */
    size_t head, tail;
} dsc_sink;

/* `fd` is borrowed. A closed descriptor makes a broken sink. */
DSC_MUST_USE dsc_status dsc_sink_open(dsc_alloc *alloc, int fd, dsc_sink *out, dsc_error *err);
void dsc_sink_close(dsc_sink *sink); /* queued bytes are lost; safe on a zeroed sink */
void dsc_sink_put(dsc_sink *sink, const char *text, size_t bytes);
void dsc_sink_flush(dsc_sink *sink); /* as much as goes without waiting */
static inline size_t dsc_sink_queued(const dsc_sink *sink) { return sink->tail - sink->head; }

/* True when two descriptors end in the same file, pipe or terminal. */
bool dsc_same_file(int a, int b);

#endif
