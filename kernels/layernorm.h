/* layernorm.h - layer normalisation over the last dimension, forward and backward (Ba et al. 2016).
 * reference: cpu/layernorm_ref.c   variants: layernorm_avx2.c layernorm_avx512.c
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_LAYERNORM_H
#define DSC_KERNELS_LAYERNORM_H
#include <dsc/types.h>

#include "kernels/norm_rows.h"

#ifdef __cplusplus
extern "C" {
#endif

/* out[r,c] = (x[r,c] - mean[r]) * rstd[r] * weight[c] + bias[c]; statistics and products in fp32, rounded once. Without
 * a weight its place has 1, without a bias 0, and with `plus_one` the factor is 1 + weight[c] in fp32. x is
 * `in` or, with `add`, sum = in + add in fp32, rounded to the dtype and written: the residual stream in one pass. */
typedef struct dsc_layernorm_fwd_args {
    void *out;              /* [rows, C] */
    void *sum;              /* [rows, C]; may be `in` or `add`, not `out`. NULL without `add` */
    const void *add;        /* [rows, C] or NULL */
    float *mean, *rstd;     /* [rows] written */
    const void *in;         /* [rows, C] */
    const void *weight, *bias; /* [C] or NULL */
    int64_t rows, channels;
    float eps;
    dsc_dtype dtype; /* dtype of in, out, weight, bias: F32, BF16 or F16 */
    bool plus_one;
    dsc_norm_rows wide; /* of `in`, without `add` */
} dsc_layernorm_fwd_args;

/* d_in = (d_residual or 0) + gradient through the norm; d_in may be d_residual itself (in place), not d_out.
 * d_weight, d_bias are fp32 and overwritten: rows are summed in blocks of 64 rows in order, block sums in order.
 * scratch: dsc_layernorm_bwd_scratch_bytes(rows, C). */
typedef struct dsc_layernorm_bwd_args {
    void *d_in;              /* [rows, C] */
    float *d_weight, *d_bias; /* [C]; NULL when frozen or not there */
    const void *d_out;       /* [rows, C] */
    const void *d_residual;  /* [rows, C] or NULL */
    const void *in;          /* [rows, C] */
    const void *weight;      /* [C] or NULL */
    const float *mean, *rstd; /* [rows] */
    void *scratch;
    int64_t rows, channels;
    dsc_dtype dtype;
    bool plus_one;
    dsc_norm_rows wide; /* of `in` and `d_in`, without `d_residual` */
} dsc_layernorm_bwd_args;

static inline int64_t dsc_layernorm_bwd_scratch_bytes(int64_t rows, int64_t channels)
{
    return (rows + 63) / 64 * 2 * channels * 4;
}

#ifdef __cplusplus
}
#endif
#endif
