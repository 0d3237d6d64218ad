/* rmsnorm.h - root mean square normalisation over the last dimension, forward and backward (Zhang & Sennrich 2019), as
 * used by Llama, Mistral and Qwen. With one row per head it is also their norm of queries and keys.
 * reference: cpu/rmsnorm_ref.c   variants: rmsnorm_avx2.c rmsnorm_avx512.c   check and bench: tests/checkkern/rmsnorm.c
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_RMSNORM_H
#define DSC_KERNELS_RMSNORM_H
#include <dsc/types.h>

#include "kernels/norm_rows.h"

#ifdef __cplusplus
extern "C" {
#endif

/* out[r,c] = x[r,c] * rstd[r] * weight[c], rstd = 1 / sqrt(mean of x^2 + eps); sums and products in fp32, rounded once.
 * With `plus_one` the factor is 1 + weight[c] in fp32 (Gemma), and without a weight it is 1.
 * x is `in` or, with `add`, sum = in + add in fp32, rounded to the dtype and written: the residual stream in one
 * pass. */
typedef struct dsc_rmsnorm_fwd_args {
    void *out;          /* [rows, C] */
    void *sum;          /* [rows, C]; may be `in` or `add`, not `out`. NULL without `add` */
    const void *add;    /* [rows, C] or NULL */
    float *rstd;        /* [rows] written */
    const void *in;     /* [rows, C] */
    const void *weight; /* [C] or NULL */
    int64_t rows, channels;
    float eps;
    dsc_dtype dtype; /* dtype of in, add, sum, out, weight: F32, BF16 or F16 */
    bool plus_one;
    dsc_norm_rows wide; /* of `in`, without `add` */
} dsc_rmsnorm_fwd_args;

/* d_in = (d_residual or 0) + gradient through the norm; d_in may be d_residual itself (in place), not d_out. `in` is
 * what was normalised. d_weight is fp32 and overwritten: rows are summed in blocks of 64 rows in order, block sums
 * in order. scratch: dsc_rmsnorm_bwd_scratch_bytes(rows, C). */
typedef struct dsc_rmsnorm_bwd_args {
    void *d_in;             /* [rows, C] */
    float *d_weight;        /* [C]; NULL when frozen or without a weight */
    const void *d_out;      /* [rows, C] */
    const void *d_residual; /* [rows, C] or NULL */
    const void *in;         /* [rows, C] */
    const void *weight;     /* [C] or NULL */
    const float *rstd;      /* [rows] */
    void *scratch;
    int64_t rows, channels;
    dsc_dtype dtype;
    bool plus_one;
    dsc_norm_rows wide; /* of `in` and `d_in`, without `d_residual` */
} dsc_rmsnorm_bwd_args;

static inline int64_t dsc_rmsnorm_bwd_scratch_bytes(int64_t rows, int64_t channels)
{
    return (rows + 63) / 64 * channels * 4;
}

#ifdef __cplusplus
}
#endif
#endif
