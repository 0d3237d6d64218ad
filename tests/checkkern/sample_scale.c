/* sample_scale.c - samples times a row or a number. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "base/rng.h"
#include "kernels/scalar.h"
#include "tests/checkkern/ck.h"

static void verify_scale(const void *args)
{
    const dsc_sample_scale_args *a = args;
    for (int64_t i = 0; i < a->samples * a->rows * a->channels; i++) {
        const int64_t b = i / a->channels / a->rows, c = i % a->channels;
        const float y = (float)ck_get(a->in, i) * (float)ck_get(a->scale, b * a->channels + c);
        ck_near(a->out, i, (double)dsc_rounded(y, a->dtype), 0);
    }
    ck_same(a->out);
}

static void verify_products(const void *args)
{
    const dsc_sample_scale_args *a = args;
    for (int64_t i = 0; i < a->samples * a->channels; i++) {
        double sum = 0, size = 0;
        for (int64_t r = 0; r < a->rows; r++) {
            const int64_t at = (i / a->channels * a->rows + r) * a->channels + i % a->channels;
            sum += ck_get(a->out, at) * ck_get(a->in, at);
            size += fabs(ck_get(a->out, at) * ck_get(a->in, at));
        }
        ck_near(a->scale, i, sum, size * (double)(a->rows + 2) * 0x1p-24 + ck_rounding(a->dtype, sum));
    }
    ck_same_on_cpu(a->scale);
}

static void verify_dropout(const void *args)
{
    const dsc_sample_dropout_args *a = args;
    for (int64_t i = 0; i < a->samples * a->elements; i++) {
        const uint64_t sample = a->first + (uint64_t)(i / a->elements);
        const bool kept = dsc_rng_u32(a->seed, a->stream, sample) >= a->threshold;
        const float y = kept ? (float)ck_get(a->in, i) * a->factor : 0;
        ck_near(a->out, i, (double)dsc_rounded(y, a->dtype), 0);
    }
    ck_same(a->out);
}

static void check(int64_t samples, int64_t rows, int64_t channels, dsc_dtype dtype, bool back)
{
    if (!ck_case("sample_scale_%s %s %lldx%lldx%lld", back ? "bwd" : "fwd", ck_dtype_text(dtype), (long long)samples,
                 (long long)rows, (long long)channels))
        return;
    void *out = ck_buf(back ? CK_IN : CK_OUT, dtype, samples * rows * channels, "out");
    const void *in = ck_buf(CK_IN, dtype, samples * rows * channels, "in");
    void *scale = ck_buf(back ? CK_OUT : CK_IN, dtype, samples * channels, "scale");
    ck_normal(in, 0, 1);
    ck_normal(back ? out : scale, 0, 1);
    const dsc_sample_scale_args args = {
        .out = out, .in = in, .scale = scale, .samples = samples, .rows = rows, .channels = channels, .dtype = dtype
    };
    ck_kernel(back ? DSC_KERNEL_SAMPLE_SCALE_BWD : DSC_KERNEL_SAMPLE_SCALE_FWD, &args, sizeof args,
              back ? verify_products : verify_scale);
}

static void check_dropout(int64_t samples, int64_t elements, dsc_dtype dtype)
{
    if (!ck_case("sample_dropout %s %lldx%lld", ck_dtype_text(dtype), (long long)samples, (long long)elements))
        return;
    const void *in = ck_buf(CK_IN, dtype, samples * elements, "in");
    ck_normal(in, 0, 1);
    const dsc_sample_dropout_args args = { .out = ck_buf(CK_OUT, dtype, samples * elements, "out"),
                                           .in = in,
                                           .samples = samples,
                                           .elements = elements,
                                           .seed = UINT64_C(0x123456789ab),
                                           .stream = dsc_rng_stream(DSC_RNG_DROPOUT, 3),
                                           .first = 4095,
                                           .threshold = (uint32_t)(0.4 * 0x1p32),
                                           .factor = 1 / 0.6f,
                                           .dtype = dtype };
    ck_kernel(DSC_KERNEL_SAMPLE_DROPOUT, &args, sizeof args, verify_dropout);
}

void ck_sample_scale(void)
{
    static const int64_t shapes[][3] = { { 1, 1, 1 }, { 3, 20, 7 }, { 2, 49, 144 }, { 5, 33, 64 }, { 0, 8, 16 } };
    for (dsc_dtype dtype = DSC_F32; dtype <= DSC_F16; dtype++) {
        for (size_t s = 0; s < DSC_COUNT(shapes); s++)
            for (int back = 0; back < 2; back++)
                check(shapes[s][0], shapes[s][1], shapes[s][2], dtype, back != 0);
        check_dropout(9, 1, dtype);
        check_dropout(7, 129, dtype);
        check_dropout(12, 1000, dtype);
    }
}
