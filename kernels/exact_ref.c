/* exact_ref.c - the recipes of exact.h, one operation a line. The other variants give these bits, only sooner.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "base/base.h"
#include "kernels/exact_range.h"
#include "kernels/scalar.h"

static void half_from_f32(uint16_t *to, const float *from, int64_t count, dsc_dtype dtype)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = dsc_half_from_f32(from[i], dtype);
}

static void f32_from_half(float *to, const uint16_t *from, int64_t count, dsc_dtype dtype)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = dsc_f32_from_half(from[i], dtype);
}

static uint16_t up_or_down(float x, uint32_t random_bits)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return dsc_bf16_from_f32(x);
    return (uint16_t)((u + random_bits) >> 16);
}

static void cast_stochastic(const dsc_cast_stochastic_args *a, int64_t first, int64_t last)
{
    uint32_t word[4] = { 0 };
    for (int64_t i = first; i < last; i++) {
        const uint64_t n = (uint64_t)(a->first + i);
        if (i == first || n % 8 == 0)
            dsc_rng_block(a->seed, a->stream, n / 8, word);
        a->to[i] = up_or_down(a->from[i], word[n / 2 % 4] >> n % 2 * 16 & 0xffffu);
    }
}

static float leaf_value(const dsc_fold_args *a, int64_t leaf, int64_t i)
{
    const void *values = dsc_fold_leaf(a, leaf);
    const float x = dsc_get(values, i, a->leaf_dtype);
    return a->leaf_dtype == DSC_F32 ? dsc_rounded(x, a->wire_dtype) : x;
}

static void fold(const dsc_fold_args *a, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; i++) {
        float s = leaf_value(a, 0, i);
        if (!a->overwrite)
            s = a->acc[i] + s;
        for (int64_t k = 1; k < a->leaf_count; k++)
            s = s + leaf_value(a, k, i);
        a->acc[i] = s;
    }
}

static void add(const dsc_add_args *a, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; i++)
        a->to[i] = a->a[i] + a->b[i];
}

static void sumsq(double *sums, const float *x, int64_t count)
{
    for (int64_t start = 0; start < count; start += DSC_SUMSQ_CHUNK) {
        const int64_t end = dsc_min_i64(start + DSC_SUMSQ_CHUNK, count);
        double lane[16] = { 0 };
        for (int64_t i = start; i < end; i++) {
            const double value = (double)x[i];
            double *l = &lane[(i - start) % 16];
            *l = fma(value, value, *l);
        }
        for (int width = 8; width >= 1; width /= 2)
            for (int j = 0; j < width; j++)
                lane[j] += lane[j + width];
        sums[start / DSC_SUMSQ_CHUNK] = lane[0];
    }
}

/* What is kept of moments in bf16. word: the block that the position lies in, made anew where one begins. */
static void keep_rounded(const dsc_adamw_args *a, int64_t i, bool new_block, uint32_t word[4], float m, float v)
{
    const uint64_t n = (uint64_t)(a->first + i);
    if (new_block || n % 4 == 0)
        dsc_rng_block(a->seed, a->stream, n / 4, word);
    ((uint16_t *)a->moment1)[i] = up_or_down(m, word[n % 4] & 0xffffu);
    ((uint16_t *)a->moment2)[i] = up_or_down(v, word[n % 4] >> 16);
}

static void adamw(const dsc_adamw_args *a, int64_t first, int64_t last)
{
    const dsc_adamw_scalars s = a->scalars;
    uint32_t word[4] = { 0 };
    for (int64_t i = first; i < last; i++) {
        float p = a->master[i];
        float m = dsc_get(a->moment1, i, a->moment_dtype), v = dsc_get(a->moment2, i, a->moment_dtype);
        float g = a->grad[i] * s.grad_scale;
        if (s.l2 != 0.0f)
            g = fmaf(s.l2, p, g);
        p = p * s.decay;
        m = fmaf(s.one_minus_beta1, g - m, m);
        v = fmaf(s.one_minus_beta2 * g, g, s.beta2 * v);
        const float d = fmaf(sqrtf(v), s.inv_sqrt_bias2, s.eps);
        p = fmaf(-s.step_size, m / d, p);
        a->master[i] = p;
        if (a->moment_dtype == DSC_BF16) {
            keep_rounded(a, i, i == first, word, m, v);
        } else {
            ((float *)a->moment1)[i] = m;
            ((float *)a->moment2)[i] = v;
        }
        if (a->param_half != NULL)
            a->param_half[i] = dsc_half_from_f32(p, a->half_dtype);
    }
}

const dsc_exact_ops dsc_exact_ref = { half_from_f32, f32_from_half, cast_stochastic, fold, add, sumsq, adamw };
