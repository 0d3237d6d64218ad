/* grad_tiles.h - offloaded sums of gradients, a tile at a time, for the reductions.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_OFFLOAD_GRAD_TILES_H
#define DSC_ZERO_OFFLOAD_GRAD_TILES_H

#include "zero/core/tile.h"

/* Position of the reductions in the list of gradient parts. */
typedef struct dsc_sum_cursor {
    int32_t part; /* the part that is added; -1: none, and no sums are read ahead */
    int64_t pass;
    int64_t first; /* element of this rank's slice */
} dsc_sum_cursor;
/* On the reduce stream: *sum <- memory of the sum from element `first` on, at most a tile if the sum is offloaded. With
 * `overwrite` the old values are not read. */
DSC_MUST_USE dsc_status dsc_grad_tiles_acquire(dsc_zero *zero, int32_t group, const dsc_sum_cursor *cursor,
                                               bool overwrite, dsc_sum *sum, dsc_error *err);
/* `complete`: no part of this step is added to it any more. */
DSC_MUST_USE dsc_status dsc_grad_tiles_write_back(dsc_zero *zero, const dsc_sum *sum, bool complete, dsc_error *err);
/* Instead of a write: the tile was only read. */
DSC_MUST_USE dsc_status dsc_grad_tiles_release(dsc_zero *zero, const dsc_sum *sum, dsc_error *err);
/* After the last tile of a part: sums are read ahead and written behind until the next part. */
DSC_MUST_USE dsc_status dsc_grad_tiles_wait(dsc_zero *zero, const dsc_sum_cursor *cursor, dsc_error *err);
/* Instead, for a complete sum in memory: the speculative update may read it. */
DSC_MUST_USE dsc_status dsc_grad_tiles_keep(dsc_zero *zero, const dsc_sum_cursor *cursor, dsc_error *err);
DSC_MUST_USE dsc_status dsc_grad_tiles_drain(dsc_zero *zero, dsc_error *err);

#endif
