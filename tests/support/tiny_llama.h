/* tiny_llama.h - config.json texts of Llamas small enough for simulated GPUs, one for each thing that tells families
 * apart: grouped heads, a tied head, biases, norms of heads, a scaling. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_TINY_LLAMA_H
#define DSC_TESTS_TINY_LLAMA_H

#define TINY_LLAMA_SIZES                                                                                               \
    "\"vocab_size\": 61, \"hidden_size\": 64, \"num_hidden_layers\": 2, \"num_attention_heads\": 4,"                   \
    " \"num_key_value_heads\": 2, \"intermediate_size\": 88, \"max_position_embeddings\": 16"

static const struct { const char *name, *config; } tiny_llamas[] = {
    { "llama", "{\"model_type\": \"llama\", " TINY_LLAMA_SIZES ", \"tie_word_embeddings\": true}" },
    { "llama 3, untied",
      "{\"model_type\": \"llama\", " TINY_LLAMA_SIZES ", \"attention_bias\": true, \"mlp_bias\": true,"
      " \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": 4,"
      " \"original_max_position_embeddings\": 8}}" },
    { "qwen2", "{\"model_type\": \"qwen2\", " TINY_LLAMA_SIZES ", \"tie_word_embeddings\": true}" },
    { "qwen3", "{\"model_type\": \"qwen3\", " TINY_LLAMA_SIZES ", \"head_dim\": 24}" },
};

#endif
