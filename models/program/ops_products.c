/* ops_products.c - launches and costs of products and norms. SPDX-License-Identifier: Apache-2.0 */
#include "models/lora.h"
#include "models/program/ops.h"

/* ---- products ---------------------------------------------------------------------------------------------------- */

dsc_status dsc_op_run_linear(dsc_exec *exec, const dsc_op *op)
{
    const dsc_call call = dsc_exec_call(exec, op, op->in[0]);
    const int16_t aux = op->out[1] != DSC_PROGRAM_NONE ? op->out[1] : op->in[1];
    return dsc_linear_run(&call, op->linear, dsc_exec_at(exec, op->out[0]), dsc_exec_at(exec, op->in[0]),
                          dsc_exec_at(exec, aux));
}

dsc_status dsc_op_run_linear_dx(dsc_exec *exec, const dsc_op *op)
{
    const dsc_call call = dsc_exec_call(exec, op, op->in[0]);
    const int16_t aux = op->in[2] != DSC_PROGRAM_NONE ? op->in[2] : op->in[1];
    return dsc_linear_backward(&call, op->linear, dsc_exec_at(exec, op->out[0]), dsc_exec_at(exec, op->in[0]),
                               dsc_exec_at(exec, aux));
}

dsc_status dsc_op_run_linear_dw(dsc_exec *exec, const dsc_op *op)
{
    const dsc_call call = dsc_exec_call(exec, op, op->in[0]);
    return dsc_linear_gradients(&call, op->linear, dsc_exec_at(exec, op->in[0]), dsc_exec_at(exec, op->in[1]));
}

/* Also without an adapter of its own, so that blocks have equal plans. */
int64_t dsc_op_product_scratch(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of)
{
    if (of->lora == NULL || of->lora->rank <= 0)
        return 0;
    return dsc_lora_work_bytes(of->lora, dsc_value_rows(&program->value[op->in[0]], of->batch), of->dtype);
}

double dsc_op_product_flops(const dsc_program *program, const dsc_op *op, int64_t batch)
{
    return 2.0 * (double)dsc_value_rows(&program->value[op->in[0]], batch) * (double)op->linear.shape.in *
           (double)op->linear.shape.out;
}

dsc_status dsc_op_plan_linear(const dsc_program *program, const dsc_op *op, int64_t batch, dsc_linear_planned *plan,
                              dsc_error *err)
{
    plan->rows = dsc_value_rows(&program->value[op->in[0]], batch);
    return dsc_linear_plan(plan, op->linear, err);
}

/* ---- norms ------------------------------------------------------------------------------------------------------- */

static dsc_norm norm_of(const dsc_exec *exec, const dsc_op *op, int16_t x, int16_t stats)
{
    const dsc_place *place = dsc_exec_place(exec, x);
    return (dsc_norm) { .kind = op->norm.kind,
                        .rows = dsc_exec_rows(exec, x) * op->norm.groups,
                        .channels = dsc_exec_value(exec, x)->columns / op->norm.groups,
                        .eps = op->norm.eps,
                        .weight = op->norm.weight,
                        .bias = op->norm.bias,
                        .plus_one = op->norm.plus_one,
                        .wide = { dsc_place_is_whole(place) ? 0 : place->stride, (int32_t)op->norm.groups },
                        .stats = dsc_exec_at(exec, stats) };
}

dsc_status dsc_op_run_norm(dsc_exec *exec, const dsc_op *op)
{
    const dsc_call call = dsc_exec_call(exec, op, op->in[0]);
    dsc_norm norm = norm_of(exec, op, op->in[0], op->out[1]);
    norm.add = dsc_exec_at(exec, op->in[1]);
    norm.sum = dsc_exec_at(exec, op->out[2]);
    return dsc_norm_forward(&call, norm, dsc_exec_at(exec, op->out[0]), dsc_exec_at(exec, op->in[0]));
}

dsc_status dsc_op_run_norm_bwd(dsc_exec *exec, const dsc_op *op)
{
    const dsc_call call = dsc_exec_call(exec, op, op->in[2]);
    const dsc_norm_gradient buffers = { .d_in = dsc_exec_at(exec, op->out[0]),
                                        .d_out = dsc_exec_at(exec, op->in[0]),
                                        .d_residual = dsc_exec_at(exec, op->in[1]),
                                        .in = dsc_exec_at(exec, op->in[2]),
                                        .scratch = dsc_exec_work(exec, op) };
    return dsc_norm_backward(&call, norm_of(exec, op, op->in[2], op->in[3]), &buffers);
}

/* Columns of a wider value are normed without a sum. */
bool dsc_op_norm_can_lie(const dsc_place *places, const dsc_op *op)
{
    return dsc_place_is_whole(&places[op->in[0]]) || (op->in[1] == DSC_PROGRAM_NONE && places[op->in[0]].apart == 0);
}

bool dsc_op_norm_bwd_can_lie(const dsc_place *places, const dsc_op *op)
{
    const dsc_place *x = &places[op->in[2]], *d = &places[op->out[0]];
    if (dsc_place_is_whole(x) && dsc_place_is_whole(d))
        return true;
    return op->in[1] == DSC_PROGRAM_NONE && x->apart == 0 && dsc_op_lie_apart_alike(places, op->in[2], op->out[0]);
}

int64_t dsc_op_norm_bwd_scratch(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of)
{
    const dsc_value *x = &program->value[op->in[2]];
    return dsc_norm_backward_scratch_bytes(op->norm.kind, dsc_value_rows(x, of->batch) * op->norm.groups,
                                           x->columns / op->norm.groups);
}
