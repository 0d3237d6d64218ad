/* activation.c - see activation.h. GELU's tanh form counts the gate's roundings as tests/checkkern/vmath.c does: those
 * of its argument (u2) are multiplied by the argument. The erf form's gate is good to 1e-7. A sigmoid is counted as
 * that gate. SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/activation.h"

#include <math.h>

const char *const ck_activation_names[DSC_ACTIVATIONS] = { "tanh",  "erf",     "relu",       "silu",
                                                           "relu2", "sigmoid", "half_square",
                                                           "relu6", "hard_sigmoid", "hard_swish" };

static double argument(double x) { return 1.5957691216057308 * (x + 0.044715 * x * x * x); } /* 2 sqrt(2 / pi) (...) */
static double gate(double x) { return 1 / (1 + exp(-argument(x))); }
static double gate_erf(double x) { return 0.5 * erfc(-x * 0.70710678118654752440); }
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* A sigmoid that would be denormal may be 0: x times it is then off by 104 times the smallest normal number. */
static const double denormal = 128 * 0x1p-126;

double ck_activation(dsc_activation kind, double x)
{
    switch (kind) {
    case DSC_RELU:
        return fmax(x, 0);
    case DSC_RELU2:
        return fmax(x, 0) * fmax(x, 0);
    case DSC_SILU:
        return x * sigmoid(x);
    case DSC_SIGMOID:
        return sigmoid(x);
    case DSC_HALF_SQUARE:
        return 0.5 * x * x;
    case DSC_RELU6:
        return fmin(fmax(x, 0), 6);
    case DSC_HARD_SIGMOID:
        return fmin(fmax(x + 3, 0), 6) / 6;
    case DSC_HARD_SWISH:
        return x * fmin(fmax(x + 3, 0), 6) / 6;
    case DSC_GELU_ERF:
        return x * gate_erf(x);
    default:
        return x * gate(x);
    }
}

double ck_activation_tolerance(dsc_activation kind, double x)
{
    const double expected = ck_activation(kind, x), spacing = ck_spacing(DSC_F32, expected);
    switch (kind) {
    case DSC_RELU:
    case DSC_RELU6:
        return 0;
    case DSC_RELU2:
    case DSC_HALF_SQUARE:
        return spacing;
    case DSC_HARD_SIGMOID:
    case DSC_HARD_SWISH:
        return 3 * spacing;
    case DSC_SILU:
    case DSC_SIGMOID:
        return spacing * (4 + 1.5 * fmin(fabs(x), 104)) + denormal;
    case DSC_GELU_ERF:
        return 1e-7 * fabs(expected) + fmin(1e-7 * fabs(x), 1e-6) + 4 * spacing;
    default:
        return spacing * (4 + 3 * fmin(fabs(argument(x)), 104)) + 16 * 0x1p-126;
    }
}

/* The two terms of a slope. */
typedef struct terms {
    double first, second;
} terms;

static terms slope_terms(dsc_activation kind, double x)
{
    const double s = gate(x), bell = s * gate(-x), inner = 1.5957691216057308 * (1 + 3 * 0.044715 * x * x);
    switch (kind) {
    case DSC_RELU:
        return (terms) { x > 0, 0 };
    case DSC_RELU2:
        return (terms) { 2 * fmax(x, 0), 0 };
    case DSC_HALF_SQUARE:
        return (terms) { x, 0 };
    case DSC_RELU6:
        return (terms) { x > 0 && x < 6, 0 };
    case DSC_HARD_SIGMOID:
        return (terms) { x > -3 && x < 3 ? 1.0 / 6 : 0, 0 };
    case DSC_HARD_SWISH:
        return (terms) { x <= -3 ? 0 : x < 3 ? x / 3 + 0.5 : 1, 0 };
    case DSC_SILU:
        return (terms) { sigmoid(x), x * sigmoid(x) * sigmoid(-x) };
    case DSC_SIGMOID:
        return (terms) { sigmoid(x) * sigmoid(-x), 0 };
    case DSC_GELU_ERF:
        return (terms) { gate_erf(x), fabs(x) > 100 ? 0 : 0.39894228040143267794 * x * exp(-0.5 * x * x) };
    default:
        return (terms) { s, bell == 0 ? 0 : x * bell * inner };
    }
}

double ck_activation_slope(dsc_activation kind, double x)
{
    const terms t = slope_terms(kind, x);
    return t.first + t.second;
}

double ck_activation_slope_tolerance(dsc_activation kind, double x)
{
    const terms t = slope_terms(kind, x);
    const double spacing = ck_spacing(DSC_F32, fabs(t.first) + fabs(t.second)), far = fmin(fabs(x), 104);
    switch (kind) {
    case DSC_RELU:
    case DSC_RELU2:
    case DSC_HALF_SQUARE:
    case DSC_RELU6:
        return 0;
    case DSC_HARD_SIGMOID:
        return spacing;
    case DSC_HARD_SWISH: /* x / 3 and 1/2 may cancel */
        return 0x1p-23;
    case DSC_SILU: /* 1 - s is off by a rounding of 1, which silu multiplies, until it is 0 */
        return spacing * (6 + 2 * far) + 2 * fmin(fabs(ck_activation(kind, x)), 20) * 0x1p-24 + denormal;
    case DSC_SIGMOID:
        return spacing * (8 + 3 * far) + denormal;
    case DSC_GELU_ERF:
        return 1e-7 + 6 * spacing;
    default:
        return spacing * (6 + 3 * fmin(fabs(argument(x)), 104)) + 2048 * 0x1p-126;
    }
}
