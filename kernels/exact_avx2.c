/* exact_avx2.c - the recipes of exact.h on 8 lanes with FMA3; tails by the reference, whose bits are the same.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"
#include "kernels/half_avx2.h"
#include "kernels/exact_range.h"
#include "kernels/philox_avx2.h"

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

/* 8 elements and their 16 random bits each, in the lower halves of lanes. */
static inline __m256i up_or_down(__m256 x, __m256i random_bits)
{
    const __m256i u = _mm256_castps_si256(x), sum = _mm256_add_epi32(u, random_bits);
    const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x00400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(sum, quiet, nan), 16);
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
            const __m256i low = up_or_down(_mm256_loadu_ps(from), first_bits);
            const __m256i high = up_or_down(_mm256_loadu_ps(from + 8), second_bits);
            /* packing goes by 128-bit parts */
            const __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
            _mm256_storeu_si256((__m256i *)(void *)(a->to + i + 16 * j), both);
        }
    }
    dsc_exact_ref.cast_stochastic(a, i, last);
}

INLINE __m256 leaf_load(const void *leaf, int64_t i, dsc_leaf_kind kind)
{
    if (kind.dtype != DSC_F32)
        return dsc_f32_from_half_avx2(_mm_loadu_si128((const __m128i *)((const uint16_t *)leaf + i)), kind.dtype);
    const __m256 x = _mm256_loadu_ps((const float *)leaf + i);
    return kind.wire != DSC_F32 ? dsc_half_trip_avx2(x, kind.wire) : x;
}

/* The sum stays in registers over all leaves: each leaf is read once and the accumulator is touched once. */
INLINE void fold_kind(const dsc_fold_args *a, int64_t first, int64_t last, dsc_leaf_kind kind)
{
    int64_t i = first;
    for (; i + 32 <= last; i += 32) {
        __m256 sum[4];
        const void *leaf = dsc_fold_leaf(a, 0);
        for (int j = 0; j < 4; j++) {
            sum[j] = leaf_load(leaf, i + 8 * j, kind);
            if (!a->overwrite)
                sum[j] = _mm256_add_ps(_mm256_loadu_ps(a->acc + i + 8 * j), sum[j]);
        }
        for (int64_t k = 1; k < a->leaf_count; k++) {
            leaf = dsc_fold_leaf(a, k);
            for (int j = 0; j < 4; j++)
                sum[j] = _mm256_add_ps(sum[j], leaf_load(leaf, i + 8 * j, kind));
        }
        for (int j = 0; j < 4; j++)
            _mm256_storeu_ps(a->acc + i + 8 * j, sum[j]);
    }
    dsc_exact_ref.fold(a, i, last);
}

static void fold(const dsc_fold_args *a, int64_t first, int64_t last)
{
    DSC_FOR_LEAF_KIND(a, fold_kind(a, first, last, kind));
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
static inline double lanes_fold(const __m256d lane[4])
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
        sums[start / DSC_SUMSQ_CHUNK] = lanes_fold(lane);
    }
    dsc_exact_ref.sumsq(sums + start / DSC_SUMSQ_CHUNK, x + start, count - start);
}

/* What becomes of the rounded weights; constant in each instance of adamw_kind. */
typedef enum copy_kind { COPY_NONE, COPY_STORE, COPY_STREAM } copy_kind;

typedef struct adamw_lanes {
    __m256 grad_scale, one_minus_beta1, beta2, one_minus_beta2, decay, l2, step_size, inv_sqrt_bias2, eps;
} adamw_lanes;

/* The recipe on 8 elements: from the gradient's sum, weights and moments to the new ones. */
INLINE void adamw_8(const adamw_lanes *s, __m256 grad, bool l2, __m256 *weight,
                                                          __m256 *moment1, __m256 *moment2)
{
    __m256 p = *weight, m = *moment1, v = *moment2;
    __m256 g = _mm256_mul_ps(grad, s->grad_scale);
    if (l2)
        g = _mm256_fmadd_ps(s->l2, p, g);
    p = _mm256_mul_ps(p, s->decay);
    m = _mm256_fmadd_ps(s->one_minus_beta1, _mm256_sub_ps(g, m), m);
    v = _mm256_fmadd_ps(_mm256_mul_ps(s->one_minus_beta2, g), g, _mm256_mul_ps(s->beta2, v));
    const __m256 d = _mm256_fmadd_ps(_mm256_sqrt_ps(v), s->inv_sqrt_bias2, s->eps);
    *weight = _mm256_fnmadd_ps(s->step_size, _mm256_div_ps(m, d), p);
    *moment1 = m;
    *moment2 = v;
}

/* Returns the new weights of 8 elements; writes them and the moments. */
INLINE __m256 adamw_f32(const dsc_adamw_args *a, const adamw_lanes *s, int64_t i,
                                                              bool l2)
{
    float *moment1 = a->moment1, *moment2 = a->moment2;
    __m256 p = _mm256_loadu_ps(a->master + i);
    __m256 m = _mm256_loadu_ps(moment1 + i), v = _mm256_loadu_ps(moment2 + i);
    adamw_8(s, _mm256_loadu_ps(a->grad + i), l2, &p, &m, &v);
    _mm256_storeu_ps(a->master + i, p);
    _mm256_storeu_ps(moment1 + i, m);
    _mm256_storeu_ps(moment2 + i, v);
    return p;
}

static inline __m128i low_halves(__m256i x)
{
    return _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
}

/* The same with moments in bf16; a word of random bits for each element. */
INLINE __m256 adamw_bf16(const dsc_adamw_args *a, const adamw_lanes *s, int64_t i,
                                                               __m256i random_bits, bool l2)
{
    __m128i *moment1 = (__m128i *)(void *)((uint16_t *)a->moment1 + i);
    __m128i *moment2 = (__m128i *)(void *)((uint16_t *)a->moment2 + i);
    __m256 p = _mm256_loadu_ps(a->master + i);
    __m256 m = dsc_f32_from_bf16_avx2(_mm_loadu_si128(moment1));
    __m256 v = dsc_f32_from_bf16_avx2(_mm_loadu_si128(moment2));
    adamw_8(s, _mm256_loadu_ps(a->grad + i), l2, &p, &m, &v);
    _mm256_storeu_ps(a->master + i, p);
    _mm_storeu_si128(moment1, low_halves(up_or_down(m, _mm256_and_si256(random_bits, _mm256_set1_epi32(0xffff)))));
    _mm_storeu_si128(moment2, low_halves(up_or_down(v, _mm256_srli_epi32(random_bits, 16))));
    return p;
}

/* Weights of 16 elements rounded. */
INLINE void copy_16(const dsc_adamw_args *a, int64_t i, __m256 p0, __m256 p1, copy_kind copy)
{
    uint16_t *to = a->param_half + i;
    const bool f16 = a->half_dtype == DSC_F16;
    const __m128i low = f16 ? dsc_half_from_f32_avx2(p0, DSC_F16) : dsc_bf16_from_f32_avx2(p0);
    const __m128i high = f16 ? dsc_half_from_f32_avx2(p1, DSC_F16) : dsc_bf16_from_f32_avx2(p1);
    const __m256i both = _mm256_set_m128i(high, low);
    if (copy == COPY_STREAM)
        _mm256_stream_si256((__m256i *)(void *)to, both);
    else
        _mm256_storeu_si256((__m256i *)(void *)to, both);
}

INLINE int64_t all_f32(const dsc_adamw_args *a, const adamw_lanes *s,
                                                             int64_t first, int64_t last, bool l2, copy_kind copy)
{
    int64_t i = first;
    for (; i + 16 <= last; i += 16) {
        const __m256 p0 = adamw_f32(a, s, i, l2), p1 = adamw_f32(a, s, i + 8, l2);
        if (copy != COPY_NONE)
            copy_16(a, i, p0, p1, copy);
    }
    return i;
}

/* As exact_avx512.c, 32 elements of 8 blocks at a time. */
INLINE int64_t all_bf16(const dsc_adamw_args *a, const adamw_lanes *s,
                                                              int64_t first, int64_t last, bool l2, copy_kind copy)
{
    int64_t i = first;
    for (; i + 32 <= last; i += 32) {
        const uint64_t counter = (uint64_t)(a->first + i) / 4;
        if ((uint32_t)counter > UINT32_MAX - 7) {
            dsc_exact_ref.adamw(a, i, i + 32);
            continue;
        }
        __m256i block[4];
        philox_blocks(a->seed, a->stream, counter, block);
        for (int j = 0; j < 4; j += 2) {
            const __m256 p0 = adamw_bf16(a, s, i + 8 * j, block[j], l2);
            const __m256 p1 = adamw_bf16(a, s, i + 8 * j + 8, block[j + 1], l2);
            if (copy != COPY_NONE)
                copy_16(a, i + 8 * j, p0, p1, copy);
        }
    }
    return i;
}

INLINE void adamw_kind(const dsc_adamw_args *args, int64_t first, int64_t last,
                                                             bool l2, copy_kind copy)
{
    const dsc_adamw_args local = *args, *a = &local; /* in registers: no store below can change it */
    const dsc_adamw_scalars *c = &a->scalars;
    const adamw_lanes s = {
        .grad_scale = _mm256_set1_ps(c->grad_scale),
        .one_minus_beta1 = _mm256_set1_ps(c->one_minus_beta1),
        .beta2 = _mm256_set1_ps(c->beta2),
        .one_minus_beta2 = _mm256_set1_ps(c->one_minus_beta2),
        .decay = _mm256_set1_ps(c->decay),
        .l2 = _mm256_set1_ps(c->l2),
        .step_size = _mm256_set1_ps(c->step_size),
        .inv_sqrt_bias2 = _mm256_set1_ps(c->inv_sqrt_bias2),
        .eps = _mm256_set1_ps(c->eps),
    };
    const int64_t i = a->moment_dtype == DSC_BF16 ? all_bf16(a, &s, first, last, l2, copy)
                                                  : all_f32(a, &s, first, last, l2, copy);
    if (copy == COPY_STREAM)
        _mm_sfence(); /* before the team says that it is done */
    dsc_exact_ref.adamw(a, i, last);
}

INLINE void adamw_copy(const dsc_adamw_args *a, int64_t first, int64_t last,
                                                             bool l2)
{
    if (a->param_half == NULL)
        adamw_kind(a, first, last, l2, COPY_NONE);
    else if (a->count >= DSC_ADAMW_STREAM_MIN && (uintptr_t)(a->param_half + first) % 32 == 0)
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

const dsc_exact_ops dsc_exact_avx2 = { half_from_f32, f32_from_half, cast_stochastic, fold, add, sumsq, adamw };
