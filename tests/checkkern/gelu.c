/* gelu.c - GELU, in both forms, and other activations forward and backward against double. The tanh form's bound counts
 * the gate's roundings as tests/checkkern/vmath.c does: those of its argument (u2) are multiplied by the argument. The
 * erf form's gate is good to 1e-7. SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck.h"

#include <math.h>

static const int64_t lengths[] = { 0, 1, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 4095, 4097, 20011 };

static double argument(double x) { return 1.5957691216057308 * (x + 0.044715 * x * x * x); } /* 2 sqrt(2 / pi) (...) */
static double gate(double x) { return 1 / (1 + exp(-argument(x))); }
static double gate_erf(double x) { return 0.5 * erfc(-x * 0.70710678118654752440); }

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* Roundings of a sigmoid's argument are multiplied by it; one that would be denormal may be 0. */
static const double denormal = 128 * 0x1p-126;
static double sigmoid_tolerance(double x, double terms)
{
    return ck_spacing(DSC_F32, terms) * (8 + 3 * fmin(fabs(x), 104)) + denormal;
}

static bool is_exact(dsc_activation kind)
{
    return kind == DSC_RELU || kind == DSC_RELU_SQUARED || kind == DSC_HALF_SQUARE;
}
static bool has_sigmoid(dsc_activation kind) { return kind == DSC_SIGMOID || kind == DSC_SILU; }

static double value(dsc_activation kind, double x)
{
    switch (kind) {
    case DSC_RELU: return fmax(x, 0);
    case DSC_RELU_SQUARED: return fmax(x, 0) * fmax(x, 0);
    case DSC_SIGMOID: return sigmoid(x);
    case DSC_SILU: return fmax(x, -1000) * sigmoid(x);
    case DSC_HALF_SQUARE: return 0.5 * x * x;
    default: return x * (kind == DSC_GELU_ERF ? gate_erf(x) : gate(x));
    }
}

static double slope(dsc_activation kind, double x, double *terms)
{
    const double s = gate(x), bell = s * gate(-x), inner = 1.5957691216057308 * (1 + 3 * 0.044715 * x * x);
    double first = s, second = bell == 0 ? 0 : x * bell * inner;
    if (kind == DSC_RELU)
        first = x > 0, second = 0;
    if (kind == DSC_GELU_ERF)
        first = gate_erf(x), second = fabs(x) > 100 ? 0 : 0.39894228040143267794 * x * exp(-0.5 * x * x);
    if (kind == DSC_RELU_SQUARED || kind == DSC_HALF_SQUARE)
        first = kind == DSC_HALF_SQUARE ? x : 2 * fmax(x, 0), second = 0;
    if (kind == DSC_SIGMOID)
        first = sigmoid(x) * sigmoid(-x), second = 0;
    if (kind == DSC_SILU)
        first = sigmoid(x), second = fmin(fmax(x, -1000), 1000) * sigmoid(x) * sigmoid(-x);
    *terms = first + fabs(second);
    return first + second;
}

static double value_tolerance(dsc_activation kind, double x, double expected)
{
    if (is_exact(kind))
        return 0;
    if (has_sigmoid(kind))
        return sigmoid_tolerance(x, expected);
    if (kind == DSC_GELU_ERF)
        return 1e-7 * fabs(expected) + fmin(1e-7 * fabs(x), 1e-6) + 4 * ck_spacing(DSC_F32, expected);
    return ck_spacing(DSC_F32, expected) * (4 + 3 * fmin(fabs(argument(x)), 104)) + 16 * 0x1p-126;
}

static void verify_fwd(const void *args)
{
    const dsc_gelu_fwd_args *a = args;
    for (int64_t i = 0; i < a->count; i++) {
        const double x = ck_get(a->in, i), exact = value(a->kind, x);
        const double expected = is_exact(a->kind) ? (double)(float)exact : exact;
        ck_near(a->out, i, expected, value_tolerance(a->kind, x, expected) + ck_rounding(a->dtype, expected));
    }
}

static double slope_tolerance(dsc_activation kind, double x)
{
    double terms;
    (void)slope(kind, x, &terms);
    if (is_exact(kind))
        return 0;
    if (has_sigmoid(kind))
        return sigmoid_tolerance(x, terms);
    if (kind == DSC_GELU_ERF)
        return 1e-7 + 6 * ck_spacing(DSC_F32, terms);
    return ck_spacing(DSC_F32, terms) * (6 + 3 * fmin(fabs(argument(x)), 104)) + 2048 * 0x1p-126;
}

static void verify_bwd(const void *args)
{
    const dsc_gelu_bwd_args *a = args;
    for (int64_t i = 0; i < a->count; i++) {
        double terms;
        const double x = ck_get(a->in, i), g = a->d_in == a->d_out ? ck_start(a->d_in, i) : ck_get(a->d_out, i);
        const double expected = g * slope(a->kind, x, &terms);
        const double tol = fabs(g) * slope_tolerance(a->kind, x) + ck_spacing(DSC_F32, expected);
        ck_near(a->d_in, i, expected, tol + ck_rounding(a->dtype, expected));
    }
}

/* The slope by differences of the forward in double: an error of about h^2 and 1e-16 / h. */
static void verify_differences(const void *args)
{
    const dsc_gelu_bwd_args *a = args;
    const double h = 1e-5;
    for (int64_t i = 0; i < a->count; i++) {
        const double x = ck_get(a->in, i), g = ck_get(a->d_out, i);
        const double expected = g * (value(a->kind, x + h) - value(a->kind, x - h)) / (2 * h);
        ck_near(a->d_in, i, expected, fabs(g) * (slope_tolerance(a->kind, x) + 1e-9) + ck_spacing(DSC_F32, expected));
    }
}

static const char *const kinds[] = { "tanh", "erf", "relu", "relu_squared", "sigmoid", "silu", "half_square" };

static void check_fwd(int64_t n, dsc_dtype dtype, dsc_activation kind)
{
    if (!ck_case("gelu_fwd %s %s n=%lld", kinds[kind], ck_dtype_text(dtype), (long long)n))
        return;
    void *out = ck_buf(CK_OUT, dtype, n, "out");
    const void *in = ck_buf(CK_IN, dtype, n, "in");
    ck_normal(in, 0, 3);
    ck_edges(in);
    const dsc_gelu_fwd_args args = { .out = out, .in = in, .count = n, .dtype = dtype, .kind = kind };
    ck_kernel(DSC_KERNEL_GELU_FWD, &args, sizeof args, verify_fwd);
}

static void check_bwd(int64_t n, dsc_dtype dtype, dsc_activation kind, bool in_place)
{
    if (!ck_case("gelu_bwd %s %s%s n=%lld", kinds[kind], ck_dtype_text(dtype),
                 in_place ? " in place" : "", (long long)n))
        return;
    void *d_in = ck_buf(in_place ? CK_INOUT : CK_OUT, dtype, n, "d_in");
    const void *d_out = in_place ? d_in : ck_buf(CK_IN, dtype, n, "d_out"), *in = ck_buf(CK_IN, dtype, n, "in");
    ck_normal(d_out, 0, 1);
    ck_normal(in, 0, 3);
    ck_edges(in);
    const dsc_gelu_bwd_args args = { .d_in = d_in, .d_out = d_out, .in = in, .count = n, .dtype = dtype,
                                     .kind = kind };
    ck_kernel(DSC_KERNEL_GELU_BWD, &args, sizeof args, verify_bwd);
}

static void bench(dsc_dtype dtype)
{
    const int64_t rows = ck_bench_size(1024, 32768), n = rows * 3072, bytes = (int64_t)dsc_dtype_bytes(dtype);
    const char *name = ck_dtype_text(dtype);
    if (ck_case("bench gelu_fwd %s %lldx3072", name, (long long)rows)) {
        const void *in = ck_buf(CK_IN, dtype, n, "in");
        ck_uniform(in, -3, 3);
        const dsc_gelu_fwd_args args = { .out = ck_buf(CK_OUT, dtype, n, "out"), .in = in, .count = n, .dtype = dtype };
        ck_bench(DSC_KERNEL_GELU_FWD, &args, sizeof args, 2 * n * bytes, 0, false);
    }
    if (ck_case("bench gelu_bwd %s %lldx3072", name, (long long)rows)) {
        const void *in = ck_buf(CK_IN, dtype, n, "in"), *d_out = ck_buf(CK_IN, dtype, n, "d_out");
        ck_uniform(in, -3, 3);
        ck_uniform(d_out, -1, 1);
        const dsc_gelu_bwd_args args = { .d_in = ck_buf(CK_OUT, dtype, n, "d_in"), .d_out = d_out, .in = in, .count = n,
                                         .dtype = dtype };
        ck_bench(DSC_KERNEL_GELU_BWD, &args, sizeof args, 3 * n * bytes, 0, false);
    }
}

static void check_differences(dsc_activation kind)
{
    if (!ck_case("gelu_bwd %s against differences", kinds[kind]))
        return;
    float *d_in = ck_buf(CK_OUT, DSC_F32, 101, "d_in");
    const float *d_out = ck_buf(CK_IN, DSC_F32, 101, "d_out"), *in = ck_buf(CK_IN, DSC_F32, 101, "in");
    ck_normal(d_out, 0, 1);
    for (int64_t i = 0; i < 101; i++)
        ck_set(in, i, 0.1 * (double)(i - 50) + (is_exact(kind) ? 0.03 : 0)); /* beside the corner */
    const dsc_gelu_bwd_args args = { .d_in = d_in, .d_out = d_out, .in = in, .count = 101, .dtype = DSC_F32,
                                     .kind = kind };
    ck_kernel(DSC_KERNEL_GELU_BWD, &args, sizeof args, verify_differences);
}

void ck_gelu(void)
{
    for (dsc_activation kind = DSC_GELU_TANH; kind < DSC_ACTIVATIONS; kind++) {
        for (size_t l = 0; l < DSC_COUNT(lengths); l++)
            for (dsc_dtype dtype = DSC_F32; dtype <= DSC_F16; dtype++) {
                check_fwd(lengths[l], dtype, kind);
                check_bwd(lengths[l], dtype, kind, false);
                check_bwd(lengths[l], dtype, kind, true);
            }
        check_differences(kind);
    }
    if (ck_benching()) {
        bench(DSC_F32);
        bench(DSC_BF16);
    }
}
