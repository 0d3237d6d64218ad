/* coordinator.h - the worker of a job: one agent on each host, whose decisions are control_coordinator.c's.
 * coordinator.c drives the state machine by steps.c, and outcome.c reports the job's outcome. The operations of agents
 * are the only difference between a job on this host (local.c) and a job over several (stream.c).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_COORDINATOR_COORDINATOR_H
#define DSC_LAUNCHER_COORDINATOR_COORDINATOR_H

#include "launcher/coordinator/chaos.h"
#include "launcher/coordinator/discovery.h"
#include "launcher/coordinator/link.h"
#include "launcher/coordinator/watch.h"
#include "launcher/coordinator/worlds.h"
#include "launcher/output/output.h"
#include "launcher/plan/exports.h"
#include "launcher/process/job.h"
#include "launcher/process/signals.h"

typedef struct dsc_coordinator_worker dsc_coordinator_worker;

typedef struct dsc_remote {
    const char *name;
    int32_t first_rank;
    bool is_local;          /* it is this very host */
    dsc_link link;          /* stream.c */
    dsc_hello hello;        /* stream.c */
    bool has_failure, has_problem, lost, silent;
    dsc_error failure;      /* why its agent cannot be had, or was lost */
    dsc_error problem;      /* why its ranks cannot be started */
    int lost_code;          /* exit code of the process that carried the stream */
    bool connect_wanted, drop_wanted;
} dsc_remote;

/* How agents are reached. Only connect and tend may step the machine. */
typedef struct dsc_agents_ops {
    bool direct;            /* the agent runs in this process: one host, of the number plan->here */
    dsc_status (*open)(dsc_coordinator_worker *c, dsc_error *err);
    dsc_status (*connect)(dsc_coordinator_worker *c, int32_t index, dsc_error *err);
    void (*drop)(dsc_coordinator_worker *c, int32_t index);
    void (*send_task)(dsc_coordinator_worker *c, int32_t index, dsc_host_task *task);
    void (*send_order)(dsc_coordinator_worker *c, int32_t index, const dsc_order *order);
    /* A packet of base/world_channel.h for rank number `rank` of a host. */
    void (*send_call)(dsc_coordinator_worker *c, int32_t index, int32_t rank, const uint8_t *packet, size_t bytes);
    void (*cut)(dsc_coordinator_worker *c, int32_t index); /* the connection, for tests; NULL: there is none */
    /* The address of a host for the ranks of the others. */
    const char *(*address)(const dsc_coordinator_worker *c, int32_t index);
    void (*flush)(dsc_coordinator_worker *c);      /* before a wait */
    int64_t (*wake_ns)(dsc_coordinator_worker *c); /* end of that wait at the latest */
    void (*event)(dsc_coordinator_worker *c, const dsc_loop_event *event, int64_t now_ns);
    void (*tend)(dsc_coordinator_worker *c);       /* after it: steps the machine with what came from agents */
    /* Brings watch.view up to date. False: the views are too old to judge. */
    bool (*update_views)(dsc_coordinator_worker *c, int64_t now_ns);
    /* Sink `which` is full, or is not any more. NULL: a window limits the ranks' output. */
    void (*pause)(dsc_coordinator_worker *c, int which, bool paused);
    bool (*has_output)(const dsc_coordinator_worker *c); /* that was received and is not shown yet */
    void (*close)(dsc_coordinator_worker *c);      /* safe when open failed, and twice */
} dsc_agents_ops;

extern const dsc_agents_ops dsc_stream_agents, dsc_local_agent;

struct dsc_coordinator_worker {
    const dsc_job *job;
    const dsc_agents_ops *agents;
    dsc_output *out;
    dsc_exports exports;
    dsc_signals signals;
    dsc_watch watch;
    int epoll_fd;
    int32_t restart_count;
    int64_t look_at_ns;  /* time of the next look at the ranks' collectives */
    bool abandon_output; /* the user does not wait for a stalled reader or for a restart */
    struct local_agent *local; /* local.c */
    dsc_coordinator machine;
    dsc_coordinator_host *host; /* the machine's */
    dsc_remote *remote;  /* [host_count] */
    int32_t host_count;
    dsc_worlds worlds;   /* state of a job whose ranks leave and join */
    dsc_chaos chaos;
    dsc_discovery discovery;
    dsc_rank_end *end;   /* [rank_count] of the run */
    int32_t rank_count;
    int32_t first_host;  /* in the plan's pool */
    char **link_env;     /* ours without what is exported: the carriers need none of it */
    char folder[4096];   /* working folder on the other hosts; "": agents need none */
    bool ready, over, left;
    bool token_given;    /* job_token comes from the user, for the launchers on all hosts */
    bool stderr_unseen;  /* the ranks' stderr does not pass through us */

    /* State of one run. */
    char devices[DSC_DEVICES_BYTES]; /* text in the newest task */
    int early_signal;    /* the user's, before there was a run */
    char job_token[DSC_JOB_TOKEN_CHARS + 1];
};

/* The worker of a job: an agent for each host (`work` of dsc_job). */
int dsc_coordinator_work(const dsc_job *job, int lifeline_fd);

/* steps.c. */
void dsc_coordinator_worker_step(dsc_coordinator_worker *c, dsc_coordinator_event event);
/* `user` is the worker: notes what a step asked for. */
void dsc_coordinator_on_action(void *user, const dsc_coordinator_action *action);
/* Carries out what steps of the machine asked for. */
void dsc_coordinator_settle(dsc_coordinator_worker *c);

/* Neither the guardian's end nor the user ends the wait for output or for a restart. */
static inline bool dsc_coordinator_waits(const dsc_coordinator_worker *c)
{
    return !c->signals.orphaned && !c->abandon_output;
}

/* Reports the outcome of the run that just ended, and returns its exit code. `last`: no restart follows. */
int dsc_coordinator_finish(dsc_coordinator_worker *c, bool last);
/* True when the ranks may be started again after that run. */
bool dsc_coordinator_may_restart(const dsc_coordinator_worker *c);

#endif
