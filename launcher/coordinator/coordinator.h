/* coordinator.h - the worker of a job over several hosts: one agent on each, reached through a link; their decisions
 * are control_coordinator.c's. coordinator.c moves the bytes, outcome.c says what became of the job.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_COORDINATOR_COORDINATOR_H
#define DSC_LAUNCHER_COORDINATOR_COORDINATOR_H

#include "launcher/coordinator/exports.h"
#include "launcher/coordinator/link.h"
#include "launcher/job.h"
#include "launcher/node/output.h"
#include "launcher/node/signals.h"
#include "launcher/node/watch.h"

typedef struct dsc_remote {
    const char *name;
    int32_t first_rank;
    bool is_local;          /* it is this very host */
    dsc_link link;
    dsc_hello hello;
    bool has_failure, has_problem, lost, silent;
    dsc_error failure;      /* why its agent cannot be had, or was lost */
    dsc_error problem;      /* why its ranks cannot be started */
    int lost_code;          /* what its carrier ended with */
    bool connect_wanted, drop_wanted;
} dsc_remote;

typedef struct dsc_coordinator_worker {
    const dsc_job *job;
    dsc_output *out;
    dsc_signals signals;
    dsc_coordinator machine;
    dsc_coordinator_host *host; /* the machine's */
    dsc_remote *remote;  /* [host_count] */
    int32_t host_count;
    int epoll_fd;
    dsc_exports exports;
    char **link_env;     /* ours without what is exported: the carriers need none of it */
    char folder[4096];
    dsc_rank_end *end;   /* [world_size], of this run */
    dsc_watch watch;
    int64_t look_at_ns; /* at the ranks' collectives */
    int32_t restart_count;
    bool ready, over, left;
    bool abandon_output; /* the user does not wait for a reader that does not read */

    /* Of one run. */
    char master_addr[DSC_HOST_NAME_BYTES];
    char job_token[DSC_JOB_TOKEN_CHARS + 1];
} dsc_coordinator_worker;

/* What the run ended with; says why. */
int dsc_coordinator_finish(dsc_coordinator_worker *c, bool last);
/* True when the ranks may be started again after the run that just ended. */
bool dsc_coordinator_may_restart(const dsc_coordinator_worker *c);

#endif
