/* squares.h - sums of squares of a group's gradient sums, of the tensors that this rank stands for.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_SQUARES_H
#define DSC_ZERO_SQUARES_H

#include "zero/core/internal.h"

/* Adds the squares of elements [first, first + count) of the group, which are at x, to zero->buf.sum on the stream.
 * Chunks are those of the group, so that their sums do not depend on where a slice or a tile begins. */
DSC_MUST_USE dsc_status dsc_zero_add_squares(dsc_zero *zero, dsc_stream *stream, int32_t group, const float *x,
                                             int64_t first, int64_t count, dsc_error *err);

#endif
