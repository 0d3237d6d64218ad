/* world_channel.h - messages between a rank and its launcher, for jobs whose ranks leave and join.
 *
 * A world is a set of ranks with a communicator. Each world has a generation, counted from 1, and a token of its own.
 * The token is the job token of the rendezvous, so a process of an older world is refused by ranks of a newer one. The
 * launcher decides who belongs to a world. A rank reports its state, and a call of the launcher answers:
 *
 *   rank      READY    waits for a world: a new process, or one that has left the world before
 *   launcher  WORLD    rank, size and token of the new world: open it
 *   rank      RUNS     the first step in that world is done
 *   launcher  CHANGE   ranks will join: leave the world after the next step, with the states
 *   launcher  END      the job ends: SIGTERM means "save and end", not "leave"
 *   rank      LEAVES   was asked to leave by SIGTERM; its states are with the others, and the process ends
 *   rank      DONE     nothing is left to do
 *
 * A message is one packet of a local socket. Its descriptor in the rank is DSC_WORLD_CHANNEL of the environment. Input
 * is untrusted: readers check lengths and ranges. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_WORLD_CHANNEL_H
#define DSC_BASE_WORLD_CHANNEL_H

#include "base/base.h"

#define DSC_WORLD_CHANNEL "DSC_WORLD_CHANNEL"
#define DSC_WORLD_SIZES "DSC_WORLD_SIZES"
#define DSC_WORLD_CHAOS_DISK "DSC_CHAOS_DISK_MS"

enum {
    DSC_WORLD_TOKEN_CHARS = 32,
    DSC_WORLD_ADDR_BYTES = 256,
    DSC_WORLD_RANKS_MAX = 1024,
    DSC_WORLD_PACKET_MAX = 512 /* longest packet of either kind */
};

typedef enum dsc_world_state { DSC_WORLD_READY = 1, DSC_WORLD_RUNS, DSC_WORLD_LEAVES, DSC_WORLD_DONE } dsc_world_state;

/* From a rank. */
typedef struct dsc_world_report {
    dsc_world_state state;
    uint32_t generation; /* world that the rank is in, or was in last; 0: none */
    int64_t step;        /* steps done */
    bool has_states;     /* READY: the rank carries states of the run */
    bool saved;          /* DONE: the last step is in a checkpoint */
} dsc_world_report;

typedef enum dsc_world_call_kind {
    DSC_WORLD_CALL_WORLD = 1,
    DSC_WORLD_CALL_CHANGE,
    DSC_WORLD_CALL_END
} dsc_world_call_kind;

/* To a rank. WORLD has all fields, the others none. */
typedef struct dsc_world_call {
    dsc_world_call_kind kind;
    uint32_t generation;
    int32_t rank, size, local_rank, local_size, host, host_count; /* as in dsc_rank_info */
    int32_t master_port;
    bool carried; /* some rank carries states; else the run begins, or goes on from its checkpoint */
    bool last;    /* too few ranks are left: save, and end */
    char token[DSC_WORLD_TOKEN_CHARS + 1];
    char master_addr[DSC_WORLD_ADDR_BYTES];
} dsc_world_call;

/* Bytes of the packet, at most DSC_WORLD_PACKET_MAX. */
size_t dsc_world_report_put(const dsc_world_report *report, uint8_t out[DSC_WORLD_PACKET_MAX]);
size_t dsc_world_call_put(const dsc_world_call *call, uint8_t out[DSC_WORLD_PACKET_MAX]);
/* False: it is none. */
bool dsc_world_report_get(const void *bytes, size_t count, dsc_world_report *out);
bool dsc_world_call_get(const void *bytes, size_t count, dsc_world_call *out);

#endif
