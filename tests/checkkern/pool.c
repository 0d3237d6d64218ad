/* pool.c - windows of feature maps, against each window's pixels in double. SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck.h"

#include <math.h>

/* Pixels of output o of a side, by the definition of torch's functions. */
static bool has(const dsc_pool_shape *of, int64_t o, int64_t i, int64_t size, int64_t outputs)
{
    if (of->kind == DSC_POOL_ADAPTIVE)
        return i >= (int64_t)floor((double)(o * size) / (double)outputs) &&
               i < (int64_t)ceil((double)((o + 1) * size) / (double)outputs);
    return i >= o * of->stride - of->padding && i < o * of->stride - of->padding + of->kernel;
}

/* The number that a window's sum is divided by. */
static double count_of(const dsc_pool_shape *of, int64_t y, int64_t x)
{
    int64_t rows = 0, columns = 0;
    for (int64_t i = 0; i < of->height; i++)
        rows += has(of, y, i, of->height, of->out_height);
    for (int64_t j = 0; j < of->width; j++)
        columns += has(of, x, j, of->width, of->out_width);
    return of->kind == DSC_POOL_ADAPTIVE ? (double)(rows * columns) : (double)(of->kernel * of->kernel);
}

static void verify_fwd(const void *args)
{
    const dsc_pool_args *a = args;
    const dsc_pool_shape *of = &a->shape;
    const int64_t outputs = of->out_height * of->out_width, pixels = of->height * of->width;
    for (int64_t i = 0; i < a->samples * outputs * a->channels; i++) {
        const int64_t c = i % a->channels, o = i / a->channels % outputs, b = i / a->channels / outputs;
        const int64_t y = o / of->out_width, x = o % of->out_width;
        double sum = 0, size = 0, most = -INFINITY;
        int64_t best = -1;
        for (int64_t p = 0; p < pixels; p++) {
            if (!has(of, y, p / of->width, of->height, of->out_height) ||
                !has(of, x, p % of->width, of->width, of->out_width))
                continue;
            const double value = ck_get(a->in, (b * pixels + p) * a->channels + c);
            best = value > most ? p : best;
            most = fmax(most, value);
            sum += value;
            size += fabs(value);
        }
        const double mean = sum / count_of(of, y, x);
        if (of->kind == DSC_POOL_MAX) {
            ck_near(a->out, i, most, 0);
            ck_near(a->chosen, i, (double)best, 0);
        } else {
            ck_near(a->out, i, mean, size * 0x1p-22 + ck_rounding(a->dtype, mean));
        }
    }
    ck_same(a->out);
}

static void verify_bwd(const void *args)
{
    const dsc_pool_args *a = args;
    const dsc_pool_shape *of = &a->shape;
    const int64_t outputs = of->out_height * of->out_width, pixels = of->height * of->width;
    for (int64_t i = 0; i < a->samples * pixels * a->channels; i++) {
        const int64_t c = i % a->channels, p = i / a->channels % pixels, b = i / a->channels / pixels;
        double sum = 0, size = 0;
        for (int64_t o = 0; o < outputs; o++) {
            const int64_t at = (b * outputs + o) * a->channels + c, y = o / of->out_width, x = o % of->out_width;
            const bool in = has(of, y, p / of->width, of->height, of->out_height) &&
                            has(of, x, p % of->width, of->width, of->out_width);
            const bool takes = of->kind == DSC_POOL_MAX ? (int64_t)ck_get(a->chosen, at) == p : in;
            const double d = takes ? ck_get(a->out, at) / (of->kind == DSC_POOL_MAX ? 1 : count_of(of, y, x)) : 0;
            sum += d;
            size += fabs(d);
        }
        ck_near(a->in, i, sum, size * 0x1p-22 + ck_rounding(a->dtype, sum));
    }
    ck_same(a->in);
}

/* Pixels that the windows have, as forward would choose them: any of the window's. */
static void choose(const dsc_pool_args *a)
{
    const dsc_pool_shape *of = &a->shape;
    const int64_t outputs = of->out_height * of->out_width;
    for (int64_t i = 0; i < a->samples * outputs * a->channels; i++) {
        const int64_t o = i / a->channels % outputs;
        int64_t y, y_end, x, x_end;
        dsc_pool_window(of, o / of->out_width, of->height, of->out_height, &y, &y_end);
        dsc_pool_window(of, o % of->out_width, of->width, of->out_width, &x, &x_end);
        y += (int64_t)(ck_random() % (uint32_t)(y_end - y));
        x += (int64_t)(ck_random() % (uint32_t)(x_end - x));
        ck_set(a->chosen, i, (double)(y * of->width + x));
    }
}

static void check(const dsc_pool_shape *of, int64_t channels, dsc_dtype dtype, bool back)
{
    static const char *const names[] = { "max", "mean", "adaptive" };
    const int64_t samples = 2, in = samples * of->height * of->width * channels;
    const int64_t out = samples * of->out_height * of->out_width * channels;
    if (!ck_case("pool_%s %s %s %lldx%lld to %lldx%lld k=%lld s=%lld p=%lld C=%lld", back ? "bwd" : "fwd",
                 names[of->kind], ck_dtype_text(dtype), (long long)of->height, (long long)of->width,
                 (long long)of->out_height, (long long)of->out_width, (long long)of->kernel, (long long)of->stride,
                 (long long)of->padding, (long long)channels))
        return;
    const dsc_pool_args args = { .out = ck_buf(back ? CK_IN : CK_OUT, dtype, out, "out"),
                                 .in = ck_buf(back ? CK_OUT : CK_IN, dtype, in, "in"),
                                 .chosen = of->kind == DSC_POOL_MAX
                                               ? ck_buf(back ? CK_IN : CK_OUT, DSC_I32, out, "chosen")
                                               : NULL,
                                 .shape = *of,
                                 .samples = samples,
                                 .channels = channels,
                                 .dtype = dtype };
    ck_normal(back ? args.out : args.in, 0, 1);
    for (int64_t i = 0; i < in && !back && of->kind == DSC_POOL_MAX; i += 2) /* equal maxima */
        ck_set(args.in, i, 1.5);
    if (back && of->kind == DSC_POOL_MAX)
        choose(&args);
    ck_kernel(back ? DSC_KERNEL_POOL_BWD : DSC_KERNEL_POOL_FWD, &args, sizeof args, back ? verify_bwd : verify_fwd);
}

void ck_pool(void)
{
    static const dsc_pool_shape shapes[] = {
        { DSC_POOL_MAX, 9, 8, 5, 4, 3, 2, 1 },      { DSC_POOL_MAX, 8, 6, 4, 3, 2, 2, 0 },
        { DSC_POOL_MAX, 4, 5, 4, 5, 3, 1, 1 },      { DSC_POOL_MAX, 7, 7, 2, 2, 3, 3, 0 },
        { DSC_POOL_MEAN, 9, 8, 5, 4, 3, 2, 1 },     { DSC_POOL_MEAN, 6, 5, 2, 1, 3, 3, 0 },
        { DSC_POOL_MEAN, 1, 1, 1, 1, 1, 1, 0 },     { DSC_POOL_ADAPTIVE, 14, 9, 7, 7, 0, 0, 0 },
        { DSC_POOL_ADAPTIVE, 3, 5, 7, 7, 0, 0, 0 }, { DSC_POOL_ADAPTIVE, 5, 7, 1, 1, 0, 0, 0 },
    };
    for (dsc_dtype dtype = DSC_F32; dtype <= DSC_F16; dtype++)
        for (size_t s = 0; s < DSC_COUNT(shapes); s++)
            for (int back = 0; back < 2; back++)
                check(&shapes[s], s % 2 == 0 ? 5 : 16, dtype, back != 0);
}
