/* gather_rows.h - gathers some rows of each sample by their positions, and scatters their gradients back. A head that
 * predicts some tokens only reads these rows.
 * reference, the only variant: cpu/gather_rows.c   check: tests/checkkern/gather_rows.c
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_GATHER_ROWS_H
#define DSC_KERNELS_GATHER_ROWS_H
#include <dsc/types.h>
#ifdef __cplusplus
extern "C" {
#endif

/* forward: some[b,k] = all[b, positions[b,k]]. backward: all[b,t] = some[b,k] where positions[b,k] == t, and 0 where
 * there is no such k. Bits are copied. */
typedef struct dsc_gather_rows_args {
    void *all, *some;                       /* [B,T,C], [B,K,C]: one is read, the other wholly written */
    const int32_t *positions;               /* [B,K], 0 <= position < T, increasing within a sample */
    int64_t batch, tokens, gathered, channels; /* B, T, K, C */
    dsc_dtype dtype;
} dsc_gather_rows_args;

#ifdef __cplusplus
}
#endif
#endif
