/* mean_rows.c - means of samples' first rows, against sums in double. SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck.h"

#include <math.h>

static void verify_fwd(const void *args)
{
    const dsc_mean_rows_args *a = args;
    for (int64_t i = 0; i < a->batch * a->channels; i++) {
        const int64_t b = i / a->channels, count = a->last[b] + 1;
        double sum = 0, size = 0;
        for (int64_t t = 0; t < count; t++) {
            const double x = ck_get(a->all, (b * a->tokens + t) * a->channels + i % a->channels);
            sum += x;
            size += fabs(x);
        }
        const double mean = sum / (double)count; /* a rounding of each sum, of the division and of the result */
        ck_near(a->some, i, mean, size * 0x1p-24 + ck_spacing(DSC_F32, mean) + ck_rounding(a->dtype, mean));
    }
    ck_same(a->some);
}

static void verify_bwd(const void *args)
{
    const dsc_mean_rows_args *a = args;
    for (int64_t i = 0; i < a->batch * a->tokens * a->channels; i++) {
        const int64_t row = i / a->channels, b = row / a->tokens, count = a->last[b] + 1;
        const double share = ck_get(a->some, b * a->channels + i % a->channels) / (double)count;
        const double expected = row % a->tokens < count ? share : 0;
        ck_near(a->all, i, expected, ck_spacing(DSC_F32, expected) + ck_rounding(a->dtype, expected));
    }
    ck_same(a->all);
}

static void check(int64_t batch, int64_t tokens, int64_t channels, dsc_dtype dtype, bool back)
{
    if (!ck_case("mean_rows_%s %s B=%lld T=%lld C=%lld", back ? "bwd" : "fwd", ck_dtype_text(dtype), (long long)batch,
                 (long long)tokens, (long long)channels))
        return;
    void *all = ck_buf(back ? CK_OUT : CK_IN, dtype, batch * tokens * channels, "all");
    void *some = ck_buf(back ? CK_IN : CK_OUT, dtype, batch * channels, "some");
    int32_t *last = ck_buf(CK_IN, DSC_I32, batch, "last");
    ck_normal(back ? some : all, 0, 1);
    ck_int(last, 0, (int32_t)tokens - 1);
    const dsc_mean_rows_args args = {
        .all = all, .some = some, .last = last, .batch = batch, .tokens = tokens, .channels = channels, .dtype = dtype
    };
    ck_kernel(back ? DSC_KERNEL_MEAN_ROWS_BWD : DSC_KERNEL_MEAN_ROWS_FWD, &args, sizeof args,
              back ? verify_bwd : verify_fwd);
}

void ck_mean_rows(void)
{
    static const int64_t shapes[][3] = { { 1, 1, 1 }, { 3, 20, 7 }, { 2, 64, 300 }, { 5, 33, 64 }, { 0, 8, 16 } };
    for (dsc_dtype dtype = DSC_F32; dtype <= DSC_F16; dtype++)
        for (size_t s = 0; s < DSC_COUNT(shapes); s++)
            for (int back = 0; back < 2; back++)
                check(shapes[s][0], shapes[s][1], shapes[s][2], dtype, back != 0);
}
