/* gather_rows.h - some rows of each sample, by their places, and the gradient's way back: what a head looks at that
 * predicts some tokens only. reference, the only variant: gather_rows.c   check: tests/checkkern/pick.c
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_PICK_H
#define DSC_KERNELS_PICK_H
#include <dsc/types.h>
#ifdef __cplusplus
extern "C" {
#endif

/* forward: some[b,k] = all[b, places[b,k]]. backward: all[b,t] = some[b,k] where places[b,k] == t, and 0 where there is
 * no such k. Bits are copied. */
typedef struct dsc_gather_rows_args {
    void *all, *some;                       /* [B,T,C], [B,K,C]: one is read, the other wholly written */
    const int32_t *places;                  /* [B,K], 0 <= place < T, each above the one before it in its sample */
    int64_t batch, tokens, picks, channels; /* B, T, K, C */
    dsc_dtype dtype;
} dsc_gather_rows_args;

#ifdef __cplusplus
}
#endif
#endif
