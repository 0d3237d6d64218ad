/* dense_block.c - one transformer block: x + attention(norm1(x)), then x + mlp(norm2(x)); or both of the same x; or
 * norms of the sums.
 *
 * Saved for backward, besides the block's input, are 5C + I numbers a row. They are q, k, v as the attention reads
 * them, the attention's output and its log-sum-exp, the residual stream in the middle and the MLP before its
 * activation. Rotary positions rotate q and k in place, and rotating back needs only the tables. Both norms' outputs
 * and the activation's are another 2C + I, in ctx->repeated: without it backward computes them again. The MLP before
 * its activation, the widest saved tensor, is one product from the middle: rebuild makes it again.
 * In the sequential form, the residual stream's gradient stays in d_in once the MLP has read d_out. With both branches
 * of the same x, the projection's backward runs before d_in is written, which may be d_out's memory.
 * Norms of the sums need both sums: another C numbers a row are saved. The residual stream's gradient is then made
 * outside d_in and added to by products' epilogues, since every norm is on its way.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/device.h"
#include "models/dense.h"

enum { QKV, K, V, PROJ, FC, OUT, LINEAR_COUNT };

static const dsc_dense_config *config_of(const dsc_lm_module *self)
{
    return (const dsc_dense_config *)(const void *)self->config;
}

/* Products that make q, k and v. */
static int qkv_count(const dsc_dense_config *config) { return config->traits->kind == DSC_QKV_APART ? 3 : 1; }

static bool has_linear(const dsc_dense_config *config, int which)
{
    return which >= PROJ || which < qkv_count(config);
}

/* The activation is in the product's epilogue where there is one for it, and nothing comes between. */
static bool is_fused(const dsc_lm_module *self)
{
    const dsc_dense_config *config = config_of(self);
    return config->activation == DSC_GELU_TANH && !dsc_lora_has(&self->lora, dsc_dense_param(config, DSC_DENSE_FC_W)) &&
           !dsc_lora_has(&self->lora, dsc_dense_param(config, DSC_DENSE_OUT_W));
}

/* Products that share an input add their gradients of it one after another: the first one writes, the others add. With
 * norms of the sums all add, to the residual stream's. */
static dsc_linear_layer linear_of(const dsc_lm_module *self, int which)
{
    const dsc_dense_config *config = config_of(self);
    const int64_t channels = config->lm.channels, inner = config->inner;
    const int64_t qkv = qkv_count(config) == 3 ? channels : 3 * channels;
    const bool out_in = config->traits->out_in, fused = is_fused(self);
    const dsc_epilogue none = DSC_EPILOGUE_NONE, add = DSC_EPILOGUE_ADD, to_sum = config->post_norm ? add : none;
    const struct { dsc_linear shape; int32_t weight; dsc_epilogue forward, backward; } all[LINEAR_COUNT] = {
        [QKV] = { { channels, qkv, out_in }, DSC_DENSE_QKV_W, DSC_EPILOGUE_BIAS, to_sum },
        [K] = { { channels, qkv, out_in }, DSC_DENSE_K_W, DSC_EPILOGUE_BIAS, add },
        [V] = { { channels, qkv, out_in }, DSC_DENSE_V_W, DSC_EPILOGUE_BIAS, add },
        [PROJ] = { { channels, channels, out_in }, DSC_DENSE_PROJ_W, DSC_EPILOGUE_BIAS_ADD, none },
        [FC] = { { channels, inner, out_in }, DSC_DENSE_FC_W, fused ? DSC_EPILOGUE_BIAS_GELU : DSC_EPILOGUE_BIAS,
                 to_sum },
        [OUT] = { { inner, channels, out_in }, DSC_DENSE_OUT_W, DSC_EPILOGUE_BIAS_ADD,
                  fused ? DSC_EPILOGUE_DGELU : none },
    };
    const int32_t bias = dsc_dense_param(config, all[which].weight + 1);
    dsc_epilogue forward = all[which].forward;
    if (bias < 0)
        forward = forward == DSC_EPILOGUE_BIAS_ADD ? add : none;
    return (dsc_linear_layer){ .shape = all[which].shape, .weight = dsc_dense_param(config, all[which].weight),
                               .bias = bias, .forward = forward, .backward = all[which].backward };
}

/* Byte offsets in ctx->saved and ctx->scratch; what is rebuilt is one piece, [R,I]. */
typedef struct block_layout {
    int64_t rows, rebuilt_bytes;
    int64_t qkv, attention, lse, middle, saved_bytes; /* [R,3C] [R,C] [B,H,T] [R,C]; parallel: middle is forward's
                                                       * alone, in the scratch */
    int64_t last; /* [R,C] of post_norm, what norm2 norms */
    /* In ctx->repeated: outputs of the norms and the activation, and statistics; norm2's output of post_norm is out. */
    int64_t kept1, kept_stats1, kept2, kept_stats2, kept_act, repeated_bytes; /* [R,C] - [R,C] - [R,I] */
    int64_t lora; /* [R,r], in the scratch of either pass */
    int64_t act, stats, cos, sin, forward_bytes; /* [R,I], before it the attention's work space; [T,pairs] */
    int64_t wide, narrow, side, back_stats, work, back_cos, back_sin, backward_bytes; /* [R,max(I,3C)] [R,C] [R,C] */
    int64_t cache_v, cache_bytes; /* in ctx->cache: keys and values apart, [cache,C] each; else rows of [cache,3C] as
                                   * the product gives them, queries too: half as much again, and nothing is copied */
} block_layout;

static void lay_repeated(const dsc_dense_config *config, int64_t row_bytes, block_layout *out)
{
    const int64_t channels = config->lm.channels, stats = dsc_norm_stats_bytes(DSC_NORM_LAYER, out->rows);
    out->kept1 = dsc_lm_piece(&out->repeated_bytes, row_bytes * channels);
    out->kept_stats1 = dsc_lm_piece(&out->repeated_bytes, stats);
    if (!config->post_norm)
        out->kept2 = dsc_lm_piece(&out->repeated_bytes, row_bytes * channels);
    out->kept_stats2 = dsc_lm_piece(&out->repeated_bytes, stats);
    out->kept_act = dsc_lm_piece(&out->repeated_bytes, row_bytes * config->inner);
}

static void lay_forward(const dsc_dense_config *config, int64_t batch, int64_t row_bytes, block_layout *out)
{
    const int64_t table = config->traits->rotary ? dsc_rope_table_bytes(&config->rope, config->lm.sequence) : 0;
    const int64_t work = dsc_attention_fwd_scratch_bytes((int32_t)batch, (int32_t)config->lm.sequence,
                                                         (int32_t)config->heads,
                                                         (int32_t)(config->lm.channels / config->heads));
    out->act = dsc_lm_piece(&out->forward_bytes, dsc_max_i64(row_bytes * config->inner, work));
    out->stats = dsc_lm_piece(&out->forward_bytes, dsc_norm_stats_bytes(DSC_NORM_LAYER, out->rows));
    if (config->parallel)
        out->middle = dsc_lm_piece(&out->forward_bytes, row_bytes * config->lm.channels);
    out->cos = dsc_lm_piece(&out->forward_bytes, table);
    out->sin = dsc_lm_piece(&out->forward_bytes, table);
}

static void lay_backward(const dsc_dense_config *config, int64_t batch, int64_t row_bytes, block_layout *out)
{
    const int64_t channels = config->lm.channels;
    const int64_t table = config->traits->rotary ? dsc_rope_table_bytes(&config->rope, config->lm.sequence) : 0;
    const int64_t norm = dsc_norm_backward_scratch_bytes(DSC_NORM_LAYER, out->rows, channels);
    const int64_t attention = dsc_attention_bwd_scratch_bytes((int32_t)batch, (int32_t)config->lm.sequence,
                                                              (int32_t)config->heads,
                                                              (int32_t)(channels / config->heads));
    out->wide = dsc_lm_piece(&out->backward_bytes, row_bytes * dsc_max_i64(config->inner, 3 * channels));
    out->narrow = dsc_lm_piece(&out->backward_bytes, row_bytes * channels);
    out->side = out->narrow;
    if (config->parallel || config->post_norm)
        out->side = dsc_lm_piece(&out->backward_bytes, row_bytes * channels);
    out->back_stats = dsc_lm_piece(&out->backward_bytes, dsc_norm_stats_bytes(DSC_NORM_LAYER, out->rows));
    out->work = dsc_lm_piece(&out->backward_bytes, dsc_max_i64(norm, attention));
    out->back_cos = dsc_lm_piece(&out->backward_bytes, table);
    out->back_sin = dsc_lm_piece(&out->backward_bytes, table);
}

static dsc_status layout(const dsc_lm_module *self, int64_t batch, dsc_dtype dtype, block_layout *out, dsc_error *err)
{
    const dsc_dense_config *config = config_of(self);
    *out = (block_layout){ 0 };
    DSC_TRY(dsc_lm_rows(&config->lm, batch, &out->rows, err));
    out->lora = dsc_lm_piece(&out->forward_bytes, dsc_lora_work_bytes(&self->lora, out->rows, dtype));
    out->backward_bytes = out->forward_bytes;
    const int64_t rows = out->rows, channels = config->lm.channels;
    const int64_t row_bytes = rows * (int64_t)dsc_dtype_bytes(dtype);
    out->qkv = dsc_lm_piece(&out->saved_bytes, row_bytes * 3 * channels);
    out->attention = dsc_lm_piece(&out->saved_bytes, row_bytes * channels);
    out->lse = dsc_lm_piece(&out->saved_bytes, rows * config->heads * 4);
    if (!config->parallel)
        out->middle = dsc_lm_piece(&out->saved_bytes, row_bytes * channels);
    if (config->post_norm)
        out->last = dsc_lm_piece(&out->saved_bytes, row_bytes * channels);
    out->rebuilt_bytes = dsc_align_up(row_bytes * config->inner, 256);
    lay_repeated(config, row_bytes, out);
    lay_forward(config, batch, row_bytes, out);
    lay_backward(config, batch, row_bytes, out);
    const int64_t cache = config->lm.cache * channels * (int64_t)dsc_dtype_bytes(dtype);
    (void)dsc_lm_piece(&out->cache_bytes, qkv_count(config) == 3 ? cache : 3 * cache);
    if (qkv_count(config) == 3)
        out->cache_v = dsc_lm_piece(&out->cache_bytes, cache);
    return DSC_OK;
}

static float attention_scale(const dsc_lm_module *self)
{
    const dsc_dense_config *config = config_of(self);
    double scale = 1;
    if (config->scale_attention)
        scale /= sqrt((double)(config->lm.channels / config->heads));
    if (config->scale_attention_by_layer)
        scale /= (double)(self->layer + 1);
    return (float)scale;
}

/* Elements between rows, and between heads, of q, k and v. */
static int64_t qkv_stride(const dsc_dense_config *config)
{
    return (config->traits->kind == DSC_QKV_APART ? 1 : 3) * config->lm.channels;
}

static int64_t qkv_head_stride(const dsc_dense_config *config)
{
    return (config->traits->kind == DSC_QKV_HEADS ? 3 : 1) * config->lm.channels / config->heads;
}

/* The attention's forward without its tensors. */
static dsc_attention_fwd_args attention_shape(const dsc_lm_module *self, int64_t batch, dsc_dtype dtype,
                                              dsc_attention_keys keys)
{
    const dsc_dense_config *config = config_of(self);
    return (dsc_attention_fwd_args){
        .q_stride = qkv_stride(config), .kv_stride = qkv_stride(config), .out_stride = config->lm.channels,
        .head_stride = qkv_head_stride(config), .batch = (int32_t)batch, .tokens = (int32_t)config->lm.sequence,
        .heads = (int32_t)config->heads, .kv_heads = (int32_t)config->heads,
        .head_size = (int32_t)(config->lm.channels / config->heads), .scale = attention_scale(self), .keys = keys,
        .dtype = dtype
    };
}

static dsc_status plan(const dsc_module *module, int64_t batch, dsc_dtype dtype, const dsc_plan_sink *sink,
                       dsc_module_plan *out, dsc_error *err)
{
    const dsc_lm_module *self = module->self;
    const dsc_dense_config *config = config_of(self);
    block_layout at;
    DSC_TRY(layout(self, batch, dtype, &at, err));
    dsc_linear_planned gemms = { .module = module, .lora = &self->lora, .rows = at.rows, .dtype = dtype, .sink = sink };
    double flops[LINEAR_COUNT + 1] = { 0 }; /* forward FLOPs up to each layer */
    for (int i = 0; i < LINEAR_COUNT; i++) {
        if (has_linear(config, i))
            DSC_TRY(dsc_linear_plan(&gemms, linear_of(self, i), err));
        flops[i + 1] = gemms.forward_flops;
    }
    const dsc_attention_fwd_args shape = attention_shape(self, batch, dtype, dsc_lm_keys_after(self, 0));
    if (sink != NULL && sink->attention != NULL)
        DSC_TRY(sink->attention(sink->user, &shape, err));
    /* q k^T and p v over [T,T], or the causal half of it. */
    const double tokens = (double)config->lm.sequence, keys = config->lm.masked ? tokens : (tokens + 1) / 2;
    const double attention = 2 * 2.0 * (double)at.rows * keys * (double)config->lm.channels;
    *out = (dsc_module_plan) { .out_elements = at.rows * config->lm.channels,
                               .saved_bytes = at.saved_bytes,
                               .forward_scratch_bytes = at.forward_bytes,
                               .backward_scratch_bytes = at.backward_bytes,
                               .forward_flops = gemms.forward_flops + attention,
                               .backward_flops = gemms.backward_flops + 2 * attention,
                               .cache_bytes = at.cache_bytes,
                               .rebuilt_bytes = at.rebuilt_bytes,
                               .rebuild_flops = flops[FC + 1] - flops[FC],
                               .repeated_bytes = at.repeated_bytes };
    return DSC_OK;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* Context of all steps of a call. */
typedef struct block_call {
    const dsc_lm_module *self;
    const dsc_dense_config *config;
    dsc_module_ctx *ctx;
    dsc_call launch;
    block_layout at;
    char *saved, *scratch;
    char *kept; /* ctx->repeated; NULL: backward computes these values again */
    dsc_error *err;
} block_call;

static dsc_status begin(const dsc_module *module, dsc_module_ctx *ctx, block_call *call, dsc_error *err)
{
    DSC_ASSERT(ctx->saved != NULL);
    DSC_ASSERT(ctx->scratch != NULL);
    *call = (block_call) { .self = module->self,
                           .config = config_of(module->self),
                           .ctx = ctx,
                           .saved = ctx->saved,
                           .scratch = ctx->scratch,
                           .kept = ctx->repeated,
                           .err = err };
    DSC_TRY(layout(call->self, ctx->batch, ctx->dtype, &call->at, err));
    call->launch = (dsc_call){ .ctx = ctx, .rows = call->at.rows, .err = err, .lora = &call->self->lora,
                               .lora_work = call->scratch + call->at.lora };
    return DSC_OK;
}

/* The norm whose weight is parameter `kind`, with its statistics at `stats` of the scratch or kept. */
static dsc_norm norm_of(const block_call *call, int32_t kind, int64_t stats)
{
    const int64_t kept = kind == DSC_DENSE_NORM1 ? call->at.kept_stats1 : call->at.kept_stats2;
    return (dsc_norm) { .kind = DSC_NORM_LAYER,
                        .rows = call->at.rows,
                        .channels = call->config->lm.channels,
                        .eps = call->config->lm.norm_eps,
                        .weight = dsc_dense_param(call->config, kind),
                        .stats = call->kept != NULL ? call->kept + kept : call->scratch + stats };
}

/* Address of the norm's output: kept, or `otherwise`. */
static char *normed_at(const block_call *call, int32_t kind, void *otherwise)
{
    const int64_t kept = kind == DSC_DENSE_NORM1 ? call->at.kept1 : call->at.kept2;
    return call->kept != NULL ? call->kept + kept : otherwise;
}

/* Address of the activation's output: kept, or `otherwise`. */
static char *act_at(const block_call *call, char *otherwise)
{
    return call->kept != NULL ? call->kept + call->at.kept_act : otherwise;
}

static dsc_status norm(const block_call *call, int32_t kind, int64_t stats, void *out, const void *in)
{
    return dsc_norm_forward(&call->launch, norm_of(call, kind, stats), out, in);
}

/* Pointers to q, k and v, or to their gradients. */
typedef struct qkv_view {
    char *part[3];
    int64_t stride;    /* elements between rows */
    int64_t head_size; /* elements between heads */
} qkv_view;

static qkv_view qkv_of(const block_call *call, char *base)
{
    const int64_t channels = call->config->lm.channels, size = channels / call->config->heads;
    const bool apart = call->config->traits->kind == DSC_QKV_APART, heads = call->config->traits->kind == DSC_QKV_HEADS;
    const int64_t step = apart ? call->at.rows * channels : heads ? size : channels;
    qkv_view view = { .stride = qkv_stride(call->config), .head_size = qkv_head_stride(call->config) };
    for (int i = 0; i < 3; i++)
        view.part[i] = base + i * step * (int64_t)dsc_dtype_bytes(call->ctx->dtype);
    return view;
}

/* Those of this call's tokens: in `saved`, or what the attention keeps of them in the cache. */
static qkv_view qkv_rows(const block_call *call)
{
    const dsc_module_ctx *ctx = call->ctx;
    char *const cache = ctx->cache;
    qkv_view view = qkv_of(call, call->saved + call->at.qkv);
    const int64_t past = ctx->past * view.stride * (int64_t)dsc_dtype_bytes(ctx->dtype);
    if (cache == NULL)
        return view;
    if (call->config->traits->kind != DSC_QKV_APART)
        return qkv_of(call, cache + past);
    view.part[1] = cache + past;
    view.part[2] = cache + call->at.cache_v + past;
    return view;
}

/* q and k by their positions, in place; nothing without rotary positions. */
static dsc_status apply_rope(const block_call *call, const qkv_view *view, int64_t cos, int64_t sin, bool inverse)
{
    const dsc_dense_config *config = call->config;
    const dsc_rope_tables tables = { (float *)(void *)(call->scratch + cos), (float *)(void *)(call->scratch + sin) };
    if (!config->traits->rotary)
        return DSC_OK;
    DSC_TRY(dsc_rope_make_tables(&call->launch, &config->rope, tables, config->lm.sequence));
    for (int i = 0; i < 2; i++) {
        const dsc_rope_heads heads = { view->part[i],
                                       view->stride,
                                       (int32_t)config->heads,
                                       (int32_t)view->head_size,
                                       config->lm.sequence,
                                       dsc_lm_positions(&config->lm, call->ctx),
                                       inverse };
        DSC_TRY(dsc_rope_apply(&call->launch, &config->rope, tables, &heads));
    }
    return DSC_OK;
}

static dsc_status attend(const block_call *call, const qkv_view *view)
{
    const int64_t past = call->ctx->past * view->stride * (int64_t)dsc_dtype_bytes(call->ctx->dtype);
    const dsc_attention_keys keys = dsc_lm_keys(call->self, call->ctx);
    dsc_attention_fwd_args args = attention_shape(call->self, call->ctx->batch, call->ctx->dtype, keys);
    args.out = call->saved + call->at.attention;
    args.lse = (float *)(void *)(call->saved + call->at.lse);
    args.q = view->part[0], args.k = view->part[1] - past, args.v = view->part[2] - past;
    args.scratch = call->scratch + call->at.act;
    return DSC_RUN(call->ctx->stream, ATTENTION_FWD, &args, call->err);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* The residual is only read, as the epilogue says; the argument is not const because other epilogues write it. */
static void *residual_of(const void *rows) { return (void *)(uintptr_t)rows; }

/* middle = x + attention of `normed`. */
static dsc_status forward_attention(const block_call *call, const void *normed, void *middle)
{
    const qkv_view view = qkv_rows(call);
    for (int i = 0; i < qkv_count(call->config); i++)
        DSC_TRY(dsc_linear_run(&call->launch, linear_of(call->self, QKV + i), view.part[i], normed, NULL));
    DSC_TRY(apply_rope(call, &view, call->at.cos, call->at.sin, false));
    DSC_TRY(attend(call, &view));
    return dsc_linear_run(&call->launch, linear_of(call->self, PROJ), middle, call->saved + call->at.attention,
                          residual_of(call->ctx->in));
}

/* The activation of the MLP's first product, into `to`. */
static dsc_status activate(const block_call *call, void *to)
{
    const dsc_gelu_fwd_args args = { .out = to, .in = call->ctx->rebuilt,
                                     .count = call->at.rows * call->config->inner, .dtype = call->ctx->dtype,
                                     .kind = call->config->activation };
    return DSC_RUN(call->ctx->stream, GELU_FWD, &args, call->err);
}

/* The MLP's first product of `normed`, which backward reads; where its epilogue is the activation, that too. */
static dsc_status forward_fc(const block_call *call, const void *normed)
{
    const bool fused = is_fused(call->self);
    char *const act = act_at(call, call->scratch + call->at.act), *const fc = call->ctx->rebuilt;
    return dsc_linear_run(&call->launch, linear_of(call->self, FC), fused ? act : fc, normed, fused ? fc : NULL);
}

/* to = residual + MLP of `normed`. */
static dsc_status forward_mlp(const block_call *call, const void *normed, void *to, const void *residual)
{
    char *const act = act_at(call, call->scratch + call->at.act);
    DSC_TRY(forward_fc(call, normed));
    if (!is_fused(call->self))
        DSC_TRY(activate(call, act));
    return dsc_linear_run(&call->launch, linear_of(call->self, OUT), to, act, residual_of(residual));
}

static dsc_status forward_post_norm(const block_call *call)
{
    dsc_module_ctx *ctx = call->ctx;
    char *const middle = call->saved + call->at.middle, *const last = call->saved + call->at.last;
    char *const normed = normed_at(call, DSC_DENSE_NORM1, ctx->out);
    DSC_TRY(forward_attention(call, ctx->in, middle));
    DSC_TRY(norm(call, DSC_DENSE_NORM1, call->at.stats, normed, middle));
    DSC_TRY(forward_mlp(call, normed, last, normed));
    return norm(call, DSC_DENSE_NORM2, call->at.stats, ctx->out, last);
}

static dsc_status forward(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    block_call call;
    DSC_TRY(begin(module, ctx, &call, err));
    const dsc_dense_config *config = call.config;
    char *const middle = (config->parallel ? call.scratch : call.saved) + call.at.middle;
    if (config->post_norm)
        return forward_post_norm(&call);
    /* Where nothing is kept, `out` holds the norms' outputs until its own value is ready. */
    char *const normed1 = normed_at(&call, DSC_DENSE_NORM1, ctx->out);
    char *const normed2 = normed_at(&call, DSC_DENSE_NORM2, ctx->out);
    DSC_TRY(norm(&call, DSC_DENSE_NORM1, call.at.stats, normed1, ctx->in));
    DSC_TRY(forward_attention(&call, normed1, middle));
    DSC_TRY(norm(&call, DSC_DENSE_NORM2, call.at.stats, normed2, config->parallel ? ctx->in : middle));
    return forward_mlp(&call, normed2, ctx->out, middle);
}

/* With the product that forward had, epilogue and all, so that the bits are forward's. */
static dsc_status rebuild(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    block_call call;
    DSC_TRY(begin(module, ctx, &call, err));
    DSC_ASSERT(call.kept == NULL);
    const dsc_dense_config *config = call.config;
    const void *const in = config->parallel ? ctx->in : call.saved + call.at.middle;
    const int32_t kind = config->post_norm ? DSC_DENSE_NORM1 : DSC_DENSE_NORM2;
    DSC_TRY(norm(&call, kind, call.at.stats, ctx->out, in));
    return forward_fc(&call, ctx->out);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* A norm's output for backward: kept, or computed again into `narrow`. Its statistics are there too then. */
static dsc_status norm_again(const block_call *call, int32_t kind, const void *in, const void **normed)
{
    char *const narrow = call->scratch + call->at.narrow;
    *normed = normed_at(call, kind, narrow);
    return call->kept != NULL ? DSC_OK : norm(call, kind, call->at.back_stats, narrow, in);
}

/* to = residual + gradient through the norm whose statistics are in the scratch or kept. */
static dsc_status norm_backward(const block_call *call, int32_t kind, dsc_norm_gradient buffers)
{
    buffers.scratch = call->scratch + call->at.work;
    return dsc_norm_backward(&call->launch, norm_of(call, kind, call->at.back_stats), &buffers);
}

/* From the gradient of the MLP's output: the one before its activation, into `wide`. */
static dsc_status backward_activation(const block_call *call, const void *d_out)
{
    char *const wide = call->scratch + call->at.wide, *const fc = call->ctx->rebuilt;
    const char *const act = act_at(call, wide);
    if (call->kept == NULL)
        DSC_TRY(activate(call, wide));
    DSC_TRY(dsc_linear_gradients(&call->launch, linear_of(call->self, OUT), act, d_out));
    DSC_TRY(dsc_linear_backward(&call->launch, linear_of(call->self, OUT), wide, d_out,
                                is_fused(call->self) ? fc : NULL));
    if (is_fused(call->self))
        return DSC_OK;
    const dsc_gelu_bwd_args args = { .d_in = wide, .d_out = wide, .in = fc, .count = call->at.rows *
                                     call->config->inner, .dtype = call->ctx->dtype,
                                     .kind = call->config->activation };
    return DSC_RUN(call->ctx->stream, GELU_BWD, &args, call->err);
}

/* The gradients of the MLP's first product of `normed`; `to` = that of the input, or more of it. */
static dsc_status backward_fc(const block_call *call, const void *normed, void *to)
{
    char *const wide = call->scratch + call->at.wide;
    DSC_TRY(dsc_linear_gradients(&call->launch, linear_of(call->self, FC), normed, wide));
    return dsc_linear_backward(&call->launch, linear_of(call->self, FC), to, wide, to);
}

/* d_in = d_out + the gradient through the MLP and its norm, which reads `in`. */
static dsc_status backward_mlp(const block_call *call, const void *in)
{
    dsc_module_ctx *ctx = call->ctx;
    char *const narrow = call->scratch + call->at.narrow;
    const void *normed;
    DSC_TRY(backward_activation(call, ctx->d_out));
    DSC_TRY(norm_again(call, DSC_DENSE_NORM2, in, &normed));
    DSC_TRY(backward_fc(call, normed, narrow));
    return norm_backward(call, DSC_DENSE_NORM2, (dsc_norm_gradient){ .d_in = ctx->d_in, .d_out = narrow,
                                                                     .d_residual = ctx->d_out, .in = in });
}

/* The projection's gradients; `to` = that of the attention's output. */
static dsc_status backward_projection(const block_call *call, const void *d_out, void *to)
{
    const dsc_linear_layer layer = linear_of(call->self, PROJ);
    DSC_TRY(dsc_linear_gradients(&call->launch, layer, call->saved + call->at.attention, d_out));
    return dsc_linear_backward(&call->launch, layer, to, d_out, NULL);
}

static dsc_status attend_backward(const block_call *call, const void *d_out, const qkv_view *view, const qkv_view *d)
{
    const dsc_dense_config *config = call->config;
    const dsc_attention_bwd_args args = {
        .dq = d->part[0], .dk = d->part[1], .dv = d->part[2], .d_out = d_out, .out = call->saved + call->at.attention,
        .lse = (const float *)(const void *)(call->saved + call->at.lse), .q = view->part[0], .k = view->part[1],
        .v = view->part[2], .scratch = call->scratch + call->at.work, .q_stride = view->stride,
        .kv_stride = view->stride, .out_stride = config->lm.channels, .head_stride = view->head_size,
        .batch = (int32_t)call->ctx->batch, .tokens = (int32_t)config->lm.sequence, .heads = (int32_t)config->heads,
        .kv_heads = (int32_t)config->heads, .head_size = (int32_t)(config->lm.channels / config->heads),
        .scale = attention_scale(call->self), .keys = dsc_lm_keys(call->self, call->ctx), .dtype = call->ctx->dtype
    };
    return DSC_RUN(call->ctx->stream, ATTENTION_BWD, &args, call->err);
}

/* The gradient of q, k and v, in `wide`, from that of the attention's output. */
static dsc_status backward_scores(const block_call *call, const void *d_out, qkv_view *d)
{
    const qkv_view view = qkv_of(call, call->saved + call->at.qkv);
    *d = qkv_of(call, call->scratch + call->at.wide);
    DSC_TRY(attend_backward(call, d_out, &view, d));
    return apply_rope(call, d, call->at.back_cos, call->at.back_sin, true);
}

/* The gradients of the products that make q, k and v of `in`; `to` = that of `in`, or more of it. */
static dsc_status backward_qkv(const block_call *call, const qkv_view *d, const void *in, void *to)
{
    const int count = qkv_count(call->config);
    for (int i = 0; i < count; i++)
        DSC_TRY(dsc_linear_gradients(&call->launch, linear_of(call->self, QKV + i), in, d->part[i]));
    for (int i = 0; i < count; i++)
        DSC_TRY(dsc_linear_backward(&call->launch, linear_of(call->self, QKV + i), to, d->part[i], to));
    return DSC_OK;
}

/* Adds to d_in the gradient through the attention, whose output's gradient is d_out, and its norm. */
static dsc_status backward_attention(const block_call *call, const void *d_out)
{
    dsc_module_ctx *ctx = call->ctx;
    char *const narrow = call->scratch + call->at.narrow;
    const void *normed;
    qkv_view d;
    DSC_TRY(backward_scores(call, d_out, &d));
    DSC_TRY(norm_again(call, DSC_DENSE_NORM1, ctx->in, &normed));
    DSC_TRY(backward_qkv(call, &d, normed, narrow));
    return norm_backward(call, DSC_DENSE_NORM1, (dsc_norm_gradient){ .d_in = ctx->d_in, .d_out = narrow,
                                                                     .d_residual = ctx->d_in, .in = ctx->in });
}

static dsc_status backward_post_norm(const block_call *call)
{
    dsc_module_ctx *ctx = call->ctx;
    char *const side = call->scratch + call->at.side;
    const char *const middle = call->saved + call->at.middle, *const last = call->saved + call->at.last;
    const void *normed;
    qkv_view d;
    DSC_TRY(norm_again(call, DSC_DENSE_NORM2, last, &normed)); /* for its statistics */
    DSC_TRY(norm_backward(call, DSC_DENSE_NORM2, (dsc_norm_gradient){ .d_in = side, .d_out = ctx->d_out, .in = last }));
    DSC_TRY(backward_activation(call, side));
    DSC_TRY(norm_again(call, DSC_DENSE_NORM1, middle, &normed));
    DSC_TRY(backward_fc(call, normed, side));
    DSC_TRY(norm_backward(call, DSC_DENSE_NORM1,
                          (dsc_norm_gradient){ .d_in = ctx->d_in, .d_out = side, .in = middle }));
    DSC_TRY(backward_projection(call, ctx->d_in, side));
    DSC_TRY(backward_scores(call, side, &d));
    return backward_qkv(call, &d, ctx->in, ctx->d_in);
}

static dsc_status backward(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    block_call call;
    DSC_TRY(begin(module, ctx, &call, err));
    char *const side = call.scratch + call.at.side; /* `narrow`, or beside it where the MLP comes between */
    if (call.config->post_norm)
        return backward_post_norm(&call);
    if (call.config->parallel) {
        DSC_TRY(backward_projection(&call, ctx->d_out, side));
        DSC_TRY(backward_mlp(&call, ctx->in));
    } else {
        DSC_TRY(backward_mlp(&call, call.saved + call.at.middle));
        DSC_TRY(backward_projection(&call, ctx->d_in, side));
    }
    return backward_attention(&call, side);
}

const dsc_lm_block dsc_dense_block = { plan, forward, backward, rebuild };
