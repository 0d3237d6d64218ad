/* gelu.c - activations forward and backward against double (activation.h). SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/activation.h"

#include <math.h>

static const int64_t lengths[] = { 0, 1, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 4095, 4097, 20011 };

static void verify_fwd(const void *args)
{
    const dsc_gelu_fwd_args *a = args;
    for (int64_t i = 0; i < a->count; i++) {
        const double x = ck_get(a->in, i), expected = ck_activation(a->kind, x);
        ck_near(a->out, i, expected, ck_activation_tolerance(a->kind, x) + ck_rounding(a->dtype, expected));
    }
}

static void verify_bwd(const void *args)
{
    const dsc_gelu_bwd_args *a = args;
    for (int64_t i = 0; i < a->count; i++) {
        const double x = ck_get(a->in, i), g = a->d_in == a->d_out ? ck_start(a->d_in, i) : ck_get(a->d_out, i);
        const double expected = g * ck_activation_slope(a->kind, x);
        const double tol = fabs(g) * ck_activation_slope_tolerance(a->kind, x) + ck_spacing(DSC_F32, expected);
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
        const double expected = g * (ck_activation(a->kind, x + h) - ck_activation(a->kind, x - h)) / (2 * h);
        ck_near(a->d_in, i, expected,
                fabs(g) * (ck_activation_slope_tolerance(a->kind, x) + 1e-9) + ck_spacing(DSC_F32, expected));
    }
}

/* The square of 1e30 is Inf in fp32 alone. */
static void edges(const void *in, dsc_activation kind, int64_t n)
{
    ck_edges(in);
    for (int64_t i = 0; (kind == DSC_RELU2 || kind == DSC_HALF_SQUARE) && i < n; i++)
        if (fabs(ck_get(in, i)) > 100)
            ck_set(in, i, ck_get(in, i) > 0 ? 100 : -100);
}

static void check_fwd(int64_t n, dsc_dtype dtype, dsc_activation kind)
{
    if (!ck_case("gelu_fwd %s %s n=%lld", ck_activation_names[kind], ck_dtype_text(dtype), (long long)n))
        return;
    void *out = ck_buf(CK_OUT, dtype, n, "out");
    const void *in = ck_buf(CK_IN, dtype, n, "in");
    ck_normal(in, 0, 3);
    edges(in, kind, n);
    const dsc_gelu_fwd_args args = { .out = out, .in = in, .count = n, .dtype = dtype, .kind = kind };
    ck_kernel(DSC_KERNEL_GELU_FWD, &args, sizeof args, verify_fwd);
}

static void check_bwd(int64_t n, dsc_dtype dtype, dsc_activation kind, bool in_place)
{
    if (!ck_case("gelu_bwd %s %s%s n=%lld", ck_activation_names[kind], ck_dtype_text(dtype),
                 in_place ? " in place" : "", (long long)n))
        return;
    void *d_in = ck_buf(in_place ? CK_INOUT : CK_OUT, dtype, n, "d_in");
    const void *d_out = in_place ? d_in : ck_buf(CK_IN, dtype, n, "d_out"), *in = ck_buf(CK_IN, dtype, n, "in");
    ck_normal(d_out, 0, 1);
    ck_normal(in, 0, 3);
    edges(in, kind, n);
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
    if (!ck_case("gelu_bwd %s against differences", ck_activation_names[kind]))
        return;
    float *d_in = ck_buf(CK_OUT, DSC_F32, 101, "d_in");
    const float *d_out = ck_buf(CK_IN, DSC_F32, 101, "d_out"), *in = ck_buf(CK_IN, DSC_F32, 101, "in");
    const bool has_corners = kind == DSC_RELU || kind == DSC_RELU2 || kind >= DSC_RELU6;
    ck_normal(d_out, 0, 1);
    for (int64_t i = 0; i < 101; i++)
        ck_set(in, i,
               0.1 * (double)(i - 50) + (has_corners ? 0.03 : 0)); /* beside the corner */
    const dsc_gelu_bwd_args args = { .d_in = d_in, .d_out = d_out, .in = in, .count = 101, .dtype = DSC_F32,
                                     .kind = kind };
    ck_kernel(DSC_KERNEL_GELU_BWD, &args, sizeof args, verify_differences);
}

void ck_gelu(void)
{
    for (dsc_activation kind = DSC_GELU_TANH; kind < DSC_ACTIVATIONS; kind++) {
        /* The loops are those of the first kinds, so that others need fewer lengths. */
        for (size_t l = 0; l < DSC_COUNT(lengths); l += kind < DSC_SILU ? 1 : 3)
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
