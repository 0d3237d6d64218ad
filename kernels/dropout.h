/* dropout.h - elements of a matrix are 0 with a probability, and others grow so that the mean stays. This is the input
 * of a low-rank adapter in training, or the gradient of that input.
 * reference: dropout_ref.c   variants: dropout_avx2.c, dropout_avx512.c, dropout.cu
 * check: tests/checkkern/dropout.c   SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_DROPOUT_H
#define DSC_KERNELS_DROPOUT_H
#include <dsc/types.h>
#ifdef __cplusplus
extern "C" {
#endif

/* Element i is kept if the random word first + i of (seed, stream), as dsc_rng_u32 (base/rng.h) has it, is at least
 * `threshold`. Kept elements are x[i] * factor, others 0, in fp32. With `add` the sum with out[i] is written, else the
 * value alone, rounded once to the dtype: the same bits everywhere. */
typedef struct dsc_dropout_args {
    void *out; /* not the memory of x, or the same without `add` */
    const void *x;
    int64_t count;
    uint64_t seed, stream, first;
    uint32_t threshold; /* the probability times 2^32 */
    float factor;       /* 1 / (1 - probability) */
    bool add;
    dsc_dtype dtype; /* F32, BF16 or F16 */
} dsc_dropout_args;

#ifdef __cplusplus
}
#endif
#endif
