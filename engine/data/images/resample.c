/* resample.c - see resample.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/images/resample_sums.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WEIGHT_BITS = DSC_RESAMPLE_BITS, HEAD = DSC_RESAMPLE_HEAD, HALF = DSC_RESAMPLE_HALF };
typedef dsc_resample_weights weights;

void dsc_resampler_free(dsc_resampler *r)
{
    dsc_image_free(&r->middle);
    free(r->weights);
    *r = (dsc_resampler) { .weights = NULL };
}

static double triangle(double x)
{
    x = fabs(x);
    return x < 1 ? 1 - x : 0;
}

static double cubic(double x)
{
    const double a = -0.5;
    x = fabs(x);
    if (x < 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static double weight_at(dsc_resample_filter filter, double x)
{
    return filter == DSC_RESAMPLE_BICUBIC ? cubic(x) : triangle(x);
}

static dsc_status make_weights(dsc_resampler *r, int32_t in, int32_t out, dsc_resample_filter filter, weights *w,
                               dsc_error *err)
{
    const double scale = (double)in / out, stretch = scale < 1 ? 1 : scale;
    const double shrink = 1 / stretch;
    const double support = (filter == DSC_RESAMPLE_BICUBIC ? 2 : 1) * stretch;
    w->stride = HEAD + dsc_align_up((int64_t)ceil(support) * 2 + 1, 4);
    if (w->stride * out > r->weight_count) {
        free(r->weights);
        r->weight_count = 0;
        r->weights = malloc((size_t)(w->stride * out) * sizeof *r->weights);
        if (r->weights == NULL)
            return DSC_FAIL(err, DSC_ERR_NOMEM, "data", "no memory to resize a picture of %d pixels", (int)in);
        r->weight_count = w->stride * out;
    }
    for (int32_t i = 0; i < out; i++) {
        int32_t *head = r->weights + i * w->stride, *to = head + HEAD;
        const double center = (i + 0.5) * scale;
        const int32_t first = (int32_t)dsc_max_i64(0, (int64_t)(center - support + 0.5));
        const int32_t count = (int32_t)dsc_min_i64(in, (int64_t)(center + support + 0.5)) - first;
        double sum = 0;
        DSC_ASSERT(count >= 1 && count <= w->stride - HEAD);
        for (int32_t k = 0; k < count; k++)
            sum += weight_at(filter, (k + first - center + 0.5) * shrink);
        for (int32_t k = 0; k < count; k++) {
            const double part = weight_at(filter, (k + first - center + 0.5) * shrink) / (sum != 0 ? sum : 1);
            to[k] = (int32_t)(part * (1 << WEIGHT_BITS) + (part < 0 ? -0.5 : 0.5));
        }
        for (int64_t k = count; k < w->stride - HEAD; k++)
            to[k] = 0;
        head[0] = first, head[1] = count;
    }
    w->number = r->weights;
    return DSC_OK;
}

static uint8_t to_byte(int32_t sum)
{
    const int32_t value = sum >> WEIGHT_BITS; /* arithmetic shift */
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

static bool has_avx2(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2") != 0;
#else
    return false;
#endif
}

/* One row, along x. */
static void sum_along(const uint8_t *row, const weights *w, int32_t out_width, uint8_t *out)
{
    for (int32_t x = 0; x < out_width; x++) {
        const int32_t *head = w->number + x * w->stride, *weight = head + HEAD;
        const uint8_t *from = row + (int64_t)head[0] * DSC_IMAGE_CHANNELS;
        int32_t r = HALF, g = HALF, b = HALF;
        for (int32_t k = 0; k < head[1]; k++, from += DSC_IMAGE_CHANNELS) {
            r += from[0] * weight[k];
            g += from[1] * weight[k];
            b += from[2] * weight[k];
        }
        *out++ = to_byte(r), *out++ = to_byte(g), *out++ = to_byte(b);
    }
}

/* One row of the result from rows that follow each other by `pitch` bytes. */
static void sum_across(const uint8_t *first, int64_t pitch, const int32_t *head, int64_t bytes, uint8_t *out)
{
    enum { AT_ONCE = 256 };
    int32_t sum[AT_ONCE];
    for (int64_t at = 0; at < bytes; at += AT_ONCE) {
        const int32_t count = (int32_t)dsc_min_i64(AT_ONCE, bytes - at);
        for (int32_t i = 0; i < count; i++)
            sum[i] = HALF;
        for (int32_t k = 0; k < head[1]; k++) {
            const uint8_t *row = first + (head[0] + k) * pitch + at;
            const int32_t weight = head[HEAD + k];
            for (int32_t i = 0; i < count; i++)
                sum[i] += row[i] * weight;
        }
        for (int32_t i = 0; i < count; i++)
            out[at + i] = to_byte(sum[i]);
    }
}

/* All rows of a box, along x. */
static void run_along(const uint8_t *from, int64_t pitch, int32_t rows, const weights *w, int32_t out_width,
                      uint8_t *out)
{
    const int64_t row = (int64_t)out_width * DSC_IMAGE_CHANNELS;
    for (int32_t y = 0; y < rows; y += DSC_RESAMPLE_ROWS) {
        const int32_t count = (int32_t)dsc_min_i64(DSC_RESAMPLE_ROWS, rows - y);
#if defined(__x86_64__)
        if (has_avx2()) {
            dsc_resample_along_avx2(from + y * pitch, pitch, count, w, out_width, out + y * row, row);
            continue;
        }
#endif
        for (int32_t k = y; k < y + count; k++)
            sum_along(from + k * pitch, w, out_width, out + k * row);
    }
}

static void run_across(const uint8_t *middle, int64_t row, const weights *w, int32_t out_height, uint8_t *out)
{
    for (int32_t y = 0; y < out_height; y++) {
#if defined(__x86_64__)
        if (has_avx2()) {
            dsc_resample_across_avx2(middle, row, w->number + y * w->stride, row, out + y * row);
            continue;
        }
#endif
        sum_across(middle, row, w->number + y * w->stride, row, out + y * row);
    }
}

static void copy_box(const dsc_image *from, const dsc_box *box, uint8_t *out)
{
    const int64_t row = (int64_t)box->width * DSC_IMAGE_CHANNELS, pitch = (int64_t)from->width * DSC_IMAGE_CHANNELS;
    for (int32_t y = 0; y < box->height; y++)
        memcpy(out + y * row, from->pixels + (box->y + y) * pitch + (int64_t)box->x * DSC_IMAGE_CHANNELS, (size_t)row);
}

dsc_status dsc_resample(dsc_resampler *r, const dsc_image *from, const dsc_box *box, dsc_resample_filter filter,
                        int32_t out_width, int32_t out_height, dsc_image *out, dsc_error *err)
{
    const int64_t pitch = (int64_t)from->width * DSC_IMAGE_CHANNELS, row = (int64_t)out_width * DSC_IMAGE_CHANNELS;
    const bool along = out_width != box->width, across = out_height != box->height;
    weights w;
    DSC_ASSERT(box->x >= 0 && box->y >= 0 && box->width >= 1 && box->height >= 1);
    DSC_ASSERT(box->x + box->width <= from->width && box->y + box->height <= from->height);
    DSC_TRY(dsc_image_resize(out, "data", out_width, out_height, err));
    dsc_image *middle = across ? &r->middle : out;
    DSC_TRY(dsc_image_resize(middle, "data", out_width, box->height, err));
    if (along) {
        DSC_TRY(make_weights(r, box->width, out_width, filter, &w, err));
        run_along(from->pixels + box->y * pitch + (int64_t)box->x * DSC_IMAGE_CHANNELS, pitch, box->height, &w,
                  out_width, middle->pixels);
    } else {
        copy_box(from, box, middle->pixels);
    }
    if (!across)
        return DSC_OK;
    DSC_TRY(make_weights(r, box->height, out_height, filter, &w, err));
    run_across(middle->pixels, row, &w, out_height, out->pixels);
    return DSC_OK;
}
