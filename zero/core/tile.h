/* tile.h - the part of a group that one step of the update, or of the reductions, works on.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_CORE_TILE_H
#define DSC_ZERO_CORE_TILE_H

#include "zero/core/planes.h"

/* Elements [first, first + count) of a group, all of their states in memory until the tile is updated or left. */
typedef struct dsc_tile {
    int32_t group;
    int64_t first, count;
    bool last_of_group;
    float *master;
    char *moment[DSC_UPDATE_STATES_MAX]; /* moment_dtype; NULL: the recipe has none such */
    const float *master_from;            /* NULL, or the states before the update, which are read alone */
    const char *moment_from[DSC_UPDATE_STATES_U8];
    const float *grad;
    const uint16_t *grad_bf16; /* instead of grad, where the update reads sums in bf16 */
    void *param;        /* compute dtype; the master of an fp32 run */
    dsc_stream *stream; /* stream of the update */
    int32_t slot[DSC_PLANE_COUNT], host_slot;
    bool by_part;
} dsc_tile;

/* A tile of a sum of gradients, for the reductions (grad_tiles.h). */
typedef struct dsc_sum {
    int32_t group, slot, staging_slot;
    int64_t first, count;
    void *kept; /* in host memory, of sum_dtype, where it is not on the device */
    float *acc;
} dsc_sum;

#endif
