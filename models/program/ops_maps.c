/* ops_maps.c - launches and backward rules of what convolutional networks have beside their convolutions.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/device.h"
#include "models/program/ops.h"

/* ---- batch normalization ----------------------------------------------------------------------------------------- */

/* Input 0 has the rows of x. */
int64_t dsc_op_batch_norm_scratch(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of)
{
    const dsc_value *x = &program->value[op->in[0]];
    return 4 * dsc_batch_norm_scratch(dsc_value_rows(x, of->batch), x->columns);
}

static bool is_constant(const dsc_exec *exec, const dsc_op *op)
{
    const dsc_module_ctx *ctx = exec->ctx;
    return op->batch_norm.frozen || !ctx->training || (ctx->constant != NULL && ctx->constant[op->batch_norm.mean]);
}

static dsc_batch_stats_args stats_of(const dsc_exec *exec, const dsc_op *op)
{
    return (dsc_batch_stats_args) { .stats = dsc_exec_floats(exec, op->out[0]),
                                    .x = dsc_exec_at(exec, op->in[0]),
                                    .scratch = (float *)(void *)dsc_exec_work(exec, op),
                                    .rows = dsc_exec_rows(exec, op->in[0]),
                                    .channels = dsc_exec_value(exec, op->in[0])->columns,
                                    .eps = (float)op->batch_norm.eps,
                                    .dtype = exec->ctx->dtype };
}

/* Memory for a statistic of the micro-batch; NULL: it is not wanted. */
static float *statistic_at(const dsc_exec *exec, int32_t buffer)
{
    const dsc_module_ctx *ctx = exec->ctx;
    const bool wanted = exec->pass == DSC_PASS_FORWARD && ctx->training && ctx->statistic != NULL;
    return wanted ? ctx->statistic[buffer] : NULL;
}

dsc_status dsc_op_run_batch_stats(dsc_exec *exec, const dsc_op *op)
{
    const dsc_module_ctx *ctx = exec->ctx;
    const dsc_op_batch_norm *of = &op->batch_norm;
    const bool constant = is_constant(exec, op);
    dsc_batch_stats_args args = stats_of(exec, op);
    DSC_ASSERT(!constant || ctx->buffer != NULL);
    args.mean = statistic_at(exec, of->mean), args.variance = statistic_at(exec, of->variance);
    args.running_mean = constant ? ctx->buffer[of->mean] : NULL;
    args.running_variance = constant ? ctx->buffer[of->variance] : NULL;
    return DSC_RUN(ctx->stream, BATCH_STATS, &args, exec->err);
}

dsc_status dsc_op_run_batch_norm(dsc_exec *exec, const dsc_op *op)
{
    const dsc_module_ctx *ctx = exec->ctx;
    const dsc_op_batch_norm *of = &op->batch_norm;
    const dsc_batch_norm_fwd_args args = { .out = dsc_exec_at(exec, op->out[0]),
                                           .x = dsc_exec_at(exec, op->in[0]),
                                           .add = dsc_exec_at(exec, op->in[2]),
                                           .stats = dsc_exec_floats(exec, op->in[1]),
                                           .weight = ctx->param[of->weight],
                                           .bias = ctx->param[of->bias],
                                           .rows = dsc_exec_rows(exec, op->in[0]),
                                           .channels = dsc_exec_value(exec, op->in[0])->columns,
                                           .activates = of->activates,
                                           .kind = of->kind,
                                           .dtype = ctx->dtype };
    return DSC_RUN(ctx->stream, BATCH_NORM_FWD, &args, exec->err);
}

static dsc_batch_norm_bwd_args gradients_of(const dsc_exec *exec, const dsc_op *op)
{
    const dsc_module_ctx *ctx = exec->ctx;
    const dsc_op_batch_norm *of = &op->batch_norm;
    return (dsc_batch_norm_bwd_args) { .d_x = dsc_exec_at(exec, op->out[0]),
                                       .d_add = dsc_exec_at(exec, op->out[1]),
                                       .d_weight = ctx->grad[of->weight],
                                       .d_bias = ctx->grad[of->bias],
                                       .d_out = dsc_exec_at(exec, op->in[0]),
                                       .x = dsc_exec_at(exec, op->in[1]),
                                       .add = dsc_exec_at(exec, op->in[3]),
                                       .stats = dsc_exec_floats(exec, op->in[2]),
                                       .weight = ctx->param[of->weight],
                                       .bias = ctx->param[of->bias],
                                       .scratch = (float *)(void *)dsc_exec_work(exec, op),
                                       .rows = dsc_exec_rows(exec, op->in[0]),
                                       .channels = dsc_exec_value(exec, op->in[0])->columns,
                                       .activates = of->activates,
                                       .constant = is_constant(exec, op),
                                       .kind = of->kind,
                                       .dtype = ctx->dtype };
}

dsc_status dsc_op_run_batch_norm_bwd(dsc_exec *exec, const dsc_op *op)
{
    const dsc_batch_norm_bwd_args args = gradients_of(exec, op);
    return DSC_RUN(exec->ctx->stream, BATCH_NORM_BWD, &args, exec->err);
}

/* ---- batch normalization over the micro-batches of a group ------------------------------------------------------- */

int64_t dsc_op_batch_norm_numbers(const dsc_exec *exec, const dsc_op *op)
{
    return is_constant(exec, op) ? 0 : 2 * dsc_exec_value(exec, op->in[0])->columns;
}

/* Numbers that this micro-batch shares. */
static float *shared_at(const dsc_exec *exec, int64_t channels)
{
    return exec->ctx->norm_group->own + exec->part * 2 * channels;
}

static dsc_batch_norm_join_args join_of(const dsc_exec *exec, const dsc_op *op)
{
    const dsc_norm_group *group = exec->ctx->norm_group;
    return (dsc_batch_norm_join_args) { .parts = group->all,
                                        .ranks = group->ranks,
                                        .each = group->each,
                                        .rows = dsc_exec_rows(exec, op->in[0]),
                                        .channels = dsc_exec_value(exec, op->in[0])->columns,
                                        .eps = (float)op->batch_norm.eps };
}

dsc_status dsc_op_share_batch_stats(dsc_exec *exec, const dsc_op *op)
{
    dsc_batch_stats_args args = stats_of(exec, op);
    args.mean = shared_at(exec, args.channels), args.variance = args.mean + args.channels;
    return DSC_RUN(exec->ctx->stream, BATCH_STATS, &args, exec->err);
}

dsc_status dsc_op_finish_batch_stats(dsc_exec *exec, const dsc_op *op)
{
    dsc_batch_norm_join_args args = join_of(exec, op);
    args.out = dsc_exec_floats(exec, op->out[0]);
    args.mean = statistic_at(exec, op->batch_norm.mean), args.variance = statistic_at(exec, op->batch_norm.variance);
    return DSC_RUN(exec->ctx->stream, BATCH_NORM_JOIN, &args, exec->err);
}

/* Gradients of weight and bias are those of the micro-batch. */
static dsc_status keep_gradient(const dsc_exec *exec, float *to, const float *from, int64_t count)
{
    const dsc_cast_args args = { .to = to, .from = from, .to_dtype = DSC_F32, .from_dtype = DSC_F32, .count = count };
    return to == NULL ? DSC_OK : DSC_RUN(exec->ctx->stream, CAST, &args, exec->err);
}

dsc_status dsc_op_share_batch_norm_bwd(dsc_exec *exec, const dsc_op *op)
{
    dsc_batch_norm_bwd_args args = gradients_of(exec, op);
    float *const d_weight = args.d_weight, *const d_bias = args.d_bias;
    args.d_bias = shared_at(exec, args.channels), args.d_weight = args.d_bias + args.channels;
    args.d_x = args.d_add = NULL;
    DSC_TRY(DSC_RUN(exec->ctx->stream, BATCH_NORM_BWD, &args, exec->err));
    DSC_TRY(keep_gradient(exec, d_bias, args.d_bias, args.channels));
    return keep_gradient(exec, d_weight, args.d_weight, args.channels);
}

dsc_status dsc_op_finish_batch_norm_bwd(dsc_exec *exec, const dsc_op *op)
{
    dsc_batch_norm_bwd_args args = gradients_of(exec, op);
    dsc_batch_norm_join_args join = join_of(exec, op);
    args.d_weight = args.d_bias = NULL;
    args.joined = true;
    join.out = dsc_batch_norm_means(args.scratch, args.rows, args.channels);
    join.gradients = true;
    DSC_TRY(DSC_RUN(exec->ctx->stream, BATCH_NORM_JOIN, &join, exec->err));
    return DSC_RUN(exec->ctx->stream, BATCH_NORM_BWD, &args, exec->err);
}

/* Without an activation the residual's gradient is that of the output, and the residual is not read. */
dsc_status dsc_rule_batch_norm(dsc_tape *t, dsc_op *norm, dsc_error *err)
{
    const int16_t add = norm->in[2], gradient = t->gradient[norm->out[0]];
    const bool own = add != DSC_PROGRAM_NONE && norm->batch_norm.activates;
    dsc_op *op = dsc_tape_emit(t, DSC_OP_BATCH_NORM_BWD, norm);
    op->in[0] = gradient, op->in[1] = norm->in[0], op->in[2] = norm->in[1], op->in[3] = own ? add : DSC_PROGRAM_NONE;
    const int16_t dx = dsc_tape_emit_value(t, op, 0, norm->in[0]);
    const int16_t d_add = own ? dsc_tape_emit_value(t, op, 1, add) : gradient;
    if (!t->full)
        dsc_tape_add(t, norm, norm->in[0], dx);
    if (!t->full && add != DSC_PROGRAM_NONE)
        dsc_tape_add(t, norm, add, d_add);
    return DSC_OK;
}

/* ---- windows ----------------------------------------------------------------------------------------------------- */

/* Between a map x and y, of its windows. */
static dsc_pool_args pool_of(const dsc_exec *exec, const dsc_op *op, int16_t y, int16_t x, int16_t chosen)
{
    return (dsc_pool_args) { .out = dsc_exec_at(exec, y),
                             .in = dsc_exec_at(exec, x),
                             .chosen = (int32_t *)(void *)dsc_exec_at(exec, chosen),
                             .shape = op->pool,
                             .samples = dsc_exec_rows(exec, x) / (op->pool.height * op->pool.width),
                             .channels = dsc_exec_value(exec, x)->columns,
                             .dtype = exec->ctx->dtype };
}

dsc_status dsc_op_run_pool(dsc_exec *exec, const dsc_op *op)
{
    const dsc_pool_args args = pool_of(exec, op, op->out[0], op->in[0], op->out[1]);
    return DSC_RUN(exec->ctx->stream, POOL_FWD, &args, exec->err);
}

dsc_status dsc_op_run_pool_bwd(dsc_exec *exec, const dsc_op *op)
{
    const dsc_pool_args args = pool_of(exec, op, op->in[0], op->out[0], op->in[1]);
    return DSC_RUN(exec->ctx->stream, POOL_BWD, &args, exec->err);
}

/* ---- one row of each sample -------------------------------------------------------------------------------------- */

/* Rows x and y of the same shape, and one row of each sample. */
static dsc_sample_scale_args scale_of(const dsc_exec *exec, int16_t y, int16_t x, int16_t scale)
{
    return (dsc_sample_scale_args) { .out = dsc_exec_at(exec, y),
                                     .in = dsc_exec_at(exec, x),
                                     .scale = dsc_exec_at(exec, scale),
                                     .samples = exec->ctx->batch,
                                     .rows = dsc_exec_value(exec, x)->rows,
                                     .channels = dsc_exec_value(exec, x)->columns,
                                     .dtype = exec->ctx->dtype };
}

dsc_status dsc_op_run_sample_scale(dsc_exec *exec, const dsc_op *op)
{
    const dsc_sample_scale_args args = scale_of(exec, op->out[0], op->in[0], op->in[1]);
    return DSC_RUN(exec->ctx->stream, SAMPLE_SCALE_FWD, &args, exec->err);
}

dsc_status dsc_op_run_sample_scale_bwd(dsc_exec *exec, const dsc_op *op)
{
    const dsc_sample_scale_args args = scale_of(exec, op->in[0], op->in[1], op->out[0]);
    return DSC_RUN(exec->ctx->stream, SAMPLE_SCALE_BWD, &args, exec->err);
}

dsc_status dsc_rule_sample_scale(dsc_tape *t, dsc_op *scale, dsc_error *err)
{
    const int16_t x = scale->in[0], s = scale->in[1], gradient = t->gradient[scale->out[0]];
    dsc_op *of_s = dsc_tape_emit(t, DSC_OP_SAMPLE_SCALE_BWD, scale);
    of_s->in[0] = gradient, of_s->in[1] = x;
    const int16_t ds = dsc_tape_emit_value(t, of_s, 0, s);
    dsc_op *of_x = dsc_tape_emit(t, DSC_OP_SAMPLE_SCALE, scale);
    of_x->in[0] = gradient, of_x->in[1] = s;
    const int16_t dx = dsc_tape_emit_value(t, of_x, 0, x);
    if (!t->full)
        dsc_tape_add(t, scale, s, ds);
    if (!t->full)
        dsc_tape_add(t, scale, x, dx);
    return DSC_OK;
}
