/* maps.c - the builder's part for feature maps: batch norms, windows, and what is done to whole samples.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/program/internal.h"

enum { WINDOW_MAX = 1 << 12 };

/* An op of x; NULL after a failure. Its output has the shape of x, but for `rows` of a sample where that is not 0. */
static dsc_op *add_op(dsc_program *program, dsc_op_kind kind, const char *name, int16_t x, int64_t rows)
{
    dsc_op *op = dsc_program_is_value(program, kind, name, x) ? dsc_program_add_forward(program, kind, name) : NULL;
    if (op == NULL)
        return NULL;
    dsc_value shape = program->value[x];
    shape.rows = rows > 0 ? rows : shape.rows;
    op->in[0] = x;
    (void)dsc_program_add_output(program, op, 0, op->name, shape);
    return op;
}

/* ---- batch normalization ----------------------------------------------------------------------------------------- */

static int32_t declare_param(dsc_program *program, const dsc_program_batch_norm_args *args, const char *part,
                             int64_t columns, dsc_init_kind init)
{
    const dsc_program_param param = { .name = args->name,
                                      .part = part,
                                      .dim_count = 1,
                                      .dim = { columns },
                                      .init = init,
                                      .split = DSC_SPLIT_NONE,
                                      .frozen = args->frozen };
    return dsc_program_declare(program, &param);
}

static int32_t declare_average(dsc_program *program, const dsc_program_batch_norm_args *args, const char *part,
                               int64_t columns, double init)
{
    const dsc_program_buffer buffer = { .name = args->name,
                                        .part = part,
                                        .kind = DSC_BUFFER_AVERAGE,
                                        .count = columns,
                                        .init = init,
                                        .momentum = args->frozen ? 0 : args->momentum };
    return dsc_program_declare_buffer(program, &buffer);
}

/* Field by field, as equal programs are equal bytes. */
static void set_batch_norm(dsc_op *op, const dsc_op_batch_norm *from)
{
    dsc_op_batch_norm *of = &op->batch_norm;
    of->eps = from->eps, of->frozen = from->frozen;
    of->weight = from->weight, of->bias = from->bias, of->mean = from->mean, of->variance = from->variance;
}

static dsc_op_batch_norm declare_batch_norm(dsc_program *program, const dsc_program_batch_norm_args *args,
                                            int64_t columns)
{
    const dsc_program_buffer steps = {
        .name = args->name, .part = "num_batches_tracked", .kind = DSC_BUFFER_STEPS, .count = 1
    };
    const dsc_op_batch_norm out = { .eps = args->eps,
                                    .frozen = args->frozen,
                                    .weight = declare_param(program, args, "weight", columns, DSC_INIT_ONES),
                                    .bias = declare_param(program, args, "bias", columns, DSC_INIT_ZEROS),
                                    .mean = declare_average(program, args, "running_mean", columns, 0),
                                    .variance = declare_average(program, args, "running_var", columns, 1) };
    if (!args->frozen)
        (void)dsc_program_declare_buffer(program, &steps);
    return out;
}

int16_t dsc_program_batch_norm(dsc_program *program, int16_t x, const dsc_program_batch_norm_args *args)
{
    if (!dsc_program_is_value(program, DSC_OP_BATCH_NORM, args->name, x))
        return DSC_PROGRAM_NONE;
    const dsc_value *in = &program->value[x];
    if (!(args->eps > 0 && args->eps < 1e6) || !(args->momentum >= 0 && args->momentum <= 1) || in->f32)
        REFUSE(program,
               "op \"%.60s\" (batch_norm): eps %g and momentum %g; expected an eps above 0 and a momentum from 0 to 1",
               args->name, args->eps, args->momentum);
    const dsc_op_batch_norm own = declare_batch_norm(program, args, in->columns);
    dsc_op *stats = program->status == DSC_OK ? dsc_program_add_forward(program, DSC_OP_BATCH_STATS, args->name) : NULL;
    if (stats == NULL)
        return DSC_PROGRAM_NONE;
    const dsc_value shape = { .rows = 2, .columns = in->columns, .f32 = true };
    stats->in[0] = x;
    const int16_t s = dsc_program_add_output(program, stats, 0, stats->name, shape);
    set_batch_norm(stats, &own);
    dsc_op *op = add_op(program, DSC_OP_BATCH_NORM, args->name, x, 0);
    if (op == NULL)
        return DSC_PROGRAM_NONE;
    op->in[1] = s;
    set_batch_norm(op, &own);
    return op->out[0];
}

/* ---- windows ----------------------------------------------------------------------------------------------------- */

static bool is_map(dsc_program *program, int16_t x)
{
    if (!dsc_program_is_value(program, DSC_OP_POOL, NULL, x))
        return false;
    const dsc_value *in = &program->value[x];
    if (dsc_value_pictures(in) == 0 || in->rows > INT32_MAX || in->f32)
        REFUSE(program,
               "op \"pool\": the rows of its input \"%.60s\" [%lld,%lld] are not a picture of %lld by %lld pixels",
               in->name, (long long)in->rows, (long long)in->columns, (long long)in->height, (long long)in->width);
    return program->status == DSC_OK;
}

static int16_t add_pool(dsc_program *program, int16_t x, const dsc_op_pool *shape)
{
    const int64_t pictures = dsc_value_pictures(&program->value[x]);
    dsc_op *op = add_op(program, DSC_OP_POOL, NULL, x, pictures * shape->out_height * shape->out_width);
    if (op == NULL)
        return DSC_PROGRAM_NONE;
    dsc_value *y = &program->value[op->out[0]];
    y->height = shape->out_height, y->width = shape->out_width;
    op->pool.kind = shape->kind;
    op->pool.height = shape->height, op->pool.width = shape->width;
    op->pool.out_height = shape->out_height, op->pool.out_width = shape->out_width;
    op->pool.kernel = shape->kernel, op->pool.stride = shape->stride, op->pool.padding = shape->padding;
    if (shape->kind != DSC_POOL_MAX)
        return op->out[0];
    dsc_value chosen = *y;
    chosen.f32 = true; /* an int32 is as long */
    (void)dsc_program_add_output(program, op, 1, op->name, chosen);
    return op->out[0];
}

static int16_t windows(dsc_program *program, int16_t x, const dsc_op_pool *args, dsc_pool_kind kind)
{
    dsc_op_pool own = *args;
    if (!is_map(program, x))
        return DSC_PROGRAM_NONE;
    own.kind = kind, own.height = program->value[x].height, own.width = program->value[x].width;
    if (own.kernel < 1 || own.kernel > WINDOW_MAX || own.stride < 1 || own.stride > WINDOW_MAX || own.padding < 0 ||
        own.padding > own.kernel / 2 || own.height + 2 * own.padding < own.kernel ||
        own.width + 2 * own.padding < own.kernel)
        REFUSE(program,
               "op \"pool\": pictures of %lld by %lld pixels with windows of %lld, %lld apart, and a padding of %lld; "
               "expected windows within the padded picture, and a padding of half a window at most",
               (long long)own.height, (long long)own.width, (long long)own.kernel, (long long)own.stride,
               (long long)own.padding);
    if (program->status != DSC_OK)
        return DSC_PROGRAM_NONE;
    own.out_height = dsc_pool_out(own.height, own.kernel, own.stride, own.padding);
    own.out_width = dsc_pool_out(own.width, own.kernel, own.stride, own.padding);
    return add_pool(program, x, &own);
}

int16_t dsc_program_max_pool(dsc_program *program, int16_t x, const dsc_op_pool *args)
{
    return windows(program, x, args, DSC_POOL_MAX);
}

int16_t dsc_program_average_pool(dsc_program *program, int16_t x, const dsc_op_pool *args)
{
    return windows(program, x, args, DSC_POOL_MEAN);
}

int16_t dsc_program_mean_pool(dsc_program *program, int16_t x, int64_t height, int64_t width)
{
    if (!is_map(program, x))
        return DSC_PROGRAM_NONE;
    if (height < 1 || width < 1 || height > WINDOW_MAX || width > WINDOW_MAX)
        REFUSE(program, "op \"pool\": a mean of %lld by %lld windows; expected 1 to %d on each side", (long long)height,
               (long long)width, WINDOW_MAX);
    if (program->status != DSC_OK)
        return DSC_PROGRAM_NONE;
    const dsc_op_pool own = { .kind = DSC_POOL_ADAPTIVE,
                              .height = program->value[x].height,
                              .width = program->value[x].width,
                              .out_height = height,
                              .out_width = width };
    return add_pool(program, x, &own);
}

/* ---- whole samples ----------------------------------------------------------------------------------------------- */

int16_t dsc_program_scale_rows(dsc_program *program, int16_t x, int16_t scale)
{
    if (!dsc_program_is_value(program, DSC_OP_SAMPLE_SCALE, NULL, scale) ||
        !dsc_program_is_value(program, DSC_OP_SAMPLE_SCALE, NULL, x))
        return DSC_PROGRAM_NONE;
    const dsc_value *in = &program->value[x], *by = &program->value[scale];
    if (by->rows != 1 || !by->per_sample || !in->per_sample || by->columns != in->columns || in->f32 || by->f32)
        REFUSE(program,
               "op \"sample_scale\": its input \"%.60s\" is [%lld,%lld] and its scale \"%.60s\" [%lld,%lld]; expected "
               "one row as wide for each sample",
               in->name, (long long)in->rows, (long long)in->columns, by->name, (long long)by->rows,
               (long long)by->columns);
    dsc_op *op = program->status == DSC_OK ? add_op(program, DSC_OP_SAMPLE_SCALE, NULL, x, 0) : NULL;
    if (op == NULL)
        return DSC_PROGRAM_NONE;
    op->in[1] = scale;
    return op->out[0];
}

int16_t dsc_program_drop_path(dsc_program *program, int16_t x, double probability, uint32_t stream)
{
    const int16_t y = dsc_program_dropout(program, x, probability, stream);
    if (y == DSC_PROGRAM_NONE)
        return y;
    if (!program->value[x].per_sample)
        REFUSE(program, "op \"dropout\": its input \"%.60s\" has no rows of a sample", program->value[x].name);
    program->op[program->value[y].maker].dropout.per_sample = true;
    return program->status == DSC_OK ? y : DSC_PROGRAM_NONE;
}
