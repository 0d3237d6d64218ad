/* gpt2_block.c - one transformer block: x + attention(norm(x)), then x + mlp(norm(x)).
 *
 * Kept for backward, beside the block's input: the packed q, k, v, the attention's output and its log-sum-exp, the
 * residual stream in the middle and the MLP before its GELU, together 5C + I numbers a row. Both norms' outputs and the
 * GELU's would be another 2C + I; backward computes them again for about 1 % of the block's time.
 * The residual stream's gradient stays in d_in from the moment the MLP is done with d_out.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/device.h"
#include "models/gpt2.h"

enum { QKV, PROJ, FC, OUT, LINEAR_COUNT };

static dsc_linear_layer linear_of(const dsc_gpt2_config *config, int which)
{
    const int64_t channels = config->lm.channels, inner = config->inner;
    const dsc_linear_layer layers[LINEAR_COUNT] = {
        { { channels, 3 * channels, false }, DSC_GPT2_QKV_W, DSC_GPT2_QKV_B, DSC_EPILOGUE_BIAS, DSC_EPILOGUE_NONE },
        { { channels, channels, false }, DSC_GPT2_PROJ_W, DSC_GPT2_PROJ_B, DSC_EPILOGUE_BIAS_ADD, DSC_EPILOGUE_NONE },
        { { channels, inner, false }, DSC_GPT2_FC_W, DSC_GPT2_FC_B, DSC_EPILOGUE_BIAS_GELU, DSC_EPILOGUE_NONE },
        { { inner, channels, false }, DSC_GPT2_OUT_W, DSC_GPT2_OUT_B, DSC_EPILOGUE_BIAS_ADD, DSC_EPILOGUE_DGELU },
    };
    return layers[which];
}

static const dsc_gpt2_config *config_of(const dsc_lm_module *self)
{
    return (const dsc_gpt2_config *)(const void *)self->config;
}

/* Byte offsets in ctx->saved and ctx->scratch. */
typedef struct block_layout {
    int64_t rows;
    int64_t qkv, attention, lse, middle, fc, saved_bytes; /* [R,3C] [R,C] [B,H,T] [R,C] [R,I] */
    int64_t act, stats, forward_bytes; /* [R,I], before it the attention's work space */
    int64_t wide, narrow, back_stats, work, backward_bytes; /* [R,max(I,3C)] [R,C] */
} block_layout;

static dsc_status layout(const dsc_gpt2_config *config, int64_t batch, dsc_dtype dtype, block_layout *out,
                         dsc_error *err)
{
    *out = (block_layout){ 0 };
    DSC_TRY(dsc_lm_rows(&config->lm, batch, &out->rows, err));
    const int64_t rows = out->rows, channels = config->lm.channels;
    const int64_t row_bytes = rows * (int64_t)dsc_dtype_bytes(dtype);
    out->qkv = dsc_lm_piece(&out->saved_bytes, row_bytes * 3 * channels);
    out->attention = dsc_lm_piece(&out->saved_bytes, row_bytes * channels);
    out->lse = dsc_lm_piece(&out->saved_bytes, rows * config->heads * 4);
    out->middle = dsc_lm_piece(&out->saved_bytes, row_bytes * channels);
    out->fc = dsc_lm_piece(&out->saved_bytes, row_bytes * config->inner);
    const int32_t tokens = (int32_t)config->lm.sequence, heads = (int32_t)config->heads;
    const int32_t head_size = (int32_t)(channels / config->heads);
    out->act = dsc_lm_piece(&out->forward_bytes,
                              dsc_max_i64(row_bytes * config->inner,
                                          dsc_attention_fwd_scratch_bytes((int32_t)batch, tokens, heads, head_size)));
    out->stats = dsc_lm_piece(&out->forward_bytes, dsc_norm_stats_bytes(DSC_NORM_LAYER, rows));
    out->wide = dsc_lm_piece(&out->backward_bytes, row_bytes * dsc_max_i64(config->inner, 3 * channels));
    out->narrow = dsc_lm_piece(&out->backward_bytes, row_bytes * channels);
    out->back_stats = dsc_lm_piece(&out->backward_bytes, dsc_norm_stats_bytes(DSC_NORM_LAYER, rows));
    const int64_t norm_work = dsc_norm_backward_scratch_bytes(DSC_NORM_LAYER, rows, channels);
    const int64_t attention_work = dsc_attention_bwd_scratch_bytes((int32_t)batch, tokens, heads, head_size);
    out->work = dsc_lm_piece(&out->backward_bytes, dsc_max_i64(norm_work, attention_work));
    return DSC_OK;
}

static dsc_status plan(const dsc_module *module, int64_t batch, dsc_dtype dtype, const dsc_plan_sink *sink,
                       dsc_module_plan *out, dsc_error *err)
{
    const dsc_gpt2_config *config = config_of(module->self);
    block_layout at;
    DSC_TRY(layout(config, batch, dtype, &at, err));
    double flops = 0;
    for (int i = 0; i < LINEAR_COUNT; i++)
        DSC_TRY(dsc_linear_plan(linear_of(config, i), at.rows, dtype, sink, &flops, err));
    /* q k^T and p v over the causal half of [T,T]. */
    flops += 2 * 2.0 * (double)at.rows * (double)(config->lm.sequence + 1) / 2 * (double)config->lm.channels;
    *out = (dsc_module_plan){ .out_elements = at.rows * config->lm.channels, .saved_bytes = at.saved_bytes,
                              .forward_scratch_bytes = at.forward_bytes, .backward_scratch_bytes = at.backward_bytes,
                              .forward_flops = flops, .backward_flops = 2 * flops };
    return DSC_OK;
}

/* What every step of a call needs. */
typedef struct block_call {
    const dsc_lm_module *self;
    const dsc_gpt2_config *config;
    dsc_module_ctx *ctx;
    dsc_call launch;
    block_layout at;
    char *saved, *scratch;
    dsc_error *err;
} block_call;

static dsc_status begin(const dsc_module *module, dsc_module_ctx *ctx, block_call *call, dsc_error *err)
{
    DSC_ASSERT(ctx->saved != NULL);
    DSC_ASSERT(ctx->scratch != NULL);
    *call = (block_call){ .self = module->self, .config = config_of(module->self), .ctx = ctx, .saved = ctx->saved,
                          .scratch = ctx->scratch, .err = err };
    DSC_TRY(layout(call->config, ctx->batch, ctx->dtype, &call->at, err));
    call->launch = (dsc_call){ ctx, call->at.rows, err };
    return DSC_OK;
}

static float attention_scale(const dsc_lm_module *self)
{
    const dsc_gpt2_config *config = config_of(self);
    double scale = 1;
    if (config->scale_attention)
        scale /= sqrt((double)(config->lm.channels / config->heads));
    if (config->scale_attention_by_layer)
        scale /= (double)(self->layer + 1);
    return (float)scale;
}

/* The norm whose weight is parameter `weight`, with its statistics at `stats` of the scratch. */
static dsc_norm norm_of(const block_call *call, int32_t weight, int64_t stats)
{
    return (dsc_norm){ .kind = DSC_NORM_LAYER, .rows = call->at.rows, .channels = call->config->lm.channels,
                       .eps = call->config->lm.norm_eps, .weight = weight, .stats = call->scratch + stats };
}

static dsc_status norm(const block_call *call, int32_t weight, int64_t stats, void *out, const void *in)
{
    return dsc_norm_forward(&call->launch, norm_of(call, weight, stats), out, in);
}

static void split_qkv(const block_call *call, char *qkv, void *part[3])
{
    for (int i = 0; i < 3; i++)
        part[i] = qkv + i * call->config->lm.channels * (int64_t)dsc_dtype_bytes(call->ctx->dtype);
}

static dsc_status forward(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    block_call call;
    DSC_TRY(begin(module, ctx, &call, err));
    const dsc_gpt2_config *config = call.config;
    char *const saved = call.saved;
    void *const act = call.scratch + call.at.act;
    void *const middle = saved + call.at.middle;
    void *part[3];
    split_qkv(&call, saved + call.at.qkv, part);
    /* `out` holds the norms' outputs until its own value is ready. */
    DSC_TRY(norm(&call, DSC_GPT2_LN1_W, call.at.stats, ctx->out, ctx->in));
    DSC_TRY(dsc_linear_run(&call.launch, linear_of(config, QKV), saved + call.at.qkv, ctx->out, NULL));
    const dsc_attention_fwd_args attention = {
        .out = saved + call.at.attention, .lse = (float *)(void *)(saved + call.at.lse),
        .q = part[0], .k = part[1], .v = part[2], .scratch = act,
        .q_stride = 3 * config->lm.channels, .kv_stride = 3 * config->lm.channels, .out_stride = config->lm.channels,
        .batch = (int32_t)ctx->batch, .tokens = (int32_t)config->lm.sequence, .heads = (int32_t)config->heads,
        .kv_heads = (int32_t)config->heads, .head_size = (int32_t)(config->lm.channels / config->heads),
        .scale = attention_scale(call.self), .dtype = ctx->dtype
    };
    DSC_TRY(DSC_RUN(ctx->stream, ATTENTION_FWD, &attention, err));
    /* The residual is only read, as BIAS_ADD says; the argument is not const because other epilogues write it. */
    DSC_TRY(dsc_linear_run(&call.launch, linear_of(config, PROJ), middle, saved + call.at.attention,
                           (void *)(uintptr_t)ctx->in));
    DSC_TRY(norm(&call, DSC_GPT2_LN2_W, call.at.stats, ctx->out, middle));
    DSC_TRY(dsc_linear_run(&call.launch, linear_of(config, FC), act, ctx->out, saved + call.at.fc));
    return dsc_linear_run(&call.launch, linear_of(config, OUT), ctx->out, act, middle);
}

/* d_in = residual + gradient through the norm whose statistics the scratch holds. */
static dsc_status norm_backward(const block_call *call, int32_t weight, const void *d_out, const void *residual,
                                const void *in)
{
    const dsc_norm_gradient buffers = { .d_in = call->ctx->d_in, .d_out = d_out, .d_residual = residual, .in = in,
                                        .scratch = call->scratch + call->at.work };
    return dsc_norm_backward(&call->launch, norm_of(call, weight, call->at.back_stats), &buffers);
}

/* From d_out to the residual stream's gradient in the middle, in d_in. */
static dsc_status backward_mlp(const block_call *call)
{
    dsc_module_ctx *ctx = call->ctx;
    const dsc_gpt2_config *config = call->config;
    char *const wide = call->scratch + call->at.wide, *const narrow = call->scratch + call->at.narrow;
    char *const fc = call->saved + call->at.fc, *const middle = call->saved + call->at.middle;
    const dsc_gelu_fwd_args gelu = { .out = wide, .in = fc, .count = call->at.rows * config->inner,
                                     .dtype = ctx->dtype };
    DSC_TRY(DSC_RUN(ctx->stream, GELU_FWD, &gelu, call->err));
    DSC_TRY(dsc_linear_gradients(&call->launch, linear_of(config, OUT), wide, ctx->d_out));
    DSC_TRY(dsc_linear_backward(&call->launch, linear_of(config, OUT), wide, ctx->d_out, fc));
    DSC_TRY(norm(call, DSC_GPT2_LN2_W, call->at.back_stats, narrow, middle));
    DSC_TRY(dsc_linear_gradients(&call->launch, linear_of(config, FC), narrow, wide));
    DSC_TRY(dsc_linear_backward(&call->launch, linear_of(config, FC), narrow, wide, NULL));
    return norm_backward(call, DSC_GPT2_LN2_W, narrow, ctx->d_out, middle);
}

static dsc_status backward_attention(const block_call *call)
{
    dsc_module_ctx *ctx = call->ctx;
    const dsc_gpt2_config *config = call->config;
    char *const wide = call->scratch + call->at.wide, *const narrow = call->scratch + call->at.narrow;
    char *const out = call->saved + call->at.attention;
    void *part[3], *d_part[3];
    split_qkv(call, call->saved + call->at.qkv, part);
    split_qkv(call, wide, d_part);
    DSC_TRY(dsc_linear_gradients(&call->launch, linear_of(config, PROJ), out, ctx->d_in));
    DSC_TRY(dsc_linear_backward(&call->launch, linear_of(config, PROJ), narrow, ctx->d_in, NULL));
    const dsc_attention_bwd_args attention = {
        .dq = d_part[0], .dk = d_part[1], .dv = d_part[2], .d_out = narrow, .out = out,
        .lse = (const float *)(const void *)(call->saved + call->at.lse), .q = part[0], .k = part[1], .v = part[2],
        .scratch = call->scratch + call->at.work,
        .q_stride = 3 * config->lm.channels, .kv_stride = 3 * config->lm.channels, .out_stride = config->lm.channels,
        .batch = (int32_t)ctx->batch, .tokens = (int32_t)config->lm.sequence, .heads = (int32_t)config->heads,
        .kv_heads = (int32_t)config->heads, .head_size = (int32_t)(config->lm.channels / config->heads),
        .scale = attention_scale(call->self), .dtype = ctx->dtype
    };
    DSC_TRY(DSC_RUN(ctx->stream, ATTENTION_BWD, &attention, call->err));
    DSC_TRY(norm(call, DSC_GPT2_LN1_W, call->at.back_stats, narrow, ctx->in));
    DSC_TRY(dsc_linear_gradients(&call->launch, linear_of(config, QKV), narrow, wide));
    DSC_TRY(dsc_linear_backward(&call->launch, linear_of(config, QKV), narrow, wide, NULL));
    return norm_backward(call, DSC_GPT2_LN1_W, narrow, ctx->d_in, ctx->in);
}

static dsc_status backward(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    block_call call;
    DSC_TRY(begin(module, ctx, &call, err));
    DSC_TRY(backward_mlp(&call));
    return backward_attention(&call);
}

const dsc_lm_block dsc_gpt2_block = { plan, forward, backward };
