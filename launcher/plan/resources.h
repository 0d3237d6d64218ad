/* resources.h - from flags, hosts and this machine to the list of ranks. Starts and contacts nothing.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_PLAN_RESOURCES_H
#define DSC_LAUNCHER_PLAN_RESOURCES_H

#include "base/hosts/hostfile.h"
#include "launcher/plan/grid.h"
#include "launcher/plan/machine.h"
#include "launcher/plan/options.h"

enum { DSC_LAUNCHER_NOTES_MAX = 4, DSC_LAUNCHER_RANKS_MAX = 65536 };

/* Host and slot of one rank. */
typedef struct dsc_place {
    int32_t rank;
    int32_t host; /* index in the pool */
    int32_t slot;
    int32_t local_rank; /* its number among the slots of the host, not the slot */
} dsc_place;

typedef struct dsc_launcher_plan {
    dsc_alloc *alloc;
    dsc_host_pool pool;
    dsc_place *place; /* [world_size], node by node, slot by slot */
    int32_t world_size;
    dsc_asked_grid grid; /* (stage * data + data rank) * tensor + tensor rank is a rank's number; 0 or 1: no axis */
    char master_addr[DSC_HOST_NAME_BYTES];
    int32_t master_port;
    bool local;           /* all ranks that this launcher starts are on this host, which is */
    bool named;           /* the user named the hosts */
    int32_t here;         /* this one of the pool; 0 but with --no_ssh */
    bool hide_gpus;       /* CUDA_VISIBLE_DEVICES says "none" and stays as it is */
    const char *visible;  /* devices "a,b,..." that slots 0, 1, ... of every host mean; NULL: slot N is device N */
    int32_t thread_count; /* per rank; 0 when the host's cores are not known */
    bool bind;            /* the ranks divide bind_cores */
    cpu_set_t bind_cores; /* this host's, when local */
    /* Lines for the user. */
    struct {
        dsc_launcher_level level;
        char text[256];
    } note[DSC_LAUNCHER_NOTES_MAX];
    int32_t note_count;
} dsc_launcher_plan;
#define DSC_LAUNCHER_PLAN_INIT { .alloc = NULL, .pool = DSC_HOST_POOL_INIT }

/* *out is a DSC_LAUNCHER_PLAN_INIT; the caller closes it, also after an error. */
DSC_MUST_USE dsc_status dsc_launcher_resolve(dsc_alloc *alloc, const dsc_launcher_options *opt,
                                             const dsc_machine *machine, dsc_launcher_plan *out, dsc_error *err);
void dsc_launcher_plan_close(dsc_launcher_plan *plan);

#endif
