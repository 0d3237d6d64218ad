/* activation_v16.h - activations and their slopes on 16 lanes; included by gelu_v16.h and swiglu_v16.h after the v16
 * words. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_ACTIVATION_V16_H
#define DSC_KERNELS_CPU_ACTIVATION_V16_H

#include "kernels/cpu/range.h"

/* NaN stays. */
V16_INLINE v16 activation_clamp(v16 x, float least, float most)
{
    return v16_min(v16_set(most), v16_max(v16_set(least), x));
}

V16_INLINE v16 activation_hard_gate(v16 x)
{
    return v16_mul(activation_clamp(v16_add(x, v16_set(3.0f)), 0.0f, 6.0f), v16_set(1.0f / 6));
}

/* 1 where least < x < most, else 0. */
V16_INLINE v16 activation_between(v16 x, float least, float most)
{
    return v16_mul(v16_relu_slope(v16_sub(x, v16_set(least))), v16_relu_slope(v16_sub(v16_set(most), x)));
}

V16_INLINE v16 activation_hard_swish_slope(v16 x)
{
    const v16 near = activation_clamp(x, -3.0f, 3.0f), above = v16_relu_slope(v16_sub(v16_set(3.0f), x));
    const v16 inside = v16_mul(activation_between(x, -3.0f, 3.0f), v16_fma(near, v16_set(1.0f / 3), v16_set(0.5f)));
    return v16_add(inside, v16_sub(v16_set(1.0f), above));
}

V16_INLINE v16 activation_value(dsc_activation kind, v16 x)
{
    switch (kind) {
    case DSC_RELU:
        return v16_relu(x);
    case DSC_RELU2:
        return v16_mul(v16_relu(x), v16_relu(x));
    case DSC_SILU:
        return v16_mul(x, v16_sigmoid(x));
    case DSC_SIGMOID:
        return v16_sigmoid(x);
    case DSC_GELU_ERF:
        return v16_gelu_erf(x);
    case DSC_HALF_SQUARE:
        return v16_mul(v16_mul(v16_set(0.5f), x), x);
    case DSC_RELU6:
        return activation_clamp(x, 0.0f, 6.0f);
    case DSC_HARD_SIGMOID:
        return activation_hard_gate(x);
    case DSC_HARD_SWISH: /* bounded below, where -Inf would meet 0 */
        return v16_mul(v16_max(v16_set(-3.0f), x), activation_hard_gate(x));
    default:
        return v16_gelu(x);
    }
}

/* SiLU's slope is s + silu (1 - s): far out 1 and 0, as silu is 0 where s is. */
V16_INLINE v16 activation_slope(dsc_activation kind, v16 x)
{
    const v16 one = v16_set(1.0f);
    switch (kind) {
    case DSC_RELU:
        return v16_relu_slope(x);
    case DSC_RELU2:
        return v16_mul(v16_set(2.0f), v16_relu(x));
    case DSC_SILU:
        return v16_fma(v16_mul(x, v16_sigmoid(x)), v16_sub(one, v16_sigmoid(x)), v16_sigmoid(x));
    case DSC_SIGMOID:
        return v16_mul(v16_sigmoid(x), v16_sigmoid(v16_sub(v16_set(0), x)));
    case DSC_GELU_ERF:
        return v16_gelu_erf_slope(x);
    case DSC_HALF_SQUARE:
        return x;
    case DSC_RELU6:
        return activation_between(x, 0.0f, 6.0f);
    case DSC_HARD_SIGMOID:
        return v16_mul(v16_set(1.0f / 6), activation_between(x, -3.0f, 3.0f));
    case DSC_HARD_SWISH:
        return activation_hard_swish_slope(x);
    default:
        return v16_gelu_slope(x);
    }
}

/* Calls with `kind` as a constant: one loop for each, and none is looked at inside. */
#define FOR_ACTIVATION(value, call)                                                                                    \
    do {                                                                                                               \
        switch (value) {                                                                                               \
        case DSC_GELU_TANH:                                                                                            \
            call(DSC_GELU_TANH);                                                                                       \
            break;                                                                                                     \
        case DSC_GELU_ERF:                                                                                             \
            call(DSC_GELU_ERF);                                                                                        \
            break;                                                                                                     \
        case DSC_RELU:                                                                                                 \
            call(DSC_RELU);                                                                                            \
            break;                                                                                                     \
        case DSC_SILU:                                                                                                 \
            call(DSC_SILU);                                                                                            \
            break;                                                                                                     \
        case DSC_RELU2:                                                                                                \
            call(DSC_RELU2);                                                                                           \
            break;                                                                                                     \
        case DSC_SIGMOID:                                                                                              \
            call(DSC_SIGMOID);                                                                                         \
            break;                                                                                                     \
        case DSC_HALF_SQUARE:                                                                                          \
            call(DSC_HALF_SQUARE);                                                                                     \
            break;                                                                                                     \
        case DSC_RELU6:                                                                                                \
            call(DSC_RELU6);                                                                                           \
            break;                                                                                                     \
        case DSC_HARD_SIGMOID:                                                                                         \
            call(DSC_HARD_SIGMOID);                                                                                    \
            break;                                                                                                     \
        case DSC_HARD_SWISH:                                                                                           \
            call(DSC_HARD_SWISH);                                                                                      \
            break;                                                                                                     \
        case DSC_ACTIVATIONS:                                                                                          \
            break;                                                                                                     \
        }                                                                                                              \
    } while (0)

#endif
