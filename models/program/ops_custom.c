/* ops_custom.c - ops whose forward and backward are the caller's callbacks. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/device.h"
#include "models/program/ops.h"

/* `y`: the value of the op's output or its gradient, `x`: of its inputs or their gradients. */
static dsc_custom_call custom_call(const dsc_exec *exec, const dsc_op *op, int16_t y, const int16_t *x)
{
    const dsc_module_ctx *ctx = exec->ctx;
    dsc_custom_call call = { .struct_bytes = sizeof call,
                             .native_stream = dsc_stream_native(ctx->stream),
                             .dtype = ctx->dtype,
                             .batch = ctx->batch,
                             .rows = dsc_exec_rows(exec, y),
                             .training = ctx->training,
                             .out_columns = dsc_exec_value(exec, y)->columns,
                             .scratch = dsc_exec_work(exec, op) };
    for (int32_t i = 0; i < op->custom.op->input_count; i++)
        call.in_columns[i] = dsc_exec_value(exec, x[i])->columns;
    for (int32_t i = 0; i < op->custom.op->param_count; i++)
        call.param[i] = ctx->param[op->custom.param + i];
    return call;
}

/* A callback may leave the message to us. */
static dsc_status status_of(const dsc_exec *exec, const dsc_op *op, dsc_status status, const char *callback)
{
    if (status == DSC_OK || exec->err == NULL || exec->err->status != DSC_OK)
        return status;
    return DSC_FAIL(exec->err, status, "", "op \"%.60s\" (custom): its %s callback failed: %s", op->name, callback,
                    dsc_status_text(status));
}

dsc_status dsc_op_run_custom(dsc_exec *exec, const dsc_op *op)
{
    const dsc_custom_op *own = op->custom.op;
    dsc_custom_call call = custom_call(exec, op, op->out[0], op->in);
    for (int32_t i = 0; i < own->input_count; i++)
        call.in[i] = dsc_exec_at(exec, op->in[i]);
    call.out = dsc_exec_at(exec, op->out[0]);
    return status_of(exec, op, own->forward(own->user, &call, exec->err), "forward");
}

dsc_status dsc_op_run_custom_bwd(dsc_exec *exec, const dsc_op *op)
{
    const dsc_custom_op *own = op->custom.op;
    dsc_custom_call call = custom_call(exec, op, op->in[0], op->out);
    for (int32_t i = 0; i < own->input_count; i++) {
        call.in[i] = dsc_exec_at(exec, op->in[2 + i]);
        call.d_in[i] = dsc_exec_at(exec, op->out[i]);
    }
    for (int32_t i = 0; i < own->param_count; i++)
        call.grad[i] = exec->ctx->grad[op->custom.param + i];
    call.d_out = dsc_exec_at(exec, op->in[0]);
    call.result = dsc_exec_at(exec, op->in[1]);
    return status_of(exec, op, own->backward(own->user, &call, exec->err), "backward");
}

int64_t dsc_op_custom_scratch(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of)
{
    return op->custom.op->scratch_bytes +
           op->custom.op->scratch_row_bytes * dsc_value_rows(&program->value[op->in[0]], of->batch);
}

double dsc_op_custom_flops(const dsc_program *program, const dsc_op *op, int64_t batch)
{
    return op->custom.op->flops_per_row * (double)dsc_value_rows(&program->value[op->in[0]], batch);
}

/* The callback says which values it reads. */
dsc_status dsc_rule_custom(dsc_tape *t, dsc_op *custom, dsc_error *err)
{
    const dsc_custom_op *own = custom->custom.op;
    dsc_op *op = dsc_tape_emit(t, DSC_OP_CUSTOM_BWD, custom);
    int16_t made[DSC_CUSTOM_INPUTS_MAX];
    op->in[0] = t->gradient[custom->out[0]];
    op->in[1] = own->backward_reads_out ? custom->out[0] : DSC_PROGRAM_NONE;
    for (int32_t i = 0; i < own->input_count; i++) {
        op->in[2 + i] = own->backward_reads_in ? custom->in[i] : DSC_PROGRAM_NONE;
        made[i] = dsc_tape_emit_value(t, op, i, custom->in[i]);
    }
    for (int32_t i = 0; i < own->input_count && !t->full; i++)
        dsc_tape_add(t, custom, custom->in[i], made[i]);
    return DSC_OK;
}
