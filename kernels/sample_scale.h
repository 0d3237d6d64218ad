/* sample_scale.h - all rows of a sample times one row or one number: squeeze and excitation (Hu et al. 2018), and
 * stochastic depth (Huang et al. 2016).
 * reference, the only CPU variant: cpu/sample_scale.c   check: tests/checkkern/sample_scale.c
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_SAMPLE_SCALE_H
#define DSC_KERNELS_SAMPLE_SCALE_H
#include <dsc/types.h>
#ifdef __cplusplus
extern "C" {
#endif

/* FWD: out[b,r,c] = in[b,r,c] * scale[b,c], rounded once. `out` may be the memory of `in`.
 * BWD: scale[b,c] = the sum over rows r in order of out[b,r,c] * in[b,r,c], in fp32, rounded once; with `out` the
 * gradient it is the gradient of the scale. */
typedef struct dsc_sample_scale_args {
    void *out;      /* [samples, rows, C]; BWD: read */
    const void *in; /* [samples, rows, C] */
    void *scale;    /* [samples, C]; BWD: written */
    int64_t samples, rows, channels;
    dsc_dtype dtype; /* F32, BF16 or F16 */
} dsc_sample_scale_args;

/* Sample b is kept if the random word first + b of (seed, stream), as dsc_rng_u32 (base/rng.h) has it, is at least
 * `threshold`. The rows of a kept sample are times `factor` in fp32, rounded once, and others are 0: torchvision's
 * StochasticDepth in mode "row". `out` may be the memory of `in`. Every variant and device gives the same bits. */
typedef struct dsc_sample_dropout_args {
    void *out;
    const void *in; /* [samples, elements] */
    int64_t samples, elements;
    uint64_t seed, stream, first;
    uint32_t threshold; /* the probability times 2^32 */
    float factor;       /* 1 / (1 - probability) */
    dsc_dtype dtype;    /* F32, BF16 or F16 */
} dsc_sample_dropout_args;

#ifdef __cplusplus
}
#endif
#endif
