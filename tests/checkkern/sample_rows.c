/* sample_rows.c - rows of samples put elsewhere and summed, and pictures in patches: each element against its formula.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck.h"

#include <math.h>

/* ---- rows ---- */

static double put_of(const dsc_rows_args *a, int64_t s, int64_t r, int64_t c)
{
    if (a->in == NULL)
        return 0;
    return (double)a->factor * ck_get(a->in, (s * a->in_apart + (a->same ? 0 : r)) * a->channels + c);
}

static void verify_put(const void *args)
{
    const dsc_rows_args *a = args;
    for (int64_t i = 0; i < a->samples * a->rows * a->channels; i++) {
        const int64_t c = i % a->channels, r = i / a->channels % a->rows, s = i / a->channels / a->rows;
        const double expected = put_of(a, s, r, c);
        ck_near(a->out, (s * a->out_apart + r) * a->channels + c, expected,
                ck_spacing(DSC_F32, expected) + ck_rounding(a->dtype, expected));
    }
    ck_same(a->out);
}

static void verify_sum(const void *args)
{
    const dsc_rows_args *a = args;
    for (int64_t i = 0; i < a->samples * a->channels; i++) {
        const int64_t c = i % a->channels, s = i / a->channels;
        double sum = 0, size = 0;
        for (int64_t r = 0; r < a->rows; r++) {
            const double x = ck_get(a->in, (s * a->in_apart + r) * a->channels + c);
            sum += x;
            size += fabs(x);
        }
        const double expected = (double)a->factor * sum;
        ck_near(a->out, s * a->out_apart * a->channels + c, expected,
                size * (double)a->factor * (double)a->rows * 0x1p-24 + ck_spacing(DSC_F32, expected) +
                    ck_rounding(a->dtype, expected));
    }
    ck_same(a->out);
}

typedef struct rows_shape {
    int64_t samples, rows, channels, out_more, in_more; /* more: rows of a sample beyond those that are moved */
} rows_shape;

typedef enum rows_kind { COPY, SAME, ZEROS, SHARED, SUM, KINDS } rows_kind;

static void check_rows(const rows_shape *s, rows_kind kind, dsc_dtype dtype)
{
    static const char *const names[] = { "copy", "same", "zeros", "shared", "sum" };
    if (!ck_case("sample_rows %s %s B=%lld T=%lld C=%lld %lld %lld", names[kind], ck_dtype_text(dtype),
                 (long long)s->samples, (long long)s->rows, (long long)s->channels, (long long)s->out_more,
                 (long long)s->in_more))
        return;
    const int64_t written = kind == SUM ? 1 : s->rows, out_apart = written + s->out_more;
    const int64_t in_apart = kind == SHARED ? 0 : s->rows + s->in_more;
    void *out = ck_buf(CK_OUT, dtype, s->samples * out_apart * s->channels, "out");
    void *in = ck_buf(CK_IN, dtype, (kind == SHARED ? s->rows : s->samples * in_apart) * s->channels, "in");
    ck_gaps(out, s->samples, written * s->channels, out_apart * s->channels);
    ck_normal(in, 0, 1);
    const dsc_rows_args args = { .out = out,
                                 .in = kind == ZEROS ? NULL : in,
                                 .samples = s->samples,
                                 .rows = s->rows,
                                 .channels = s->channels,
                                 .out_apart = out_apart,
                                 .in_apart = in_apart,
                                 .same = kind == SAME,
                                 .factor = kind == COPY || kind == SHARED ? 1 : 0.37f,
                                 .dtype = dtype };
    ck_kernel(kind == SUM ? DSC_KERNEL_ROWS_SUM : DSC_KERNEL_ROWS_PUT, &args, sizeof args,
              kind == SUM ? verify_sum : verify_put);
}

/* ---- patches ---- */

static void verify_patches(const void *args)
{
    const dsc_patches_args *a = args;
    const int64_t p = a->patch, down = a->height / p, across = a->width / p;
    int64_t at = 0;
    for (int64_t s = 0; s < a->samples; s++)
        for (int64_t y = 0; y < down; y++)
            for (int64_t x = 0; x < across; x++)
                for (int64_t c = 0; c < a->planes; c++)
                    for (int64_t i = 0; i < p; i++)
                        for (int64_t j = 0; j < p; j++) {
                            const int64_t row = (s * a->planes + c) * a->height + y * p + i;
                            const double pixel = ck_get(a->pixels, row * a->width + x * p + j);
                            ck_near(a->out, at++, pixel, ck_rounding(a->dtype, pixel));
                        }
    ck_same(a->out);
}

static void check_patches(const int64_t *s, dsc_dtype dtype)
{
    if (!ck_case("patches %s B=%lld C=%lld H=%lld W=%lld P=%lld", ck_dtype_text(dtype), (long long)s[0],
                 (long long)s[1], (long long)s[2], (long long)s[3], (long long)s[4]))
        return;
    const int64_t elements = (s[2] / s[4]) * (s[3] / s[4]) * s[1] * s[4] * s[4];
    void *out = ck_buf(CK_OUT, dtype, s[0] * elements, "out");
    const float *pixels = ck_buf(CK_IN, DSC_F32, s[0] * s[1] * s[2] * s[3], "pixels");
    ck_normal(pixels, 0, 1);
    const dsc_patches_args args = { .out = out,
                                    .pixels = pixels,
                                    .samples = s[0],
                                    .planes = s[1],
                                    .height = s[2],
                                    .width = s[3],
                                    .patch = s[4],
                                    .dtype = dtype };
    ck_kernel(DSC_KERNEL_PATCHES, &args, sizeof args, verify_patches);
}

void ck_sample_rows(void)
{
    static const rows_shape rows[] = {
        { 1, 1, 1, 0, 0 }, { 3, 5, 7, 1, 2 }, { 2, 10, 64, 0, 3 }, { 4, 3, 300, 2, 0 }, { 0, 2, 8, 0, 0 }
    };
    static const int64_t pictures[][5] = {
        { 1, 1, 1, 1, 1 }, { 2, 3, 8, 12, 4 }, { 3, 2, 7, 11, 3 }, { 1, 3, 32, 16, 16 }, { 0, 3, 8, 8, 8 }
    };
    for (dsc_dtype dtype = DSC_F32; dtype <= DSC_F16; dtype++) {
        for (size_t s = 0; s < DSC_COUNT(rows); s++)
            for (rows_kind kind = COPY; kind < KINDS; kind++)
                check_rows(&rows[s], kind, dtype);
        for (size_t s = 0; s < DSC_COUNT(pictures); s++)
            check_patches(pictures[s], dtype);
    }
}
