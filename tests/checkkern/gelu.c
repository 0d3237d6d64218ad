/* gelu.c - GELU forward and backward against double. The bound counts the gate's roundings as tests/checkkern/vmath.c
 * does: those of its argument (u2) are multiplied by the argument. SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck.h"

#include <math.h>

static const int64_t lengths[] = { 0, 1, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 4095, 4097, 20011 };

static double argument(double x) { return 1.5957691216057308 * (x + 0.044715 * x * x * x); } /* 2 sqrt(2 / pi) (...) */
static double gate(double x) { return 1 / (1 + exp(-argument(x))); }
static double gelu(double x) { return x * gate(x); }

static double slope(double x, double *terms)
{
    const double s = gate(x), bell = s * gate(-x), inner = 1.5957691216057308 * (1 + 3 * 0.044715 * x * x);
    const double second = bell == 0 ? 0 : x * bell * inner;
    *terms = s + fabs(second);
    return s + second;
}

static void verify_fwd(const void *args)
{
    const dsc_gelu_fwd_args *a = args;
    for (int64_t i = 0; i < a->count; i++) {
        const double x = ck_get(a->in, i), expected = gelu(x), u2 = fmin(fabs(argument(x)), 104);
        const double tol = ck_spacing(DSC_F32, expected) * (4 + 3 * u2) + 16 * 0x1p-126;
        ck_near(a->out, i, expected, tol + ck_rounding(a->dtype, expected));
    }
}

static double slope_tolerance(double x)
{
    double terms;
    (void)slope(x, &terms);
    return ck_spacing(DSC_F32, terms) * (6 + 3 * fmin(fabs(argument(x)), 104)) + 2048 * 0x1p-126;
}

static void verify_bwd(const void *args)
{
    const dsc_gelu_bwd_args *a = args;
    for (int64_t i = 0; i < a->count; i++) {
        double terms;
        const double x = ck_get(a->in, i), g = a->d_in == a->d_out ? ck_start(a->d_in, i) : ck_get(a->d_out, i);
        const double expected = g * slope(x, &terms);
        const double tol = fabs(g) * slope_tolerance(x) + ck_spacing(DSC_F32, expected);
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
        const double expected = g * (gelu(x + h) - gelu(x - h)) / (2 * h);
        ck_near(a->d_in, i, expected, fabs(g) * (slope_tolerance(x) + 1e-9) + ck_spacing(DSC_F32, expected));
    }
}

static void check_fwd(int64_t n, dsc_dtype dtype)
{
    if (!ck_case("gelu_fwd %s n=%lld", dtype == DSC_F32 ? "f32" : "bf16", (long long)n))
        return;
    void *out = ck_buf(CK_OUT, dtype, n, "out");
    const void *in = ck_buf(CK_IN, dtype, n, "in");
    ck_normal(in, 0, 3);
    ck_edges(in);
    const dsc_gelu_fwd_args args = { .out = out, .in = in, .count = n, .dtype = dtype };
    ck_kernel(DSC_KERNEL_GELU_FWD, &args, sizeof args, verify_fwd);
}

static void check_bwd(int64_t n, dsc_dtype dtype, bool in_place)
{
    if (!ck_case("gelu_bwd %s%s n=%lld", dtype == DSC_F32 ? "f32" : "bf16", in_place ? " in place" : "", (long long)n))
        return;
    void *d_in = ck_buf(in_place ? CK_INOUT : CK_OUT, dtype, n, "d_in");
    const void *d_out = in_place ? d_in : ck_buf(CK_IN, dtype, n, "d_out"), *in = ck_buf(CK_IN, dtype, n, "in");
    ck_normal(d_out, 0, 1);
    ck_normal(in, 0, 3);
    ck_edges(in);
    const dsc_gelu_bwd_args args = { .d_in = d_in, .d_out = d_out, .in = in, .count = n, .dtype = dtype };
    ck_kernel(DSC_KERNEL_GELU_BWD, &args, sizeof args, verify_bwd);
}

static void bench(dsc_dtype dtype)
{
    const int64_t rows = ck_bench_size(1024, 32768), n = rows * 3072, bytes = (int64_t)dsc_dtype_bytes(dtype);
    const char *name = dtype == DSC_F32 ? "f32" : "bf16";
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

void ck_gelu(void)
{
    for (size_t l = 0; l < DSC_COUNT(lengths); l++)
        for (dsc_dtype dtype = DSC_F32; dtype <= DSC_BF16; dtype++) {
            check_fwd(lengths[l], dtype);
            check_bwd(lengths[l], dtype, false);
            check_bwd(lengths[l], dtype, true);
        }
    if (ck_case("gelu_bwd against differences")) {
        float *d_in = ck_buf(CK_OUT, DSC_F32, 101, "d_in");
        const float *d_out = ck_buf(CK_IN, DSC_F32, 101, "d_out"), *in = ck_buf(CK_IN, DSC_F32, 101, "in");
        ck_normal(d_out, 0, 1);
        for (int64_t i = 0; i < 101; i++)
            ck_set(in, i, 0.1 * (double)(i - 50));
        const dsc_gelu_bwd_args args = { .d_in = d_in, .d_out = d_out, .in = in, .count = 101, .dtype = DSC_F32 };
        ck_kernel(DSC_KERNEL_GELU_BWD, &args, sizeof args, verify_differences);
    }
    if (ck_benching()) {
        bench(DSC_F32);
        bench(DSC_BF16);
    }
}
