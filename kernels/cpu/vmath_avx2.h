/* vmath_avx2.h - exp, tanh, sigmoid, GELU and 16-bit loads on 8 fp32 lanes. Only *_avx2*.c files include it.
 * The same steps and error bounds as vmath_avx512.h, which explains them. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_VMATH_AVX2_H
#define DSC_KERNELS_CPU_VMATH_AVX2_H

#include "kernels/cpu/half_avx2.h"

/* 2^n for |n| <= 126, n an integer in fp32 */
static inline __m256 dsc_pow2_avx2(__m256i n)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

static inline __m256 dsc_exp_avx2(__m256 x)
{
    x = _mm256_max_ps(_mm256_set1_ps(-104.0f), _mm256_min_ps(_mm256_set1_ps(89.0f), x));
    const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)),
                                     _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
    __m256 p = _mm256_set1_ps(1.381453987875699e-3f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.368745127099123e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.166839078967531e-2f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.6666520398846876e-1f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.999999343209909e-1f));
    p = _mm256_add_ps(_mm256_fmadd_ps(_mm256_mul_ps(r, r), p, r), _mm256_set1_ps(1.0f));
    /* n reaches -150 and 128: two factors, each a normal number; only a denormal result is rounded, once. */
    const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
    return _mm256_mul_ps(_mm256_mul_ps(p, dsc_pow2_avx2(half)), dsc_pow2_avx2(_mm256_sub_epi32(whole, half)));
}

static inline __m256 dsc_sigmoid_avx2(__m256 x)
{
    const __m256 one = _mm256_set1_ps(1.0f);
    return _mm256_div_ps(one, _mm256_add_ps(one, dsc_exp_avx2(_mm256_sub_ps(_mm256_setzero_ps(), x))));
}

static inline __m256 dsc_tanh_avx2(__m256 x)
{
    const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
    const __m256 a = _mm256_andnot_ps(sign, x), t = _mm256_mul_ps(x, x);
    __m256 p = _mm256_set1_ps(-6.2824729119569985e-3f);
    p = _mm256_fmadd_ps(p, t, _mm256_set1_ps(2.1077758100790368e-2f));
    p = _mm256_fmadd_ps(p, t, _mm256_set1_ps(-5.385385789249788e-2f));
    p = _mm256_fmadd_ps(p, t, _mm256_set1_ps(1.333260168543581e-1f));
    p = _mm256_fmadd_ps(p, t, _mm256_set1_ps(-3.3333318045710875e-1f));
    const __m256 near = _mm256_fmadd_ps(_mm256_mul_ps(x, t), p, x);
    const __m256 e = _mm256_add_ps(dsc_exp_avx2(_mm256_add_ps(a, a)), one);
    const __m256 far = _mm256_or_ps(_mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2.0f), e)), _mm256_and_ps(sign, x));
    return _mm256_blendv_ps(far, near, _mm256_cmp_ps(a, _mm256_set1_ps(0.55f), _CMP_LT_OQ));
}

static inline __m256 dsc_gelu_gate_avx2(__m256 x, __m256 xx)
{
    const __m256 u2 = _mm256_mul_ps(x, _mm256_fmadd_ps(xx, _mm256_set1_ps(0.071354816f), _mm256_set1_ps(1.5957691f)));
    return dsc_sigmoid_avx2(u2);
}

static inline __m256 dsc_gelu_avx2(__m256 x)
{
    return _mm256_mul_ps(x, dsc_gelu_gate_avx2(x, _mm256_mul_ps(x, x)));
}

static inline __m256 dsc_gelu_slope_avx2(__m256 x)
{
    /* bounded, so that the far ends are 0 and 1 and not 0 * Inf */
    const __m256 xx = _mm256_min_ps(_mm256_set1_ps(1e30f), _mm256_mul_ps(x, x)), s = dsc_gelu_gate_avx2(x, xx);
    const __m256 u2_slope = _mm256_fmadd_ps(xx, _mm256_set1_ps(0.21406444f), _mm256_set1_ps(1.5957691f));
    const __m256 bell = _mm256_mul_ps(s, _mm256_sub_ps(_mm256_set1_ps(1.0f), s));
    return _mm256_fmadd_ps(_mm256_mul_ps(x, bell), u2_slope, s);
}

/* Phi(x), and exp(-x^2 / 2) in *e. */
static inline __m256 dsc_gelu_erf_gate_avx2(__m256 x, __m256 *e)
{
    const __m256 one = _mm256_set1_ps(1.0f), a = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
    const __m256 b = _mm256_min_ps(_mm256_set1_ps(20.0f), a); /* e is 0 there: Inf times 0 is not met */
    *e = dsc_exp_avx2(_mm256_mul_ps(_mm256_mul_ps(b, b), _mm256_set1_ps(-0.5f)));
    /* 0.3275911 / sqrt(2) */
    const __m256 t = _mm256_div_ps(one, _mm256_fmadd_ps(b, _mm256_set1_ps(0.2316418898f), one));
    __m256 p = _mm256_set1_ps(0.5307027145f); /* halves of 1.061405429 and so on */
    p = _mm256_fmadd_ps(p, t, _mm256_set1_ps(-0.7265760135f));
    p = _mm256_fmadd_ps(p, t, _mm256_set1_ps(0.7107068705f));
    p = _mm256_fmadd_ps(p, t, _mm256_set1_ps(-0.142248368f));
    p = _mm256_fmadd_ps(p, t, _mm256_set1_ps(0.127414796f));
    const __m256 tail = _mm256_mul_ps(_mm256_mul_ps(p, t), *e);
    return _mm256_blendv_ps(_mm256_sub_ps(one, tail), tail, x); /* by x's sign */
}

static inline __m256 dsc_gelu_erf_avx2(__m256 x)
{
    __m256 e;
    const __m256 s = dsc_gelu_erf_gate_avx2(x, &e);
    return _mm256_mul_ps(x, s);
}

/* Phi(x) + x e / sqrt(2 pi) */
static inline __m256 dsc_gelu_erf_slope_avx2(__m256 x)
{
    __m256 e;
    const __m256 s = dsc_gelu_erf_gate_avx2(x, &e);
    const __m256 y = _mm256_max_ps(_mm256_set1_ps(-20.0f), _mm256_min_ps(_mm256_set1_ps(20.0f), x));
    return _mm256_fmadd_ps(_mm256_mul_ps(y, _mm256_set1_ps(0.39894228f)), e, s);
}

static inline __m256 dsc_load_half_avx2(const uint16_t *from, dsc_dtype dtype)
{
    return dsc_f32_from_half_avx2(_mm_loadu_si128((const __m128i *)(const void *)from), dtype);
}

static inline void dsc_state_store_half_avx2(uint16_t *to, __m256 x, dsc_dtype dtype)
{
    _mm_storeu_si128((__m128i *)(void *)to, dsc_half_from_f32_avx2(x, dtype));
}

#endif
