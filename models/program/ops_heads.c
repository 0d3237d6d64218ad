/* ops_heads.c - launches of heads that are put together and taken apart. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/device.h"
#include "models/program/ops.h"

/* shared NONE: there are no shared columns. */
static dsc_heads_args heads_of(const dsc_exec *exec, const dsc_op *op, int16_t whole, int16_t own, int16_t shared)
{
    const dsc_op_heads *of = &op->heads;
    const bool has_shared = shared != DSC_PROGRAM_NONE;
    const int64_t each = dsc_exec_value(exec, own)->columns / of->heads, apart = dsc_exec_place(exec, own)->apart;
    return (dsc_heads_args) { .whole = dsc_exec_at(exec, whole),
                              .own = dsc_exec_at(exec, own),
                              .shared = has_shared ? dsc_exec_at(exec, shared) : NULL,
                              .rows = dsc_exec_rows(exec, whole),
                              .own_stride = dsc_exec_place(exec, own)->stride,
                              .own_apart = apart > 0 ? apart : each,
                              .shared_stride = has_shared ? dsc_exec_place(exec, shared)->stride : 0,
                              .heads = (int32_t)of->heads,
                              .width = (int32_t)of->width,
                              .own_width = (int32_t)each,
                              .shared_width = has_shared ? (int32_t)dsc_exec_value(exec, shared)->columns : 0,
                              .dtype = exec->ctx->dtype };
}

dsc_status dsc_op_run_heads(dsc_exec *exec, const dsc_op *op)
{
    const dsc_heads_args args = heads_of(exec, op, op->out[0], op->in[0], op->in[1]);
    return DSC_RUN(exec->ctx->stream, HEADS_FWD, &args, exec->err);
}

dsc_status dsc_op_run_heads_bwd(dsc_exec *exec, const dsc_op *op)
{
    const dsc_heads_args args = heads_of(exec, op, op->in[0], op->out[0], op->out[1]);
    return DSC_RUN(exec->ctx->stream, HEADS_BWD, &args, exec->err);
}
