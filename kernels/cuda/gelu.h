/* gelu.h - activations of one number (kernels/gelu.h). GELU's tanh form as x * sigmoid(2u): nothing cancels near 0.
 * SPDX-License-Identifier: Apache-2.0 */
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

/* Sigmoid of x, and x times it. Below -88 both are as good as 0, and bounding x there keeps them from Inf times 0; NaN
 * passes. FAST is for results that are rounded to 16 bits: the power may be Inf, and a NaN passes through s alone. */
struct gate_values {
    float s, silu;
};

template <bool FAST> __device__ __forceinline__ gate_values gate_of(float x)
{
    if (FAST) {
        const float s = fast_reciprocal(1.0f + fast_exp2(-1.44269504f * x));
        return { s, fmaxf(x, -88.0f) * s };
    }
    const float least = x < -88.0f ? -88.0f : x, s = 1.0f / (1.0f + expf(-least));
    return { s, least * s };
}

__device__ __forceinline__ float relu_of(float x) { return x < 0.0f ? 0.0f : x; }

/* A bound lets NaN pass. */
__device__ __forceinline__ float clamp_of(float x, float least, float most)
{
    return x < least ? least : x > most ? most : x;
}

__device__ __forceinline__ float hard_gate_of(float x) { return clamp_of(x + 3.0f, 0.0f, 6.0f) * (1.0f / 6); }

template <dsc_activation KIND, bool FAST> __device__ __forceinline__ float activation_of(float x)
{
    if (KIND == DSC_RELU)
        return relu_of(x);
    if (KIND == DSC_RELU2)
        return relu_of(x) * relu_of(x);
    if (KIND == DSC_SILU)
        return gate_of<FAST>(x).silu;
    if (KIND == DSC_SIGMOID)
        return gate_of<FAST>(x).s;
    if (KIND == DSC_HALF_SQUARE)
        return 0.5f * x * x;
    if (KIND == DSC_RELU6)
        return clamp_of(x, 0.0f, 6.0f);
    if (KIND == DSC_HARD_SIGMOID)
        return hard_gate_of(x);
    if (KIND == DSC_HARD_SWISH)
        return (x < -3.0f ? -3.0f : x) * hard_gate_of(x);
    return KIND == DSC_GELU_ERF ? gelu_not_below(x) * gelu_erf_gate(x) : gelu_of<FAST>(x);
}

template <dsc_activation KIND, bool FAST> __device__ __forceinline__ float activation_slope(float x)
{
    if (KIND == DSC_RELU)
        return x > 0.0f ? 1.0f : 0.0f;
    if (KIND == DSC_RELU2)
        return 2.0f * relu_of(x);
    if (KIND == DSC_SILU) {
        const gate_values v = gate_of<FAST>(x);
        return fmaf(v.silu, 1.0f - v.s, v.s);
    }
    if (KIND == DSC_SIGMOID)
        return gate_of<FAST>(x).s * gate_of<FAST>(-x).s;
    if (KIND == DSC_HALF_SQUARE)
        return x;
    if (KIND == DSC_RELU6)
        return x > 0.0f && x < 6.0f ? 1.0f : 0.0f;
    if (KIND == DSC_HARD_SIGMOID)
        return x > -3.0f && x < 3.0f ? 1.0f / 6 : 0.0f;
    if (KIND == DSC_HARD_SWISH)
        return x <= -3.0f ? 0.0f : x < 3.0f ? fmaf(x, 1.0f / 3, 0.5f) : 1.0f;
    if (KIND != DSC_GELU_ERF)
        return gelu_slope<FAST>(x);
    const float y = gelu_not_above(gelu_not_below(x)), e = FAST ? __expf(-0.5f * y * y) : expf(-0.5f * y * y);
    return fmaf(0.39894228f * y, e, gelu_erf_gate(x));
}

/* RUN<KIND>(...) for a kind that is known at run time. */
#define DSC_CUDA_FOR_ACTIVATION(kind, RUN, ...)                                                                        \
    do {                                                                                                               \
        switch (kind) {                                                                                                \
        case DSC_GELU_TANH:                                                                                            \
            RUN<DSC_GELU_TANH>(__VA_ARGS__);                                                                           \
            break;                                                                                                     \
        case DSC_GELU_ERF:                                                                                             \
            RUN<DSC_GELU_ERF>(__VA_ARGS__);                                                                            \
            break;                                                                                                     \
        case DSC_RELU:                                                                                                 \
            RUN<DSC_RELU>(__VA_ARGS__);                                                                                \
            break;                                                                                                     \
        case DSC_SILU:                                                                                                 \
            RUN<DSC_SILU>(__VA_ARGS__);                                                                                \
            break;                                                                                                     \
        case DSC_RELU2:                                                                                                \
            RUN<DSC_RELU2>(__VA_ARGS__);                                                                               \
            break;                                                                                                     \
        case DSC_SIGMOID:                                                                                              \
            RUN<DSC_SIGMOID>(__VA_ARGS__);                                                                             \
            break;                                                                                                     \
        case DSC_HALF_SQUARE:                                                                                          \
            RUN<DSC_HALF_SQUARE>(__VA_ARGS__);                                                                         \
            break;                                                                                                     \
        case DSC_RELU6:                                                                                                \
            RUN<DSC_RELU6>(__VA_ARGS__);                                                                               \
            break;                                                                                                     \
        case DSC_HARD_SIGMOID:                                                                                         \
            RUN<DSC_HARD_SIGMOID>(__VA_ARGS__);                                                                        \
            break;                                                                                                     \
        case DSC_HARD_SWISH:                                                                                           \
            RUN<DSC_HARD_SWISH>(__VA_ARGS__);                                                                          \
            break;                                                                                                     \
        case DSC_ACTIVATIONS:                                                                                          \
            break;                                                                                                     \
        }                                                                                                              \
    } while (0)

} // namespace

#endif
