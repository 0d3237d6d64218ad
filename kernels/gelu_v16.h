/* gelu_v16.h - GELU forward and backward on 16 lanes; compiled by gelu_avx2.c and gelu_avx512.c after their v16 words.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/range.h"

V16_INLINE void gelu_fwd(const dsc_gelu_fwd_args *a, int64_t first, int64_t last, dsc_dtype dtype)
{
    int64_t i = first;
    for (; i + 16 <= last; i += 16)
        v16_store(a->out, i, 16, dtype, v16_gelu(v16_load(a->in, i, 16, dtype)));
    if (i < last)
        v16_store(a->out, i, last - i, dtype, v16_gelu(v16_load(a->in, i, last - i, dtype)));
}

V16_INLINE v16 gelu_grad(const dsc_gelu_bwd_args *a, int64_t i, int64_t left, dsc_dtype dtype)
{
    return v16_mul(v16_load(a->d_out, i, left, dtype), v16_gelu_slope(v16_load(a->in, i, left, dtype)));
}

V16_INLINE void gelu_bwd(const dsc_gelu_bwd_args *a, int64_t first, int64_t last, dsc_dtype dtype)
{
    int64_t i = first;
    for (; i + 16 <= last; i += 16)
        v16_store(a->d_in, i, 16, dtype, gelu_grad(a, i, 16, dtype));
    if (i < last)
        v16_store(a->d_in, i, last - i, dtype, gelu_grad(a, i, last - i, dtype));
}

void V16_NAME(gelu_fwd)(const void *args, int64_t first, int64_t last)
{
    const dsc_gelu_fwd_args *a = args;
    const int64_t start = first * DSC_GELU_BLOCK, end = dsc_min_i64(last * DSC_GELU_BLOCK, a->count);
    if (a->dtype == DSC_F32)
        gelu_fwd(a, start, end, DSC_F32);
    else
        gelu_fwd(a, start, end, DSC_BF16);
}

void V16_NAME(gelu_bwd)(const void *args, int64_t first, int64_t last)
{
    const dsc_gelu_bwd_args *a = args;
    const int64_t start = first * DSC_GELU_BLOCK, end = dsc_min_i64(last * DSC_GELU_BLOCK, a->count);
    if (a->dtype == DSC_F32)
        gelu_bwd(a, start, end, DSC_F32);
    else
        gelu_bwd(a, start, end, DSC_BF16);
}
