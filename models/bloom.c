/* bloom.c - BLOOM (Scao et al. 2022): slopes instead of positions, and a norm of the embedding.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/dense.h"

static const dsc_dense_traits traits = {
    .norm1 = "input_layernorm", .qkv = { "self_attention.query_key_value" }, .proj = "self_attention.dense",
    .norm2 = "post_attention_layernorm", .fc = "mlp.dense_h_to_4h", .out = "mlp.dense_4h_to_h",
    .kind = DSC_QKV_HEADS, .out_in = true
};

static const char *const lora_layers[] = { "query_key_value", NULL };

static dsc_status read_more(dsc_hf_config *reader, dsc_dense_config *out)
{
    /* Choices of kernels, and of the order of sums, that change no result but its rounding. */
    static const char *const kernels[] = { "attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion",
                                           "skip_bias_add", "skip_bias_add_qkv", "slow_but_exact" };
    bool is = false;
    double ignored = 0;
    out->scale_attention = out->attention_bias = true;
    out->alibi = 8;
    (void)dsc_hf_field(reader, "n_inner");
    if (out->inner != 4 * out->lm.channels || out->inner > DSC_LM_INNER_MAX)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "\"n_inner\" %lld is not built; what exists: four times "
                             "\"hidden_size\", up to %d", (long long)out->inner, DSC_LM_INNER_MAX);
    for (size_t i = 0; i < DSC_COUNT(kernels); i++)
        DSC_TRY(dsc_hf_bool(reader, kernels[i], false, &is));
    DSC_TRY(dsc_hf_number(reader, "offset_alibi", (dsc_hf_range){ 0, 1e9 }, 0, &ignored)); /* softmax takes it away */
    return dsc_hf_only(reader, "apply_residual_connection_post_layernorm", false);
}

/* Older files have other names of some sizes; where both are there, Hugging Face's code takes the later one here. */
static const dsc_dense_keys keys = {
    .block = &traits, .vocab = 250880, .positions = { { "seq_length" }, 2048, .null = 1 }, /* no limit */
    .layers = { { "n_layer", "num_hidden_layers" }, 2, .null = 2 },
    .channels = { { "hidden_size", "n_embed" }, 64, .null = 2 }, .inner = { { "n_inner" }, .null = 1 },
    .heads = { { "n_head", "num_attention_heads" }, 8, .null = 2 }, .eps = "layer_norm_epsilon", .eps_usual = 1e-5,
    .tied = true, .activation_usual = DSC_GELU_TANH, .dropouts = { "hidden_dropout", "attention_dropout" },
    .read_more = read_more
};

const dsc_lm_family dsc_bloom_family = {
    DSC_DENSE_FAMILY("bloom", keys), .layers_key = "n_layer", .base = "transformer.", .layer = "h.",
    .token_table = "word_embeddings.weight", .embed_norm = "word_embeddings_layernorm", .head_table = "lm_head.weight",
    .final_norm = "ln_f", .lora_layers = lora_layers
};
