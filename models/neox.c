/* neox.c - GPT-NeoX (Black et al. 2022), Pythia among them: its names, and its config.json as Hugging Face writes it.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/dense.h"

static const dsc_dense_traits traits = {
    .norm1 = "input_layernorm", .qkv = { "attention.query_key_value" }, .proj = "attention.dense",
    .norm2 = "post_attention_layernorm", .fc = "mlp.dense_h_to_4h", .out = "mlp.dense_4h_to_h",
    .kind = DSC_QKV_HEADS, .out_in = true, .rotary = true
};

static const char *const lora_layers[] = { "query_key_value", NULL };

/* Causal masks and frequencies, which older versions saved. */
static const char *const may_ignore[] = { "attention.bias", "attention.masked_bias", "attention.rotary_emb.inv_freq",
                                          NULL };

static dsc_status read_more(dsc_hf_config *reader, dsc_dense_config *out)
{
    const int64_t head_size = out->lm.channels / out->heads;
    int64_t turned = 0;
    out->scale_attention = true;
    DSC_TRY(dsc_hf_int_or_null(reader, "head_dim", DSC_LM_CHANNELS_MAX, head_size, &turned));
    if (turned != head_size) /* transformers takes it for positions alone */
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                             "\"head_dim\" %lld is not built for gpt_neox; what exists: %lld, which is \"hidden_size\" "
                             "by \"num_attention_heads\"",
                             (long long)turned, (long long)head_size);
    DSC_TRY(dsc_hf_bool(reader, "use_parallel_residual", true, &out->parallel));
    DSC_TRY(dsc_hf_bool(reader, "attention_bias", true, &out->attention_bias));
    return dsc_dense_read_rope(reader, out, "rotary_emb_base", "rotary_pct", 0.25);
}

static const dsc_dense_keys keys = {
    .block = &traits, .vocab = 50432, .positions = { .usual = 2048 }, .layers = { .usual = 44 },
    .channels = { .usual = 6144 }, .inner = { .usual = 24576 }, .heads = { .usual = 64 },
    .head_max = 2 * DSC_ROPE_PAIRS_MAX, .eps = "layer_norm_eps", .eps_usual = 1e-5, .activation = "hidden_act",
    .activation_usual = DSC_GELU_ERF, .dropouts = { "hidden_dropout", "attention_dropout" }, .read_more = read_more
};

const dsc_lm_family dsc_neox_family = {
    DSC_DENSE_FAMILY("gpt_neox", keys), .layers_key = "num_hidden_layers", .base = "gpt_neox.", .layer = "layers.",
    .token_table = "embed_in.weight", .head_table = "embed_out.weight", .final_norm = "final_layer_norm",
    .lora_layers = lora_layers, .may_ignore = may_ignore
};
