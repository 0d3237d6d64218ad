/* swiglu_pairs.c - the clamped SwiGLU on neighbours against double and against differences.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck.h"

#include <math.h>

static const dsc_swiglu_clamp clamps[] = { { 1.702f, 7 }, { 1, 0.5f } };

static double value_of(const dsc_swiglu_clamp *clamp, double gate, double up)
{
    const double limit = (double)clamp->limit, g = fmin(gate, limit), u = fmax(fmin(up, limit), -limit);
    return (u + 1) * g / (1 + exp(-(double)clamp->alpha * g));
}

/* d out / d gate and d out / d up. */
static void slopes_of(const dsc_swiglu_clamp *clamp, double gate, double up, double *by_gate, double *by_up)
{
    const double limit = (double)clamp->limit, alpha = (double)clamp->alpha;
    const double g = fmin(gate, limit), u = fmax(fmin(up, limit), -limit), e = exp(-alpha * g), s = 1 / (1 + e);
    const double rest = isinf(e) ? 1 : e * s;
    *by_gate = gate <= limit ? (u + 1) * s * (1 + alpha * g * rest) : 0;
    *by_up = fabs(up) <= limit ? g * s : 0;
}

/* Errors of exp and of a few roundings in fp32, of a result and of its parts. A sigmoid below exp(-88) may be that. */
static double bound(dsc_dtype dtype, double x, double parts)
{
    return 16 * ck_spacing(DSC_F32, parts) + ck_rounding(dtype, x) + 1e-34;
}

static void verify_fwd(const void *args)
{
    const dsc_swiglu_pairs_fwd_args *a = args;
    for (int64_t i = 0; i < a->rows * a->cols; i++) {
        const double x = value_of(&a->clamp, ck_get(a->in, 2 * i), ck_get(a->in, 2 * i + 1));
        ck_near(a->out, i, x, bound(a->dtype, x, x));
    }
    ck_same_on_cpu(a->out);
}

static void verify_bwd(const void *args)
{
    const dsc_swiglu_pairs_bwd_args *a = args;
    const bool over = a->d_in == a->in;
    for (int64_t i = 0; i < a->rows * a->cols; i++) {
        const double gate = over ? ck_start(a->in, 2 * i) : ck_get(a->in, 2 * i);
        const double up = over ? ck_start(a->in, 2 * i + 1) : ck_get(a->in, 2 * i + 1), d = ck_get(a->d_out, i);
        double by_gate, by_up;
        slopes_of(&a->clamp, gate, up, &by_gate, &by_up);
        /* Where the slope crosses 0 its parts cancel. */
        const double limit = (double)a->clamp.limit, u = fmax(fmin(up, limit), -limit) + 1;
        ck_near(a->d_in, 2 * i, d * by_gate, bound(a->dtype, d * by_gate, by_gate == 0 ? 0 : d * u));
        ck_near(a->d_in, 2 * i + 1, d * by_up, bound(a->dtype, d * by_up, d * by_up));
    }
    ck_same_on_cpu(a->d_in);
}

/* By differences of the forward in double, beside the clamp's corners. */
static void verify_differences(const void *args)
{
    const dsc_swiglu_pairs_bwd_args *a = args;
    const double h = 1e-5;
    for (int64_t i = 0; i < a->cols; i++) {
        const double gate = ck_get(a->in, 2 * i), up = ck_get(a->in, 2 * i + 1), d = ck_get(a->d_out, i);
        const double by_gate = (value_of(&a->clamp, gate + h, up) - value_of(&a->clamp, gate - h, up)) / (2 * h) * d;
        const double by_up = (value_of(&a->clamp, gate, up + h) - value_of(&a->clamp, gate, up - h)) / (2 * h) * d;
        ck_near(a->d_in, 2 * i, by_gate, 1e-5 * (1 + fabs(d)));
        ck_near(a->d_in, 2 * i + 1, by_up, 1e-5 * (1 + fabs(d)));
    }
}

/* Far ends and the corners of both clamps. */
static void fill(const void *in, int64_t count)
{
    static const double far[] = { 0, -0.0, 7, -7, 0.5, -0.5, 7.5, -8, 100, -60, 1e30, -1e30, 1e-40 };
    ck_normal(in, 0, 3);
    for (int64_t i = 0; i < count; i++)
        if (ck_random() % 8 == 0)
            ck_set(in, i, fmax(fmin(far[ck_random() % DSC_COUNT(far)], 6e4), -6e4));
}

static void check_fwd(int64_t rows, int64_t cols, dsc_dtype dtype, int clamp)
{
    if (!ck_case("swiglu_pairs_fwd %s %lldx%lld clamp=%d", ck_dtype_text(dtype), (long long)rows, (long long)cols,
                 clamp))
        return;
    const dsc_swiglu_pairs_fwd_args args = { .out = ck_buf(CK_OUT, dtype, rows * cols, "out"),
                                             .in = ck_buf(CK_IN, dtype, 2 * rows * cols, "in"),
                                             .rows = rows,
                                             .cols = cols,
                                             .dtype = dtype,
                                             .clamp = clamps[clamp] };
    fill(args.in, 2 * rows * cols);
    ck_kernel(DSC_KERNEL_SWIGLU_PAIRS_FWD, &args, sizeof args, verify_fwd);
}

static void check_bwd(int64_t rows, int64_t cols, dsc_dtype dtype, int clamp, bool over)
{
    if (!ck_case("swiglu_pairs_bwd %s %lldx%lld clamp=%d%s", ck_dtype_text(dtype), (long long)rows, (long long)cols,
                 clamp, over ? " in place" : ""))
        return;
    void *in = ck_buf(over ? CK_INOUT : CK_IN, dtype, 2 * rows * cols, "in");
    const dsc_swiglu_pairs_bwd_args args = { .d_in = over ? in : ck_buf(CK_OUT, dtype, 2 * rows * cols, "d_in"),
                                             .d_out = ck_buf(CK_IN, dtype, rows * cols, "d_out"),
                                             .in = in,
                                             .rows = rows,
                                             .cols = cols,
                                             .dtype = dtype,
                                             .clamp = clamps[clamp] };
    fill(args.in, 2 * rows * cols);
    ck_normal(args.d_out, 0, 1);
    ck_kernel(DSC_KERNEL_SWIGLU_PAIRS_BWD, &args, sizeof args, verify_bwd);
}

static void check_differences(void)
{
    if (!ck_case("swiglu_pairs_bwd against differences"))
        return;
    enum { COUNT = 121 };
    const float *in = ck_buf(CK_IN, DSC_F32, 2 * COUNT, "in"), *d_out = ck_buf(CK_IN, DSC_F32, COUNT, "d_out");
    ck_normal(d_out, 0, 1);
    for (int64_t i = 0; i < COUNT; i++) {
        ck_set(in, 2 * i, 0.17 * (double)(i - 60) + 0.04);
        ck_set(in, 2 * i + 1, 0.19 * (double)(60 - i * 37 % COUNT) + 0.05);
    }
    const dsc_swiglu_pairs_bwd_args args = { .d_in = ck_buf(CK_OUT, DSC_F32, 2 * COUNT, "d_in"),
                                             .d_out = d_out,
                                             .in = in,
                                             .rows = 1,
                                             .cols = COUNT,
                                             .dtype = DSC_F32,
                                             .clamp = clamps[0] };
    ck_kernel(DSC_KERNEL_SWIGLU_PAIRS_BWD, &args, sizeof args, verify_differences);
}

void ck_swiglu_pairs(void)
{
    static const int64_t cols[] = { 1, 7, 16, 17, 64, 345 };
    for (dsc_dtype dtype = DSC_F32; dtype <= DSC_F16; dtype++)
        for (size_t c = 0; c < DSC_COUNT(cols); c++) {
            const int clamp = c == 4;
            check_fwd(5, cols[c], dtype, clamp);
            check_bwd(5, cols[c], dtype, clamp, c % 2 == 0);
            check_bwd(3, cols[c], dtype, clamp, c % 2 != 0);
        }
    check_fwd(0, 8, DSC_F32, 0);
    check_bwd(0, 8, DSC_BF16, 0, true);
    check_differences();
}
