/* lm_transform.c - the layer between the last block and the head of some families. It is a linear layer to the width of
 * the token table. Masked models apply it with an activation to the tokens that they predict, some of them behind a
 * norm. Those that classify texts apply it to the first token of a sample, or to the mean of the tokens.
 *
 * Saved for backward: the activation's input. The rows of the predicted tokens are gathered, and normed, again.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/device.h"
#include "models/lm.h"

/* Byte offsets in ctx->saved and, of either pass, ctx->scratch. */
typedef struct transform_layout {
    int64_t rows, all_rows;              /* those of the head; R */
    int64_t before, saved_bytes;         /* [rows,E], masked */
    int64_t lora;                        /* [rows,r] */
    int64_t gathered, normed, stats;     /* [rows,C] each of the first two */
    int64_t all, normed_rows;            /* [R,C] of a mean behind a norm; rows that the norm has */
    int64_t forward_bytes;               /* of all above; what follows is backward's */
    int64_t d_before, work, back_bytes;  /* [rows,E], masked; the norm's */
} transform_layout;

static bool norms(const dsc_lm_module *self) { return self->family->transform_norm != NULL; }

static dsc_status layout(const dsc_lm_module *self, int64_t batch, dsc_dtype dtype, transform_layout *out,
                         dsc_error *err)
{
    const dsc_lm_config *config = self->config;
    *out = (transform_layout){ 0 };
    DSC_TRY(dsc_lm_rows(config, batch, &out->all_rows, err));
    DSC_TRY(dsc_lm_head_rows(config, batch, &out->rows, err));
    const int64_t element = (int64_t)dsc_dtype_bytes(dtype), narrow = out->rows * config->embed_channels * element;
    out->before = dsc_lm_piece(&out->saved_bytes, config->masked ? narrow : 0);
    out->lora = dsc_lm_piece(&out->back_bytes, dsc_lora_work_bytes(&self->lora, out->rows, dtype));
    const dsc_norm_kind kind = self->family->norm;
    const int64_t wide = out->rows * config->channels * element;
    const int64_t normed = !norms(self) ? 0 : config->pools_mean ? out->all_rows : out->rows;
    out->normed_rows = normed;
    out->gathered = dsc_lm_piece(&out->back_bytes, wide);
    out->normed = dsc_lm_piece(&out->back_bytes, norms(self) ? wide : 0);
    out->stats = dsc_lm_piece(&out->back_bytes, dsc_norm_stats_bytes(kind, normed));
    out->all = dsc_lm_piece(&out->back_bytes, config->pools_mean ? normed * config->channels * element : 0);
    out->forward_bytes = config->masked ? out->back_bytes : out->gathered;
    out->work = dsc_lm_piece(&out->back_bytes,
                             norms(self) ? dsc_norm_backward_scratch_bytes(kind, normed, config->channels) : 0);
    out->d_before = dsc_lm_piece(&out->back_bytes, config->masked ? narrow : 0);
    return DSC_OK;
}

static dsc_linear_layer linear_of(const dsc_lm_module *self)
{
    const bool bias = dsc_lm_transform_bias(self->config);
    return (dsc_linear_layer){ .shape = { self->config->channels, self->config->embed_channels, true },
                               .bias = bias ? 1 : -1, .forward = bias ? DSC_EPILOGUE_BIAS : DSC_EPILOGUE_NONE };
}

static dsc_status plan(const dsc_module *module, int64_t batch, dsc_dtype dtype, const dsc_plan_sink *sink,
                       dsc_module_plan *out, dsc_error *err)
{
    const dsc_lm_module *self = module->self;
    transform_layout at;
    DSC_TRY(layout(self, batch, dtype, &at, err));
    dsc_linear_planned gemms = { .module = module, .lora = &self->lora, .rows = at.rows, .dtype = dtype, .sink = sink };
    DSC_TRY(dsc_linear_plan(&gemms, linear_of(self), err));
    *out = (dsc_module_plan) { .out_elements = at.rows * self->config->embed_channels,
                               .saved_bytes = at.saved_bytes,
                               .forward_scratch_bytes = at.forward_bytes,
                               .backward_scratch_bytes = at.back_bytes,
                               .forward_flops = gemms.forward_flops,
                               .backward_flops = gemms.backward_flops };
    return DSC_OK;
}

/* Context of all steps of a call. */
typedef struct transform_call {
    const dsc_lm_module *self;
    const dsc_lm_config *config;
    dsc_module_ctx *ctx;
    dsc_call launch;
    transform_layout at;
    char *gathered, *normed, *before; /* normed: the layer's input */
    dsc_error *err;
} transform_call;

static dsc_status begin(const dsc_module *module, dsc_module_ctx *ctx, transform_call *call, dsc_error *err)
{
    const dsc_lm_module *self = module->self;
    *call = (transform_call){ .self = self, .config = self->config, .ctx = ctx, .err = err };
    DSC_TRY(layout(self, ctx->batch, ctx->dtype, &call->at, err));
    call->launch = (dsc_call){ .ctx = ctx, .rows = call->at.rows, .err = err, .lora = &self->lora,
                               .lora_work = (char *)ctx->scratch + call->at.lora };
    DSC_ASSERT(!norms(self) || (self->config->masked && !dsc_lm_projects(self->config)));
    call->gathered = (char *)ctx->scratch + call->at.gathered;
    call->normed = norms(self) ? (char *)ctx->scratch + call->at.normed : call->gathered;
    call->before = (char *)ctx->saved + call->at.before;
    return DSC_OK;
}

/* `all` has the rows of all tokens, `some` those of the predicted ones. */
static dsc_gather_rows_args gather_args(const transform_call *call, const void *all, void *some)
{
    return (dsc_gather_rows_args) { .all = (void *)(uintptr_t)all,
                                    .some = some,
                                    .positions = dsc_lm_seen(call->config, call->ctx),
                                    .batch = call->ctx->batch,
                                    .tokens = call->config->sequence,
                                    .gathered = call->config->predictions,
                                    .channels = call->config->channels,
                                    .dtype = call->ctx->dtype };
}

static dsc_norm norm_of(const transform_call *call)
{
    return dsc_lm_norm(call->self, call->at.normed_rows, call->config->channels, dsc_lm_transform_norm(call->config),
                       (char *)call->ctx->scratch + call->at.stats);
}

/* `all` has the rows of all tokens, `mean` the means of texts. */
static dsc_mean_rows_args mean_args(const transform_call *call, const void *all, void *mean)
{
    return (dsc_mean_rows_args) { .all = (void *)(uintptr_t)all,
                                  .some = mean,
                                  .last = dsc_lm_seen(call->config, call->ctx),
                                  .batch = call->ctx->batch,
                                  .tokens = call->config->sequence,
                                  .channels = call->config->channels,
                                  .dtype = call->ctx->dtype };
}

/* The norm of all tokens, of which the mean is taken. */
static dsc_call norm_launch(const transform_call *call)
{
    dsc_call launch = call->launch;
    launch.rows = call->at.normed_rows;
    return launch;
}

static dsc_status make_mean(const transform_call *call)
{
    char *const all = (char *)call->ctx->scratch + call->at.all;
    const dsc_call launch = norm_launch(call);
    if (norms(call->self))
        DSC_TRY(dsc_norm_forward(&launch, norm_of(call), all, call->ctx->in));
    const dsc_mean_rows_args mean = mean_args(call, norms(call->self) ? all : call->ctx->in, call->normed);
    return DSC_RUN(call->ctx->stream, MEAN_ROWS_FWD, &mean, call->err);
}

/* From the gradient of the mean in call->normed. */
static dsc_status backward_mean(const transform_call *call)
{
    const dsc_module_ctx *ctx = call->ctx;
    char *const all = (char *)ctx->scratch + call->at.all;
    const dsc_mean_rows_args mean = mean_args(call, norms(call->self) ? all : ctx->d_in, call->normed);
    DSC_TRY(DSC_RUN(ctx->stream, MEAN_ROWS_BWD, &mean, call->err));
    if (!norms(call->self))
        return DSC_OK;
    const dsc_call launch = norm_launch(call);
    const dsc_norm_gradient norm = {
        .d_in = ctx->d_in, .d_out = all, .in = ctx->in, .scratch = (char *)ctx->scratch + call->at.work
    };
    return dsc_norm_backward(&launch, norm_of(call), &norm);
}

/* The layer's input: the rows of the predicted tokens, and their norm. */
static dsc_status make_input(const transform_call *call)
{
    if (call->config->pools_mean)
        return make_mean(call);
    const dsc_gather_rows_args gather = gather_args(call, call->ctx->in, call->gathered);
    DSC_TRY(DSC_RUN(call->ctx->stream, GATHER_ROWS_FWD, &gather, call->err));
    return norms(call->self) ? dsc_norm_forward(&call->launch, norm_of(call), call->normed, call->gathered) : DSC_OK;
}

static int64_t narrow_count(const transform_call *call) { return call->at.rows * call->config->embed_channels; }

static dsc_status copy(const transform_call *call, void *out, const void *in, int64_t channels)
{
    const dsc_embedding_fwd_args args = {
        .out = out, .table = in, .rows = call->at.rows, .channels = channels, .dtype = call->ctx->dtype
    };
    return DSC_RUN(call->ctx->stream, EMBEDDING_FWD, &args, call->err);
}

static dsc_status activate(const transform_call *call)
{
    const dsc_gelu_fwd_args act = { .out = call->ctx->out,
                                    .in = call->before,
                                    .count = narrow_count(call),
                                    .dtype = call->ctx->dtype,
                                    .kind = call->config->activation };
    return DSC_RUN(call->ctx->stream, GELU_FWD, &act, call->err);
}

/* tanh, whose result is what backward reads. */
static dsc_status bend(const transform_call *call)
{
    const dsc_scale_args tanh = {
        .x = call->before, .count = narrow_count(call), .factor = 1, .dtype = call->ctx->dtype, .cap = 1
    };
    DSC_TRY(DSC_RUN(call->ctx->stream, SCALE, &tanh, call->err));
    return copy(call, call->ctx->out, call->before, call->config->embed_channels);
}

static dsc_status backward_activation(const transform_call *call, void *d_before)
{
    const dsc_module_ctx *ctx = call->ctx;
    if (call->config->pools_tanh) {
        const dsc_scale_args tanh = { .x = d_before,
                                      .count = narrow_count(call),
                                      .factor = 1,
                                      .dtype = ctx->dtype,
                                      .cap = 1,
                                      .capped = call->before };
        DSC_TRY(copy(call, d_before, ctx->d_out, call->config->embed_channels));
        return DSC_RUN(ctx->stream, SCALE, &tanh, call->err);
    }
    const dsc_gelu_bwd_args act = { .d_in = d_before,
                                    .d_out = ctx->d_out,
                                    .in = call->before,
                                    .count = narrow_count(call),
                                    .dtype = ctx->dtype,
                                    .kind = call->config->activation };
    return DSC_RUN(ctx->stream, GELU_BWD, &act, call->err);
}

static dsc_status forward(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    transform_call call;
    DSC_TRY(begin(module, ctx, &call, err));
    if (!call.config->masked)
        return dsc_linear_run(&call.launch, linear_of(call.self), ctx->out, ctx->in, NULL);
    DSC_TRY(make_input(&call));
    DSC_TRY(dsc_linear_run(&call.launch, linear_of(call.self), call.before, call.normed, NULL));
    return call.config->pools_tanh ? bend(&call) : activate(&call);
}

/* From the gradient of the linear layer's output: its parameters' and, into call->normed, its input's. */
static dsc_status backward_linear(const transform_call *call, const void *in, const void *d_out)
{
    DSC_TRY(dsc_linear_gradients(&call->launch, linear_of(call->self), in, d_out));
    return dsc_linear_backward(&call->launch, linear_of(call->self), call->normed, d_out, NULL);
}

/* d_in may be d_out's memory, which the product reads to its end. */
static dsc_status backward_projection(const transform_call *call)
{
    dsc_module_ctx *ctx = call->ctx;
    DSC_TRY(backward_linear(call, ctx->in, ctx->d_out));
    return copy(call, ctx->d_in, call->gathered, call->config->channels);
}

static dsc_status backward(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    transform_call call;
    DSC_TRY(begin(module, ctx, &call, err));
    if (!call.config->masked)
        return backward_projection(&call);
    char *const d_before = (char *)ctx->scratch + call.at.d_before;
    DSC_TRY(backward_activation(&call, d_before));
    DSC_TRY(make_input(&call));
    DSC_TRY(backward_linear(&call, call.normed, d_before));
    if (call.config->pools_mean)
        return backward_mean(&call);
    /* The layer's gradient is no longer needed, and its memory is as wide. */
    char *const d_gathered = norms(call.self) ? d_before : call.normed;
    const dsc_norm_gradient norm = {
        .d_in = d_gathered, .d_out = call.normed, .in = call.gathered, .scratch = (char *)ctx->scratch + call.at.work
    };
    if (norms(call.self))
        DSC_TRY(dsc_norm_backward(&call.launch, norm_of(&call), &norm));
    const dsc_gather_rows_args scatter = gather_args(&call, ctx->d_in, d_gathered);
    return DSC_RUN(ctx->stream, GATHER_ROWS_BWD, &scatter, err);
}

void dsc_lm_transform_init(dsc_module *module)
{
    module->plan = plan;
    module->forward = forward;
    module->backward = backward;
}
