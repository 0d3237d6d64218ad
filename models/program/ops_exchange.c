/* ops_exchange.c - exchanges of the ranks that compute a program together: their builder, launches and payload.
 *
 * A part that ranks compute apart begins with a share or a gather, and ends with a sum or a scatter. In backward the
 * first pair becomes the second: the gradient of a share is a sum, that of a gather a scatter. A sum's gradient passes
 * through, because every rank has the same one. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/device.h"
#include "models/program/ops.h"

/* ---- the builder ------------------------------------------------------------------------------------------------- */

static bool is_alone(const dsc_program *program) { return program->ranks.count <= 1; }

static int16_t add_exchange(dsc_program *program, dsc_op_kind kind, int16_t x, int32_t sharers)
{
    dsc_op *op;
    if (is_alone(program))
        return x;
    const int16_t y = dsc_program_add_unary(program, kind, NULL, x, &op);
    if (y != DSC_PROGRAM_NONE)
        op->sharers = sharers;
    return y;
}

int16_t dsc_program_exchange_share(dsc_program *program, int16_t x, int32_t sharers)
{
    DSC_ASSERT(sharers >= 0);
    if (!is_alone(program) && sharers > 0 && program->ranks.count % sharers != 0)
        REFUSE(program, "op \"exchange_share\": runs of %d ranks do not divide %d", (int)sharers,
               (int)program->ranks.count);
    return add_exchange(program, DSC_OP_EXCHANGE_SHARE, x, sharers);
}

int16_t dsc_program_exchange_sum(dsc_program *program, int16_t x)
{
    return add_exchange(program, DSC_OP_EXCHANGE_SUM, x, 0);
}

int16_t dsc_program_exchange_gather(dsc_program *program, int16_t x)
{
    const int16_t y = add_exchange(program, DSC_OP_EXCHANGE_GATHER, x, 0);
    if (y != DSC_PROGRAM_NONE && y != x)
        program->value[y].rows *= program->ranks.count;
    return y;
}

int16_t dsc_program_exchange_scatter(dsc_program *program, int16_t x)
{
    const int16_t y = add_exchange(program, DSC_OP_EXCHANGE_SCATTER, x, 0);
    if (y == DSC_PROGRAM_NONE || y == x)
        return y;
    dsc_value *out = &program->value[y];
    if (out->rows % program->ranks.count != 0)
        REFUSE(program, "op \"exchange_scatter\": %d ranks do not divide the %lld rows of \"%.60s\"",
               (int)program->ranks.count, (long long)out->rows, program->value[x].name);
    out->rows /= program->ranks.count;
    return y;
}

/* ---- payload and scratch ----------------------------------------------------------------------------------------- */

static int64_t elements_of(const dsc_program *program, int16_t value, const dsc_op_batch *of)
{
    return dsc_value_rows(&program->value[value], of->batch) * program->value[value].columns;
}

static dsc_dtype dtype_of(const dsc_program *program, int16_t value, dsc_dtype dtype)
{
    return program->value[value].f32 ? DSC_F32 : dtype;
}

int64_t dsc_op_exchange_sum_scratch(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of)
{
    return dsc_exchange_sum_bytes(program->ranks.count, op->sharers, elements_of(program, op->in[0], of),
                                  dtype_of(program, op->in[0], of->dtype));
}

int64_t dsc_op_exchange_scatter_scratch(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of)
{
    return dsc_value_bytes(&program->value[op->in[0]], of->batch, of->dtype);
}

int64_t dsc_op_exchange_sum_sent(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of)
{
    return dsc_exchange_sum_sent(program->ranks.count, op->sharers, elements_of(program, op->in[0], of),
                                 dtype_of(program, op->in[0], of->dtype));
}

/* Bytes of the operand that has fewer rows. */
int64_t dsc_op_exchange_rows_sent(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of)
{
    const int16_t own = op->kind == DSC_OP_EXCHANGE_GATHER ? op->in[0] : op->out[0];
    return dsc_exchange_rows_sent(program->ranks.count, elements_of(program, own, of),
                                  dtype_of(program, own, of->dtype));
}

static int64_t summed_elements(const dsc_program *program, const dsc_op *op)
{
    const dsc_program_param *param = &program->param[op->summed];
    int64_t elements = 1;
    for (int32_t i = 0; i < param->dim_count; i++)
        elements *= param->dim[i];
    return elements;
}

int64_t dsc_op_exchange_dw_scratch(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of)
{
    return dsc_exchange_sum_bytes(program->ranks.count, 0, summed_elements(program, op), DSC_F32);
}

int64_t dsc_op_exchange_dw_sent(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of)
{
    return dsc_exchange_sum_sent(program->ranks.count, 0, summed_elements(program, op), DSC_F32);
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

static const dsc_exchange_group *group_of(const dsc_exec *exec)
{
    const dsc_exchange_group *group = exec->ctx->group;
    DSC_ASSERT(group != NULL && group->size == exec->program->ranks.count);
    DSC_ASSERT(group->rank == exec->program->ranks.own);
    return group;
}

/* `own`: the operand whose elements are counted. */
static dsc_exchange_args args_of(const dsc_exec *exec, const dsc_op *op, int16_t own)
{
    return (dsc_exchange_args) { .group = group_of(exec),
                                 .to = dsc_exec_at(exec, op->out[0]),
                                 .from = dsc_exec_at(exec, op->in[0]),
                                 .work = dsc_exec_work(exec, op),
                                 .count = dsc_exec_elements(exec, own),
                                 .sharers = op->sharers,
                                 .dtype = dtype_of(exec->program, own, exec->ctx->dtype) };
}

dsc_status dsc_op_run_exchange_sum(dsc_exec *exec, const dsc_op *op)
{
    const dsc_exchange_args args = args_of(exec, op, op->in[0]);
    return DSC_RUN(exec->ctx->stream, EXCHANGE_SUM, &args, exec->err);
}

dsc_status dsc_op_run_exchange_gather(dsc_exec *exec, const dsc_op *op)
{
    const dsc_exchange_args args = args_of(exec, op, op->in[0]);
    return DSC_RUN(exec->ctx->stream, EXCHANGE_GATHER, &args, exec->err);
}

dsc_status dsc_op_run_exchange_scatter(dsc_exec *exec, const dsc_op *op)
{
    const dsc_exchange_args args = args_of(exec, op, op->out[0]);
    return DSC_RUN(exec->ctx->stream, EXCHANGE_SCATTER, &args, exec->err);
}

/* Without a gradient where the parameter is frozen. */
dsc_status dsc_op_run_exchange_dw(dsc_exec *exec, const dsc_op *op)
{
    float *const gradient = exec->ctx->grad[op->summed];
    const dsc_exchange_args args = { .group = group_of(exec),
                                     .to = gradient,
                                     .from = gradient,
                                     .work = dsc_exec_work(exec, op),
                                     .count = summed_elements(exec->program, op),
                                     .dtype = DSC_F32 };
    return gradient != NULL ? DSC_RUN(exec->ctx->stream, EXCHANGE_SUM, &args, exec->err) : DSC_OK;
}
