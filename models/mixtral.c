/* mixtral.c - Mixtral (Jiang et al. 2024), OLMoE (Muennighoff et al. 2024), Qwen2 MoE and Qwen3 MoE: their names, and
 * what tells them apart. SPDX-License-Identifier: Apache-2.0 */
#include "models/moe.h"

static const char *const aliases[][2] = { { "block_sparse_moe.gate.weight", "mlp.gate.weight" }, { NULL, NULL } };

/* Defaults are those of Hugging Face's configuration classes. */
static const dsc_moe_traits mixtral = {
    .decoder = { .activation = DSC_SILU, .family = &dsc_mixtral_family, .vocab = 32000, .inner = 14336,
                 .positions = 131072, .kv_heads = 8, .has_head_size = true, .norm_eps = 1e-5, .theta = 1e6,
                 .window = DSC_WINDOW_ALL, .one_window = true, .window_default = DSC_WINDOW_OFF },
    .router = "block_sparse_moe.gate", .gate = "block_sparse_moe.experts.*.w1",
    .up = "block_sparse_moe.experts.*.w3", .down = "block_sparse_moe.experts.*.w2", .inner_key = "intermediate_size",
    .experts = 8, .top_k = 2, .moe_inner = 14336, .padding = -1, .renormalized = true
};
static const dsc_moe_traits olmoe = {
    .decoder = { .activation = DSC_SILU, .family = &dsc_olmoe_family, .vocab = 50304, .inner = 2048,
                 .positions = 4096, .layers = 16, .channels = 2048, .heads = 16, .attention_bias = true,
                 .head_norm = true, .norm_whole = true, .norm_eps = 1e-5 },
    .router = "mlp.gate", DSC_MOE_EXPERT_NAMES, .inner_key = "intermediate_size", .experts = 64, .top_k = 8,
    .moe_inner = 2048, .padding = 1, .balance = 0.01
};
static const dsc_moe_traits qwen2_moe = {
    .decoder = { .activation = DSC_SILU, .family = &dsc_qwen2_moe_family, .vocab = 151936, .inner = 5632,
                 .positions = 32768, .layers = 24, .channels = 2048, .heads = 16, .kv_heads = 16, .qkv_bias = true },
    .router = "mlp.gate", DSC_MOE_EXPERT_NAMES, .inner_key = "moe_intermediate_size", .experts = 60, .top_k = 4,
    .moe_inner = 1408, .padding = -1, .some_dense = true, .shared = true
};
static const dsc_moe_traits qwen3_moe = {
    .decoder = { .activation = DSC_SILU, .family = &dsc_qwen3_moe_family, .vocab = 151936, .inner = 6144,
                 .positions = 32768, .layers = 24, .channels = 2048, .heads = 32, .kv_heads = 4,
                 .has_head_size = true, .attention_bias = true, .head_norm = true },
    .router = "mlp.gate", DSC_MOE_EXPERT_NAMES, .inner_key = "moe_intermediate_size", .experts = 128, .top_k = 8,
    .moe_inner = 768, .padding = -1, .some_dense = true
};

#define FAMILY(name)                                                                                                   \
    const dsc_lm_family dsc_##name##_family = { DSC_MOE_FAMILY(#name, name), .lora_layers = dsc_decoder_lora_layers,   \
                                                .aliases = aliases }
FAMILY(mixtral);
FAMILY(olmoe);
FAMILY(qwen2_moe);
FAMILY(qwen3_moe);
