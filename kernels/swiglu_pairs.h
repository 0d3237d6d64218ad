/* swiglu_pairs.h - the clamped SwiGLU of GPT-OSS, whose gate and up are neighbours: columns 2c and 2c + 1 of a row.
 *
 * With g = min(gate, limit), u = min(max(up, -limit), limit) and s = 1 / (1 + exp(-alpha g)):
 *     out = (u + 1) g s
 * source: the reference code of gpt-oss (OpenAI 2025), gpt_oss/torch/model.py, swiglu
 * reference, the only variant: cpu/swiglu_pairs.c   check: tests/checkkern/swiglu_pairs.c
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_SWIGLU_PAIRS_H
#define DSC_KERNELS_SWIGLU_PAIRS_H
#include <dsc/types.h>
#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_swiglu_clamp {
    float alpha, limit; /* limit > 0 */
} dsc_swiglu_clamp;

typedef struct dsc_swiglu_pairs_fwd_args {
    void *out;          /* [rows, C] */
    const void *in;     /* [rows, 2 C] */
    int64_t rows, cols; /* cols: C */
    dsc_dtype dtype;    /* F32, BF16 or F16 */
    dsc_swiglu_clamp clamp;
} dsc_swiglu_pairs_fwd_args;

/* d_up = d_out g s where |up| <= limit, else 0; d_gate = d_out (u + 1) (s + alpha g s (1 - s)) where gate <= limit,
 * else 0. Both of a pair are read before either is written: d_in may be in. */
typedef struct dsc_swiglu_pairs_bwd_args {
    void *d_in;        /* [rows, 2 C] */
    const void *d_out; /* [rows, C] */
    const void *in;    /* [rows, 2 C] */
    int64_t rows, cols;
    dsc_dtype dtype;
    dsc_swiglu_clamp clamp;
} dsc_swiglu_pairs_bwd_args;

#ifdef __cplusplus
}
#endif
#endif
