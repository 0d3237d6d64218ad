/* coordinator.h - the worker of a job over several hosts: one agent on each, reached through a link; their decisions
 * are control_coordinator.c's. coordinator.c moves the bytes, outcome.c reports the job's outcome.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_COORDINATOR_COORDINATOR_H
#define DSC_LAUNCHER_COORDINATOR_COORDINATOR_H

#include "launcher/coordinator/link.h"
#include "launcher/job_loop.h"

typedef struct dsc_remote {
    const char *name;
    int32_t first_rank;
    bool is_local;          /* it is this very host */
    dsc_link link;
    dsc_hello hello;
    bool has_failure, has_problem, lost, silent;
    dsc_error failure;      /* why its agent cannot be had, or was lost */
    dsc_error problem;      /* why its ranks cannot be started */
    int lost_code;          /* exit code of the process that carried the stream */
    bool connect_wanted, drop_wanted;
} dsc_remote;

typedef struct dsc_coordinator_worker {
    dsc_job_loop loop;
    dsc_coordinator machine;
    dsc_coordinator_host *host; /* the machine's */
    dsc_remote *remote;  /* [host_count] */
    int32_t host_count;
    char **link_env;     /* ours without what is exported: the carriers need none of it */
    char folder[4096];
    bool ready, over, left;

    /* State of one run. */
    char master_addr[DSC_HOST_NAME_BYTES];
    char job_token[DSC_JOB_TOKEN_CHARS + 1];
} dsc_coordinator_worker;

/* Operations of the job loop, whose `user` is a dsc_coordinator_worker. The first one reports the outcome of the run
 * and returns its exit code. */
int dsc_coordinator_finish(void *user, bool last);
/* True when the ranks may be started again after the run that just ended. */
bool dsc_coordinator_may_restart(const void *user);

#endif
