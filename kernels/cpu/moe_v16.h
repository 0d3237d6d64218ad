/* moe_v16.h - sums of a token's rows on 16 lanes; compiled by moe_avx2.c and moe_avx512.c after their v16 words.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/moe_internal.h"

V16_INLINE void dispatch_bwd(const dsc_moe_dispatch_args *args, int64_t first, int64_t last, dsc_dtype dtype)
{
    const dsc_moe_dispatch_args local = *args, *a = &local;
    for (int64_t t = first; t < last; t++)
        for (int64_t c = 0; c < a->channels; c += 16) {
            const int32_t *row = a->order + t * a->top_k;
            const int64_t left = a->channels - c;
            v16 sum = v16_load(a->in, row[0] * a->channels + c, left, dtype);
            for (int32_t slot = 1; slot < a->top_k; slot++)
                sum = v16_add(sum, v16_load(a->in, row[slot] * a->channels + c, left, dtype));
            if (a->add != NULL)
                sum = v16_add(sum, v16_load(a->add, t * a->channels + c, left, dtype));
            v16_store(a->out, t * a->channels + c, left, dtype, sum);
        }
}

V16_INLINE void combine_fwd(const dsc_moe_combine_fwd_args *args, int64_t first, int64_t last, dsc_dtype dtype)
{
    const dsc_moe_combine_fwd_args local = *args, *a = &local;
    for (int64_t t = first; t < last; t++)
        for (int64_t c = 0; c < a->channels; c += 16) {
            const int64_t left = a->channels - c;
            v16 sum = v16_set(0);
            for (int64_t i = t * a->top_k; i < (t + 1) * a->top_k; i++)
                sum =
                    v16_fma(v16_set(a->weights[i]), v16_load(a->rows, a->place[i] * a->channels + c, left, dtype), sum);
            v16_store(a->out, t * a->channels + c, left, dtype, sum);
        }
}

V16_INLINE void combine_bwd(const dsc_moe_combine_bwd_args *args, int64_t first, int64_t last, dsc_dtype dtype)
{
    const dsc_moe_combine_bwd_args local = *args, *a = &local;
    for (int64_t i = first * a->top_k; i < last * a->top_k; i++) {
        const int64_t row = a->place[i] * a->channels, token = i / a->top_k * a->channels;
        const v16 weight = v16_set(a->weights[i]);
        v16 sum = v16_set(0);
        for (int64_t c = 0; c < a->channels; c += 16) {
            const int64_t left = a->channels - c;
            const v16 d = v16_load(a->d_out, token + c, left, dtype);
            const v16 next = v16_fma(d, v16_load(a->rows, row + c, left, dtype), sum);
            sum = left >= 16 ? next : v16_first(next, sum, left);
            v16_store(a->d_rows, row + c, left, dtype, v16_mul(weight, d));
        }
        a->d_weights[i] = v16_sum_lanes(sum);
    }
}

void V16_NAME(moe_dispatch_bwd)(const void *args, int64_t first, int64_t last)
{
    const dsc_moe_dispatch_args *a = args;
    DSC_FOR_DTYPE(a->dtype, dispatch_bwd(a, first, last, dtype));
}

void V16_NAME(moe_combine_fwd)(const void *args, int64_t first, int64_t last)
{
    const dsc_moe_combine_fwd_args *a = args;
    DSC_FOR_DTYPE(a->dtype, combine_fwd(a, first, last, dtype));
}

void V16_NAME(moe_combine_bwd)(const void *args, int64_t first, int64_t last)
{
    const dsc_moe_combine_bwd_args *a = args;
    DSC_FOR_DTYPE(a->dtype, combine_bwd(a, first, last, dtype));
}
