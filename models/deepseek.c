/* deepseek.c - see deepseek.h: the block, and what tells the families apart. SPDX-License-Identifier: Apache-2.0 */
#include "models/deepseek.h"

static int16_t attend(const dsc_block *block, const dsc_lm_config *base, int64_t layer, int16_t x)
{
    const dsc_moe_config *config = (const dsc_moe_config *)(const void *)base;
    dsc_mla mla = config->mla;
    mla.rope = &config->decoder.rope;
    return mla.kv_latent > 0 ? dsc_mla_attend(block, x, &mla) : dsc_decoder_attend(block, base, layer, x);
}

static void emit_block(dsc_program *program, const dsc_lm_config *base, int64_t layer)
{
    dsc_decoder_emit(program, base, layer, attend, dsc_moe_feed_layer);
}

/* Defaults are those of Hugging Face's configuration classes. */
#define EXPERT_NAMES                                                                                                   \
    .router = "mlp.gate", DSC_MOE_EXPERT_NAMES, .whole = DSC_MOE_WHOLE_NAMES("mlp.shared_experts"),                    \
    .f32_logits = true
#define MLA_TRAITS                                                                                                     \
    .activation = DSC_SILU, .head_size = 64, .head_size_key = "qk_rope_head_dim", .attention_bias = true,              \
    .rope_neighbours = true

static const dsc_deepseek_traits v2 = {
    .moe = { .decoder = { MLA_TRAITS, .family = &dsc_deepseek_v2_family, .vocab = 102400, .inner = 11008,
                          .positions = 2048, .mlp_bias = true, .read_more = dsc_deepseek_read_v2 },
             EXPERT_NAMES, .experts = 64, .moe_inner = 1407 },
    .shared = 2, .factor = 1
};
static const dsc_deepseek_traits v3 = {
    .moe = { .decoder = { MLA_TRAITS, .family = &dsc_deepseek_v3_family, .vocab = 129280, .inner = 18432,
                          .positions = 4096, .layers = 61, .channels = 7168, .heads = 128,
                          .read_more = dsc_deepseek_read_v3 },
             EXPERT_NAMES, .bias = "mlp.gate", .experts = 256, .top_k = 8, .moe_inner = 2048 },
    .shared = 1, .groups = 8, .best_groups = 4, .first = 3, .factor = 2.5
};
static const dsc_deepseek_traits glm4_moe = {
    .moe = { .decoder = { .activation = DSC_SILU, .family = &dsc_glm4_moe_family, .vocab = 151552, .inner = 10944,
                          .positions = 131072, .layers = 46, .channels = 4096, .heads = 96, .kv_heads = 8,
                          .has_head_size = true, .attention_bias = true, .norm_eps = 1e-5,
                          .partial = "partial_rotary_factor", .partial_default = 0.5,
                          .read_more = dsc_deepseek_read_glm },
             EXPERT_NAMES, .bias = "mlp.gate", .experts = 128, .top_k = 8, .moe_inner = 1408 },
    .shared = 1, .groups = 1, .best_groups = 1, .first = 1, .factor = 1
};

/* PEFT has no defaults for these families: all products of the attention. */
static const char *const latent_layers[] = { "q_proj",    "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa",
                                             "kv_b_proj", "o_proj",   NULL };

#define FAMILY(name, table, layers)                                                                                    \
    const dsc_lm_family dsc_##name##_family = {                                                                        \
        DSC_DECODER_FAMILY(#name, table, dsc_moe_config, "norm"), .norm = DSC_NORM_RMS, .read_config = dsc_moe_read,   \
        .emit_block = emit_block, .lora_layers = layers, .stacked = dsc_moe_stacked                                    \
    }
FAMILY(deepseek_v2, v2, latent_layers);
FAMILY(deepseek_v3, v3, latent_layers);
FAMILY(kimi_k2, v3, latent_layers);
FAMILY(glm4_moe, glm4_moe, dsc_decoder_lora_layers);
