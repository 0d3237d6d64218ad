/* swiglu_v16.h - SwiGLU forward and backward on 16 lanes; compiled by swiglu_avx2.c and swiglu_avx512.c after their v16
 * words. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/range.h"

V16_INLINE void fwd_part(const dsc_swiglu_fwd_args *a, dsc_swiglu_piece p, int64_t i, int64_t left, dsc_dtype dtype)
{
    const v16 gate = v16_load(a->gate, p.at + i, left, dtype), up = v16_load(a->up, p.at + i, left, dtype);
    v16_store(a->out, p.dense + i, left, dtype, v16_mul(v16_mul(gate, v16_sigmoid(gate)), up));
}

V16_INLINE void swiglu_fwd(const dsc_swiglu_fwd_args *args, int64_t first, int64_t last, dsc_dtype dtype)
{
    const dsc_swiglu_fwd_args local = *args, *a = &local;
    for (int64_t block = first; block < last; block++) {
        const dsc_swiglu_piece p = dsc_swiglu_piece_of(block, a->cols, a->in_stride);
        int64_t i = 0;
        for (; i + 16 <= p.count; i += 16)
            fwd_part(a, p, i, 16, dtype);
        if (i < p.count)
            fwd_part(a, p, i, p.count - i, dtype);
    }
}

/* silu' = s + silu (1 - s): far out 1 and 0, as silu is 0 where s is. */
V16_INLINE void bwd_part(const dsc_swiglu_bwd_args *a, dsc_swiglu_piece p, int64_t i, int64_t left, dsc_dtype dtype)
{
    const v16 gate = v16_load(a->gate, p.at + i, left, dtype), up = v16_load(a->up, p.at + i, left, dtype);
    const v16 d = v16_load(a->d_out, p.dense + i, left, dtype);
    const v16 s = v16_sigmoid(gate), silu = v16_mul(gate, s);
    const v16 slope = v16_fma(silu, v16_sub(v16_set(1.0f), s), s);
    v16_store(a->d_gate, p.at + i, left, dtype, v16_mul(v16_mul(d, up), slope));
    v16_store(a->d_up, p.at + i, left, dtype, v16_mul(d, silu));
    if (a->out != NULL)
        v16_store(a->out, p.dense + i, left, dtype, v16_mul(silu, up));
}

V16_INLINE void swiglu_bwd(const dsc_swiglu_bwd_args *args, int64_t first, int64_t last, dsc_dtype dtype)
{
    const dsc_swiglu_bwd_args local = *args, *a = &local;
    for (int64_t block = first; block < last; block++) {
        const dsc_swiglu_piece p = dsc_swiglu_piece_of(block, a->cols, a->in_stride);
        int64_t i = 0;
        for (; i + 16 <= p.count; i += 16)
            bwd_part(a, p, i, 16, dtype);
        if (i < p.count)
            bwd_part(a, p, i, p.count - i, dtype);
    }
}

void V16_NAME(swiglu_fwd)(const void *args, int64_t first, int64_t last)
{
    const dsc_swiglu_fwd_args *a = args;
    DSC_FOR_DTYPE(a->dtype, swiglu_fwd(a, first, last, dtype));
}

void V16_NAME(swiglu_bwd)(const void *args, int64_t first, int64_t last)
{
    const dsc_swiglu_bwd_args *a = args;
    DSC_FOR_DTYPE(a->dtype, swiglu_bwd(a, first, last, dtype));
}
