/* slurm.h - the hosts of a Slurm allocation. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_PLAN_SLURM_H
#define DSC_LAUNCHER_PLAN_SLURM_H

#include "base/hosts/hostfile.h"

/* True inside salloc and sbatch. */
bool dsc_slurm_is_inside(void);
/* Hosts by SLURM_JOB_NODELIST, slots by SLURM_TASKS_PER_NODE, into an empty pool that the caller closes also after an
 * error. Only inside. */
DSC_MUST_USE dsc_status dsc_slurm_pool(dsc_alloc *alloc, dsc_host_pool *out, dsc_error *err);

#endif
