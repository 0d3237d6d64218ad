/* conv2d.c - the builder's part for pictures: grids of feature maps, and the convolution's shape rule.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/program/internal.h"

enum { SIDE_MAX = 1 << 12, ROWS_MAX = 1 << 24, COLUMNS_MAX = 1 << 20 };

void dsc_program_begin_picture(dsc_program *program, int64_t height, int64_t width, int64_t columns)
{
    dsc_program_begin_pictures(program, 1, height, width, columns);
}

void dsc_program_begin_pictures(dsc_program *program, int64_t pictures, int64_t height, int64_t width, int64_t columns)
{
    DSC_ASSERT(pictures > 0);
    DSC_ASSERT(height > 0);
    DSC_ASSERT(width > 0);
    dsc_program_begin(program, pictures * height * width, columns, DSC_PROGRAM_NONE);
    program->value[program->input].height = height;
    program->value[program->input].width = width;
}

/* The window of an axis, with its defaults. */
static void set_axis(dsc_program *program, const dsc_program_conv2d_args *args, int i, dsc_conv2d_shape *s)
{
    s->kernel[i] = args->kernel[i];
    s->stride[i] = args->stride[i] != 0 ? args->stride[i] : 1;
    s->padding[i] = args->padding[i];
    s->dilation[i] = args->dilation[i] != 0 ? args->dilation[i] : 1;
    if (s->kernel[i] < 1 || s->kernel[i] > SIDE_MAX || s->stride[i] < 1 || s->stride[i] > SIDE_MAX ||
        s->padding[i] < 0 || s->padding[i] > SIDE_MAX || s->dilation[i] < 1 || s->dilation[i] > SIDE_MAX)
        REFUSE(
            program,
            "op \"%.60s\" (conv2d): kernel %lld, stride %lld, padding %lld, dilation %lld; expected 1 to %d, padding 0 "
            "to %d",
            args->name, (long long)s->kernel[i], (long long)s->stride[i], (long long)s->padding[i],
            (long long)s->dilation[i], SIDE_MAX, SIDE_MAX);
}

static void check_channels(dsc_program *program, const char *name, const dsc_value *x, const dsc_conv2d_shape *s)
{
    if (dsc_value_pictures(x) == 0)
        REFUSE(
            program,
            "op \"%.60s\" (conv2d): its input \"%.60s\" [%lld,%lld] is not a picture; expected rows of a convolution, "
            "of patches of one pixel, or of ops that keep them",
            name, x->name, (long long)x->rows, (long long)x->columns);
    else if (s->out < 1 || s->out > COLUMNS_MAX)
        REFUSE(program, "op \"%.60s\" (conv2d): %lld columns; expected 1 to %d", name, (long long)s->out, COLUMNS_MAX);
    else if (s->groups < 1 || s->in % s->groups != 0 || s->out % s->groups != 0)
        REFUSE(program,
               "op \"%.60s\" (conv2d): %lld groups do not divide the %lld columns of \"%.60s\" and its own %lld", name,
               (long long)s->groups, (long long)s->in, x->name, (long long)s->out);
}

static void check_window(dsc_program *program, const char *name, const dsc_conv2d_shape *s)
{
    const int64_t down = dsc_conv2d_out(s, 0), across = dsc_conv2d_out(s, 1);
    if (down < 1 || across < 1)
        REFUSE(
            program,
            "op \"%.60s\" (conv2d): its window of %lld by %lld, %lld by %lld pixels apart, does not fit into pictures "
            "of %lld by %lld with a padding of %lld and %lld",
            name, (long long)s->kernel[0], (long long)s->kernel[1], (long long)s->dilation[0],
            (long long)s->dilation[1], (long long)s->height, (long long)s->width, (long long)s->padding[0],
            (long long)s->padding[1]);
    else if (down * across > ROWS_MAX || dsc_conv2d_taps(s) * (s->in / s->groups) > COLUMNS_MAX)
        REFUSE(
            program,
            "op \"%.60s\" (conv2d): its output has %lld by %lld pixels, of windows of %lld numbers; expected at most "
            "%d pixels and %d numbers",
            name, (long long)down, (long long)across, (long long)(dsc_conv2d_taps(s) * (s->in / s->groups)), ROWS_MAX,
            COLUMNS_MAX);
}

static dsc_conv2d_shape shape_of(dsc_program *program, const dsc_value *x, const dsc_program_conv2d_args *args)
{
    dsc_conv2d_shape s = { .height = x->height,
                           .width = x->width,
                           .in = x->columns,
                           .out = args->out,
                           .groups = args->groups != 0 ? args->groups : 1 };
    check_channels(program, args->name, x, &s);
    for (int i = 0; i < 2; i++)
        set_axis(program, args, i, &s);
    if (program->status == DSC_OK)
        check_window(program, args->name, &s);
    return s;
}

static bool is_linear(const dsc_conv2d_shape *s)
{
    bool is = s->groups == 1;
    for (int i = 0; i < 2; i++)
        is = is && s->kernel[i] == 1 && s->stride[i] == 1 && s->padding[i] == 0;
    return is;
}

/* A product of the pixels, with all that products have. */
static int16_t add_linear(dsc_program *program, int16_t x, const dsc_program_conv2d_args *args,
                          const dsc_conv2d_shape *s)
{
    const int64_t dims[4] = { s->out, s->in, 1, 1 };
    const dsc_program_linear_args linear = { .name = args->name,
                                             .shape = { s->in, s->out, true },
                                             .bias = args->bias,
                                             .whole = true,
                                             .dims = dims,
                                             .dim_count = 4,
                                             .no_adapter = true,
                                             .std = args->std };
    return dsc_program_linear(program, x, &linear);
}

static void declare(dsc_program *program, const dsc_program_conv2d_args *args, dsc_conv2d_layer *layer)
{
    const dsc_conv2d_shape *s = &layer->shape;
    const dsc_program_param weight = { .name = args->name,
                                       .part = "weight",
                                       .dim_count = 4,
                                       .dim = { s->out, s->in / s->groups, s->kernel[0], s->kernel[1] },
                                       .init = args->std > 0 ? DSC_INIT_NORMAL : DSC_INIT_ZEROS,
                                       .std = args->std,
                                       .split = DSC_SPLIT_NONE };
    const dsc_program_param bias = { .name = args->name,
                                     .part = "bias",
                                     .dim_count = 1,
                                     .dim = { s->out },
                                     .init = DSC_INIT_ZEROS,
                                     .split = DSC_SPLIT_NONE };
    layer->weight = dsc_program_declare(program, &weight);
    layer->bias = args->bias ? dsc_program_declare(program, &bias) : DSC_PROGRAM_NONE;
}

int16_t dsc_program_conv2d(dsc_program *program, int16_t x, const dsc_program_conv2d_args *args)
{
    if (!dsc_program_is_value(program, DSC_OP_CONV2D, args->name, x))
        return DSC_PROGRAM_NONE;
    dsc_conv2d_layer layer = { .shape = shape_of(program, &program->value[x], args) };
    if (program->status != DSC_OK)
        return DSC_PROGRAM_NONE;
    if (is_linear(&layer.shape))
        return add_linear(program, x, args, &layer.shape);
    dsc_op *op = dsc_program_add_forward(program, DSC_OP_CONV2D, args->name);
    declare(program, args, &layer);
    if (op == NULL || program->status != DSC_OK)
        return DSC_PROGRAM_NONE;
    op->in[0] = x;
    op->conv2d = layer;
    const int64_t down = dsc_conv2d_out(&layer.shape, 0), across = dsc_conv2d_out(&layer.shape, 1);
    const dsc_value shape = { .rows = dsc_value_pictures(&program->value[x]) * down * across,
                              .columns = layer.shape.out,
                              .per_sample = true,
                              .height = down,
                              .width = across };
    return dsc_program_add_output(program, op, 0, op->name, shape);
}
