/* spawn.h - starts the processes of the ranks. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_SPAWN_H
#define DSC_LAUNCHER_SPAWN_H

#include "launcher/job.h"
#include "launcher/rank_env.h"

typedef struct dsc_rank_process {
    pid_t pid;     /* also its session and process group; 0: not started */
    int out_fd[2]; /* read ends by sink, -1: inherited or at its end */
    bool ended;
    int code;        /* exit code as a shell sees it: 128 + signal when killed */
    int signal;      /* that killed it, or 0 */
    int exec_errno;  /* why PROGRAM could not be executed, or 0 */
} dsc_rank_process;

/* How the ranks' stdout and stderr leave them. */
typedef struct dsc_spawn_pipes {
    bool out, err; /* through a pipe of their own; else inherited */
    bool joined;   /* both through one pipe (out and err are set) */
} dsc_spawn_pipes;

/* What a rank that could not be executed writes to the exec pipe. */
typedef struct dsc_exec_failure {
    int32_t rank;
    int32_t errno_value;
} dsc_exec_failure;

/* Starts rank `place->rank`. On failure nothing is left of it. exec_fd: write end of the exec pipe. */
DSC_MUST_USE dsc_status dsc_spawn(const dsc_job *job, const dsc_place *place, const dsc_rank_secrets *secrets,
                                  dsc_spawn_pipes pipes, int exec_fd, dsc_rank_process *out, dsc_error *err);

#endif
