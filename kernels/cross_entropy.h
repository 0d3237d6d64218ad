/* cross_entropy.h - softmax, cross-entropy loss and dlogits in one pass over a chunk of rows, in place.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CROSS_ENTROPY_H
#define DSC_KERNELS_CROSS_ENTROPY_H
#include <dsc/types.h>
#ifdef __cplusplus
extern "C" {
#endif

#ifdef __CUDACC__
#define DSC_CROSS_ENTROPY_FN static __host__ __device__ __forceinline__
#else
#define DSC_CROSS_ENTROPY_FN static inline
#endif

/* losses[r] = log(sum_{v < vocab} exp(z[r,v])) - z[r, target[r]], computed in fp32. z is the logit or, with a
 * logit_scale and a softcap, softcap * tanh(logit_scale * logit / softcap).
 * With write_gradient: logits[r,v] = (softmax[v] - (v == target[r])) * scale * dz/dlogit, rounded once, and 0 for
 * vocab <= v < stride.
 * With weights, row r's scale is scale * weights[r], rounded once.
 * A negative target is not counted: its loss and its whole row of gradients are 0, whatever logits and weight are.
 * One row is one thread's; its sums run in 16 interleaved lanes with a fixed tree. */
typedef struct dsc_cross_entropy_args {
    void *logits;           /* [rows, stride] */
    float *losses;          /* [rows] written */
    const int32_t *targets; /* [rows], target < vocab (checked by whoever reads the data); negative: not counted */
    int64_t rows, vocab, stride;
    float scale; /* 1 / targets of the micro-batch, counted or not, times the loss scale */
    bool write_gradient;
    dsc_dtype dtype;
    const float *weights; /* [rows], read with write_gradient alone; NULL: all 1 */
    float logit_scale;    /* > 0; 0: 1 */
    float softcap;        /* > 0; 0: none */
} dsc_cross_entropy_args;

/* The same over logits whose columns ranks share out; vocab may be 0 here. PART leaves a rank's share of each row's sum
 * in `parts`, without a loss. JOIN reads those of all ranks, which are in rank order, and adds them from rank 0 on. All
 * ranks get the same losses, and each the gradients of its own logits. `parts` has a device's own units. */
typedef struct dsc_cross_entropy_parts_args {
    dsc_cross_entropy_args of; /* targets are numbers in the whole vocabulary. PART reads no weights and losses */
    int64_t first;             /* number of column 0 in the whole vocabulary */
    float *parts;              /* PART: [rows, DSC_CROSS_ENTROPY_PART] written; JOIN: [ranks, rows, ...] read */
    int32_t ranks;             /* JOIN's */
} dsc_cross_entropy_parts_args;

/* Numbers of a row's part: the largest exponent, the sum of powers relative to it, and the target's z, which is -Inf
 * where another rank has its column. */
enum { DSC_CROSS_ENTROPY_PART = 3 };

/* Column of row r's target on this rank; -1: another rank has it. */
DSC_CROSS_ENTROPY_FN int64_t dsc_cross_entropy_column(const dsc_cross_entropy_parts_args *a, int64_t r)
{
    const int64_t column = a->of.targets[r] - a->first;
    return column >= 0 && column < a->of.vocab ? column : -1;
}

/* z = outer * tanh(inner * logit); inner * logit where outer is 0. */
typedef struct dsc_logit_curve {
    float inner, outer;
} dsc_logit_curve;

static inline dsc_logit_curve dsc_logit_curve_of(const dsc_cross_entropy_args *a)
{
    const float scale = a->logit_scale > 0 ? a->logit_scale : 1;
    const dsc_logit_curve curve = { a->softcap > 0 ? scale / a->softcap : scale, a->softcap > 0 ? a->softcap : 0 };
    return curve;
}

/* Whether z is other than the logit. */
static inline bool dsc_logits_bend(const dsc_cross_entropy_args *a)
{
    return a->softcap > 0 || (a->logit_scale > 0 && a->logit_scale != 1);
}

#ifdef __cplusplus
}
#endif
#endif
