/* ranks.h - the processes of this host's ranks: started, listened to, signalled, reaped, and all of them killed.
 *
 * Used by host_agent.c; knows nothing of why a job ends.
 * A rank is known here by its index on this host.
 *
 * Invariants: (1) a process group is signalled only while its rank is not reaped, so its number cannot be another's;
 *             (2) what a reaped rank left behind is our child (subreaper) or a descendant of one: when there is no
 *             child left, nothing of the job runs. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_NODE_RANKS_H
#define DSC_LAUNCHER_NODE_RANKS_H

#include "base/flight_log.h"
#include "base/world_channel.h"
#include "launcher/node/spawn.h"
#include "launcher/process/loop.h"
#include "launcher/protocol/host_task.h"
#include "launcher/protocol/verdict.h"

/* Events for the owner. All are called from the functions below. */
typedef struct dsc_ranks_hooks {
    void (*output)(void *user, int32_t index, int which, const char *text, size_t bytes, int64_t now_ns);
    void (*output_end)(void *user, int32_t index, int which, int64_t now_ns);
    void (*ended)(void *user, int32_t index, const dsc_rank_end *end, int64_t now_ns);
    void (*report)(void *user, int32_t index, const uint8_t *packet, size_t bytes); /* base/world_channel.h */
    void *user;
} dsc_ranks_hooks;

typedef struct dsc_ranks {
    dsc_alloc *alloc;
    const dsc_host_task *task;
    dsc_ranks_hooks hooks;
    dsc_rank_process *rank;
    int32_t count; /* started */
    int32_t alive_count;
    int32_t stream_count; /* pipes not yet at their end */
    int epoll_fd, exec_fd;
    int exec_write_fd; /* stays open where ranks are started one by one; else -1 */
    dsc_flight_log flight;
    int64_t since_ns;  /* the ranks were stopped by us until then */
    bool stopped;      /* and are still */
    bool paused[2];    /* nothing is read of this stream */
    bool reader_gone[2]; /* nobody reads this stream: ranks that write to it get SIGPIPE */
    bool killing;
    bool no_children;
} dsc_ranks;

/* Events come from epoll_fd as DSC_LOOP_RANK, _EXEC and _WORLD. `task` is borrowed until close; its flight is ours. */
DSC_MUST_USE dsc_status dsc_ranks_open(dsc_ranks *ranks, dsc_alloc *alloc, dsc_host_task *task, int epoll_fd,
                                       const dsc_ranks_hooks *hooks, dsc_error *err);
void dsc_ranks_close(dsc_ranks *ranks);

/* Starts all. After a failure some may run: kill them. pipes[] has one entry for each rank. */
DSC_MUST_USE dsc_status dsc_ranks_start(dsc_ranks *ranks, const dsc_spawn_setup *setup, const dsc_spawn_pipes *pipes,
                                        dsc_error *err);

/* One rank of a task whose ranks leave and join. Its process before has ended, if there was one. False: the rank could
 * not be started, and no end of it follows. */
DSC_MUST_USE bool dsc_ranks_start_one(dsc_ranks *ranks, int32_t index, const dsc_spawn_setup *setup,
                                      dsc_spawn_pipes pipes);
/* To its group. */
void dsc_ranks_signal_one(dsc_ranks *ranks, int32_t index, int signal_number);
/* A packet for a rank. A rank that is gone, or does not read, gets none. */
void dsc_ranks_call(dsc_ranks *ranks, int32_t index, const uint8_t *packet, size_t bytes);

void dsc_ranks_on_event(dsc_ranks *ranks, const dsc_loop_event *event, int64_t now_ns);
void dsc_ranks_reap(dsc_ranks *ranks, int64_t now_ns);
/* No process is left, so the pipes hold what they will ever hold: reads them, paused ones excepted. */
void dsc_ranks_drain(dsc_ranks *ranks, int64_t now_ns);

/* To each rank's group; wakes also what is stopped, so that it can act on the signal. */
void dsc_ranks_signal(dsc_ranks *ranks, int signal_number);
/* SIGKILL to all ranks and to whatever left its group; to be repeated until no_children. */
void dsc_ranks_kill(dsc_ranks *ranks);
void dsc_ranks_pause(dsc_ranks *ranks, int which, bool paused);
/* State of the collectives of rank number `index` of this host. */
void dsc_ranks_flight(const dsc_ranks *ranks, int32_t index, int64_t now_ns, dsc_flight_view *out);
void dsc_ranks_stop_reading(dsc_ranks *ranks, int which);

#endif
