/* update_tiles.h - tiles of an update, one after another: later tiles are read ahead, earlier tiles are written.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_OFFLOAD_UPDATE_TILES_H
#define DSC_ZERO_OFFLOAD_UPDATE_TILES_H

#include "zero/core/pass.h"
#include "zero/core/tile.h"

/* Every tile that this rank updates, in order. A tile is updated by dsc_update_tiles_update_next, or is read by
 * dsc_update_tiles_next and then left before the next call. After a group's last tile its parameters are ready for the
 * first gather, and after dsc_update_tiles_end for all gathers. Masters and moments may still be on their way to files:
 * the next update, or dsc_update_tiles_drain, waits for them. */
DSC_MUST_USE dsc_status dsc_update_tiles_begin(dsc_zero *zero, dsc_error *err);
/* Instead of its tiles, for one of the first updated_count groups: the speculative or the early update has updated
 * them. */
DSC_MUST_USE dsc_status dsc_update_tiles_updated(dsc_zero *zero, dsc_error *err);
/* Tiles of groups [first, end) come next, or only of those among them that are matrices. */
DSC_MUST_USE dsc_status dsc_update_tiles_seek(dsc_zero *zero, int32_t first, int32_t end, bool matrices,
                                              dsc_error *err);
/* *tile <- the next tile, updated with these terms; a tile of files is checked, updated and sealed part by part. */
DSC_MUST_USE dsc_status dsc_update_tiles_update_next(dsc_zero *zero, const dsc_update_terms *terms, dsc_tile *tile,
                                                     dsc_error *err);
/* For a caller that only reads the tile, and leaves it afterwards. */
DSC_MUST_USE dsc_status dsc_update_tiles_next(dsc_zero *zero, dsc_tile *tile, dsc_error *err);
DSC_MUST_USE dsc_status dsc_update_tiles_left(dsc_zero *zero, const dsc_tile *tile, dsc_error *err);
/* A group without states in files, in a run whose updates continue in the background: none of the tiles above belongs
 * to the group. Compute waits for this update anyway, so all threads of compute update the group at the same time. */
bool dsc_update_tiles_yields_to_compute(const dsc_zero *zero, int32_t group);
DSC_MUST_USE dsc_status dsc_update_tiles_for_compute(dsc_zero *zero, int32_t group, dsc_tile *tile, dsc_error *err);
/* After the last tile. */
DSC_MUST_USE dsc_status dsc_update_tiles_end(dsc_zero *zero, dsc_error *err);
/* After an update: its files are written on the update's thread, which is idle. With `ahead` the first states of the
 * next update are read, too, as far as there are buffers; they do not change until then. */
DSC_MUST_USE dsc_status dsc_update_tiles_wait(dsc_zero *zero, bool ahead, dsc_error *err);
/* On the update's thread: tiles of the first `count` groups of this order come next; results go to the second position.
 */
void dsc_update_tiles_begin_speculative(dsc_zero *zero, const int32_t *order, int32_t count);
/* These groups come first in the order of the update, and the others behind them. The update's thread is idle. */
void dsc_update_tiles_list_first(dsc_zero *zero, const int32_t *groups, int32_t count);
/* On the update's thread: the tiles of the group at this place of the order come next, and no others. */
void dsc_update_tiles_select(dsc_zero *zero, int32_t index);
/* Reads and writes as much as is possible without waiting. */
DSC_MUST_USE dsc_status dsc_update_tiles_continue(dsc_zero *zero, bool ahead, bool with_sums, bool *rest,
                                                  dsc_error *err);
/* Before tiles are read ahead for the update: the prefetch returns the buffers. */
DSC_MUST_USE dsc_status dsc_update_tiles_end_lending(dsc_zero *zero, dsc_error *err);
/* There is a next tile, and its sum. */
bool dsc_update_tiles_has_next(const dsc_zero *zero);
int32_t dsc_update_tiles_updated_groups(const dsc_zero *zero);
/* In this order: the tile at `first` of this rank's slice is updated; the address of its delivered sum. */
bool dsc_update_tiles_is_updated(const dsc_zero *zero, int32_t group, int64_t first);
float *dsc_update_tiles_direct_sum(const dsc_zero *zero, int32_t group, int64_t first);
/* Nothing is written any more. The streams are idle. */
DSC_MUST_USE dsc_status dsc_update_tiles_drain(dsc_zero *zero, dsc_error *err);

#endif
