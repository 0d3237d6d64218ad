/* v16_avx512.h - sixteen fp32 lanes: the words that the kernels in *_v16.h are written in, on AVX-512.
 *
 * v16_avx2.h has the same words on two AVX2 registers, with the same bits but for exp. So one body serves both, and its
 * sums run in 16 interleaved lanes and are added by one tree (8, 4, 2, 1) on either. Include only from *_avx512.c.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_V16_AVX512_H
#define DSC_KERNELS_CPU_V16_AVX512_H

#include <dsc/types.h>

#include "kernels/cpu/vmath_avx512.h"

#define V16_NAME(op) dsc_##op##_avx512
#define V16_INLINE static inline __attribute__((always_inline))

typedef __m512 v16;

V16_INLINE v16 v16_set(float x) { return _mm512_set1_ps(x); }
V16_INLINE v16 v16_add(v16 a, v16 b) { return _mm512_add_ps(a, b); }
V16_INLINE v16 v16_sub(v16 a, v16 b) { return _mm512_sub_ps(a, b); }
V16_INLINE v16 v16_mul(v16 a, v16 b) { return _mm512_mul_ps(a, b); }
V16_INLINE v16 v16_fma(v16 a, v16 b, v16 c) { return _mm512_fmadd_ps(a, b, c); }   /* a b + c */
V16_INLINE v16 v16_fnma(v16 a, v16 b, v16 c) { return _mm512_fnmadd_ps(a, b, c); } /* c - a b */
V16_INLINE v16 v16_div(v16 a, v16 b) { return _mm512_div_ps(a, b); }
V16_INLINE v16 v16_sqrt(v16 a) { return _mm512_sqrt_ps(a); }
V16_INLINE v16 v16_max(v16 a, v16 b) { return _mm512_max_ps(a, b); }
V16_INLINE v16 v16_min(v16 a, v16 b) { return _mm512_min_ps(a, b); }
V16_INLINE v16 v16_exp(v16 x) { return dsc_exp_avx512(x); }
V16_INLINE v16 v16_tanh(v16 x) { return dsc_tanh_avx512(x); }
V16_INLINE v16 v16_sigmoid(v16 x) { return dsc_sigmoid_avx512(x); }
V16_INLINE v16 v16_gelu(v16 x) { return dsc_gelu_avx512(x); }
V16_INLINE v16 v16_gelu_slope(v16 x) { return dsc_gelu_slope_avx512(x); }
V16_INLINE v16 v16_gelu_erf(v16 x) { return dsc_gelu_erf_avx512(x); }
V16_INLINE v16 v16_gelu_erf_slope(v16 x) { return dsc_gelu_erf_slope_avx512(x); }
/* NaN stays: it is the second operand that a NaN in either gives. */
V16_INLINE v16 v16_relu(v16 x) { return _mm512_max_ps(_mm512_setzero_ps(), x); }
V16_INLINE v16 v16_relu_slope(v16 x)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ), _mm512_set1_ps(1.0f));
}

/* Elements i.. of a row of F32, BF16 or F16; only the first `left` lanes are read (the others are 0) or written. */
V16_INLINE v16 v16_load(const void *row, int64_t i, int64_t left, dsc_dtype dtype)
{
    if (dtype == DSC_F32) {
        const float *from = (const float *)row + i;
        return left >= 16 ? _mm512_loadu_ps(from) : _mm512_maskz_loadu_ps(dsc_mask_avx512(left), from);
    }
    const uint16_t *from = (const uint16_t *)row + i;
    if (left >= 16)
        return dsc_f32_from_half_avx512(_mm256_loadu_si256((const __m256i *)(const void *)from), dtype);
    return dsc_load_half_avx512(from, dsc_mask_avx512(left), dtype);
}

V16_INLINE void v16_store(void *row, int64_t i, int64_t left, dsc_dtype dtype, v16 x)
{
    if (dtype == DSC_F32) {
        if (left >= 16)
            _mm512_storeu_ps((float *)row + i, x);
        else
            _mm512_mask_storeu_ps((float *)row + i, dsc_mask_avx512(left), x);
        return;
    }
    uint16_t *to = (uint16_t *)row + i;
    if (left >= 16)
        _mm256_storeu_si256((__m256i *)(void *)to, dsc_half_from_f32_avx512(x, dtype));
    else
        dsc_state_store_half_avx512(to, dsc_mask_avx512(left), x, dtype);
}

/* x as a number of this dtype. */
V16_INLINE v16 v16_rounded(v16 x, dsc_dtype dtype) { return dtype == DSC_F32 ? x : dsc_half_trip_avx512(x, dtype); }

/* x in the first `left` lanes, `other` in the rest. */
V16_INLINE v16 v16_first(v16 x, v16 other, int64_t left)
{
    return _mm512_mask_blend_ps(dsc_mask_avx512(left), other, x);
}

/* Lanes 2i and 2i + 1 exchanged. */
V16_INLINE v16 v16_swap_pairs(v16 x) { return _mm512_permute_ps(x, 0xB1); }

/* The even lanes negated, or the odd ones. */
V16_INLINE v16 v16_negate_pairs(v16 x, bool odd)
{
    const __m512i sign = _mm512_set1_epi64(odd ? (int64_t)0x8000000000000000u : (int64_t)0x80000000u);
    return _mm512_xor_ps(x, _mm512_castsi512_ps(sign));
}

/* Lanes 2i and 2i + 1 are row[at + i]; only the first `left` of the eight are read, the others are 0. */
V16_INLINE v16 v16_load_twice(const float *row, int64_t at, int64_t left)
{
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_ps(twice, v16_load(row, at, left < 8 ? left : 8, DSC_F32));
}

/* Lane j takes in lane j + w, for w = 8, 4, 2, 1. */
V16_INLINE float v16_sum_lanes(v16 x)
{
    const __m256 l8 = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    const __m128 l4 = _mm_add_ps(_mm256_castps256_ps128(l8), _mm256_extractf128_ps(l8, 1));
    const __m128 l2 = _mm_add_ps(l4, _mm_movehl_ps(l4, l4));
    return _mm_cvtss_f32(_mm_add_ss(l2, _mm_movehdup_ps(l2)));
}

V16_INLINE float v16_max_lanes(v16 x)
{
    const __m256 l8 = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    const __m128 l4 = _mm_max_ps(_mm256_castps256_ps128(l8), _mm256_extractf128_ps(l8, 1));
    const __m128 l2 = _mm_max_ps(l4, _mm_movehl_ps(l4, l4));
    return _mm_cvtss_f32(_mm_max_ss(l2, _mm_movehdup_ps(l2)));
}

V16_INLINE float v16_lane0(v16 x) { return _mm512_cvtss_f32(x); }

#endif
