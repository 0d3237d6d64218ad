/* zero_ranges.h - zeroes several short ranges of an array in one launch: elements of a gradient buffer without a
 * gradient.
 * reference, the only variant: cpu/zero_ranges.c   check: tests/checkkern/zero_ranges.c
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_ZERO_RANGES_H
#define DSC_KERNELS_ZERO_RANGES_H
#include <dsc/types.h>
#ifdef __cplusplus
extern "C" {
#endif

#define DSC_ZERO_RANGES_MAX 16
#define DSC_ZERO_RANGES_ELEMENTS_MAX (1 << 14) /* longest range, which is one block's work on a GPU */

/* x[i] = 0 for first[r] <= i < first[r] + count[r], r < range_count. Ranges do not overlap. */
typedef struct dsc_zero_ranges_args {
    float *x;
    int32_t range_count;                 /* 0 to DSC_ZERO_RANGES_MAX */
    int32_t count[DSC_ZERO_RANGES_MAX];  /* 0 to DSC_ZERO_RANGES_ELEMENTS_MAX */
    int64_t first[DSC_ZERO_RANGES_MAX];
} dsc_zero_ranges_args;

#ifdef __cplusplus
}
#endif
#endif
