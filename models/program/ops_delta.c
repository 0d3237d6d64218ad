/* ops_delta.c - launches and costs of linear attention: columns side by side, the convolution in front of it, and the
 * gated delta rule. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/device.h"
#include "models/program/ops.h"

enum { CONV_INPUTS = 3 };

/* ---- columns ----------------------------------------------------------------------------------------------------- */

/* Where the columns of a value lie. */
static dsc_columns columns_of(const dsc_exec *exec, int16_t value)
{
    const dsc_place *place = dsc_exec_place(exec, value);
    return (dsc_columns) { place->stride, place->width, place->apart > 0 ? place->apart : place->width };
}

dsc_status dsc_op_run_pack(dsc_exec *exec, const dsc_op *op)
{
    const dsc_copy_columns_args args = { .out = dsc_exec_at(exec, op->out[0]),
                                         .in = dsc_exec_at(exec, op->in[0]),
                                         .rows = dsc_exec_rows(exec, op->in[0]),
                                         .cols = dsc_exec_value(exec, op->in[0])->columns,
                                         .out_columns = columns_of(exec, op->out[0]),
                                         .in_columns = columns_of(exec, op->in[0]),
                                         .dtype = exec->ctx->dtype };
    return DSC_RUN(exec->ctx->stream, COPY_COLUMNS, &args, exec->err);
}

/* ---- convolution ------------------------------------------------------------------------------------------------- */

static char *elements(const dsc_exec *exec, const void *base, int64_t count)
{
    return (char *)(uintptr_t)base + count * (int64_t)dsc_dtype_bytes(exec->ctx->dtype);
}

dsc_status dsc_op_run_conv(dsc_exec *exec, const dsc_op *op)
{
    const dsc_op_conv *of = &op->conv;
    char *const out = dsc_exec_at(exec, op->out[0]), *const state = dsc_exec_state(exec, op);
    int64_t first = 0;
    for (int i = 0; i < CONV_INPUTS && op->in[i] != DSC_PROGRAM_NONE; i++) {
        const int64_t channels = dsc_exec_value(exec, op->in[i])->columns;
        const dsc_conv_fwd_args args = { .out = elements(exec, out, first),
                                         .in = dsc_exec_at(exec, op->in[i]),
                                         .weight = elements(exec, exec->ctx->param[of->weight], first * of->width),
                                         .positions = dsc_exec_positions(exec),
                                         .tail = state != NULL ? elements(exec, state, first * (of->width - 1)) : NULL,
                                         .rows = dsc_exec_rows(exec, op->in[i]),
                                         .tokens = exec->program->tokens,
                                         .channels = channels,
                                         .out_stride = dsc_exec_value(exec, op->out[0])->columns,
                                         .in_columns = columns_of(exec, op->in[i]),
                                         .width = of->width,
                                         .resume = state != NULL && exec->ctx->past > 0,
                                         .dtype = exec->ctx->dtype };
        DSC_TRY(DSC_RUN(exec->ctx->stream, CONV_FWD, &args, exec->err));
        first += channels;
    }
    return DSC_OK;
}

dsc_status dsc_op_run_conv_bwd(dsc_exec *exec, const dsc_op *op)
{
    const dsc_op_conv *of = &op->conv;
    float *const d_weight = exec->ctx->grad[of->weight];
    int64_t first = 0;
    for (int i = 0; i < CONV_INPUTS && op->in[1 + i] != DSC_PROGRAM_NONE; i++) {
        const int64_t channels = dsc_exec_value(exec, op->in[1 + i])->columns;
        const dsc_conv_bwd_args args = { .d_in = dsc_exec_at(exec, op->out[i]),
                                         .d_weight = d_weight != NULL ? d_weight + first * of->width : NULL,
                                         .d_out = elements(exec, dsc_exec_at(exec, op->in[0]), first),
                                         .in = dsc_exec_at(exec, op->in[1 + i]),
                                         .weight = elements(exec, exec->ctx->param[of->weight], first * of->width),
                                         .positions = dsc_exec_positions(exec),
                                         .rows = dsc_exec_rows(exec, op->in[1 + i]),
                                         .tokens = exec->program->tokens,
                                         .channels = channels,
                                         .out_stride = dsc_exec_value(exec, op->in[0])->columns,
                                         .d_in_columns = columns_of(exec, op->out[i]),
                                         .in_columns = columns_of(exec, op->in[1 + i]),
                                         .width = of->width,
                                         .dtype = exec->ctx->dtype };
        DSC_TRY(DSC_RUN(exec->ctx->stream, CONV_BWD, &args, exec->err));
        first += channels;
    }
    return DSC_OK;
}

/* The last rows of the inputs. */
int64_t dsc_op_conv_state(const dsc_program *program, const dsc_op *op, dsc_dtype dtype)
{
    return (op->conv.width - 1) * program->value[op->out[0]].columns * (int64_t)dsc_dtype_bytes(dtype);
}

dsc_status dsc_rule_conv(dsc_tape *t, dsc_op *conv, dsc_error *err)
{
    dsc_op *op = dsc_tape_emit(t, DSC_OP_CONV_BWD, conv);
    int16_t made[CONV_INPUTS];
    int count = 0;
    op->in[0] = t->gradient[conv->out[0]];
    for (; count < CONV_INPUTS && conv->in[count] != DSC_PROGRAM_NONE; count++) {
        op->in[1 + count] = conv->in[count];
        made[count] = dsc_tape_emit_value(t, op, count, conv->in[count]);
    }
    for (int i = 0; i < count && !t->full; i++)
        dsc_tape_add(t, conv, conv->in[i], made[i]);
    return DSC_OK;
}

/* ---- gated delta rule -------------------------------------------------------------------------------------------- */

static dsc_delta_shape shape_of(const dsc_program *program, const dsc_op_delta *of, int64_t batch)
{
    return (dsc_delta_shape) { .batch = (int32_t)batch,
                               .tokens = (int32_t)program->tokens,
                               .key_heads = (int32_t)of->key_heads,
                               .value_heads = (int32_t)of->value_heads,
                               .key_size = (int32_t)of->key_size,
                               .value_size = (int32_t)of->value_size };
}

dsc_status dsc_op_run_delta(dsc_exec *exec, const dsc_op *op)
{
    const dsc_module_ctx *ctx = exec->ctx;
    char *const state = dsc_exec_state(exec, op);
    const dsc_delta_fwd_args args = { .out = dsc_exec_at(exec, op->out[0]),
                                      .states = dsc_exec_floats(exec, op->out[1]),
                                      .qkv = dsc_exec_at(exec, op->in[0]),
                                      .b = dsc_exec_at(exec, op->in[1]),
                                      .a = dsc_exec_at(exec, op->in[2]),
                                      .a_log = ctx->param[op->delta.a_log],
                                      .dt_bias = ctx->param[op->delta.dt_bias],
                                      .positions = dsc_exec_positions(exec),
                                      .state = (float *)(void *)state,
                                      .resume = state != NULL && ctx->past > 0,
                                      .scratch = dsc_exec_work(exec, op),
                                      .shape = shape_of(exec->program, &op->delta, ctx->batch),
                                      .dtype = ctx->dtype };
    return DSC_RUN(ctx->stream, DELTA_FWD, &args, exec->err);
}

dsc_status dsc_op_run_delta_bwd(dsc_exec *exec, const dsc_op *op)
{
    const dsc_module_ctx *ctx = exec->ctx;
    const dsc_delta_bwd_args args = { .d_qkv = dsc_exec_at(exec, op->out[0]),
                                      .d_b = dsc_exec_at(exec, op->out[1]),
                                      .d_a = dsc_exec_at(exec, op->out[2]),
                                      .d_a_log = ctx->grad[op->delta.a_log],
                                      .d_dt_bias = ctx->grad[op->delta.dt_bias],
                                      .d_out = dsc_exec_at(exec, op->in[0]),
                                      .states = dsc_exec_floats(exec, op->in[1]),
                                      .qkv = dsc_exec_at(exec, op->in[2]),
                                      .b = dsc_exec_at(exec, op->in[3]),
                                      .a = dsc_exec_at(exec, op->in[4]),
                                      .a_log = ctx->param[op->delta.a_log],
                                      .dt_bias = ctx->param[op->delta.dt_bias],
                                      .positions = dsc_exec_positions(exec),
                                      .scratch = dsc_exec_work(exec, op),
                                      .shape = shape_of(exec->program, &op->delta, ctx->batch),
                                      .dtype = ctx->dtype };
    return DSC_RUN(ctx->stream, DELTA_BWD, &args, exec->err);
}

int64_t dsc_op_delta_scratch(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of)
{
    const dsc_delta_shape shape = shape_of(program, &op->delta, of->batch);
    return dsc_delta_fwd_scratch_bytes(&shape);
}

int64_t dsc_op_delta_bwd_scratch(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of)
{
    const dsc_delta_shape shape = shape_of(program, &op->delta, of->batch);
    return dsc_delta_bwd_scratch_bytes(&shape);
}

int64_t dsc_op_delta_state(const dsc_program *program, const dsc_op *op, dsc_dtype dtype)
{
    const dsc_op_delta *of = &op->delta;
    return of->value_heads * of->key_size * of->value_size * 4;
}

/* Products with the state, three of them, and with the half of a chunk: pairs of keys, of queries with keys, and two
 * sums over what tokens write. */
double dsc_op_delta_flops(const dsc_program *program, const dsc_op *op, int64_t batch)
{
    const dsc_op_delta *of = &op->delta;
    const double keys = (double)of->key_size, values = (double)of->value_size, half = DSC_DELTA_CHUNK / 2.0;
    return 2.0 * (double)(batch * program->tokens * of->value_heads) *
           (3 * keys * values + half * (2 * keys + 2 * values));
}
