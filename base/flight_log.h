/* flight_log.h - record of a rank's collectives, in memory of the process that started the rank. The starter can still
 * read it when the rank is stopped, stuck or dead.
 *
 * A call that the rank makes itself begins and ends where it is made. A call for a GPU is asked for first. It begins
 * and ends when the rank sees that the GPU has reached it and has finished it, which is some time later.
 *
 * The starter opens a log: an unnamed file in memory, gone with its last user. DSC_FLIGHT gives each rank the location
 * of its record. The rank opens the log through /proc, so no descriptor is inherited. A record has tracks, one for each
 * channel of each communicator, with the last calls of the channel. Nothing is locked: a track has one writer at a
 * time, and a reader leaves out a call that is just being written. The content of a record is bounded, not trusted.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_FLIGHT_LOG_H
#define DSC_BASE_FLIGHT_LOG_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    DSC_FLIGHT_CHANNELS = 8,  /* tracks of a rank; more are not recorded */
    DSC_FLIGHT_CALLS = 4,     /* last ones of a track */
    DSC_FLIGHT_MODULES = 128, /* modules with a recorded name */
    DSC_FLIGHT_NAME_BYTES = 24,
    DSC_FLIGHT_TEXT_BYTES = 64
};

typedef enum dsc_flight_state {
    DSC_FLIGHT_WAITS,  /* inside */
    DSC_FLIGHT_DONE,
    DSC_FLIGHT_FAILED, /* it ended with an error */
    DSC_FLIGHT_QUEUED  /* given to a GPU, which has not been seen to come to it */
} dsc_flight_state;

/* ---- the rank ---------------------------------------------------------------------------------------------------- */

typedef struct dsc_flight_record dsc_flight_record;
typedef struct dsc_flight_track dsc_flight_track; /* one track of a record */

typedef struct dsc_flight {
    dsc_flight_record *record; /* NULL: nobody wants to know */
    void *memory;
    size_t bytes;
} dsc_flight;

/* `text` is the value of DSC_FLIGHT, or NULL. A log that is not there or is none leaves record = NULL: a rank does
 * not fail for want of a reader. */
void dsc_flight_open(dsc_flight *flight, const char *text);
void dsc_flight_close(dsc_flight *flight);
void dsc_flight_set_timeout(dsc_flight *flight, int64_t timeout_ns);
void dsc_flight_name_module(dsc_flight *flight, int32_t module, const char *name);

/* A track; NULL when there is no record or no track left. id: the same on every rank of a communicator, not 0. Ranks
 * and sizes are those of the communicator. */
dsc_flight_track *dsc_flight_track_open(dsc_flight *flight, uint64_t id, int32_t channel, int32_t rank, int32_t size);
/* NULL is allowed. When its last call failed that stays to be read. */
void dsc_flight_track_close(dsc_flight_track *track);

/* One call of a rank, as ranks compare it (comm/agreement.h). Exchanged as bytes between builds that are equal. */
typedef struct dsc_call_record {
    int16_t op;       /* dsc_comm_op; -1: none */
    int16_t exchange; /* number of an exchange inside the call */
    int32_t detail;   /* root of a broadcast, wire dtype of a reduction, peer of a send or recv; else 0 */
    int64_t bytes;    /* as the caller counts; -1: not known */
} dsc_call_record;
_Static_assert(sizeof(dsc_call_record) == 16, "no padding");

/* A call with its labels. The name of the operation and op, detail and bytes of the call must agree between ranks. */
typedef struct dsc_flight_entry {
    dsc_call_record call;
    const char *op; /* name of call.op; borrowed */
    int64_t step;
    int32_t peer;   /* second rank of a send or recv, else -1 */
    int32_t module; /* or -1 */
} dsc_flight_entry;

/* NULL is allowed. */
void dsc_flight_begin(dsc_flight_track *track, const dsc_flight_entry *entry, int64_t now_ns);
void dsc_flight_end(dsc_flight_track *track, dsc_flight_state state, int64_t now_ns);

/* For a GPU: ask when the call is made, WAITS until `asked` says QUEUED (the GPU has it) or FAILED. Then, in the order
 * of asking, come and end; looked: until then the rank knows what it has written. One thread at a time in each group
 * of these. */
typedef struct dsc_flight_ticket {
    int64_t number;
    uint64_t history;
} dsc_flight_ticket;
dsc_flight_ticket dsc_flight_ask(dsc_flight_track *track, const dsc_flight_entry *entry, int64_t now_ns);
void dsc_flight_asked(dsc_flight_track *track, dsc_flight_state state, int64_t now_ns);
void dsc_flight_come(dsc_flight_track *track, const dsc_flight_entry *entry, dsc_flight_ticket ticket, int64_t now_ns);
void dsc_flight_looked(dsc_flight_track *track, int64_t now_ns);

/* ---- the reader -------------------------------------------------------------------------------------------------- */

typedef struct dsc_flight_call {
    int64_t number;    /* among the collectives of its track, from 1; of a send or recv that of the one before */
    uint64_t history;  /* hash of all collectives up to this one: equal on all ranks that agree */
    int64_t bytes, step;
    int64_t age_ns;    /* since it was begun */
    int64_t ended_ns;  /* since it ended; 0 while it WAITS */
    int32_t detail, peer;
    dsc_flight_state state;
    char op[DSC_FLIGHT_NAME_BYTES];
    char module[DSC_FLIGHT_NAME_BYTES]; /* "" : none */
} dsc_flight_call;

typedef struct dsc_flight_channel {
    uint64_t id;
    int32_t channel, rank, size;
    int64_t asked; /* number of the newest call that a GPU was asked for; else 0 */
    int32_t call_count;
    dsc_flight_call call[DSC_FLIGHT_CALLS]; /* newest first; of a GPU also one that it is just being asked for */
} dsc_flight_channel;

typedef struct dsc_flight_view {
    bool known;           /* it was read; else this is nothing */
    int32_t pid;          /* 0: nobody writes this record (yet) */
    char process;         /* 'T': stopped, as /proc has it; '?': gone */
    int64_t stopped_ns;   /* for how long, as far as whoever keeps the view has seen; a reader leaves 0 */
    int64_t timeout_ns;   /* limit of the rank's own waits; 0: not known */
    int32_t channel_count;
    dsc_flight_channel channel[DSC_FLIGHT_CHANNELS];
} dsc_flight_view;

typedef struct dsc_flight_log {
    int fd; /* -1: closed */
    void *memory;
    size_t bytes;
    int32_t count;
} dsc_flight_log;

DSC_MUST_USE dsc_status dsc_flight_log_open(dsc_flight_log *log, int32_t count, dsc_error *err);
void dsc_flight_log_close(dsc_flight_log *log); /* safe on a closed one */
/* The value of DSC_FLIGHT for a rank. */
const char *dsc_flight_log_text(const dsc_flight_log *log, int32_t index, char text[DSC_FLIGHT_TEXT_BYTES]);
/* Ages are at least 0; times before since_ns count from there (a job that was paused). */
void dsc_flight_log_read(const dsc_flight_log *log, int32_t index, int64_t since_ns, int64_t now_ns,
                         dsc_flight_view *out);
/* Does the call wait, or did it until it failed? */
static inline bool dsc_flight_call_waits(const dsc_flight_call *call)
{
    return call->state == DSC_FLIGHT_WAITS || call->state == DSC_FLIGHT_FAILED;
}

#ifdef __cplusplus
}
#endif
#endif
