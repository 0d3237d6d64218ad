/* tile_update.h - the update of one tile. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_CORE_TILE_UPDATE_H
#define DSC_ZERO_CORE_TILE_UPDATE_H

#include "zero/core/pass.h"
#include "zero/core/tile.h"

void dsc_update_terms_fill(const dsc_update_scalars *scalars, int32_t class_count, int64_t update,
                           dsc_update_terms *out);
/* The kernel arguments of elements [first, end) of a tile, which belong to tensor t. */
void dsc_update_args_fill(const dsc_zero *zero, const dsc_update_terms *terms, const dsc_tile *tile, int64_t first,
                          int64_t end, int32_t t, dsc_update_args *out);
DSC_MUST_USE dsc_status dsc_update_tile(dsc_zero *zero, const dsc_update_terms *terms, const dsc_tile *tile,
                                        dsc_error *err);

#endif
