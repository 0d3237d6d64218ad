/* scale.c - an array times a number: one rounding, so one answer; and a soft cap, within a few roundings.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck.h"

#include <math.h>

static const int64_t lengths[] = { 0, 1, 7, 8, 9, 63, 65, 4095, 4096, 4097, 20011 };
static const float factors[] = { 2, 0.5f, 1.4142135f, -0.3f, 0 };

/* The product of two floats is exact in double. */
static void verify(const void *args)
{
    const dsc_scale_args *a = args;
    for (int64_t i = 0; i < a->count; i++) {
        const float product = (float)(ck_start(a->x, i) * (double)a->factor);
        const double expected = a->dtype == DSC_F32    ? (double)product
                                : a->dtype == DSC_BF16 ? (double)dsc_f32_from_bf16(dsc_bf16_from_f32(product))
                                                       : (double)dsc_f32_from_f16(dsc_f16_from_f32(product));
        ck_near(a->x, i, expected, 0);
    }
    ck_same(a->x);
}

/* tanh within 2 ulp, of an argument that two roundings are off. */
static void verify_cap(const void *args)
{
    const dsc_scale_args *a = args;
    for (int64_t i = 0; i < a->count; i++) {
        const double x = ck_start(a->x, i) * (double)a->factor, cap = (double)a->cap;
        const double t = a->capped != NULL ? ck_get(a->capped, i) / cap : tanh(x / cap);
        const double expected = a->capped != NULL ? x * (1 - t * t) : cap * t;
        const double off = a->capped != NULL ? 4 * fabs(x) : 12 * fabs(expected);
        ck_near(a->x, i, expected, 0x1p-24 * off + ck_rounding(a->dtype, expected));
    }
}

static void check_cap(int64_t count, dsc_dtype dtype, float factor, float cap, bool gradient)
{
    if (!ck_case("scale %s n=%lld factor=%g cap=%g%s", ck_dtype_text(dtype), (long long)count, (double)factor,
                 (double)cap, gradient ? " gradient" : ""))
        return;
    const void *const capped = gradient ? ck_buf(CK_IN, dtype, count, "capped") : NULL;
    if (gradient)
        ck_uniform(capped, -(double)cap, (double)cap);
    void *x = ck_buf(CK_INOUT, dtype, count, "x");
    ck_normal(x, 0, 20);
    const dsc_scale_args args = {
        .x = x, .count = count, .factor = factor, .dtype = dtype, .cap = cap, .capped = capped
    };
    ck_kernel(DSC_KERNEL_SCALE, &args, sizeof args, verify_cap);
}

void ck_scale(void)
{
    for (dsc_dtype dtype = DSC_F32; dtype <= DSC_F16; dtype++) {
        check_cap(4097, dtype, 1, 30, false);
        check_cap(65, dtype, 0.125f, 15, false);
        check_cap(4097, dtype, 0.125f, 15, true);
        check_cap(65, dtype, 1, 1, true);
    }
    for (size_t l = 0; l < DSC_COUNT(lengths); l++)
        for (dsc_dtype dtype = DSC_F32; dtype <= DSC_F16; dtype++) {
            const float factor = factors[(l + (size_t)dtype) % DSC_COUNT(factors)];
            if (!ck_case("scale %s n=%lld factor=%g", ck_dtype_text(dtype), (long long)lengths[l], (double)factor))
                continue;
            void *x = ck_buf(CK_INOUT, dtype, lengths[l], "x");
            ck_normal(x, 0, 3);
            const dsc_scale_args args = { .x = x, .count = lengths[l], .factor = factor, .dtype = dtype };
            ck_kernel(DSC_KERNEL_SCALE, &args, sizeof args, verify);
        }
}
