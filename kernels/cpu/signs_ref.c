/* signs_ref.c - the recipes of signs.h, one operation a line. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/cpu/signs_range.h"

static void add(const dsc_signs_add_args *a, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; i++) {
        const float g = a->grad[i] * a->grad_scale;
        const float m = fmaf(a->one_minus_beta1, g - a->moment[i], a->moment[i]);
        a->error[i] = a->error[i] + m;
    }
}

static void pack(const dsc_signs_pack_args *a, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; i++) {
        const bool negative = signbit(a->x[i]) != 0;
        if (i % 8 == 0)
            a->to[i / 8] = 0;
        a->to[i / 8] |= (uint8_t)(negative << i % 8);
        a->x[i] = a->x[i] - (negative ? -a->scale : a->scale);
    }
}

static float value_at(const uint8_t *from, int64_t i, float scale)
{
    return (from[i / 8] >> i % 8 & 1) != 0 ? -scale : scale;
}

static void reduce(const dsc_signs_reduce_args *a, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; i++) {
        float s = value_at(a->from, i, a->scale[0]);
        for (int64_t k = 1; k < a->piece_count; k++)
            s = s + value_at(a->from + k * a->from_stride, i, a->scale[k]);
        a->acc[i] = s + a->acc[i];
    }
}

static void unpack(const dsc_signs_unpack_args *a, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; i++)
        a->to[i] = a->mask[i] == 0.0f ? 0.0f : value_at(a->from, i, a->scale);
}

static void mask(const dsc_signs_mask_args *a, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; i++)
        a->x[i] = a->mask[i] == 0.0f ? 0.0f : a->x[i];
}

/* Weights after a local update from the shared weights. */
static float weight(float decays, float shared, float local_update, float variance, float eps)
{
    const float d = sqrtf(variance) + eps;
    return fmaf(decays, shared, local_update / d);
}

static void local_step(const dsc_signs_local_step_args *a, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; i++) {
        const float g = a->grad[i] * a->grad_scale;
        const float m = fmaf(a->one_minus_beta1, g - a->moment[i], a->moment[i]);
        const float kept = a->decay * a->local_update[i];
        a->moment[i] = a->variance[i] == 0.0f ? 0.0f : m;
        a->local_update[i] = fmaf(-a->rate, a->moment[i], kept);
        a->to[i] = weight(a->decays, a->shared[i], a->local_update[i], a->variance[i], a->eps);
    }
}

static void synchronize(const dsc_signs_synchronize_args *a, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; i++) {
        a->to[i] = weight(a->decays, a->shared[i], a->local_update[i], a->variance[i], a->eps);
        if (a->moment != NULL)
            a->moment[i] = a->local_update[i] * a->per_rate;
    }
}

static void regain(const dsc_signs_regain_args *a, int64_t first, int64_t last)
{
    float most = 0.0f;
    for (int64_t i = first; i < last; i++) {
        const float s = a->x[i] * a->scale;
        const float g = fmaf(a->unmix, s - a->moment[i], a->moment[i]);
        const float kept = a->beta2 * a->fresh[i], part = a->one_minus_beta2 * g;
        a->moment[i] = fmaf(a->one_minus_beta1, g - a->moment[i], a->moment[i]);
        a->fresh[i] = fmaf(part, g, kept);
        const float frozen_root = sqrtf(a->variance[i]) + a->eps, fresh_root = sqrtf(a->fresh[i]) + a->eps;
        const float ratio = frozen_root / fresh_root;
        most = ratio > most ? ratio : most;
    }
    dsc_sign_compress_raise(a->most, most);
}

const dsc_signs_ops dsc_signs_ref = { add, pack, reduce, unpack, mask, local_step, synchronize, regain };
