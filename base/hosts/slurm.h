/* slurm.h - the two short forms in which Slurm tells a job its hosts and tasks: "gpu[03-07,9],login" and "4(x2),3".
 * Pure; the text is hostile. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_HOSTS_SLURM_H
#define DSC_BASE_HOSTS_SLURM_H

#include "base/hosts/hostfile.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One name of a list, borrowed for the call. */
typedef dsc_status (*dsc_slurm_host_fn)(void *user, const char *name, dsc_error *err);
/* Every host of `list` in its order; `where` (the variable's name) starts every error. */
DSC_MUST_USE dsc_status dsc_slurm_hosts(const char *where, const char *list, dsc_slurm_host_fn fn, void *user,
                                        dsc_error *err);
/* Tasks of the node-th node; -1: this is no such list, or it has fewer nodes. */
int32_t dsc_slurm_tasks(const char *list, int32_t node);
/* The rendezvous port of a job that nobody gave one, from SLURM_JOB_ID: two jobs may share a node. */
int32_t dsc_slurm_port(const char *job_id);

#ifdef __cplusplus
}
#endif
#endif
