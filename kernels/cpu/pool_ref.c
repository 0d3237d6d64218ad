/* pool_ref.c - pools channel by channel. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/pool_internal.h"

static inline float sum_of(const dsc_pool_args *a, int64_t sample, const dsc_pool_area *w, int64_t c, dsc_dtype dtype)
{
    float sum = 0;
    for (int64_t y = w->top; y < w->bottom; y++)
        for (int64_t x = w->left; x < w->right; x++) {
            const int64_t pixel = (sample * a->shape.height + y) * a->shape.width + x;
            sum += dsc_get(a->in, pixel * a->channels + c, dtype);
        }
    return sum / dsc_pool_count(&a->shape, w->bottom - w->top, w->right - w->left);
}

/* The window's first maximum, as torch has it: a later NaN replaces an earlier one. */
static inline float most_of(const dsc_pool_args *a, int64_t sample, const dsc_pool_area *w, int64_t c, int32_t *chosen,
                            dsc_dtype dtype)
{
    int64_t best = w->top * a->shape.width + w->left;
    const int64_t first = sample * a->shape.height * a->shape.width;
    float most = dsc_get(a->in, (first + best) * a->channels + c, dtype);
    for (int64_t y = w->top; y < w->bottom; y++)
        for (int64_t x = w->left; x < w->right; x++) {
            const int64_t pixel = y * a->shape.width + x;
            const float value = dsc_get(a->in, (first + pixel) * a->channels + c, dtype);
            if (value > most || value != value)
                most = value, best = pixel;
        }
    *chosen = (int32_t)best;
    return most;
}

static void forward_row(const dsc_pool_args *a, int64_t row, dsc_dtype dtype)
{
    const dsc_pool_shape *of = &a->shape;
    const int64_t sample = row / of->out_height;
    dsc_pool_area w;
    dsc_pool_window(of, row % of->out_height, of->height, of->out_height, &w.top, &w.bottom);
    for (int64_t o = 0; o < of->out_width; o++) {
        const int64_t at = (row * of->out_width + o) * a->channels;
        dsc_pool_window(of, o, of->width, of->out_width, &w.left, &w.right);
        for (int64_t c = 0; c < a->channels; c++)
            dsc_put(a->out, at + c, dtype,
                    of->kind == DSC_POOL_MAX ? most_of(a, sample, &w, c, &a->chosen[at + c], dtype)
                                             : sum_of(a, sample, &w, c, dtype));
    }
}

void dsc_pool_fwd_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_pool_args *a = args;
    for (int64_t row = first; row < last; row++)
        DSC_FOR_DTYPE(a->dtype, forward_row(a, row, dtype));
}

/* The part of window (y, x) that a pixel gets. */
static inline float share_of(const dsc_pool_args *a, int64_t sample, int64_t y, int64_t x, int64_t pixel, int64_t c,
                             dsc_dtype dtype)
{
    const dsc_pool_shape *of = &a->shape;
    const int64_t at = ((sample * of->out_height + y) * of->out_width + x) * a->channels + c;
    const float d = dsc_get(a->out, at, dtype);
    dsc_pool_area w;
    if (of->kind == DSC_POOL_MAX)
        return a->chosen[at] == pixel ? d : 0;
    dsc_pool_window(of, y, of->height, of->out_height, &w.top, &w.bottom);
    dsc_pool_window(of, x, of->width, of->out_width, &w.left, &w.right);
    return d / dsc_pool_count(of, w.bottom - w.top, w.right - w.left);
}

static void backward_row(const dsc_pool_args *a, int64_t row, dsc_dtype dtype)
{
    const dsc_pool_shape *of = &a->shape;
    const int64_t sample = row / of->height, i = row % of->height;
    dsc_pool_area w; /* of windows */
    dsc_pool_windows_of(of, i, of->height, of->out_height, &w.top, &w.bottom);
    for (int64_t j = 0; j < of->width; j++) {
        dsc_pool_windows_of(of, j, of->width, of->out_width, &w.left, &w.right);
        for (int64_t c = 0; c < a->channels; c++) {
            float sum = 0;
            for (int64_t y = w.top; y < w.bottom; y++)
                for (int64_t x = w.left; x < w.right; x++)
                    sum += share_of(a, sample, y, x, i * of->width + j, c, dtype);
            dsc_put(a->in, (row * of->width + j) * a->channels + c, dtype, sum);
        }
    }
}

void dsc_pool_bwd_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_pool_args *a = args;
    for (int64_t row = first; row < last; row++)
        DSC_FOR_DTYPE(a->dtype, backward_row(a, row, dtype));
}
