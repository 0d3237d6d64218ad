/* ops_rows.c - launches of ops that read the batch, and of those that change how many rows a sample has.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/device.h"
#include "models/program/ops.h"

/* ---- the batch --------------------------------------------------------------------------------------------------- */

dsc_status dsc_op_run_data(dsc_exec *exec, const dsc_op *op)
{
    const dsc_cast_args args = { .to = dsc_exec_at(exec, op->out[0]),
                                 .from = exec->ctx->batch_data[op->data.tensor],
                                 .count = dsc_exec_elements(exec, op->out[0]),
                                 .to_dtype = exec->ctx->dtype,
                                 .from_dtype = DSC_F32 };
    return DSC_RUN(exec->ctx->stream, CAST, &args, exec->err);
}

dsc_status dsc_op_run_patches(dsc_exec *exec, const dsc_op *op)
{
    const dsc_patches_args args = { .out = dsc_exec_at(exec, op->out[0]),
                                    .pixels = exec->ctx->batch_data[op->data.tensor],
                                    .samples = exec->ctx->batch,
                                    .planes = op->data.planes,
                                    .height = op->data.height,
                                    .width = op->data.width,
                                    .patch = op->data.patch,
                                    .dtype = exec->ctx->dtype };
    return DSC_RUN(exec->ctx->stream, PATCHES, &args, exec->err);
}

/* ---- rows of samples --------------------------------------------------------------------------------------------- */

static char *row_at(const dsc_exec *exec, int16_t value, int64_t row)
{
    return dsc_exec_at(exec, value) +
           row * dsc_exec_value(exec, value)->columns * (int64_t)dsc_dtype_bytes(exec->ctx->dtype);
}

/* Between the rows of `out` from `out_first` on and those of `in` from `in_first` on. */
static dsc_rows_args rows_of(const dsc_exec *exec, int16_t out, int64_t out_first, int16_t in, int64_t in_first)
{
    return (dsc_rows_args) { .out = row_at(exec, out, out_first),
                             .in = row_at(exec, in, in_first),
                             .samples = exec->ctx->batch,
                             .channels = dsc_exec_value(exec, out)->columns,
                             .out_apart = dsc_exec_value(exec, out)->rows,
                             .in_apart = dsc_exec_value(exec, in)->rows,
                             .factor = 1,
                             .dtype = exec->ctx->dtype };
}

dsc_status dsc_op_run_prepend(dsc_exec *exec, const dsc_op *op)
{
    dsc_rows_args args = rows_of(exec, op->out[0], op->table.rows, op->in[0], 0);
    args.rows = dsc_exec_value(exec, op->in[0])->rows;
    DSC_TRY(DSC_RUN(exec->ctx->stream, ROWS_PUT, &args, exec->err));
    args.out = dsc_exec_at(exec, op->out[0]);
    args.in = exec->ctx->param[op->table.param];
    args.in_apart = 0;
    args.rows = op->table.rows;
    return DSC_RUN(exec->ctx->stream, ROWS_PUT, &args, exec->err);
}

dsc_status dsc_op_run_prepend_bwd(dsc_exec *exec, const dsc_op *op)
{
    dsc_rows_args args = rows_of(exec, op->out[0], 0, op->in[0], op->table.rows);
    args.rows = dsc_exec_value(exec, op->out[0])->rows;
    return DSC_RUN(exec->ctx->stream, ROWS_PUT, &args, exec->err);
}

/* Without tokens an embedding adds the row of its place to each row. */
dsc_status dsc_op_run_table(dsc_exec *exec, const dsc_op *op)
{
    const dsc_embedding_fwd_args args = { .out = dsc_exec_at(exec, op->out[0]),
                                          .table = dsc_exec_at(exec, op->in[0]),
                                          .position = exec->ctx->param[op->table.param],
                                          .rows = dsc_exec_rows(exec, op->in[0]),
                                          .sequence = op->table.rows,
                                          .channels = dsc_exec_value(exec, op->in[0])->columns,
                                          .dtype = exec->ctx->dtype };
    return DSC_RUN(exec->ctx->stream, EMBEDDING_FWD, &args, exec->err);
}

/* The sum over samples, each of which is one row here. */
dsc_status dsc_op_run_table_dw(dsc_exec *exec, const dsc_op *op)
{
    const dsc_value *d = dsc_exec_value(exec, op->in[0]);
    const dsc_colsum_args args = { .out = exec->ctx->grad[op->table.param],
                                   .x = dsc_exec_at(exec, op->in[0]),
                                   .rows = exec->ctx->batch,
                                   .cols = op->table.rows * d->columns,
                                   .ld = d->rows * d->columns,
                                   .x_dtype = exec->ctx->dtype };
    return args.out != NULL ? DSC_RUN(exec->ctx->stream, COLSUM, &args, exec->err) : DSC_OK;
}

dsc_status dsc_op_run_pick(dsc_exec *exec, const dsc_op *op)
{
    dsc_rows_args args = rows_of(exec, op->out[0], 0, op->in[0], op->pick.first);
    args.rows = op->pick.count;
    args.factor = op->pick.mean ? 1 / (float)op->pick.count : 1;
    return op->pick.mean ? DSC_RUN(exec->ctx->stream, ROWS_SUM, &args, exec->err)
                         : DSC_RUN(exec->ctx->stream, ROWS_PUT, &args, exec->err);
}

/* Rows that were not picked get 0. */
static dsc_status put_zeros(dsc_exec *exec, int16_t value, int64_t first, int64_t rows)
{
    dsc_rows_args args = rows_of(exec, value, first, value, 0);
    args.in = NULL;
    args.rows = rows;
    return rows > 0 ? DSC_RUN(exec->ctx->stream, ROWS_PUT, &args, exec->err) : DSC_OK;
}

dsc_status dsc_op_run_pick_bwd(dsc_exec *exec, const dsc_op *op)
{
    const int64_t end = op->pick.first + op->pick.count;
    dsc_rows_args args = rows_of(exec, op->out[0], op->pick.first, op->in[0], 0);
    DSC_TRY(put_zeros(exec, op->out[0], 0, op->pick.first));
    DSC_TRY(put_zeros(exec, op->out[0], end, dsc_exec_value(exec, op->out[0])->rows - end));
    args.rows = op->pick.count;
    args.same = op->pick.mean;
    args.factor = op->pick.mean ? 1 / (float)op->pick.count : 1;
    return DSC_RUN(exec->ctx->stream, ROWS_PUT, &args, exec->err);
}

/* Between the rows of all tokens and those of the tokens that the batch names. */
static dsc_status gather(dsc_exec *exec, const dsc_op *op, int16_t all, int16_t some, bool back)
{
    const dsc_module_ctx *ctx = exec->ctx;
    const dsc_gather_rows_args rows = { .all = dsc_exec_at(exec, all),
                                        .some = dsc_exec_at(exec, some),
                                        .positions = ctx->batch_data[op->gather.places],
                                        .batch = ctx->batch,
                                        .tokens = dsc_exec_value(exec, all)->rows,
                                        .gathered = op->gather.count,
                                        .channels = dsc_exec_value(exec, all)->columns,
                                        .dtype = ctx->dtype };
    const dsc_mean_rows_args mean = { .all = rows.all,
                                      .some = rows.some,
                                      .last = rows.positions,
                                      .batch = rows.batch,
                                      .tokens = rows.tokens,
                                      .channels = rows.channels,
                                      .dtype = rows.dtype };
    if (op->gather.mean)
        return back ? DSC_RUN(ctx->stream, MEAN_ROWS_BWD, &mean, exec->err)
                    : DSC_RUN(ctx->stream, MEAN_ROWS_FWD, &mean, exec->err);
    return back ? DSC_RUN(ctx->stream, GATHER_ROWS_BWD, &rows, exec->err)
                : DSC_RUN(ctx->stream, GATHER_ROWS_FWD, &rows, exec->err);
}

dsc_status dsc_op_run_gather(dsc_exec *exec, const dsc_op *op)
{
    return gather(exec, op, op->in[0], op->out[0], false);
}

dsc_status dsc_op_run_gather_bwd(dsc_exec *exec, const dsc_op *op)
{
    return gather(exec, op, op->out[0], op->in[0], true);
}
