/* vmath_avx512.h - exp, tanh, sigmoid, GELU and 16-bit loads on 16 fp32 lanes. Only *_avx512*.c files include it.
 *
 * Errors against double, over all finite inputs (tests/checkkern/vmath.c): exp and tanh at most 2 ulp, including
 * denormal results. Sigmoid: 2.5 ulp, and 0 if the result would be denormal. NaN gives NaN. Polynomials are our own
 * weighted minimax fits (comments give their error). The steps are those of vmath_avx2.h, the bits are not.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_VMATH_AVX512_H
#define DSC_KERNELS_CPU_VMATH_AVX512_H

#include "kernels/cpu/half_avx512.h"

/* exp(x): x = n ln 2 + r, |r| <= ln 2 / 2, exp(r) = 1 + r + r^2 P(r), times 2^n. Max and min take x second, so that
 * NaN passes. Outside [-104, 89] the result is 0 or Inf already. */
static inline __m512 dsc_exp_avx512(__m512 x)
{
    x = _mm512_max_ps(_mm512_set1_ps(-104.0f), _mm512_min_ps(_mm512_set1_ps(89.0f), x));
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)),
                                          _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x); /* ln 2 in 9 bits: n times it is exact */
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.381453987875699e-3f); /* fit error 0.05 ulp */
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.368745127099123e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.166839078967531e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666520398846876e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.999999343209909e-1f));
    p = _mm512_fmadd_ps(_mm512_mul_ps(r, r), p, r);
    return _mm512_scalef_ps(_mm512_add_ps(p, _mm512_set1_ps(1.0f)), n);
}

/* 1 / (1 + exp(-x)) */
static inline __m512 dsc_sigmoid_avx512(__m512 x)
{
    const __m512 one = _mm512_set1_ps(1.0f);
    return _mm512_div_ps(one, _mm512_add_ps(one, dsc_exp_avx512(_mm512_sub_ps(_mm512_setzero_ps(), x))));
}

/* tanh(x): x + x^3 P(x^2) below 0.55 (fit error 0.02 ulp), else 1 - 2 / (exp(2 |x|) + 1) with the sign of x. */
static inline __m512 dsc_tanh_avx512(__m512 x)
{
    const __m512 one = _mm512_set1_ps(1.0f), sign = _mm512_set1_ps(-0.0f);
    const __m512 a = _mm512_andnot_ps(sign, x), t = _mm512_mul_ps(x, x);
    __m512 p = _mm512_set1_ps(-6.2824729119569985e-3f);
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(2.1077758100790368e-2f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-5.385385789249788e-2f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(1.333260168543581e-1f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-3.3333318045710875e-1f));
    const __m512 near = _mm512_fmadd_ps(_mm512_mul_ps(x, t), p, x);
    const __m512 e = _mm512_add_ps(dsc_exp_avx512(_mm512_add_ps(a, a)), one);
    const __m512 far = _mm512_or_ps(_mm512_sub_ps(one, _mm512_div_ps(_mm512_set1_ps(2.0f), e)), _mm512_and_ps(sign, x));
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, _mm512_set1_ps(0.55f), _CMP_LT_OQ), far, near);
}

/* 0.5 (1 + tanh(u)) = sigmoid(2 u) = 1 / (1 + 2^t) without the cancellation of 1 + tanh.
 *   Here u = sqrt(2/pi) (x + 0.044715 x^3) and so t = -2 log2(e) u.
 * VSCALEFPS multiplies by 2^floor(t), taken from t itself. The other factor is a polynomial in t - floor(t) (fit
 * error 1.3 * 2^-24). Infinite t needs no care: its VREDUCEPS is 0. */
static inline __m512 dsc_gelu_gate_avx512(__m512 x, __m512 xx)
{
    const __m512 one = _mm512_set1_ps(1.0f);
    const __m512 t = _mm512_mul_ps(x, _mm512_fmadd_ps(xx, _mm512_set1_ps(-0.10294324f), _mm512_set1_ps(-2.3022082f)));
    const __m512 f = _mm512_reduce_ps(t, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 p = _mm512_set1_ps(1.877576674887592e-3f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(8.98934009123334e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.582631805266895e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4015361704459176e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.931530732001416e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.9999999250635272f));
    return _mm512_div_ps(one, _mm512_add_ps(one, _mm512_scalef_ps(p, t)));
}

/* gelu(x) with the tanh approximation (gelu.h) */
static inline __m512 dsc_gelu_avx512(__m512 x)
{
    return _mm512_mul_ps(x, dsc_gelu_gate_avx512(x, _mm512_mul_ps(x, x)));
}

/* gelu'(x) = s + x s (1 - s) u2', s = sigmoid(u2) */
static inline __m512 dsc_gelu_slope_avx512(__m512 x)
{
    /* bounded, so that the far ends are 0 and 1 and not 0 * Inf */
    const __m512 xx = _mm512_min_ps(_mm512_set1_ps(1e30f), _mm512_mul_ps(x, x)), s = dsc_gelu_gate_avx512(x, xx);
    const __m512 u2_slope = _mm512_fmadd_ps(xx, _mm512_set1_ps(0.21406444f), _mm512_set1_ps(1.5957691f));
    const __m512 bell = _mm512_mul_ps(s, _mm512_sub_ps(_mm512_set1_ps(1.0f), s));
    return _mm512_fmadd_ps(_mm512_mul_ps(x, bell), u2_slope, s);
}

/* Phi(x) = 0.5 (1 + erf(x / sqrt(2))) and e = exp(-x^2 / 2). The upper half is Abramowitz and Stegun's 7.1.26, with
 * error 0.75e-7. Below zero Phi is 1 - that, computed without the difference, so the far end goes to 0 as e does. */
static inline __m512 dsc_gelu_erf_gate_avx512(__m512 x, __m512 *e)
{
    const __m512 one = _mm512_set1_ps(1.0f), a = _mm512_andnot_ps(_mm512_set1_ps(-0.0f), x);
    const __m512 b = _mm512_min_ps(_mm512_set1_ps(20.0f), a); /* e is 0 there: Inf times 0 is not met */
    *e = dsc_exp_avx512(_mm512_mul_ps(_mm512_mul_ps(b, b), _mm512_set1_ps(-0.5f)));
    /* 0.3275911 / sqrt(2) */
    const __m512 t = _mm512_div_ps(one, _mm512_fmadd_ps(b, _mm512_set1_ps(0.2316418898f), one));
    __m512 p = _mm512_set1_ps(0.5307027145f); /* halves of 1.061405429 and so on */
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-0.7265760135f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(0.7107068705f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-0.142248368f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(0.127414796f));
    const __m512 tail = _mm512_mul_ps(_mm512_mul_ps(p, t), *e);
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ), _mm512_sub_ps(one, tail), tail);
}

static inline __m512 dsc_gelu_erf_avx512(__m512 x)
{
    __m512 e;
    const __m512 s = dsc_gelu_erf_gate_avx512(x, &e);
    return _mm512_mul_ps(x, s);
}

/* Phi(x) + x e / sqrt(2 pi) */
static inline __m512 dsc_gelu_erf_slope_avx512(__m512 x)
{
    __m512 e;
    const __m512 s = dsc_gelu_erf_gate_avx512(x, &e);
    const __m512 y = _mm512_max_ps(_mm512_set1_ps(-20.0f), _mm512_min_ps(_mm512_set1_ps(20.0f), x));
    return _mm512_fmadd_ps(_mm512_mul_ps(y, _mm512_set1_ps(0.39894228f)), e, s);
}

/* Lanes outside the mask are neither read nor written. */
static inline __m512 dsc_load_half_avx512(const uint16_t *from, __mmask16 lanes, dsc_dtype dtype)
{
    return dsc_f32_from_half_avx512(_mm256_maskz_loadu_epi16(lanes, from), dtype);
}

static inline void dsc_state_store_half_avx512(uint16_t *to, __mmask16 lanes, __m512 x, dsc_dtype dtype)
{
    _mm256_mask_storeu_epi16(to, lanes, dsc_half_from_f32_avx512(x, dtype));
}

#endif
