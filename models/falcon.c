/* falcon.c - Falcon (Almazrouei et al. 2023). 7B has one key head, and attention and MLP read one norm. The newer
 * blocks of 40B, 180B and Falcon 2 group the fused product by key heads, and may have a norm for each of the two parts.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "models/dense.h"

static const char *const lora_layers[] = { "query_key_value", NULL };

#define FALCON_TRAITS                                                                                                  \
    .qkv = { "self_attention.query_key_value" }, .proj = "self_attention.dense", .fc = "mlp.dense_h_to_4h",            \
    .out = "mlp.dense_4h_to_h", .out_in = true, .rotary = true
#define ONE_NORM FALCON_TRAITS, .norm1 = "input_layernorm"
#define TWO_NORMS FALCON_TRAITS, .norm1 = "ln_attn", .norm2 = "ln_mlp"

/* [multi_query][parallel_attn] */
static const dsc_dense_traits traits[2][2] = {
    { { ONE_NORM, .kind = DSC_QKV_HEADS, .norm2 = "post_attention_layernorm" }, { ONE_NORM, .kind = DSC_QKV_HEADS } },
    { { ONE_NORM, .kind = DSC_QKV_PARTS, .norm2 = "post_attention_layernorm" }, { ONE_NORM, .kind = DSC_QKV_PARTS } },
};
/* Of newer blocks. One group lies as q, k and v; groups of one query head lie as heads. [kind][norms - 1] */
static const dsc_dense_traits newer_traits[3][2] = {
    { { ONE_NORM, .kind = DSC_QKV_PARTS }, { TWO_NORMS, .kind = DSC_QKV_PARTS } },
    { { ONE_NORM, .kind = DSC_QKV_HEADS }, { TWO_NORMS, .kind = DSC_QKV_HEADS } },
    { { ONE_NORM, .kind = DSC_QKV_GROUPS }, { TWO_NORMS, .kind = DSC_QKV_GROUPS } },
};

static const char *const may_ignore[] = { "self_attention.rotary_emb.inv_freq", NULL };

/* Older files have other names of some keys; where both are there, the older one goes before it. */
static dsc_status read_either(dsc_hf_config *reader, const char *key, const char *older, int64_t max, int64_t fallback,
                              int64_t *out)
{
    DSC_TRY(dsc_hf_int(reader, key, max, fallback, out));
    return older != NULL ? dsc_hf_int_or_null(reader, older, max, *out, out) : DSC_OK;
}

static dsc_status read_sizes(dsc_hf_config *reader, dsc_dense_config *out)
{
    dsc_lm_config *lm = &out->lm;
    DSC_TRY(dsc_hf_int(reader, "vocab_size", DSC_LM_VOCAB_MAX, 65024, &lm->vocab));
    DSC_TRY(dsc_hf_int(reader, "max_position_embeddings", DSC_LM_POSITIONS_MAX, 2048, &lm->positions));
    DSC_TRY(dsc_hf_int(reader, "num_hidden_layers", DSC_LM_LAYERS_MAX, 32, &lm->layers));
    DSC_TRY(read_either(reader, "hidden_size", "n_embed", DSC_LM_CHANNELS_MAX, 4544, &lm->channels));
    DSC_TRY(dsc_hf_int(reader, "num_attention_heads", DSC_LM_CHANNELS_MAX, 71, &out->heads));
    DSC_TRY(dsc_hf_int_or_null(reader, "ffn_hidden_size", DSC_LM_INNER_MAX, 4 * lm->channels, &out->inner));
    DSC_TRY(dsc_dense_check_heads(reader, out, "hidden_size", "num_attention_heads"));
    if (lm->channels / out->heads > 2 * DSC_ROPE_PAIRS_MAX)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "heads of %lld elements are not built; what exists: up to %d",
                             (long long)(lm->channels / out->heads), 2 * DSC_ROPE_PAIRS_MAX);
    return DSC_OK;
}

/* The newer blocks, which are parallel and have any number of key heads. */
static dsc_status read_newer(dsc_hf_config *reader, dsc_dense_config *out)
{
    int64_t norms = 2;
    DSC_TRY(dsc_hf_int_or_null(reader, "num_kv_heads", DSC_LM_CHANNELS_MAX, out->heads, &out->kv_heads));
    DSC_TRY(dsc_hf_int_or_null(reader, "num_ln_in_parallel_attn", 2, 2, &norms));
    if (out->heads % out->kv_heads != 0)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT,
                             "\"num_attention_heads\" %lld is not a multiple of \"num_kv_heads\" %lld",
                             (long long)out->heads, (long long)out->kv_heads);
    if (!out->parallel)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"new_decoder_architecture\" needs \"parallel_attn\": true");
    const int kind = out->kv_heads == 1 ? 0 : out->kv_heads == out->heads ? 1 : 2;
    out->traits = &newer_traits[kind][norms - 1];
    return DSC_OK;
}

static dsc_status read_older(dsc_hf_config *reader, dsc_dense_config *out, bool one_key)
{
    int64_t kv_heads = out->heads, norms = 0;
    DSC_TRY(dsc_hf_int_or_null(reader, "num_kv_heads", DSC_LM_CHANNELS_MAX, out->heads, &kv_heads));
    DSC_TRY(dsc_hf_int_or_null(reader, "num_ln_in_parallel_attn", 2, 1, &norms)); /* of the newer blocks only */
    if (!one_key && kv_heads != out->heads)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "\"num_kv_heads\" %lld of %lld heads is not built without "
                             "\"multi_query\"; what exists: as many as heads", (long long)kv_heads,
                             (long long)out->heads);
    out->kv_heads = one_key ? 1 : 0;
    out->traits = &traits[one_key][out->parallel];
    return DSC_OK;
}

/* Slopes in place of rotary positions (Falcon RW): their addends are rounded to bf16 and scaled as scores are. */
static dsc_status read_places(dsc_hf_config *reader, dsc_dense_config *out)
{
    dsc_lm_config *lm = &out->lm;
    bool alibi = false;
    DSC_TRY(dsc_hf_bool(reader, "alibi", false, &alibi));
    if (alibi) {
        out->alibi = 8;
        out->alibi_of_key = 1 / sqrt((double)(lm->channels / out->heads));
        return DSC_OK;
    }
    const dsc_rope_keys keys = { .theta = "rope_theta", .positions = lm->positions,
                                 .head_size = lm->channels / out->heads, .partial_default = 1 };
    DSC_TRY(dsc_rope_read(reader, &keys, &out->rope));
    lm->short_positions = dsc_rope_short_positions(&out->rope);
    return DSC_OK;
}

static dsc_status read_parts(dsc_hf_config *reader, dsc_dense_config *out)
{
    bool newer = false, one_key = true, bias = false, behind = false;
    DSC_TRY(dsc_hf_bool(reader, "new_decoder_architecture", false, &newer));
    DSC_TRY(dsc_hf_bool(reader, "apply_residual_connection_post_layernorm", false, &behind));
    if (behind)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "\"apply_residual_connection_post_layernorm\": true is not "
                             "built; what exists: false");
    DSC_TRY(dsc_hf_bool(reader, "multi_query", true, &one_key));
    DSC_TRY(dsc_hf_bool(reader, "parallel_attn", true, &out->parallel));
    DSC_TRY(dsc_hf_bool(reader, "bias", false, &bias));
    out->attention_bias = bias;
    out->bare_mlp = !bias;
    return newer ? read_newer(reader, out) : read_older(reader, out, one_key);
}

static dsc_status read_config(dsc_hf_config *reader, dsc_lm_config *lm)
{
    static const char *const dropouts[] = { "hidden_dropout", "attention_dropout" };
    dsc_dense_config *out = (dsc_dense_config *)(void *)lm;
    out->scale_attention = true;
    DSC_TRY(read_sizes(reader, out));
    DSC_TRY(read_parts(reader, out));
    DSC_TRY(dsc_hf_number(reader, "layer_norm_epsilon", (dsc_hf_range){ 1e-30, 1 }, 1e-5, &lm->norm_eps));
    DSC_TRY(dsc_hf_number(reader, "initializer_range", (dsc_hf_range){ 0, 1000 }, 0.02, &lm->init_std));
    DSC_TRY(dsc_hf_bool(reader, "tie_word_embeddings", true, &lm->tied));
    DSC_TRY(dsc_dense_read_activation(reader, "activation", DSC_GELU_ERF, &out->activation));
    DSC_TRY(read_places(reader, out));
    return dsc_dense_read_dropout(reader, dropouts, DSC_COUNT(dropouts), 0);
}

const dsc_lm_family dsc_falcon_family = {
    .model_type = "falcon", .layers_key = "num_hidden_layers", .base = "transformer.", .layer = "h.",
    .token_table = "word_embeddings.weight", .head_table = "lm_head.weight", .final_norm = "ln_f",
    .norm = DSC_NORM_LAYER, .config_bytes = sizeof(dsc_dense_config), .read_config = read_config,
    .emit_block = dsc_dense_emit_block, .lora_layers = lora_layers,
    .may_ignore = may_ignore
};
