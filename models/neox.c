/* neox.c - GPT-NeoX (Black et al. 2022), Pythia among them: its names, and its config.json as Hugging Face writes it.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/dense.h"

const dsc_dense_traits dsc_neox_traits = {
    .norm1 = "input_layernorm", .qkv = { "attention.query_key_value" }, .proj = "attention.dense",
    .norm2 = "post_attention_layernorm", .fc = "mlp.dense_h_to_4h", .out = "mlp.dense_4h_to_h",
    .kind = DSC_QKV_HEADS, .out_in = true, .rotary = true
};

static const char *const lora_layers[] = { "query_key_value", NULL };

/* Causal masks and frequencies, which older versions saved. */
static const char *const may_ignore[] = { "attention.bias", "attention.masked_bias", "attention.rotary_emb.inv_freq",
                                          NULL };

const dsc_lm_family dsc_neox_family = {
    .model_type = "gpt_neox", .layers_key = "num_hidden_layers", .base = "gpt_neox.", .layer = "layers.",
    .token_table = "embed_in.weight", .head_table = "embed_out.weight", .final_norm = "final_layer_norm",
    .norm = DSC_NORM_LAYER, .config_bytes = sizeof(dsc_dense_config), .read_config = dsc_neox_read_config,
    .emit_block = dsc_dense_emit_block, .lora_layers = lora_layers, .may_ignore = may_ignore
};

dsc_status dsc_neox_read_config(dsc_hf_config *reader, dsc_lm_config *lm)
{
    static const char *const dropouts[] = { "hidden_dropout", "attention_dropout", "classifier_dropout" };
    dsc_dense_config *out = (dsc_dense_config *)(void *)lm;
    out->traits = &dsc_neox_traits;
    out->scale_attention = true;
    DSC_TRY(dsc_hf_int(reader, "vocab_size", DSC_LM_VOCAB_MAX, 50432, &lm->vocab));
    DSC_TRY(dsc_hf_int(reader, "max_position_embeddings", DSC_LM_POSITIONS_MAX, 2048, &lm->positions));
    DSC_TRY(dsc_hf_int(reader, "num_hidden_layers", DSC_LM_LAYERS_MAX, 44, &lm->layers));
    DSC_TRY(dsc_hf_int(reader, "hidden_size", DSC_LM_CHANNELS_MAX, 6144, &lm->channels));
    DSC_TRY(dsc_hf_int(reader, "intermediate_size", DSC_LM_INNER_MAX, 24576, &out->inner));
    DSC_TRY(dsc_hf_int(reader, "num_attention_heads", DSC_LM_CHANNELS_MAX, 64, &out->heads));
    DSC_TRY(dsc_dense_check_heads(reader, out, "hidden_size", "num_attention_heads"));
    if (lm->channels / out->heads > 2 * DSC_ROPE_PAIRS_MAX)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "heads of %lld elements are not built; what exists: up to %d",
                             (long long)(lm->channels / out->heads), 2 * DSC_ROPE_PAIRS_MAX);
    int64_t turned = 0;
    DSC_TRY(dsc_hf_int_or_null(reader, "head_dim", DSC_LM_CHANNELS_MAX, lm->channels / out->heads, &turned));
    if (turned != lm->channels / out->heads) /* transformers takes it for positions alone */
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                             "\"head_dim\" %lld is not built for gpt_neox; what exists: %lld, which is \"hidden_size\" "
                             "by \"num_attention_heads\"",
                             (long long)turned, (long long)(lm->channels / out->heads));
    DSC_TRY(dsc_hf_number(reader, "layer_norm_eps", (dsc_hf_range){ 1e-30, 1 }, 1e-5, &lm->norm_eps));
    DSC_TRY(dsc_hf_number(reader, "initializer_range", (dsc_hf_range){ 0, 1000 }, 0.02, &lm->init_std));
    DSC_TRY(dsc_hf_bool(reader, "tie_word_embeddings", false, &lm->tied));
    DSC_TRY(dsc_hf_bool(reader, "use_parallel_residual", true, &out->parallel));
    DSC_TRY(dsc_hf_bool(reader, "attention_bias", true, &out->attention_bias));
    DSC_TRY(dsc_dense_read_activation(reader, "hidden_act", DSC_GELU_ERF, &out->activation));
    const dsc_rope_keys keys = { .theta = "rotary_emb_base", .partial = "rotary_pct", .partial_default = 0.25,
                                 .positions = lm->positions, .head_size = lm->channels / out->heads };
    DSC_TRY(dsc_rope_read(reader, &keys, &out->rope));
    lm->short_positions = dsc_rope_short_positions(&out->rope);
    return dsc_dense_read_dropout(reader, dropouts, 2, 0);
}
