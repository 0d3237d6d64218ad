/* runner.h - jobs that another launcher starts: Open MPI's mpirun, that of MPICH and its kin, Slurm's srun. We choose
 * hosts and ranks, they start the processes, watch them and pass signals on; ranks learn their place from what they
 * set. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_RUNNERS_RUNNER_H
#define DSC_LAUNCHER_RUNNERS_RUNNER_H

#include "launcher/plan/exports.h"
#include "launcher/plan/resources.h"

typedef enum dsc_runner {
    DSC_RUNNER_NONE,
    DSC_RUNNER_OPENMPI,
    DSC_RUNNER_MPICH, /* hydra, and its two kin: Intel's and MVAPICH's */
    DSC_RUNNER_IMPI,
    DSC_RUNNER_MVAPICH,
    DSC_RUNNER_SLURM
} dsc_runner;

/* --launcher NAME; NONE: our own agents. */
dsc_runner dsc_runner_of(const dsc_launcher_options *opt);

/* The command that starts the job and the variables to be set for it; owned. */
typedef struct dsc_runner_command {
    dsc_alloc *alloc;
    char **argv; /* NULL-terminated */
    int32_t argc, capacity;
    dsc_exports env; /* variables in addition to our own environment */
} dsc_runner_command;

/* *out is zeroed; the caller closes it, also after an error. */
DSC_MUST_USE dsc_status dsc_runner_build(dsc_alloc *alloc, const dsc_launcher_plan *plan,
                                         const dsc_launcher_options *opt, const char *program, dsc_runner_command *out,
                                         dsc_error *err);
void dsc_runner_close(dsc_runner_command *command);
/* Becomes the command; returns only when it cannot be executed. */
DSC_MUST_USE dsc_status dsc_runner_exec(const dsc_runner_command *command, dsc_error *err);

#endif
