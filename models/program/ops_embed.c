/* ops_embed.c - launches of tables of tokens and positions, and of their gradients.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/device.h"
#include "kernels/scalar.h"
#include "models/program/ops.h"

static bool has_table(const dsc_op *op) { return op->embed.table != DSC_PROGRAM_NONE; }

static int64_t table_rows(const dsc_program *program, int32_t param)
{
    return param != DSC_PROGRAM_NONE ? program->param[param].dim[0] : 0;
}

/* The token of the table's first row. */
static int64_t first_token(const dsc_program *program, const dsc_op *op)
{
    return dsc_op_first_row(program, op->embed.table, program->ranks.own);
}

/* ---- places ------------------------------------------------------------------------------------------------------ */

/* Bytes of the places that the op counts, in front of its other scratch. */
static int64_t places_bytes(const dsc_op *op, int64_t rows)
{
    return op->embed.counts ? dsc_align_up(rows * (int64_t)sizeof(int32_t), 256) : 0;
}

static int64_t rows_of(const dsc_program *program, const dsc_op_batch *of) { return of->batch * program->tokens; }

int64_t dsc_op_embed_scratch(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of)
{
    return places_bytes(op, rows_of(program, of));
}

int64_t dsc_op_embed_dw_scratch(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of)
{
    const int64_t rows = rows_of(program, of);
    const int64_t most = dsc_max_i64(table_rows(program, op->embed.table), table_rows(program, op->embed.position));
    return places_bytes(op, rows) + dsc_embedding_bwd_scratch_bytes(rows, most);
}

/* The rows of positions that tokens name themselves; NULL: those of places in samples. */
static const int32_t *places_of(const dsc_exec *exec, const dsc_op *op)
{
    if (op->embed.counts)
        return (const int32_t *)(const void *)dsc_exec_work(exec, op);
    return op->embed.places != DSC_PROGRAM_NONE ? exec->ctx->batch_data[op->embed.places] : NULL;
}

static dsc_status count_places(const dsc_exec *exec, const dsc_op *op)
{
    if (!op->embed.counts)
        return DSC_OK;
    const dsc_places_args args = { .places = (int32_t *)(void *)dsc_exec_work(exec, op),
                                   .tokens = exec->ctx->batch_data[op->embed.tokens],
                                   .batch = exec->ctx->batch,
                                   .sequence = exec->program->tokens,
                                   .padding = op->embed.padding };
    DSC_ASSERT(exec->ctx->past == 0);
    return DSC_RUN(exec->ctx->stream, PLACES, &args, exec->err);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static float factor_of(const dsc_exec *exec, const dsc_op *op)
{
    const float factor = (float)op->embed.factor;
    return op->embed.rounded ? dsc_rounded(factor, exec->ctx->dtype) : factor;
}

/* The row of place 0; places that were counted are rows. */
static const void *first_position(const dsc_exec *exec, const dsc_op *op)
{
    const dsc_module_ctx *ctx = exec->ctx;
    if (op->embed.position == DSC_PROGRAM_NONE)
        return NULL;
    const int64_t first = op->embed.counts ? 0 : op->embed.first + (op->embed.same ? 0 : ctx->past);
    return (const char *)ctx->param[op->embed.position] +
           first * dsc_exec_value(exec, op->out[0])->columns * (int64_t)dsc_dtype_bytes(ctx->dtype);
}

dsc_status dsc_op_run_embed(dsc_exec *exec, const dsc_op *op)
{
    const dsc_module_ctx *ctx = exec->ctx;
    const dsc_embedding_fwd_args args = { .out = dsc_exec_at(exec, op->out[0]),
                                          .tokens = has_table(op) ? ctx->batch_data[op->embed.tokens] : NULL,
                                          .table = has_table(op) ? ctx->param[op->embed.table]
                                                                 : dsc_exec_at(exec, op->in[0]),
                                          .position = first_position(exec, op),
                                          .places = places_of(exec, op),
                                          .rows = dsc_exec_rows(exec, op->out[0]),
                                          .sequence = op->embed.same ? 1 : exec->program->tokens,
                                          .channels = dsc_exec_value(exec, op->out[0])->columns,
                                          .dtype = ctx->dtype,
                                          .factor = factor_of(exec, op),
                                          .parted = dsc_op_is_parted(exec->program, op->embed.table),
                                          .first = first_token(exec->program, op),
                                          .vocab = table_rows(exec->program, op->embed.table) };
    DSC_TRY(count_places(exec, op));
    return DSC_RUN(ctx->stream, EMBEDDING_FWD, &args, exec->err);
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

static dsc_embedding_bwd_args gradient_of(const dsc_exec *exec, const dsc_op *op)
{
    const int64_t rows = dsc_exec_rows(exec, op->in[0]);
    return (dsc_embedding_bwd_args) { .d_out = dsc_exec_at(exec, op->in[0]),
                                      .scratch = dsc_exec_work(exec, op) + places_bytes(op, rows),
                                      .rows = rows,
                                      .sequence = exec->program->tokens,
                                      .channels = dsc_exec_value(exec, op->in[0])->columns,
                                      .dtype = exec->ctx->dtype };
}

/* Tokens look up rows of positions as they look up themselves. */
static dsc_status backward_places(dsc_exec *exec, const dsc_op *op, float *d_position)
{
    const int64_t skipped = op->embed.counts ? 0 : op->embed.first;
    dsc_embedding_bwd_args args = gradient_of(exec, op);
    DSC_TRY(count_places(exec, op));
    args.d_table = d_position + skipped * args.channels;
    args.tokens = places_of(exec, op);
    args.vocab = table_rows(exec->program, op->embed.position) - skipped;
    args.has_padding = op->embed.counts;
    args.padding = op->embed.padding;
    DSC_TRY(DSC_RUN(exec->ctx->stream, EMBEDDING_BWD, &args, exec->err));
    args.d_table = d_position; /* the rows before the first place's: nobody looks them up */
    args.vocab = skipped;
    args.rows = 0;
    return args.vocab > 0 ? DSC_RUN(exec->ctx->stream, EMBEDDING_BWD, &args, exec->err) : DSC_OK;
}

/* All tokens have the first row. */
static dsc_status backward_same(dsc_exec *exec, const dsc_op *op, float *d_position)
{
    dsc_embedding_bwd_args none = gradient_of(exec, op);
    const dsc_colsum_args sum = { .out = d_position + op->embed.first * none.channels,
                                  .x = none.d_out,
                                  .rows = none.rows,
                                  .cols = none.channels,
                                  .ld = none.channels,
                                  .x_dtype = none.dtype };
    none.d_table = d_position;
    none.vocab = table_rows(exec->program, op->embed.position);
    none.rows = 0;
    DSC_TRY(DSC_RUN(exec->ctx->stream, EMBEDDING_BWD, &none, exec->err));
    return DSC_RUN(exec->ctx->stream, COLSUM, &sum, exec->err);
}

static dsc_status backward_positions(dsc_exec *exec, const dsc_op *op)
{
    float *const d_position = op->embed.position != DSC_PROGRAM_NONE ? exec->ctx->grad[op->embed.position] : NULL;
    if (d_position == NULL)
        return DSC_OK;
    if (op->embed.same)
        return backward_same(exec, op, d_position);
    if (op->embed.counts || op->embed.places != DSC_PROGRAM_NONE)
        return backward_places(exec, op, d_position);
    dsc_embedding_bwd_args args = gradient_of(exec, op);
    args.d_position = d_position;
    args.position_first = op->embed.first;
    args.positions = table_rows(exec->program, op->embed.position);
    return DSC_RUN(exec->ctx->stream, EMBEDDING_BWD, &args, exec->err);
}

dsc_status dsc_op_run_embed_dw(dsc_exec *exec, const dsc_op *op)
{
    dsc_embedding_bwd_args args = gradient_of(exec, op);
    DSC_TRY(backward_positions(exec, op));
    if (!has_table(op) || exec->ctx->grad[op->embed.table] == NULL)
        return DSC_OK;
    args.d_table = exec->ctx->grad[op->embed.table];
    args.tokens = exec->ctx->batch_data[op->embed.tokens];
    args.vocab = table_rows(exec->program, op->embed.table);
    args.parted = dsc_op_is_parted(exec->program, op->embed.table);
    args.first = first_token(exec->program, op);
    args.has_padding = op->embed.has_padding;
    args.padding = op->embed.padding;
    args.factor = factor_of(exec, op);
    return DSC_RUN(exec->ctx->stream, EMBEDDING_BWD, &args, exec->err);
}

dsc_status dsc_rule_embed(dsc_tape *t, dsc_op *embed, dsc_error *err)
{
    dsc_op *op = dsc_tape_emit(t, DSC_OP_EMBED_DW, embed);
    op->in[0] = t->gradient[embed->out[0]];
    return embed->in[0] != DSC_PROGRAM_NONE && !t->full ? dsc_rule_pass(t, embed, err) : DSC_OK;
}
