/* named_models.c - sizes that a name opens: texts of config.json, read as those of a folder.
 *
 * The numbers are those that the makers published. tests/unit/test_named_models.c has the parameters of each.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/named_models.h"

#define OF(type, class) "{\"model_type\": \"" type "\", \"architectures\": [\"" class "\"]"
#define SIZE(key, value) ", \"" key "\": " #value
#define TIED SIZE("tie_word_embeddings", true)
#define UNTIED SIZE("tie_word_embeddings", false)

/* Keys that most decoders share. */
#define SHAPE(layers, channels, inner, heads, kv_heads, vocab, positions)                                              \
    SIZE("num_hidden_layers", layers) SIZE("hidden_size", channels) SIZE("intermediate_size", inner)                   \
    SIZE("num_attention_heads", heads) SIZE("num_key_value_heads", kv_heads) SIZE("vocab_size", vocab)                 \
    SIZE("max_position_embeddings", positions)

/* ---- Llama and its like ------------------------------------------------------------------------------------------ */

#define LLAMA(layers, channels, inner, heads, kv_heads, vocab, positions, theta, tied)                                 \
    OF("llama", "LlamaForCausalLM") SHAPE(layers, channels, inner, heads, kv_heads, vocab, positions)                  \
    SIZE("rms_norm_eps", 1e-5) SIZE("rope_theta", theta) tied
#define LLAMA3(by)                                                                                                     \
    ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": " #by ", \"low_freq_factor\": 1.0, "                  \
    "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192}"
#define MISTRAL(layers, channels, inner, heads, vocab, positions, theta)                                               \
    OF("mistral", "MistralForCausalLM") SHAPE(layers, channels, inner, heads, 8, vocab, positions)                     \
    SIZE("head_dim", 128) SIZE("rms_norm_eps", 1e-5) SIZE("rope_theta", theta) SIZE("sliding_window", null)            \
    UNTIED "}"
#define QWEN2(layers, channels, inner, heads, kv_heads, vocab, positions, tied)                                        \
    OF("qwen2", "Qwen2ForCausalLM") SHAPE(layers, channels, inner, heads, kv_heads, vocab, positions)                  \
    SIZE("rms_norm_eps", 1e-6) SIZE("rope_theta", 1000000.0) tied                                                      \
    SIZE("use_sliding_window", false) "}"
#define QWEN3(layers, channels, inner, heads, tied)                                                                    \
    OF("qwen3", "Qwen3ForCausalLM") SHAPE(layers, channels, inner, heads, 8, 151936, 40960)                            \
    SIZE("head_dim", 128) SIZE("rms_norm_eps", 1e-6) SIZE("rope_theta", 1000000.0)                                     \
    tied SIZE("use_sliding_window", false) "}"
#define GEMMA(layers, channels, inner, heads, kv_heads)                                                                \
    OF("gemma", "GemmaForCausalLM") SHAPE(layers, channels, inner, heads, kv_heads, 256000, 8192)                      \
    SIZE("head_dim", 256) SIZE("hidden_activation", "gelu_pytorch_tanh") SIZE("rms_norm_eps", 1e-6)                    \
    SIZE("rope_theta", 10000.0) "}"
#define GEMMA2(layers, channels, inner, heads, kv_heads, size, scalar)                                                 \
    OF("gemma2", "Gemma2ForCausalLM") SHAPE(layers, channels, inner, heads, kv_heads, 256000, 8192)                    \
    SIZE("head_dim", size) SIZE("query_pre_attn_scalar", scalar) SIZE("sliding_window", 4096)                          \
    SIZE("hidden_activation", "gelu_pytorch_tanh") SIZE("attn_logit_softcapping", 50.0)                                \
    SIZE("final_logit_softcapping", 30.0) SIZE("rms_norm_eps", 1e-6) SIZE("rope_theta", 10000.0) "}"
#define GEMMA3(layers, channels, inner)                                                                                \
    OF("gemma3_text", "Gemma3ForCausalLM") SHAPE(layers, channels, inner, 4, 1, 262144, 32768)                         \
    SIZE("head_dim", 256) SIZE("query_pre_attn_scalar", 256) SIZE("sliding_window", 512)                               \
    SIZE("sliding_window_pattern", 6) SIZE("hidden_activation", "gelu_pytorch_tanh") SIZE("rms_norm_eps", 1e-6)        \
    SIZE("rope_theta", 1000000.0) SIZE("rope_local_base_freq", 10000.0) "}"
#define PHI3(layers, channels, inner, heads, kv_heads, vocab, positions, theta, window, padding)                       \
    OF("phi3", "Phi3ForCausalLM") SHAPE(layers, channels, inner, heads, kv_heads, vocab, positions)                    \
    SIZE("sliding_window", window) SIZE("rope_theta", theta)                                                           \
    SIZE("rms_norm_eps", 1e-5) SIZE("pad_token_id", padding) UNTIED "}"
#define GRANITE(channels, inner, vocab, attention, logits)                                                             \
    OF("granite", "GraniteForCausalLM") SHAPE(40, channels, inner, 32, 8, vocab, 131072)                               \
    SIZE("attention_multiplier", attention) SIZE("logits_scaling", logits) SIZE("embedding_multiplier", 12.0)          \
    SIZE("residual_multiplier", 0.22) SIZE("rms_norm_eps", 1e-5) SIZE("rope_theta", 10000000.0)                        \
    TIED "}"
#define OLMO2(layers, channels, inner, heads, kv_heads)                                                                \
    OF("olmo2", "Olmo2ForCausalLM") SHAPE(layers, channels, inner, heads, kv_heads, 100352, 4096)                      \
    SIZE("rms_norm_eps", 1e-6) SIZE("rope_theta", 500000.0) SIZE("pad_token_id", 100277)                               \
    UNTIED "}"
#define STARCODER2(layers, channels, inner, heads, kv_heads, theta, tied)                                              \
    OF("starcoder2", "Starcoder2ForCausalLM") SHAPE(layers, channels, inner, heads, kv_heads, 49152, 16384)            \
    SIZE("sliding_window", 4096) SIZE("use_bias", true) SIZE("hidden_act", "gelu_pytorch_tanh")                        \
    SIZE("norm_epsilon", 1e-5) SIZE("rope_theta", theta) tied "}"
#define GLM(type, class)                                                                                               \
    OF(type, class) SHAPE(40, 4096, 13696, 32, 2, 151552, 32768) SIZE("head_dim", 128) SIZE("attention_bias", true)    \
    SIZE("partial_rotary_factor", 0.5) SIZE("rms_norm_eps", 1e-5) SIZE("rope_theta", 10000.0)                          \
    UNTIED "}"
#define PHI(layers, channels, inner, share)                                                                            \
    OF("phi", "PhiForCausalLM") SHAPE(layers, channels, inner, 32, 32, 51200, 2048)                                    \
    SIZE("partial_rotary_factor", share) SIZE("hidden_act", "gelu_new") SIZE("layer_norm_eps", 1e-5)                   \
    SIZE("rope_theta", 10000.0) UNTIED "}"

/* ---- other decoders ---------------------------------------------------------------------------------------------- */

#define NEOX(layers, channels, inner, heads, vocab)                                                                    \
    OF("gpt_neox", "GPTNeoXForCausalLM")                                                                               \
    SIZE("num_hidden_layers", layers) SIZE("hidden_size", channels) SIZE("intermediate_size", inner)                   \
    SIZE("num_attention_heads", heads) SIZE("vocab_size", vocab) SIZE("max_position_embeddings", 2048)                 \
    SIZE("rotary_pct", 0.25) SIZE("rotary_emb_base", 10000) SIZE("layer_norm_eps", 1e-5)                               \
    SIZE("use_parallel_residual", true) UNTIED "}"
#define OPT(layers, channels, inner, heads)                                                                            \
    OF("opt", "OPTForCausalLM")                                                                                        \
    SIZE("num_hidden_layers", layers) SIZE("hidden_size", channels) SIZE("ffn_dim", inner)                             \
    SIZE("num_attention_heads", heads) SIZE("word_embed_proj_dim", channels) SIZE("vocab_size", 50272)                 \
    SIZE("max_position_embeddings", 2048) SIZE("do_layer_norm_before", true) SIZE("activation_function", "relu")       \
    SIZE("pad_token_id", 1) SIZE("dropout", 0.0) "}"
#define BLOOM(layers, channels, heads)                                                                                 \
    OF("bloom", "BloomForCausalLM")                                                                                    \
    SIZE("n_layer", layers) SIZE("hidden_size", channels) SIZE("n_head", heads) SIZE("vocab_size", 250880)             \
    SIZE("layer_norm_epsilon", 1e-5) TIED "}"
#define FALCON(layers, channels, heads, more)                                                                          \
    OF("falcon", "FalconForCausalLM")                                                                                  \
    SIZE("num_hidden_layers", layers) SIZE("hidden_size", channels) SIZE("num_attention_heads", heads)                 \
    SIZE("vocab_size", 65024) SIZE("max_position_embeddings", 2048) SIZE("layer_norm_epsilon", 1e-5)                   \
    SIZE("bias", false) SIZE("parallel_attn", true) more "}"
#define GPTJ                                                                                                           \
    OF("gptj", "GPTJForCausalLM")                                                                                      \
    SIZE("n_layer", 28) SIZE("n_embd", 4096) SIZE("n_head", 16) SIZE("n_positions", 2048) SIZE("rotary_dim", 64)       \
    SIZE("vocab_size", 50400) SIZE("activation_function", "gelu_new") SIZE("layer_norm_epsilon", 1e-5)                 \
    UNTIED "}"
#define MPT                                                                                                            \
    OF("mpt", "MptForCausalLM")                                                                                        \
    SIZE("n_layers", 32) SIZE("d_model", 4096) SIZE("n_heads", 32) SIZE("expansion_ratio", 4)                          \
    SIZE("max_seq_len", 2048) SIZE("vocab_size", 50432) SIZE("no_bias", true)                                          \
    ", \"attn_config\": {\"alibi\": true, \"attn_type\": \"multihead_attention\"}}"

/* ---- mixtures of experts ----------------------------------------------------------------------------------------- */

#define MIXTRAL(layers, channels, inner, heads, positions)                                                             \
    OF("mixtral", "MixtralForCausalLM") SHAPE(layers, channels, inner, heads, 8, 32000, positions)                     \
    SIZE("num_local_experts", 8) SIZE("num_experts_per_tok", 2) SIZE("rms_norm_eps", 1e-5)                             \
    SIZE("rope_theta", 1000000.0) SIZE("sliding_window", null) UNTIED "}"
#define QWEN3_MOE(layers, channels, inner, expert, heads)                                                              \
    OF("qwen3_moe", "Qwen3MoeForCausalLM") SHAPE(layers, channels, inner, heads, 4, 151936, 40960)                     \
    SIZE("head_dim", 128) SIZE("num_experts", 128) SIZE("num_experts_per_tok", 8)                                      \
    SIZE("moe_intermediate_size", expert) SIZE("norm_topk_prob", true) SIZE("decoder_sparse_step", 1)                  \
    SIZE("rms_norm_eps", 1e-6) SIZE("rope_theta", 1000000.0) SIZE("use_sliding_window", false)                         \
    UNTIED "}"

/* ---- masked models ----------------------------------------------------------------------------------------------- */

#define ENCODER(type, class, layers, channels, inner, heads, vocab, positions, segments, eps, padding)                 \
    OF(type, class)                                                                                                    \
    SIZE("num_hidden_layers", layers) SIZE("hidden_size", channels) SIZE("intermediate_size", inner)                   \
    SIZE("num_attention_heads", heads) SIZE("vocab_size", vocab) SIZE("max_position_embeddings", positions)            \
    SIZE("type_vocab_size", segments) SIZE("hidden_act", "gelu") SIZE("layer_norm_eps", eps)                           \
    SIZE("pad_token_id", padding) SIZE("hidden_dropout_prob", 0.0) SIZE("attention_probs_dropout_prob", 0.0) "}"
#define BERT(layers, channels, inner, heads, vocab)                                                                    \
    ENCODER("bert", "BertForMaskedLM", layers, channels, inner, heads, vocab, 512, 2, 1e-12, 0)
#define ROBERTA(type, class, layers, channels, inner, heads, vocab)                                                    \
    ENCODER(type, class, layers, channels, inner, heads, vocab, 514, 1, 1e-5, 1)
#define DISTILBERT                                                                                                     \
    OF("distilbert", "DistilBertForMaskedLM")                                                                          \
    SIZE("n_layers", 6) SIZE("dim", 768) SIZE("hidden_dim", 3072) SIZE("n_heads", 12) SIZE("vocab_size", 30522)        \
    SIZE("max_position_embeddings", 512) SIZE("pad_token_id", 0) SIZE("dropout", 0.0)                                  \
    SIZE("attention_dropout", 0.0) "}"
#define MODERNBERT(layers, channels, inner, heads)                                                                     \
    OF("modernbert", "ModernBertForMaskedLM")                                                                          \
    SIZE("num_hidden_layers", layers) SIZE("hidden_size", channels) SIZE("intermediate_size", inner)                   \
    SIZE("num_attention_heads", heads) SIZE("vocab_size", 50368) SIZE("max_position_embeddings", 8192)                 \
    SIZE("global_attn_every_n_layers", 3) SIZE("local_attention", 128) SIZE("global_rope_theta", 160000.0)             \
    SIZE("local_rope_theta", 10000.0) SIZE("pad_token_id", 50283) "}"

static const dsc_named_model models[] = {
    { "llama-2-13b", LLAMA(40, 5120, 13824, 40, 40, 32000, 4096, 10000.0, UNTIED) "}" },
    { "llama-2-70b", LLAMA(80, 8192, 28672, 64, 8, 32000, 4096, 10000.0, UNTIED) "}" },
    { "llama-3-8b", LLAMA(32, 4096, 14336, 32, 8, 128256, 8192, 500000.0, UNTIED) "}" },
    { "llama-3.1-70b", LLAMA(80, 8192, 28672, 64, 8, 128256, 131072, 500000.0, UNTIED) LLAMA3(8.0) "}" },
    { "llama-3.2-3b", LLAMA(28, 3072, 8192, 24, 8, 128256, 131072, 500000.0, TIED) LLAMA3(32.0) "}" },
    { "tinyllama-1.1b", LLAMA(22, 2048, 5632, 32, 4, 32000, 2048, 10000.0, UNTIED) "}" },
    { "smollm2-135m", LLAMA(30, 576, 1536, 9, 3, 49152, 8192, 100000.0, TIED) "}" },
    { "smollm2-360m", LLAMA(32, 960, 2560, 15, 5, 49152, 8192, 100000.0, TIED) "}" },
    { "smollm2-1.7b", LLAMA(24, 2048, 8192, 32, 32, 49152, 8192, 130000.0, TIED) "}" },
    { "mistral-nemo-12b", MISTRAL(40, 5120, 14336, 32, 131072, 131072, 1000000.0) },
    { "mistral-small-24b", MISTRAL(40, 5120, 32768, 32, 131072, 32768, 100000000.0) },
    { "qwen2.5-1.5b", QWEN2(28, 1536, 8960, 12, 2, 151936, 32768, TIED) },
    { "qwen2.5-3b", QWEN2(36, 2048, 11008, 16, 2, 151936, 32768, TIED) },
    { "qwen2.5-7b", QWEN2(28, 3584, 18944, 28, 4, 152064, 131072, UNTIED) },
    { "qwen2.5-14b", QWEN2(48, 5120, 13824, 40, 8, 152064, 131072, UNTIED) },
    { "qwen2.5-32b", QWEN2(64, 5120, 27648, 40, 8, 152064, 131072, UNTIED) },
    { "qwen2.5-72b", QWEN2(80, 8192, 29568, 64, 8, 152064, 131072, UNTIED) },
    { "qwen3-1.7b", QWEN3(28, 2048, 6144, 16, TIED) },
    { "qwen3-4b", QWEN3(36, 2560, 9728, 32, TIED) },
    { "qwen3-8b", QWEN3(36, 4096, 12288, 32, UNTIED) },
    { "qwen3-14b", QWEN3(40, 5120, 17408, 40, UNTIED) },
    { "qwen3-32b", QWEN3(64, 5120, 25600, 64, UNTIED) },
    { "gemma-2b", GEMMA(18, 2048, 16384, 8, 1) },
    { "gemma-7b", GEMMA(28, 3072, 24576, 16, 16) },
    { "gemma-2-2b", GEMMA2(26, 2304, 9216, 8, 4, 256, 256) },
    { "gemma-2-9b", GEMMA2(42, 3584, 14336, 16, 8, 256, 256) },
    { "gemma-2-27b", GEMMA2(46, 4608, 36864, 32, 16, 128, 144) },
    { "gemma-3-270m", GEMMA3(18, 640, 2048) },
    { "gemma-3-1b", GEMMA3(26, 1152, 6912) },
    { "phi-1.5", PHI(24, 2048, 8192, 0.5) },
    { "phi-2", PHI(32, 2560, 10240, 0.4) },
    { "phi-3-mini", PHI3(32, 3072, 8192, 32, 32, 32064, 4096, 10000.0, 2047, 32000) },
    { "phi-3-medium", PHI3(40, 5120, 17920, 40, 10, 32064, 4096, 10000.0, 2047, null) },
    { "phi-4", PHI3(40, 5120, 17920, 40, 10, 100352, 16384, 250000.0, null, 100349) },
    { "smollm3-3b",
      OF("smollm3", "SmolLM3ForCausalLM") SHAPE(36, 2048, 11008, 16, 4, 128256, 65536) SIZE("no_rope_layer_interval", 4)
          SIZE("rope_theta", 5000000.0) SIZE("rms_norm_eps", 1e-6) SIZE("pad_token_id", 128004) TIED "}" },
    { "granite-3.1-2b", GRANITE(2048, 8192, 49155, 0.015625, 8.0) },
    { "granite-3.1-8b", GRANITE(4096, 12800, 49155, 0.0078125, 16.0) },
    { "olmo-2-1b", OLMO2(16, 2048, 8192, 16, 16) },
    { "olmo-2-7b", OLMO2(32, 4096, 11008, 32, 32) },
    { "olmo-2-13b", OLMO2(40, 5120, 13824, 40, 40) },
    { "olmo-2-32b", OLMO2(64, 5120, 27648, 40, 8) },
    { "stablelm-3b", OF("stablelm", "StableLmForCausalLM") SHAPE(32, 2560, 6912, 32, 32, 50304, 4096)
                         SIZE("partial_rotary_factor", 0.25) SIZE("layer_norm_eps", 1e-5) SIZE("use_qkv_bias", false)
                             SIZE("rope_theta", 10000.0) UNTIED "}" },
    { "stablelm-2-1.6b", OF("stablelm", "StableLmForCausalLM") SHAPE(24, 2048, 5632, 32, 32, 100352, 4096)
                             SIZE("partial_rotary_factor", 0.25) SIZE("layer_norm_eps", 1e-5) SIZE("use_qkv_bias", true)
                                 SIZE("rope_theta", 10000.0) UNTIED "}" },
    { "starcoder2-3b", STARCODER2(30, 3072, 12288, 24, 2, 999999.4420358813, TIED) },
    { "starcoder2-7b", STARCODER2(32, 4608, 18432, 36, 4, 1000000.0, TIED) },
    { "starcoder2-15b", STARCODER2(40, 6144, 24576, 48, 4, 100000.0, UNTIED) },
    { "glm-4-9b", GLM("glm", "GlmForCausalLM") },
    { "glm-4-9b-0414", GLM("glm4", "Glm4ForCausalLM") },
    { "command-r7b",
      OF("cohere2", "Cohere2ForCausalLM") SHAPE(32, 4096, 14336, 32, 8, 256000, 132096) SIZE("head_dim", 128)
          SIZE("logit_scale", 0.25) SIZE("sliding_window", 4096) SIZE("sliding_window_pattern", 4)
              SIZE("layer_norm_eps", 1e-5) SIZE("rope_theta", 50000.0) "}" },
    { "seed-oss-36b", OF("seed_oss", "SeedOssForCausalLM") SHAPE(64, 5120, 27648, 80, 8, 155136, 524288)
                          SIZE("head_dim", 128) SIZE("attention_bias", true) SIZE("attention_out_bias", false)
                              SIZE("rms_norm_eps", 1e-6) SIZE("rope_theta", 10000000.0) UNTIED "}" },
    { "ernie-4.5-0.3b",
      OF("ernie4_5", "Ernie4_5ForCausalLM") SHAPE(18, 1024, 3072, 16, 2, 103424, 131072) SIZE("head_dim", 128)
          SIZE("use_bias", false) SIZE("rms_norm_eps", 1e-5) SIZE("rope_theta", 500000.0) TIED "}" },
    { "pythia-70m", NEOX(6, 512, 2048, 8, 50304) },
    { "pythia-160m", NEOX(12, 768, 3072, 12, 50304) },
    { "pythia-410m", NEOX(24, 1024, 4096, 16, 50304) },
    { "pythia-1b", NEOX(16, 2048, 8192, 8, 50304) },
    { "pythia-1.4b", NEOX(24, 2048, 8192, 16, 50304) },
    { "pythia-2.8b", NEOX(32, 2560, 10240, 32, 50304) },
    { "pythia-6.9b", NEOX(32, 4096, 16384, 32, 50432) },
    { "pythia-12b", NEOX(36, 5120, 20480, 40, 50688) },
    { "opt-125m", OPT(12, 768, 3072, 12) },
    { "opt-1.3b", OPT(24, 2048, 8192, 32) },
    { "opt-2.7b", OPT(32, 2560, 10240, 32) },
    { "opt-6.7b", OPT(32, 4096, 16384, 32) },
    { "bloom-560m", BLOOM(24, 1024, 16) },
    { "bloom-1b1", BLOOM(24, 1536, 16) },
    { "bloom-3b", BLOOM(30, 2560, 32) },
    { "bloom-7b1", BLOOM(30, 4096, 32) },
    { "falcon-7b", FALCON(32, 4544, 71, SIZE("multi_query", true)) },
    { "falcon-40b", FALCON(60, 8192, 128, SIZE("new_decoder_architecture", true) SIZE("num_kv_heads", 8)) },
    { "gptj-6b", GPTJ },
    { "mpt-7b", MPT },
    { "mixtral-8x7b", MIXTRAL(32, 4096, 14336, 32, 32768) },
    { "mixtral-8x22b", MIXTRAL(56, 6144, 16384, 48, 65536) },
    { "olmoe-1b-7b", OF("olmoe", "OlmoeForCausalLM") SHAPE(16, 2048, 1024, 16, 16, 50304, 4096) SIZE("num_experts", 64)
                         SIZE("num_experts_per_tok", 8) SIZE("norm_topk_prob", false) SIZE("rms_norm_eps", 1e-5)
                             SIZE("rope_theta", 10000.0) SIZE("pad_token_id", 1) UNTIED "}" },
    { "qwen3-30b-a3b", QWEN3_MOE(48, 2048, 6144, 768, 32) },
    { "qwen3-235b-a22b", QWEN3_MOE(94, 4096, 12288, 1536, 64) },
    { "bert-base", BERT(12, 768, 3072, 12, 30522) },
    { "bert-large", BERT(24, 1024, 4096, 16, 30522) },
    { "bert-base-multilingual", BERT(12, 768, 3072, 12, 119547) },
    { "distilbert-base", DISTILBERT },
    { "roberta-base", ROBERTA("roberta", "RobertaForMaskedLM", 12, 768, 3072, 12, 50265) },
    { "roberta-large", ROBERTA("roberta", "RobertaForMaskedLM", 24, 1024, 4096, 16, 50265) },
    { "xlm-roberta-base", ROBERTA("xlm-roberta", "XLMRobertaForMaskedLM", 12, 768, 3072, 12, 250002) },
    { "xlm-roberta-large", ROBERTA("xlm-roberta", "XLMRobertaForMaskedLM", 24, 1024, 4096, 16, 250002) },
    { "modernbert-base", MODERNBERT(22, 768, 1152, 12) },
    { "modernbert-large", MODERNBERT(28, 1024, 2624, 16) },
    /* Convolutional networks, by the names of torchvision. */
    { "basic_cnn", "basic_cnn" },
    { "cnn_lstm", "cnn_lstm" },
    { "cnn-lstm", "cnn_lstm" },
    { "resnet18", "resnet18" },
    { "resnet34", "resnet34" },
    { "resnet50", "resnet50" },
    { "resnet101", "resnet101" },
    { "resnet152", "resnet152" },
    { "resnet18_cifar", "resnet18_cifar" },
    { "resnet", "resnet50" },
    { "vgg11", "vgg11" },
    { "vgg13", "vgg13" },
    { "vgg16", "vgg16" },
    { "vgg19", "vgg19" },
    { "vgg11_bn", "vgg11_bn" },
    { "vgg13_bn", "vgg13_bn" },
    { "vgg16_bn", "vgg16_bn" },
    { "vgg19_bn", "vgg19_bn" },
    { "vgg", "vgg16" },
    { "mobilenet_v2", "mobilenet_v2" },
    { "mobilenet_v3_small", "mobilenet_v3_small" },
    { "mobilenet_v3_large", "mobilenet_v3_large" },
    { "mobilenet", "mobilenet_v2" },
    { "efficientnet_b0", "efficientnet_b0" },
    { "efficientnet_b1", "efficientnet_b1" },
    { "efficientnet_b2", "efficientnet_b2" },
    { "efficientnet_b3", "efficientnet_b3" },
    { "efficientnet_b4", "efficientnet_b4" },
    { "efficientnet_b5", "efficientnet_b5" },
    { "efficientnet_b6", "efficientnet_b6" },
    { "efficientnet_b7", "efficientnet_b7" },
    { "efficientnet", "efficientnet_b0" },
    { "ensemble", "ensemble" },
    { "vit_b_16", "vit_b_16" },
    { "vit_b_32", "vit_b_32" },
    { "vit_l_16", "vit_l_16" },
    { "vit_l_32", "vit_l_32" },
    { "vit_h_14", "vit_h_14" },
};

const dsc_named_model *dsc_named_model_at(int32_t index)
{
    return index >= 0 && index < (int32_t)DSC_COUNT(models) ? &models[index] : NULL;
}
