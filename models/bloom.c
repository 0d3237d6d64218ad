/* bloom.c - BLOOM (Scao et al. 2022): slopes instead of positions, and a norm of the embedding.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "models/dense.h"

static const dsc_dense_traits traits = {
    .norm1 = "input_layernorm", .qkv = { "self_attention.query_key_value" }, .proj = "self_attention.dense",
    .norm2 = "post_attention_layernorm", .fc = "mlp.dense_h_to_4h", .out = "mlp.dense_4h_to_h",
    .kind = DSC_QKV_HEADS, .out_in = true
};

static const char *const lora_layers[] = { "query_key_value", NULL };

/* Older files have other names of some keys; where both are there, Hugging Face's code takes the one that is `wins`. */
static dsc_status read_either(dsc_hf_config *reader, const char *other, const char *wins, int64_t max, int64_t fallback,
                              int64_t *out)
{
    DSC_TRY(dsc_hf_int(reader, other, max, fallback, out));
    return dsc_hf_int_or_null(reader, wins, max, *out, out);
}

static dsc_status read_sizes(dsc_hf_config *reader, dsc_dense_config *out)
{
    dsc_lm_config *lm = &out->lm;
    int64_t inner = 0;
    DSC_TRY(dsc_hf_int(reader, "vocab_size", DSC_LM_VOCAB_MAX, 250880, &lm->vocab));
    DSC_TRY(dsc_hf_int_or_null(reader, "seq_length", DSC_LM_POSITIONS_MAX, 2048, &lm->positions)); /* no limit */
    DSC_TRY(read_either(reader, "n_layer", "num_hidden_layers", DSC_LM_LAYERS_MAX, 2, &lm->layers));
    DSC_TRY(read_either(reader, "hidden_size", "n_embed", DSC_LM_CHANNELS_MAX, 64, &lm->channels));
    DSC_TRY(read_either(reader, "n_head", "num_attention_heads", DSC_LM_CHANNELS_MAX, 8, &out->heads));
    DSC_TRY(dsc_dense_check_heads(reader, out, "hidden_size", "n_head"));
    out->inner = 4 * lm->channels;
    DSC_TRY(dsc_hf_int_or_null(reader, "n_inner", DSC_LM_INNER_MAX, out->inner, &inner));
    if (inner != out->inner || inner > DSC_LM_INNER_MAX)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "\"n_inner\" %lld is not built; what exists: four times "
                             "\"hidden_size\", up to %d", (long long)inner, DSC_LM_INNER_MAX);
    return DSC_OK;
}

static dsc_status read_config(dsc_hf_config *reader, dsc_lm_config *lm)
{
    static const char *const dropouts[] = { "hidden_dropout", "attention_dropout" };
    /* Choices of kernels, and of the order of sums, that change no result but its rounding. */
    static const char *const kernels[] = { "attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion",
                                           "skip_bias_add", "skip_bias_add_qkv", "slow_but_exact" };
    dsc_dense_config *out = (dsc_dense_config *)(void *)lm;
    bool is = false;
    double ignored = 0;
    out->traits = &traits;
    out->scale_attention = out->attention_bias = true;
    out->alibi = 8;
    out->activation = DSC_GELU_TANH;
    DSC_TRY(read_sizes(reader, out));
    DSC_TRY(dsc_hf_number(reader, "layer_norm_epsilon", (dsc_hf_range){ 1e-30, 1 }, 1e-5, &lm->norm_eps));
    DSC_TRY(dsc_hf_number(reader, "initializer_range", (dsc_hf_range){ 0, 1000 }, 0.02, &lm->init_std));
    DSC_TRY(dsc_hf_bool(reader, "tie_word_embeddings", true, &lm->tied));
    for (size_t i = 0; i < DSC_COUNT(kernels); i++)
        DSC_TRY(dsc_hf_bool(reader, kernels[i], false, &is));
    DSC_TRY(dsc_hf_number(reader, "offset_alibi", (dsc_hf_range){ 0, 1e9 }, 0, &ignored)); /* softmax takes it away */
    DSC_TRY(dsc_hf_bool(reader, "apply_residual_connection_post_layernorm", false, &is));
    if (is)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "\"apply_residual_connection_post_layernorm\": true is not "
                             "built; what exists: false");
    return dsc_dense_read_dropout(reader, dropouts, DSC_COUNT(dropouts), 0);
}

const dsc_lm_family dsc_bloom_family = {
    .model_type = "bloom", .layers_key = "n_layer", .base = "transformer.", .layer = "h.",
    .token_table = "word_embeddings.weight", .embed_norm = "word_embeddings_layernorm", .head_table = "lm_head.weight",
    .final_norm = "ln_f", .norm = DSC_NORM_LAYER, .config_bytes = sizeof(dsc_dense_config),
    .read_config = read_config, .emit_block = dsc_dense_emit_block,
    .lora_layers = lora_layers
};
