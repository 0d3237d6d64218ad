/* lm_embed.c - token embedding, with learned positions in some families; with a width of its own that is projected to
 * the blocks'; or with a segment, and a norm of the sum.
 *
 * Saved for backward: the tokens' rows that are projected, or the sums that are normed; otherwise nothing.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/device.h"
#include "kernels/scalar.h"
#include "models/lm.h"

/* Byte offsets in ctx->saved and, for backward, ctx->scratch. */
typedef struct embed_layout {
    int64_t rows;
    int64_t looked, saved_bytes;        /* [R,E] */
    int64_t lora;                       /* [R,r], in the scratch of either pass */
    int64_t places;                     /* [R] of tokens other than padding, likewise */
    int64_t stats, forward_bytes;       /* of the norm */
    int64_t d_looked, back_stats, work, back_bytes; /* [R,E] - the norm's or the sort of the tokens */
} embed_layout;

static bool norms(const dsc_lm_module *self) { return self->family->embed_norm != NULL; }

/* Whether what is looked up is not yet what the module gives. */
static bool goes_on(const dsc_lm_module *self) { return norms(self) || dsc_lm_projects(self->config); }

static dsc_status layout(const dsc_lm_module *self, int64_t batch, dsc_dtype dtype, embed_layout *out, dsc_error *err)
{
    const dsc_lm_config *config = self->config;
    const bool by_place = config->documents || config->places_skip_padding;
    const int64_t places = by_place ? config->positions + dsc_lm_position_first(self->family, config) : 0;
    const int64_t sorted = dsc_max_i64(config->vocab_rows, dsc_max_i64(places, config->segments));
    *out = (embed_layout){ 0 };
    DSC_TRY(dsc_lm_rows(config, batch, &out->rows, err));
    const int64_t looked = goes_on(self) ? out->rows * config->embed_channels : 0, normed = norms(self) ? out->rows : 0;
    const int64_t stats = dsc_norm_stats_bytes(self->family->norm, normed);
    const int64_t norm = dsc_norm_backward_scratch_bytes(self->family->norm, normed, config->channels);
    const int64_t sort = dsc_embedding_bwd_scratch_bytes(out->rows, sorted);
    out->looked = dsc_lm_piece(&out->saved_bytes, looked * (int64_t)dsc_dtype_bytes(dtype));
    out->lora = dsc_lm_piece(&out->forward_bytes,
                             dsc_lm_projects(config) ? dsc_lora_work_bytes(&self->lora, out->rows, dtype) : 0);
    out->places = dsc_lm_piece(&out->forward_bytes, config->places_skip_padding ? out->rows * 4 : 0);
    out->back_bytes = out->forward_bytes;
    out->stats = dsc_lm_piece(&out->forward_bytes, stats);
    out->d_looked = dsc_lm_piece(&out->back_bytes, looked * (int64_t)dsc_dtype_bytes(dtype));
    out->back_stats = dsc_lm_piece(&out->back_bytes, stats);
    out->work = dsc_lm_piece(&out->back_bytes, dsc_max_i64(norm, sort));
    return DSC_OK;
}

static dsc_linear_layer projection(const dsc_lm_module *self)
{
    return (dsc_linear_layer){ .shape = { self->config->embed_channels, self->config->channels, true },
                               .weight = dsc_lm_embed_params(self->family, self->config).project, .bias = -1 };
}

static dsc_status plan(const dsc_module *module, int64_t batch, dsc_dtype dtype, const dsc_plan_sink *sink,
                       dsc_module_plan *out, dsc_error *err)
{
    const dsc_lm_module *self = module->self;
    embed_layout at;
    DSC_TRY(layout(self, batch, dtype, &at, err));
    dsc_linear_planned gemms = { .module = module, .lora = &self->lora, .rows = at.rows, .dtype = dtype, .sink = sink };
    if (dsc_lm_projects(self->config))
        DSC_TRY(dsc_linear_plan(&gemms, projection(self), err));
    *out = (dsc_module_plan){ .out_elements = at.rows * self->config->channels, .saved_bytes = at.saved_bytes,
                              .forward_scratch_bytes = at.forward_bytes,
                              .backward_scratch_bytes = at.back_bytes, .forward_flops = gemms.forward_flops,
                              .backward_flops = gemms.backward_flops };
    return DSC_OK;
}

/* Context of all steps of a call. */
typedef struct embed_call {
    const dsc_lm_module *self;
    const dsc_lm_config *config;
    dsc_lm_embed_kinds params;
    dsc_module_ctx *ctx;
    dsc_call launch;
    embed_layout at;
    dsc_error *err;
} embed_call;

static dsc_status begin(const dsc_module *module, dsc_module_ctx *ctx, embed_call *call, dsc_error *err)
{
    const dsc_lm_module *self = module->self;
    *call = (embed_call){ .self = self, .config = self->config, .ctx = ctx, .err = err,
                          .params = dsc_lm_embed_params(self->family, self->config) };
    DSC_ASSERT(!norms(self) || !dsc_lm_projects(self->config));
    DSC_ASSERT(!self->config->places_skip_padding || self->config->has_padding);
    DSC_ASSERT(!self->config->places_skip_padding || (!self->config->documents && ctx->past == 0));
    DSC_TRY(layout(self, ctx->batch, ctx->dtype, &call->at, err));
    call->launch = (dsc_call){ .ctx = ctx, .rows = call->at.rows, .err = err, .lora = &self->lora,
                               .lora_work = (char *)ctx->scratch + call->at.lora };
    return DSC_OK;
}

/* Factor of the rows of the token table. */
static float table_factor(const embed_call *call)
{
    const dsc_lm_config *config = call->config;
    const float factor = config->embed_scale > 0 ? (float)config->embed_scale : 1;
    return config->embed_scale_rounded ? dsc_rounded(factor, call->ctx->dtype) : factor;
}

/* The row that the first token has in the table of positions; NULL: the family has none. */
static const void *first_position(const embed_call *call)
{
    const dsc_module_ctx *ctx = call->ctx;
    const int64_t first = dsc_lm_position_first(call->self->family, call->config) + ctx->past;
    if (call->params.position < 0)
        return NULL;
    if (call->config->places_skip_padding)
        return ctx->param[call->params.position]; /* the places are rows */
    return (const char *)ctx->param[call->params.position] +
           first * call->config->channels * (int64_t)dsc_dtype_bytes(ctx->dtype);
}

/* The places that look_up takes; NULL: those of samples. */
static const int32_t *places_of(const embed_call *call)
{
    return call->config->places_skip_padding
               ? (const int32_t *)(const void *)((const char *)call->ctx->scratch + call->at.places)
               : dsc_lm_positions(call->config, call->ctx);
}

static dsc_status count_places(const embed_call *call)
{
    const dsc_lm_config *config = call->config;
    const dsc_places_args args = { .places = (int32_t *)(uintptr_t)places_of(call),
                                   .tokens = call->ctx->batch_data[DSC_LM_TOKENS],
                                   .batch = call->ctx->batch,
                                   .sequence = config->sequence,
                                   .padding = config->padding };
    return config->places_skip_padding ? DSC_RUN(call->ctx->stream, PLACES, &args, call->err) : DSC_OK;
}

static dsc_status look_up(const embed_call *call, dsc_embedding_fwd_args args)
{
    args.rows = call->at.rows;
    args.sequence = args.sequence > 0 ? args.sequence : call->config->sequence;
    args.dtype = call->ctx->dtype;
    return DSC_RUN(call->ctx->stream, EMBEDDING_FWD, &args, call->err);
}

/* The norm of the sums, with its statistics at `stats` of the scratch. */
static dsc_norm norm_of(const embed_call *call, int64_t stats)
{
    return dsc_lm_norm(call->self, call->at.rows, call->config->channels, call->params.norm,
                       (char *)call->ctx->scratch + stats);
}

/* The segments of tokens; NULL: all are in the first one. */
static const int32_t *segments_of(const embed_call *call)
{
    return call->config->takes_segments ? call->ctx->batch_data[DSC_LM_SEGMENTS] : NULL;
}

/* out = norm(looked + segment). Without segments of the batch all tokens have the first row, that of a sequence of one.
 * Some families have no segments. */
static dsc_status forward_norm(const embed_call *call, char *looked)
{
    const bool segments = call->params.segment >= 0;
    const dsc_embedding_fwd_args segment = { .out = looked,
                                             .table = looked,
                                             .sequence = 1,
                                             .position = segments ? call->ctx->param[call->params.segment] : NULL,
                                             .places = segments_of(call),
                                             .channels = call->config->channels };
    if (segments)
        DSC_TRY(look_up(call, segment));
    return dsc_norm_forward(&call->launch, norm_of(call, call->at.stats), call->ctx->out, looked);
}

static dsc_status forward(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    embed_call call;
    DSC_TRY(begin(module, ctx, &call, err));
    DSC_TRY(count_places(&call));
    dsc_embedding_fwd_args args = { .out = ctx->out,
                                    .tokens = ctx->batch_data[0],
                                    .table = ctx->param[DSC_LM_TOKEN_TABLE],
                                    .position = first_position(&call),
                                    .places = places_of(&call),
                                    .channels = call.config->channels,
                                    .factor = table_factor(&call) };
    if (!goes_on(call.self))
        return look_up(&call, args);
    char *const looked = (char *)ctx->saved + call.at.looked;
    if (norms(call.self)) {
        args.out = looked;
        DSC_TRY(look_up(&call, args));
        return forward_norm(&call, looked);
    }
    const dsc_embedding_fwd_args tokens = { .out = looked,
                                            .tokens = args.tokens,
                                            .table = args.table,
                                            .channels = call.config->embed_channels,
                                            .factor = args.factor };
    DSC_TRY(look_up(&call, tokens));
    DSC_TRY(dsc_linear_run(&call.launch, projection(call.self), ctx->out, looked, NULL));
    args.tokens = NULL;
    args.table = ctx->out;
    args.factor = 1;
    return args.position != NULL ? look_up(&call, args) : DSC_OK;
}

/* The gradient of a table, each of whose rows is looked up as itself. */
static dsc_embedding_bwd_args gradient_of(const embed_call *call, float *d_table, const void *d_out, int64_t channels)
{
    return (dsc_embedding_bwd_args){ .d_table = d_table, .d_out = d_out, .scratch = (char *)call->ctx->scratch +
                                     call->at.work, .rows = call->at.rows, .sequence = call->config->sequence,
                                     .channels = channels, .dtype = call->ctx->dtype };
}

/* The gradient of positions that tokens look up as they look up themselves. */
static dsc_status backward_places(const embed_call *call, const void *d_out, float *d_position)
{
    const dsc_lm_config *config = call->config;
    const int64_t channels = config->channels, first = dsc_lm_position_first(call->self->family, config);
    const int64_t skipped = config->places_skip_padding ? 0 : first;
    dsc_embedding_bwd_args args = gradient_of(call, d_position + skipped * channels, d_out, channels);
    DSC_TRY(count_places(call));
    args.tokens = places_of(call);
    args.vocab = config->positions + first - skipped;
    args.has_padding = config->places_skip_padding;
    args.padding = config->padding;
    DSC_TRY(DSC_RUN(call->ctx->stream, EMBEDDING_BWD, &args, call->err));
    args.d_table = d_position; /* the rows before the first place's: nobody looks them up */
    args.vocab = skipped;
    args.rows = 0;
    return args.vocab > 0 ? DSC_RUN(call->ctx->stream, EMBEDDING_BWD, &args, call->err) : DSC_OK;
}

static dsc_status backward_positions(const embed_call *call, const void *d_out)
{
    float *const d_position = call->params.position >= 0 ? call->ctx->grad[call->params.position] : NULL;
    if (d_position == NULL)
        return DSC_OK;
    if (call->config->documents || call->config->places_skip_padding)
        return backward_places(call, d_out, d_position);
    dsc_embedding_bwd_args args = gradient_of(call, NULL, d_out, call->config->channels);
    args.d_position = d_position;
    args.position_first = dsc_lm_position_first(call->self->family, call->config);
    args.positions = call->config->positions + args.position_first;
    return DSC_RUN(call->ctx->stream, EMBEDDING_BWD, &args, call->err);
}

/* Without segments of the batch all tokens have the first row. */
static dsc_status backward_segment(const embed_call *call, const void *d_out)
{
    const dsc_lm_config *config = call->config;
    float *const d_segment = call->params.segment >= 0 ? call->ctx->grad[call->params.segment] : NULL;
    if (d_segment == NULL)
        return DSC_OK;
    dsc_embedding_bwd_args none = gradient_of(call, d_segment, d_out, config->channels);
    none.tokens = segments_of(call);
    none.rows = none.tokens != NULL ? none.rows : 0;
    none.vocab = config->segments;
    DSC_TRY(DSC_RUN(call->ctx->stream, EMBEDDING_BWD, &none, call->err));
    if (none.tokens != NULL)
        return DSC_OK;
    const dsc_colsum_args sum = { .out = d_segment, .x = d_out, .rows = call->at.rows, .cols = config->channels,
                                  .ld = config->channels, .x_dtype = call->ctx->dtype };
    return DSC_RUN(call->ctx->stream, COLSUM, &sum, call->err);
}

static dsc_status backward_tokens(const embed_call *call, const void *d_looked)
{
    const dsc_lm_config *config = call->config;
    dsc_embedding_bwd_args args = gradient_of(call, call->ctx->grad[DSC_LM_TOKEN_TABLE], d_looked,
                                              config->embed_channels);
    args.tokens = call->ctx->batch_data[0];
    args.vocab = config->vocab_rows;
    args.has_padding = config->has_padding;
    args.padding = config->padding;
    args.factor = table_factor(call);
    return args.d_table != NULL ? DSC_RUN(call->ctx->stream, EMBEDDING_BWD, &args, call->err) : DSC_OK;
}

static dsc_status backward(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    embed_call call;
    DSC_TRY(begin(module, ctx, &call, err));
    const void *d_sum = ctx->d_out; /* gradient of the tokens' rows plus all addends */
    char *const d_looked = (char *)ctx->scratch + call.at.d_looked, *const looked = (char *)ctx->saved + call.at.looked;
    if (norms(call.self)) {
        const dsc_norm norm = norm_of(&call, call.at.back_stats);
        DSC_TRY(dsc_norm_forward(&call.launch, norm, d_looked, looked));
        DSC_TRY(dsc_norm_backward(&call.launch, norm,
                                  &(dsc_norm_gradient){ .d_in = d_looked, .d_out = ctx->d_out, .in = looked,
                                                        .scratch = (char *)ctx->scratch + call.at.work }));
        d_sum = d_looked;
    }
    DSC_TRY(backward_positions(&call, d_sum));
    DSC_TRY(backward_segment(&call, d_sum));
    if (!dsc_lm_projects(call.config))
        return backward_tokens(&call, d_sum);
    DSC_TRY(dsc_linear_gradients(&call.launch, projection(call.self), looked, ctx->d_out));
    DSC_TRY(dsc_linear_backward(&call.launch, projection(call.self), d_looked, ctx->d_out, NULL));
    return backward_tokens(&call, d_looked);
}

void dsc_lm_embed_init(dsc_module *module)
{
    const dsc_lm_module *self = module->self;
    module->flags = goes_on(self) ? 0 : DSC_MODULE_BACKWARD_WITHOUT_PARAMS;
    module->plan = plan;
    module->forward = forward;
    module->backward = backward;
}
