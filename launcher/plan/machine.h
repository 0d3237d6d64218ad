/* machine.h - name, GPUs and cores of the host that the launcher runs on. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_PLAN_MACHINE_H
#define DSC_LAUNCHER_PLAN_MACHINE_H

#include <sched.h>

#include "base/base.h"

typedef struct dsc_machine {
    char name[256];      /* gethostname */
    int32_t gpu_count;   /* /dev/nvidia0..; 0 when CUDA_VISIBLE_DEVICES hides them */
    int32_t core_count;  /* hardware threads that it may use, by affinity and by the CPU quota of its container */
    cpu_set_t cores;     /* those of the affinity */
    const char *visible; /* CUDA_VISIBLE_DEVICES when it names devices, else NULL; borrowed from the environment */
} dsc_machine;

void dsc_machine_read(dsc_machine *out);
/* True for localhost, loopback addresses, the host's own name (also without its domain) and its interfaces' addresses.
 * user@ in front means a login, and so never this process's own host. */
bool dsc_machine_is_local(const dsc_machine *machine, const char *host);

/* "0-3,8" into *out. */
DSC_MUST_USE dsc_status dsc_core_list_parse(const char *flag, const char *text, cpu_set_t *out, dsc_error *err);
/* One hardware thread of each physical core in `from`. */
void dsc_cores_physical(const cpu_set_t *from, cpu_set_t *out);
/* NUMA node in whose memory range all of `cores` lie, or -1. */
int dsc_cores_numa_node(const cpu_set_t *cores);
/* --bind_cores_to_rank: the cores of `core_list` ("" or NULL: one thread of each physical core) to divide among `parts`
 * ranks, and how many threads each gets. Too few cores, and cores that may not be used, are errors. */
DSC_MUST_USE dsc_status dsc_cores_divide(const dsc_machine *machine, const char *core_list, int32_t parts,
                                         cpu_set_t *cores, int32_t *thread_count, dsc_error *err);
/* Share number `part` of `parts` equal ones (consecutive cores; what does not divide is left over). */
void dsc_cores_share(const cpu_set_t *from, int32_t part, int32_t parts, cpu_set_t *out);

#endif
