/* lm_embed.c - token embedding, with learned positions where the family has them.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/device.h"
#include "models/lm.h"

static dsc_status plan(const dsc_module *module, int64_t batch, dsc_dtype dtype, const dsc_plan_sink *sink,
                       dsc_module_plan *out, dsc_error *err)
{
    const dsc_lm_config *config = ((const dsc_lm_module *)module->self)->config;
    int64_t rows = 0;
    DSC_TRY(dsc_lm_rows(config, batch, &rows, err));
    const int64_t sorted = dsc_max_i64(config->vocab_rows, config->documents ? config->positions : 0);
    *out = (dsc_module_plan){ .out_elements = rows * config->channels,
                              .backward_scratch_bytes = dsc_embedding_bwd_scratch_bytes(rows, sorted) };
    return DSC_OK;
}

static const dsc_lm_family *family_of(const dsc_module *module)
{
    return ((const dsc_lm_module *)module->self)->family;
}

/* The row that the first token has in the table of positions; NULL: the family has none. */
static const void *first_position(const dsc_module *module, const dsc_module_ctx *ctx)
{
    const dsc_lm_family *family = family_of(module);
    const int64_t channels = ((const dsc_lm_module *)module->self)->config->channels;
    if (family->position_table == NULL)
        return NULL;
    return (const char *)ctx->param[DSC_LM_POSITION_TABLE] +
           (family->position_first + ctx->past) * channels * (int64_t)dsc_dtype_bytes(ctx->dtype);
}

static dsc_status forward(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    const dsc_lm_config *config = ((const dsc_lm_module *)module->self)->config;
    const dsc_embedding_fwd_args args = {
        .out = ctx->out, .tokens = ctx->batch_data[0], .table = ctx->param[DSC_LM_TOKEN_TABLE],
        .position = first_position(module, ctx), .places = dsc_lm_places(config, ctx),
        .rows = ctx->batch * config->sequence, .sequence = config->sequence, .channels = config->channels,
        .dtype = ctx->dtype
    };
    return DSC_RUN(ctx->stream, EMBEDDING_FWD, &args, err);
}

/* The gradient of positions that tokens look up as they look up themselves. */
static dsc_status backward_places(const dsc_module *module, dsc_module_ctx *ctx, float *d_position, dsc_error *err)
{
    const dsc_lm_config *config = ((const dsc_lm_module *)module->self)->config;
    const int64_t before = family_of(module)->position_first * config->channels;
    dsc_embedding_bwd_args args = {
        .d_table = d_position + before, .d_out = ctx->d_out, .tokens = dsc_lm_places(config, ctx),
        .scratch = ctx->scratch, .rows = ctx->batch * config->sequence, .sequence = config->sequence,
        .channels = config->channels, .vocab = config->positions, .dtype = ctx->dtype
    };
    DSC_TRY(DSC_RUN(ctx->stream, EMBEDDING_BWD, &args, err));
    args.d_table = d_position; /* the rows before the first place's: nobody looks them up */
    args.vocab = family_of(module)->position_first;
    args.rows = 0;
    return args.vocab > 0 ? DSC_RUN(ctx->stream, EMBEDDING_BWD, &args, err) : DSC_OK;
}

static dsc_status backward(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    const dsc_lm_config *config = ((const dsc_lm_module *)module->self)->config;
    const dsc_lm_family *family = family_of(module);
    float *const d_position = family->position_table != NULL ? ctx->grad[DSC_LM_POSITION_TABLE] : NULL;
    const bool apart = config->documents && d_position != NULL;
    if (apart)
        DSC_TRY(backward_places(module, ctx, d_position, err));
    const dsc_embedding_bwd_args args = {
        .d_table = ctx->grad[DSC_LM_TOKEN_TABLE], .d_position = apart ? NULL : d_position, .d_out = ctx->d_out,
        .tokens = ctx->batch_data[0], .scratch = ctx->scratch, .rows = ctx->batch * config->sequence,
        .sequence = config->sequence, .channels = config->channels, .vocab = config->vocab_rows,
        .positions = config->positions + family->position_first, .position_first = family->position_first,
        .has_padding = config->has_padding, .padding = config->padding, .dtype = ctx->dtype
    };
    return DSC_RUN(ctx->stream, EMBEDDING_BWD, &args, err);
}

void dsc_lm_embed_init(dsc_module *module)
{
    module->flags = DSC_MODULE_BACKWARD_WITHOUT_PARAMS;
    module->plan = plan;
    module->forward = forward;
    module->backward = backward;
}
