/* gelu_ref.c - activations in double, rounded once. 0.5 (1 + tanh(u)) is written as 1 / (1 + exp(-2 u)) and
 * 0.5 (1 + erf(z)) as 0.5 erfc(-z), which keep their digits far below zero. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/cpu/range.h"
#include "kernels/scalar.h"

#define SQRT_2_OVER_PI 0.79788456080286535588
#define CUBIC 0.044715
#define SQRT_HALF 0.70710678118654752440
#define ONE_OVER_SQRT_2_PI 0.39894228040143267794

static double gate(double x)
{
    return 1 / (1 + exp(-2 * SQRT_2_OVER_PI * (x + CUBIC * x * x * x)));
}

static double gate_erf(double x)
{
    return 0.5 * erfc(-x * SQRT_HALF);
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static double relu(double x) { return x < 0 ? 0 : x; }

static double clamp(double x, double least, double most) { return x < least ? least : x > most ? most : x; }

double dsc_activation_ref(dsc_activation kind, double x)
{
    switch (kind) {
    case DSC_RELU:
        return relu(x);
    case DSC_RELU2:
        return relu(x) * relu(x);
    case DSC_SILU:
        return x * sigmoid(x);
    case DSC_SIGMOID:
        return sigmoid(x);
    case DSC_GELU_ERF: return x * gate_erf(x);
    case DSC_HALF_SQUARE: return 0.5 * x * x;
    case DSC_RELU6:
        return clamp(x, 0, 6);
    case DSC_HARD_SIGMOID:
        return clamp(x + 3, 0, 6) / 6;
    case DSC_HARD_SWISH:
        return x <= -3 ? 0 : x * (clamp(x + 3, 0, 6) / 6);
    case DSC_GELU_TANH:
    case DSC_ACTIVATIONS:
        break;
    }
    return x * gate(x);
}

static double gelu_tanh_slope(double x)
{
    const double s = gate(x), inner = 2 * SQRT_2_OVER_PI * (1 + 3 * CUBIC * x * x);
    /* 1 - s as the gate of -x: without cancellation, and 0 where x^2 times it would be Inf times 0 */
    const double far = gate(-x);
    return s == 0 || far == 0 ? s : s + x * s * far * inner;
}

double dsc_activation_slope_ref(dsc_activation kind, double x)
{
    switch (kind) {
    case DSC_RELU:
        return x > 0 ? 1 : 0;
    case DSC_RELU2:
        return 2 * relu(x);
    case DSC_SILU:
        return sigmoid(x) + x * sigmoid(x) * sigmoid(-x);
    case DSC_SIGMOID:
        return sigmoid(x) * sigmoid(-x);
    case DSC_GELU_ERF:
        return gate_erf(x) + x * ONE_OVER_SQRT_2_PI * exp(-0.5 * x * x);
    case DSC_HALF_SQUARE: return x;
    case DSC_RELU6:
        return x > 0 && x < 6 ? 1 : 0;
    case DSC_HARD_SIGMOID:
        return x > -3 && x < 3 ? 1.0 / 6 : 0;
    case DSC_HARD_SWISH:
        return x <= -3 ? 0 : x < 3 ? x / 3 + 0.5 : 1;
    case DSC_GELU_TANH:
    case DSC_ACTIVATIONS:
        break;
    }
    return gelu_tanh_slope(x);
}

float dsc_gelu_ref(float x) { return (float)dsc_activation_ref(DSC_GELU_TANH, (double)x); }

void dsc_gelu_fwd_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_gelu_fwd_args *a = args;
    const int64_t end = dsc_min_i64(last * DSC_GELU_BLOCK, a->count);
    for (int64_t i = first * DSC_GELU_BLOCK; i < end; i++) {
        const double x = (double)dsc_get(a->in, i, a->dtype);
        dsc_put(a->out, i, a->dtype, (float)dsc_activation_ref(a->kind, x));
    }
}

void dsc_gelu_bwd_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_gelu_bwd_args *a = args;
    const int64_t end = dsc_min_i64(last * DSC_GELU_BLOCK, a->count);
    for (int64_t i = first * DSC_GELU_BLOCK; i < end; i++) {
        const double slope = dsc_activation_slope_ref(a->kind, (double)dsc_get(a->in, i, a->dtype));
        dsc_put(a->d_in, i, a->dtype, (float)((double)dsc_get(a->d_out, i, a->dtype) * slope));
    }
}
