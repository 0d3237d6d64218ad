/* conv2d.c - two-dimensional convolutions: windows, orders of weights, and depthwise ones on lines of pixels.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "kernels/cpu/conv2d_internal.h"
#include "kernels/cpu/conv2d_micro.h"
#include "kernels/cpu/range.h"
#include "kernels/kernels.h"

enum { WEIGHTS = 4096, ROWS = 8, CHANNELS = 256 }; /* sizes of a block */

static void check_shape(const dsc_conv2d_shape *s)
{
    DSC_ASSERT(s->batch >= 0);
    DSC_ASSERT(s->height >= 1 && s->width >= 1);
    DSC_ASSERT(s->groups >= 1);
    DSC_ASSERT(s->in >= s->groups && s->in % s->groups == 0);
    DSC_ASSERT(s->out >= s->groups && s->out % s->groups == 0);
    for (int i = 0; i < 2; i++) {
        DSC_ASSERT(s->kernel[i] >= 1 && s->stride[i] >= 1);
        DSC_ASSERT(s->padding[i] >= 0 && s->dilation[i] >= 1);
        DSC_ASSERT(dsc_conv2d_out(s, i) >= 1);
    }
}

/* ---- windows ----------------------------------------------------------------------------------------------------- */

/* Taps across that lie side by side in x: one copy, and zeros on both sides. */
static void copy_line(const dsc_windows_args *a, char *to, const char *line, int64_t j, size_t bytes)
{
    const int64_t start = j * a->shape.stride[1] - a->shape.padding[1], taps = a->shape.kernel[1];
    const int64_t before = dsc_min_i64(taps, dsc_max_i64(0, -start));
    const int64_t end = dsc_max_i64(before, dsc_min_i64(taps, a->shape.width - start));
    memset(to, 0, (size_t)before * bytes);
    if (end > before)
        memcpy(to + (size_t)before * bytes, line + (size_t)(start + before) * bytes, (size_t)(end - before) * bytes);
    memset(to + (size_t)end * bytes, 0, (size_t)(taps - end) * bytes);
}

/* A row's pixels: where it stands, on the grid that it belongs to. */
static void window_row(const dsc_windows_args *a, int64_t r)
{
    const dsc_conv2d_shape *s = &a->shape;
    const int64_t own[2] = { a->back ? s->height : dsc_conv2d_out(s, 0), a->back ? s->width : dsc_conv2d_out(s, 1) };
    const int64_t other[2] = { a->back ? dsc_conv2d_out(s, 0) : s->height, a->back ? dsc_conv2d_out(s, 1) : s->width };
    const int64_t channels = a->back ? s->out : s->in, count = channels / s->groups;
    const int64_t row = a->first + r, b = row / (own[0] * own[1]), i = row / own[1] % own[0], j = row % own[1];
    const size_t element = (size_t)dsc_dtype_bytes(a->dtype), bytes = (size_t)count * element;
    char *to = (char *)a->out + (size_t)(r * dsc_conv2d_taps(s)) * bytes;
    for (int64_t u = 0; u < s->kernel[0]; u++) {
        const int64_t y = a->back ? dsc_conv2d_output(s, 0, i, u) : dsc_conv2d_input(s, 0, i, u);
        if (!a->back && s->groups == 1 && s->dilation[1] == 1 && y >= 0) {
            copy_line(a, to, (const char *)a->in + (size_t)((b * s->height + y) * s->width) * bytes, j, bytes);
            to += (size_t)s->kernel[1] * bytes;
            continue;
        }
        for (int64_t v = 0; v < s->kernel[1]; v++, to += bytes) {
            const int64_t x = a->back ? dsc_conv2d_output(s, 1, j, v) : dsc_conv2d_input(s, 1, j, v);
            const int64_t from = ((b * other[0] + y) * other[1] + x) * channels + a->group * count;
            if (y < 0 || x < 0)
                memset(to, 0, bytes);
            else
                memcpy(to, (const char *)a->in + (size_t)from * element, bytes);
        }
    }
}

static void window_rows(const void *args, int64_t first, int64_t last)
{
    const dsc_windows_args *a = args;
    for (int64_t r = first * ROWS; r < dsc_min_i64(last * ROWS, a->rows); r++)
        window_row(a, r);
}

static dsc_status windows(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_windows_args *a = args;
    check_shape(&a->shape);
    DSC_ASSERT(a->rows >= 1 && a->first >= 0);
    DSC_ASSERT(a->group >= 0 && a->group < a->shape.groups);
    DSC_TRY(dsc_range_dtype_check("WINDOWS", a->dtype, err));
    dsc_range_run(pool, dsc_div_ceil(a->rows, ROWS), window_rows, a);
    return DSC_OK;
}

/* ---- orders of weights ------------------------------------------------------------------------------------------- */

static void weight_range(const void *args, int64_t first, int64_t last)
{
    const dsc_conv2d_weight_args *a = args;
    const int64_t end = dsc_min_i64(last * WEIGHTS, dsc_conv2d_weights(&a->shape));
    for (int64_t i = first * WEIGHTS; i < end; i++) {
        const int64_t from = dsc_conv2d_weight_from(&a->shape, a->order, i);
        if (a->dtype == DSC_F32)
            ((float *)a->out)[i] = ((const float *)a->in)[from];
        else
            ((uint16_t *)a->out)[i] = ((const uint16_t *)a->in)[from];
    }
}

static dsc_status weight(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_conv2d_weight_args *a = args;
    check_shape(&a->shape);
    DSC_ASSERT(a->order != DSC_CONV2D_DEPTHWISE || a->shape.groups == a->shape.in);
    DSC_TRY(dsc_range_dtype_check("CONV2D_WEIGHT", a->dtype, err));
    dsc_range_run(pool, dsc_div_ceil(dsc_conv2d_weights(&a->shape), WEIGHTS), weight_range, a);
    return DSC_OK;
}

/* ---- depthwise --------------------------------------------------------------------------------------------------- */

static dsc_status depthwise_fwd(const dsc_depthwise_args *a, const dsc_cpu_threads *pool, dsc_error *err,
                                dsc_range_fn fn)
{
    check_shape(&a->shape);
    DSC_ASSERT(a->shape.groups == a->shape.in);
    DSC_TRY(dsc_range_dtype_check("DEPTHWISE_FWD", a->dtype, err));
    dsc_range_run(pool, a->shape.batch * dsc_conv2d_out(&a->shape, 0), fn, a);
    return DSC_OK;
}

static dsc_status depthwise_dx(const dsc_depthwise_args *a, const dsc_cpu_threads *pool, dsc_error *err,
                               dsc_range_fn fn)
{
    check_shape(&a->shape);
    DSC_ASSERT(a->shape.groups == a->shape.in);
    DSC_TRY(dsc_range_dtype_check("DEPTHWISE_DX", a->dtype, err));
    dsc_range_run(pool, a->shape.batch * a->shape.height, fn, a);
    return DSC_OK;
}

static void add_strips(const void *args, int64_t first, int64_t last)
{
    const dsc_depthwise_dw_args *a = args;
    const int64_t taps = dsc_conv2d_taps(&a->shape), strips = dsc_depthwise_strips(&a->shape), out = a->shape.out;
    for (int64_t o = first * CHANNELS; o < dsc_min_i64(last * CHANNELS, out); o++)
        for (int64_t tap = 0; tap < taps; tap++) {
            float sum = 0;
            for (int64_t strip = 0; strip < strips; strip++)
                sum += a->scratch[(strip * taps + tap) * out + o];
            a->d_weight[o * taps + tap] = sum;
        }
}

static dsc_status depthwise_dw(const dsc_depthwise_dw_args *a, const dsc_cpu_threads *pool, dsc_error *err,
                               dsc_range_fn fn)
{
    check_shape(&a->shape);
    DSC_ASSERT(a->shape.groups == a->shape.in);
    DSC_TRY(dsc_range_dtype_check("DEPTHWISE_DW", a->dtype, err));
    dsc_range_run(pool, dsc_depthwise_strips(&a->shape), fn, a);
    dsc_range_run(pool, dsc_div_ceil(a->shape.out, CHANNELS), add_strips, a);
    return DSC_OK;
}

/* ---- whole convolutions ------------------------------------------------------------------------------------------ */

static dsc_status whole(const dsc_conv2d_args *a, const dsc_cpu_threads *pool, dsc_error *err,
                        const dsc_conv2d_micro *micro)
{
    check_shape(&a->shape);
    DSC_ASSERT(a->shape.groups == 1);
    return dsc_conv2d_direct(a, pool, micro, err);
}

#define CONV2D_WHOLE(isa)                                                                                              \
    static dsc_status whole_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                       \
    {                                                                                                                  \
        return whole(args, pool, err, &dsc_conv2d_micro_##isa);                                                        \
    }
CONV2D_WHOLE(ref)
CONV2D_WHOLE(avx2)
CONV2D_WHOLE(avx512)
CONV2D_WHOLE(avx512bf16)

#define CONV2D_VARIANT(isa)                                                                                            \
    static dsc_status fwd_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                         \
    {                                                                                                                  \
        return depthwise_fwd(args, pool, err, dsc_depthwise_fwd_##isa);                                                \
    }                                                                                                                  \
    static dsc_status dx_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                          \
    {                                                                                                                  \
        return depthwise_dx(args, pool, err, dsc_depthwise_dx_##isa);                                                  \
    }                                                                                                                  \
    static dsc_status dw_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                          \
    {                                                                                                                  \
        return depthwise_dw(args, pool, err, dsc_depthwise_dw_##isa);                                                  \
    }
CONV2D_VARIANT(ref)
CONV2D_VARIANT(avx2)
CONV2D_VARIANT(avx512)

void dsc_conv2d_init(dsc_kernel_table *table, uint32_t caps)
{
    const bool avx2 = (caps & DSC_CPU_AVX2) != 0, avx512 = (caps & DSC_CPU_AVX512) != 0;
    table->fn[DSC_KERNEL_WINDOWS] = windows;
    table->fn[DSC_KERNEL_CONV2D] = (caps & DSC_CPU_AVX512_BF16) != 0 ? whole_avx512bf16
                                   : avx512                          ? whole_avx512
                                   : avx2                            ? whole_avx2
                                                                     : whole_ref;
    table->fn[DSC_KERNEL_CONV2D_WEIGHT] = weight;
    table->fn[DSC_KERNEL_DEPTHWISE_FWD] = avx512 ? fwd_avx512 : avx2 ? fwd_avx2 : fwd_ref;
    table->fn[DSC_KERNEL_DEPTHWISE_DX] = avx512 ? dx_avx512 : avx2 ? dx_avx2 : dx_ref;
    table->fn[DSC_KERNEL_DEPTHWISE_DW] = avx512 ? dw_avx512 : avx2 ? dw_avx2 : dw_ref;
}
