/* tiny_models.h - config.json texts of models small enough for simulated GPUs, one for each difference of families.
 * Differences: grouped heads, a tied head, biases, norms of heads, a scaling; a parallel residual and positions of a
 * part of a head. Others: learned positions that start at 2, ReLU, norms of sums, a token table of another width,
 * masked tokens, experts, adapters, with magnitudes and without.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_TINY_MODELS_H
#define DSC_TESTS_TINY_MODELS_H

#include <dsc/model.h>

#define TINY_SIZES                                                                                                     \
    "\"vocab_size\": 61, \"hidden_size\": 64, \"num_hidden_layers\": 2, \"num_attention_heads\": 4,"                   \
    " \"num_key_value_heads\": 2, \"intermediate_size\": 88, \"max_position_embeddings\": 16"

static const char *const tiny_targets[] = { "all-linear" };
static const dsc_lora_options tiny_lora = {
    .struct_bytes = sizeof tiny_lora, .rank = 3, .alpha = 12, .targets = tiny_targets, .target_count = 1
};

static const dsc_lora_options tiny_dora = { .struct_bytes = sizeof tiny_dora,
                                            .rank = 3,
                                            .alpha = 12,
                                            .targets = tiny_targets,
                                            .target_count = 1,
                                            .use_dora = true };
static const dsc_lora_options tiny_dora_dropping = { .struct_bytes = sizeof tiny_dora_dropping,
                                                     .rank = 3,
                                                     .alpha = 12,
                                                     .targets = tiny_targets,
                                                     .target_count = 1,
                                                     .dropout = 0.2,
                                                     .use_dora = true };

/* One in each expert, beside the attention. */
static const char *const tiny_projections[] = { "q_proj", "o_proj" };
static const char *const tiny_experts[] = { "mlp.experts.gate_up_proj", "mlp.experts.down_proj" };
static const dsc_lora_options tiny_expert_lora = { .struct_bytes = sizeof tiny_expert_lora,
                                                   .rank = 3,
                                                   .alpha = 12,
                                                   .targets = tiny_projections,
                                                   .target_count = 2,
                                                   .target_parameters = tiny_experts,
                                                   .target_parameter_count = 2 };
#define TINY_EXPERTS                                                                                                   \
    "{\"model_type\": \"qwen3_moe\", " TINY_SIZES ", \"head_dim\": 24, \"num_experts\": 5,"                            \
    " \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, \"initializer_range\": 0.1}"

static const struct { const char *name, *config; const dsc_lora_options *lora;
} tiny_models[] = {
    { "llama", "{\"model_type\": \"llama\", " TINY_SIZES ", \"tie_word_embeddings\": true}", NULL },
    { "llama 3, untied",
      "{\"model_type\": \"llama\", " TINY_SIZES ", \"attention_bias\": true, \"mlp_bias\": true,"
      " \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": 4,"
      " \"original_max_position_embeddings\": 8}}",
      NULL },
    { "qwen2", "{\"model_type\": \"qwen2\", " TINY_SIZES ", \"tie_word_embeddings\": true}", NULL },
    { "qwen3", "{\"model_type\": \"qwen3\", " TINY_SIZES ", \"head_dim\": 24}", NULL },
    { "neox", "{\"model_type\": \"gpt_neox\", " TINY_SIZES ", \"hidden_dropout\": 0, \"attention_dropout\": 0}", NULL },
    { "neox, serial",
      "{\"model_type\": \"gpt_neox\", " TINY_SIZES ", \"use_parallel_residual\": false, \"rotary_pct\": 1,"
      " \"attention_bias\": false, \"hidden_act\": \"gelu_new\", \"tie_word_embeddings\": true}",
      NULL },
    { "opt",
      "{\"model_type\": \"opt\", " TINY_SIZES ", \"ffn_dim\": 88, \"dropout\": 0, \"activation_function\": \"relu\"}",
      NULL },
    { "opt, norms of the sums",
      "{\"model_type\": \"opt\", " TINY_SIZES ", \"ffn_dim\": 88, \"dropout\": 0, \"activation_function\": \"relu\","
      " \"do_layer_norm_before\": false, \"word_embed_proj_dim\": 40, \"init_std\": 0.1}",
      NULL },
    { "bert", "{\"model_type\": \"bert\", " TINY_SIZES ", \"hidden_dropout_prob\": 0, \"initializer_range\": 0.1}",
      NULL },
    { "qwen3 moe",
      "{\"model_type\": \"qwen3_moe\", " TINY_SIZES ", \"head_dim\": 24, \"num_experts\": 5,"
      " \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, \"norm_topk_prob\": true,"
      " \"initializer_range\": 0.1, \"output_router_logits\": true, \"router_aux_loss_coef\": 0.02}",
      NULL },
    { "qwen2 moe",
      "{\"model_type\": \"qwen2_moe\", " TINY_SIZES ", \"num_experts\": 4, \"num_experts_per_tok\": 3,"
      " \"moe_intermediate_size\": 24, \"shared_expert_intermediate_size\": 40, \"initializer_range\": 0.1,"
      " \"mlp_only_layers\": [0]}",
      NULL },
    { "gpt_oss",
      "{\"model_type\": \"gpt_oss\", " TINY_SIZES ", \"head_dim\": 24, \"num_local_experts\": 5,"
      " \"num_experts_per_tok\": 2, \"sliding_window\": 3, \"initializer_range\": 0.1}",
      NULL },
    { "llama with adapters", "{\"model_type\": \"llama\", " TINY_SIZES ", \"tie_word_embeddings\": true}", &tiny_lora },
    { "neox with adapters", "{\"model_type\": \"gpt_neox\", " TINY_SIZES ", \"hidden_act\": \"gelu_new\"}",
      &tiny_lora },
    { "llama with magnitudes", "{\"model_type\": \"llama\", " TINY_SIZES ", \"tie_word_embeddings\": true}",
      &tiny_dora },
    { "neox with magnitudes and dropout",
      "{\"model_type\": \"gpt_neox\", " TINY_SIZES ", \"hidden_act\": \"gelu_new\"}", &tiny_dora_dropping },
    { "qwen3 moe with adapters of experts", TINY_EXPERTS, &tiny_expert_lora },
    { "gpt_oss with adapters of experts",
      "{\"model_type\": \"gpt_oss\", " TINY_SIZES ", \"head_dim\": 24, \"num_local_experts\": 5,"
      " \"num_experts_per_tok\": 2, \"sliding_window\": 3, \"initializer_range\": 0.1}",
      &tiny_expert_lora },
    { "deepseek v3",
      "{\"model_type\": \"deepseek_v3\", \"vocab_size\": 61, \"hidden_size\": 64, \"num_hidden_layers\": 2,"
      " \"num_attention_heads\": 4, \"intermediate_size\": 88, \"max_position_embeddings\": 16,"
      " \"n_routed_experts\": 6, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, \"n_group\": 1,"
      " \"topk_group\": 1, \"q_lora_rank\": null, \"kv_lora_rank\": 16, \"qk_nope_head_dim\": 16,"
      " \"qk_rope_head_dim\": 8, \"v_head_dim\": 16, \"first_k_dense_replace\": 1, \"initializer_range\": 0.1}",
      NULL },
};

#endif
