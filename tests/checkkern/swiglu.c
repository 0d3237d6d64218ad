/* swiglu.c - gated activations forward and backward against double (activation.h).
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/activation.h"

#include <math.h>
#include <stdio.h>

static int64_t place(int64_t i, int64_t cols, int64_t stride) { return i / cols * stride + i % cols; }

/* The activation of the cases. */
static dsc_activation kind;

/* gate and up are two arrays, or the first and second half of the rows of one, which is a bit wider. Then `up` is
 * the same array, `cols` further on. */
static bool packed;

typedef struct half { const void *buf; int64_t first; } half;

static half up_half(const void *gate, const void *up, int64_t cols)
{
    return packed ? (half){ gate, cols } : (half){ up, 0 };
}

/* Value before the run, for an array that an output lies over. */
static double before(const void *buf, bool overwritten, int64_t i)
{
    return overwritten ? ck_start(buf, i) : ck_get(buf, i);
}

static void near_product(const void *buf, int64_t i, dsc_dtype dtype, double x, double tol, double factor)
{
    const double expected = x * factor;
    ck_near(buf, i, expected, tol * fabs(factor) + 2 * ck_spacing(DSC_F32, expected) + ck_rounding(dtype, expected));
}

static void verify_fwd(const void *args)
{
    const dsc_swiglu_fwd_args *a = args;
    const half up = up_half(a->gate, a->up, a->cols);
    for (int64_t i = 0; i < a->rows * a->cols; i++) {
        const int64_t at = place(i, a->cols, a->in_stride);
        const double x = ck_get(a->gate, at);
        near_product(a->out, i, a->dtype, ck_activation(kind, x), ck_activation_tolerance(kind, x),
                     ck_get(up.buf, up.first + at));
    }
}

static void verify_bwd(const void *args)
{
    const dsc_swiglu_bwd_args *a = args;
    const half up_at = up_half(a->gate, a->up, a->cols), d_up_at = up_half(a->d_gate, a->d_up, a->cols);
    const bool over = a->d_gate == a->gate;
    for (int64_t i = 0; i < a->rows * a->cols; i++) {
        const int64_t at = place(i, a->cols, a->in_stride);
        const double x = before(a->gate, over, at), up = before(up_at.buf, over, up_at.first + at);
        const double d = before(a->d_out, a->d_out == a->out, i);
        near_product(a->d_gate, at, a->dtype, ck_activation_slope(kind, x), ck_activation_slope_tolerance(kind, x),
                     d * up);
        near_product(d_up_at.buf, d_up_at.first + at, a->dtype, ck_activation(kind, x),
                     ck_activation_tolerance(kind, x), d);
        if (a->out != NULL)
            near_product(a->out, i, a->dtype, ck_activation(kind, x), ck_activation_tolerance(kind, x), up);
    }
}

/* By differences of the forward in double: an error of about h^2 and 1e-16 / h. */
static void verify_differences(const void *args)
{
    const dsc_swiglu_bwd_args *a = args;
    const double h = 1e-5;
    for (int64_t i = 0; i < a->cols; i++) {
        const double x = ck_get(a->gate, i), up = ck_get(a->up, i), d = ck_get(a->d_out, i);
        const double by_gate = (ck_activation(kind, x + h) - ck_activation(kind, x - h)) / (2 * h) * up * d;
        const double by_up = (ck_activation(kind, x) * (up + h) - ck_activation(kind, x) * (up - h)) / (2 * h) * d;
        ck_near(a->d_gate, i, by_gate,
                (ck_activation_slope_tolerance(kind, x) + 1e-9) * fabs(up * d) + 2 * ck_spacing(DSC_F32, by_gate));
        ck_near(a->d_up, i, by_up,
                (ck_activation_tolerance(kind, x) + 1e-9) * fabs(d) + 2 * ck_spacing(DSC_F32, by_up));
    }
}

typedef struct halves { void *gate, *up; int64_t stride; } halves;

static halves halves_of(ck_role role, dsc_dtype dtype, int64_t rows, int64_t cols, const char *name)
{
    if (!packed)
        return (halves){ ck_buf(role, dtype, rows * cols, name), ck_buf(role, dtype, rows * cols, name), cols };
    const int64_t stride = 2 * cols + (cols % 8 == 0 ? 8 : 3);
    char *both = ck_buf(role, dtype, rows * stride, name);
    ck_gaps(both, rows, 2 * cols, stride);
    return (halves){ both, both + cols * (int64_t)dsc_dtype_bytes(dtype), stride };
}

static void fill(const halves *x, int64_t rows, int64_t cols)
{
    /* The square of 1e30 is Inf in fp32 alone. */
    const double most = kind == DSC_RELU2 || kind == DSC_HALF_SQUARE ? 100 : 1e30;
    ck_normal(x->gate, 0, 4);
    if (!packed)
        ck_normal(x->up, 0, 1);
    for (int64_t i = 0; i < rows * cols; i++) /* far ends: the gate is 0 or 1 there */
        if (ck_random() % 16 == 0) {
            static const double far[] = { 0, -0.0, 87, 89, 104, 1e30, -87, -88.5, -89, -104, -1e30, 1e-40 };
            ck_set(x->gate, place(i, cols, x->stride), fmax(fmin(far[ck_random() % DSC_COUNT(far)], most), -most));
        }
}

static const char *kind_text(void)
{
    static char text[32];
    snprintf(text, sizeof text, "%s ", ck_activation_names[kind]);
    return kind == DSC_SILU ? "" : text;
}

static void check_fwd(int64_t rows, int64_t cols, dsc_dtype dtype)
{
    if (!ck_case("swiglu_fwd %s%s %lldx%lld%s", kind_text(), ck_dtype_text(dtype), (long long)rows, (long long)cols,
                 packed ? " packed" : ""))
        return;
    const halves in = halves_of(CK_IN, dtype, rows, cols, "gate, up");
    fill(&in, rows, cols);
    const dsc_swiglu_fwd_args args = { .out = ck_buf(CK_OUT, dtype, rows * cols, "out"),
                                       .gate = in.gate,
                                       .up = in.up,
                                       .rows = rows,
                                       .cols = cols,
                                       .in_stride = in.stride,
                                       .dtype = dtype,
                                       .kind = kind };
    ck_kernel(DSC_KERNEL_SWIGLU_FWD, &args, sizeof args, verify_fwd);
}

/* `over`: gradients over gate and up, the output over d_out. */
static void check_bwd(int64_t rows, int64_t cols, dsc_dtype dtype, bool over, bool again)
{
    if (!ck_case("swiglu_bwd %s%s %lldx%lld%s%s%s", kind_text(), ck_dtype_text(dtype), (long long)rows, (long long)cols,
                 packed ? " packed" : "", over ? " in place" : "", again ? " output again" : ""))
        return;
    const halves in = halves_of(over ? CK_INOUT : CK_IN, dtype, rows, cols, "gate, up");
    const halves d_in = over ? in : halves_of(CK_OUT, dtype, rows, cols, "d_gate, d_up");
    void *d_out = ck_buf(over && again ? CK_INOUT : CK_IN, dtype, rows * cols, "d_out");
    void *out = !again ? NULL : over ? d_out : ck_buf(CK_OUT, dtype, rows * cols, "out");
    fill(&in, rows, cols);
    ck_normal(d_out, 0, 1);
    const dsc_swiglu_bwd_args args = { .d_gate = d_in.gate,
                                       .d_up = d_in.up,
                                       .out = out,
                                       .d_out = d_out,
                                       .gate = in.gate,
                                       .up = in.up,
                                       .rows = rows,
                                       .cols = cols,
                                       .in_stride = in.stride,
                                       .dtype = dtype,
                                       .kind = kind };
    ck_kernel(DSC_KERNEL_SWIGLU_BWD, &args, sizeof args, verify_bwd);
}

static void check_differences(void)
{
    if (!ck_case("swiglu_bwd %sagainst differences", kind_text()))
        return;
    enum { COUNT = 101 };
    const float *gate = ck_buf(CK_IN, DSC_F32, COUNT, "gate"), *up = ck_buf(CK_IN, DSC_F32, COUNT, "up");
    const float *d_out = ck_buf(CK_IN, DSC_F32, COUNT, "d_out");
    ck_normal(up, 0, 1);
    ck_normal(d_out, 0, 1);
    for (int64_t i = 0; i < COUNT; i++)
        ck_set(gate, i, 0.2 * (double)(i - 50) + 0.03); /* beside the corners of ReLU and hard swish: -3, 0, 3 and 6 */
    const dsc_swiglu_bwd_args args = { .d_gate = ck_buf(CK_OUT, DSC_F32, COUNT, "d_gate"),
                                       .d_up = ck_buf(CK_OUT, DSC_F32, COUNT, "d_up"),
                                       .d_out = d_out,
                                       .gate = gate,
                                       .up = up,
                                       .rows = 1,
                                       .cols = COUNT,
                                       .in_stride = COUNT,
                                       .dtype = DSC_F32,
                                       .kind = kind };
    ck_kernel(DSC_KERNEL_SWIGLU_BWD, &args, sizeof args, verify_differences);
}

static void bench(dsc_dtype dtype)
{
    const int64_t rows = ck_bench_size(256, 8192), cols = 11008, count = rows * cols;
    const int64_t bytes = count * (int64_t)dsc_dtype_bytes(dtype);
    const char *name = ck_dtype_text(dtype);
    if (ck_case("bench swiglu_fwd %s%s %lldx11008", kind_text(), name, (long long)rows)) {
        const halves in = halves_of(CK_IN, dtype, rows, cols, "gate, up");
        ck_uniform(in.gate, -3, 3);
        ck_uniform(in.up, -3, 3);
        const dsc_swiglu_fwd_args args = { .out = ck_buf(CK_OUT, dtype, count, "out"),
                                           .gate = in.gate,
                                           .up = in.up,
                                           .rows = rows,
                                           .cols = cols,
                                           .in_stride = cols,
                                           .dtype = dtype,
                                           .kind = kind };
        ck_bench(DSC_KERNEL_SWIGLU_FWD, &args, sizeof args, 3 * bytes, 0, false);
    }
    if (ck_case("bench swiglu_bwd %s%s %lldx11008 output again", kind_text(), name, (long long)rows)) {
        const halves in = halves_of(CK_INOUT, dtype, rows, cols, "gate, up");
        void *d_out = ck_buf(CK_INOUT, dtype, count, "d_out");
        ck_uniform(in.gate, -3, 3);
        ck_uniform(in.up, -3, 3);
        ck_uniform(d_out, -1, 1);
        const dsc_swiglu_bwd_args args = { .d_gate = in.gate,
                                           .d_up = in.up,
                                           .out = d_out,
                                           .d_out = d_out,
                                           .gate = in.gate,
                                           .up = in.up,
                                           .rows = rows,
                                           .cols = cols,
                                           .in_stride = cols,
                                           .dtype = dtype,
                                           .kind = kind };
        ck_bench(DSC_KERNEL_SWIGLU_BWD, &args, sizeof args, 6 * bytes, 0, false);
    }
}

static void check_kind(const int64_t *cols, size_t count)
{
    for (size_t c = 0; c < count; c++)
        for (dsc_dtype dtype = DSC_F32; dtype <= DSC_F16; dtype++)
            for (int layout = 0; layout < 2; layout++) {
                const int64_t rows = cols[c] < 1000 ? 5 : 2;
                packed = layout == 1;
                check_fwd(rows, cols[c], dtype);
                check_bwd(rows, cols[c], dtype, c % 2 == 0, (c + (size_t)layout) % 3 != 0);
                check_bwd(rows, cols[c], dtype, c % 2 != 0, (c + (size_t)dtype) % 3 == 0);
            }
    packed = false;
    check_differences();
}

void ck_swiglu(void)
{
    static const int64_t cols[] = { 1, 7, 8, 15, 16, 17, 33, 64, 344, 4095, 4096, 4097, 8200 };
    static const int64_t some[] = { 17, 344 };
    for (dsc_activation other = 0; other < DSC_ACTIVATIONS; other++) {
        kind = other;
        if (kind != DSC_SILU)
            check_kind(some, DSC_COUNT(some));
    }
    kind = DSC_SILU;
    check_kind(cols, DSC_COUNT(cols));
    check_fwd(0, 33, DSC_F32);
    check_bwd(0, 33, DSC_BF16, false, true);
    if (ck_benching()) {
        bench(DSC_F32);
        bench(DSC_BF16);
        kind = DSC_GELU_TANH;
        bench(DSC_BF16);
    }
}
