/* planes.h - the states of an element, the slice that a rank owns of each, and the tier of each state of a group.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_CORE_PLANES_H
#define DSC_ZERO_CORE_PLANES_H

#include "zero/core/options.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The slice of a group that this rank owns. At stage 0 every rank stores the whole group; the owned slice is still
 * [rank * slice, + slice). */
typedef struct dsc_zero_slice {
    int64_t first, count; /* elements of the group */
    bool trainable;       /* frozen groups have only parameters */
    dsc_nf4 packed;       /* how they are stored; views of a packed slice are of its packed bytes (dsc_zero_view) */
} dsc_zero_slice;
void dsc_zero_slice_get(const dsc_zero *zero, int32_t group, dsc_zero_slice *out);

/* The states of an element. In an fp32 run PARAM and MASTER are the same. */
typedef enum dsc_plane {
    DSC_PLANE_PARAM,  /* compute dtype */
    DSC_PLANE_MASTER, /* fp32; of trainable groups */
    DSC_PLANE_MOMENT1,
    DSC_PLANE_MOMENT2,
    DSC_PLANE_MOMENT3, /* moment_dtype; of trainable groups, by recipe */
    DSC_PLANE_GRAD,    /* gradient sums: fp32, outside the device sum_dtype; of trainable groups; no views */
    DSC_PLANE_COUNT
} dsc_plane;
dsc_dtype dsc_zero_dtype(const dsc_zero *zero, dsc_plane plane);

/* The part of a group's state: the tier of each plane (zero/offload/state_store.c decides it). */
typedef struct dsc_group_tiers {
    bool swap_states, swap_param;     /* offloading is asked for; the parameters of a resident group stay */
    bool sum_in_memory;               /* with swap_states: the sum is in memory, not in a file */
    bool param_on_host;               /* with swap_param: parameters are in host memory, not in a file */
    int64_t at[DSC_PLANE_COUNT];      /* bytes in the plane's swap space, -1: in memory */
    int64_t next_at[DSC_PLANE_COUNT]; /* position that the next update writes (state_store.h, S3) */
} dsc_group_tiers;

#ifdef __cplusplus
}
#endif
#endif
