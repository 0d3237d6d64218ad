/* dora.h - low-rank adapters with a magnitude for each output (DoRA, Liu et al. 2024): the factors of a linear layer's
 * outputs, rows times these factors, and the gradient of the magnitudes.
 *
 * A layer's weight w is [out,in], or [in,out] with in_out; A is [rank,in] and B [out,rank]. The weight with its adapter
 * is w + scale B A. It is never stored: its elements are made and squared one after another.
 * reference: dora_ref.c   variants: dora_avx2.c, dora_avx512.c, dora.cu
 * check: tests/checkkern/dora.c   SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_DORA_H
#define DSC_KERNELS_DORA_H
#include <dsc/types.h>
#ifdef __cplusplus
extern "C" {
#endif

enum { DSC_DORA_LANES = 128 };

/* For each output o, the same bits everywhere:
 *   d = 0;  d = fma(B[o,k], A[k,i], d) for k = 0, 1, ...;  v = fma(scale, d, w[o,i]);  lane[i mod 128] += v * v
 *   for n = 64, 32, ... 1: lane[l] += lane[l + n], l < n;  norm = sqrt(lane[0])
 * d and v are fp32, squares and their sums double. The norm is rounded to fp32 and then to the dtype, as the magnitude
 * is, so that magnitudes that begin as norms give the factor 1. */
typedef struct dsc_dora_factors_args {
    float *factors; /* [out] written: magnitude / norm; 0 where the norm is 0 */
    float *norms;   /* [out] written */
    const void *weight, *a, *b;
    const void *magnitude; /* [out] */
    int64_t in, out, rank;
    float scale;
    bool in_out;
    dsc_dtype dtype; /* F32, BF16 or F16 */
} dsc_dora_factors_args;

/* out[r,c] = x[r,c] * (factors[c] + offset) + bias[c] + add[r,c], from left to right. Each step is rounded to fp32 and
 * the last one to the dtype: the same bits everywhere. */
typedef struct dsc_dora_scale_args {
    void *out;            /* [rows,cols]; may be x or add */
    const void *x;        /* [rows,cols] */
    const void *bias;     /* [cols]; NULL: none */
    const void *add;      /* [rows,cols]; NULL: nothing */
    const float *factors; /* [cols] */
    int64_t rows, cols;
    float offset;
    dsc_dtype dtype;
} dsc_dora_scale_args;

/* out[c] = sum over rows of d[r,c] * z[r,c], divided by norms[c]; 0 where that is 0. The products are rounded to fp32.
 * Rows in blocks of 64 are summed in order, then block sums; on a GPU in an order of its own, fixed by the shape. */
typedef struct dsc_dora_gradient_args {
    float *out;         /* [cols] */
    const void *d, *z;  /* [rows,cols] */
    const float *norms; /* [cols] */
    int64_t rows, cols;
    dsc_dtype dtype;
} dsc_dora_gradient_args;

#ifdef __cplusplus
}
#endif
#endif
