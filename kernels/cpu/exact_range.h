/* exact_range.h - the exact kernels on one thread over a range of elements: what a variant has to provide.
 * Private to kernels/exact*.c. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_EXACT_RANGE_H
#define DSC_KERNELS_CPU_EXACT_RANGE_H

#include "base/rng.h"
#include "kernels/exact.h"

/* Ranges are elements first..last-1 of the arguments' arrays. Any length, any alignment of the element type. */
typedef struct dsc_exact_ops {
    /* dtype: BF16 or F16 */
    void (*half_from_f32)(uint16_t *to, const float *from, int64_t count, dsc_dtype dtype);
    void (*f32_from_half)(float *to, const uint16_t *from, int64_t count, dsc_dtype dtype);
    void (*cast_stochastic)(const dsc_cast_stochastic_args *a, int64_t first, int64_t last);
    void (*ordered_reduce)(const dsc_ordered_reduce_args *a, int64_t first, int64_t last);
    void (*add)(const dsc_add_args *a, int64_t first, int64_t last);
    /* x starts at a chunk; sums[c] = sum of squares of chunk c, ceil(count / 1024) of them. */
    void (*sumsq)(double *sums, const float *x, int64_t count);
} dsc_exact_ops;

extern const dsc_exact_ops dsc_exact_ref, dsc_exact_avx2, dsc_exact_avx512;

/* Dtype of a gradient part; constant in each instance of a variant's ordered reduction. */
typedef struct dsc_grad_part_kind {
    dsc_dtype dtype, wire; /* wire: what an F32 leaf is rounded to */
} dsc_grad_part_kind;

/* One instance of `call` for each kind: `kind` is a constant in it. */
#define DSC_FOR_LEAF_KIND(a, call)                                                                                     \
    do {                                                                                                               \
        if ((a)->leaf_dtype == DSC_BF16) {                                                                             \
            const dsc_grad_part_kind kind = { DSC_BF16, DSC_BF16 };                                                    \
            call;                                                                                                      \
        } else if ((a)->leaf_dtype == DSC_F16) {                                                                       \
            const dsc_grad_part_kind kind = { DSC_F16, DSC_F16 };                                                      \
            call;                                                                                                      \
        } else if ((a)->wire_dtype == DSC_BF16) {                                                                      \
            const dsc_grad_part_kind kind = { DSC_F32, DSC_BF16 };                                                     \
            call;                                                                                                      \
        } else if ((a)->wire_dtype == DSC_F16) {                                                                       \
            const dsc_grad_part_kind kind = { DSC_F32, DSC_F16 };                                                      \
            call;                                                                                                      \
        } else {                                                                                                       \
            const dsc_grad_part_kind kind = { DSC_F32, DSC_F32 };                                                      \
            call;                                                                                                      \
        }                                                                                                              \
    } while (0)

static inline const void *dsc_ordered_reduce_part(const dsc_ordered_reduce_args *a, int64_t leaf)
{
    return a->leaf_ptr != NULL ? a->leaf_ptr[leaf] : (const char *)a->leaf + leaf * a->leaf_stride_bytes;
}

#endif
