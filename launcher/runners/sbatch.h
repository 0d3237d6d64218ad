/* sbatch.h - `--launcher slurm --sbatch`: the batch script of a job. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_RUNNERS_SBATCH_H
#define DSC_LAUNCHER_RUNNERS_SBATCH_H

#include "launcher/plan/options.h"

/* Writes a script for sbatch that starts PROGRAM (a path) and its arguments as dsc-launch does inside an allocation. */
DSC_MUST_USE dsc_status dsc_sbatch_write(const dsc_launcher_options *opt, const char *program, FILE *to,
                                         dsc_error *err);

#endif
