/* llama.c - Llama 2 and 3 (Touvron et al. 2023), Mistral, Ministral, Qwen2 and Qwen3: one block.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/decoder.h"

const dsc_decoder_traits dsc_traits_of_llama = { .activation = DSC_SILU,
                                                 .architecture = "LlamaForCausalLM",
                                                 .family = &dsc_llama_family,
                                                 .vocab = 32000,
                                                 .inner = 11008,
                                                 .positions = 2048,
                                                 .has_head_size = true,
                                                 .attention_bias = true,
                                                 .mlp_bias = true,
                                                 .window = DSC_WINDOW_NONE };
const dsc_decoder_traits dsc_traits_of_mistral = { .activation = DSC_SILU,
                                                   .architecture = "MistralForCausalLM",
                                                   .family = &dsc_mistral_family,
                                                   .vocab = 32000,
                                                   .inner = 14336,
                                                   .positions = 131072,
                                                   .kv_heads = 8,
                                                   .has_head_size = true,
                                                   .window = DSC_WINDOW_ALL };
const dsc_decoder_traits dsc_traits_of_qwen2 = { .activation = DSC_SILU,
                                                 .architecture = "Qwen2ForCausalLM",
                                                 .family = &dsc_qwen2_family,
                                                 .vocab = 151936,
                                                 .inner = 22016,
                                                 .positions = 32768,
                                                 .kv_heads = 32,
                                                 .qkv_bias = true,
                                                 .window = DSC_WINDOW_IF_USED };
const dsc_decoder_traits dsc_traits_of_qwen3 = { .activation = DSC_SILU,
                                                 .architecture = "Qwen3ForCausalLM",
                                                 .family = &dsc_qwen3_family,
                                                 .vocab = 151936,
                                                 .inner = 22016,
                                                 .positions = 32768,
                                                 .kv_heads = 32,
                                                 .head_size = 128,
                                                 .has_head_size = true,
                                                 .attention_bias = true,
                                                 .head_norm = true,
                                                 .window = DSC_WINDOW_IF_USED };
static const dsc_decoder_traits ministral = {
    .activation = DSC_SILU, .family = &dsc_ministral_family, .vocab = 32000, .inner = 14336, .positions = 131072,
    .kv_heads = 8, .has_head_size = true, .window = DSC_WINDOW_ALL
};

const dsc_lm_family dsc_ministral_family = { DSC_DECODER_RMS("ministral", ministral) };

static const char *const beside_labels[][2] = { { "lm_head.", "head of the language model" }, { NULL, NULL } };

static const dsc_lm_classifier classifier = { .table = "score.weight", .beside = beside_labels };
static const dsc_lm_classifier token_classifier = { .table = "score.weight", .bias = "score.bias",
                                                    .beside = beside_labels };
static const dsc_lm_classifier embedder = { .beside = beside_labels };

#define FAMILY(name, prefix)                                                                                           \
    const dsc_lm_family dsc_##name##_family = {                                                                        \
        DSC_DECODER_RMS(#name, dsc_traits_of_##name), .shared_out = true, .write_config = dsc_decoder_write_config,    \
        .builtin = dsc_llama_builtin, .class_prefix = (prefix), .classifier = &classifier,                             \
        .token_classifier = &token_classifier, .embedder = &embedder                                                   \
    }
FAMILY(llama, "Llama");
FAMILY(mistral, "Mistral");
FAMILY(qwen2, "Qwen2");
FAMILY(qwen3, "Qwen3");
