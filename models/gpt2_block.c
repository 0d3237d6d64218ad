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

/* The four linear layers and the three products of each. */
enum { QKV, PROJ, FC, OUT, LINEAR_COUNT };
enum { FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, PASS_COUNT };

static dsc_gemm_args product(const dsc_gpt2_config *config, int linear, int pass, int64_t rows, dsc_dtype dtype)
{
    static const dsc_epilogue forward[LINEAR_COUNT] = {
        DSC_EPILOGUE_BIAS, DSC_EPILOGUE_BIAS_ADD, DSC_EPILOGUE_BIAS_GELU, DSC_EPILOGUE_BIAS_ADD
    };
    const int64_t channels = config->channels, inner = config->inner;
    const dsc_linear shapes[LINEAR_COUNT] = { { channels, 3 * channels, false },
                                              { channels, channels, false },
                                              { channels, inner, false },
                                              { inner, channels, false } };
    if (pass == FORWARD)
        return dsc_linear_forward(shapes[linear], rows, dtype, forward[linear]);
    if (pass == BACKWARD_INPUT)
        return dsc_linear_backward_input(shapes[linear], rows, dtype,
                                         linear == OUT ? DSC_EPILOGUE_DGELU : DSC_EPILOGUE_NONE);
    return dsc_linear_backward_weight(shapes[linear], rows, dtype);
}

/* Byte offsets in ctx->saved and ctx->scratch. */
typedef struct block_layout {
    int64_t rows;
    int64_t qkv, attention, lse, middle, fc, saved_bytes; /* [R,3C] [R,C] [B,H,T] [R,C] [R,I] */
    int64_t act, mean, rstd, forward_bytes; /* [R,I], before it the attention's work space; [R] [R] */
    int64_t wide, narrow, back_mean, back_rstd, work, backward_bytes; /* [R,max(I,3C)] [R,C] [R] [R] */
} block_layout;

static dsc_status layout(const dsc_gpt2_config *config, int64_t batch, dsc_dtype dtype, block_layout *out,
                         dsc_error *err)
{
    *out = (block_layout){ 0 };
    DSC_TRY(dsc_gpt2_rows(config, batch, &out->rows, err));
    const int64_t rows = out->rows, channels = config->channels;
    const int64_t row_bytes = rows * (int64_t)dsc_dtype_bytes(dtype);
    out->qkv = dsc_gpt2_piece(&out->saved_bytes, row_bytes * 3 * channels);
    out->attention = dsc_gpt2_piece(&out->saved_bytes, row_bytes * channels);
    out->lse = dsc_gpt2_piece(&out->saved_bytes, rows * config->heads * 4);
    out->middle = dsc_gpt2_piece(&out->saved_bytes, row_bytes * channels);
    out->fc = dsc_gpt2_piece(&out->saved_bytes, row_bytes * config->inner);
    const int32_t tokens = (int32_t)config->sequence, heads = (int32_t)config->heads;
    const int32_t head_size = (int32_t)(channels / config->heads);
    out->act = dsc_gpt2_piece(&out->forward_bytes,
                              dsc_max_i64(row_bytes * config->inner,
                                          dsc_attention_fwd_scratch_bytes((int32_t)batch, tokens, heads, head_size)));
    out->mean = dsc_gpt2_piece(&out->forward_bytes, rows * 4);
    out->rstd = dsc_gpt2_piece(&out->forward_bytes, rows * 4);
    out->wide = dsc_gpt2_piece(&out->backward_bytes, row_bytes * dsc_max_i64(config->inner, 3 * channels));
    out->narrow = dsc_gpt2_piece(&out->backward_bytes, row_bytes * channels);
    out->back_mean = dsc_gpt2_piece(&out->backward_bytes, rows * 4);
    out->back_rstd = dsc_gpt2_piece(&out->backward_bytes, rows * 4);
    const int64_t norm_work = dsc_layernorm_bwd_scratch_bytes(rows, channels);
    const int64_t attention_work = dsc_attention_bwd_scratch_bytes((int32_t)batch, tokens, heads, head_size);
    out->work = dsc_gpt2_piece(&out->backward_bytes, dsc_max_i64(norm_work, attention_work));
    return DSC_OK;
}

static dsc_status plan(const dsc_module *module, int64_t batch, dsc_dtype dtype, const dsc_plan_sink *sink,
                       dsc_module_plan *out, dsc_error *err)
{
    const dsc_gpt2_config *config = ((const dsc_gpt2_module *)module->self)->config;
    block_layout at;
    DSC_TRY(layout(config, batch, dtype, &at, err));
    double flops = 0;
    for (int linear = 0; linear < LINEAR_COUNT; linear++) {
        for (int pass = 0; pass < PASS_COUNT; pass++) {
            const dsc_gemm_args args = product(config, linear, pass, at.rows, dtype);
            if (pass == FORWARD)
                flops += 2.0 * (double)args.m * (double)args.n * (double)args.k;
            if (sink != NULL && sink->gemm != NULL)
                DSC_TRY(sink->gemm(sink->user, &args, err));
        }
    }
    /* q k^T and p v over the causal half of [T,T]. */
    flops += 2 * 2.0 * (double)at.rows * (double)(config->sequence + 1) / 2 * (double)config->channels;
    *out = (dsc_module_plan){ .out_elements = at.rows * config->channels, .saved_bytes = at.saved_bytes,
                              .forward_scratch_bytes = at.forward_bytes, .backward_scratch_bytes = at.backward_bytes,
                              .forward_flops = flops, .backward_flops = 2 * flops };
    return DSC_OK;
}

/* What every step of a call needs. */
typedef struct block_call {
    const dsc_gpt2_module *self;
    dsc_module_ctx *ctx;
    block_layout at;
    char *saved, *scratch;
    dsc_error *err;
} block_call;

static dsc_status begin(const dsc_module *module, dsc_module_ctx *ctx, block_call *call, dsc_error *err)
{
    DSC_ASSERT(ctx->saved != NULL);
    DSC_ASSERT(ctx->scratch != NULL);
    *call = (block_call){ .self = module->self, .ctx = ctx, .saved = ctx->saved, .scratch = ctx->scratch, .err = err };
    return layout(call->self->config, ctx->batch, ctx->dtype, &call->at, err);
}

static float attention_scale(const dsc_gpt2_module *self)
{
    const dsc_gpt2_config *config = self->config;
    double scale = 1;
    if (config->scale_attention)
        scale /= sqrt((double)(config->channels / config->heads));
    if (config->scale_attention_by_layer)
        scale /= (double)(self->layer + 1);
    return (float)scale;
}

/* to = norm(in) with the weights of parameters `weight` and `weight` + 1. */
static dsc_status norm(const block_call *call, void *to, const void *in, int weight, float *mean, float *rstd)
{
    const dsc_gpt2_config *config = call->self->config;
    const dsc_layernorm_fwd_args args = {
        .out = to, .mean = mean, .rstd = rstd, .in = in, .weight = call->ctx->param[weight],
        .bias = call->ctx->param[weight + 1], .rows = call->at.rows, .channels = config->channels,
        .eps = (float)config->norm_eps, .dtype = call->ctx->dtype
    };
    return DSC_RUN(call->ctx->stream, LAYERNORM_FWD, &args, call->err);
}

/* c = a * W + bias with the layer's epilogue; the bias is the parameter after the weight. */
static dsc_status linear_forward(const block_call *call, int linear, int weight, void *c, const void *a, void *aux)
{
    dsc_gemm_args args = product(call->self->config, linear, FORWARD, call->at.rows, call->ctx->dtype);
    args.a = a;
    args.b = call->ctx->param[weight];
    args.bias = call->ctx->param[weight + 1];
    args.aux = aux;
    args.c = c;
    return DSC_RUN(call->ctx->stream, GEMM, &args, call->err);
}

static void split_qkv(const block_call *call, char *qkv, void *part[3])
{
    for (int i = 0; i < 3; i++)
        part[i] = qkv + i * call->self->config->channels * (int64_t)dsc_dtype_bytes(call->ctx->dtype);
}

static dsc_status forward(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    block_call call;
    DSC_TRY(begin(module, ctx, &call, err));
    const dsc_gpt2_config *config = call.self->config;
    char *const saved = call.saved;
    float *const mean = (float *)(void *)(call.scratch + call.at.mean);
    float *const rstd = (float *)(void *)(call.scratch + call.at.rstd);
    void *const act = call.scratch + call.at.act;
    void *const middle = saved + call.at.middle;
    void *part[3];
    split_qkv(&call, saved + call.at.qkv, part);
    /* `out` holds the norms' outputs until its own value is ready. */
    DSC_TRY(norm(&call, ctx->out, ctx->in, DSC_GPT2_LN1_W, mean, rstd));
    DSC_TRY(linear_forward(&call, QKV, DSC_GPT2_QKV_W, saved + call.at.qkv, ctx->out, NULL));
    const dsc_attention_fwd_args attention = {
        .out = saved + call.at.attention, .lse = (float *)(void *)(saved + call.at.lse),
        .q = part[0], .k = part[1], .v = part[2], .scratch = act,
        .q_stride = 3 * config->channels, .kv_stride = 3 * config->channels, .out_stride = config->channels,
        .batch = (int32_t)ctx->batch, .tokens = (int32_t)config->sequence, .heads = (int32_t)config->heads,
        .kv_heads = (int32_t)config->heads, .head_size = (int32_t)(config->channels / config->heads),
        .scale = attention_scale(call.self), .dtype = ctx->dtype
    };
    DSC_TRY(DSC_RUN(ctx->stream, ATTENTION_FWD, &attention, err));
    /* The residual is only read, as BIAS_ADD says; the argument is not const because other epilogues write it. */
    DSC_TRY(
        linear_forward(&call, PROJ, DSC_GPT2_PROJ_W, middle, saved + call.at.attention, (void *)(uintptr_t)ctx->in));
    DSC_TRY(norm(&call, ctx->out, middle, DSC_GPT2_LN2_W, mean, rstd));
    DSC_TRY(linear_forward(&call, FC, DSC_GPT2_FC_W, act, ctx->out, saved + call.at.fc));
    return linear_forward(&call, OUT, DSC_GPT2_OUT_W, ctx->out, act, middle);
}

/* Gradients of a linear layer's weight and bias (the parameter after it): dw = in^T * d_out, db = sum of
 * d_out's rows. */
static dsc_status linear_gradients(const block_call *call, int linear, int weight, const void *in, const void *d_out)
{
    dsc_module_ctx *ctx = call->ctx;
    dsc_gemm_args args = product(call->self->config, linear, BACKWARD_WEIGHT, call->at.rows, ctx->dtype);
    args.a = in;
    args.b = d_out;
    args.c = ctx->grad[weight];
    if (args.c != NULL)
        DSC_TRY(DSC_RUN(ctx->stream, GEMM, &args, call->err));
    const dsc_colsum_args sum = { .out = ctx->grad[weight + 1], .x = d_out, .rows = call->at.rows, .cols = args.n,
                                  .ld = args.ldb, .x_dtype = ctx->dtype };
    return sum.out != NULL ? DSC_RUN(ctx->stream, COLSUM, &sum, call->err) : DSC_OK;
}

static dsc_status linear_backward(const block_call *call, int linear, int weight, void *d_in, const void *d_out,
                                  void *aux)
{
    dsc_gemm_args args = product(call->self->config, linear, BACKWARD_INPUT, call->at.rows, call->ctx->dtype);
    args.a = d_out;
    args.b = call->ctx->param[weight];
    args.c = d_in;
    args.aux = aux;
    return DSC_RUN(call->ctx->stream, GEMM, &args, call->err);
}

/* d_in = residual + gradient through the norm whose statistics the scratch holds. */
static dsc_status norm_backward(const block_call *call, int weight, const void *d_out, const void *residual,
                                const void *in)
{
    dsc_module_ctx *ctx = call->ctx;
    const dsc_layernorm_bwd_args args = {
        .d_in = ctx->d_in, .d_weight = ctx->grad[weight], .d_bias = ctx->grad[weight + 1], .d_out = d_out,
        .d_residual = residual, .in = in, .weight = ctx->param[weight],
        .mean = (const float *)(const void *)(call->scratch + call->at.back_mean),
        .rstd = (const float *)(const void *)(call->scratch + call->at.back_rstd),
        .scratch = call->scratch + call->at.work, .rows = call->at.rows, .channels = call->self->config->channels,
        .dtype = ctx->dtype
    };
    return DSC_RUN(ctx->stream, LAYERNORM_BWD, &args, call->err);
}

/* From d_out to the residual stream's gradient in the middle, in d_in. */
static dsc_status backward_mlp(const block_call *call)
{
    dsc_module_ctx *ctx = call->ctx;
    char *const wide = call->scratch + call->at.wide, *const narrow = call->scratch + call->at.narrow;
    char *const fc = call->saved + call->at.fc, *const middle = call->saved + call->at.middle;
    const dsc_gelu_fwd_args gelu = { .out = wide, .in = fc, .count = call->at.rows * call->self->config->inner,
                                     .dtype = ctx->dtype };
    DSC_TRY(DSC_RUN(ctx->stream, GELU_FWD, &gelu, call->err));
    DSC_TRY(linear_gradients(call, OUT, DSC_GPT2_OUT_W, wide, ctx->d_out));
    DSC_TRY(linear_backward(call, OUT, DSC_GPT2_OUT_W, wide, ctx->d_out, fc));
    DSC_TRY(norm(call, narrow, middle, DSC_GPT2_LN2_W, (float *)(void *)(call->scratch + call->at.back_mean),
                 (float *)(void *)(call->scratch + call->at.back_rstd)));
    DSC_TRY(linear_gradients(call, FC, DSC_GPT2_FC_W, narrow, wide));
    DSC_TRY(linear_backward(call, FC, DSC_GPT2_FC_W, narrow, wide, NULL));
    return norm_backward(call, DSC_GPT2_LN2_W, narrow, ctx->d_out, middle);
}

static dsc_status backward_attention(const block_call *call)
{
    dsc_module_ctx *ctx = call->ctx;
    const dsc_gpt2_config *config = call->self->config;
    char *const wide = call->scratch + call->at.wide, *const narrow = call->scratch + call->at.narrow;
    char *const out = call->saved + call->at.attention;
    void *part[3], *d_part[3];
    split_qkv(call, call->saved + call->at.qkv, part);
    split_qkv(call, wide, d_part);
    DSC_TRY(linear_gradients(call, PROJ, DSC_GPT2_PROJ_W, out, ctx->d_in));
    DSC_TRY(linear_backward(call, PROJ, DSC_GPT2_PROJ_W, narrow, ctx->d_in, NULL));
    const dsc_attention_bwd_args attention = {
        .dq = d_part[0], .dk = d_part[1], .dv = d_part[2], .d_out = narrow, .out = out,
        .lse = (const float *)(const void *)(call->saved + call->at.lse), .q = part[0], .k = part[1], .v = part[2],
        .scratch = call->scratch + call->at.work,
        .q_stride = 3 * config->channels, .kv_stride = 3 * config->channels, .out_stride = config->channels,
        .batch = (int32_t)ctx->batch, .tokens = (int32_t)config->sequence, .heads = (int32_t)config->heads,
        .kv_heads = (int32_t)config->heads, .head_size = (int32_t)(config->channels / config->heads),
        .scale = attention_scale(call->self), .dtype = ctx->dtype
    };
    DSC_TRY(DSC_RUN(ctx->stream, ATTENTION_BWD, &attention, call->err));
    DSC_TRY(norm(call, narrow, ctx->in, DSC_GPT2_LN1_W, (float *)(void *)(call->scratch + call->at.back_mean),
                 (float *)(void *)(call->scratch + call->at.back_rstd)));
    DSC_TRY(linear_gradients(call, QKV, DSC_GPT2_QKV_W, narrow, wide));
    DSC_TRY(linear_backward(call, QKV, DSC_GPT2_QKV_W, narrow, wide, NULL));
    return norm_backward(call, DSC_GPT2_LN1_W, narrow, ctx->d_in, ctx->in);
}

static dsc_status backward(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    block_call call;
    DSC_TRY(begin(module, ctx, &call, err));
    DSC_TRY(backward_mlp(&call));
    return backward_attention(&call);
}

void dsc_gpt2_block_init(dsc_module *module)
{
    module->param_count = DSC_GPT2_BLOCK_PARAMS;
    module->plan = plan;
    module->forward = forward;
    module->backward = backward;
}
