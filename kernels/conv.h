/* conv.h - causal convolution over the tokens of a sample, each channel by itself, as linear attention has it in front
 * of its queries, keys and values. It begins anew at the start of each document.
 * reference: cpu/conv.c   on a GPU: cuda/conv.cu   check: tests/checkkern/delta.c
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CONV_H
#define DSC_KERNELS_CONV_H
#include "kernels/columns.h"
#ifdef __cplusplus
extern "C" {
#endif

enum { DSC_CONV_WIDTH_MAX = 8 };

/* out[t,c] = sum over j of in[t - j,c] * weight[c, K - 1 - j], for j = 0 .. min(K - 1, place of t). The sum is
 * fp32, in this order, and is rounded once. The place of a token in its document is positions[t], or without positions
 * its place in the sample. `tail` has the last K - 1 rows of `in` for the next call; with `resume` those of the call
 * before are in front of the first row. */
typedef struct dsc_conv_fwd_args {
    void *out;                /* [rows, C] in rows of out_stride */
    const void *in;           /* [rows, C] */
    const void *weight;       /* [C, K] */
    const int32_t *positions; /* [rows] or NULL */
    void *tail;               /* [K - 1, C], of one sample, or NULL */
    int64_t rows, tokens, channels, out_stride;
    dsc_columns in_columns;
    int32_t width; /* K */
    bool resume;
    dsc_dtype dtype; /* F32, BF16 or F16 */
} dsc_conv_fwd_args;

/* d_weight is fp32 and overwritten: rows are summed in blocks of 64 in order, then block sums; on a GPU in an order of
 * its own, fixed by the shape. */
typedef struct dsc_conv_bwd_args {
    void *d_in;               /* [rows, C]; not in or d_out */
    float *d_weight;          /* [C, K]; NULL: frozen */
    const void *d_out;        /* [rows, C] in rows of out_stride */
    const void *in;           /* [rows, C] */
    const void *weight;       /* [C, K] */
    const int32_t *positions; /* [rows] or NULL */
    int64_t rows, tokens, channels, out_stride;
    dsc_columns d_in_columns, in_columns;
    int32_t width;
    dsc_dtype dtype;
} dsc_conv_bwd_args;

#ifdef __cplusplus
}
#endif
#endif
