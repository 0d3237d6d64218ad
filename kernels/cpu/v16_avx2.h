/* v16_avx2.h - the words of v16_avx512.h on two AVX2 registers. Include only from *_avx2.c.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_V16_AVX2_H
#define DSC_KERNELS_CPU_V16_AVX2_H

#include <string.h>

#include <dsc/types.h>

#include "kernels/cpu/vmath_avx2.h"

#define V16_NAME(op) dsc_##op##_avx2
#define V16_INLINE static inline __attribute__((always_inline))

typedef struct v16 { __m256 low, high; } v16;

#define V16_UNARY(name, op) \
    V16_INLINE v16 name(v16 a) { return (v16) { op(a.low), op(a.high) }; }
#define V16_BINARY(name, op) \
    V16_INLINE v16 name(v16 a, v16 b) { return (v16) { op(a.low, b.low), op(a.high, b.high) }; }
#define V16_TERNARY(name, op) \
    V16_INLINE v16 name(v16 a, v16 b, v16 c) { return (v16) { op(a.low, b.low, c.low), op(a.high, b.high, c.high) }; }

V16_INLINE v16 v16_set(float x) { return (v16) { _mm256_set1_ps(x), _mm256_set1_ps(x) }; }
V16_BINARY(v16_add, _mm256_add_ps)
V16_BINARY(v16_sub, _mm256_sub_ps)
V16_BINARY(v16_mul, _mm256_mul_ps)
V16_BINARY(v16_div, _mm256_div_ps)
V16_BINARY(v16_max, _mm256_max_ps)
V16_BINARY(v16_min, _mm256_min_ps)
V16_UNARY(v16_sqrt, _mm256_sqrt_ps)
V16_TERNARY(v16_fma, _mm256_fmadd_ps)
V16_TERNARY(v16_fnma, _mm256_fnmadd_ps)
V16_UNARY(v16_exp, dsc_exp_avx2)
V16_UNARY(v16_tanh, dsc_tanh_avx2)
V16_UNARY(v16_sigmoid, dsc_sigmoid_avx2)
V16_UNARY(v16_gelu, dsc_gelu_avx2)
V16_UNARY(v16_gelu_slope, dsc_gelu_slope_avx2)
V16_UNARY(v16_gelu_erf, dsc_gelu_erf_avx2)
V16_UNARY(v16_gelu_erf_slope, dsc_gelu_erf_slope_avx2)
/* NaN stays: it is the second operand that a NaN in either gives. */
V16_INLINE v16 v16_relu(v16 x) { return v16_max(v16_set(0), x); }
V16_INLINE v16 v16_relu_slope(v16 x)
{
    const __m256 zero = _mm256_setzero_ps(), one = _mm256_set1_ps(1.0f);
    return (v16) { _mm256_and_ps(_mm256_cmp_ps(x.low, zero, _CMP_GT_OQ), one),
                   _mm256_and_ps(_mm256_cmp_ps(x.high, zero, _CMP_GT_OQ), one) };
}

/* AVX2 has no masks for 16-bit elements: a short end goes through a full vector on the stack. */
V16_INLINE v16 v16_load(const void *row, int64_t i, int64_t left, dsc_dtype dtype)
{
    if (dtype == DSC_F32) {
        const float *from = (const float *)row + i;
        float part[16] = { 0 };
        if (left < 16)
            from = memcpy(part, from, (size_t)left * sizeof *from);
        return (v16) { _mm256_loadu_ps(from), _mm256_loadu_ps(from + 8) };
    }
    const uint16_t *from = (const uint16_t *)row + i;
    uint16_t part[16] = { 0 };
    if (left < 16)
        from = memcpy(part, from, (size_t)left * sizeof *from);
    return (v16) { dsc_load_half_avx2(from, dtype), dsc_load_half_avx2(from + 8, dtype) };
}

V16_INLINE void v16_store(void *row, int64_t i, int64_t left, dsc_dtype dtype, v16 x)
{
    if (dtype == DSC_F32) {
        float part[16], *to = left < 16 ? part : (float *)row + i;
        _mm256_storeu_ps(to, x.low);
        _mm256_storeu_ps(to + 8, x.high);
        if (left < 16)
            memcpy((float *)row + i, part, (size_t)left * sizeof *to);
        return;
    }
    uint16_t part[16], *to = left < 16 ? part : (uint16_t *)row + i;
    dsc_state_store_half_avx2(to, x.low, dtype);
    dsc_state_store_half_avx2(to + 8, x.high, dtype);
    if (left < 16)
        memcpy((uint16_t *)row + i, part, (size_t)left * sizeof *to);
}

/* x as a number of this dtype. */
V16_INLINE v16 v16_rounded(v16 x, dsc_dtype dtype)
{
    return dtype == DSC_F32 ? x : (v16) { dsc_half_trip_avx2(x.low, dtype), dsc_half_trip_avx2(x.high, dtype) };
}

V16_INLINE v16 v16_first(v16 x, v16 other, int64_t left)
{
    const __m256i ramp = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i count = _mm256_set1_epi32(left < 16 ? (int)left : 16);
    const __m256i low = _mm256_cmpgt_epi32(count, ramp);
    const __m256i high = _mm256_cmpgt_epi32(count, _mm256_add_epi32(ramp, _mm256_set1_epi32(8)));
    return (v16) { _mm256_blendv_ps(other.low, x.low, _mm256_castsi256_ps(low)),
                   _mm256_blendv_ps(other.high, x.high, _mm256_castsi256_ps(high)) };
}

V16_INLINE v16 v16_swap_pairs(v16 x)
{
    return (v16) { _mm256_permute_ps(x.low, 0xB1), _mm256_permute_ps(x.high, 0xB1) };
}

V16_INLINE v16 v16_negate_pairs(v16 x, bool odd)
{
    const __m256 sign =
        _mm256_castsi256_ps(_mm256_set1_epi64x(odd ? (int64_t)0x8000000000000000u : (int64_t)0x80000000u));
    return (v16) { _mm256_xor_ps(x.low, sign), _mm256_xor_ps(x.high, sign) };
}

V16_INLINE v16 v16_load_twice(const float *row, int64_t at, int64_t left)
{
    const float *from = row + at;
    float part[8] = { 0 };
    if (left < 8)
        from = memcpy(part, from, (size_t)left * sizeof *from);
    const __m256 x = _mm256_loadu_ps(from), low = _mm256_unpacklo_ps(x, x), high = _mm256_unpackhi_ps(x, x);
    return (v16) { _mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31) };
}

V16_INLINE float v16_sum_lanes(v16 x)
{
    const __m256 l8 = _mm256_add_ps(x.low, x.high);
    const __m128 l4 = _mm_add_ps(_mm256_castps256_ps128(l8), _mm256_extractf128_ps(l8, 1));
    const __m128 l2 = _mm_add_ps(l4, _mm_movehl_ps(l4, l4));
    return _mm_cvtss_f32(_mm_add_ss(l2, _mm_movehdup_ps(l2)));
}

V16_INLINE float v16_max_lanes(v16 x)
{
    const __m256 l8 = _mm256_max_ps(x.low, x.high);
    const __m128 l4 = _mm_max_ps(_mm256_castps256_ps128(l8), _mm256_extractf128_ps(l8, 1));
    const __m128 l2 = _mm_max_ps(l4, _mm_movehl_ps(l4, l4));
    return _mm_cvtss_f32(_mm_max_ss(l2, _mm_movehdup_ps(l2)));
}

V16_INLINE float v16_lane0(v16 x) { return _mm256_cvtss_f32(x.low); }

#endif
