/* host_agent.h - the agent of one host: the ranks of the host, started and ended as protocol/control.h decides. The
 * owner runs the loop and carries orders and notices: agent.c over a stream, coordinator/local.c within one process.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_NODE_HOST_AGENT_H
#define DSC_LAUNCHER_NODE_HOST_AGENT_H

#include "launcher/node/ranks.h"
#include "launcher/process/job.h"
#include "launcher/protocol/control.h"

typedef struct dsc_host_agent dsc_host_agent;

/* The owner's part. No operation may call back into the agent. */
typedef struct dsc_host_agent_ops {
    /* Completes the task with settings of this host: program, launcher_pid, cores. `env` receives the environment of
     * the ranks without their own variables, freed with dsc_alloc_free. */
    dsc_status (*prepare)(void *user, dsc_host_task *task, char ***env, dsc_error *err);
    void (*notice)(void *user, const dsc_notice *notice);
    void (*start_failed)(void *user, uint32_t epoch, const dsc_error *err);
    void (*killing)(void *user); /* the ranks' time is over: SIGKILL comes next; may be NULL */
    /* Output of rank number `index`; `bytes` 0 is the end of the stream. */
    void (*output)(void *user, int32_t index, int which, const char *text, size_t bytes, int64_t now_ns);
    void (*report)(void *user, int32_t index, const uint8_t *packet, size_t bytes); /* base/world_channel.h */
} dsc_host_agent_ops;

struct dsc_host_agent {
    dsc_alloc *alloc;
    const dsc_host_agent_ops *ops;
    void *user;
    int epoll_fd;
    dsc_spawn_setup setup;
    dsc_spawn_pipes pipes; /* for each rank whose output is shown */
    dsc_rank_end *end;     /* [rank_limit], the owner's */
    int32_t rank_limit;

    /* Private, but for reading. */
    dsc_agent machine;
    bool leaves;           /* the machine is done */
    bool start_wanted, killing;
    dsc_host_task task;    /* newest; the ranks' own once they started */
    uint32_t task_epoch;
    char **env;            /* for this epoch; owned */
    dsc_ranks ranks;
    bool ranks_open;
    int32_t unstarted_slot; /* a command could not start its rank; -1: none */
};

/* The fields before `machine` are set. */
void dsc_host_agent_open(dsc_host_agent *agent);
void dsc_host_agent_close(dsc_host_agent *agent); /* safe on a zeroed one */

void dsc_host_agent_step(dsc_host_agent *agent, dsc_agent_event event);
/* Takes the task over, also when it came before. */
void dsc_host_agent_set_task(dsc_host_agent *agent, uint32_t epoch, dsc_host_task *task);
/* A packet for rank number `index`, of that start. */
void dsc_host_agent_call(dsc_host_agent *agent, uint32_t epoch, int32_t index, const uint8_t *packet, size_t bytes);
/* Starts the ranks when an order asked for it. */
void dsc_host_agent_start(dsc_host_agent *agent);
void dsc_host_agent_on_event(dsc_host_agent *agent, const dsc_loop_event *event, int64_t now_ns);
/* In every pass of the loop, after its events: ends of ranks, time and what the pipes of ended ranks hold. */
void dsc_host_agent_tend(dsc_host_agent *agent);
static inline int64_t dsc_host_agent_wake_ns(const dsc_host_agent *agent) { return dsc_agent_wake_ns(&agent->machine); }
void dsc_host_agent_pause(dsc_host_agent *agent, int which, bool paused);
/* State of the ranks' collectives can be read. */
static inline bool dsc_host_agent_runs(const dsc_host_agent *agent)
{
    return agent->ranks_open && agent->machine.phase == DSC_AGENT_RUNS;
}

/* The worker of `dsc-launch --agent`, agent.c (`work` of dsc_job). */
int dsc_agent_work(const dsc_job *job, int lifeline_fd);

#endif
