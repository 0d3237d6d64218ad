/* swiglu_v16.h - gated activations forward and backward on 16 lanes; compiled by swiglu_avx2.c and swiglu_avx512.c
 * after their v16 words. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/activation_v16.h"

V16_INLINE void fwd_part(const dsc_swiglu_fwd_args *a, dsc_swiglu_piece p, int64_t i, int64_t left, dsc_dtype dtype,
                         dsc_activation kind)
{
    const v16 gate = v16_load(a->gate, p.at + i, left, dtype), up = v16_load(a->up, p.at + i, left, dtype);
    v16_store(a->out, p.dense + i, left, dtype, v16_mul(activation_value(kind, gate), up));
}

V16_INLINE void swiglu_fwd(const dsc_swiglu_fwd_args *args, int64_t first, int64_t last, dsc_dtype dtype,
                           dsc_activation kind)
{
    const dsc_swiglu_fwd_args local = *args, *a = &local;
    for (int64_t block = first; block < last; block++) {
        const dsc_swiglu_piece p = dsc_swiglu_piece_of(block, a->cols, a->in_stride);
        int64_t i = 0;
        for (; i + 16 <= p.count; i += 16)
            fwd_part(a, p, i, 16, dtype, kind);
        if (i < p.count)
            fwd_part(a, p, i, p.count - i, dtype, kind);
    }
}

V16_INLINE void bwd_part(const dsc_swiglu_bwd_args *a, dsc_swiglu_piece p, int64_t i, int64_t left, dsc_dtype dtype,
                         dsc_activation kind)
{
    const v16 gate = v16_load(a->gate, p.at + i, left, dtype), up = v16_load(a->up, p.at + i, left, dtype);
    const v16 d = v16_load(a->d_out, p.dense + i, left, dtype);
    const v16 value = activation_value(kind, gate), slope = activation_slope(kind, gate);
    v16_store(a->d_gate, p.at + i, left, dtype, v16_mul(v16_mul(d, up), slope));
    v16_store(a->d_up, p.at + i, left, dtype, v16_mul(d, value));
    if (a->out != NULL)
        v16_store(a->out, p.dense + i, left, dtype, v16_mul(value, up));
}

V16_INLINE void swiglu_bwd(const dsc_swiglu_bwd_args *args, int64_t first, int64_t last, dsc_dtype dtype,
                           dsc_activation kind)
{
    const dsc_swiglu_bwd_args local = *args, *a = &local;
    for (int64_t block = first; block < last; block++) {
        const dsc_swiglu_piece p = dsc_swiglu_piece_of(block, a->cols, a->in_stride);
        int64_t i = 0;
        for (; i + 16 <= p.count; i += 16)
            bwd_part(a, p, i, 16, dtype, kind);
        if (i < p.count)
            bwd_part(a, p, i, p.count - i, dtype, kind);
    }
}

#define SWIGLU_LOOPS(op)                                                                                               \
    V16_INLINE void op##_kind(const dsc_##op##_args *a, int64_t first, int64_t last, dsc_activation kind)              \
    {                                                                                                                  \
        DSC_FOR_DTYPE(a->dtype, op(a, first, last, dtype, kind));                                                      \
    }                                                                                                                  \
    void V16_NAME(op)(const void *args, int64_t first, int64_t last)                                                   \
    {                                                                                                                  \
        const dsc_##op##_args *a = args;                                                                               \
        FOR_ACTIVATION(a->kind, SWIGLU_LOOP_##op);                                                                     \
    }
#define SWIGLU_LOOP_swiglu_fwd(kind) swiglu_fwd_kind(a, first, last, kind)
#define SWIGLU_LOOP_swiglu_bwd(kind) swiglu_bwd_kind(a, first, last, kind)
SWIGLU_LOOPS(swiglu_fwd)
SWIGLU_LOOPS(swiglu_bwd)
