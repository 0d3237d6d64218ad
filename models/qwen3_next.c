/* qwen3_next.c - see qwen3_next.h: the block, and what tells the families apart. SPDX-License-Identifier: Apache-2.0 */
#include "models/qwen3_next.h"

static int16_t attend(const dsc_block *block, const dsc_lm_config *base, int64_t layer, int16_t x)
{
    const dsc_qwen3_next_config *config = (const dsc_qwen3_next_config *)(const void *)base;
    dsc_block_attention attention = dsc_decoder_attention(&config->moe.decoder, layer);
    attention.gated = true;
    return config->linear[layer] ? dsc_qwen3_next_linear(block, config, x) : dsc_block_attend(block, x, &attention);
}

static void emit_block(dsc_program *program, const dsc_lm_config *base, int64_t layer)
{
    dsc_decoder_emit(program, base, layer, attend, dsc_moe_feed_layer);
}

/* Defaults are those of Hugging Face's configuration classes. */
#define DECODER_TRAITS                                                                                                 \
    .activation = DSC_SILU, .positions = 32768, .heads = 16, .head_size = 256, .attention_bias = true,                 \
    .head_norm = true, .partial = "partial_rotary_factor", .partial_default = 0.25, .own_layer_types = true
#define EXPERT_TRAITS                                                                                                  \
    .router = "mlp.gate", DSC_MOE_EXPERT_NAMES, .inner_key = "moe_intermediate_size", .moe_inner = 512, .padding = -1, \
    .shared = true, .shared_inner = 512

static const dsc_qwen3_next_traits traits_of_qwen3_next = {
    .moe = { .decoder = { DECODER_TRAITS, .family = &dsc_qwen3_next_family, .vocab = 151936, .layers = 48,
                          .channels = 2048, .kv_heads = 2, .inner = 5632 },
             EXPERT_TRAITS, .experts = 512, .top_k = 10, .some_dense = true, .renormalized_default = true },
    .together = true
};
static const dsc_qwen3_next_traits traits_of_qwen3_5 = {
    .moe = { .decoder = { DECODER_TRAITS, .family = &dsc_qwen3_5_family, .vocab = 248320, .layers = 32,
                          .channels = 4096, .kv_heads = 4, .inner = 12288 } }
};
static const dsc_qwen3_next_traits traits_of_qwen3_5_moe = {
    .moe = { .decoder = { DECODER_TRAITS, .family = &dsc_qwen3_5_moe_family, .vocab = 248320, .layers = 40,
                          .channels = 2048, .kv_heads = 2, .inner = 512 },
             EXPERT_TRAITS, .experts = 256, .top_k = 8, .renormalized = true }
};

/* Layers that predict further tokens: transformers leaves them out too. */
static const char *const beside[][2] = { { "mtp.", "prediction of further tokens" }, { NULL, NULL } };

#define FAMILY(name, type)                                                                                             \
    const dsc_lm_family dsc_##name##_family = {                                                                        \
        DSC_DECODER_FAMILY(type, traits_of_##name, dsc_qwen3_next_config, "norm"), .norm = DSC_NORM_RMS,               \
        .read_config = dsc_qwen3_next_read, .emit_block = emit_block, .lora_layers = dsc_decoder_lora_layers,          \
        .beside = beside, .stacked = dsc_moe_stacked                                                                   \
    }
FAMILY(qwen3_next, "qwen3_next");
FAMILY(qwen3_5, "qwen3_5_text");
FAMILY(qwen3_5_moe, "qwen3_5_moe_text");
