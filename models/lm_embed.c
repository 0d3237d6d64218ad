/* lm_embed.c - token embedding, with learned positions where the family has them, of its own width where it is
 * projected to the blocks'.
 *
 * Kept for backward only by a projection: the tokens' rows. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/device.h"
#include "models/lm.h"

/* Byte offsets in ctx->saved and, for backward, ctx->scratch. */
typedef struct embed_layout {
    int64_t rows;
    int64_t looked, saved_bytes;        /* [R,E] */
    int64_t d_looked, sort, back_bytes; /* [R,E] - */
} embed_layout;

static dsc_status layout(const dsc_lm_config *config, int64_t batch, dsc_dtype dtype, embed_layout *out, dsc_error *err)
{
    const int64_t sorted = dsc_max_i64(config->vocab_rows, config->documents ? config->positions : 0);
    *out = (embed_layout){ 0 };
    DSC_TRY(dsc_lm_rows(config, batch, &out->rows, err));
    const int64_t looked = dsc_lm_projects(config) ? out->rows * config->embed_channels : 0;
    out->looked = dsc_lm_piece(&out->saved_bytes, looked * (int64_t)dsc_dtype_bytes(dtype));
    out->d_looked = dsc_lm_piece(&out->back_bytes, looked * (int64_t)dsc_dtype_bytes(dtype));
    out->sort = dsc_lm_piece(&out->back_bytes, dsc_embedding_bwd_scratch_bytes(out->rows, sorted));
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
    DSC_TRY(layout(self->config, batch, dtype, &at, err));
    dsc_linear_told told = { .module = module, .rows = at.rows, .dtype = dtype, .sink = sink };
    if (dsc_lm_projects(self->config))
        DSC_TRY(dsc_linear_plan(&told, projection(self), err));
    *out = (dsc_module_plan){ .out_elements = at.rows * self->config->channels, .saved_bytes = at.saved_bytes,
                              .backward_scratch_bytes = at.back_bytes, .forward_flops = told.forward_flops,
                              .backward_flops = told.backward_flops };
    return DSC_OK;
}

/* What every step of a call needs. */
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
    DSC_TRY(layout(self->config, ctx->batch, ctx->dtype, &call->at, err));
    call->launch = (dsc_call){ .ctx = ctx, .rows = call->at.rows, .err = err };
    return DSC_OK;
}

/* The row that the first token has in the table of positions; NULL: the family has none. */
static const void *first_position(const embed_call *call)
{
    const dsc_module_ctx *ctx = call->ctx;
    if (call->params.position < 0)
        return NULL;
    return (const char *)ctx->param[call->params.position] +
           (call->self->family->position_first + ctx->past) * call->config->channels *
               (int64_t)dsc_dtype_bytes(ctx->dtype);
}

static dsc_status look_up(const embed_call *call, dsc_embedding_fwd_args args)
{
    args.places = dsc_lm_places(call->config, call->ctx);
    args.rows = call->at.rows;
    args.sequence = call->config->sequence;
    args.dtype = call->ctx->dtype;
    return DSC_RUN(call->ctx->stream, EMBEDDING_FWD, &args, call->err);
}

static dsc_status forward(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    embed_call call;
    DSC_TRY(begin(module, ctx, &call, err));
    dsc_embedding_fwd_args args = { .out = ctx->out, .tokens = ctx->batch_data[0],
                                    .table = ctx->param[DSC_LM_TOKEN_TABLE], .position = first_position(&call),
                                    .channels = call.config->channels };
    if (!dsc_lm_projects(call.config))
        return look_up(&call, args);
    char *const looked = (char *)ctx->saved + call.at.looked;
    const dsc_embedding_fwd_args tokens = { .out = looked, .tokens = args.tokens, .table = args.table,
                                            .channels = call.config->embed_channels };
    DSC_TRY(look_up(&call, tokens));
    DSC_TRY(dsc_linear_run(&call.launch, projection(call.self), ctx->out, looked, NULL));
    args.tokens = NULL;
    args.table = ctx->out;
    return args.position != NULL ? look_up(&call, args) : DSC_OK;
}

/* The gradient of a table, each of whose rows is looked up as itself. */
static dsc_embedding_bwd_args gradient_of(const embed_call *call, float *d_table, const void *d_out, int64_t channels)
{
    return (dsc_embedding_bwd_args){ .d_table = d_table, .d_out = d_out, .scratch = (char *)call->ctx->scratch +
                                     call->at.sort, .rows = call->at.rows, .sequence = call->config->sequence,
                                     .channels = channels, .dtype = call->ctx->dtype };
}

/* The gradient of positions that tokens look up as they look up themselves. */
static dsc_status backward_places(const embed_call *call, float *d_position)
{
    const int64_t channels = call->config->channels, first = call->self->family->position_first;
    dsc_embedding_bwd_args args = gradient_of(call, d_position + first * channels, call->ctx->d_out, channels);
    args.tokens = dsc_lm_places(call->config, call->ctx);
    args.vocab = call->config->positions;
    DSC_TRY(DSC_RUN(call->ctx->stream, EMBEDDING_BWD, &args, call->err));
    args.d_table = d_position; /* the rows before the first place's: nobody looks them up */
    args.vocab = first;
    args.rows = 0;
    return args.vocab > 0 ? DSC_RUN(call->ctx->stream, EMBEDDING_BWD, &args, call->err) : DSC_OK;
}

static dsc_status backward_positions(const embed_call *call)
{
    float *const d_position = call->params.position >= 0 ? call->ctx->grad[call->params.position] : NULL;
    if (d_position == NULL)
        return DSC_OK;
    if (call->config->documents)
        return backward_places(call, d_position);
    dsc_embedding_bwd_args args = gradient_of(call, NULL, call->ctx->d_out, call->config->channels);
    args.d_position = d_position;
    args.positions = call->config->positions + call->self->family->position_first;
    args.position_first = call->self->family->position_first;
    return DSC_RUN(call->ctx->stream, EMBEDDING_BWD, &args, call->err);
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
    return args.d_table != NULL ? DSC_RUN(call->ctx->stream, EMBEDDING_BWD, &args, call->err) : DSC_OK;
}

static dsc_status backward(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    embed_call call;
    DSC_TRY(begin(module, ctx, &call, err));
    DSC_TRY(backward_positions(&call));
    if (!dsc_lm_projects(call.config))
        return backward_tokens(&call, ctx->d_out);
    char *const d_looked = (char *)ctx->scratch + call.at.d_looked;
    DSC_TRY(dsc_linear_gradients(&call.launch, projection(call.self), (char *)ctx->saved + call.at.looked, ctx->d_out));
    DSC_TRY(dsc_linear_backward(&call.launch, projection(call.self), d_looked, ctx->d_out, NULL));
    return backward_tokens(&call, d_looked);
}

void dsc_lm_embed_init(dsc_module *module)
{
    const dsc_lm_module *self = module->self;
    module->flags = dsc_lm_projects(self->config) ? 0 : DSC_MODULE_BACKWARD_WITHOUT_PARAMS;
    module->plan = plan;
    module->forward = forward;
    module->backward = backward;
}
