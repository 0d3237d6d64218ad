/* mean_rows.h - the mean of each sample's first rows, and its gradient.
 * reference, the only CPU variant: cpu/mean_rows.c   check: tests/checkkern/mean_rows.c
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_MEAN_ROWS_H
#define DSC_KERNELS_MEAN_ROWS_H
#include <dsc/types.h>
#ifdef __cplusplus
extern "C" {
#endif

/* Sample b has n = last[b] + 1 rows that count. forward: some[b] = (all[b,0] + ... + all[b,n-1]) / n, summed in fp32 in
 * this order. backward: all[b,t] = some[b] / n for t < n, and 0 for the others. Results are rounded once. */
typedef struct dsc_mean_rows_args {
    void *all, *some;                /* [B,T,C], [B,C]: one is read, the other wholly written */
    const int32_t *last;             /* [B], 0 <= last < T */
    int64_t batch, tokens, channels; /* B, T, C */
    dsc_dtype dtype;
} dsc_mean_rows_args;

#ifdef __cplusplus
}
#endif
#endif
