/* heads.c - heads put together against the definition, bit by bit, and their gradients with the sum over heads.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck.h"

#include <math.h>

static void verify_fwd(const void *args)
{
    const dsc_heads_args *a = args;
    for (int64_t r = 0; r < a->rows; r++)
        for (int64_t h = 0; h < a->heads; h++)
            for (int64_t c = 0; c < a->width; c++) {
                double expected = 0;
                if (c < a->own_width)
                    expected = ck_get(a->own, r * a->own_stride + h * a->own_apart + c);
                else if (c < a->own_width + a->shared_width)
                    expected = ck_get(a->shared, r * a->shared_stride + c - a->own_width);
                ck_near(a->whole, (r * a->heads + h) * a->width + c, expected, 0);
            }
    ck_same(a->whole);
}

static void verify_own(const dsc_heads_args *a, int64_t r)
{
    for (int64_t i = 0; i < a->own_stride; i++) {
        const int64_t h = i / a->own_apart, c = i % a->own_apart, at = r * a->own_stride + i;
        double expected = ck_start(a->own, at); /* columns of others stay */
        if (h < a->heads && c < a->own_width)
            expected = c < a->width ? ck_get(a->whole, (r * a->heads + h) * a->width + c) : 0;
        ck_near(a->own, at, expected, 0);
    }
}

static void verify_bwd(const void *args)
{
    const dsc_heads_args *a = args;
    for (int64_t r = 0; r < a->rows; r++) {
        verify_own(a, r);
        for (int64_t c = 0; c < a->shared_width; c++) {
            double sum = 0, most = 0;
            for (int64_t h = 0; h < a->heads; h++) {
                const double x = ck_get(a->whole, (r * a->heads + h) * a->width + a->own_width + c);
                sum += x;
                most += fabs(x);
            }
            ck_near(a->shared, r * a->shared_stride + c, sum,
                    ck_rounding(a->dtype, sum) + a->heads * ck_spacing(DSC_F32, most));
        }
    }
    ck_same(a->own);
    if (a->shared != NULL)
        ck_same(a->shared);
}

typedef struct heads_shape {
    int64_t rows;
    int32_t heads, own, shared, width, apart, rest; /* columns between heads, and behind a row */
} heads_shape;

static void check(const heads_shape *s, dsc_dtype dtype, bool back)
{
    const int64_t apart = s->own + s->apart, stride = s->heads * apart + s->rest, shared = s->shared + s->rest;
    if (!ck_case("heads_%s %s rows=%lld heads=%d own=%d shared=%d width=%d apart=%lld", back ? "bwd" : "fwd",
                 ck_dtype_text(dtype), (long long)s->rows, (int)s->heads, (int)s->own, (int)s->shared, (int)s->width,
                 (long long)apart))
        return;
    const dsc_heads_args args = {
        .whole = ck_buf(back ? CK_IN : CK_OUT, dtype, s->rows * s->heads * s->width, "whole"),
        .own = ck_buf(back ? CK_INOUT : CK_IN, dtype, s->rows * stride, "own"),
        .shared = s->shared > 0 ? ck_buf(back ? CK_INOUT : CK_IN, dtype, s->rows * shared, "shared") : NULL,
        .rows = s->rows,
        .own_stride = stride,
        .own_apart = apart,
        .shared_stride = shared,
        .heads = s->heads,
        .width = s->width,
        .own_width = s->own,
        .shared_width = s->shared,
        .dtype = dtype
    };
    ck_normal(args.whole, 0, 1);
    ck_normal(args.own, 0, 1);
    if (args.shared != NULL)
        ck_normal(args.shared, 0, 1);
    if (!back)
        ck_edges(args.own);
    ck_kernel(back ? DSC_KERNEL_HEADS_BWD : DSC_KERNEL_HEADS_FWD, &args, sizeof args, back ? verify_bwd : verify_fwd);
}

void ck_heads(void)
{
    static const heads_shape shapes[] = { { 1, 1, 1, 0, 1, 0, 0 },     { 3, 2, 5, 3, 8, 4, 0 },
                                          { 2, 16, 128, 64, 192, 128, 0 }, { 2, 3, 8, 0, 12, 2, 5 },
                                          { 4, 3, 12, 0, 8, 0, 0 },    { 2, 1, 512, 0, 512, 0, 64 },
                                          { 1, 4, 9, 70, 80, 1, 3 },   { 0, 2, 4, 2, 8, 0, 0 } };
    for (dsc_dtype dtype = DSC_F32; dtype <= DSC_F16; dtype++)
        for (size_t s = 0; s < DSC_COUNT(shapes); s++)
            for (int back = 0; back < 2; back++)
                check(&shapes[s], dtype, back != 0);
}
