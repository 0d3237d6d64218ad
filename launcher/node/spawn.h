/* spawn.h - starts the process of one rank. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_NODE_SPAWN_H
#define DSC_LAUNCHER_NODE_SPAWN_H

#include <signal.h>

#include "launcher/protocol/host_task.h"

typedef struct dsc_rank_process {
    pid_t pid;     /* also its session and process group; 0: not started */
    int out_fd[2]; /* read ends by sink, -1: inherited or at its end */
    int world_fd;  /* packets of base/world_channel.h; -1: the ranks are fixed, or the rank has closed its end */
    bool ended;
    int exec_errno; /* why PROGRAM could not be executed, or 0 */
} dsc_rank_process;

/* How the ranks' stdout and stderr leave them. */
typedef struct dsc_spawn_pipes {
    bool out, err; /* through a pipe of their own; else inherited */
    bool joined;   /* both through one pipe (out and err are set) */
} dsc_spawn_pipes;

/* Settings that ranks inherit from the process that started us. */
typedef struct dsc_spawn_setup {
    sigset_t mask;  /* signal mask of the ranks */
    bool has_input; /* rank 0 reads our stdin; else, and all others, an end of file */
} dsc_spawn_setup;

/* Message of a rank that could not be executed, on the exec pipe. */
typedef struct dsc_exec_failure {
    int32_t index;
    int32_t errno_value;
} dsc_exec_failure;

/* Starts rank number `index` of this host. On failure nothing is left of it. exec_fd: write end of the exec pipe. */
DSC_MUST_USE dsc_status dsc_spawn(dsc_alloc *alloc, const dsc_host_task *task, int32_t index,
                                  const dsc_spawn_setup *setup, dsc_spawn_pipes pipes, int exec_fd,
                                  dsc_rank_process *out, dsc_error *err);

#endif
