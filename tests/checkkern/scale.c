/* scale.c - an array times a number: one rounding, so one answer. SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck.h"

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

void ck_scale(void)
{
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
