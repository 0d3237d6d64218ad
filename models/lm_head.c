/* lm_head.c - final norm, logits, loss, and in the same call their gradients, in chunks of rows.
 *
 * The logits of a micro-batch are the largest tensor of a small model's training (R * P), so only one chunk of them is
 * alive. A chunk holds logits, then in place dlogits, then its two products are made, then the next chunk follows. The
 * chunk depends on the shape and on chunk_bytes only. The norm's output of a chunk is replaced by its gradient once the
 * chunk's part of the table's gradient is done. A bare head, without a norm, reads its input and writes its gradient.
 * With a preference the weight of a row's gradient is known when all rows have their losses. So the chunks come twice:
 * for the losses, and for the gradients; a single chunk keeps its logits in between.
 * Columns of padding (V <= v < P) never enter the softmax and get gradient 0. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/device.h"
#include "models/lm.h"

/* One chunk's logits: small beside a model that needs chunks, large enough for full-speed products of a CPU. */
#define CHUNK_BYTES_MAX (INT64_C(64) << 20)
#define CHUNK_ROWS_ALIGN 64
#define LOGITS_ALIGN 64 /* elements: rows of logits start on cache lines also for V = 50257 */

enum { LOGITS, D_NORM, D_TABLE, LAST_LOGITS, GEMM_COUNT };

/* Elements between two rows of logits. */
static int64_t stride_of(const dsc_lm_config *config) { return dsc_align_up(dsc_lm_output_rows(config), LOGITS_ALIGN); }

/* Whether the head sees one token of each sample, whose row it takes itself. */
static bool takes_rows(const dsc_lm_config *config)
{
    return config->classes > 0 && !config->masked && !config->of_tokens;
}

static dsc_gemm_args product(const dsc_lm_module *self, int which, int64_t rows, dsc_dtype dtype)
{
    const dsc_lm_config *config = self->config;
    const dsc_epilogue epilogue = self->family->head_bias != NULL ? DSC_EPILOGUE_BIAS : DSC_EPILOGUE_NONE;
    const int64_t outputs = which == LAST_LOGITS ? dsc_lm_outputs(config) : dsc_lm_output_rows(config);
    const dsc_linear table = { config->embed_channels, outputs, true };
    const int64_t stride = stride_of(config);
    dsc_gemm_args args;
    switch (which) {
    case LOGITS:
        args = dsc_linear_forward(table, rows, dtype, epilogue);
        args.ldc = stride;
        return args;
    case D_NORM:
        args = dsc_linear_backward_input(table, rows, dtype, DSC_EPILOGUE_NONE);
        args.lda = stride;
        return args;
    case D_TABLE:
        args = dsc_linear_backward_weight(table, rows, dtype);
        args.lda = stride;
        return args;
    default: /* one row, straight into the caller's fp32 [V] */
        args = dsc_linear_forward(table, 1, dtype, epilogue);
        args.c_dtype = DSC_F32;
        return args;
    }
}

/* Rows of a full chunk; the last one may be shorter. Several chunks have 13/16 of the limit at most before their rows
 * are rounded up. */
static int64_t chunk_rows(const dsc_lm_config *config, int64_t rows, dsc_dtype dtype, int64_t chunk_bytes)
{
    const int64_t row_bytes = stride_of(config) * (int64_t)dsc_dtype_bytes(dtype);
    const int64_t most = chunk_bytes > 0 ? chunk_bytes : CHUNK_BYTES_MAX;
    if (rows <= most / row_bytes)
        return rows;
    const int64_t count = dsc_div_ceil(rows, dsc_max_i64(1, most / 16 * 13 / row_bytes));
    return dsc_min_i64(rows, dsc_align_up(dsc_div_ceil(rows, count), CHUNK_ROWS_ALIGN));
}

/* Byte offsets in ctx->scratch. */
typedef struct head_layout {
    int64_t rows, chunk;
    int64_t norm, stats, work, logits, bytes; /* [R,E] - - [chunk,stride]; a bare head: the last one alone */
    int64_t weights;                          /* [R] fp32 of a preference */
    int64_t taken, d_taken;                   /* [R,E] each, where the head takes rows */
} head_layout;

static dsc_status layout(const dsc_lm_module *self, int64_t batch, dsc_dtype dtype, int64_t chunk_bytes,
                         head_layout *out, dsc_error *err)
{
    const dsc_lm_config *config = self->config;
    const dsc_norm_kind kind = self->family->norm;
    *out = (head_layout){ 0 };
    DSC_TRY(dsc_lm_head_rows(config, batch, &out->rows, err));
    const int64_t element = (int64_t)dsc_dtype_bytes(dtype);
    out->chunk = chunk_rows(config, out->rows, dtype, chunk_bytes);
    const int64_t normed = config->bare_head ? 0 : out->rows, weighted = config->preference.beta > 0 ? out->rows : 0;
    if (weighted > 0 && batch % 2 != 0)
        return DSC_FAIL(err, DSC_ERR_CONFIG, "train_micro_batch_size_per_gpu",
                        "%lld is odd; with dsc.dpo it counts sequences, and a pair is two of them: give an even number",
                        (long long)batch);
    out->norm = dsc_lm_piece(&out->bytes, normed * config->embed_channels * element);
    out->stats = dsc_lm_piece(&out->bytes, dsc_norm_stats_bytes(kind, normed));
    /* The norm's backward runs when the last chunk is done: they share memory. */
    const int64_t norm_work = dsc_norm_backward_scratch_bytes(kind, normed, config->embed_channels);
    const int64_t logits = out->chunk * stride_of(config) * element;
    out->logits = dsc_lm_piece(&out->bytes, dsc_max_i64(norm_work, logits));
    out->work = out->logits;
    out->weights = dsc_lm_piece(&out->bytes, weighted * (int64_t)sizeof(float));
    const int64_t taken = takes_rows(config) ? out->rows * config->embed_channels * element : 0;
    out->taken = dsc_lm_piece(&out->bytes, taken);
    out->d_taken = dsc_lm_piece(&out->bytes, taken);
    return DSC_OK;
}

/* Every chunk is full but for a shorter last one, and adds to the table's gradient but for the first one. */
static dsc_status report_gemm(const dsc_lm_module *self, const head_layout *at, int which, dsc_dtype dtype,
                              const dsc_plan_sink *sink, dsc_error *err)
{
    const int64_t full_count = at->rows / at->chunk, rest = at->rows % at->chunk;
    dsc_gemm_args args = product(self, which, at->chunk, dtype);
    DSC_TRY(sink->gemm(sink->user, &args, err));
    if (which == LAST_LOGITS)
        return DSC_OK;
    args.accumulate = which == D_TABLE;
    if (full_count > 1 && args.accumulate)
        DSC_TRY(sink->gemm(sink->user, &args, err));
    if (rest == 0)
        return DSC_OK;
    args = product(self, which, rest, dtype);
    args.accumulate = which == D_TABLE;
    return sink->gemm(sink->user, &args, err);
}

static dsc_status plan(const dsc_module *module, int64_t batch, dsc_dtype dtype, const dsc_plan_sink *sink,
                       dsc_module_plan *out, dsc_error *err)
{
    const dsc_lm_module *self = module->self;
    const dsc_lm_config *config = self->config;
    head_layout at;
    DSC_TRY(layout(self, batch, dtype, sink != NULL ? sink->chunk_bytes : 0, &at, err));
    const bool trains = module->params[dsc_lm_head_table(self->family, config)].trainable;
    for (int which = 0; which < GEMM_COUNT && sink != NULL && sink->gemm != NULL; which++)
        if (which != D_TABLE || trains)
            DSC_TRY(report_gemm(self, &at, which, dtype, sink, err));
    const double flops = 2.0 * (double)at.rows * (double)config->embed_channels * (double)dsc_lm_output_rows(config);
    *out = (dsc_module_plan){ .forward_scratch_bytes = at.bytes, .forward_flops = flops,
                              .backward_flops = trains ? 2 * flops : flops };
    return DSC_OK;
}

typedef struct head_call {
    const dsc_lm_module *self;
    const dsc_lm_config *config;
    dsc_module_ctx *ctx;
    head_layout at;
    char *scratch;
    const void *in; /* [R,E], and its gradient: those of the module, or of the rows that it takes */
    void *d_in;
    const char *normed; /* [R,E] what the table is multiplied with */
    char *d_normed;     /* its gradient, which may be written over it */
    dsc_error *err;
} head_call;

static char *element_at(const head_call *call, const void *base, int64_t elements)
{
    return (char *)(uintptr_t)base + elements * (int64_t)dsc_dtype_bytes(call->ctx->dtype);
}

/* The norm of `rows` rows, with its statistics in the scratch. */
static dsc_norm norm_of(const head_call *call, int64_t rows)
{
    return dsc_lm_norm(call->self, rows, call->config->embed_channels, 0, call->scratch + call->at.stats);
}

static const void *table_of(const head_call *call)
{
    return call->ctx->param[dsc_lm_head_table(call->self->family, call->config)];
}

static const void *bias_of(const head_call *call)
{
    const int32_t bias = dsc_lm_head_bias(call->self->family, call->config);
    return bias >= 0 ? call->ctx->param[bias] : NULL;
}

/* Norm of rows [first, first + rows) into the first rows of the scratch's norm. */
static dsc_status norm(const head_call *call, int64_t first, int64_t rows)
{
    const dsc_call launch = { .ctx = call->ctx, .rows = rows, .err = call->err };
    return dsc_norm_forward(&launch, norm_of(call, rows), call->scratch + call->at.norm,
                            element_at(call, call->in, first * call->config->embed_channels));
}

static dsc_status last_logits(const head_call *call)
{
    dsc_module_ctx *ctx = call->ctx;
    if (ctx->save || ctx->logits_row < 0 || ctx->logits_row >= call->at.rows)
        return DSC_FAIL(call->err, DSC_ERR_STATE, "", "logits are for one of the %lld items, without save",
                        (long long)call->at.rows);
    dsc_gemm_args args = product(call->self, LAST_LOGITS, 1, ctx->dtype);
    args.a = element_at(call, call->in, ctx->logits_row * call->config->embed_channels);
    if (!call->config->bare_head) {
        DSC_TRY(norm(call, ctx->logits_row, 1));
        args.a = call->scratch + call->at.norm;
    }
    args.b = table_of(call);
    args.bias = bias_of(call);
    args.c = ctx->logits;
    DSC_TRY(DSC_RUN(ctx->stream, GEMM, &args, call->err));
    const double scale = call->config->logit_scale, cap = call->config->logit_softcap;
    const dsc_scale_args bend = { .x = ctx->logits,
                                  .count = dsc_lm_outputs(call->config),
                                  .dtype = DSC_F32,
                                  .factor = scale > 0 ? (float)scale : 1,
                                  .cap = (float)cap };
    return call->config->classes == 0 && (bend.factor != 1 || cap > 0) ? DSC_RUN(ctx->stream, SCALE, &bend, call->err)
                                                                       : DSC_OK;
}

/* The part of the rows from `first` on. */
static dsc_status bias_gradient(const head_call *call, const void *d_logits, int64_t first, int64_t rows)
{
    const int32_t bias = dsc_lm_head_bias(call->self->family, call->config);
    if (bias < 0 || call->ctx->grad[bias] == NULL)
        return DSC_OK;
    const dsc_colsum_args args = { .out = call->ctx->grad[bias],
                                   .x = d_logits,
                                   .rows = rows,
                                   .cols = dsc_lm_output_rows(call->config),
                                   .ld = stride_of(call->config),
                                   .x_dtype = call->ctx->dtype,
                                   .accumulate = first > 0 };
    return DSC_RUN(call->ctx->stream, COLSUM, &args, call->err);
}

static dsc_status logits_of(const head_call *call, int64_t first, int64_t rows)
{
    dsc_gemm_args args = product(call->self, LOGITS, rows, call->ctx->dtype);
    args.a = element_at(call, call->normed, first * call->config->embed_channels);
    args.b = table_of(call);
    args.bias = bias_of(call);
    args.c = call->scratch + call->at.logits;
    return DSC_RUN(call->ctx->stream, GEMM, &args, call->err);
}

/* Losses of labels, and with `gradient` their gradients in place of the logits. */
static dsc_status compare_labels(const head_call *call, int64_t first, int64_t rows, bool gradient)
{
    dsc_module_ctx *ctx = call->ctx;
    const dsc_lm_config *config = call->config;
    const int64_t numbers = config->label_kind == DSC_LABELS_CLASS ? 1 : config->classes; /* of 4 bytes each */
    const int32_t *labels = (const int32_t *)ctx->batch_data[DSC_LM_TARGETS] + first * numbers;
    const dsc_label_loss_args args = { .logits = call->scratch + call->at.logits,
                                       .losses = ctx->losses + first,
                                       .labels = labels,
                                       .rows = rows,
                                       .classes = config->classes,
                                       .stride = stride_of(config),
                                       .scale = (float)((double)ctx->loss_scale / (double)call->at.rows),
                                       .smoothing = ctx->label_smoothing,
                                       .mixed = ctx->mixed,
                                       .label_before = first > 0 ? labels - 1 : labels + call->at.rows - 1,
                                       .places = ctx->places != NULL ? ctx->places + first : NULL,
                                       .write_gradient = gradient,
                                       .mark_wrong = !ctx->save && !ctx->training,
                                       .kind = config->label_kind,
                                       .dtype = ctx->dtype };
    return DSC_RUN(ctx->stream, LABEL_LOSS, &args, call->err);
}

/* Losses of the rows whose logits are there; with `gradient` these become their gradients. */
static dsc_status classify(const head_call *call, int64_t first, int64_t rows, bool gradient)
{
    dsc_module_ctx *ctx = call->ctx;
    if (call->config->classes > 0)
        return compare_labels(call, first, rows, gradient);
    const bool pairs = call->config->preference.beta > 0;
    const double items = (double)(pairs ? ctx->batch / 2 : call->at.rows); /* that the loss is the mean of */
    const float *const weights = (const float *)(const void *)(call->scratch + call->at.weights);
    const dsc_cross_entropy_args args = { .logits = call->scratch + call->at.logits,
                                          .losses = ctx->losses + first,
                                          .targets = (const int32_t *)ctx->batch_data[DSC_LM_TARGETS] + first,
                                          .rows = rows,
                                          .vocab = call->config->vocab,
                                          .stride = stride_of(call->config),
                                          .scale = (float)((double)ctx->loss_scale / items),
                                          .write_gradient = gradient,
                                          .dtype = ctx->dtype,
                                          .weights = pairs && gradient ? weights + first : NULL,
                                          .logit_scale = (float)call->config->logit_scale,
                                          .softcap = (float)call->config->logit_softcap };
    return DSC_RUN(ctx->stream, CROSS_ENTROPY, &args, call->err);
}

/* The rows' part of the table's gradient, and the norm's gradient, from the logits' gradients. */
static dsc_status gradients(const head_call *call, int64_t first, int64_t rows)
{
    dsc_module_ctx *ctx = call->ctx;
    const int64_t row = first * call->config->embed_channels;
    char *const d_logits = call->scratch + call->at.logits;
    dsc_gemm_args args = product(call->self, D_TABLE, rows, ctx->dtype);
    args.a = d_logits;
    args.b = element_at(call, call->normed, row);
    args.c = ctx->grad[dsc_lm_head_table(call->self->family, call->config)];
    args.accumulate = first > 0;
    if (args.c != NULL)
        DSC_TRY(DSC_RUN(ctx->stream, GEMM, &args, call->err));
    DSC_TRY(bias_gradient(call, d_logits, first, rows));
    args = product(call->self, D_NORM, rows, ctx->dtype);
    args.a = d_logits;
    args.b = table_of(call);
    args.c = element_at(call, call->d_normed, row);
    return DSC_RUN(ctx->stream, GEMM, &args, call->err);
}

/* Losses, and with save the gradients at once. */
static dsc_status run_chunks(const head_call *call)
{
    for (int64_t first = 0; first < call->at.rows; first += call->at.chunk) {
        const int64_t rows = dsc_min_i64(call->at.chunk, call->at.rows - first);
        DSC_TRY(logits_of(call, first, rows));
        DSC_TRY(classify(call, first, rows, call->ctx->save));
        if (call->ctx->save)
            DSC_TRY(gradients(call, first, rows));
    }
    return DSC_OK;
}

/* All losses, then the weights of the pairs, then the gradients. */
static dsc_status run_pairs(const head_call *call)
{
    const dsc_module_ctx *ctx = call->ctx;
    const dsc_preference *wanted = &call->config->preference;
    const int64_t rows = call->at.rows, chunk = call->at.chunk;
    for (int64_t first = 0; first < rows; first += chunk) {
        DSC_TRY(logits_of(call, first, dsc_min_i64(chunk, rows - first)));
        DSC_TRY(classify(call, first, dsc_min_i64(chunk, rows - first), false));
    }
    const dsc_preference_args args = { .weights = (float *)(void *)(call->scratch + call->at.weights),
                                       .losses = ctx->losses,
                                       .reference = ctx->batch_data[DSC_LM_REFERENCE],
                                       .pairs = ctx->batch / 2,
                                       .items = rows / ctx->batch,
                                       .beta = wanted->beta,
                                       .smoothing = wanted->smoothing };
    DSC_TRY(DSC_RUN(ctx->stream, PREFERENCE, &args, call->err));
    for (int64_t first = 0; first < rows; first += chunk) {
        if (chunk < rows)
            DSC_TRY(logits_of(call, first, dsc_min_i64(chunk, rows - first)));
        DSC_TRY(classify(call, first, dsc_min_i64(chunk, rows - first), true));
        DSC_TRY(gradients(call, first, dsc_min_i64(chunk, rows - first)));
    }
    return DSC_OK;
}

/* The rows of the tokens that the head sees, or their gradients back among those of all tokens. */
static dsc_status take_rows(const head_call *call, bool back)
{
    dsc_module_ctx *ctx = call->ctx;
    const dsc_gather_rows_args args = { .all = back ? ctx->d_in : (void *)(uintptr_t)ctx->in,
                                        .some = call->scratch + (back ? call->at.d_taken : call->at.taken),
                                        .positions = dsc_lm_seen(call->config, ctx),
                                        .batch = ctx->batch,
                                        .tokens = call->config->sequence,
                                        .gathered = call->config->predictions,
                                        .channels = call->config->embed_channels,
                                        .dtype = ctx->dtype };
    return back ? DSC_RUN(ctx->stream, GATHER_ROWS_BWD, &args, call->err)
                : DSC_RUN(ctx->stream, GATHER_ROWS_FWD, &args, call->err);
}

static dsc_status backward_norm(const head_call *call)
{
    const dsc_call launch = { .ctx = call->ctx, .rows = call->at.rows, .err = call->err };
    const dsc_norm_gradient buffers = { .d_in = call->d_in,
                                        .d_out = call->scratch + call->at.norm,
                                        .in = call->in,
                                        .scratch = call->scratch + call->at.work };
    return dsc_norm_backward(&launch, norm_of(call, call->at.rows), &buffers);
}

static dsc_status forward(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    const dsc_lm_module *self = module->self;
    head_call call = { .self = self,
                       .config = self->config,
                       .ctx = ctx,
                       .scratch = ctx->scratch,
                       .in = ctx->in,
                       .d_in = ctx->d_in,
                       .err = err };
    DSC_TRY(layout(self, ctx->batch, ctx->dtype, ctx->chunk_bytes, &call.at, err));
    const bool takes = takes_rows(self->config);
    if (takes) {
        DSC_TRY(take_rows(&call, false));
        call.in = call.scratch + call.at.taken;
        call.d_in = call.scratch + call.at.d_taken;
    }
    if (ctx->logits != NULL)
        return last_logits(&call);
    call.normed = call.d_normed = call.scratch + call.at.norm;
    if (self->config->bare_head) {
        call.normed = call.in;
        call.d_normed = call.d_in;
    } else {
        DSC_TRY(norm(&call, 0, call.at.rows));
    }
    DSC_TRY(ctx->save && self->config->preference.beta > 0 ? run_pairs(&call) : run_chunks(&call));
    if (!ctx->save)
        return DSC_OK;
    if (!self->config->bare_head)
        DSC_TRY(backward_norm(&call));
    return takes ? take_rows(&call, true) : DSC_OK;
}

void dsc_lm_head_init(dsc_module *module)
{
    const dsc_lm_module *self = module->self;
    module->flags =
        DSC_MODULE_LOSS | (self->config->classes > 0 && !self->config->of_tokens ? 0 : DSC_MODULE_MASKS_TARGETS);
    module->plan = plan;
    module->forward = forward;
}
