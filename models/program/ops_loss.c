/* ops_loss.c - losses of logits, and in the same call their gradients.
 *
 * Logits that a table makes are the largest tensor of a small model's training, so only one chunk of their rows is
 * alive. A chunk holds logits, then in place their gradients, of which two products are made, and the next one follows.
 * The chunk depends on the shape and on chunk_bytes only. The input's rows are replaced by their gradients once the
 * chunk's part of the table's gradient is done. With a preference the weight of a row's gradient is known when all rows
 * have their losses. So the chunks come twice: for the losses, and for the gradients; a single chunk keeps its logits
 * in between. Columns of padding never enter the softmax and get gradient 0.
 * Ranks that share out the table's rows have logits of their own rows. They exchange the maximum, the sum and the
 * target's logit of each row, and add them in rank order. The input's gradient is a rank's part of a sum.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/device.h"
#include "models/program/ops.h"

/* ---- logits that are a value ------------------------------------------------------------------------------------- */

/* One row, which the caller wants in fp32. */
static dsc_status copy_row(const dsc_exec *exec, int16_t logits)
{
    const dsc_module_ctx *ctx = exec->ctx;
    const int64_t columns = dsc_exec_value(exec, logits)->columns;
    const dsc_cast_args args = { .to = ctx->logits,
                                 .from = dsc_exec_at(exec, logits) +
                                         ctx->logits_row * columns * (int64_t)dsc_dtype_bytes(ctx->dtype),
                                 .count = columns,
                                 .to_dtype = DSC_F32,
                                 .from_dtype = ctx->dtype };
    return DSC_RUN(ctx->stream, CAST, &args, exec->err);
}

dsc_status dsc_op_run_loss(dsc_exec *exec, const dsc_op *op)
{
    const dsc_module_ctx *ctx = exec->ctx;
    const int64_t rows = dsc_exec_rows(exec, op->in[0]), columns = dsc_exec_value(exec, op->in[0])->columns;
    const int32_t *labels = ctx->batch_data[op->targets];
    const dsc_label_loss_args args = { .logits = dsc_exec_at(exec, op->out[0]),
                                       .losses = ctx->losses,
                                       .labels = labels,
                                       .rows = rows,
                                       .classes = columns,
                                       .stride = columns,
                                       .scale = (float)((double)ctx->loss_scale / (double)rows),
                                       .smoothing = ctx->label_smoothing,
                                       .mixed = ctx->mixed,
                                       .label_before = labels + rows - 1,
                                       .places = ctx->places,
                                       .write_gradient = ctx->save,
                                       .mark_wrong = rows == ctx->batch && columns <= DSC_LABELS_MAX && !ctx->save &&
                                                     !ctx->training,
                                       .kind = DSC_LABELS_CLASS,
                                       .dtype = ctx->dtype };
    if (ctx->logits != NULL)
        return copy_row(exec, op->in[0]);
    DSC_TRY(dsc_op_run_copy(exec, op));
    return DSC_RUN(ctx->stream, LABEL_LOSS, &args, exec->err);
}

/* ---- shapes of a table's products -------------------------------------------------------------------------------- */

/* One chunk's logits: small beside a model that needs chunks, large enough for full-speed products of a CPU. */
#define CHUNK_BYTES_MAX (INT64_C(64) << 20)
#define CHUNK_ROWS_ALIGN 64
#define LOGITS_ALIGN 64 /* elements: rows of logits start on cache lines also for V = 50257 */

enum { LOGITS, D_INPUT, D_TABLE, LAST_LOGITS, GEMM_COUNT };

static bool has_pairs(const dsc_op *op) { return op->classify.preference.beta > 0; }

/* The table: its rows are outputs, padded ones too. */
static dsc_linear table_of(const dsc_program *program, const dsc_op *op)
{
    const int64_t columns = program->value[op->in[0]].columns;
    return (dsc_linear) { columns, program->param[op->classify.table].dim[0], true };
}

/* Elements between two rows of logits. */
static int64_t stride_of(const dsc_program *program, const dsc_op *op)
{
    return dsc_align_up(table_of(program, op).out, LOGITS_ALIGN);
}

static dsc_gemm_args product(const dsc_program *program, const dsc_op *op, int which, int64_t rows, dsc_dtype dtype)
{
    const bool bias = op->classify.bias != DSC_PROGRAM_NONE;
    const dsc_epilogue epilogue = bias ? DSC_EPILOGUE_BIAS : DSC_EPILOGUE_NONE;
    const int64_t stride = stride_of(program, op);
    dsc_linear table = table_of(program, op);
    dsc_gemm_args args;
    switch (which) {
    case LOGITS:
        args = dsc_linear_forward(table, rows, dtype, epilogue);
        args.ldc = stride;
        return args;
    case D_INPUT:
        args = dsc_linear_backward_input(table, rows, dtype, DSC_EPILOGUE_NONE);
        args.lda = stride;
        return args;
    case D_TABLE:
        args = dsc_linear_backward_weight(table, rows, dtype);
        args.lda = stride;
        return args;
    default: /* one row, straight into the caller's fp32 [V] */
        table.out = op->classify.total > 0 ? table.out : op->classify.outputs;
        args = dsc_linear_forward(table, 1, dtype, epilogue);
        args.c_dtype = DSC_F32;
        return args;
    }
}

static bool is_shared(const dsc_op *op) { return op->classify.total > 0; }

/* Rows of the table that rank `rank` has. */
static int64_t rows_of_rank(const dsc_program *program, const dsc_op *op, int32_t rank)
{
    return dsc_param_part_length(&program->param[op->classify.table].share, rank);
}

/* Bytes between two rows of logits of the rank with most of them: all ranks exchange the numbers of equal chunks. */
static int64_t largest_stride_bytes(const dsc_program *program, const dsc_op *op, dsc_dtype dtype)
{
    const int64_t stride =
        is_shared(op) ? dsc_align_up(rows_of_rank(program, op, 0), LOGITS_ALIGN) : stride_of(program, op);
    return stride * (int64_t)dsc_dtype_bytes(dtype);
}

/* Rows of a full chunk; the last one may be shorter. Several chunks have 13/16 of the limit at most before their rows
 * are rounded up. */
static int64_t chunk_rows(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of)
{
    const int64_t rows = dsc_value_rows(&program->value[op->in[0]], of->batch);
    const int64_t each = largest_stride_bytes(program, op, of->dtype);
    const int64_t most = of->chunk_bytes > 0 ? of->chunk_bytes : CHUNK_BYTES_MAX;
    if (rows <= most / each)
        return rows;
    const int64_t count = dsc_div_ceil(rows, dsc_max_i64(1, most / 16 * 13 / each));
    return dsc_min_i64(rows, dsc_align_up(dsc_div_ceil(rows, count), CHUNK_ROWS_ALIGN));
}

/* Bytes of a chunk's logits, in front of the weights of a preference. */
static int64_t logits_bytes(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of)
{
    const int64_t element = (int64_t)dsc_dtype_bytes(of->dtype);
    return dsc_align_up(chunk_rows(program, op, of) * stride_of(program, op) * element, 256);
}

/* Bytes of all ranks' parts of the losses of so many rows. */
static int64_t parts_bytes(const dsc_program *program, const dsc_op *op, int64_t rows)
{
    return is_shared(op) ? program->ranks.count * rows * DSC_CROSS_ENTROPY_PART * (int64_t)sizeof(float) : 0;
}

/* Bytes of one row of logits of all ranks. */
static int64_t row_bytes(const dsc_program *program, const dsc_op *op)
{
    return is_shared(op) ? program->ranks.count * rows_of_rank(program, op, 0) * (int64_t)sizeof(float) : 0;
}

/* Bytes of the weights of a preference, behind the logits. */
static int64_t weights_bytes(const dsc_op *op, int64_t rows)
{
    return has_pairs(op) ? rows * (int64_t)sizeof(float) : 0;
}

int64_t dsc_op_classify_scratch(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of)
{
    const int64_t rows = dsc_value_rows(&program->value[op->in[0]], of->batch);
    const int64_t parts = parts_bytes(program, op, chunk_rows(program, op, of));
    return dsc_max_i64(logits_bytes(program, op, of) + weights_bytes(op, rows) + parts, row_bytes(program, op));
}

/* With a preference the chunks come twice. */
int64_t dsc_op_classify_sent(const dsc_program *program, const dsc_op *op, const dsc_op_batch *of)
{
    const int64_t rows = dsc_value_rows(&program->value[op->in[0]], of->batch) * (has_pairs(op) ? 2 : 1);
    return is_shared(op) ? dsc_exchange_rows_sent(program->ranks.count, rows * DSC_CROSS_ENTROPY_PART, DSC_F32) : 0;
}

double dsc_op_classify_flops(const dsc_program *program, const dsc_op *op, int64_t batch)
{
    const dsc_linear table = table_of(program, op);
    return 2.0 * (double)dsc_value_rows(&program->value[op->in[0]], batch) * (double)table.in * (double)table.out;
}

/* Every chunk is full but for a shorter last one, and adds to the table's gradient but for the first one. */
static dsc_status report_gemm(const dsc_program *program, const dsc_op *op, int which, const dsc_op_batch *of,
                              const dsc_plan_sink *sink, dsc_error *err)
{
    const int64_t rows = dsc_value_rows(&program->value[op->in[0]], of->batch), chunk = chunk_rows(program, op, of);
    dsc_gemm_args args = product(program, op, which, chunk, of->dtype);
    DSC_TRY(sink->gemm(sink->user, &args, err));
    if (which == LAST_LOGITS)
        return DSC_OK;
    args.accumulate = which == D_TABLE;
    if (rows / chunk > 1 && args.accumulate)
        DSC_TRY(sink->gemm(sink->user, &args, err));
    if (rows % chunk == 0)
        return DSC_OK;
    args = product(program, op, which, rows % chunk, of->dtype);
    args.accumulate = which == D_TABLE;
    return sink->gemm(sink->user, &args, err);
}

dsc_status dsc_op_plan_classify(const dsc_program *program, const dsc_op *op, int64_t batch, dsc_linear_planned *plan,
                                dsc_error *err)
{
    const dsc_plan_sink *sink = plan->sink;
    const dsc_op_batch of = { plan->lora,
                              batch,
                              plan->dtype,
                              sink != NULL ? sink->chunk_bytes : 0,
                              sink != NULL && sink->stores_score_gradients,
                              sink != NULL && sink->joins_input_gradients };
    const bool trains = plan->module->params[op->classify.table].trainable;
    const double flops = dsc_op_classify_flops(program, op, batch);
    if (has_pairs(op) && batch % 2 != 0)
        return DSC_FAIL(err, DSC_ERR_CONFIG, "train_micro_batch_size_per_gpu",
                        "%lld is odd; with dsc.dpo it counts sequences, and a pair is two of them: give an even number",
                        (long long)batch);
    for (int which = 0; which < GEMM_COUNT && sink != NULL && sink->gemm != NULL; which++)
        if (which != D_TABLE || trains)
            DSC_TRY(report_gemm(program, op, which, &of, sink, err));
    plan->forward_flops += flops;
    plan->backward_flops += trains ? 2 * flops : flops;
    return DSC_OK;
}

/* ---- one call ---------------------------------------------------------------------------------------------------- */

typedef struct classify_call {
    dsc_exec *exec;
    const dsc_op *op;
    dsc_module_ctx *ctx;
    int64_t rows, chunk, stride;
    char *logits; /* of a chunk */
    float *weights;
    float *parts; /* of all ranks, for a chunk */
} classify_call;

static classify_call begin(dsc_exec *exec, const dsc_op *op)
{
    dsc_module_ctx *ctx = exec->ctx;
    const dsc_op_batch of = {
        exec->lora, ctx->batch, ctx->dtype, ctx->chunk_bytes, ctx->stores_score_gradients, ctx->joins_input_gradients
    };
    char *const work = dsc_exec_work(exec, op);
    char *const weights = work + logits_bytes(exec->program, op, &of);
    const int64_t rows = dsc_exec_rows(exec, op->in[0]);
    return (classify_call) { .exec = exec,
                             .op = op,
                             .ctx = ctx,
                             .rows = rows,
                             .chunk = chunk_rows(exec->program, op, &of),
                             .stride = stride_of(exec->program, op),
                             .logits = work,
                             .weights = (float *)(void *)weights,
                             .parts = (float *)(void *)(weights + weights_bytes(op, rows)) };
}

/* Row `row` of the input or of its gradient. */
static char *row_of(const classify_call *call, int16_t value, int64_t row)
{
    return dsc_exec_at(call->exec, value) +
           row * dsc_exec_value(call->exec, value)->columns * (int64_t)dsc_dtype_bytes(call->ctx->dtype);
}

static const void *bias_of(const classify_call *call)
{
    const int32_t bias = call->op->classify.bias;
    return bias != DSC_PROGRAM_NONE ? call->ctx->param[bias] : NULL;
}

/* `parts` <- those of all ranks, of which each has `count` numbers. */
static dsc_status gather_numbers(const classify_call *call, float *parts, int64_t count)
{
    const dsc_exchange_group *group = call->ctx->group;
    const dsc_exchange_args args = {
        .group = group, .to = parts, .from = parts + group->rank * count, .count = count, .dtype = DSC_F32
    };
    return DSC_RUN(call->ctx->stream, EXCHANGE_GATHER, &args, call->exec->err);
}

/* One row of logits from all ranks' parts of it. */
static dsc_status join_logits(const classify_call *call, float *parts)
{
    const dsc_program *program = call->exec->program;
    const int64_t most = rows_of_rank(program, call->op, 0), total = call->op->classify.total;
    DSC_TRY(gather_numbers(call, parts, most));
    for (int32_t k = 0; k < program->ranks.count; k++) {
        const int64_t first = dsc_op_first_row(program, call->op->classify.table, k);
        const int64_t count = dsc_min_i64(rows_of_rank(program, call->op, k), total - first);
        const dsc_cast_args copy = {
            .to = call->ctx->logits + first, .from = parts + k * most, .count = count, .to_dtype = DSC_F32
        };
        if (count > 0)
            DSC_TRY(DSC_RUN(call->ctx->stream, CAST, &copy, call->exec->err));
    }
    return DSC_OK;
}

static dsc_status last_logits(const classify_call *call)
{
    const dsc_module_ctx *ctx = call->ctx;
    const dsc_op_classify *of = &call->op->classify;
    dsc_gemm_args args = product(call->exec->program, call->op, LAST_LOGITS, 1, ctx->dtype);
    args.a = row_of(call, call->op->in[0], call->exec->row >= 0 ? 0 : ctx->logits_row);
    args.b = ctx->param[of->table];
    args.bias = bias_of(call);
    float *const parts = (float *)(void *)call->logits;
    args.c = is_shared(call->op)
                 ? parts + call->exec->program->ranks.own * rows_of_rank(call->exec->program, call->op, 0)
                 : ctx->logits;
    DSC_TRY(DSC_RUN(ctx->stream, GEMM, &args, call->exec->err));
    if (is_shared(call->op))
        DSC_TRY(join_logits(call, parts));
    const dsc_scale_args bend = { .x = ctx->logits,
                                  .count = is_shared(call->op) ? of->total : of->outputs,
                                  .dtype = DSC_F32,
                                  .factor = of->logit_scale > 0 ? (float)of->logit_scale : 1,
                                  .cap = (float)of->softcap };
    return bend.factor != 1 || bend.cap > 0 ? DSC_RUN(ctx->stream, SCALE, &bend, call->exec->err) : DSC_OK;
}

static dsc_status logits_of(const classify_call *call, int64_t first, int64_t rows)
{
    dsc_gemm_args args = product(call->exec->program, call->op, LOGITS, rows, call->ctx->dtype);
    args.a = row_of(call, call->op->in[0], first);
    args.b = call->ctx->param[call->op->classify.table];
    args.bias = bias_of(call);
    args.c = call->logits;
    return DSC_RUN(call->ctx->stream, GEMM, &args, call->exec->err);
}

/* Losses of labels, and with `gradient` their gradients in place of the logits. */
static dsc_status compare_labels(const classify_call *call, int64_t first, int64_t rows, bool gradient)
{
    const dsc_module_ctx *ctx = call->ctx;
    const dsc_op_classify *of = &call->op->classify;
    const int64_t numbers = of->labels == DSC_LABELS_CLASS ? 1 : of->outputs; /* of 4 bytes each */
    const int32_t *labels = (const int32_t *)ctx->batch_data[of->targets] + first * numbers;
    const dsc_label_loss_args args = { .logits = call->logits,
                                       .losses = ctx->losses + first,
                                       .labels = labels,
                                       .rows = rows,
                                       .classes = of->outputs,
                                       .stride = call->stride,
                                       .scale = (float)((double)ctx->loss_scale / (double)call->rows),
                                       .smoothing = ctx->label_smoothing,
                                       .mixed = ctx->mixed,
                                       .label_before = first > 0 ? labels - 1 : labels + call->rows - 1,
                                       .places = ctx->places != NULL ? ctx->places + first : NULL,
                                       .write_gradient = gradient,
                                       .mark_wrong = !ctx->save && !ctx->training,
                                       .kind = of->labels,
                                       .dtype = ctx->dtype };
    return DSC_RUN(ctx->stream, LABEL_LOSS, &args, call->exec->err);
}

/* Losses of rows of which each rank has some columns. */
static dsc_status join_losses(const classify_call *call, const dsc_cross_entropy_args *of)
{
    const dsc_program *program = call->exec->program;
    const int64_t count = of->rows * DSC_CROSS_ENTROPY_PART;
    dsc_cross_entropy_parts_args args = { .of = *of,
                                          .first =
                                              dsc_op_first_row(program, call->op->classify.table, program->ranks.own),
                                          .parts = call->parts + program->ranks.own * count,
                                          .ranks = program->ranks.count };
    DSC_TRY(DSC_RUN(call->ctx->stream, CROSS_ENTROPY_PART, &args, call->exec->err));
    DSC_TRY(gather_numbers(call, call->parts, count));
    args.parts = call->parts;
    return DSC_RUN(call->ctx->stream, CROSS_ENTROPY_JOIN, &args, call->exec->err);
}

/* Losses of the rows whose logits are there; with `gradient` these become their gradients. */
static dsc_status losses_of(const classify_call *call, int64_t first, int64_t rows, bool gradient)
{
    const dsc_module_ctx *ctx = call->ctx;
    const dsc_op_classify *of = &call->op->classify;
    const bool pairs = has_pairs(call->op);
    const double items = (double)(pairs ? ctx->batch / 2 : call->rows); /* that the loss is the mean of */
    if (of->labels != DSC_LABELS_NONE)
        return compare_labels(call, first, rows, gradient);
    const dsc_cross_entropy_args args = { .logits = call->logits,
                                          .losses = ctx->losses + first,
                                          .targets = (const int32_t *)ctx->batch_data[of->targets] + first,
                                          .rows = rows,
                                          .vocab = of->outputs,
                                          .stride = call->stride,
                                          .scale = (float)((double)ctx->loss_scale / items),
                                          .write_gradient = gradient,
                                          .dtype = ctx->dtype,
                                          .weights = pairs && gradient ? call->weights + first : NULL,
                                          .logit_scale = (float)of->logit_scale,
                                          .softcap = (float)of->softcap };
    return is_shared(call->op) ? join_losses(call, &args) : DSC_RUN(ctx->stream, CROSS_ENTROPY, &args, call->exec->err);
}

/* The part of the rows from `first` on. */
static dsc_status bias_gradient(const classify_call *call, int64_t first, int64_t rows)
{
    const int32_t bias = call->op->classify.bias;
    if (bias == DSC_PROGRAM_NONE || call->ctx->grad[bias] == NULL)
        return DSC_OK;
    const dsc_colsum_args args = { .out = call->ctx->grad[bias],
                                   .x = call->logits,
                                   .rows = rows,
                                   .cols = table_of(call->exec->program, call->op).out,
                                   .ld = call->stride,
                                   .x_dtype = call->ctx->dtype,
                                   .accumulate = first > 0 };
    return DSC_RUN(call->ctx->stream, COLSUM, &args, call->exec->err);
}

/* The rows' part of the table's gradient, and the input's gradient, from the logits' gradients. */
static dsc_status gradients(const classify_call *call, int64_t first, int64_t rows)
{
    const dsc_module_ctx *ctx = call->ctx;
    const int32_t table = call->op->classify.table;
    dsc_gemm_args args = product(call->exec->program, call->op, D_TABLE, rows, ctx->dtype);
    args.a = call->logits;
    args.b = row_of(call, call->op->in[0], first);
    args.c = ctx->grad[table];
    args.accumulate = first > 0;
    if (args.c != NULL)
        DSC_TRY(DSC_RUN(ctx->stream, GEMM, &args, call->exec->err));
    DSC_TRY(bias_gradient(call, first, rows));
    args = product(call->exec->program, call->op, D_INPUT, rows, ctx->dtype);
    args.a = call->logits;
    args.b = ctx->param[table];
    args.c = row_of(call, call->op->out[0], first);
    return DSC_RUN(ctx->stream, GEMM, &args, call->exec->err);
}

/* Losses, and with save the gradients at once. */
static dsc_status run_chunks(const classify_call *call)
{
    for (int64_t first = 0; first < call->rows; first += call->chunk) {
        const int64_t rows = dsc_min_i64(call->chunk, call->rows - first);
        DSC_TRY(logits_of(call, first, rows));
        DSC_TRY(losses_of(call, first, rows, call->ctx->save));
        if (call->ctx->save)
            DSC_TRY(gradients(call, first, rows));
    }
    return DSC_OK;
}

/* All losses, then the weights of the pairs, then the gradients. */
static dsc_status run_pairs(const classify_call *call)
{
    const dsc_module_ctx *ctx = call->ctx;
    const dsc_op_classify *of = &call->op->classify;
    const int64_t rows = call->rows, chunk = call->chunk;
    for (int64_t first = 0; first < rows; first += chunk) {
        DSC_TRY(logits_of(call, first, dsc_min_i64(chunk, rows - first)));
        DSC_TRY(losses_of(call, first, dsc_min_i64(chunk, rows - first), false));
    }
    const dsc_preference_args args = { .weights = call->weights,
                                       .losses = ctx->losses,
                                       .reference = ctx->batch_data[of->reference],
                                       .pairs = ctx->batch / 2,
                                       .items = rows / ctx->batch,
                                       .beta = of->preference.beta,
                                       .smoothing = of->preference.smoothing };
    DSC_TRY(DSC_RUN(ctx->stream, PREFERENCE, &args, call->exec->err));
    for (int64_t first = 0; first < rows; first += chunk) {
        if (chunk < rows)
            DSC_TRY(logits_of(call, first, dsc_min_i64(chunk, rows - first)));
        DSC_TRY(losses_of(call, first, dsc_min_i64(chunk, rows - first), true));
        DSC_TRY(gradients(call, first, dsc_min_i64(chunk, rows - first)));
    }
    return DSC_OK;
}

dsc_status dsc_op_run_classify(dsc_exec *exec, const dsc_op *op)
{
    const classify_call call = begin(exec, op);
    if (exec->ctx->logits != NULL)
        return last_logits(&call);
    return exec->ctx->save && has_pairs(op) ? run_pairs(&call) : run_chunks(&call);
}
