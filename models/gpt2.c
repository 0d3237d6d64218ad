/* gpt2.c - GPT-2 (Radford et al. 2019): its names, and its config.json as Hugging Face writes it.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "models/dense.h"

const dsc_dense_traits dsc_gpt2_traits = {
    .norm1 = "ln_1", .qkv = { "attn.c_attn" }, .proj = "attn.c_proj", .norm2 = "ln_2", .fc = "mlp.c_fc",
    .out = "mlp.c_proj", .kind = DSC_QKV_PARTS, .scaled_init = true
};

static const char *const lora_layers[] = { "c_attn", NULL };

/* Causal masks, which older versions saved. */
static const char *const may_ignore[] = { "attn.bias", "attn.masked_bias", NULL };

static dsc_status read_more(dsc_hf_config *reader, dsc_dense_config *out)
{
    bool upcast = false;
    out->attention_bias = true;
    DSC_TRY(dsc_hf_bool(reader, "scale_attn_weights", true, &out->scale_attention));
    DSC_TRY(dsc_hf_bool(reader, "scale_attn_by_inverse_layer_idx", false, &out->scale_attention_by_layer));
    return dsc_hf_bool(reader, "reorder_and_upcast_attn", false, &upcast); /* scores are fp32 here in any case */
}

/* Of two names of a size, the one that other models have goes before GPT-2's own. */
static const dsc_dense_keys keys = {
    .block = &dsc_gpt2_traits, .vocab = 50257,
    .positions = { { "n_ctx", "n_positions", "max_position_embeddings" }, 1024, .null = 1 },
    .layers = { .key = { "n_layer", "num_hidden_layers" }, .usual = 12 },
    .channels = { .key = { "n_embd", "hidden_size" }, .usual = 768 },
    .inner = { { "n_inner" }, .null = 1 }, .heads = { .key = { "n_head", "num_attention_heads" }, .usual = 12 },
    .eps = "layer_norm_epsilon", .eps_usual = 1e-5, .tied = true, .activation = "activation_function",
    .activation_usual = DSC_GELU_TANH, .dropouts = { "resid_pdrop", "embd_pdrop", "attn_pdrop" }, .dropout_usual = 0.1,
    .read_more = read_more
};

static int write_config(const dsc_lm_config *lm, char *out, size_t bytes)
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

const dsc_lm_family dsc_gpt2_family = {
    DSC_DENSE_FAMILY("gpt2", keys), .layers_key = "n_layer", .base = "transformer.", .layer = "h.",
    .token_table = "wte.weight", .position_table = "wpe.weight", .head_table = "lm_head.weight", .final_norm = "ln_f",
    .write_config = write_config, .builtin = dsc_gpt2_builtin, .lora_layers = lora_layers, .may_ignore = may_ignore,
    .in_out = true, .shared_out = true
};
