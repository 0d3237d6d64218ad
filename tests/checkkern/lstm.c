/* lstm.c - steps of an LSTM against double. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "tests/checkkern/ck.h"

/* Sums of up to three terms, tanh and sigmoid of 3 ulp, and slopes of at most 1. */
#define NEAR 1e-6

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static void near_rounded(const void *buf, int64_t i, dsc_dtype dtype, double expected, double size)
{
    ck_near(buf, i, expected, NEAR * (1 + size) + ck_rounding(dtype, expected));
}

/* Gate k of column j of a sample, before its activation; *size: the sum of the terms' sizes. */
static double gate_of(const dsc_lstm_fwd_args *a, int64_t sample, int64_t k, int64_t j, double *size)
{
    const int64_t at = k * a->shape.hidden + j, columns = 4 * a->shape.hidden;
    const double x = ck_get(a->x, dsc_lstm_row(&a->shape, sample) * columns + at);
    const double product = dsc_lstm_is_first(&a->shape) ? 0 : ck_get(a->product, sample * columns + at);
    const double bias = a->bias != NULL ? ck_get(a->bias, at) : 0;
    *size = fabs(x) + fabs(product) + fabs(bias);
    return x + product + bias;
}

static void verify_fwd(const void *args)
{
    const dsc_lstm_fwd_args *a = args;
    const int64_t h = a->shape.hidden;
    for (int64_t b = 0; b < a->shape.samples; b++)
        for (int64_t j = 0; j < h; j++) {
            const int64_t row = dsc_lstm_row(&a->shape, b);
            double gate[4], size[4];
            for (int64_t k = 0; k < 4; k++) {
                const double x = gate_of(a, b, k, j, &size[k]);
                gate[k] = k == 2 ? tanh(x) : sigmoid(x);
                near_rounded(a->gates, (4 * row + k) * h + j, a->dtype, gate[k], size[k]);
            }
            const double before = dsc_lstm_is_first(&a->shape) ? 0 : ck_start(a->cells, (row - 1) * h + j),
                         cell = gate[0] * gate[2] + gate[1] * before;
            const double most = (1 + fabs(before)) * (1 + size[0] + size[1] + size[2] + size[3]);
            near_rounded(a->cells, row * h + j, DSC_F32, cell, most);
            near_rounded(a->y, row * h + j, a->dtype, gate[3] * tanh(cell), most);
        }
}

static void verify_bwd(const void *args)
{
    const dsc_lstm_bwd_args *a = args;
    const int64_t h = a->shape.hidden;
    for (int64_t b = 0; b < a->shape.samples; b++)
        for (int64_t j = 0; j < h; j++) {
            const int64_t row = dsc_lstm_row(&a->shape, b), at = row * h + j;
            const bool follows = !dsc_lstm_is_first(&a->shape), leads = !dsc_lstm_is_last(&a->shape);
            double g[4], d[4];
            for (int64_t k = 0; k < 4; k++)
                g[k] = ck_get(a->gates, (4 * row + k) * h + j);
            const double t = tanh(ck_get(a->cells, at)), before = follows ? ck_get(a->cells, at - h) : 0;
            const double dy = ck_get(a->d_y, at) + (leads ? ck_get(a->product, b * h + j) : 0);
            const double dc = dy * g[3] * (1 - t * t) + (leads ? ck_start(a->d_cell, b * h + j) : 0);
            const double size = (fabs(dy) + fabs(dc)) * (1 + fabs(before));
            d[0] = dc * g[2] * g[0] * (1 - g[0]);
            d[1] = dc * before * g[1] * (1 - g[1]);
            d[2] = dc * g[0] * (1 - g[2] * g[2]);
            d[3] = dy * t * g[3] * (1 - g[3]);
            for (int64_t k = 0; k < 4; k++)
                near_rounded(a->d_gates, (4 * row + k) * h + j, a->dtype, d[k], size);
            near_rounded(a->d_cell, b * h + j, DSC_F32, dc * g[1], size);
            ck_near(a->before, at, follows ? ck_get(a->y, at - h) : 0, 0);
        }
}

/* A buffer whose rows of other steps stay as they are. */
static void *rows_of(const dsc_lstm_shape *of, dsc_dtype dtype, int64_t columns, const char *name)
{
    void *buf = ck_buf(CK_INOUT, dtype, of->samples * of->steps * columns, name);
    ck_normal(buf, 0, 1);
    return buf;
}

static void check_fwd(dsc_lstm_shape of, dsc_dtype dtype, bool has_bias)
{
    const int64_t h = of.hidden, rows = of.samples * of.steps;
    if (!ck_case("lstm_fwd %s %lldx%lldx%lld step %lld%s", ck_dtype_text(dtype), (long long)of.samples,
                 (long long)of.steps, (long long)h, (long long)of.step, has_bias ? " bias" : ""))
        return;
    const void *x = ck_buf(CK_IN, dtype, rows * 4 * h, "x"), *bias = ck_buf(CK_IN, dtype, 4 * h, "bias");
    const float *product = ck_buf(CK_IN, DSC_F32, of.samples * 4 * h, "product");
    ck_normal(x, 0, 2);
    ck_normal(bias, 0, 0.5);
    ck_normal(product, 0, 1);
    const dsc_lstm_fwd_args args = { .y = rows_of(&of, dtype, h, "y"),
                                     .gates = rows_of(&of, dtype, 4 * h, "gates"),
                                     .cells = rows_of(&of, DSC_F32, h, "cells"),
                                     .x = x,
                                     .product = of.step == 0 ? NULL : product,
                                     .bias = has_bias ? bias : NULL,
                                     .shape = of,
                                     .dtype = dtype };
    ck_kernel(DSC_KERNEL_LSTM_FWD, &args, sizeof args, verify_fwd);
}

static void check_bwd(dsc_lstm_shape of, dsc_dtype dtype)
{
    const int64_t h = of.hidden, rows = of.samples * of.steps;
    if (!ck_case("lstm_bwd %s %lldx%lldx%lld step %lld", ck_dtype_text(dtype), (long long)of.samples,
                 (long long)of.steps, (long long)h, (long long)of.step))
        return;
    const void *gates = ck_buf(CK_IN, dtype, rows * 4 * h, "gates"), *y = ck_buf(CK_IN, dtype, rows * h, "y");
    const float *cells = ck_buf(CK_IN, DSC_F32, rows * h, "cells");
    const float *product = ck_buf(CK_IN, DSC_F32, of.samples * h, "product");
    const void *d_y = ck_buf(CK_IN, dtype, rows * h, "d_y");
    ck_uniform(gates, 0, 1);
    ck_normal(y, 0, 0.5);
    ck_normal(cells, 0, 1);
    ck_normal(product, 0, 1);
    ck_normal(d_y, 0, 1);
    const dsc_lstm_bwd_args args = { .d_gates = rows_of(&of, dtype, 4 * h, "d_gates"),
                                     .before = rows_of(&of, dtype, h, "before"),
                                     .d_cell = ck_buf(CK_INOUT, DSC_F32, of.samples * h, "d_cell"),
                                     .d_y = d_y,
                                     .product = product,
                                     .y = y,
                                     .gates = gates,
                                     .cells = cells,
                                     .shape = of,
                                     .dtype = dtype };
    ck_normal(args.d_cell, 0, 1);
    ck_kernel(DSC_KERNEL_LSTM_BWD, &args, sizeof args, verify_bwd);
}

static void bench(dsc_dtype dtype)
{
    const dsc_lstm_shape of = { ck_bench_size(32, 512), 4, 512, 1 };
    const int64_t rows = of.samples * of.steps, h = of.hidden;
    if (!ck_case("bench lstm_fwd %s %lldx512", ck_dtype_text(dtype), (long long)of.samples))
        return;
    const void *x = ck_buf(CK_IN, dtype, rows * 4 * h, "x");
    const float *product = ck_buf(CK_IN, DSC_F32, of.samples * 4 * h, "product");
    ck_normal(x, 0, 2);
    ck_normal(product, 0, 1);
    const dsc_lstm_fwd_args args = { .y = rows_of(&of, dtype, h, "y"),
                                     .gates = rows_of(&of, dtype, 4 * h, "gates"),
                                     .cells = rows_of(&of, DSC_F32, h, "cells"),
                                     .x = x,
                                     .product = product,
                                     .shape = of,
                                     .dtype = dtype };
    ck_bench(DSC_KERNEL_LSTM_FWD, &args, sizeof args, of.samples * h * (9 * (int64_t)dsc_dtype_bytes(dtype) + 6 * 4), 0,
             0);
}

void ck_lstm(void)
{
    static const dsc_lstm_shape shapes[] = { { 1, 1, 1, 0 },   { 3, 4, 7, 0 },   { 3, 4, 7, 2 }, { 3, 4, 7, 3 },
                                             { 2, 5, 128, 2 }, { 5, 2, 600, 1 }, { 0, 3, 16, 1 } };
    for (dsc_dtype dtype = DSC_F32; dtype <= DSC_F16; dtype++)
        for (size_t s = 0; s < DSC_COUNT(shapes); s++) {
            check_fwd(shapes[s], dtype, false);
            check_fwd(shapes[s], dtype, true);
            check_bwd(shapes[s], dtype);
        }
    if (ck_benching())
        for (dsc_dtype dtype = DSC_F32; dtype <= DSC_BF16; dtype++)
            bench(dtype);
}
