/* cross_entropy.h - softmax, cross-entropy loss and dlogits in one pass over a chunk of rows, in place.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CROSS_ENTROPY_H
#define DSC_KERNELS_CROSS_ENTROPY_H
#include <dsc/types.h>
#ifdef __cplusplus
extern "C" {
#endif

/* losses[r] = log(sum_{v < vocab} exp(logits[r,v])) - logits[r, target[r]], computed in fp32.
 * With write_gradient: logits[r,v] = (softmax[v] - (v == target[r])) * scale, rounded once; 0 for vocab <= v < stride.
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
} dsc_cross_entropy_args;

#ifdef __cplusplus
}
#endif
#endif
