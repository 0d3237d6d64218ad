/* llama_block.c - one transformer block: x + attention(norm(x)), then x + down(silu(gate(norm(x))) * up(norm(x))).
 *
 * Saved for backward, besides the block's input: q, k and v, the attention's output and its log-sum-exp, the
 * residual stream in the middle, gate and up. Without norms of heads, q and k are saved as the attention reads them,
 * rotated in place, since rotating back needs only the tables. With them, q and k are saved as their products gave
 * them, which the norm's backward reads; they are normalised and rotated again. The tables of cosines are made by
 * each call: a module keeps nothing between calls. Gate and up, the widest, are two products from the middle:
 * rebuild makes them again. Their gradients replace them after the last read. The outputs of all norms and of the
 * activation are in ctx->repeated: without it backward computes them again. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/device.h"
#include "models/llama.h"

enum { Q, K, V, O, GATE, UP, DOWN, LINEAR_COUNT };

static const dsc_llama_config *config_of(const dsc_module *module)
{
    return (const dsc_llama_config *)(const void *)((const dsc_lm_module *)module->self)->config;
}

static const dsc_lora *lora_of(const dsc_module *module)
{
    return &((const dsc_lm_module *)module->self)->lora;
}

static int64_t q_size(const dsc_llama_config *config) { return config->heads * config->head_size; }
static int64_t kv_size(const dsc_llama_config *config) { return config->kv_heads * config->head_size; }

/* Products that share an input add their gradients of it one after another: the first one writes, the others add. */
static dsc_linear_layer linear_of(const dsc_llama_config *config, int which)
{
    const int64_t channels = config->lm.channels, inner = config->inner, q = q_size(config), kv = kv_size(config);
    const dsc_epilogue none = DSC_EPILOGUE_NONE, add = DSC_EPILOGUE_ADD;
    const struct { dsc_linear shape; int32_t weight; bool adds; dsc_epilogue backward; } all[LINEAR_COUNT] = {
        [Q] = { { channels, q, true }, DSC_LLAMA_Q_W, false, none },
        [K] = { { channels, kv, true }, DSC_LLAMA_K_W, false, add },
        [V] = { { channels, kv, true }, DSC_LLAMA_V_W, false, add },
        [O] = { { q, channels, true }, DSC_LLAMA_O_W, true, none },
        [GATE] = { { channels, inner, true }, DSC_LLAMA_GATE_W, false, none },
        [UP] = { { channels, inner, true }, DSC_LLAMA_UP_W, false, add },
        [DOWN] = { { inner, channels, true }, DSC_LLAMA_DOWN_W, true, none },
    };
    const int32_t bias = dsc_llama_param(config, all[which].weight + 1);
    const dsc_epilogue with_bias = all[which].adds ? DSC_EPILOGUE_BIAS_ADD : DSC_EPILOGUE_BIAS;
    const dsc_epilogue without = all[which].adds ? DSC_EPILOGUE_ADD : DSC_EPILOGUE_NONE;
    return (dsc_linear_layer){ .shape = all[which].shape, .weight = dsc_llama_param(config, all[which].weight),
                               .bias = bias, .forward = bias >= 0 ? with_bias : without,
                               .backward = all[which].backward };
}

/* With norms of heads: q and k as the attention reads them, and the norms' statistics. */
typedef struct normed_heads {
    int64_t q, k; /* [R,HD] [R,KD] */
    int64_t q_stats, k_stats;
} normed_heads;

/* Inputs of the attention, in the scratch of a forward or a backward. */
typedef struct heads_layout {
    int64_t cos, sin; /* [T,D/2] */
    normed_heads normed;
} heads_layout;

/* Byte offsets in ctx->saved and ctx->scratch. The attention's part of a scratch and the MLP's lie over each other. */
typedef struct block_layout {
    int64_t rows;
    int64_t q, k, v, attention, lse; /* [R,HD] [R,KD] [R,KD] [R,HD] [B,H,T] */
    int64_t middle, saved_bytes; /* [R,C] */
    int64_t up, rebuilt_bytes;   /* gate before it: [R,I] [R,I], in ctx->rebuilt */
    int64_t lora; /* [R,r], in the scratch of either pass */
    int64_t stats, forward_bytes;
    heads_layout heads;
    int64_t attention_work, act; /* - [R,I] */
    int64_t back_stats, narrow, work, backward_bytes; /* - [R,max(C,HD)] - */
    heads_layout back_heads;
    int64_t dq, dk, dv, wide; /* [R,HD] [R,KD] [R,KD] [R,I] */
    /* In ctx->repeated: outputs of the norms and the activation, and statistics. */
    int64_t kept1, kept_stats1, kept2, kept_stats2, kept_act, repeated_bytes; /* [R,C] - [R,C] - [R,I] */
    normed_heads kept_heads;
    int64_t cache_k, cache_v, cache_bytes; /* [cache,KD] each, in ctx->cache */
} block_layout;

static normed_heads lay_normed_heads(const dsc_llama_config *config, int64_t rows, int64_t element, int64_t *end)
{
    normed_heads out = { 0 };
    if (!config->traits->head_norm)
        return out;
    out.q = dsc_lm_piece(end, rows * q_size(config) * element);
    out.k = dsc_lm_piece(end, rows * kv_size(config) * element);
    out.q_stats = dsc_lm_piece(end, dsc_norm_stats_bytes(DSC_NORM_RMS, rows * config->heads));
    out.k_stats = dsc_lm_piece(end, dsc_norm_stats_bytes(DSC_NORM_RMS, rows * config->kv_heads));
    return out;
}

static heads_layout lay_heads(const dsc_llama_config *config, int64_t rows, int64_t element, int64_t *end)
{
    heads_layout out = { 0 };
    const int64_t table = dsc_rope_table_bytes(&config->rope, config->lm.sequence);
    out.cos = dsc_lm_piece(end, table);
    out.sin = dsc_lm_piece(end, table);
    out.normed = lay_normed_heads(config, rows, element, end);
    return out;
}

static void lay_repeated(const dsc_llama_config *config, int64_t element, block_layout *out)
{
    const int64_t rows = out->rows, row_bytes = rows * element, stats = dsc_norm_stats_bytes(DSC_NORM_RMS, rows);
    out->kept1 = dsc_lm_piece(&out->repeated_bytes, row_bytes * config->lm.channels);
    out->kept_stats1 = dsc_lm_piece(&out->repeated_bytes, stats);
    out->kept2 = dsc_lm_piece(&out->repeated_bytes, row_bytes * config->lm.channels);
    out->kept_stats2 = dsc_lm_piece(&out->repeated_bytes, stats);
    out->kept_act = dsc_lm_piece(&out->repeated_bytes, row_bytes * config->inner);
    out->kept_heads = lay_normed_heads(config, rows, element, &out->repeated_bytes);
}

static void lay_saved(const dsc_llama_config *config, int64_t element, block_layout *out)
{
    const int64_t rows = out->rows, row_bytes = rows * element;
    out->q = dsc_lm_piece(&out->saved_bytes, row_bytes * q_size(config));
    out->k = dsc_lm_piece(&out->saved_bytes, row_bytes * kv_size(config));
    out->v = dsc_lm_piece(&out->saved_bytes, row_bytes * kv_size(config));
    out->attention = dsc_lm_piece(&out->saved_bytes, row_bytes * q_size(config));
    out->lse = dsc_lm_piece(&out->saved_bytes, rows * config->heads * 4);
    out->middle = dsc_lm_piece(&out->saved_bytes, row_bytes * config->lm.channels);
    (void)dsc_lm_piece(&out->rebuilt_bytes, row_bytes * config->inner);
    out->up = dsc_lm_piece(&out->rebuilt_bytes, row_bytes * config->inner);
}

static void lay_forward(const dsc_llama_config *config, int64_t batch, int64_t element, block_layout *out)
{
    out->stats = dsc_lm_piece(&out->forward_bytes, dsc_norm_stats_bytes(DSC_NORM_RMS, out->rows));
    int64_t end = out->forward_bytes, mlp_end = out->forward_bytes;
    out->heads = lay_heads(config, out->rows, element, &end);
    out->attention_work = dsc_lm_piece(&end, dsc_attention_fwd_scratch_bytes(
                                                 (int32_t)batch, (int32_t)config->lm.sequence, (int32_t)config->heads,
                                                 (int32_t)config->head_size));
    out->act = dsc_lm_piece(&mlp_end, out->rows * config->inner * element);
    out->forward_bytes = dsc_max_i64(end, mlp_end);
}

static void lay_backward(const dsc_llama_config *config, int64_t batch, int64_t element, block_layout *out)
{
    const int64_t rows = out->rows, channels = config->lm.channels, row_bytes = rows * element;
    int64_t work = dsc_norm_backward_scratch_bytes(DSC_NORM_RMS, rows, channels);
    if (config->traits->head_norm)
        work = dsc_max_i64(work, dsc_norm_backward_scratch_bytes(DSC_NORM_RMS, rows * config->heads,
                                                                 config->head_size));
    work = dsc_max_i64(work, dsc_attention_bwd_scratch_bytes((int32_t)batch, (int32_t)config->lm.sequence,
                                                             (int32_t)config->heads, (int32_t)config->head_size));
    out->back_stats = dsc_lm_piece(&out->backward_bytes, dsc_norm_stats_bytes(DSC_NORM_RMS, rows));
    out->narrow = dsc_lm_piece(&out->backward_bytes, row_bytes * dsc_max_i64(channels, q_size(config)));
    out->work = dsc_lm_piece(&out->backward_bytes, work);
    int64_t end = out->backward_bytes, mlp_end = out->backward_bytes;
    out->back_heads = lay_heads(config, rows, element, &end);
    out->dq = dsc_lm_piece(&end, row_bytes * q_size(config));
    out->dk = dsc_lm_piece(&end, row_bytes * kv_size(config));
    out->dv = dsc_lm_piece(&end, row_bytes * kv_size(config));
    out->wide = dsc_lm_piece(&mlp_end, row_bytes * config->inner);
    out->backward_bytes = dsc_max_i64(end, mlp_end);
}

static dsc_status layout(const dsc_module *module, int64_t batch, dsc_dtype dtype, block_layout *out, dsc_error *err)
{
    const dsc_llama_config *config = config_of(module);
    const int64_t element = (int64_t)dsc_dtype_bytes(dtype);
    *out = (block_layout){ 0 };
    DSC_TRY(dsc_lm_rows(&config->lm, batch, &out->rows, err));
    out->lora = dsc_lm_piece(&out->forward_bytes, dsc_lora_work_bytes(lora_of(module), out->rows, dtype));
    out->backward_bytes = out->forward_bytes;
    lay_saved(config, element, out);
    lay_repeated(config, element, out);
    lay_forward(config, batch, element, out);
    lay_backward(config, batch, element, out);
    out->cache_k = dsc_lm_piece(&out->cache_bytes, config->lm.cache * kv_size(config) * element);
    out->cache_v = dsc_lm_piece(&out->cache_bytes, config->lm.cache * kv_size(config) * element);
    return DSC_OK;
}

static float attention_scale(const dsc_llama_config *config) { return (float)(1 / sqrt((double)config->head_size)); }

/* The attention's forward without its tensors. */
static dsc_attention_fwd_args attention_shape(const dsc_llama_config *config, int64_t batch, dsc_dtype dtype,
                                              dsc_attention_keys keys)
{
    return (dsc_attention_fwd_args){
        .q_stride = q_size(config), .kv_stride = kv_size(config), .out_stride = q_size(config), .batch = (int32_t)batch,
        .tokens = (int32_t)config->lm.sequence, .heads = (int32_t)config->heads, .kv_heads = (int32_t)config->kv_heads,
        .head_size = (int32_t)config->head_size, .scale = attention_scale(config), .keys = keys,
        .dtype = dtype
    };
}

static dsc_status plan(const dsc_module *module, int64_t batch, dsc_dtype dtype, const dsc_plan_sink *sink,
                       dsc_module_plan *out, dsc_error *err)
{
    const dsc_llama_config *config = config_of(module);
    block_layout at;
    DSC_TRY(layout(module, batch, dtype, &at, err));
    dsc_linear_planned gemms = {
        .module = module, .lora = lora_of(module), .rows = at.rows, .dtype = dtype, .sink = sink
    };
    double flops[LINEAR_COUNT + 1] = { 0 }; /* forward FLOPs up to each layer */
    for (int i = 0; i < LINEAR_COUNT; i++) {
        DSC_TRY(dsc_linear_plan(&gemms, linear_of(config, i), err));
        flops[i + 1] = gemms.forward_flops;
    }
    const dsc_attention_fwd_args shape = attention_shape(config, batch, dtype, dsc_lm_keys_after(module->self, 0));
    if (sink != NULL && sink->attention != NULL)
        DSC_TRY(sink->attention(sink->user, &shape, err));
    /* q k^T and p v over the causal half of [T,T]. */
    const double attention = 2 * 2.0 * (double)at.rows * (double)(config->lm.sequence + 1) / 2 * (double)q_size(config);
    *out = (dsc_module_plan) { .out_elements = at.rows * config->lm.channels,
                               .saved_bytes = at.saved_bytes,
                               .forward_scratch_bytes = at.forward_bytes,
                               .backward_scratch_bytes = at.backward_bytes,
                               .forward_flops = gemms.forward_flops + attention,
                               .backward_flops = gemms.backward_flops + 2 * attention,
                               .cache_bytes = at.cache_bytes,
                               .rebuilt_bytes = at.rebuilt_bytes,
                               .rebuild_flops = flops[UP + 1] - flops[GATE],
                               .repeated_bytes = at.repeated_bytes };
    return DSC_OK;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

typedef struct block_call {
    const dsc_lm_module *self;
    const dsc_llama_config *config;
    dsc_module_ctx *ctx;
    dsc_call launch;
    block_layout at;
    char *saved, *scratch, *gate, *up;
    char *kept; /* ctx->repeated; NULL: backward computes these values again */
    dsc_error *err;
} block_call;

static dsc_status begin(const dsc_module *module, dsc_module_ctx *ctx, block_call *call, dsc_error *err)
{
    DSC_ASSERT(ctx->saved != NULL);
    DSC_ASSERT(ctx->scratch != NULL);
    DSC_ASSERT(ctx->rebuilt != NULL);
    DSC_ASSERT(ctx->repeated == NULL || ctx->cache == NULL);
    *call = (block_call) { .self = module->self,
                           .config = config_of(module),
                           .ctx = ctx,
                           .saved = ctx->saved,
                           .scratch = ctx->scratch,
                           .gate = ctx->rebuilt,
                           .kept = ctx->repeated,
                           .err = err };
    DSC_TRY(layout(module, ctx->batch, ctx->dtype, &call->at, err));
    call->up = call->gate + call->at.up;
    call->launch = (dsc_call){ .ctx = ctx, .rows = call->at.rows, .err = err, .lora = lora_of(module),
                               .lora_work = call->scratch + call->at.lora };
    return DSC_OK;
}

/* One of the two norms of the stream, with its statistics at `stats` of the scratch or kept. */
static dsc_norm norm_of(const block_call *call, int32_t kind, int64_t stats)
{
    const int64_t kept = kind == DSC_LLAMA_NORM1 ? call->at.kept_stats1 : call->at.kept_stats2;
    return (dsc_norm) { .kind = DSC_NORM_RMS,
                        .rows = call->at.rows,
                        .channels = call->config->lm.channels,
                        .eps = call->config->lm.norm_eps,
                        .weight = dsc_llama_param(call->config, kind),
                        .stats = call->kept != NULL ? call->kept + kept : call->scratch + stats };
}

/* Address of the norm's output: kept, or `otherwise`. */
static char *normed_at(const block_call *call, int32_t kind, void *otherwise)
{
    const int64_t kept = kind == DSC_LLAMA_NORM1 ? call->at.kept1 : call->at.kept2;
    return call->kept != NULL ? call->kept + kept : otherwise;
}

/* Keys and values as the attention reads them: in `saved`, or in the cache behind those of the tokens before. */
typedef struct kv_rows {
    char *k, *v;         /* row of the first key */
    char *k_new, *v_new; /* row of this call's first token */
} kv_rows;

static kv_rows kv_rows_of(const block_call *call)
{
    const int64_t past = call->ctx->past * kv_size(call->config) * (int64_t)dsc_dtype_bytes(call->ctx->dtype);
    char *const cache = call->ctx->cache, *const saved = call->saved;
    if (cache == NULL)
        return (kv_rows){ saved + call->at.k, saved + call->at.v, saved + call->at.k, saved + call->at.v };
    char *const k = cache + call->at.cache_k, *const v = cache + call->at.cache_v;
    return (kv_rows){ k, v, k + past, v + past };
}

/* One of q and k on their way to the attention. */
typedef struct head_rows {
    int32_t heads, norm;  /* their number; DSC_LLAMA_Q_NORM or DSC_LLAMA_K_NORM */
    char *raw, *ready;    /* as the product gave them, in saved; where the attention reads them */
    char *stats, *d;      /* the norm's statistics; backward: the gradient */
} head_rows;

static void split_heads(const block_call *call, const heads_layout *at, head_rows out[2])
{
    const dsc_llama_config *config = call->config;
    const bool norm = config->traits->head_norm;
    const normed_heads *in = call->kept != NULL ? &call->at.kept_heads : &at->normed;
    char *const saved = call->saved, *const scratch = call->scratch, *const k = kv_rows_of(call).k_new;
    char *const normed = call->kept != NULL ? call->kept : scratch;
    out[0] = (head_rows) { .heads = (int32_t)config->heads,
                           .norm = DSC_LLAMA_Q_NORM,
                           .raw = saved + call->at.q,
                           .ready = norm ? normed + in->q : saved + call->at.q,
                           .stats = normed + in->q_stats,
                           .d = scratch + call->at.dq };
    out[1] = (head_rows) { .heads = (int32_t)config->kv_heads,
                           .norm = DSC_LLAMA_K_NORM,
                           .raw = norm ? saved + call->at.k : k,
                           .ready = norm && call->ctx->cache == NULL ? normed + in->k : k,
                           .stats = normed + in->k_stats,
                           .d = scratch + call->at.dk };
}

/* Every head of q or k is a row of its own. */
static dsc_norm head_norm_of(const block_call *call, const head_rows *of)
{
    return (dsc_norm){ .kind = DSC_NORM_RMS, .rows = call->at.rows * of->heads, .channels = call->config->head_size,
                       .eps = call->config->lm.norm_eps, .weight = dsc_llama_param(call->config, of->norm),
                       .stats = of->stats };
}

static dsc_rope_tables tables_of(const block_call *call, const heads_layout *at)
{
    return (dsc_rope_tables){ (float *)(void *)(call->scratch + at->cos), (float *)(void *)(call->scratch + at->sin) };
}

static dsc_status make_tables(const block_call *call, const heads_layout *at)
{
    return dsc_rope_make_tables(&call->launch, &call->config->rope, tables_of(call, at), call->config->lm.sequence);
}

static dsc_status apply_rope(const block_call *call, const heads_layout *at, void *rows, int32_t heads, bool inverse)
{
    const dsc_llama_config *config = call->config;
    const dsc_rope_heads of = { rows,
                                heads * config->head_size,
                                heads,
                                (int32_t)config->head_size,
                                config->lm.sequence,
                                dsc_lm_positions(&config->lm, call->ctx),
                                inverse };
    return dsc_rope_apply(&call->launch, &config->rope, tables_of(call, at), &of);
}

/* From what the products gave to what the attention reads. */
static dsc_status make_ready(const block_call *call, const heads_layout *at, const head_rows *of)
{
    if (of->ready != of->raw)
        DSC_TRY(dsc_norm_forward(&call->launch, head_norm_of(call, of), of->ready, of->raw));
    return apply_rope(call, at, of->ready, of->heads, false);
}

static dsc_status attend(const block_call *call, const head_rows qk[2])
{
    const kv_rows kv = kv_rows_of(call);
    const dsc_attention_keys keys = dsc_lm_keys(call->self, call->ctx);
    dsc_attention_fwd_args args = attention_shape(call->config, call->ctx->batch, call->ctx->dtype, keys);
    args.out = call->saved + call->at.attention;
    args.lse = (float *)(void *)(call->saved + call->at.lse);
    args.q = qk[0].ready, args.k = call->ctx->cache == NULL ? qk[1].ready : kv.k, args.v = kv.v;
    args.scratch = call->scratch + call->at.attention_work;
    return DSC_RUN(call->ctx->stream, ATTENTION_FWD, &args, call->err);
}

/* Gate and up of the middle; its norm is kept, or in `out`. */
static dsc_status forward_gate_up(const block_call *call)
{
    char *const normed = normed_at(call, DSC_LLAMA_NORM2, call->ctx->out);
    DSC_TRY(dsc_norm_forward(&call->launch, norm_of(call, DSC_LLAMA_NORM2, call->at.stats), normed,
                             call->saved + call->at.middle));
    DSC_TRY(dsc_linear_run(&call->launch, linear_of(call->config, GATE), call->gate, normed, NULL));
    return dsc_linear_run(&call->launch, linear_of(call->config, UP), call->up, normed, NULL);
}

/* out = middle + down of the activation of gate and up. */
static dsc_status forward_down(const block_call *call)
{
    dsc_module_ctx *ctx = call->ctx;
    const int64_t inner = call->config->inner;
    char *const act = call->kept != NULL ? call->kept + call->at.kept_act : call->scratch + call->at.act;
    const dsc_swiglu_fwd_args gated = { .out = act,
                                        .gate = call->gate,
                                        .up = call->up,
                                        .rows = call->at.rows,
                                        .cols = inner,
                                        .in_stride = inner,
                                        .dtype = ctx->dtype };
    DSC_TRY(DSC_RUN(ctx->stream, SWIGLU_FWD, &gated, call->err));
    return dsc_linear_run(&call->launch, linear_of(call->config, DOWN), ctx->out, act, call->saved + call->at.middle);
}

static dsc_status forward(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    block_call call;
    head_rows qk[2];
    DSC_TRY(begin(module, ctx, &call, err));
    const dsc_llama_config *config = call.config;
    const dsc_call *launch = &call.launch;
    char *const saved = call.saved, *const normed = normed_at(&call, DSC_LLAMA_NORM1, ctx->out);
    split_heads(&call, &call.at.heads, qk);
    /* Where nothing is kept, `out` holds the norms' outputs until its own value is ready. */
    DSC_TRY(dsc_norm_forward(launch, norm_of(&call, DSC_LLAMA_NORM1, call.at.stats), normed, ctx->in));
    DSC_TRY(dsc_linear_run(launch, linear_of(config, Q), qk[0].raw, normed, NULL));
    DSC_TRY(dsc_linear_run(launch, linear_of(config, K), qk[1].raw, normed, NULL));
    DSC_TRY(dsc_linear_run(launch, linear_of(config, V), kv_rows_of(&call).v_new, normed, NULL));
    DSC_TRY(make_tables(&call, &call.at.heads));
    for (int i = 0; i < 2; i++)
        DSC_TRY(make_ready(&call, &call.at.heads, &qk[i]));
    DSC_TRY(attend(&call, qk));
    /* The residual is only read, as the epilogue says; the argument is not const because other epilogues write it. */
    DSC_TRY(dsc_linear_run(launch, linear_of(config, O), saved + call.at.middle, saved + call.at.attention,
                           (void *)(uintptr_t)ctx->in));
    DSC_TRY(forward_gate_up(&call));
    return forward_down(&call);
}

static dsc_status rebuild(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    block_call call;
    DSC_TRY(begin(module, ctx, &call, err));
    DSC_ASSERT(call.kept == NULL);
    return forward_gate_up(&call);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* A norm's output for backward: kept, or computed again into `narrow`. Its statistics are there too then. */
static dsc_status norm_again(const block_call *call, int32_t kind, const void *in, const void **normed)
{
    char *const narrow = call->scratch + call->at.narrow;
    *normed = normed_at(call, kind, narrow);
    if (call->kept != NULL)
        return DSC_OK;
    return dsc_norm_forward(&call->launch, norm_of(call, kind, call->at.back_stats), narrow, in);
}

/* ctx->d_in = residual + gradient through one of the two norms, whose statistics are in the scratch or kept. */
static dsc_status norm_backward(const block_call *call, int32_t kind, const void *residual, const void *in)
{
    const dsc_norm_gradient buffers = { .d_in = call->ctx->d_in, .d_out = call->scratch + call->at.narrow,
                                        .d_residual = residual, .in = in, .scratch = call->scratch + call->at.work };
    return dsc_norm_backward(&call->launch, norm_of(call, kind, call->at.back_stats), &buffers);
}

/* The weights' gradients of products that read `in`, and then, in `narrow`, which may be `in`, the gradient of `in`. */
static dsc_status products_backward(const block_call *call, int first, int count, const void *in, char *const *d_out)
{
    char *const narrow = call->scratch + call->at.narrow;
    for (int i = 0; i < count; i++)
        DSC_TRY(dsc_linear_gradients(&call->launch, linear_of(call->config, first + i), in, d_out[i]));
    for (int i = 0; i < count; i++)
        DSC_TRY(dsc_linear_backward(&call->launch, linear_of(call->config, first + i), narrow, d_out[i], narrow));
    return DSC_OK;
}

/* From d_out to the residual stream's gradient in the middle, in d_in. */
static dsc_status backward_mlp(const block_call *call)
{
    dsc_module_ctx *ctx = call->ctx;
    const dsc_llama_config *config = call->config;
    char *const wide = call->scratch + call->at.wide, *const middle = call->saved + call->at.middle;
    char *const again = call->kept == NULL ? wide : NULL; /* the activation's output, computed again */
    char *const gate_up[2] = { call->gate, call->up };
    const void *normed;
    DSC_TRY(dsc_linear_backward(&call->launch, linear_of(config, DOWN), wide, ctx->d_out, NULL));
    const dsc_swiglu_bwd_args gated = { .d_gate = gate_up[0],
                                        .d_up = gate_up[1],
                                        .out = again,
                                        .d_out = wide,
                                        .gate = gate_up[0],
                                        .up = gate_up[1],
                                        .rows = call->at.rows,
                                        .cols = config->inner,
                                        .in_stride = config->inner,
                                        .dtype = ctx->dtype };
    DSC_TRY(DSC_RUN(ctx->stream, SWIGLU_BWD, &gated, call->err));
    DSC_TRY(dsc_linear_gradients(&call->launch, linear_of(config, DOWN),
                                 again != NULL ? again : call->kept + call->at.kept_act, ctx->d_out));
    DSC_TRY(norm_again(call, DSC_LLAMA_NORM2, middle, &normed));
    DSC_TRY(products_backward(call, GATE, 2, normed, gate_up));
    return norm_backward(call, DSC_LLAMA_NORM2, ctx->d_out, middle);
}

/* dq, dk and dv of what the attention read. */
static dsc_status attend_backward(const block_call *call, const head_rows qk[2])
{
    const dsc_llama_config *config = call->config;
    const dsc_attention_bwd_args args = {
        .dq = qk[0].d, .dk = qk[1].d, .dv = call->scratch + call->at.dv, .d_out = call->scratch + call->at.narrow,
        .out = call->saved + call->at.attention, .lse = (const float *)(const void *)(call->saved + call->at.lse),
        .q = qk[0].ready, .k = qk[1].ready, .v = call->saved + call->at.v, .scratch = call->scratch + call->at.work,
        .q_stride = q_size(config), .kv_stride = kv_size(config), .out_stride = q_size(config),
        .batch = (int32_t)call->ctx->batch, .tokens = (int32_t)config->lm.sequence, .heads = (int32_t)config->heads,
        .kv_heads = (int32_t)config->kv_heads, .head_size = (int32_t)config->head_size,
        .scale = attention_scale(config), .keys = dsc_lm_keys(call->self, call->ctx), .dtype = call->ctx->dtype
    };
    return DSC_RUN(call->ctx->stream, ATTENTION_BWD, &args, call->err);
}

/* The gradient of what the product gave, from that of what the attention read; *d is where it lies. */
static dsc_status heads_backward(const block_call *call, const head_rows *of, char **d)
{
    DSC_TRY(apply_rope(call, &call->at.back_heads, of->d, of->heads, true));
    *d = of->d;
    if (of->ready == of->raw)
        return DSC_OK;
    const dsc_norm_gradient buffers = {
        .d_in = of->ready, .d_out = of->d, .in = of->raw, .scratch = call->scratch + call->at.work
    };
    *d = of->ready; /* the attention has read it */
    return dsc_norm_backward(&call->launch, head_norm_of(call, of), &buffers);
}

static dsc_status backward_attention(const block_call *call)
{
    dsc_module_ctx *ctx = call->ctx;
    const dsc_llama_config *config = call->config;
    char *const narrow = call->scratch + call->at.narrow, *const out = call->saved + call->at.attention;
    char *d_out[3] = { NULL, NULL, call->scratch + call->at.dv };
    const void *normed;
    head_rows qk[2];
    split_heads(call, &call->at.back_heads, qk);
    DSC_TRY(dsc_linear_gradients(&call->launch, linear_of(config, O), out, ctx->d_in));
    DSC_TRY(dsc_linear_backward(&call->launch, linear_of(config, O), narrow, ctx->d_in, NULL));
    DSC_TRY(make_tables(call, &call->at.back_heads));
    for (int i = 0; i < 2 && config->traits->head_norm && call->kept == NULL; i++)
        DSC_TRY(make_ready(call, &call->at.back_heads, &qk[i]));
    DSC_TRY(attend_backward(call, qk));
    for (int i = 0; i < 2; i++)
        DSC_TRY(heads_backward(call, &qk[i], &d_out[i]));
    DSC_TRY(norm_again(call, DSC_LLAMA_NORM1, ctx->in, &normed));
    DSC_TRY(products_backward(call, Q, 3, normed, d_out));
    return norm_backward(call, DSC_LLAMA_NORM1, ctx->d_in, ctx->in);
}

static dsc_status backward(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    block_call call;
    DSC_TRY(begin(module, ctx, &call, err));
    DSC_TRY(backward_mlp(&call));
    return backward_attention(&call);
}

const dsc_lm_block dsc_llama_block = { plan, forward, backward, rebuild };
