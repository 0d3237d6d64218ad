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

static dsc_status read_more(dsc_hf_config *reader, dsc_dense_config *out)
{
    out->scale_attention = out->parallel = true;
    DSC_TRY(read_rotary(reader, out));
    DSC_TRY(dsc_hf_only(reader, "rotary", true));
    return dsc_hf_only(reader, "scale_attn_weights", true);
}

/* Of two names of a size, the one that other models have goes before GPT-J's own. */
static const dsc_dense_keys keys = {
    .block = &traits, .vocab = 50400,
    .positions = { .key = { "n_positions", "max_position_embeddings" }, .usual = 2048 },
    .layers = { .key = { "n_layer", "num_hidden_layers" }, .usual = 28 },
    .channels = { .key = { "n_embd", "hidden_size" }, .usual = 4096 },
    .inner = { { "n_inner" }, .null = 1 }, .heads = { .key = { "n_head", "num_attention_heads" }, .usual = 16 },
    .eps = "layer_norm_epsilon", .eps_usual = 1e-5, .activation = "activation_function",
    .activation_usual = DSC_GELU_TANH, .dropouts = { "resid_pdrop", "embd_pdrop", "attn_pdrop" }, .read_more = read_more
};

const dsc_lm_family dsc_gptj_family = {
    DSC_DENSE_FAMILY("gptj", keys), .layers_key = "n_layer", .base = "transformer.", .layer = "h.",
    .token_table = "wte.weight", .head_table = "lm_head.weight", .head_bias = "lm_head.bias", .final_norm = "ln_f",
    .lora_layers = lora_layers, .may_ignore = may_ignore
};
