/* ops_conv2d.c - launches, costs and the backward rule of two-dimensional convolutions.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/program/ops.h"

/* Pictures of the micro-batch follow from the rows of input 0: x, or the gradient of y. */
static dsc_conv2d_layer layer_of(const dsc_program *program, const dsc_op *op, int64_t batch)
{
    dsc_conv2d_layer layer = op->conv2d;
    const dsc_conv2d_shape *s = &layer.shape;
    const int64_t pixels =
        op->kind == DSC_OP_CONV2D_DX ? dsc_conv2d_out(s, 0) * dsc_conv2d_out(s, 1) : s->height * s->width;
    layer.shape.batch = dsc_value_rows(&program->value[op->in[0]], batch) / pixels;
    return layer;
}

dsc_status dsc_op_run_conv2d(dsc_exec *exec, const dsc_op *op)
{
    const dsc_call call = dsc_exec_call(exec, op, op->in[0]);
    const dsc_conv2d_layer layer = layer_of(exec->program, op, exec->ctx->batch);
    return dsc_conv2d_run(&call, &layer, dsc_exec_at(exec, op->out[0]), dsc_exec_at(exec, op->in[0]),
                          dsc_exec_work(exec, op));
}

dsc_status dsc_op_run_conv2d_dx(dsc_exec *exec, const dsc_op *op)
{
    const dsc_call call = dsc_exec_call(exec, op, op->in[0]);
    const dsc_conv2d_layer layer = layer_of(exec->program, op, exec->ctx->batch);
    return dsc_conv2d_backward(&call, &layer, dsc_exec_at(exec, op->out[0]), dsc_exec_at(exec, op->in[0]),
                               dsc_exec_at(exec, op->in[1]), dsc_exec_work(exec, op));
}

dsc_status dsc_op_run_conv2d_dw(dsc_exec *exec, const dsc_op *op)
{
    const dsc_call call = dsc_exec_call(exec, op, op->in[0]);
    const dsc_conv2d_layer layer = layer_of(exec->program, op, exec->ctx->batch);
    return dsc_conv2d_gradients(&call, &layer, dsc_exec_at(exec, op->in[0]), dsc_exec_at(exec, op->in[1]),
                                dsc_exec_work(exec, op));
}

int64_t dsc_op_conv2d_scratch(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of)
{
    const dsc_conv2d_layer layer = layer_of(program, op, of->batch);
    const dsc_conv2d_pass pass = op->kind == DSC_OP_CONV2D      ? DSC_CONV2D_Y
                                 : op->kind == DSC_OP_CONV2D_DX ? DSC_CONV2D_DX
                                                                : DSC_CONV2D_DW;
    const bool sums = pass == DSC_CONV2D_DX && op->in[1] >= 0;
    return dsc_conv2d_scratch_bytes(&layer, pass, sums, of->dtype, of->chunk_bytes, of->on_gpu);
}

double dsc_op_conv2d_flops(const dsc_program *program, const dsc_op *op, int64_t batch)
{
    const dsc_conv2d_layer layer = layer_of(program, op, batch);
    return dsc_conv2d_flops(&layer.shape);
}

dsc_status dsc_op_plan_conv2d(const dsc_program *program, const dsc_op *op, int64_t batch, dsc_linear_planned *plan,
                              dsc_error *err)
{
    const dsc_conv2d_layer layer = layer_of(program, op, batch);
    return dsc_conv2d_plan(plan, &layer, program->value[op->in[0]].is_data, err);
}

/* The gradients of weight and bias, and that of the input, which is added to the sum so far. */
dsc_status dsc_rule_conv2d(dsc_tape *t, dsc_op *conv, dsc_error *err)
{
    const int16_t x = conv->in[0], gradient = t->gradient[conv->out[0]];
    dsc_op *weight = dsc_tape_emit(t, DSC_OP_CONV2D_DW, conv);
    weight->in[0] = x, weight->in[1] = gradient;
    if (t->program->value[x].is_data)
        return DSC_OK;
    dsc_op *op = dsc_tape_emit(t, DSC_OP_CONV2D_DX, conv);
    op->in[0] = gradient, op->in[1] = t->gradient[x];
    t->gradient[x] = dsc_tape_emit_value(t, op, 0, x);
    return DSC_OK;
}
