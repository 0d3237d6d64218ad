/* lm_vectors.c - the head of a model that makes a vector of each text: final norm, pooling and unit length. Then come
 * cosines of all texts of the micro-batch, their loss, and in the same call the gradients (kernels/text_vectors.h).
 *
 * Vectors and cosines are fp32 in each compute dtype: a micro-batch has few of them. The head has no parameters beside
 * those of the norm. The norm's output is replaced by its gradient. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/device.h"
#include "models/lm.h"

#define STRIDE_ALIGN 16 /* elements: rows of cosines start on cache lines */

enum { COSINES, D_ANCHORS, D_OTHERS, GEMM_COUNT };

/* Byte offsets in ctx->scratch. */
typedef struct vectors_layout {
    int64_t rows, stride;                /* R; elements between rows of cosines */
    int64_t norm, stats, work;           /* [R,C] of the dtype; the norm's; nothing of a bare head */
    int64_t vectors, d_vectors, lengths; /* [B,C] [B,C] [B] fp32 */
    int64_t matrix, bytes;               /* [B,stride] fp32 */
} vectors_layout;

static dsc_status layout(const dsc_lm_module *self, int64_t batch, dsc_dtype dtype, vectors_layout *out, dsc_error *err)
{
    const dsc_lm_config *config = self->config;
    const dsc_norm_kind kind = self->family->norm;
    const int64_t element = (int64_t)dsc_dtype_bytes(dtype), word = (int64_t)sizeof(float);
    *out = (vectors_layout) { 0 };
    DSC_TRY(dsc_lm_rows(config, batch, &out->rows, err));
    out->stride = dsc_align_up(batch, STRIDE_ALIGN);
    const int64_t normed = config->bare_head ? 0 : out->rows;
    out->norm = dsc_lm_piece(&out->bytes, normed * config->channels * element);
    out->stats = dsc_lm_piece(&out->bytes, dsc_norm_stats_bytes(kind, normed));
    out->work = dsc_lm_piece(&out->bytes, dsc_norm_backward_scratch_bytes(kind, normed, config->channels));
    out->vectors = dsc_lm_piece(&out->bytes, batch * config->channels * word);
    out->d_vectors = dsc_lm_piece(&out->bytes, batch * config->channels * word);
    out->lengths = dsc_lm_piece(&out->bytes, batch * word);
    out->matrix = dsc_lm_piece(&out->bytes, batch * out->stride * word);
    return DSC_OK;
}

/* S = V V^T; dV = D V, and then D^T V is added, for samples that are anchors and for the others. */
static dsc_gemm_args product(const dsc_lm_config *config, int which, int64_t batch, int64_t stride)
{
    const int64_t channels = config->channels;
    dsc_gemm_args args = { .m = batch, .ab_dtype = DSC_F32, .c_dtype = DSC_F32, .epilogue = DSC_EPILOGUE_NONE };
    args.n = which == COSINES ? batch : channels;
    args.k = which == COSINES ? channels : batch;
    args.lda = which == COSINES ? channels : stride;
    args.ldb = channels;
    args.ldc = which == COSINES ? stride : channels;
    args.b_transposed = which == COSINES;
    args.a_transposed = args.accumulate = which == D_OTHERS;
    return args;
}

static dsc_status plan(const dsc_module *module, int64_t batch, dsc_dtype dtype, const dsc_plan_sink *sink,
                       dsc_module_plan *out, dsc_error *err)
{
    const dsc_lm_module *self = module->self;
    vectors_layout at;
    DSC_TRY(layout(self, batch, dtype, &at, err));
    for (int which = 0; which < GEMM_COUNT && sink != NULL && sink->gemm != NULL; which++) {
        const dsc_gemm_args args = product(self->config, which, batch, at.stride);
        DSC_TRY(sink->gemm(sink->user, &args, err));
    }
    const double flops = 2.0 * (double)batch * (double)batch * (double)self->config->channels;
    *out = (dsc_module_plan) { .forward_scratch_bytes = at.bytes, .forward_flops = flops, .backward_flops = 2 * flops };
    return DSC_OK;
}

typedef struct vectors_call {
    const dsc_lm_module *self;
    const dsc_lm_config *config;
    dsc_module_ctx *ctx;
    vectors_layout at;
    dsc_error *err;
} vectors_call;

static void *piece(const vectors_call *call, int64_t at) { return (char *)call->ctx->scratch + at; }

static dsc_norm norm_of(const vectors_call *call)
{
    return (dsc_norm) { .kind = call->self->family->norm,
                        .rows = call->at.rows,
                        .channels = call->config->channels,
                        .eps = call->config->norm_eps,
                        .weight = 0,
                        .bias = dsc_lm_norm_bias(call->self->family, call->config, 0),
                        .plus_one = call->config->norm_plus_one,
                        .stats = piece(call, call->at.stats) };
}

static dsc_call launch_of(const vectors_call *call)
{
    return (dsc_call) { .ctx = call->ctx, .rows = call->at.rows, .err = call->err };
}

/* `rows`: those of all tokens, or their gradients. */
static dsc_text_vectors_args vectors_args(const vectors_call *call, const void *rows)
{
    const dsc_module_ctx *ctx = call->ctx;
    return (dsc_text_vectors_args) { .rows = (void *)(uintptr_t)rows,
                                     .vectors = piece(call, call->at.vectors),
                                     .lengths = piece(call, call->at.lengths),
                                     .d_vectors = piece(call, call->at.d_vectors),
                                     .place = ctx->batch_data[DSC_LM_POOLED],
                                     .batch = ctx->batch,
                                     .tokens = call->config->sequence,
                                     .channels = call->config->channels,
                                     .mean = call->config->pooling == DSC_POOLING_MEAN,
                                     .unit = true,
                                     .dtype = ctx->dtype };
}

/* The rows behind the norm. */
static dsc_status make_rows(const vectors_call *call, const void **rows)
{
    const dsc_call launch = launch_of(call);
    *rows = call->ctx->in;
    if (call->config->bare_head)
        return DSC_OK;
    *rows = piece(call, call->at.norm);
    return dsc_norm_forward(&launch, norm_of(call), piece(call, call->at.norm), call->ctx->in);
}

/* One text's vector, straight into the caller's fp32 [C]. */
static dsc_status give_vector(const vectors_call *call, const void *rows)
{
    const dsc_module_ctx *ctx = call->ctx;
    dsc_text_vectors_args args = vectors_args(call, rows);
    if (ctx->save || ctx->logits_row < 0 || ctx->logits_row >= ctx->batch)
        return DSC_FAIL(call->err, DSC_ERR_STATE, "", "a vector is that of one of the %lld texts, without save",
                        (long long)ctx->batch);
    const int64_t first = ctx->logits_row * args.tokens * args.channels * (int64_t)dsc_dtype_bytes(ctx->dtype);
    args.rows = (char *)args.rows + first;
    args.vectors = ctx->logits;
    args.place += ctx->logits_row;
    args.batch = 1;
    args.unit = call->config->unit_vectors;
    return DSC_RUN(ctx->stream, TEXT_VECTORS_FWD, &args, call->err);
}

static dsc_status multiply(const vectors_call *call, int which)
{
    dsc_gemm_args args = product(call->config, which, call->ctx->batch, call->at.stride);
    args.a = piece(call, which == COSINES ? call->at.vectors : call->at.matrix);
    args.b = piece(call, call->at.vectors);
    args.c = piece(call, which == COSINES ? call->at.matrix : call->at.d_vectors);
    return DSC_RUN(call->ctx->stream, GEMM, &args, call->err);
}

static dsc_status compare(const vectors_call *call)
{
    dsc_module_ctx *ctx = call->ctx;
    const dsc_text_loss_args args = { .matrix = piece(call, call->at.matrix),
                                      .losses = ctx->losses,
                                      .targets = ctx->batch_data[DSC_LM_TARGETS],
                                      .samples = ctx->batch,
                                      .stride = call->at.stride,
                                      .scale = (float)call->config->similarity_scale,
                                      .factor = ctx->loss_scale,
                                      .write_gradient = ctx->save,
                                      .evaluate = !ctx->save && !ctx->training,
                                      .kind = call->config->label_kind };
    return DSC_RUN(ctx->stream, TEXT_LOSS, &args, call->err);
}

static dsc_status backward(const vectors_call *call)
{
    dsc_module_ctx *ctx = call->ctx;
    void *const d_rows = call->config->bare_head ? ctx->d_in : piece(call, call->at.norm);
    const dsc_text_vectors_args args = vectors_args(call, d_rows);
    DSC_TRY(multiply(call, D_ANCHORS));
    DSC_TRY(multiply(call, D_OTHERS));
    DSC_TRY(DSC_RUN(ctx->stream, TEXT_VECTORS_BWD, &args, call->err));
    if (call->config->bare_head)
        return DSC_OK;
    const dsc_call launch = launch_of(call);
    const dsc_norm_gradient buffers = {
        .d_in = ctx->d_in, .d_out = d_rows, .in = ctx->in, .scratch = piece(call, call->at.work)
    };
    return dsc_norm_backward(&launch, norm_of(call), &buffers);
}

static dsc_status forward(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    const dsc_lm_module *self = module->self;
    vectors_call call = { .self = self, .config = self->config, .ctx = ctx, .err = err };
    const void *rows = NULL;
    DSC_TRY(layout(self, ctx->batch, ctx->dtype, &call.at, err));
    DSC_TRY(make_rows(&call, &rows));
    if (ctx->logits != NULL)
        return give_vector(&call, rows);
    const dsc_text_vectors_args vectors = vectors_args(&call, rows);
    DSC_TRY(DSC_RUN(ctx->stream, TEXT_VECTORS_FWD, &vectors, err));
    DSC_TRY(multiply(&call, COSINES));
    DSC_TRY(compare(&call));
    return ctx->save ? backward(&call) : DSC_OK;
}

void dsc_lm_vectors_init(dsc_module *module)
{
    module->flags = DSC_MODULE_LOSS;
    module->plan = plan;
    module->forward = forward;
}
