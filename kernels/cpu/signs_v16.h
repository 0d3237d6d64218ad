/* signs_v16.h - the recipes of signs.h on sixteen lanes. Include after v16_*.h and after the primitives that AVX-512
 * and AVX2 implement separately. These are v16_signs (of all lanes, as bits), v16_signed (x, negated where a bit is
 * 1), v16_where (x where y is not 0, else 0). SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_SIGNS_V16_H
#define DSC_KERNELS_CPU_SIGNS_V16_H

#include "kernels/cpu/signs_range.h"

static void add(const dsc_signs_add_args *a, int64_t first, int64_t last)
{
    const v16 by = v16_set(a->grad_scale), part = v16_set(a->one_minus_beta1);
    for (int64_t i = first; i < last; i += 16) {
        const v16 g = v16_mul(v16_load(a->grad, i, last - i, DSC_F32), by);
        const v16 old = v16_load(a->moment, i, last - i, DSC_F32);
        const v16 m = v16_fma(part, v16_sub(g, old), old);
        v16_store(a->error, i, last - i, DSC_F32, v16_add(v16_load(a->error, i, last - i, DSC_F32), m));
    }
}

V16_INLINE uint32_t load_signs(const uint8_t *from, int64_t i, int64_t left)
{
    return left > 8 ? from[i / 8] | (uint32_t)from[i / 8 + 1] << 8 : from[i / 8];
}

static void pack(const dsc_signs_pack_args *a, int64_t first, int64_t last)
{
    const v16 scale = v16_set(a->scale);
    for (int64_t i = first; i < last; i += 16) {
        const v16 x = v16_load(a->x, i, last - i, DSC_F32); /* beyond the end: +0 */
        const uint32_t signs = v16_signs(x);
        a->to[i / 8] = (uint8_t)signs;
        if (last - i > 8)
            a->to[i / 8 + 1] = (uint8_t)(signs >> 8);
        v16_store(a->x, i, last - i, DSC_F32, v16_sub(x, v16_signed(scale, signs)));
    }
}

static void reduce(const dsc_signs_reduce_args *a, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; i += 16) {
        v16 s = v16_signed(v16_set(a->scale[0]), load_signs(a->from, i, last - i));
        for (int64_t k = 1; k < a->piece_count; k++)
            s = v16_add(s, v16_signed(v16_set(a->scale[k]), load_signs(a->from + k * a->from_stride, i, last - i)));
        v16_store(a->acc, i, last - i, DSC_F32, v16_add(s, v16_load(a->acc, i, last - i, DSC_F32)));
    }
}

static void unpack(const dsc_signs_unpack_args *a, int64_t first, int64_t last)
{
    const v16 scale = v16_set(a->scale);
    for (int64_t i = first; i < last; i += 16) {
        const v16 x = v16_signed(scale, load_signs(a->from, i, last - i));
        v16_store(a->to, i, last - i, DSC_F32, v16_where(x, v16_load(a->mask, i, last - i, DSC_F32)));
    }
}

static void mask(const dsc_signs_mask_args *a, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; i += 16) {
        const v16 x = v16_load(a->x, i, last - i, DSC_F32);
        v16_store(a->x, i, last - i, DSC_F32, v16_where(x, v16_load(a->mask, i, last - i, DSC_F32)));
    }
}

/* Weights after a local update from the shared weights. */
V16_INLINE v16 weight(v16 decays, v16 shared, v16 local_update, v16 variance, v16 eps)
{
    return v16_fma(decays, shared, v16_div(local_update, v16_add(v16_sqrt(variance), eps)));
}

static void local_step(const dsc_signs_local_step_args *a, int64_t first, int64_t last)
{
    const v16 by = v16_set(a->grad_scale), part = v16_set(a->one_minus_beta1), back = v16_set(-a->rate);
    const v16 decay = v16_set(a->decay), decays = v16_set(a->decays), eps = v16_set(a->eps);
    for (int64_t i = first; i < last; i += 16) {
        const int64_t left = last - i;
        const v16 g = v16_mul(v16_load(a->grad, i, left, DSC_F32), by), old = v16_load(a->moment, i, left, DSC_F32);
        const v16 variance = v16_load(a->variance, i, left, DSC_F32);
        const v16 m = v16_where(v16_fma(part, v16_sub(g, old), old), variance);
        const v16 local_update = v16_fma(back, m, v16_mul(decay, v16_load(a->local_update, i, left, DSC_F32)));
        const v16 to = weight(decays, v16_load(a->shared, i, left, DSC_F32), local_update, variance, eps);
        v16_store(a->moment, i, left, DSC_F32, m);
        v16_store(a->local_update, i, left, DSC_F32, local_update);
        v16_store(a->to, i, left, DSC_F32, to);
    }
}

static void synchronize(const dsc_signs_synchronize_args *a, int64_t first, int64_t last)
{
    const v16 decays = v16_set(a->decays), eps = v16_set(a->eps), per_rate = v16_set(a->per_rate);
    for (int64_t i = first; i < last; i += 16) {
        const int64_t left = last - i;
        const v16 local_update = v16_load(a->local_update, i, left, DSC_F32);
        v16_store(a->to, i, left, DSC_F32,
                  weight(decays, v16_load(a->shared, i, left, DSC_F32), local_update,
                         v16_load(a->variance, i, left, DSC_F32), eps));
        if (a->moment != NULL)
            v16_store(a->moment, i, left, DSC_F32, v16_mul(local_update, per_rate));
    }
}

static void regain(const dsc_signs_regain_args *a, int64_t first, int64_t last)
{
    static const float ones[16] = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 };
    const v16 by = v16_set(a->scale), unmix = v16_set(a->unmix), part = v16_set(a->one_minus_beta1);
    const v16 beta2 = v16_set(a->beta2), part2 = v16_set(a->one_minus_beta2), eps = v16_set(a->eps);
    v16 most = v16_set(0);
    for (int64_t i = first; i < last; i += 16) {
        const int64_t left = last - i;
        const v16 old = v16_load(a->moment, i, left, DSC_F32);
        const v16 s = v16_mul(v16_load(a->x, i, left, DSC_F32), by), g = v16_fma(unmix, v16_sub(s, old), old);
        const v16 kept = v16_mul(beta2, v16_load(a->fresh, i, left, DSC_F32));
        const v16 fresh = v16_fma(v16_mul(part2, g), g, kept);
        const v16 frozen_root = v16_add(v16_sqrt(v16_load(a->variance, i, left, DSC_F32)), eps);
        const v16 ratio = v16_div(frozen_root, v16_add(v16_sqrt(fresh), eps));
        v16_store(a->moment, i, left, DSC_F32, v16_fma(part, v16_sub(g, old), old));
        v16_store(a->fresh, i, left, DSC_F32, fresh);
        /* No ratio beyond the end; if one operand is NaN, the second one stays. */
        most = v16_max(v16_where(ratio, v16_load(ones, 0, left, DSC_F32)), most);
    }
    dsc_sign_compress_raise(a->most, v16_max_lanes(most));
}

const dsc_signs_ops V16_NAME(signs) = { add, pack, reduce, unpack, mask, local_step, synchronize, regain };

#endif
