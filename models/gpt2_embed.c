/* gpt2_embed.c - token plus position embedding. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/device.h"
#include "models/gpt2.h"

static dsc_status plan(const dsc_module *module, int64_t batch, dsc_dtype dtype, const dsc_plan_sink *sink,
                       dsc_module_plan *out, dsc_error *err)
{
    const dsc_gpt2_config *config = ((const dsc_gpt2_module *)module->self)->config;
    int64_t rows = 0;
    DSC_TRY(dsc_gpt2_rows(config, batch, &rows, err));
    *out = (dsc_module_plan){ .out_elements = rows * config->channels,
                              .backward_scratch_bytes = dsc_embedding_bwd_scratch_bytes(rows, config->vocab_rows) };
    return DSC_OK;
}

static dsc_status forward(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    const dsc_gpt2_config *config = ((const dsc_gpt2_module *)module->self)->config;
    const dsc_embedding_fwd_args args = {
        .out = ctx->out, .tokens = ctx->batch_data[0], .table = ctx->param[DSC_GPT2_WTE],
        .position = ctx->param[DSC_GPT2_WPE], .rows = ctx->batch * config->sequence, .sequence = config->sequence,
        .channels = config->channels, .dtype = ctx->dtype
    };
    return DSC_RUN(ctx->stream, EMBEDDING_FWD, &args, err);
}

static dsc_status backward(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    const dsc_gpt2_config *config = ((const dsc_gpt2_module *)module->self)->config;
    const dsc_embedding_bwd_args args = {
        .d_table = ctx->grad[DSC_GPT2_WTE], .d_position = ctx->grad[DSC_GPT2_WPE], .d_out = ctx->d_out,
        .tokens = ctx->batch_data[0], .scratch = ctx->scratch, .rows = ctx->batch * config->sequence,
        .sequence = config->sequence, .channels = config->channels, .vocab = config->vocab_rows,
        .positions = config->positions, .dtype = ctx->dtype
    };
    return DSC_RUN(ctx->stream, EMBEDDING_BWD, &args, err);
}

void dsc_gpt2_embed_init(dsc_module *module)
{
    module->flags = DSC_MODULE_BACKWARD_WITHOUT_PARAMS;
    module->param_count = DSC_GPT2_EMBED_PARAMS;
    module->plan = plan;
    module->forward = forward;
    module->backward = backward;
}
