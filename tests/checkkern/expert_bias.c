/* expert_bias.c - biases of experts' rows and their gradients, against double. SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck.h"

#include <math.h>

static void verify_fwd(const void *args)
{
    const dsc_expert_bias_fwd_args *a = args;
    for (int32_t e = 0; e < a->experts; e++)
        for (int64_t i = a->starts[e] * a->cols; i < a->starts[e + 1] * a->cols; i++) {
            const double expected = ck_start(a->x, i) + ck_get(a->bias, e * a->cols + i % a->cols);
            ck_near(a->x, i, expected, ck_rounding(a->dtype, expected) + ck_spacing(DSC_F32, expected));
        }
    ck_same(a->x);
}

static void verify_bwd(const void *args)
{
    const dsc_expert_bias_bwd_args *a = args;
    for (int32_t e = 0; e < a->experts; e++)
        for (int64_t c = 0; c < a->cols; c++) {
            double sum = 0, most = 0;
            for (int64_t row = a->starts[e]; row < a->starts[e + 1]; row++) {
                sum += ck_get(a->d_x, row * a->cols + c);
                most += fabs(ck_get(a->d_x, row * a->cols + c));
            }
            const double rows = a->starts[e + 1] - a->starts[e];
            ck_near(a->d_bias, e * a->cols + c, sum, 0.5 * rows * ck_spacing(DSC_F32, most));
        }
    ck_same(a->d_bias);
}

typedef struct bias_shape {
    int64_t rows, cols;
    int32_t experts;
} bias_shape;

/* Some experts have no row; the last has those that are left. */
static const int32_t *make_starts(const bias_shape *s)
{
    int32_t *starts = ck_buf(CK_IN, DSC_I32, s->experts + 1, "starts");
    starts[0] = 0;
    for (int32_t e = 0; e < s->experts; e++) {
        const int64_t left = s->rows - starts[e];
        const int64_t share = ck_random() % 3 == 0 ? 0 : ck_random() % (uint32_t)(2 * s->rows / s->experts + 2);
        starts[e + 1] = starts[e] + (int32_t)(e == s->experts - 1 || share > left ? left : share);
    }
    return starts;
}

static void check_fwd(const bias_shape *s, dsc_dtype dtype)
{
    if (!ck_case("expert_bias_fwd %s rows=%lld cols=%lld experts=%d", ck_dtype_text(dtype), (long long)s->rows,
                 (long long)s->cols, (int)s->experts))
        return;
    const dsc_expert_bias_fwd_args args = { .x = ck_buf(CK_INOUT, dtype, s->rows * s->cols, "x"),
                                            .bias = ck_buf(CK_IN, dtype, s->experts * s->cols, "bias"),
                                            .starts = make_starts(s),
                                            .rows = s->rows,
                                            .cols = s->cols,
                                            .experts = s->experts,
                                            .dtype = dtype };
    ck_normal(args.x, 0, 1);
    ck_normal(args.bias, 0, 1);
    ck_kernel(DSC_KERNEL_EXPERT_BIAS_FWD, &args, sizeof args, verify_fwd);
}

static void check_bwd(const bias_shape *s, dsc_dtype dtype)
{
    if (!ck_case("expert_bias_bwd %s rows=%lld cols=%lld experts=%d", ck_dtype_text(dtype), (long long)s->rows,
                 (long long)s->cols, (int)s->experts))
        return;
    const dsc_expert_bias_bwd_args args = { .d_bias = ck_buf(CK_OUT, DSC_F32, s->experts * s->cols, "d_bias"),
                                            .d_x = ck_buf(CK_IN, dtype, s->rows * s->cols, "d_x"),
                                            .starts = make_starts(s),
                                            .rows = s->rows,
                                            .cols = s->cols,
                                            .experts = s->experts,
                                            .dtype = dtype };
    ck_normal(args.d_x, 0, 1);
    ck_kernel(DSC_KERNEL_EXPERT_BIAS_BWD, &args, sizeof args, verify_bwd);
}

void ck_expert_bias(void)
{
    static const bias_shape shapes[] = { { 1, 1, 1 },   { 0, 8, 2 },     { 37, 32, 4 },  { 90, 70, 3 },
                                         { 40, 65, 9 }, { 64, 520, 16 }, { 20, 33, 128 } };
    for (dsc_dtype dtype = DSC_F32; dtype <= DSC_F16; dtype++)
        for (size_t s = 0; s < DSC_COUNT(shapes); s++) {
            check_fwd(&shapes[s], dtype);
            check_bwd(&shapes[s], dtype);
        }
}
