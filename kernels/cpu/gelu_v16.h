/* gelu_v16.h - activations, forward and backward, on 16 lanes; compiled by gelu_avx2.c and gelu_avx512.c after their
 * v16 words. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/activation_v16.h"

V16_INLINE void gelu_fwd(const dsc_gelu_fwd_args *a, int64_t first, int64_t last, dsc_dtype dtype, dsc_activation kind)
{
    int64_t i = first;
    for (; i + 16 <= last; i += 16)
        v16_store(a->out, i, 16, dtype, activation_value(kind, v16_load(a->in, i, 16, dtype)));
    if (i < last)
        v16_store(a->out, i, last - i, dtype, activation_value(kind, v16_load(a->in, i, last - i, dtype)));
}

V16_INLINE v16 gelu_grad(const dsc_gelu_bwd_args *a, int64_t i, int64_t left, dsc_dtype dtype, dsc_activation kind)
{
    return v16_mul(v16_load(a->d_out, i, left, dtype), activation_slope(kind, v16_load(a->in, i, left, dtype)));
}

V16_INLINE void gelu_bwd(const dsc_gelu_bwd_args *a, int64_t first, int64_t last, dsc_dtype dtype, dsc_activation kind)
{
    int64_t i = first;
    for (; i + 16 <= last; i += 16)
        v16_store(a->d_in, i, 16, dtype, gelu_grad(a, i, 16, dtype, kind));
    if (i < last)
        v16_store(a->d_in, i, last - i, dtype, gelu_grad(a, i, last - i, dtype, kind));
}

#define GELU_LOOPS(op)                                                                                                 \
    V16_INLINE void op##_kind(const dsc_##op##_args *a, int64_t first, int64_t last, dsc_activation kind)              \
    {                                                                                                                  \
        DSC_FOR_DTYPE(a->dtype, op(a, first, last, dtype, kind));                                                      \
    }                                                                                                                  \
    void V16_NAME(op)(const void *args, int64_t first, int64_t last)                                                   \
    {                                                                                                                  \
        const dsc_##op##_args *a = args;                                                                               \
        const int64_t start = first * DSC_GELU_BLOCK, end = dsc_min_i64(last * DSC_GELU_BLOCK, a->count);              \
        FOR_ACTIVATION(a->kind, GELU_LOOP_##op);                                                                       \
    }
#define GELU_LOOP_gelu_fwd(kind) gelu_fwd_kind(a, start, end, kind)
#define GELU_LOOP_gelu_bwd(kind) gelu_bwd_kind(a, start, end, kind)
GELU_LOOPS(gelu_fwd)
GELU_LOOPS(gelu_bwd)
