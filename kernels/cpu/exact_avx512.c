/* exact_avx512.c - the recipes of exact.h on 16 lanes; tails by masks. SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"
#include "kernels/cpu/half_avx512.h"
#include "kernels/cpu/exact_range.h"
#include "kernels/cpu/philox_avx512.h"

#define INLINE static inline __attribute__((always_inline))

INLINE void narrow(uint16_t *to, const float *from, int64_t count, dsc_dtype dtype)
{
    int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
        const __m256i low = dsc_half_from_f32_avx512(_mm512_loadu_ps(from + i), dtype);
        const __m256i high = dsc_half_from_f32_avx512(_mm512_loadu_ps(from + i + 16), dtype);
        _mm512_storeu_si512(to + i, _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
    }
    for (; i < count; i += 16) {
        const __mmask16 mask = dsc_mask_avx512(count - i);
        _mm256_mask_storeu_epi16(to + i, mask, dsc_half_from_f32_avx512(_mm512_maskz_loadu_ps(mask, from + i), dtype));
    }
}

INLINE void widen(float *to, const uint16_t *from, int64_t count, dsc_dtype dtype)
{
    int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
        const __m512i h = _mm512_loadu_si512(from + i);
        _mm512_storeu_ps(to + i, dsc_f32_from_half_avx512(_mm512_castsi512_si256(h), dtype));
        _mm512_storeu_ps(to + i + 16, dsc_f32_from_half_avx512(_mm512_extracti64x4_epi64(h, 1), dtype));
    }
    for (; i < count; i += 16) {
        const __mmask16 mask = dsc_mask_avx512(count - i);
        _mm512_mask_storeu_ps(to + i, mask, dsc_f32_from_half_avx512(_mm256_maskz_loadu_epi16(mask, from + i), dtype));
    }
}

static void half_from_f32(uint16_t *to, const float *from, int64_t count, dsc_dtype dtype)
{
    dtype == DSC_F16 ? narrow(to, from, count, DSC_F16) : narrow(to, from, count, DSC_BF16);
}

static void f32_from_half(float *to, const uint16_t *from, int64_t count, dsc_dtype dtype)
{
    dtype == DSC_F16 ? widen(to, from, count, DSC_F16) : widen(to, from, count, DSC_BF16);
}

/* 128 elements of 16 random blocks at a time. The reference rounds the elements before the first whole block and
 * after the last such run. It also rounds a run over whose blocks the counter's lower half overflows. */
static void cast_stochastic(const dsc_cast_stochastic_args *args, int64_t first, int64_t last)
{
    const dsc_cast_stochastic_args local = *args, *a = &local;
    int64_t i = dsc_min_i64(last, first + (8 - (a->first + first) % 8) % 8);
    dsc_exact_ref.cast_stochastic(a, first, i);
    for (; i + 128 <= last; i += 128) {
        const uint64_t counter = (uint64_t)(a->first + i) / 8;
        if ((uint32_t)counter > UINT32_MAX - 15) {
            dsc_exact_ref.cast_stochastic(a, i, i + 128);
            continue;
        }
        __m512i block[4];
        philox_blocks(a->seed, a->stream, counter, block);
        for (int j = 0; j < 4; j++) {
            const float *from = a->from + i + 32 * j;
            const __m512i first_bits = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(block[j]));
            const __m512i second_bits = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(block[j], 1));
            const __m256i low = dsc_up_or_down_avx512(_mm512_loadu_ps(from), first_bits);
            const __m256i high = dsc_up_or_down_avx512(_mm512_loadu_ps(from + 16), second_bits);
            _mm512_storeu_si512(a->to + i + 32 * j, _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
        }
    }
    dsc_exact_ref.cast_stochastic(a, i, last);
}

INLINE __m512 leaf_load(const void *leaf, int64_t i, __mmask16 mask, dsc_grad_part_kind kind)
{
    if (kind.dtype != DSC_F32)
        return dsc_f32_from_half_avx512(_mm256_maskz_loadu_epi16(mask, (const uint16_t *)leaf + i), kind.dtype);
    const __m512 x = _mm512_maskz_loadu_ps(mask, (const float *)leaf + i);
    return kind.wire != DSC_F32 ? dsc_half_trip_avx512(x, kind.wire) : x;
}

/* The sum stays in registers over all leaves: each leaf is read once and the accumulator is touched once. */
INLINE void ordered_reduce_kind(const dsc_ordered_reduce_args *a, int64_t first, int64_t last, dsc_grad_part_kind kind)
{
    for (int64_t i = first; i < last; i += 64) {
        __mmask16 mask[4];
        __m512 sum[4];
        const void *leaf = dsc_ordered_reduce_part(a, 0);
        for (int j = 0; j < 4; j++) {
            const int64_t left = last - i - 16 * j;
            mask[j] = dsc_mask_avx512(left > 0 ? left : 0);
            sum[j] = leaf_load(leaf, i + 16 * j, mask[j], kind);
            if (!a->overwrite)
                sum[j] = _mm512_add_ps(_mm512_maskz_loadu_ps(mask[j], a->acc + i + 16 * j), sum[j]);
        }
        for (int64_t k = 1; k < a->grad_part_count; k++) {
            leaf = dsc_ordered_reduce_part(a, k);
            for (int j = 0; j < 4; j++)
                sum[j] = _mm512_add_ps(sum[j], leaf_load(leaf, i + 16 * j, mask[j], kind));
        }
        for (int j = 0; j < 4; j++)
            _mm512_mask_storeu_ps(a->acc + i + 16 * j, mask[j], sum[j]);
    }
}

static void ordered_reduce(const dsc_ordered_reduce_args *a, int64_t first, int64_t last)
{
    DSC_FOR_LEAF_KIND(a, ordered_reduce_kind(a, first, last, kind));
}

static void add(const dsc_add_args *a, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; i += 16) {
        const __mmask16 mask = dsc_mask_avx512(last - i);
        const __m512 x = _mm512_maskz_loadu_ps(mask, a->a + i);
        const __m512 y = _mm512_maskz_loadu_ps(mask, a->b + i);
        _mm512_mask_storeu_ps(a->to + i, mask, _mm512_add_ps(x, y));
    }
}

/* lane[j] += lane[j + w] for w = 8, 4, 2, 1. */
static inline double lanes_sum(__m512d low, __m512d high)
{
    const __m512d l8 = _mm512_add_pd(low, high);
    const __m256d l4 = _mm256_add_pd(_mm512_castpd512_pd256(l8), _mm512_extractf64x4_pd(l8, 1));
    const __m128d l2 = _mm_add_pd(_mm256_castpd256_pd128(l4), _mm256_extractf128_pd(l4, 1));
    return _mm_cvtsd_f64(_mm_add_sd(l2, _mm_unpackhi_pd(l2, l2)));
}

INLINE void lanes_add(__m512d lane[2], __m512 x)
{
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
    const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
    lane[0] = _mm512_fmadd_pd(low, low, lane[0]);
    lane[1] = _mm512_fmadd_pd(high, high, lane[1]);
}

/* One chunk after the other: its lanes are two chains of FMAs, four cycles for 64 bytes, which is more than memory
 * delivers. (Four chunks side by side hide that latency and are half as fast: each page is then left too soon for the
 * hardware's prefetcher.) */
static void sumsq(double *sums, const float *x, int64_t count)
{
    for (int64_t start = 0; start < count; start += DSC_SUMSQ_CHUNK) {
        const int64_t end = dsc_min_i64(start + DSC_SUMSQ_CHUNK, count);
        __m512d lane[2] = { _mm512_setzero_pd(), _mm512_setzero_pd() };
        int64_t i = start;
        for (; i + 16 <= end; i += 16)
            lanes_add(lane, _mm512_loadu_ps(x + i));
        if (i < end)
            lanes_add(lane, _mm512_maskz_loadu_ps(dsc_mask_avx512(end - i), x + i));
        sums[start / DSC_SUMSQ_CHUNK] = lanes_sum(lane[0], lane[1]);
    }
}

const dsc_exact_ops dsc_exact_avx512 = { half_from_f32, f32_from_half, cast_stochastic, ordered_reduce, add, sumsq };
