/* ops_lstm.c - launches and costs of LSTMs: a product and a step of gates and cells for each row of a sample.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/device.h"
#include "models/program/ops.h"

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

/* The product of y of the step before with its weight, as a layer. */
static dsc_linear_layer layer_of(const dsc_op *op)
{
    return (dsc_linear_layer) { .shape = { op->lstm.hidden, 4 * op->lstm.hidden, true },
                                .weight = op->lstm.weight,
                                .bias = op->lstm.bias };
}

/* Output 0 of forward has the rows of input 1 of backward. */
static dsc_lstm_shape shape_of(const dsc_program *program, const dsc_op *op, int64_t batch)
{
    const int16_t y = op->kind == DSC_OP_LSTM ? op->out[0] : op->in[1];
    return (dsc_lstm_shape) { .samples = batch, .steps = program->value[y].rows, .hidden = op->lstm.hidden };
}

/* [B,4H]: y of a step times the weight. */
static dsc_gemm_args forward_of(const dsc_op *op, const dsc_lstm_shape *of, dsc_dtype dtype)
{
    dsc_gemm_args args = dsc_linear_forward(layer_of(op).shape, of->samples, dtype, DSC_EPILOGUE_NONE);
    args.lda = of->steps * of->hidden;
    args.c_dtype = DSC_F32;
    return args;
}

/* [B,H]: the gradient of y from that of the gates of the step behind. */
static dsc_gemm_args backward_of(const dsc_op *op, const dsc_lstm_shape *of, dsc_dtype dtype)
{
    dsc_gemm_args args = dsc_linear_backward_input(layer_of(op).shape, of->samples, dtype, DSC_EPILOGUE_NONE);
    args.lda = 4 * of->steps * of->hidden;
    args.c_dtype = DSC_F32;
    return args;
}

/* Byte offsets of backward's scratch: the product, the cells' gradient, and y of the steps before. */
typedef struct layout {
    int64_t cells, before, bytes;
} layout;

static layout lay(const dsc_lstm_shape *of, dsc_dtype dtype)
{
    const int64_t row = dsc_align_up(4 * of->samples * of->hidden, 256);
    layout at = { .cells = row, .before = 2 * row };
    at.bytes = at.before + of->samples * of->steps * of->hidden * (int64_t)dsc_dtype_bytes(dtype);
    return at;
}

int64_t dsc_op_lstm_scratch(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of)
{
    return 4 * of->batch * 4 * op->lstm.hidden;
}

int64_t dsc_op_lstm_bwd_scratch(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of)
{
    const dsc_lstm_shape shape = shape_of(program, op, of->batch);
    return lay(&shape, of->dtype).bytes;
}

/* ---- the plan ---------------------------------------------------------------------------------------------------- */

double dsc_op_lstm_flops(const dsc_program *program, const dsc_op *op, int64_t batch)
{
    const dsc_lstm_shape of = shape_of(program, op, batch);
    return 2.0 * (double)(of.samples * of.steps) * 4 * (double)of.hidden * (double)of.hidden;
}

/* Gradients of y and of the weight. */
double dsc_op_lstm_bwd_flops(const dsc_program *program, const dsc_op *op, int64_t batch)
{
    return 2 * dsc_op_lstm_flops(program, op, batch);
}

dsc_status dsc_op_plan_lstm(const dsc_program *program, const dsc_op *op, int64_t batch, dsc_linear_planned *plan,
                            dsc_error *err)
{
    const dsc_lstm_shape of = shape_of(program, op, batch);
    const dsc_linear_layer layer = layer_of(op);
    const bool trained = plan->module->params[layer.weight].trainable;
    dsc_gemm_args weight = dsc_linear_backward_weight(layer.shape, of.samples * of.steps, plan->dtype);
    if (layer.bias >= 0 && plan->module->params[layer.bias].trainable)
        weight.sums_of = DSC_GEMM_SUMS_OF_A;
    const dsc_gemm_args passes[3] = { forward_of(op, &of, plan->dtype), backward_of(op, &of, plan->dtype), weight };
    plan->forward_flops += dsc_op_lstm_flops(program, op, batch);
    plan->backward_flops += dsc_op_lstm_flops(program, op, batch) * (trained ? 2 : 1);
    for (int i = of.steps > 1 ? 0 : 2; i < (trained ? 3 : 2) && plan->sink != NULL && plan->sink->gemm != NULL; i++)
        DSC_TRY(plan->sink->gemm(plan->sink->user, &passes[i], err));
    return DSC_OK;
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

static void *at(const void *base, int64_t elements, dsc_dtype dtype)
{
    return (char *)(uintptr_t)base + elements * (int64_t)dsc_dtype_bytes(dtype);
}

dsc_status dsc_op_run_lstm(dsc_exec *exec, const dsc_op *op)
{
    const dsc_module_ctx *ctx = exec->ctx;
    const dsc_lstm_shape shape = shape_of(exec->program, op, ctx->batch);
    char *const work = dsc_exec_work(exec, op);
    dsc_lstm_fwd_args args = { .y = dsc_exec_at(exec, op->out[0]),
                               .gates = dsc_exec_at(exec, op->out[1]),
                               .cells = dsc_exec_floats(exec, op->out[2]),
                               .x = dsc_exec_at(exec, op->in[0]),
                               .product = (float *)(void *)work,
                               .bias = op->lstm.bias >= 0 ? ctx->param[op->lstm.bias] : NULL,
                               .shape = shape,
                               .dtype = ctx->dtype };
    dsc_gemm_args product = forward_of(op, &shape, ctx->dtype);
    product.b = ctx->param[op->lstm.weight];
    product.c = work;
    for (int64_t t = 0; t < shape.steps; t++) {
        args.shape.step = t;
        if (t > 0) {
            product.a = at(args.y, (t - 1) * shape.hidden, ctx->dtype);
            DSC_TRY(DSC_RUN(ctx->stream, GEMM, &product, exec->err));
        }
        DSC_TRY(DSC_RUN(ctx->stream, LSTM_FWD, &args, exec->err));
    }
    return DSC_OK;
}

/* From the last step to the first, and then the gradients of weight and bias at once. */
dsc_status dsc_op_run_lstm_bwd(dsc_exec *exec, const dsc_op *op)
{
    const dsc_module_ctx *ctx = exec->ctx;
    const dsc_lstm_shape shape = shape_of(exec->program, op, ctx->batch);
    const layout place = lay(&shape, ctx->dtype);
    char *const work = dsc_exec_work(exec, op);
    dsc_lstm_bwd_args args = { .d_gates = dsc_exec_at(exec, op->out[0]),
                               .before = work + place.before,
                               .d_cell = (float *)(void *)(work + place.cells),
                               .d_y = dsc_exec_at(exec, op->in[0]),
                               .product = (float *)(void *)work,
                               .y = dsc_exec_at(exec, op->in[1]),
                               .gates = dsc_exec_at(exec, op->in[2]),
                               .cells = dsc_exec_floats(exec, op->in[3]),
                               .shape = shape,
                               .dtype = ctx->dtype };
    dsc_gemm_args product = backward_of(op, &shape, ctx->dtype);
    product.b = ctx->param[op->lstm.weight];
    product.c = work;
    for (int64_t t = shape.steps - 1; t >= 0; t--) {
        args.shape.step = t;
        if (t + 1 < shape.steps) {
            product.a = at(args.d_gates, (t + 1) * 4 * shape.hidden, ctx->dtype);
            DSC_TRY(DSC_RUN(ctx->stream, GEMM, &product, exec->err));
        }
        DSC_TRY(DSC_RUN(ctx->stream, LSTM_BWD, &args, exec->err));
    }
    dsc_call call = dsc_exec_call(exec, op, op->in[0]);
    DSC_ASSERT(call.rows == shape.samples * shape.steps);
    DSC_TRY(dsc_linear_plain_gradient(&call, layer_of(op), args.before, args.d_gates));
    return dsc_linear_bias_gradient(&call, layer_of(op), args.d_gates);
}
