/* conv2d_range.h - depthwise convolutions: channels of a row side by side, on 16 lanes where there are some.
 * conv2d_ref.c, conv2d_avx2.c and conv2d_avx512.c compile it with CONV2D_ISA. Sums of all variants have one order.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "kernels/cpu/conv2d_internal.h"
#include "kernels/cpu/range.h"

#define CONV2D_NAME_(name, isa) dsc_depthwise_##name##_##isa
#define CONV2D_NAME(name, isa) CONV2D_NAME_(name, isa)

#define CONV2D_INLINE static inline __attribute__((always_inline))

enum { CONV2D_BLOCK = 128 }; /* channels of which a pixel's sums are made together */

/* sum[i] += x[at + i] * w[from + i]: one input for each output. */
#ifdef V16_INLINE
V16_INLINE void add_16(float *sum, int64_t i, const void *x, int64_t at, const void *w, int64_t from, int64_t left,
                       dsc_dtype dtype)
{
    const v16 product = v16_mul(v16_load(x, at + i, left, dtype), v16_load(w, from + i, left, dtype));
    v16_store(sum, i, 16, DSC_F32, v16_add(v16_load(sum, i, 16, DSC_F32), product));
}
#endif

CONV2D_INLINE void add_products(float *sum, const void *x, int64_t at, const void *w, int64_t from, int64_t count,
                                dsc_dtype dtype)
{
#ifdef V16_INLINE
    int64_t i = 0;
    for (; i + 16 <= count; i += 16)
        add_16(sum, i, x, at, w, from, 16, dtype);
    if (i < count)
        add_16(sum, i, x, at, w, from, count - i, dtype);
#else
    for (int64_t i = 0; i < count; i++)
        sum[i] += dsc_get(x, at + i, dtype) * dsc_get(w, from + i, dtype);
#endif
}

CONV2D_INLINE void put_sums(void *out, const void *add, int64_t at, int64_t add_at, const float *sum, int64_t count,
                            dsc_dtype dtype)
{
#ifdef V16_INLINE
    for (int64_t i = 0; i < count; i += 16) {
        const int64_t left = dsc_min_i64(16, count - i);
        const v16 x = v16_load(sum, i, 16, DSC_F32);
        v16_store(out, at + i, left, dtype, add != NULL ? v16_add(x, v16_load(add, add_at + i, left, dtype)) : x);
    }
#else
    for (int64_t i = 0; i < count; i++)
        dsc_put(out, at + i, dtype, add != NULL ? sum[i] + dsc_get(add, add_at + i, dtype) : sum[i]);
#endif
}

/* ---- forward ---- */

CONV2D_INLINE void fwd_pixel(const dsc_depthwise_args *a, int64_t b, int64_t i, int64_t j, int64_t first, int64_t count,
                             dsc_dtype dtype)
{
    const dsc_conv2d_shape *s = &a->shape;
    const int64_t each = s->out / s->in;
    float sum[CONV2D_BLOCK] = { 0 };
    for (int64_t u = 0; u < s->kernel[0]; u++) {
        const int64_t y = dsc_conv2d_input(s, 0, i, u);
        for (int64_t v = 0; v < s->kernel[1] && y >= 0; v++) {
            const int64_t x = dsc_conv2d_input(s, 1, j, v), tap = u * s->kernel[1] + v;
            const int64_t row = ((b * s->height + y) * s->width + x) * s->in;
            if (x < 0)
                continue;
            if (each == 1)
                add_products(sum, a->in, row + first, a->weight, tap * s->out + first, count, dtype);
            else
                for (int64_t k = 0; k < count; k++)
                    sum[k] += dsc_get(a->in, row + (first + k) / each, dtype) *
                              dsc_get(a->weight, tap * s->out + first + k, dtype);
        }
    }
    const int64_t at = ((b * dsc_conv2d_out(s, 0) + i) * dsc_conv2d_out(s, 1) + j) * s->out + first;
    put_sums(a->out, a->add, at, first, sum, count, dtype);
}

CONV2D_INLINE void fwd_lines(const dsc_depthwise_args *a, int64_t first, int64_t last, dsc_dtype dtype)
{
    const dsc_conv2d_shape *s = &a->shape;
    const int64_t down = dsc_conv2d_out(s, 0), across = dsc_conv2d_out(s, 1);
    for (int64_t line = first; line < last; line++)
        for (int64_t c = 0; c < s->out; c += CONV2D_BLOCK)
            for (int64_t j = 0; j < across; j++)
                fwd_pixel(a, line / down, line % down, j, c, dsc_min_i64(CONV2D_BLOCK, s->out - c), dtype);
}

void CONV2D_NAME(fwd, CONV2D_ISA)(const void *args, int64_t first, int64_t last)
{
    const dsc_depthwise_args *a = args;
    DSC_FOR_DTYPE(a->dtype, fwd_lines(a, first, last, dtype));
}

/* ---- the input's gradient ---- */

CONV2D_INLINE void dx_pixel(const dsc_depthwise_args *a, int64_t b, int64_t y, int64_t x, int64_t first, int64_t count,
                            dsc_dtype dtype)
{
    const dsc_conv2d_shape *s = &a->shape;
    const int64_t each = s->out / s->in, down = dsc_conv2d_out(s, 0), across = dsc_conv2d_out(s, 1);
    float sum[CONV2D_BLOCK] = { 0 };
    for (int64_t u = 0; u < s->kernel[0]; u++) {
        const int64_t i = dsc_conv2d_output(s, 0, y, u);
        for (int64_t v = 0; v < s->kernel[1] && i >= 0; v++) {
            const int64_t j = dsc_conv2d_output(s, 1, x, v), tap = u * s->kernel[1] + v;
            const int64_t row = ((b * down + i) * across + j) * s->out;
            if (j < 0)
                continue;
            if (each == 1)
                add_products(sum, a->in, row + first, a->weight, tap * s->out + first, count, dtype);
            else
                for (int64_t k = 0; k < count * each; k++)
                    sum[k / each] += dsc_get(a->in, row + first * each + k, dtype) *
                                     dsc_get(a->weight, tap * s->out + first * each + k, dtype);
        }
    }
    const int64_t at = ((b * s->height + y) * s->width + x) * s->in + first;
    put_sums(a->out, a->add, at, at, sum, count, dtype);
}

CONV2D_INLINE void dx_lines(const dsc_depthwise_args *a, int64_t first, int64_t last, dsc_dtype dtype)
{
    const dsc_conv2d_shape *s = &a->shape;
    for (int64_t line = first; line < last; line++)
        for (int64_t c = 0; c < s->in; c += CONV2D_BLOCK)
            for (int64_t x = 0; x < s->width; x++)
                dx_pixel(a, line / s->height, line % s->height, x, c, dsc_min_i64(CONV2D_BLOCK, s->in - c), dtype);
}

void CONV2D_NAME(dx, CONV2D_ISA)(const void *args, int64_t first, int64_t last)
{
    const dsc_depthwise_args *a = args;
    DSC_FOR_DTYPE(a->dtype, dx_lines(a, first, last, dtype));
}

/* ---- the weight's gradient ---- */

/* One tap of a line of outputs, for channels first .. first + count - 1. */
CONV2D_INLINE void dw_line(const dsc_depthwise_dw_args *a, int64_t line, int64_t tap, int64_t first, int64_t count,
                           float *sum, dsc_dtype dtype)
{
    const dsc_conv2d_shape *s = &a->shape;
    const int64_t each = s->out / s->in, down = dsc_conv2d_out(s, 0), across = dsc_conv2d_out(s, 1);
    const int64_t y = dsc_conv2d_input(s, 0, line % down, tap / s->kernel[1]);
    for (int64_t j = 0; j < across && y >= 0; j++) {
        const int64_t x = dsc_conv2d_input(s, 1, j, tap % s->kernel[1]);
        const int64_t row = ((line / down * s->height + y) * s->width + x) * s->in, d = (line * across + j) * s->out;
        if (x < 0)
            continue;
        if (each == 1)
            add_products(sum, a->in, row + first, a->d_out, d + first, count, dtype);
        else
            for (int64_t k = 0; k < count; k++)
                sum[k] += dsc_get(a->in, row + (first + k) / each, dtype) * dsc_get(a->d_out, d + first + k, dtype);
    }
}

CONV2D_INLINE void dw_strips(const dsc_depthwise_dw_args *a, int64_t first, int64_t last, dsc_dtype dtype)
{
    const dsc_conv2d_shape *s = &a->shape;
    const int64_t taps = dsc_conv2d_taps(s);
    for (int64_t strip = first; strip < last; strip++)
        for (int64_t c = 0; c < s->out; c += CONV2D_BLOCK)
            for (int64_t tap = 0; tap < taps; tap++) {
                const int64_t count = dsc_min_i64(CONV2D_BLOCK, s->out - c);
                float sum[CONV2D_BLOCK] = { 0 };
                for (int64_t line = dsc_depthwise_line(s, strip); line < dsc_depthwise_line(s, strip + 1); line++)
                    dw_line(a, line, tap, c, count, sum, dtype);
                memcpy(a->scratch + (strip * taps + tap) * s->out + c, sum, (size_t)count * sizeof *sum);
            }
}

void CONV2D_NAME(dw, CONV2D_ISA)(const void *args, int64_t first, int64_t last)
{
    const dsc_depthwise_dw_args *a = args;
    DSC_FOR_DTYPE(a->dtype, dw_strips(a, first, last, dtype));
}
