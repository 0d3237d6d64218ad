/* pool_v16.h - pools with 16 channels on lanes, with the bits of the reference; compiled by pool_avx2.c and
 * pool_avx512.c after their v16 words and chosen_take, chosen_load and chosen_store.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/pool_internal.h"

/* ---- forward ---- */

V16_INLINE v16 sum_of(const dsc_pool_args *a, int64_t sample, const dsc_pool_area *w, int64_t c, int64_t left,
                      dsc_dtype dtype)
{
    v16 sum = v16_set(0);
    for (int64_t y = w->top; y < w->bottom; y++)
        for (int64_t x = w->left; x < w->right; x++) {
            const int64_t pixel = (sample * a->shape.height + y) * a->shape.width + x;
            sum = v16_add(sum, v16_load(a->in, pixel * a->channels + c, left, dtype));
        }
    return v16_div(sum, v16_set(dsc_pool_count(&a->shape, w->bottom - w->top, w->right - w->left)));
}

/* The window's first maximum; a later NaN replaces an earlier one. */
V16_INLINE v16 most_of(const dsc_pool_args *a, int64_t sample, const dsc_pool_area *w, int64_t c, int64_t left,
                       int32_t *chosen, dsc_dtype dtype)
{
    const int64_t first = sample * a->shape.height * a->shape.width, start = w->top * a->shape.width + w->left;
    v16 most = v16_load(a->in, (first + start) * a->channels + c, left, dtype);
    chosen_lanes best = chosen_set((int32_t)start);
    for (int64_t y = w->top; y < w->bottom; y++)
        for (int64_t x = w->left; x < w->right; x++) {
            const int64_t pixel = y * a->shape.width + x;
            const v16 value = v16_load(a->in, (first + pixel) * a->channels + c, left, dtype);
            chosen_take(&most, &best, value, (int32_t)pixel);
        }
    chosen_store(chosen, left, best);
    return most;
}

V16_INLINE void forward_line(const dsc_pool_args *a, int64_t line, dsc_dtype dtype)
{
    const dsc_pool_shape *of = &a->shape;
    const int64_t sample = line / of->out_height;
    dsc_pool_area w;
    dsc_pool_window(of, line % of->out_height, of->height, of->out_height, &w.top, &w.bottom);
    for (int64_t o = 0; o < of->out_width; o++) {
        const int64_t at = (line * of->out_width + o) * a->channels;
        dsc_pool_window(of, o, of->width, of->out_width, &w.left, &w.right);
        for (int64_t c = 0; c < a->channels; c += 16) {
            const int64_t left = dsc_min_i64(16, a->channels - c);
            const v16 y = of->kind == DSC_POOL_MAX ? most_of(a, sample, &w, c, left, a->chosen + at + c, dtype)
                                                   : sum_of(a, sample, &w, c, left, dtype);
            v16_store(a->out, at + c, left, dtype, y);
        }
    }
}

void V16_NAME(pool_fwd)(const void *args, int64_t first, int64_t last)
{
    const dsc_pool_args *a = args;
    for (int64_t line = first; line < last; line++)
        DSC_FOR_DTYPE(a->dtype, forward_line(a, line, dtype));
}

/* ---- backward ---- */

/* The part of window (y, x) that a pixel's channels get. */
V16_INLINE v16 share_of(const dsc_pool_args *a, int64_t sample, int64_t y, int64_t x, int64_t pixel, int64_t c,
                        int64_t left, dsc_dtype dtype)
{
    const dsc_pool_shape *of = &a->shape;
    const int64_t at = ((sample * of->out_height + y) * of->out_width + x) * a->channels + c;
    const v16 d = v16_load(a->out, at, left, dtype);
    dsc_pool_area w;
    if (of->kind == DSC_POOL_MAX)
        return chosen_where(a->chosen + at, left, (int32_t)pixel, d);
    dsc_pool_window(of, y, of->height, of->out_height, &w.top, &w.bottom);
    dsc_pool_window(of, x, of->width, of->out_width, &w.left, &w.right);
    return v16_div(d, v16_set(dsc_pool_count(of, w.bottom - w.top, w.right - w.left)));
}

V16_INLINE void backward_line(const dsc_pool_args *a, int64_t line, dsc_dtype dtype)
{
    const dsc_pool_shape *of = &a->shape;
    const int64_t sample = line / of->height, i = line % of->height;
    dsc_pool_area w; /* of windows */
    dsc_pool_windows_of(of, i, of->height, of->out_height, &w.top, &w.bottom);
    for (int64_t j = 0; j < of->width; j++) {
        dsc_pool_windows_of(of, j, of->width, of->out_width, &w.left, &w.right);
        for (int64_t c = 0; c < a->channels; c += 16) {
            const int64_t left = dsc_min_i64(16, a->channels - c);
            v16 sum = v16_set(0);
            for (int64_t y = w.top; y < w.bottom; y++)
                for (int64_t x = w.left; x < w.right; x++)
                    sum = v16_add(sum, share_of(a, sample, y, x, i * of->width + j, c, left, dtype));
            v16_store(a->in, (line * of->width + j) * a->channels + c, left, dtype, sum);
        }
    }
}

void V16_NAME(pool_bwd)(const void *args, int64_t first, int64_t last)
{
    const dsc_pool_args *a = args;
    for (int64_t line = first; line < last; line++)
        DSC_FOR_DTYPE(a->dtype, backward_line(a, line, dtype));
}
