/* ops_moe.c - launches of mixture of experts. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/columns.h"
#include "kernels/device.h"
#include "models/program/ops.h"

static int32_t *ints_at(const dsc_exec *exec, int16_t value) { return (int32_t *)(void *)dsc_exec_at(exec, value); }

static int32_t columns_of(const dsc_exec *exec, int16_t value) { return (int32_t)dsc_exec_value(exec, value)->columns; }

/* ---- routing ----------------------------------------------------------------------------------------------------- */

/* The router's record; false: none is kept. */
static bool record_of(const dsc_exec *exec, const dsc_op *op, dsc_moe_record *out)
{
    const dsc_module_ctx *ctx = exec->ctx;
    if (op->record == 0 || ctx->records == NULL || !ctx->training)
        return false;
    DSC_ASSERT(ctx->first_record + op->record <= ctx->experts->routers);
    DSC_ASSERT(op->rule.experts == ctx->experts->experts);
    *out = dsc_moe_record_at(ctx->records, ctx->first_record + op->record - 1, op->rule.experts, ctx->batch);
    return true;
}

static bool has_losses(const dsc_exec *exec) { return exec->ctx->experts->balance > 0 || exec->ctx->experts->z > 0; }

/* Of forward's sums, or of factors in backward. */
int64_t dsc_op_router_scratch(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of)
{
    return op->record != 0 ? dsc_moe_tally_words(op->rule.experts) * 4 : 0;
}

int64_t dsc_op_router_bwd_scratch(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of)
{
    return op->record != 0 ? (op->rule.experts + 1) * 4 : 0;
}

static dsc_status tally(dsc_exec *exec, const dsc_op *op)
{
    const dsc_module_ctx *ctx = exec->ctx;
    dsc_moe_record record;
    if (!record_of(exec, op, &record))
        return DSC_OK;
    const int32_t targets = ctx->experts->targets;
    const dsc_moe_tally_args args = { .out = record,
                                      .work = (float *)(void *)dsc_exec_work(exec, op),
                                      .logits = has_losses(exec) ? dsc_exec_at(exec, op->in[0]) : NULL,
                                      .chosen = ints_at(exec, op->out[1]),
                                      .targets = targets >= 0 ? ctx->batch_data[targets] : NULL,
                                      .samples = ctx->batch,
                                      .length = dsc_exec_rows(exec, op->in[0]) / ctx->batch,
                                      .experts = op->rule.experts,
                                      .top_k = op->rule.top_k,
                                      .dtype = dsc_exec_dtype(exec, op->in[0]) };
    return DSC_RUN(ctx->stream, MOE_TALLY, &args, exec->err);
}

/* Adds the gradient of the routers' losses. */
static dsc_status add_losses(dsc_exec *exec, const dsc_op *op)
{
    const dsc_module_ctx *ctx = exec->ctx;
    dsc_moe_record record;
    if (!record_of(exec, op, &record) || !has_losses(exec))
        return DSC_OK;
    const dsc_moe_balance_bwd_args args = { .d_logits = dsc_exec_at(exec, op->out[0]),
                                            .logits = dsc_exec_at(exec, op->in[2]),
                                            .records = ctx->records,
                                            .own = record,
                                            .work = (float *)(void *)dsc_exec_work(exec, op),
                                            .samples = ctx->batch,
                                            .length = dsc_exec_rows(exec, op->in[2]) / ctx->batch,
                                            .layers = ctx->experts->routers,
                                            .experts = op->rule.experts,
                                            .balance = (float)ctx->experts->balance * ctx->loss_scale,
                                            .z = (float)ctx->experts->z * ctx->loss_scale,
                                            .by_counted = !ctx->pairs,
                                            .dtype = dsc_exec_dtype(exec, op->in[2]),
                                            .d_dtype = dsc_exec_dtype(exec, op->out[0]) };
    return DSC_RUN(ctx->stream, MOE_BALANCE_BWD, &args, exec->err);
}

dsc_status dsc_op_run_router(dsc_exec *exec, const dsc_op *op)
{
    const dsc_moe_route_fwd_args args = { .weights = dsc_exec_floats(exec, op->out[0]),
                                          .chosen = ints_at(exec, op->out[1]),
                                          .logits = dsc_exec_at(exec, op->in[0]),
                                          .bias = op->router.bias >= 0 ? exec->ctx->buffer[op->router.bias] : NULL,
                                          .tokens = dsc_exec_rows(exec, op->in[0]),
                                          .rule = op->rule,
                                          .dtype = dsc_exec_dtype(exec, op->in[0]) };
    DSC_TRY(DSC_RUN(exec->ctx->stream, MOE_ROUTE_FWD, &args, exec->err));
    return tally(exec, op);
}

dsc_status dsc_op_run_router_bwd(dsc_exec *exec, const dsc_op *op)
{
    const dsc_moe_route_bwd_args args = { .d_logits = dsc_exec_at(exec, op->out[0]),
                                          .d_weights = dsc_exec_floats(exec, op->in[0]),
                                          .chosen = ints_at(exec, op->in[1]),
                                          .logits = dsc_exec_at(exec, op->in[2]),
                                          .tokens = dsc_exec_rows(exec, op->in[2]),
                                          .rule = op->rule,
                                          .dtype = dsc_exec_dtype(exec, op->in[2]),
                                          .d_dtype = dsc_exec_dtype(exec, op->out[0]) };
    DSC_TRY(DSC_RUN(exec->ctx->stream, MOE_ROUTE_BWD, &args, exec->err));
    return add_losses(exec, op);
}

dsc_status dsc_op_run_order(dsc_exec *exec, const dsc_op *op)
{
    const dsc_moe_order_args args = { .place = ints_at(exec, op->out[0]),
                                      .source = ints_at(exec, op->out[1]),
                                      .starts = ints_at(exec, op->out[2]),
                                      .chosen = ints_at(exec, op->in[0]),
                                      .slots = dsc_exec_elements(exec, op->in[0]),
                                      .experts = op->rule.experts };
    return DSC_RUN(exec->ctx->stream, MOE_ORDER, &args, exec->err);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Between `tokens` and the rows of their slots; the caller sets the order. */
static dsc_moe_dispatch_args dispatch_of(const dsc_exec *exec, int16_t out, int16_t in, int16_t tokens, int16_t rows)
{
    const int64_t count = dsc_exec_rows(exec, tokens);
    return (dsc_moe_dispatch_args) { .out = dsc_exec_at(exec, out),
                                     .in = dsc_exec_at(exec, in),
                                     .tokens = count,
                                     .channels = columns_of(exec, tokens),
                                     .top_k = (int32_t)(dsc_exec_rows(exec, rows) / count),
                                     .dtype = exec->ctx->dtype };
}

dsc_status dsc_op_run_dispatch(dsc_exec *exec, const dsc_op *op)
{
    dsc_moe_dispatch_args args = dispatch_of(exec, op->out[0], op->in[0], op->in[0], op->out[0]);
    args.order = ints_at(exec, op->in[1]);
    return DSC_RUN(exec->ctx->stream, MOE_DISPATCH_FWD, &args, exec->err);
}

dsc_status dsc_op_run_dispatch_bwd(dsc_exec *exec, const dsc_op *op)
{
    dsc_moe_dispatch_args args = dispatch_of(exec, op->out[0], op->in[0], op->out[0], op->in[0]);
    args.add = dsc_exec_at(exec, op->in[1]);
    args.order = ints_at(exec, op->in[2]);
    return DSC_RUN(exec->ctx->stream, MOE_DISPATCH_BWD, &args, exec->err);
}

dsc_status dsc_op_run_combine(dsc_exec *exec, const dsc_op *op)
{
    const dsc_moe_combine_fwd_args args = { .out = dsc_exec_at(exec, op->out[0]),
                                            .rows = dsc_exec_at(exec, op->in[0]),
                                            .weights = dsc_exec_floats(exec, op->in[1]),
                                            .place = ints_at(exec, op->in[2]),
                                            .tokens = dsc_exec_rows(exec, op->in[1]),
                                            .channels = columns_of(exec, op->in[0]),
                                            .top_k = columns_of(exec, op->in[1]),
                                            .dtype = exec->ctx->dtype };
    return DSC_RUN(exec->ctx->stream, MOE_COMBINE_FWD, &args, exec->err);
}

dsc_status dsc_op_run_combine_bwd(dsc_exec *exec, const dsc_op *op)
{
    const dsc_moe_combine_bwd_args args = { .d_rows = dsc_exec_at(exec, op->out[0]),
                                            .d_weights = dsc_exec_floats(exec, op->out[1]),
                                            .d_out = dsc_exec_at(exec, op->in[0]),
                                            .rows = dsc_exec_at(exec, op->in[1]),
                                            .weights = dsc_exec_floats(exec, op->in[2]),
                                            .place = ints_at(exec, op->in[3]),
                                            .tokens = dsc_exec_rows(exec, op->in[2]),
                                            .channels = columns_of(exec, op->in[1]),
                                            .top_k = columns_of(exec, op->in[2]),
                                            .dtype = exec->ctx->dtype };
    return DSC_RUN(exec->ctx->stream, MOE_COMBINE_BWD, &args, exec->err);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Bytes of all experts' matrices side by side, of those that are stored spread. */
static int64_t matrix_bytes(const dsc_op *op, dsc_dtype dtype)
{
    const dsc_op_grouped *of = &op->grouped;
    return of->spread ? of->experts * of->in * of->out * (int64_t)dsc_dtype_bytes(dtype) : 0;
}

int64_t dsc_op_grouped_scratch(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of)
{
    return matrix_bytes(op, of->dtype);
}

int64_t dsc_op_grouped_dw_scratch(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of)
{
    return matrix_bytes(op, DSC_F32);
}

/* Between `spread`, the parameter or its gradient, and matrices side by side. */
static dsc_status turn(const dsc_exec *exec, const dsc_op *op, void *spread, void *side_by_side, bool back,
                       dsc_dtype dtype)
{
    const dsc_op_grouped *of = &op->grouped;
    const int64_t each = of->in * of->out;
    void *const first = (char *)spread + of->first * of->experts * (int64_t)dsc_dtype_bytes(dtype);
    const dsc_columns apart = { .stride = 1, .width = 1, .apart = of->experts };
    const dsc_columns dense = { .stride = each, .width = each, .apart = each };
    const dsc_copy_columns_args args = { .out = back ? first : side_by_side,
                                         .in = back ? side_by_side : first,
                                         .rows = of->experts,
                                         .cols = each,
                                         .out_columns = back ? apart : dense,
                                         .in_columns = back ? dense : apart,
                                         .dtype = dtype };
    return DSC_RUN(exec->ctx->stream, COPY_COLUMNS, &args, exec->err);
}

/* A product by matrices that are stored [in,out] is the one that gives gradients of inputs, with in and out changed. */
static dsc_grouped_gemm_args grouped_of(const dsc_exec *exec, const dsc_op *op, dsc_grouped_kind kind, int16_t starts)
{
    const dsc_op_grouped *of = &op->grouped;
    if (of->in_out && kind != DSC_GROUPED_WEIGHT)
        kind = kind == DSC_GROUPED_FORWARD ? DSC_GROUPED_INPUT : DSC_GROUPED_FORWARD;
    return (dsc_grouped_gemm_args) { .a = dsc_exec_at(exec, op->in[0]),
                                     .b = of->spread ? (void *)dsc_exec_work(exec, op) : exec->ctx->param[of->weight],
                                     .c = dsc_exec_at(exec, op->out[0]),
                                     .starts = ints_at(exec, starts),
                                     .rows = dsc_exec_rows(exec, op->in[0]),
                                     .in = of->in_out ? of->out : of->in,
                                     .out = of->in_out ? of->in : of->out,
                                     .experts = of->experts,
                                     .kind = kind,
                                     .dtype = exec->ctx->dtype };
}

/* The product, with its matrices side by side. */
static dsc_status multiply(dsc_exec *exec, const dsc_op *op, const dsc_grouped_gemm_args *args)
{
    void *const weight = (void *)(uintptr_t)exec->ctx->param[op->grouped.weight];
    if (op->grouped.spread)
        DSC_TRY(turn(exec, op, weight, dsc_exec_work(exec, op), false, exec->ctx->dtype));
    return DSC_RUN(exec->ctx->stream, GROUPED_GEMM, args, exec->err);
}

dsc_status dsc_op_run_grouped(dsc_exec *exec, const dsc_op *op)
{
    dsc_grouped_gemm_args args = grouped_of(exec, op, DSC_GROUPED_FORWARD, op->in[1]);
    args.add = dsc_exec_at(exec, op->in[2]);
    DSC_TRY(multiply(exec, op, &args));
    if (op->grouped.bias == DSC_PROGRAM_NONE)
        return DSC_OK;
    const dsc_expert_bias_fwd_args bias = { .x = args.c,
                                            .bias = exec->ctx->param[op->grouped.bias],
                                            .starts = args.starts,
                                            .rows = args.rows,
                                            .cols = op->grouped.out,
                                            .experts = op->grouped.experts,
                                            .dtype = exec->ctx->dtype };
    return DSC_RUN(exec->ctx->stream, EXPERT_BIAS_FWD, &bias, exec->err);
}

dsc_status dsc_op_run_grouped_dx(dsc_exec *exec, const dsc_op *op)
{
    dsc_grouped_gemm_args args = grouped_of(exec, op, DSC_GROUPED_INPUT, op->in[2]);
    args.add = dsc_exec_at(exec, op->in[1]);
    return multiply(exec, op, &args);
}

static dsc_status bias_gradient(dsc_exec *exec, const dsc_op *op)
{
    const dsc_expert_bias_bwd_args args = { .d_bias = exec->ctx->grad[op->grouped.bias],
                                            .d_x = dsc_exec_at(exec, op->in[1]),
                                            .starts = ints_at(exec, op->in[2]),
                                            .rows = dsc_exec_rows(exec, op->in[1]),
                                            .cols = op->grouped.out,
                                            .experts = op->grouped.experts,
                                            .dtype = exec->ctx->dtype };
    return args.d_bias != NULL ? DSC_RUN(exec->ctx->stream, EXPERT_BIAS_BWD, &args, exec->err) : DSC_OK;
}

dsc_status dsc_op_run_grouped_dw(dsc_exec *exec, const dsc_op *op)
{
    dsc_grouped_gemm_args args = grouped_of(exec, op, DSC_GROUPED_WEIGHT, op->in[2]);
    const void *const x = args.a, *const d = dsc_exec_at(exec, op->in[1]);
    float *const gradient = exec->ctx->grad[op->grouped.weight];
    args.a = op->grouped.in_out ? x : d;
    args.b = op->grouped.in_out ? d : x;
    args.c = op->grouped.spread ? (void *)dsc_exec_work(exec, op) : gradient;
    if (op->grouped.bias != DSC_PROGRAM_NONE)
        DSC_TRY(bias_gradient(exec, op));
    if (gradient == NULL)
        return DSC_OK;
    DSC_TRY(DSC_RUN(exec->ctx->stream, GROUPED_GEMM, &args, exec->err));
    return op->grouped.spread ? turn(exec, op, gradient, args.c, true, DSC_F32) : DSC_OK;
}

double dsc_op_grouped_flops(const dsc_program *program, const dsc_op *op, int64_t batch)
{
    return 2.0 * (double)dsc_value_rows(&program->value[op->in[0]], batch) * (double)op->grouped.in *
           (double)op->grouped.out;
}

/* A frozen matrix has no gradient. */
dsc_status dsc_op_plan_grouped(const dsc_program *program, const dsc_op *op, int64_t batch, dsc_linear_planned *plan,
                               dsc_error *err)
{
    const double each = dsc_op_grouped_flops(program, op, batch);
    plan->forward_flops += each;
    plan->backward_flops += plan->module->params[op->grouped.weight].trainable ? 2 * each : each;
    return DSC_OK;
}
