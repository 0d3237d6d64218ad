/* gelu.h - GELU and other activations of one number (kernels/gelu.h). The tanh form as x * sigmoid(2u): nothing cancels
 * near 0. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_GELU_H
#define DSC_KERNELS_CUDA_GELU_H

#include "kernels/cuda/ptx.h"
#include "kernels/gelu.h"

namespace {

/* exp(-2u), u = sqrt(2/pi) (x + 0.044715 x^3). The bound keeps it finite; the sigmoid is below 1e-38 there. */
__device__ __forceinline__ float gelu_exp(float x)
{
    const float minus_two_u = -1.5957691216057308f * fmaf(0.044715f * x * x, x, x);
    return expf(fminf(minus_two_u, 88.0f));
}

/* The sigmoid of 2u for results of 16 bits: 1 / (1 + 2^(-2u log2(e))). It is 0 where the power is Inf. */
__device__ __forceinline__ float gelu_gate_fast(float x)
{
    return fast_reciprocal(1.0f + fast_exp2(x * fmaf(x * x, -0.044715f * 2.3022082f, -2.3022082f)));
}

/* Beyond 16 gates are 0 and 1, and only NaN must pass. */
__device__ __forceinline__ float gelu_not_below(float x) { return x < -16.0f ? -16.0f : x; }
__device__ __forceinline__ float gelu_not_above(float x) { return x > 16.0f ? 16.0f : x; }

/* FAST is for results that are rounded to 16 bits; there a NaN passes through the gate alone. */
template <bool FAST> __device__ __forceinline__ float gelu_of(float x)
{
    if (FAST)
        return fmaxf(x, -16.0f) * gelu_gate_fast(x);
    return gelu_not_below(x) / (1.0f + gelu_exp(x));
}

/* s + x s' with s = 1 / (1 + e), s' = 2 u' e s^2; e s is 1 - s. */
template <bool FAST> __device__ __forceinline__ float gelu_slope(float x)
{
    const float e = FAST ? 0.0f : gelu_exp(x), s = FAST ? gelu_gate_fast(x) : 1.0f / (1.0f + e);
    const float y = FAST ? fminf(fmaxf(x, -16.0f), 16.0f) : gelu_not_above(gelu_not_below(x));
    const float two_u_slope = fmaf(3.0f * 0.044715f * 1.5957691216057308f * y, y, 1.5957691216057308f);
    return fmaf(y * two_u_slope * s, FAST ? 1.0f - s : e * s, s);
}

/* Phi(x) = 0.5 erfc(-x / sqrt(2)). */
__device__ __forceinline__ float gelu_erf_gate(float x) { return 0.5f * erfcf(-0.70710678f * x); }

/* 0 where the power is Inf. */
template <bool FAST> __device__ __forceinline__ float sigmoid_of(float x)
{
    return FAST ? fast_reciprocal(1.0f + fast_exp2(-1.44269504f * x)) : 1.0f / (1.0f + expf(-x));
}

template <dsc_activation KIND, bool FAST> __device__ __forceinline__ float activation_of(float x)
{
    const float positive = x < 0.0f ? 0.0f : x;
    if (KIND == DSC_RELU || KIND == DSC_RELU_SQUARED)
        return KIND == DSC_RELU ? positive : positive * positive;
    if (KIND == DSC_SIGMOID || KIND == DSC_SILU)
        return KIND == DSC_SIGMOID ? sigmoid_of<FAST>(x) : (x < -128.0f ? -128.0f : x) * sigmoid_of<FAST>(x);
    if (KIND == DSC_HALF_SQUARE)
        return 0.5f * x * x;
    return KIND == DSC_GELU_ERF ? gelu_not_below(x) * gelu_erf_gate(x) : gelu_of<FAST>(x);
}

template <dsc_activation KIND, bool FAST> __device__ __forceinline__ float activation_slope(float x)
{
    if (KIND == DSC_RELU)
        return x > 0.0f ? 1.0f : 0.0f;
    if (KIND == DSC_RELU_SQUARED || KIND == DSC_HALF_SQUARE)
        return KIND == DSC_HALF_SQUARE ? x : x < 0.0f ? 0.0f : 2.0f * x;
    if (KIND == DSC_SIGMOID || KIND == DSC_SILU) {
        const float s = sigmoid_of<FAST>(x), bell = s * sigmoid_of<FAST>(-x);
        return KIND == DSC_SIGMOID ? bell : fmaf(x < -128.0f ? -128.0f : x > 128.0f ? 128.0f : x, bell, s);
    }
    if (KIND != DSC_GELU_ERF)
        return gelu_slope<FAST>(x);
    const float y = gelu_not_above(gelu_not_below(x)), e = FAST ? __expf(-0.5f * y * y) : expf(-0.5f * y * y);
    return fmaf(0.39894228f * y, e, gelu_erf_gate(x));
}

} // namespace

#endif
