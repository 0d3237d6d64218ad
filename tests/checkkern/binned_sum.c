/* binned_sum.c - sums of squares along rows and columns: the reference's bits on every variant, and the reference
 * within what binned_sum.h rounds off of the sums in long double. SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck_exact.h"

#include <math.h>
#include <string.h>

#define BEFORE 0.5 /* value of the sums before the run */

static void near_sum(const dsc_binned_sum *sum, long double expected, int64_t terms, double most, const char *what,
                     int64_t i)
{
    const double value = dsc_binned_value(sum), off = (double)terms * most * 0x1p-90 + 0x1p-52 * (double)expected;
    if (!(fabs((double)(value - expected)) <= off))
        ck_fail("%s %lld: %.17g, expected %.17g", what, (long long)i, value, (double)expected);
}

static double most_of(const dsc_matrix_squares_args *a)
{
    double most = BEFORE;
    for (int64_t i = 0; i < a->count; i++) {
        const double g = (double)(a->x[i] * a->scale);
        most += g * g;
    }
    return most;
}

static void verify(const void *args)
{
    const dsc_matrix_squares_args *a = args;
    const double most = 2 * most_of(a);
    ck_same(a->row);
    ck_same(a->col);
    for (int64_t r = 0; r * a->cols < a->at + a->count; r++) {
        long double sum = BEFORE;
        for (int64_t i = 0; i < a->count; i++)
            sum += (a->at + i) / a->cols == r ? powl(a->x[i] * a->scale, 2) : 0;
        near_sum(&a->row[r], sum, a->cols, most, "row", r);
    }
    for (int64_t c = 0; c < a->cols; c++) {
        long double sum = BEFORE;
        for (int64_t i = (c - a->at % a->cols + a->cols) % a->cols; i < a->count; i += a->cols)
            sum += powl(a->x[i] * a->scale, 2);
        near_sum(&a->col[c], sum, a->count / a->cols + 1, most, "column", c);
    }
}

static dsc_binned_sum *sums(int64_t count, double before, const char *name)
{
    dsc_binned_sum *sum = ck_buf(CK_INOUT, DSC_U8, count * (int64_t)sizeof *sum, name);
    memset(sum, 0, (size_t)count * sizeof *sum);
    for (int64_t i = 0; i < count; i++)
        sum[i].bin[0] = before; /* not cleared by the kernel; a multiple of the first grid's steps */
    return sum;
}

static void check_case(int64_t rows, int64_t cols, int64_t at, int64_t count, bool small)
{
    if (!ck_case("matrix_squares %lldx%lld at %lld n=%lld%s", (long long)rows, (long long)cols, (long long)at,
                 (long long)count, small ? " small" : ""))
        return;
    float *x = ck_buf(CK_IN, DSC_F32, count, "x");
    ck_normal(x, 0, 0.01);
    for (int64_t i = 0; i < count && small; i++)
        x[i] *= ldexpf(1, -(int)(ck_random() % 60));
    dsc_matrix_squares_args args = { .x = x,
                                     .count = count,
                                     .at = at,
                                     .cols = cols,
                                     .scale = 0.37f,
                                     .row = sums(rows, BEFORE, "row"),
                                     .col = sums(cols, BEFORE, "col") };
    args.grid = dsc_binned_grid_for(most_of(&args));
    ck_kernel(DSC_KERNEL_MATRIX_SQUARES, &args, sizeof args, verify);
}

/* The same bits in whatever parts: what one call adds, three calls add. */
static void check_parts(void)
{
    enum { ROWS = 37, COLS = 131, COUNT = ROWS * COLS };
    static const int64_t cut[] = { 0, 1000, 2749, COUNT };
    if (!ck_case("matrix_squares in parts"))
        return;
    float *x = ck_buf(CK_IN, DSC_F32, COUNT, "x");
    ck_normal(x, 0, 1);
    dsc_binned_sum *whole = sums(ROWS + COLS, 0, "whole"), *parts = sums(ROWS + COLS, 0, "parts");
    dsc_matrix_squares_args args = {
        .x = x, .count = COUNT, .cols = COLS, .scale = 1, .row = whole, .col = whole + ROWS
    };
    args.grid = dsc_binned_grid_for(most_of(&args));
    ck_run(DSC_KERNEL_MATRIX_SQUARES, 0, &args, sizeof args);
    args.row = parts;
    args.col = parts + ROWS;
    for (size_t p = 3; p-- > 0;) {
        args.at = cut[p];
        args.count = cut[p + 1] - cut[p];
        args.x = x + cut[p];
        ck_run(DSC_KERNEL_MATRIX_SQUARES, 0, &args, sizeof args);
    }
    if (memcmp(whole, parts, (ROWS + COLS) * sizeof *whole) != 0)
        ck_fail("the sums of three parts are others than those of the whole");
}

static void bench(void)
{
    const int64_t n = ck_bench_size(1 << 11, 1 << 13);
    if (!ck_case("bench matrix_squares %lld", (long long)n))
        return;
    float *x = ck_buf(CK_IN, DSC_F32, n * n, "x");
    for (int64_t i = 0; i < n * n; i++)
        x[i] = (float)(1 + i % 1000) * 1e-4f;
    const dsc_matrix_squares_args args = { .x = x,
                                           .count = n * n,
                                           .cols = n,
                                           .scale = 1,
                                           .grid = dsc_binned_grid_for(1e9),
                                           .row = sums(n, 0, "row"),
                                           .col = sums(n, 0, "col") };
    ck_bench(DSC_KERNEL_MATRIX_SQUARES, &args, sizeof args, n * n * 4, 0, CK_NO_REF);
}

void ck_binned_sum(void)
{
    static const int64_t shapes[][4] = { { 1, 1, 0, 1 },      { 1, 100, 0, 100 },    { 300, 1, 7, 250 },
                                         { 40, 64, 0, 2560 }, { 40, 64, 30, 2000 },  { 9, 1000, 999, 4003 },
                                         { 65, 33, 1, 2144 }, { 7, 17, 40, 3 },      { 20, 256, 512, 1024 },
                                         { 30, 130, 130, 0 }, { 33, 191, 190, 5000 } };
    for (size_t s = 0; s < DSC_COUNT(shapes); s++)
        for (int small = 0; small < 2; small++)
            check_case(shapes[s][0], shapes[s][1], shapes[s][2], shapes[s][3], small != 0);
    check_parts();
    if (ck_benching())
        bench();
}
