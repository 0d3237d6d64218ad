/* packed.h - frozen groups that are stored in 4 bits (kernels/nf4.h), and unpacked into a window for each use.
 *
 * A rank stores its slice in units of 1024 elements, and below stage 3 the slices of all ranks. Stage 3 gathers packed
 * bytes, so that a gather moves about a quarter of the bytes of bf16. The scales of scales are small, one number for
 * 16384 elements, and every rank has all of them. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_PACKED_H
#define DSC_ZERO_PACKED_H

#include "zero/core/internal.h"

/* Where a packed tensor's scales of scales begin in buf.packed_tops, and what is added to its scales. */
typedef struct dsc_packed_tensor {
    int64_t first_top;
    float offset;
} dsc_packed_tensor;

DSC_MUST_USE dsc_status dsc_packed_plan(dsc_zero *zero, dsc_error *err);
DSC_MUST_USE dsc_status dsc_packed_open(dsc_zero *zero, dsc_error *err);
void dsc_packed_close(dsc_zero *zero);
/* On the gather stream: the window <- all slices of the group. `mine`: this rank's packed slice, or those of all ranks
 * where parameters are whole. */
DSC_MUST_USE dsc_status dsc_packed_unpack(dsc_zero *zero, int32_t group, char *window, const char *mine,
                                          dsc_error *err);

#endif
