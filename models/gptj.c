/* gptj.c - GPT-J (Wang and Komatsuzaki 2021): attention and MLP read one norm, and neighbouring elements of a part of
 * each head turn. SPDX-License-Identifier: Apache-2.0 */
#include "models/dense.h"

static const dsc_dense_traits traits = {
    .norm1 = "ln_1", .qkv = { "attn.q_proj", "attn.k_proj", "attn.v_proj" }, .proj = "attn.out_proj",
    .fc = "mlp.fc_in", .out = "mlp.fc_out", .kind = DSC_QKV_APART, .out_in = true, .rotary = true
};

static const char *const lora_layers[] = { "q_proj", "v_proj", NULL };

/* Causal masks, which older versions saved. */
static const char *const may_ignore[] = { "attn.bias", "attn.masked_bias", NULL };

/* Under GPT-J's own name, or the one that other models have, which goes before it. */
static dsc_status read_size(dsc_hf_config *reader, const char *own, const char *common, int64_t max, int64_t fallback,
                            int64_t *out)
{
    DSC_TRY(dsc_hf_int(reader, own, max, fallback, out));
    return dsc_hf_int(reader, common, max, *out, out);
}

static dsc_status read_rotary(dsc_hf_config *reader, dsc_dense_config *out)
{
    const int64_t head = out->lm.channels / out->heads;
    int64_t size = 0;
    DSC_TRY(dsc_hf_int(reader, "rotary_dim", DSC_LM_CHANNELS_MAX, 64, &size));
    if (size > head || size % 2 != 0 || size > 2 * DSC_ROPE_PAIRS_MAX)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "\"rotary_dim\" %lld of a head's %lld elements is not built; "
                             "what exists: even numbers up to the head's and to %d", (long long)size, (long long)head,
                             2 * DSC_ROPE_PAIRS_MAX);
    out->rope = (dsc_rope){ .kind = DSC_ROPE_DEFAULT, .theta = 10000, .neighbours = true };
    dsc_rope_set(&out->rope, size);
    return DSC_OK;
}

static dsc_status read_config(dsc_hf_config *reader, dsc_lm_config *lm)
{
    static const char *const dropouts[] = { "resid_pdrop", "embd_pdrop", "attn_pdrop" };
    static const char *const built[] = { "rotary", "scale_attn_weights" };
    dsc_dense_config *out = (dsc_dense_config *)(void *)lm;
    out->traits = &traits;
    out->scale_attention = out->parallel = true;
    DSC_TRY(dsc_hf_int(reader, "vocab_size", DSC_LM_VOCAB_MAX, 50400, &lm->vocab));
    DSC_TRY(read_size(reader, "n_positions", "max_position_embeddings", DSC_LM_POSITIONS_MAX, 2048, &lm->positions));
    DSC_TRY(read_size(reader, "n_layer", "num_hidden_layers", DSC_LM_LAYERS_MAX, 28, &lm->layers));
    DSC_TRY(read_size(reader, "n_embd", "hidden_size", DSC_LM_CHANNELS_MAX, 4096, &lm->channels));
    DSC_TRY(read_size(reader, "n_head", "num_attention_heads", DSC_LM_CHANNELS_MAX, 16, &out->heads));
    DSC_TRY(dsc_hf_int_or_null(reader, "n_inner", DSC_LM_INNER_MAX, 4 * lm->channels, &out->inner));
    DSC_TRY(dsc_dense_check_heads(reader, out, "n_embd", "n_head"));
    DSC_TRY(read_rotary(reader, out));
    for (size_t i = 0; i < DSC_COUNT(built); i++) {
        bool is = true;
        DSC_TRY(dsc_hf_bool(reader, built[i], true, &is));
        if (!is)
            return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "\"%s\": false is not built; what exists: true",
                                 built[i]);
    }
    DSC_TRY(dsc_hf_number(reader, "layer_norm_epsilon", (dsc_hf_range){ 1e-30, 1 }, 1e-5, &lm->norm_eps));
    DSC_TRY(dsc_hf_number(reader, "initializer_range", (dsc_hf_range){ 0, 1000 }, 0.02, &lm->init_std));
    DSC_TRY(dsc_hf_bool(reader, "tie_word_embeddings", false, &lm->tied));
    DSC_TRY(dsc_dense_read_activation(reader, "activation_function", DSC_GELU_TANH, &out->activation));
    return dsc_dense_read_dropout(reader, dropouts, DSC_COUNT(dropouts), 0);
}

const dsc_lm_family dsc_gptj_family = {
    .model_type = "gptj", .layers_key = "n_layer", .base = "transformer.", .layer = "h.", .token_table = "wte.weight",
    .head_table = "lm_head.weight", .head_bias = "lm_head.bias", .final_norm = "ln_f", .norm = DSC_NORM_LAYER,
    .config_bytes = sizeof(dsc_dense_config), .read_config = read_config,
    .emit_block = dsc_dense_emit_block, .lora_layers = lora_layers, .may_ignore = may_ignore
};
