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
    return dsc_dense_read_rope(reader, out, "rope_theta", NULL, 1);
}

static dsc_status read_more(dsc_hf_config *reader, dsc_dense_config *out)
{
    bool newer = false, one_key = true, bias = false;
    out->scale_attention = true;
    DSC_TRY(dsc_hf_bool(reader, "new_decoder_architecture", false, &newer));
    DSC_TRY(dsc_hf_only(reader, "apply_residual_connection_post_layernorm", false));
    DSC_TRY(dsc_hf_bool(reader, "multi_query", true, &one_key));
    DSC_TRY(dsc_hf_bool(reader, "parallel_attn", true, &out->parallel));
    DSC_TRY(dsc_hf_bool(reader, "bias", false, &bias));
    out->attention_bias = bias;
    out->bare_mlp = !bias;
    DSC_TRY(newer ? read_newer(reader, out) : read_older(reader, out, one_key));
    return read_places(reader, out);
}

/* Older files have other names of some sizes; where both are there, the older one goes before it. */
static const dsc_dense_keys keys = {
    .vocab = 65024, .positions = { .usual = 2048 }, .layers = { .usual = 32 },
    .channels = { { "hidden_size", "n_embed" }, 4544, .null = 2 }, .inner = { { "ffn_hidden_size" }, .null = 1 },
    .heads = { .usual = 71 }, .head_max = 2 * DSC_ROPE_PAIRS_MAX, .eps = "layer_norm_epsilon", .eps_usual = 1e-5,
    .tied = true, .activation = "activation", .activation_usual = DSC_GELU_ERF,
    .dropouts = { "hidden_dropout", "attention_dropout" }, .read_more = read_more
};

const dsc_lm_family dsc_falcon_family = {
    DSC_DENSE_FAMILY("falcon", keys), .layers_key = "num_hidden_layers", .base = "transformer.", .layer = "h.",
    .token_table = "word_embeddings.weight", .head_table = "lm_head.weight", .final_norm = "ln_f",
    .lora_layers = lora_layers, .may_ignore = may_ignore
};
