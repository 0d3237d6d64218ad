/* conv2d.c - parts of two-dimensional convolutions: windows and orders of weights element by element, and depthwise
 * ones against double within the roundings of their sums. u = 2^-24. SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck.h"
#include "tests/checkkern/ck_internal.h"

#include <math.h>
#include <stdlib.h>

static const double u = 0x1p-24;
enum { TRANSFORMED = 2 }; /* the last shapes, which a CPU computes by transforms */

/* batch, height, width, in, out, groups, then pairs downwards and across. */
static const dsc_conv2d_shape shapes[] = {
    { 2, 5, 7, 3, 8, 1, { 3, 3 }, { 1, 1 }, { 1, 1 }, { 1, 1 } },
    { 1, 15, 13, 3, 4, 1, { 7, 7 }, { 2, 2 }, { 3, 3 }, { 1, 1 } },
    { 2, 9, 8, 8, 6, 2, { 3, 3 }, { 2, 2 }, { 1, 1 }, { 1, 1 } },
    { 1, 11, 9, 4, 4, 1, { 3, 3 }, { 1, 1 }, { 2, 2 }, { 2, 2 } },
    { 3, 6, 5, 16, 24, 1, { 1, 1 }, { 2, 2 }, { 0, 0 }, { 1, 1 } },
    { 2, 4, 4, 8, 8, 1, { 1, 1 }, { 1, 1 }, { 0, 0 }, { 1, 1 } },
    { 1, 7, 10, 6, 9, 3, { 2, 5 }, { 3, 1 }, { 0, 4 }, { 2, 1 } },
};
static const dsc_conv2d_shape depthwise_shapes[] = {
    { 2, 5, 7, 3, 3, 3, { 3, 3 }, { 1, 1 }, { 1, 1 }, { 1, 1 } },
    { 1, 14, 13, 40, 40, 40, { 3, 3 }, { 2, 2 }, { 1, 1 }, { 1, 1 } },
    { 3, 8, 9, 64, 64, 64, { 5, 5 }, { 1, 1 }, { 2, 2 }, { 1, 1 } },
    { 1, 11, 9, 33, 66, 33, { 3, 3 }, { 1, 2 }, { 2, 0 }, { 2, 1 } },
    { 40, 3, 3, 7, 21, 7, { 2, 3 }, { 1, 1 }, { 0, 1 }, { 1, 1 } },
    { 2, 4, 4, 32, 32, 32, { 1, 1 }, { 1, 1 }, { 0, 0 }, { 1, 1 } },
    { 0, 4, 4, 8, 8, 8, { 3, 3 }, { 1, 1 }, { 1, 1 }, { 1, 1 } },
};

/* Of one group: few channels, phases without taps, several tiles, panels, strips and parts of a window. */
static const dsc_conv2d_shape whole_shapes[] = {
    { 2, 5, 7, 3, 8, 1, { 3, 3 }, { 1, 1 }, { 1, 1 }, { 1, 1 } },
    { 2, 15, 13, 3, 70, 1, { 7, 7 }, { 2, 2 }, { 3, 3 }, { 1, 1 } },
    { 1, 11, 9, 5, 4, 1, { 3, 3 }, { 1, 1 }, { 2, 2 }, { 2, 2 } },
    { 3, 6, 5, 16, 24, 1, { 1, 1 }, { 2, 2 }, { 0, 0 }, { 1, 1 } },
    { 2, 9, 11, 27, 100, 1, { 3, 3 }, { 2, 2 }, { 1, 1 }, { 1, 1 } },
    { 2, 4, 4, 130, 66, 1, { 1, 1 }, { 1, 1 }, { 0, 0 }, { 1, 1 } },
    { 1, 7, 10, 9, 33, 1, { 2, 5 }, { 3, 1 }, { 0, 4 }, { 2, 1 } },
    { 1, 9, 9, 12, 17, 1, { 9, 9 }, { 1, 1 }, { 0, 0 }, { 1, 1 } },
    { 1, 8, 9, 34, 48, 1, { 3, 3 }, { 1, 1 }, { 1, 1 }, { 1, 1 } },
    { 2, 13, 10, 20, 18, 1, { 3, 3 }, { 1, 1 }, { 0, 2 }, { 1, 1 } },
    { 16, 7, 8, 18, 70, 1, { 3, 3 }, { 1, 1 }, { 1, 1 }, { 1, 1 } }, /* by transforms, as the next one */
    { 9, 9, 13, 33, 16, 1, { 3, 3 }, { 1, 1 }, { 0, 2 }, { 1, 1 } },
};

static bool begin_case(const char *name, const dsc_conv2d_shape *s, dsc_dtype dtype)
{
    return ck_case("%s %s %lldx%lldx%lldx%lld to %lld by %lldx%lld stride %lld groups %lld", name, ck_dtype_text(dtype),
                   (long long)s->batch, (long long)s->height, (long long)s->width, (long long)s->in, (long long)s->out,
                   (long long)s->kernel[0], (long long)s->kernel[1], (long long)s->stride[0], (long long)s->groups);
}

static int64_t pixels_in(const dsc_conv2d_shape *s) { return s->batch * s->height * s->width; }

/* By counting places at which the window fits. */
static int64_t places(const dsc_conv2d_shape *s, int axis)
{
    const int64_t size = (axis == 0 ? s->height : s->width) + 2 * s->padding[axis];
    int64_t count = 0;
    while (count * s->stride[axis] + s->dilation[axis] * (s->kernel[axis] - 1) < size)
        count++;
    return count;
}

static int64_t pixels_out(const dsc_conv2d_shape *s) { return s->batch * places(s, 0) * places(s, 1); }

/* The pixel of x under tap t of output pixel `row`; -1: none. */
static int64_t under(const dsc_conv2d_shape *s, int64_t row, int64_t t)
{
    const int64_t across = places(s, 1), j = row % across, i = row / across % places(s, 0);
    const int64_t y = i * s->stride[0] - s->padding[0] + t / s->kernel[1] * s->dilation[0];
    const int64_t x = j * s->stride[1] - s->padding[1] + t % s->kernel[1] * s->dilation[1];
    if (y < 0 || y >= s->height || x < 0 || x >= s->width)
        return -1;
    return (row / across / places(s, 0) * s->height + y) * s->width + x;
}

/* Pixels of x below each tap of each output pixel, or with `back` the output pixel that reads each pixel of x by each
 * tap: element [row][tap], -1 where there is none. The caller frees it. */
static int64_t *partners(const dsc_conv2d_shape *s, bool back)
{
    const int64_t taps = s->kernel[0] * s->kernel[1], outs = pixels_out(s), rows = back ? pixels_in(s) : outs;
    int64_t *of = malloc((size_t)(rows * taps + 1) * sizeof *of);
    DSC_ASSERT(of != NULL);
    for (int64_t i = 0; i < rows * taps; i++)
        of[i] = -1;
    for (int64_t out = 0; out < outs; out++)
        for (int64_t t = 0; t < taps; t++) {
            const int64_t pixel = under(s, out, t);
            if (!back)
                of[out * taps + t] = pixel;
            else if (pixel >= 0)
                of[pixel * taps + t] = out;
        }
    return of;
}

/* ---- windows and weights ----------------------------------------------------------------------------------------- */

static void verify_windows(const void *args)
{
    const dsc_windows_args *a = args;
    const dsc_conv2d_shape *s = &a->shape;
    const int64_t channels = a->back ? s->out : s->in, count = channels / s->groups, taps = s->kernel[0] * s->kernel[1];
    int64_t *of = partners(s, a->back);
    ck_same(a->out);
    for (int64_t r = 0; r < a->rows; r++)
        for (int64_t t = 0; t < taps; t++) {
            const int64_t pixel = of[(a->first + r) * taps + t];
            for (int64_t c = 0; c < count; c++)
                ck_near(a->out, (r * taps + t) * count + c,
                        pixel >= 0 ? ck_get(a->in, pixel * channels + a->group * count + c) : 0, 0);
        }
    free(of);
}

static void check_windows(const dsc_conv2d_shape *s, dsc_dtype dtype, bool back)
{
    if (!begin_case(back ? "windows back" : "windows", s, dtype))
        return;
    const int64_t all = back ? pixels_in(s) : pixels_out(s), first = all / 3;
    const int64_t channels = back ? s->out : s->in, taps = s->kernel[0] * s->kernel[1];
    dsc_windows_args a = {
        .first = first, .rows = all - first, .group = s->groups - 1, .back = back, .shape = *s, .dtype = dtype
    };
    void *out = ck_buf(CK_OUT, dtype, a.rows * taps * (channels / s->groups), "out");
    void *in = ck_buf(CK_IN, dtype, (back ? pixels_out(s) : pixels_in(s)) * channels, "in");
    a.out = out, a.in = in;
    ck_normal(in, 0, 1);
    ck_kernel(DSC_KERNEL_WINDOWS, &a, sizeof a, verify_windows);
}

/* Element (o, c, t) of PyTorch's weight is in its place of each order. */
static void verify_weight(const void *args)
{
    const dsc_conv2d_weight_args *a = args;
    const int64_t n = a->shape.in / a->shape.groups, each = a->shape.out / a->shape.groups;
    const int64_t taps = a->shape.kernel[0] * a->shape.kernel[1];
    ck_same(a->out);
    for (int64_t o = 0; o < a->shape.out; o++)
        for (int64_t c = 0; c < n; c++)
            for (int64_t t = 0; t < taps; t++) {
                const int64_t plain = (o * n + c) * taps + t, forward = (o * taps + t) * n + c;
                const int64_t back = ((o / each * taps + t) * each + o % each) * n + c;
                if (a->order == DSC_CONV2D_GRADIENT)
                    ck_near(a->out, plain, ck_get(a->in, forward), 0);
                else
                    ck_near(a->out,
                            a->order == DSC_CONV2D_FORWARD ? forward
                            : a->order == DSC_CONV2D_BACK  ? back
                                                           : t * a->shape.out + o,
                            ck_get(a->in, plain), 0);
            }
}

static void check_weight(const dsc_conv2d_shape *s, dsc_dtype dtype, dsc_conv2d_order order)
{
    static const char *const names[] = { "conv2d_weight forward", "conv2d_weight back", "conv2d_weight gradient",
                                         "conv2d_weight depthwise" };
    if (!begin_case(names[order], s, dtype))
        return;
    const int64_t count = s->out * (s->in / s->groups) * s->kernel[0] * s->kernel[1];
    void *out = ck_buf(CK_OUT, dtype, count, "out"), *in = ck_buf(CK_IN, dtype, count, "in");
    ck_normal(in, 0, 1);
    const dsc_conv2d_weight_args a = { .out = out, .in = in, .order = order, .shape = *s, .dtype = dtype };
    ck_kernel(DSC_KERNEL_CONV2D_WEIGHT, &a, sizeof a, verify_weight);
}

/* ---- whole convolutions and depthwise ones ----------------------------------------------------------------------- */

static void near_sum(const void *buf, int64_t i, double sum, double size, double terms, dsc_dtype dtype)
{
    const double error = (terms + 2) * u * size;
    ck_near(buf, i, sum, error + ck_rounding(dtype, fabs(sum) + error));
}

/* Transforms have the roundings of more terms. A GPU's weight gradient is rounded to the dtype, and its dx once more
 * before a sum. */
static void near_whole(const dsc_conv2d_args *a, int64_t i, double sum, double size, double terms)
{
    const bool gradient = a->pass == DSC_CONV2D_DW, twice = ck_set_up.gpu && a->pass == DSC_CONV2D_DX && a->add != NULL;
    const double error = (4 * terms + 66) * u * size + (twice ? ck_rounding(a->dtype, size) : 0);
    ck_near(a->out, i, sum, error + ck_rounding(gradient && !ck_set_up.gpu ? DSC_F32 : a->dtype, fabs(sum) + error));
}

/* Output o of output pixel `row`, or with `back` input channel o of input pixel `row`. `of`: the row's partners. */
static void verify_pixel(const dsc_conv2d_args *a, const int64_t *of, int64_t row, int64_t o, bool back)
{
    const dsc_conv2d_shape *s = &a->shape;
    const int64_t taps = s->kernel[0] * s->kernel[1], columns = back ? s->in : s->out, depth = back ? s->out : s->in;
    const int64_t at = row * columns + o;
    double sum = a->add == NULL ? 0 : a->add == a->out ? ck_start(a->out, at) : ck_get(a->add, back ? at : o);
    double size = fabs(sum);
    for (int64_t t = 0; t < taps; t++) {
        const int64_t pixel = of[t];
        for (int64_t k = 0; k < depth && pixel >= 0; k++) {
            const int64_t w = back ? (k * s->in + o) * taps + t : (o * s->in + k) * taps + t;
            const double x = ck_get(a->in, pixel * depth + k) * ck_get(a->with, w);
            sum += x, size += fabs(x);
        }
    }
    near_whole(a, at, sum, size, (double)(taps * depth));
}

static void verify_map(const void *args)
{
    const dsc_conv2d_args *a = args;
    const bool back = a->pass == DSC_CONV2D_DX;
    const int64_t rows = back ? pixels_in(&a->shape) : pixels_out(&a->shape);
    const int64_t taps = a->shape.kernel[0] * a->shape.kernel[1];
    int64_t *of = partners(&a->shape, back);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t o = 0; o < (back ? a->shape.in : a->shape.out); o++)
            verify_pixel(a, &of[row * taps], row, o, back);
    free(of);
}

static void verify_gradient(const void *args)
{
    const dsc_conv2d_args *a = args;
    const dsc_conv2d_shape *s = &a->shape;
    const int64_t taps = s->kernel[0] * s->kernel[1], rows = pixels_out(s);
    int64_t *of = partners(s, false);
    for (int64_t i = 0; i < s->out * s->in * taps; i++) {
        const int64_t t = i % taps, c = i / taps % s->in, o = i / taps / s->in;
        double sum = 0, size = 0;
        for (int64_t row = 0; row < rows; row++) {
            const int64_t pixel = of[row * taps + t];
            const double x = pixel >= 0 ? ck_get(a->in, pixel * s->in + c) * ck_get(a->with, row * s->out + o) : 0;
            sum += x, size += fabs(x);
        }
        near_whole(a, i, sum, size, (double)rows);
    }
    free(of);
}

static dsc_conv2d_args whole_case(const dsc_conv2d_shape *s, dsc_dtype dtype, dsc_conv2d_pass pass, int add)
{
    const int64_t x = pixels_in(s) * s->in, y = pixels_out(s) * s->out;
    const int64_t weights = s->out * s->in * s->kernel[0] * s->kernel[1];
    const int64_t outs = pass == DSC_CONV2D_Y ? y : pass == DSC_CONV2D_DX ? x : weights;
    dsc_conv2d_args a = { .pass = pass, .shape = *s, .dtype = dtype };
    a.out = ck_buf(add == 2 ? CK_INOUT : CK_OUT, pass == DSC_CONV2D_DW ? DSC_F32 : dtype, outs, "out");
    a.in = ck_buf(CK_IN, dtype, pass == DSC_CONV2D_DX ? y : x, "in");
    a.with = ck_buf(CK_IN, dtype, pass == DSC_CONV2D_DW ? y : weights, "with");
    a.add = add == 1 ? ck_buf(CK_IN, dtype, pass == DSC_CONV2D_DX ? x : s->out, "add") : add == 2 ? a.out : NULL;
    const int64_t scratch = dsc_max_i64(dsc_conv2d_scratch(s, pass, dtype), dsc_conv2d_gpu_scratch(s, add > 0, dtype));
    a.scratch = ck_buf(CK_SCRATCH, DSC_U8, scratch, "scratch");
    ck_normal(a.in, 0, 1);
    ck_normal(a.with, 0, 0.5);
    if (a.add != NULL)
        ck_normal(a.add, 0, 1);
    return a;
}

static const char *const pass_names[2][3][3] = { { { "conv2d", "conv2d bias", "" },
                                                   { "conv2d dx", "conv2d dx sum", "conv2d dx in place" },
                                                   { "conv2d dw", "", "" } },
                                                 { { "conv2d cudnn", "conv2d cudnn bias", "" },
                                                   { "conv2d cudnn dx", "conv2d cudnn dx sum",
                                                     "conv2d cudnn dx in place" },
                                                   { "conv2d cudnn dw", "", "" } } };

/* On a GPU by cuDNN, where it is installed and has the shape. */
static void check_whole(const dsc_conv2d_shape *s, dsc_dtype dtype, dsc_conv2d_pass pass, int add)
{
    if ((ck_set_up.gpu && !ck_wants_cudnn()) || !begin_case(pass_names[ck_set_up.gpu][pass][add], s, dtype))
        return;
    if (ck_set_up.gpu)
        ck_align();
    const dsc_conv2d_args a = whole_case(s, dtype, pass, add);
    if (ck_set_up.gpu && !ck_device_choose_conv2d(&a))
        ck_skip("cuDNN has no plan for the shape");
    else
        ck_kernel(DSC_KERNEL_CONV2D, &a, sizeof a, pass == DSC_CONV2D_DW ? verify_gradient : verify_map);
}

static void verify_fwd(const void *args)
{
    const dsc_depthwise_args *a = args;
    const dsc_conv2d_shape *s = &a->shape;
    const int64_t taps = s->kernel[0] * s->kernel[1], rows = pixels_out(s);
    int64_t *of = partners(s, false);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t o = 0; o < s->out; o++) {
            double sum = a->add != NULL ? ck_get(a->add, o) : 0, size = fabs(sum);
            for (int64_t t = 0; t < taps; t++) {
                const int64_t pixel = of[row * taps + t];
                const double x =
                    pixel >= 0 ? ck_get(a->in, pixel * s->in + o / (s->out / s->in)) * ck_get(a->weight, t * s->out + o)
                               : 0;
                sum += x, size += fabs(x);
            }
            near_sum(a->out, row * s->out + o, sum, size, (double)taps, a->dtype);
        }
    free(of);
}

static void verify_dx(const void *args)
{
    const dsc_depthwise_args *a = args;
    const dsc_conv2d_shape *s = &a->shape;
    const int64_t taps = s->kernel[0] * s->kernel[1], each = s->out / s->in;
    int64_t *of = partners(s, true);
    for (int64_t row = 0; row < pixels_in(s); row++) {
        const int64_t *pixels = &of[row * taps];
        for (int64_t c = 0; c < s->in; c++) {
            const int64_t i = row * s->in + c;
            double sum = a->add == NULL ? 0 : a->add == a->out ? ck_start(a->out, i) : ck_get(a->add, i);
            double size = fabs(sum);
            for (int64_t t = 0; t < taps; t++) {
                for (int64_t o = c * each; o < (c + 1) * each && pixels[t] >= 0; o++) {
                    const double x = ck_get(a->in, pixels[t] * s->out + o) * ck_get(a->weight, t * s->out + o);
                    sum += x, size += fabs(x);
                }
            }
            near_sum(a->out, i, sum, size, (double)(taps * each), a->dtype);
        }
    }
    free(of);
}

static void check_depthwise(const dsc_conv2d_shape *s, dsc_dtype dtype, bool back, int add)
{
    static const char *const names[2][3] = { { "depthwise_fwd", "depthwise_fwd bias", "" },
                                             { "depthwise_dx", "depthwise_dx sum", "depthwise_dx in place" } };
    if (!begin_case(names[back][add], s, dtype))
        return;
    const int64_t wide = pixels_in(s) * s->in, narrow = pixels_out(s) * s->out;
    void *out = ck_buf(add == 2 ? CK_INOUT : CK_OUT, dtype, back ? wide : narrow, "out");
    void *in = ck_buf(CK_IN, dtype, back ? narrow : wide, "in");
    void *weight = ck_buf(CK_IN, dtype, s->out * s->kernel[0] * s->kernel[1], "weight");
    void *more = add == 1 ? ck_buf(CK_IN, dtype, back ? wide : s->out, "add") : add == 2 ? out : NULL;
    ck_normal(in, 0, 1);
    ck_normal(weight, 0, 0.5);
    if (more != NULL)
        ck_normal(more, 0, 1);
    const dsc_depthwise_args a = { .out = out, .in = in, .weight = weight, .add = more, .shape = *s, .dtype = dtype };
    ck_kernel(back ? DSC_KERNEL_DEPTHWISE_DX : DSC_KERNEL_DEPTHWISE_FWD, &a, sizeof a, back ? verify_dx : verify_fwd);
}

static void verify_dw(const void *args)
{
    const dsc_depthwise_dw_args *a = args;
    const dsc_conv2d_shape *s = &a->shape;
    const int64_t taps = s->kernel[0] * s->kernel[1], rows = pixels_out(s);
    int64_t *of = partners(s, false);
    for (int64_t o = 0; o < s->out; o++)
        for (int64_t t = 0; t < taps; t++) {
            double sum = 0, size = 0;
            for (int64_t row = 0; row < rows; row++) {
                const int64_t pixel = of[row * taps + t];
                const double x = pixel >= 0 ? ck_get(a->in, pixel * s->in + o / (s->out / s->in)) *
                                                  ck_get(a->d_out, row * s->out + o)
                                            : 0;
                sum += x, size += fabs(x);
            }
            near_sum(a->d_weight, o * taps + t, sum, size, (double)rows, DSC_F32);
        }
    free(of);
}

static dsc_depthwise_dw_args dw_case(const dsc_conv2d_shape *s, dsc_dtype dtype)
{
    const int64_t weights = s->out * s->kernel[0] * s->kernel[1];
    float *d_weight = ck_buf(CK_OUT, DSC_F32, weights, "d_weight");
    void *in = ck_buf(CK_IN, dtype, pixels_in(s) * s->in, "in");
    void *d_out = ck_buf(CK_IN, dtype, pixels_out(s) * s->out, "d_out");
    float *scratch = ck_buf(CK_SCRATCH, DSC_F32, dsc_depthwise_strips(s) * weights, "scratch");
    ck_normal(in, 0, 1);
    ck_normal(d_out, 0, 1);
    return (dsc_depthwise_dw_args) { d_weight, in, d_out, scratch, *s, dtype };
}

static void check_dw(const dsc_conv2d_shape *s, dsc_dtype dtype)
{
    if (!begin_case("depthwise_dw", s, dtype))
        return;
    const dsc_depthwise_dw_args a = dw_case(s, dtype);
    ck_kernel(DSC_KERNEL_DEPTHWISE_DW, &a, sizeof a, verify_dw);
}

/* ---- bench ------------------------------------------------------------------------------------------------------- */

static void bench_depthwise(const dsc_conv2d_shape *s, dsc_dtype dtype, bool back)
{
    if (!begin_case(back ? "bench depthwise_dx" : "bench depthwise_fwd", s, dtype))
        return;
    const int64_t wide = pixels_in(s) * s->in, narrow = pixels_out(s) * s->out, taps = s->kernel[0] * s->kernel[1];
    void *out = ck_buf(CK_OUT, dtype, back ? wide : narrow, "out");
    void *in = ck_buf(CK_IN, dtype, back ? narrow : wide, "in");
    void *weight = ck_buf(CK_IN, dtype, s->out * taps, "weight");
    ck_normal(in, 0, 1);
    ck_normal(weight, 0, 0.5);
    const dsc_depthwise_args a = { .out = out, .in = in, .weight = weight, .shape = *s, .dtype = dtype };
    ck_bench(back ? DSC_KERNEL_DEPTHWISE_DX : DSC_KERNEL_DEPTHWISE_FWD, &a, sizeof a,
             (wide + narrow) * (int64_t)dsc_dtype_bytes(dtype), 2 * narrow * taps, CK_F32_PEAK);
}

static void bench_dw(const dsc_conv2d_shape *s, dsc_dtype dtype)
{
    if (!begin_case("bench depthwise_dw", s, dtype))
        return;
    const dsc_depthwise_dw_args a = dw_case(s, dtype);
    ck_bench(DSC_KERNEL_DEPTHWISE_DW, &a, sizeof a,
             (pixels_in(s) * s->in + pixels_out(s) * s->out) * (int64_t)dsc_dtype_bytes(dtype),
             2 * pixels_out(s) * s->out * s->kernel[0] * s->kernel[1], CK_F32_PEAK);
}

static void bench_windows(const dsc_conv2d_shape *s, dsc_dtype dtype)
{
    if (!begin_case("bench windows", s, dtype))
        return;
    const int64_t taps = s->kernel[0] * s->kernel[1];
    dsc_windows_args a = { .rows = ck_bench_size(512, 50176), .shape = *s, .dtype = dtype };
    a.out = ck_buf(CK_OUT, dtype, a.rows * taps * s->in, "out");
    a.in = ck_buf(CK_IN, dtype, pixels_in(s) * s->in, "in");
    ck_normal(a.in, 0, 1);
    ck_bench(DSC_KERNEL_WINDOWS, &a, sizeof a, 2 * a.rows * taps * s->in * (int64_t)dsc_dtype_bytes(dtype), 0, 0);
}

static const dsc_conv2d_shape bench_shapes[] = {
    { 4, 224, 224, 3, 64, 1, { 7, 7 }, { 2, 2 }, { 3, 3 }, { 1, 1 } },
    { 4, 56, 56, 64, 64, 1, { 3, 3 }, { 1, 1 }, { 1, 1 }, { 1, 1 } },
    { 4, 56, 56, 64, 128, 1, { 3, 3 }, { 2, 2 }, { 1, 1 }, { 1, 1 } },
    { 16, 7, 7, 512, 512, 1, { 3, 3 }, { 1, 1 }, { 1, 1 }, { 1, 1 } },
    { 4, 56, 56, 24, 144, 1, { 1, 1 }, { 1, 1 }, { 0, 0 }, { 1, 1 } },
    { 8, 14, 14, 384, 64, 1, { 1, 1 }, { 1, 1 }, { 0, 0 }, { 1, 1 } },
};

static void bench_whole(const dsc_conv2d_shape *s, dsc_dtype dtype)
{
    static const char *const names[2][3] = { { "bench conv2d y", "bench conv2d dx", "bench conv2d dw" },
                                             { "bench conv2d cudnn y", "bench conv2d cudnn dx",
                                               "bench conv2d cudnn dw" } };
    for (int pass = 0; pass < 3 && (!ck_set_up.gpu || ck_wants_cudnn()); pass++) {
        if (!begin_case(names[ck_set_up.gpu][pass], s, dtype))
            continue;
        const dsc_conv2d_args a = whole_case(s, dtype, (dsc_conv2d_pass)pass, 0);
        if (ck_set_up.gpu && !ck_device_choose_conv2d(&a))
            ck_skip("cuDNN has no plan for the shape");
        else
            ck_bench(DSC_KERNEL_CONV2D, &a, sizeof a,
                     (pixels_in(s) * s->in + pixels_out(s) * s->out) * (int64_t)dsc_dtype_bytes(dtype),
                     2 * pixels_out(s) * s->out * s->in * s->kernel[0] * s->kernel[1], CK_NO_REF);
    }
}

static void bench(void)
{
    const int64_t batch = ck_bench_size(8, 64);
    const dsc_conv2d_shape mobile = { batch, 56, 56, 96, 96, 96, { 3, 3 }, { 1, 1 }, { 1, 1 }, { 1, 1 } };
    const dsc_conv2d_shape resnet = { batch, 56, 56, 64, 64, 1, { 3, 3 }, { 1, 1 }, { 1, 1 }, { 1, 1 } };
    for (dsc_dtype dtype = DSC_F32; dtype <= DSC_BF16; dtype++) {
        bench_depthwise(&mobile, dtype, false);
        bench_depthwise(&mobile, dtype, true);
        bench_dw(&mobile, dtype);
        bench_windows(&resnet, dtype);
        for (size_t i = 0; i < DSC_COUNT(bench_shapes); i++)
            bench_whole(&bench_shapes[i], dtype);
    }
}

void ck_conv2d(void)
{
    for (dsc_dtype dtype = DSC_F32; dtype <= DSC_F16; dtype++) {
        for (size_t i = 0; i < DSC_COUNT(shapes); i++) {
            check_windows(&shapes[i], dtype, false);
            check_windows(&shapes[i], dtype, true);
            for (int order = DSC_CONV2D_FORWARD; order <= DSC_CONV2D_GRADIENT; order++)
                check_weight(&shapes[i], dtype, (dsc_conv2d_order)order);
        }
        const size_t count = DSC_COUNT(whole_shapes) - (ck_set_up.gpu ? TRANSFORMED : 0);
        for (size_t i = 0; i < count && dtype != DSC_F16; i++) {
            for (int add = 0; add < 2; add++)
                check_whole(&whole_shapes[i], dtype, DSC_CONV2D_Y, add);
            for (int add = 0; add < 3; add++)
                check_whole(&whole_shapes[i], dtype, DSC_CONV2D_DX, add);
            check_whole(&whole_shapes[i], dtype, DSC_CONV2D_DW, 0);
        }
        for (size_t i = 0; i < DSC_COUNT(depthwise_shapes); i++) {
            check_weight(&depthwise_shapes[i], dtype, DSC_CONV2D_DEPTHWISE);
            check_depthwise(&depthwise_shapes[i], dtype, false, 0);
            check_depthwise(&depthwise_shapes[i], dtype, false, 1);
            for (int add = 0; add < 3; add++)
                check_depthwise(&depthwise_shapes[i], dtype, true, add);
            check_dw(&depthwise_shapes[i], dtype);
        }
    }
    if (ck_benching())
        bench();
}
