/* exact_ref.c - the recipes of exact.h, one operation a line. The other variants give these bits, only sooner.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "base/base.h"
#include "kernels/cpu/exact_range.h"
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

static void cast_stochastic(const dsc_cast_stochastic_args *a, int64_t first, int64_t last)
{
    uint32_t word[4] = { 0 };
    for (int64_t i = first; i < last; i++) {
        const uint64_t n = (uint64_t)(a->first + i);
        if (i == first || n % 8 == 0)
            dsc_rng_block(a->seed, a->stream, n / 8, word);
        a->to[i] = dsc_up_or_down(a->from[i], word[n / 2 % 4] >> n % 2 * 16 & 0xffffu);
    }
}

static float leaf_value(const dsc_ordered_reduce_args *a, int64_t leaf, int64_t i)
{
    const void *values = dsc_ordered_reduce_part(a, leaf);
    const float x = dsc_get(values, i, a->leaf_dtype);
    return a->leaf_dtype == DSC_F32 ? dsc_rounded(x, a->wire_dtype) : x;
}

static void ordered_reduce(const dsc_ordered_reduce_args *a, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; i++) {
        float s = leaf_value(a, 0, i);
        if (!a->overwrite)
            s = a->acc[i] + s;
        for (int64_t k = 1; k < a->grad_part_count; k++)
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

const dsc_exact_ops dsc_exact_ref = { half_from_f32, f32_from_half, cast_stochastic, ordered_reduce, add, sumsq };
