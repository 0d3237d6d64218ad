/* grad_tiles.h - offloaded sums of gradients, a tile at a time, for the reductions.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_OFFLOAD_GRAD_TILES_H
#define DSC_ZERO_OFFLOAD_GRAD_TILES_H

#include "zero/core/tile.h"

/* On the reduce stream: where the sum of elements [first, first + count) of this rank's slice lies. Sums that are not
 * on the device come at most a tile at a time, and are not read with `overwrite`. `part` (-1: none) of a pass:
 * what is added, behind which the reductions' order is known, and sums are read ahead. */
typedef struct dsc_sum_cursor {
    int32_t part;
    int64_t pass, first;
} dsc_sum_cursor;
DSC_MUST_USE dsc_status dsc_grad_tiles_acquire(dsc_zero *zero, int32_t group, const dsc_sum_cursor *cursor,
                                               bool overwrite, dsc_sum *sum, dsc_error *err);
/* `complete`: no part of this step is added to it any more. */
DSC_MUST_USE dsc_status dsc_grad_tiles_write_back(dsc_zero *zero, const dsc_sum *sum, bool complete, dsc_error *err);
/* Instead of it: it was only read. */
DSC_MUST_USE dsc_status dsc_grad_tiles_release(dsc_zero *zero, const dsc_sum *sum, dsc_error *err);
/* Behind the last tile of a part: as dsc_update_tiles_wait, of sums. */
DSC_MUST_USE dsc_status dsc_grad_tiles_wait(dsc_zero *zero, const dsc_sum_cursor *cursor, dsc_error *err);
/* Instead of it: the sum is in memory, and complete. */
DSC_MUST_USE dsc_status dsc_grad_tiles_keep(dsc_zero *zero, const dsc_sum_cursor *cursor, dsc_error *err);
DSC_MUST_USE dsc_status dsc_grad_tiles_drain(dsc_zero *zero, dsc_error *err);

#endif
