/* gpt2_config.c - config.json of GPT-2 as Hugging Face writes it. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "models/dense.h"

/* Under GPT-2's own name, or the one that other models have, which goes before it. */
static dsc_status read_size(dsc_hf_config *reader, const char *own, const char *common, int64_t max, int64_t fallback,
                            int64_t *out)
{
    DSC_TRY(dsc_hf_int(reader, own, max, fallback, out));
    return dsc_hf_int(reader, common, max, *out, out);
}

static dsc_status read_sizes(dsc_hf_config *reader, dsc_dense_config *out)
{
    dsc_lm_config *lm = &out->lm;
    int64_t context = 0;
    DSC_TRY(dsc_hf_int(reader, "vocab_size", DSC_LM_VOCAB_MAX, 50257, &lm->vocab));
    DSC_TRY(dsc_hf_int_or_null(reader, "n_ctx", DSC_LM_POSITIONS_MAX, 1024, &context)); /* the older name */
    DSC_TRY(read_size(reader, "n_positions", "max_position_embeddings", DSC_LM_POSITIONS_MAX, context, &lm->positions));
    DSC_TRY(read_size(reader, "n_layer", "num_hidden_layers", DSC_LM_LAYERS_MAX, 12, &lm->layers));
    DSC_TRY(read_size(reader, "n_embd", "hidden_size", DSC_LM_CHANNELS_MAX, 768, &lm->channels));
    DSC_TRY(dsc_hf_int_or_null(reader, "n_inner", DSC_LM_INNER_MAX, 4 * lm->channels, &out->inner));
    DSC_TRY(read_size(reader, "n_head", "num_attention_heads", DSC_LM_CHANNELS_MAX, 12, &out->heads));
    return dsc_dense_check_heads(reader, out, "n_embd", "n_head");
}

dsc_status dsc_gpt2_read_config(dsc_hf_config *reader, dsc_lm_config *lm)
{
    static const char *const dropouts[] = { "resid_pdrop", "embd_pdrop", "attn_pdrop" };
    dsc_dense_config *out = (dsc_dense_config *)(void *)lm;
    bool upcast = false;
    out->traits = &dsc_gpt2_traits;
    out->attention_bias = true;
    DSC_TRY(read_sizes(reader, out));
    DSC_TRY(dsc_hf_number(reader, "layer_norm_epsilon", (dsc_hf_range){ 1e-30, 1 }, 1e-5, &lm->norm_eps));
    DSC_TRY(dsc_hf_number(reader, "initializer_range", (dsc_hf_range){ 0, 1000 }, 0.02, &lm->init_std));
    DSC_TRY(dsc_hf_bool(reader, "scale_attn_weights", true, &out->scale_attention));
    DSC_TRY(dsc_hf_bool(reader, "scale_attn_by_inverse_layer_idx", false, &out->scale_attention_by_layer));
    DSC_TRY(dsc_hf_bool(reader, "reorder_and_upcast_attn", false, &upcast)); /* scores are fp32 here in any case */
    DSC_TRY(dsc_hf_bool(reader, "tie_word_embeddings", true, &lm->tied));
    DSC_TRY(dsc_dense_read_activation(reader, "activation_function", DSC_GELU_TANH, &out->activation));
    return dsc_dense_read_dropout(reader, dropouts, DSC_COUNT(dropouts), 0.1);
}

int dsc_gpt2_write_config(const dsc_lm_config *lm, char *out, size_t bytes)
{
    const dsc_dense_config *config = (const dsc_dense_config *)(const void *)lm;
    char eps[32], std[32];
    return snprintf(
        out, bytes,
        "{\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"model_type\": \"gpt2\",\n"
        "  \"activation_function\": \"%s\",\n"
        "  \"vocab_size\": %lld,\n  \"n_positions\": %lld,\n  \"n_embd\": %lld,\n  \"n_layer\": %lld,\n"
        "  \"n_head\": %lld,\n"
        "  \"n_inner\": %lld,\n  \"layer_norm_epsilon\": %s,\n  \"initializer_range\": %s,\n"
        "  \"attn_pdrop\": 0.0,\n  \"embd_pdrop\": 0.0,\n  \"resid_pdrop\": 0.0,\n"
        "  \"scale_attn_weights\": %s,\n  \"scale_attn_by_inverse_layer_idx\": %s,\n  \"tie_word_embeddings\": %s\n}\n",
        dsc_dense_activation_name(config->activation), (long long)lm->vocab_rows, (long long)lm->positions,
        (long long)lm->channels, (long long)lm->layers,
        (long long)config->heads, (long long)config->inner, dsc_hf_number_text(lm->norm_eps, eps, sizeof eps),
        dsc_hf_number_text(lm->init_std, std, sizeof std), config->scale_attention ? "true" : "false",
        config->scale_attention_by_layer ? "true" : "false", lm->tied ? "true" : "false");
}
