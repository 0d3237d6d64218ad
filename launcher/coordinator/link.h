/* link.h - the coordinator's end of the stream to one agent: the process that carries the stream, its stderr and its
 * exit code. The process is ssh, or the agent itself when the host is this one. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_COORDINATOR_LINK_H
#define DSC_LAUNCHER_COORDINATOR_LINK_H

#include <sys/types.h>

#include "launcher/plan/options.h"
#include "launcher/protocol/message.h"

typedef struct dsc_link {
    int32_t host;
    int epoll_fd;
    pid_t pid;          /* 0: none runs */
    int code;           /* exit code of the process, as a shell sees it */
    bool is_local;
    bool greeted;       /* its magic came */
    bool polled;
    dsc_channel channel;
    int err_fd;
    char said[4096];    /* the end of its stderr */
    size_t said_bytes;
    /* Output that cannot be shown yet: whole frames from pending_at on. */
    dsc_message_out pending;
    size_t pending_at;
    uint64_t taken_bytes, acked_bytes; /* count frames with output */
} dsc_link;

/* Starts the process; its events are DSC_LOOP_LINK of epoll_fd. `env`: of that process. On failure nothing is left. */
DSC_MUST_USE dsc_status dsc_link_open(dsc_link *link, dsc_alloc *alloc, const dsc_launcher_options *opt, int32_t host,
                                      const char *name, bool is_local, char *const *env, int epoll_fd, dsc_error *err);
/* Ends whatever is there; the process is killed and reaped. Safe on a zeroed or closed one. */
void dsc_link_close(dsc_link *link);

/* Reads once, and writes what goes. */
void dsc_link_on_event(dsc_link *link, int which);
void dsc_link_flush(dsc_link *link);
/* The next frame; nothing before the agent's magic. */
bool dsc_link_next(dsc_link *link, dsc_frame *frame);
/* The process has ended (waitpid's status), and what it left was read. */
void dsc_link_reaped(dsc_link *link, int status);
/* Nothing more will come of it: its process has ended, or its stream has and it was killed for that. */
bool dsc_link_is_over(const dsc_link *link);

#endif
