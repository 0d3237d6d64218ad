/* exact_avx2.c - the recipes of exact.h on 8 lanes with FMA3; tails by the reference, whose bits are the same.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"
#include "kernels/cpu/half_avx2.h"
#include "kernels/cpu/exact_range.h"
#include "kernels/cpu/philox_avx2.h"

#define INLINE static inline __attribute__((always_inline))

INLINE void narrow(uint16_t *to, const float *from, int64_t count, dsc_dtype dtype)
{
    int64_t i = 0;
    for (; i + 8 <= count; i += 8)
        _mm_storeu_si128((__m128i *)(to + i), dsc_half_from_f32_avx2(_mm256_loadu_ps(from + i), dtype));
    dsc_exact_ref.half_from_f32(to + i, from + i, count - i, dtype);
}

INLINE void widen(float *to, const uint16_t *from, int64_t count, dsc_dtype dtype)
{
    int64_t i = 0;
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(to + i, dsc_f32_from_half_avx2(_mm_loadu_si128((const __m128i *)(from + i)), dtype));
    dsc_exact_ref.f32_from_half(to + i, from + i, count - i, dtype);
}

static void half_from_f32(uint16_t *to, const float *from, int64_t count, dsc_dtype dtype)
{
    dtype == DSC_F16 ? narrow(to, from, count, DSC_F16) : narrow(to, from, count, DSC_BF16);
}

static void f32_from_half(float *to, const uint16_t *from, int64_t count, dsc_dtype dtype)
{
    dtype == DSC_F16 ? widen(to, from, count, DSC_F16) : widen(to, from, count, DSC_BF16);
}

/* As exact_avx512.c, 64 elements of 8 blocks at a time. */
static void cast_stochastic(const dsc_cast_stochastic_args *args, int64_t first, int64_t last)
{
    const dsc_cast_stochastic_args local = *args, *a = &local;
    int64_t i = dsc_min_i64(last, first + (8 - (a->first + first) % 8) % 8);
    dsc_exact_ref.cast_stochastic(a, first, i);
    for (; i + 64 <= last; i += 64) {
        const uint64_t counter = (uint64_t)(a->first + i) / 8;
        if ((uint32_t)counter > UINT32_MAX - 7) {
            dsc_exact_ref.cast_stochastic(a, i, i + 64);
            continue;
        }
        __m256i block[4];
        philox_blocks(a->seed, a->stream, counter, block);
        for (int j = 0; j < 4; j++) {
            const float *from = a->from + i + 16 * j;
            const __m256i first_bits = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(block[j]));
            const __m256i second_bits = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(block[j], 1));
            const __m256i low = dsc_up_or_down_avx2(_mm256_loadu_ps(from), first_bits);
            const __m256i high = dsc_up_or_down_avx2(_mm256_loadu_ps(from + 8), second_bits);
            /* packing goes by 128-bit parts */
            const __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
            _mm256_storeu_si256((__m256i *)(void *)(a->to + i + 16 * j), both);
        }
    }
    dsc_exact_ref.cast_stochastic(a, i, last);
}

INLINE __m256 leaf_load(const void *leaf, int64_t i, dsc_grad_part_kind kind)
{
    if (kind.dtype != DSC_F32)
        return dsc_f32_from_half_avx2(_mm_loadu_si128((const __m128i *)((const uint16_t *)leaf + i)), kind.dtype);
    const __m256 x = _mm256_loadu_ps((const float *)leaf + i);
    return kind.wire != DSC_F32 ? dsc_half_trip_avx2(x, kind.wire) : x;
}

/* The sum stays in registers over all leaves: each leaf is read once and the accumulator is touched once. */
INLINE void ordered_reduce_kind(const dsc_ordered_reduce_args *a, int64_t first, int64_t last, dsc_grad_part_kind kind)
{
    int64_t i = first;
    for (; i + 32 <= last; i += 32) {
        __m256 sum[4];
        const void *leaf = dsc_ordered_reduce_part(a, 0);
        for (int j = 0; j < 4; j++) {
            sum[j] = leaf_load(leaf, i + 8 * j, kind);
            if (!a->overwrite)
                sum[j] = _mm256_add_ps(_mm256_loadu_ps(a->acc + i + 8 * j), sum[j]);
        }
        for (int64_t k = 1; k < a->grad_part_count; k++) {
            leaf = dsc_ordered_reduce_part(a, k);
            for (int j = 0; j < 4; j++)
                sum[j] = _mm256_add_ps(sum[j], leaf_load(leaf, i + 8 * j, kind));
        }
        for (int j = 0; j < 4; j++)
            _mm256_storeu_ps(a->acc + i + 8 * j, sum[j]);
    }
    dsc_exact_ref.ordered_reduce(a, i, last);
}

static void ordered_reduce(const dsc_ordered_reduce_args *a, int64_t first, int64_t last)
{
    DSC_FOR_LEAF_KIND(a, ordered_reduce_kind(a, first, last, kind));
}

static void add(const dsc_add_args *a, int64_t first, int64_t last)
{
    int64_t i = first;
    for (; i + 8 <= last; i += 8)
        _mm256_storeu_ps(a->to + i, _mm256_add_ps(_mm256_loadu_ps(a->a + i), _mm256_loadu_ps(a->b + i)));
    dsc_exact_ref.add(a, i, last);
}

INLINE void lanes_add(__m256d lane[4], const float *x)
{
    for (int j = 0; j < 4; j++) {
        const __m256d value = _mm256_cvtps_pd(_mm_loadu_ps(x + 4 * j));
        lane[j] = _mm256_fmadd_pd(value, value, lane[j]);
    }
}

/* lane[j] += lane[j + w] for w = 8, 4, 2, 1. */
static inline double lanes_sum(const __m256d lane[4])
{
    const __m256d l4 = _mm256_add_pd(_mm256_add_pd(lane[0], lane[2]), _mm256_add_pd(lane[1], lane[3]));
    const __m128d l2 = _mm_add_pd(_mm256_castpd256_pd128(l4), _mm256_extractf128_pd(l4, 1));
    return _mm_cvtsd_f64(_mm_add_sd(l2, _mm_unpackhi_pd(l2, l2)));
}

static void sumsq(double *sums, const float *x, int64_t count)
{
    int64_t start = 0;
    for (; start + DSC_SUMSQ_CHUNK <= count; start += DSC_SUMSQ_CHUNK) {
        const __m256d zero = _mm256_setzero_pd();
        __m256d lane[4] = { zero, zero, zero, zero };
        for (int64_t i = start; i < start + DSC_SUMSQ_CHUNK; i += 16)
            lanes_add(lane, x + i);
        sums[start / DSC_SUMSQ_CHUNK] = lanes_sum(lane);
    }
    dsc_exact_ref.sumsq(sums + start / DSC_SUMSQ_CHUNK, x + start, count - start);
}

const dsc_exact_ops dsc_exact_avx2 = { half_from_f32, f32_from_half, cast_stochastic, ordered_reduce, add, sumsq };
