/* exact_avx512.c - the recipes of exact.h on 16 lanes; tails by masks. SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"
#include "kernels/half_avx512.h"
#include "kernels/exact_range.h"
#include "kernels/philox_avx512.h"

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

/* 16 elements and their 16 random bits each, in the lower halves of lanes. */
static inline __m256i up_or_down(__m512 x, __m512i random_bits)
{
    const __m512i u = _mm512_castps_si512(x), sum = _mm512_add_epi32(u, random_bits);
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i rounded = _mm512_mask_or_epi32(sum, nan, u, _mm512_set1_epi32(0x00400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

/* 128 elements of 16 random blocks at a time; what lies before the first whole block and after the last such run is the
 * reference's, and so is a run over whose blocks the counter's lower half overflows. */
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
            const __m256i low = up_or_down(_mm512_loadu_ps(from), first_bits);
            const __m256i high = up_or_down(_mm512_loadu_ps(from + 16), second_bits);
            _mm512_storeu_si512(a->to + i + 32 * j, _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
        }
    }
    dsc_exact_ref.cast_stochastic(a, i, last);
}

INLINE __m512 leaf_load(const void *leaf, int64_t i, __mmask16 mask, dsc_leaf_kind kind)
{
    if (kind.dtype != DSC_F32)
        return dsc_f32_from_half_avx512(_mm256_maskz_loadu_epi16(mask, (const uint16_t *)leaf + i), kind.dtype);
    const __m512 x = _mm512_maskz_loadu_ps(mask, (const float *)leaf + i);
    return kind.wire != DSC_F32 ? dsc_half_trip_avx512(x, kind.wire) : x;
}

/* The sum stays in registers over all leaves: each leaf is read once and the accumulator is touched once. */
INLINE void fold_kind(const dsc_fold_args *a, int64_t first, int64_t last, dsc_leaf_kind kind)
{
    for (int64_t i = first; i < last; i += 64) {
        __mmask16 mask[4];
        __m512 sum[4];
        const void *leaf = dsc_fold_leaf(a, 0);
        for (int j = 0; j < 4; j++) {
            const int64_t left = last - i - 16 * j;
            mask[j] = dsc_mask_avx512(left > 0 ? left : 0);
            sum[j] = leaf_load(leaf, i + 16 * j, mask[j], kind);
            if (!a->overwrite)
                sum[j] = _mm512_add_ps(_mm512_maskz_loadu_ps(mask[j], a->acc + i + 16 * j), sum[j]);
        }
        for (int64_t k = 1; k < a->leaf_count; k++) {
            leaf = dsc_fold_leaf(a, k);
            for (int j = 0; j < 4; j++)
                sum[j] = _mm512_add_ps(sum[j], leaf_load(leaf, i + 16 * j, mask[j], kind));
        }
        for (int j = 0; j < 4; j++)
            _mm512_mask_storeu_ps(a->acc + i + 16 * j, mask[j], sum[j]);
    }
}

static void fold(const dsc_fold_args *a, int64_t first, int64_t last)
{
    DSC_FOR_LEAF_KIND(a, fold_kind(a, first, last, kind));
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
static inline double lanes_fold(__m512d low, __m512d high)
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
        sums[start / DSC_SUMSQ_CHUNK] = lanes_fold(lane[0], lane[1]);
    }
}

/* What becomes of the rounded weights; constant in each instance of adamw_kind. */
typedef enum copy_kind { COPY_NONE, COPY_STORE, COPY_STREAM } copy_kind;

typedef struct adamw_lanes {
    __m512 grad_scale, one_minus_beta1, beta2, one_minus_beta2, decay, l2, step_size, inv_sqrt_bias2, eps;
} adamw_lanes;

/* The recipe on 16 elements: from the gradient's sum, weights and moments to the new ones. */
INLINE void adamw_16(const adamw_lanes *s, __m512 grad, bool l2, __m512 *weight,
                                                           __m512 *moment1, __m512 *moment2)
{
    __m512 p = *weight, m = *moment1, v = *moment2;
    __m512 g = _mm512_mul_ps(grad, s->grad_scale);
    if (l2)
        g = _mm512_fmadd_ps(s->l2, p, g);
    p = _mm512_mul_ps(p, s->decay);
    m = _mm512_fmadd_ps(s->one_minus_beta1, _mm512_sub_ps(g, m), m);
    v = _mm512_fmadd_ps(_mm512_mul_ps(s->one_minus_beta2, g), g, _mm512_mul_ps(s->beta2, v));
    const __m512 d = _mm512_fmadd_ps(_mm512_sqrt_ps(v), s->inv_sqrt_bias2, s->eps);
    *weight = _mm512_fnmadd_ps(s->step_size, _mm512_div_ps(m, d), p);
    *moment1 = m;
    *moment2 = v;
}

/* Returns the new weights of 16 elements; writes them and the moments. */
INLINE __m512 adamw_f32(const dsc_adamw_args *a, const adamw_lanes *s, int64_t i,
                                                              __mmask16 mask, bool l2)
{
    float *moment1 = a->moment1, *moment2 = a->moment2;
    __m512 p = _mm512_maskz_loadu_ps(mask, a->master + i);
    __m512 m = _mm512_maskz_loadu_ps(mask, moment1 + i), v = _mm512_maskz_loadu_ps(mask, moment2 + i);
    adamw_16(s, _mm512_maskz_loadu_ps(mask, a->grad + i), l2, &p, &m, &v);
    _mm512_mask_storeu_ps(a->master + i, mask, p);
    _mm512_mask_storeu_ps(moment1 + i, mask, m);
    _mm512_mask_storeu_ps(moment2 + i, mask, v);
    return p;
}

/* The same with moments in bf16; a word of random bits for each element. */
INLINE __m512 adamw_bf16(const dsc_adamw_args *a, const adamw_lanes *s, int64_t i,
                                                               __m512i random_bits, bool l2)
{
    __m256i *moment1 = (__m256i *)(void *)((uint16_t *)a->moment1 + i);
    __m256i *moment2 = (__m256i *)(void *)((uint16_t *)a->moment2 + i);
    __m512 p = _mm512_loadu_ps(a->master + i);
    __m512 m = dsc_f32_from_bf16_avx512(_mm256_loadu_si256(moment1));
    __m512 v = dsc_f32_from_bf16_avx512(_mm256_loadu_si256(moment2));
    adamw_16(s, _mm512_loadu_ps(a->grad + i), l2, &p, &m, &v);
    _mm512_storeu_ps(a->master + i, p);
    _mm256_storeu_si256(moment1, up_or_down(m, _mm512_and_si512(random_bits, _mm512_set1_epi32(0xffff))));
    _mm256_storeu_si256(moment2, up_or_down(v, _mm512_srli_epi32(random_bits, 16)));
    return p;
}

INLINE __m256i rounded(const dsc_adamw_args *a, __m512 p)
{
    return a->half_dtype == DSC_F16 ? dsc_half_from_f32_avx512(p, DSC_F16) : dsc_bf16_from_f32_avx512(p);
}

/* Weights of 32 elements rounded. */
INLINE void copy_32(const dsc_adamw_args *a, int64_t i, __m512 p0, __m512 p1, copy_kind copy)
{
    uint16_t *to = a->param_half + i;
    const __m512i low = _mm512_castsi256_si512(rounded(a, p0));
    const __m512i both = _mm512_inserti64x4(low, rounded(a, p1), 1);
    if (copy == COPY_STREAM)
        _mm512_stream_si512((__m512i *)(void *)to, both);
    else
        _mm512_storeu_si512(to, both);
}

INLINE void all_f32(const dsc_adamw_args *a, const adamw_lanes *s, int64_t first,
                                                          int64_t last, bool l2, copy_kind copy)
{
    int64_t i = first;
    for (; i + 32 <= last; i += 32) {
        const __m512 p0 = adamw_f32(a, s, i, 0xffff, l2), p1 = adamw_f32(a, s, i + 16, 0xffff, l2);
        if (copy != COPY_NONE)
            copy_32(a, i, p0, p1, copy);
    }
    for (; i < last; i += 16) {
        const __mmask16 mask = dsc_mask_avx512(last - i);
        const __m512 p = adamw_f32(a, s, i, mask, l2);
        if (copy != COPY_NONE)
            _mm256_mask_storeu_epi16(a->param_half + i, mask, rounded(a, p));
    }
}

/* Position a->first + first begins a random block; 64 elements of 16 blocks at a time, the rest as in
 * cast_stochastic. */
INLINE void all_bf16(const dsc_adamw_args *a, const adamw_lanes *s, int64_t first,
                                                           int64_t last, bool l2, copy_kind copy)
{
    int64_t i = first;
    for (; i + 64 <= last; i += 64) {
        const uint64_t counter = (uint64_t)(a->first + i) / 4;
        if ((uint32_t)counter > UINT32_MAX - 15) {
            dsc_exact_ref.adamw(a, i, i + 64);
            continue;
        }
        __m512i block[4];
        philox_blocks(a->seed, a->stream, counter, block);
        for (int j = 0; j < 4; j += 2) {
            const __m512 p0 = adamw_bf16(a, s, i + 16 * j, block[j], l2);
            const __m512 p1 = adamw_bf16(a, s, i + 16 * j + 16, block[j + 1], l2);
            if (copy != COPY_NONE)
                copy_32(a, i + 16 * j, p0, p1, copy);
        }
    }
    dsc_exact_ref.adamw(a, i, last);
}

INLINE void adamw_kind(const dsc_adamw_args *args, int64_t first, int64_t last,
                                                             bool l2, copy_kind copy)
{
    const dsc_adamw_args local = *args, *a = &local; /* in registers: no store below can change it */
    const dsc_adamw_scalars *c = &a->scalars;
    const adamw_lanes s = {
        .grad_scale = _mm512_set1_ps(c->grad_scale),
        .one_minus_beta1 = _mm512_set1_ps(c->one_minus_beta1),
        .beta2 = _mm512_set1_ps(c->beta2),
        .one_minus_beta2 = _mm512_set1_ps(c->one_minus_beta2),
        .decay = _mm512_set1_ps(c->decay),
        .l2 = _mm512_set1_ps(c->l2),
        .step_size = _mm512_set1_ps(c->step_size),
        .inv_sqrt_bias2 = _mm512_set1_ps(c->inv_sqrt_bias2),
        .eps = _mm512_set1_ps(c->eps),
    };
    if (a->moment_dtype == DSC_BF16)
        all_bf16(a, &s, first, last, l2, copy);
    else
        all_f32(a, &s, first, last, l2, copy);
    if (copy == COPY_STREAM)
        _mm_sfence(); /* before the team says that it is done */
}

INLINE void adamw_copy(const dsc_adamw_args *a, int64_t first, int64_t last,
                                                             bool l2)
{
    if (a->param_half == NULL)
        adamw_kind(a, first, last, l2, COPY_NONE);
    else if (a->count >= DSC_ADAMW_STREAM_MIN && (uintptr_t)(a->param_half + first) % 64 == 0)
        adamw_kind(a, first, last, l2, COPY_STREAM);
    else
        adamw_kind(a, first, last, l2, COPY_STORE);
}

static void adamw(const dsc_adamw_args *a, int64_t first, int64_t last)
{
    const int64_t start = a->moment_dtype == DSC_F32 ? first : dsc_adamw_block_start(a, first, last);
    dsc_exact_ref.adamw(a, first, start);
    if (a->scalars.l2 != 0.0f)
        adamw_copy(a, start, last, true);
    else
        adamw_copy(a, start, last, false);
}

const dsc_exact_ops dsc_exact_avx512 = { half_from_f32, f32_from_half, cast_stochastic, fold, add, sumsq, adamw };
