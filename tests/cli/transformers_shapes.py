#!/usr/bin/env python3
"""transformers_shapes.py BIN: config.json as published models have them, key for key, with smaller sizes, and random ones: what transformers
makes of such a file, in hf_runs.compare. Some of both, chosen by DSC_TEST_SEED; all, and 100 random ones, with DSC_TEST_NIGHT=1.
SPDX-License-Identifier: Apache-2.0"""
import array
import json
import os
import random
import subprocess
import sys
import time
import zlib

from hf_runs import (BIN, MASKED_FAMILIES, VOCAB, attention_of, compare, load_file, run, run_all, save_file, torch, train_ours, train_theirs,
                     transformers, write_as_of_old, write_tokens)

NIGHT = os.environ.get("DSC_TEST_NIGHT") == "1"


def llama(**more):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
            "hidden_size": 48, "initializer_range": 0.02, "intermediate_size": 70, "max_position_embeddings": 64, "num_attention_heads": 4,
            "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "use_cache": True,
            "vocab_size": VOCAB, **more}


def mistral(**more):
    return {**llama(), "architectures": ["MistralForCausalLM"], "model_type": "mistral", "attention_dropout": 0.0, "rope_theta": 1000000.0,
            "sliding_window": None, **more}


def qwen2(**more):
    return {**llama(), "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "attention_dropout": 0.0, "max_window_layers": 24,
            "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": True, "use_mrope": False,
            "use_sliding_window": False, **more}


def qwen3(**more):
    return {**llama(), "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False, "attention_dropout": 0.0,
            "head_dim": 16, "max_window_layers": 28, "rms_norm_eps": 1e-6, "rope_scaling": None, "rope_theta": 1000000,
            "sliding_window": None, "tie_word_embeddings": True, "use_sliding_window": False, **more}


def neox(**more):
    return {"architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "gelu", "hidden_size": 48,
            "initializer_range": 0.02, "intermediate_size": 192, "layer_norm_eps": 1e-05, "max_position_embeddings": 64,
            "model_type": "gpt_neox", "num_attention_heads": 3, "num_hidden_layers": 2, "rotary_emb_base": 10000, "rotary_pct": 0.25,
            "tie_word_embeddings": False, "torch_dtype": "float16", "use_cache": True, "use_parallel_residual": True, "vocab_size": VOCAB,
            **more}


def opt(**more):
    return {"_remove_final_layer_norm": False, "activation_dropout": 0.0, "activation_function": "relu", "architectures": ["OPTForCausalLM"],
            "attention_dropout": 0.0, "bos_token_id": 2, "do_layer_norm_before": True, "dropout": 0.1, "eos_token_id": 2, "ffn_dim": 96,
            "hidden_size": 48, "init_std": 0.02, "layerdrop": 0.0, "max_position_embeddings": 64, "model_type": "opt",
            "num_attention_heads": 3, "num_hidden_layers": 2, "pad_token_id": 1, "prefix": "</s>", "vocab_size": VOCAB,
            "word_embed_proj_dim": 48, **more}


def bert(**more):
    return {"architectures": ["BertForMaskedLM"], "attention_probs_dropout_prob": 0.1, "gradient_checkpointing": False, "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1, "hidden_size": 48, "initializer_range": 0.02, "intermediate_size": 96, "layer_norm_eps": 1e-12,
            "max_position_embeddings": 64, "model_type": "bert", "num_attention_heads": 3, "num_hidden_layers": 2, "pad_token_id": 0,
            "position_embedding_type": "absolute", "type_vocab_size": 2, "use_cache": True, "vocab_size": VOCAB, **more}


def roberta(**more):
    return {"architectures": ["RobertaForMaskedLM"], "attention_probs_dropout_prob": 0.1, "bos_token_id": 0, "eos_token_id": 2,
            "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 48, "initializer_range": 0.02, "intermediate_size": 96,
            "layer_norm_eps": 1e-05, "max_position_embeddings": 66, "model_type": "roberta", "num_attention_heads": 3,
            "num_hidden_layers": 2, "pad_token_id": 1, "type_vocab_size": 1, "vocab_size": VOCAB, **more}


def distilbert(**more):
    return {"activation": "gelu", "architectures": ["DistilBertForMaskedLM"], "attention_dropout": 0.1, "dim": 48, "dropout": 0.1,
            "hidden_dim": 96, "initializer_range": 0.02, "max_position_embeddings": 64, "model_type": "distilbert", "n_heads": 3,
            "n_layers": 2, "pad_token_id": 0, "qa_dropout": 0.1, "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": False,
            "tie_weights_": True, "vocab_size": VOCAB, **more}


def modernbert(**more):
    return {"architectures": ["ModernBertForMaskedLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 81,
            "classifier_activation": "gelu", "classifier_bias": False, "classifier_dropout": 0.0, "classifier_pooling": "mean",
            "cls_token_id": 81, "decoder_bias": True, "deterministic_flash_attn": False, "embedding_dropout": 0.0, "eos_token_id": 82,
            "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "gradient_checkpointing": False, "hidden_activation": "gelu",
            "hidden_size": 48, "initializer_cutoff_factor": 2.0, "initializer_range": 0.02, "intermediate_size": 70, "layer_norm_eps": 1e-05,
            "local_attention": 8, "local_rope_theta": 10000.0, "max_position_embeddings": 64, "mlp_bias": False, "mlp_dropout": 0.0,
            "model_type": "modernbert", "norm_bias": False, "norm_eps": 1e-05, "num_attention_heads": 3, "num_hidden_layers": 4,
            "pad_token_id": 83, "position_embedding_type": "absolute", "sep_token_id": 82, "tie_word_embeddings": True,
            "torch_dtype": "float32", "vocab_size": VOCAB, **more}


def gpt2(**more):
    return {"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 2, "embd_pdrop": 0.1,
            "eos_token_id": 2, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 64, "n_embd": 48,
            "n_head": 3, "n_layer": 2, "n_positions": 64, "resid_pdrop": 0.1, "summary_activation": None, "summary_first_dropout": 0.1,
            "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True,
            "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}, "vocab_size": VOCAB, **more}


def phi3(**more):
    return {**without(llama(), "head_dim"), "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "attention_bias": False,
            "attention_dropout": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "original_max_position_embeddings": 64, "pad_token_id": 3,
            "rope_scaling": None, "rope_theta": 10000.0, "sliding_window": 2047, "torch_dtype": "bfloat16", **more}


def smollm3(**more):
    return {**llama(), "architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "attention_bias": False, "attention_dropout": 0.0,
            "layer_types": ["full_attention"] * 4, "max_window_layers": 28, "mlp_bias": False, "no_rope_layer_interval": 4,
            "no_rope_layers": [1, 1, 1, 0], "num_hidden_layers": 4, "pad_token_id": 4, "pretraining_tp": 2, "rope_scaling": None,
            "rope_theta": 5000000.0, "sliding_window": None, "tie_word_embeddings": True, "use_sliding_window": False, **more}


def olmo2(**more):
    return {**llama(), "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "attention_bias": False, "attention_dropout": 0.0,
            "num_key_value_heads": 4, "pad_token_id": 5, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 500000, **more}


def stablelm(**more):
    return {**without(llama(), "rms_norm_eps"), "architectures": ["StableLmForCausalLM"], "model_type": "stablelm", "hidden_size": 64,
            "attention_dropout": 0.0, "hidden_dropout": 0.0, "layer_norm_eps": 1e-05, "num_key_value_heads": 4,
            "partial_rotary_factor": 0.25, "qk_layernorm": False, "rope_scaling": None, "rope_theta": 10000, "use_parallel_residual": False,
            "use_qkv_bias": True, **more}


def starcoder2(**more):
    return {**without(llama(), "rms_norm_eps"), "activation_function": "gelu", "architectures": ["Starcoder2ForCausalLM"],
            "attention_dropout": 0.1, "attention_softmax_in_fp32": True, "embedding_dropout": 0.1, "hidden_act": "gelu_pytorch_tanh",
            "initializer_range": 0.018042, "layer_norm_epsilon": 1e-05, "mlp_type": "default", "model_type": "starcoder2",
            "norm_epsilon": 1e-05, "norm_type": "layer_norm", "residual_dropout": 0.1, "rope_theta": 999999.4420358813,
            "scale_attention_softmax_in_fp32": True, "scale_attn_weights": True, "sliding_window": 9, "use_bias": True,
            "tie_word_embeddings": True, **more}


def gemma(**more):
    return {**without(llama(), "tie_word_embeddings"), "architectures": ["GemmaForCausalLM"], "model_type": "gemma", "attention_bias": False,
            "attention_dropout": 0.0, "bos_token_id": 2, "eos_token_id": 1, "head_dim": 16, "hidden_act": "gelu_pytorch_tanh", "pad_token_id": 0,
            "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 10000.0, "torch_dtype": "bfloat16", **more}


def gemma2(**more):
    return {**gemma(), "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "attn_logit_softcapping": 50.0,
            "cache_implementation": "hybrid", "final_logit_softcapping": 30.0, "hidden_activation": "gelu_pytorch_tanh", "num_hidden_layers": 3,
            "query_pre_attn_scalar": 16, "sliding_window": 9, **more}


def gemma3(**more):
    return {**without(gemma2(), "hidden_act"), "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "attn_logit_softcapping": None,
            "eos_token_id": [1, 106], "final_logit_softcapping": None, "rope_local_base_freq": 10000, "rope_theta": 1000000,
            "sliding_window_pattern": 2, **more}


def granite(**more):
    return {**llama(), "architectures": ["GraniteForCausalLM"], "model_type": "granite", "attention_bias": False, "attention_dropout": 0.1,
            "attention_multiplier": 0.125, "embedding_multiplier": 12.0, "logits_scaling": 8.0, "mlp_bias": False, "pad_token_id": 0,
            "residual_multiplier": 0.22, "rope_scaling": None, "rope_theta": 5000000.0, "tie_word_embeddings": True, **more}


def olmo3(**more):
    return {**olmo2(), "architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "num_hidden_layers": 4, "sliding_window": 9, **more}


def cohere(**more):
    return {**without(llama(), "rms_norm_eps", "tie_word_embeddings"), "architectures": ["CohereForCausalLM"], "model_type": "cohere",
            "attention_bias": False, "attention_dropout": 0.0, "layer_norm_eps": 1e-05, "logit_scale": 0.0625, "model_max_length": 131072,
            "num_key_value_heads": 4, "pad_token_id": 0, "rope_theta": 8000000.0, "torch_dtype": "float16", **more}


def cohere2(**more):
    return {**cohere(), "architectures": ["Cohere2ForCausalLM"], "model_type": "cohere2", "cache_implementation": "hybrid", "head_dim": 12,
            "layer_switch": 4, "logit_scale": 0.25, "num_hidden_layers": 4, "num_key_value_heads": 2, "order_of_interleaved_layers": "local_attn_first",
            "position_embedding_type": "rope_gptj", "rope_theta": 50000.0, "rotary_pct": 1.0, "sliding_window": 9, "sliding_window_pattern": 4,
            "use_embedding_sharing": True, "use_gated_activation": True, "use_parallel_block": True, "use_parallel_embedding": True, **more}


def glm(**more):
    return {**llama(), "architectures": ["GlmForCausalLM"], "model_type": "glm", "attention_bias": True, "attention_dropout": 0.0,
            "eos_token_id": [2, 3, 4], "head_dim": 16, "pad_token_id": 2, "rms_norm_eps": 1.5625e-07, "rope_theta": 10000.0, **more}


def deepseek_v2(**more):
    return {**llama(), "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "attention_bias": False,
            "attention_dropout": 0.0, "aux_loss_alpha": 0.001, "bos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 1,
            "kv_lora_rank": 20, "moe_intermediate_size": 24, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 8,
            "n_shared_experts": 2, "norm_topk_prob": False, "num_experts_per_tok": 3, "num_hidden_layers": 3,
            "num_key_value_heads": 4, "pretraining_tp": 1, "q_lora_rank": None, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
            "rms_norm_eps": 1e-06, "rope_scaling": {**YARN, "beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707,
                                                   "type": "yarn"},
            "rope_theta": 10000, "routed_scaling_factor": 1.0, "scoring_func": "softmax", "seq_aux": True, "topk_group": 1,
            "topk_method": "greedy", "v_head_dim": 16, **more}


def deepseek_v3(**more):
    return {**deepseek_v2(), "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "bos_token_id": 0,
            "eos_token_id": 1, "n_group": 4, "n_routed_experts": 16, "n_shared_experts": 1, "norm_topk_prob": True,
            "num_experts_per_tok": 4, "num_nextn_predict_layers": 1, "q_lora_rank": 28,
            "rope_scaling": {**YARN, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0, "type": "yarn"},
            "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_group": 2, "topk_method": "noaux_tc", **more}


def glm4_moe(**more):
    return {**llama(), "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "attention_bias": True,
            "attention_dropout": 0.0, "eos_token_id": [1, 2, 3], "first_k_dense_replace": 1, "head_dim": 16,
            "moe_intermediate_size": 24, "n_group": 1, "n_routed_experts": 8, "n_shared_experts": 1, "norm_topk_prob": True,
            "num_experts_per_tok": 3, "num_hidden_layers": 3, "num_nextn_predict_layers": 1, "pad_token_id": 1,
            "partial_rotary_factor": 0.5, "rope_scaling": None, "rope_theta": 1000000, "routed_scaling_factor": 1.0,
            "topk_group": 1, "use_qk_norm": False, **more}


def ernie_moe(**more):
    return {**llama(), "architectures": ["Ernie4_5_MoeForCausalLM"], "model_type": "ernie4_5_moe", "moe_capacity": [8, 8, 8],
            "moe_gate": "topk", "moe_intermediate_size": 24, "moe_k": 3, "moe_layer_end_index": 2, "moe_layer_interval": 1,
            "moe_layer_start_index": 1, "moe_num_experts": 8, "moe_num_shared_experts": 2, "moe_use_aux_free": True,
            "num_hidden_layers": 3, "num_nextn_predict_layers": 1, "pad_token_id": 0, "rope_theta": 500000.0,
            "tie_word_embeddings": True, "use_bias": False, **more}


def hunyuan_moe(**more):
    return {**hunyuan(), "architectures": ["HunYuanMoEV1ForCausalLM"], "model_type": "hunyuan_v1_moe", "intermediate_size": 24,
            "moe_drop_tokens": False, "moe_intermediate_size": [24, 24], "moe_topk": [3, 3], "norm_topk_prob": True,
            "num_experts": 8, "num_shared_expert": [1, 1], "use_mixed_mlp_moe": True, **more}


def bloom(**more):
    return {"apply_residual_connection_post_layernorm": False, "architectures": ["BloomForCausalLM"], "attention_dropout": 0.0,
            "attention_softmax_in_fp32": True, "bias_dropout_fusion": True, "bos_token_id": 1, "eos_token_id": 2, "hidden_dropout": 0.0,
            "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "masked_softmax_fusion": True, "model_type": "bloom", "n_embed": 48,
            "n_inner": None, "n_layer": 2, "num_attention_heads": 4, "offset_alibi": 100, "pad_token_id": 3, "pretraining_tp": 1,
            "seq_length": 64, "skip_bias_add": True, "skip_bias_add_qkv": False, "slow_but_exact": False, "unk_token_id": 0,
            "use_cache": True, "vocab_size": VOCAB, **more}


def gptj(**more):
    return {**without(gpt2(), "n_ctx"), "architectures": ["GPTJForCausalLM"], "attn_pdrop": 0.0, "embd_pdrop": 0.0, "model_type": "gptj",
            "n_inner": None, "resid_pdrop": 0.0, "rotary": True, "rotary_dim": 8, "scale_attn_weights": True, "tie_word_embeddings": False,
            **more}


def phi(**more):
    return {**without(llama(), "rms_norm_eps"), "architectures": ["PhiForCausalLM"], "attention_dropout": 0.0, "bos_token_id": None,
            "embd_pdrop": 0.0, "eos_token_id": None, "hidden_act": "gelu_new", "layer_norm_eps": 1e-05, "model_type": "phi",
            "num_key_value_heads": None, "partial_rotary_factor": 0.5, "qk_layernorm": False, "resid_pdrop": 0.0, "rope_scaling": None,
            "rope_theta": 10000.0, **more}


def falcon(**more):
    return {"alibi": False, "apply_residual_connection_post_layernorm": False, "architectures": ["FalconForCausalLM"],
            "attention_dropout": 0.0, "bias": False, "bos_token_id": 11, "eos_token_id": 11, "hidden_dropout": 0.0, "hidden_size": 48,
            "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "falcon", "multi_query": True,
            "new_decoder_architecture": False, "num_attention_heads": 3, "num_hidden_layers": 2, "parallel_attn": True,
            "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": VOCAB, **more}


def seed_oss(**more):
    return {**llama(), "architectures": ["SeedOssForCausalLM"], "model_type": "seed_oss", "attention_bias": True, "attention_dropout": 0.1,
            "attention_out_bias": False, "head_dim": 16, "mlp_bias": False, "pad_token_id": 1, "pretraining_tp": 1,
            "residual_dropout": 0.1, "rms_norm_eps": 1e-06, "rope_scaling": {"rope_type": "default"}, "rope_theta": 10000000.0, **more}


def arcee(**more):
    return {**llama(), "architectures": ["ArceeForCausalLM"], "model_type": "arcee", "attention_bias": False, "attention_dropout": 0.0,
            "head_dim": 12, "hidden_act": "relu2", "mlp_bias": False, "rope_scaling": None, "rope_theta": 10000.0, **more}


def helium(**more):
    return {**llama(), "architectures": ["HeliumForCausalLM"], "model_type": "helium", "attention_bias": False, "attention_dropout": 0.0,
            "head_dim": 12, "mlp_bias": False, "num_key_value_heads": 4, "pad_token_id": 3, "rms_norm_eps": 1e-08,
            "rope_theta": 100000.0, **more}


def ernie(**more):
    return {**llama(), "architectures": ["Ernie4_5ForCausalLM"], "model_type": "ernie4_5", "head_dim": 16, "pad_token_id": 0,
            "rope_theta": 500000, "tie_word_embeddings": True, "use_bias": False, **more}


def hunyuan(**more):
    return {**llama(), "architectures": ["HunYuanDenseV1ForCausalLM"], "model_type": "hunyuan_v1_dense", "add_classification_head": False,
            "attention_bias": False, "attention_dropout": 0.0, "attention_head_dim": 16, "class_num": 0, "eod_token_id": 3,
            "head_dim": 16, "mlp_bias": False, "norm_type": "rms", "pad_token_id": 2, "pretraining_tp": 1,
            "rope_scaling": {"alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 0.0,
                             "type": "dynamic"},
            "rope_theta": 10000.0, "use_cla": False, "use_qk_norm": True, **more}


def exaone4(**more):
    return {**llama(), "architectures": ["Exaone4ForCausalLM"], "model_type": "exaone4", "attention_dropout": 0.0, "head_dim": 16,
            "num_hidden_layers": 4, "pad_token_id": 0, "rope_theta": 1000000, **more}


def mpt(**more):
    attention = {"alibi": True, "alibi_bias_max": 8, "attn_impl": "torch", "attn_pdrop": 0, "attn_type": "multihead_attention",
                 "attn_uses_sequence_id": False, "clip_qkv": None, "prefix_lm": False, "qk_ln": False, "softmax_scale": None}
    return {"architectures": ["MPTForCausalLM"], "attn_config": {**attention, **more.pop("attn_config", {})}, "d_model": 48, "emb_pdrop": 0,
            "embedding_fraction": 1.0, "expansion_ratio": 4, "init_config": {"name": "kaiming_normal_"}, "init_device": "cpu",
            "learned_pos_emb": True, "logit_scale": None, "max_seq_len": 64, "model_type": "mpt", "n_heads": 4, "n_layers": 2,
            "no_bias": True, "norm_type": "low_precision_layernorm", "resid_pdrop": 0, "tokenizer_name": "EleutherAI/gpt-neox-20b",
            "torch_dtype": "bfloat16", "use_cache": False, "verbose": 0, "vocab_size": VOCAB, **more}


def nemotron(**more):
    return {**without(llama(), "rms_norm_eps"), "architectures": ["NemotronForCausalLM"], "model_type": "nemotron",
            "attention_bias": False, "attention_dropout": 0.0, "hidden_act": "relu2", "hidden_size": 64, "initializer_range": 0.0134,
            "mlp_bias": False, "norm_eps": 1e-05, "partial_rotary_factor": 0.5, "rope_theta": 10000, **more}


def gpt_oss(**more):
    return {"architectures": ["GptOssForCausalLM"], "attention_bias": True, "attention_dropout": 0.0, "eos_token_id": 2,
            "experts_per_token": 4, "head_dim": 16, "hidden_act": "silu", "hidden_size": 48, "initial_context_length": 16,
            "initializer_range": 0.02, "intermediate_size": 40, "layer_types": ["sliding_attention", "full_attention"] * 2,
            "max_position_embeddings": 64, "model_type": "gpt_oss", "num_attention_heads": 4, "num_experts_per_tok": 4,
            "num_hidden_layers": 4, "num_key_value_heads": 2, "num_local_experts": 8, "output_router_logits": False, "pad_token_id": 3,
            "rms_norm_eps": 1e-05, "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 9, "swiglu_limit": 7.0,
            "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 4.0, "original_max_position_embeddings": 16,
                             "rope_type": "yarn", "truncate": False},
            "tie_word_embeddings": False, "transformers_version": "4.55.0.dev0", "use_cache": True, "vocab_size": VOCAB, **more}


LINEAR = {"linear_conv_kernel_dim": 4, "linear_key_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
          "linear_value_head_dim": 12}
EXPERTS = {"moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 3, "output_router_logits": False,
           "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 20}


def qwen3_next(**more):
    return {**llama(), **LINEAR, **EXPERTS, "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "attention_bias": False,
            "attention_dropout": 0.0, "decoder_sparse_step": 1, "full_attention_interval": 4, "head_dim": 16, "mlp_only_layers": [],
            "norm_topk_prob": True, "num_hidden_layers": 4, "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06, "rope_scaling": None,
            "rope_theta": 10000000, "torch_dtype": "bfloat16", "use_sliding_window": False, **more}


def qwen3_5(**more):
    return {**llama(), **LINEAR, "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "attention_bias": False,
            "attention_dropout": 0.0, "attn_output_gate": True, "dtype": "bfloat16", "full_attention_interval": 4, "head_dim": 16,
            "layer_types": ["linear_attention"] * 3 + ["full_attention"], "mamba_ssm_dtype": "float32", "mlp_only_layers": [],
            "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False, "num_hidden_layers": 4, "rms_norm_eps": 1e-06,
            "rope_parameters": {"mrope_interleaved": True, "mrope_section": [1, 1, 0], "partial_rotary_factor": 0.25,
                                "rope_theta": 10000000, "rope_type": "default"}, **more}


def qwen3_5_moe(**more):
    return {**without(qwen3_5(), "intermediate_size"), **EXPERTS, "architectures": ["Qwen3_5MoeForCausalLM"],
            "model_type": "qwen3_5_moe_text", **more}


def without(config, *keys):
    return {k: v for k, v in config.items() if k not in keys}


def llama3(factor, original):
    return {"factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": original,
            "rope_type": "llama3"}


YARN = {"factor": 4.0, "original_max_position_embeddings": 16}
PUBLISHED = {
    "Llama 1": without(llama(max_sequence_length=64, pad_token_id=0), "num_key_value_heads", "tie_word_embeddings"),
    "Llama 2": llama(num_key_value_heads=4, pretraining_tp=1, rope_scaling=None, torch_dtype="float16", max_length=64),
    "Llama 3": llama(attention_bias=False, attention_dropout=0.0, pretraining_tp=1, rope_scaling=None, rope_theta=500000.0),
    "Llama 3.1": llama(mlp_bias=False, rope_theta=500000.0, rope_scaling=llama3(8.0, 16), eos_token_id=[2, 3]),
    "Llama 3.2 1B": llama(head_dim=12, tie_word_embeddings=True, rope_theta=500000.0, rope_scaling=llama3(32.0, 32)),
    "TinyLlama": llama(num_key_value_heads=1, pretraining_tp=1, rope_scaling=None, torch_dtype="float32"),
    "SmolLM2": llama(is_llama_config=True, rope_interleaved=False, rope_theta=100000, hidden_size=36, num_attention_heads=9,
                     num_key_value_heads=3, tie_word_embeddings=True, initializer_range=0.041666666666666664,
                     **{"transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}}),
    "CodeLlama": llama(rope_theta=1000000, num_key_value_heads=4),
    "DeepSeek Coder": llama(rope_scaling={"factor": 4.0, "type": "linear"}, rope_theta=100000, num_key_value_heads=4),
    "Llama 2 with YaRN": llama(rope_scaling={**YARN, "type": "yarn", "finetuned": True}),
    "Llama with dynamic positions": llama(rope_scaling={"type": "dynamic", "factor": 2.0}),
    "Mistral 7B v0.1": mistral(sliding_window=9, rope_theta=10000.0),
    "Mistral 7B v0.3": mistral(),
    "Mistral Nemo": mistral(head_dim=16),
    "Ministral 8B": mistral(head_dim=12, sliding_window=9, layer_types=["full_attention", "sliding_attention"]),
    "Qwen 1.5": qwen2(num_key_value_heads=4, max_window_layers=21),
    "Qwen 2.5 0.5B": qwen2(),
    "Qwen 2.5 7B": qwen2(tie_word_embeddings=False, max_window_layers=28, sliding_window=131072),
    "Qwen 2.5 with YaRN": qwen2(rope_scaling={**YARN, "type": "yarn"}, tie_word_embeddings=False),
    "Qwen 2 with windows": qwen2(use_sliding_window=True, sliding_window=7, max_window_layers=1),
    "Qwen 3 0.6B": qwen3(),
    "Qwen 3 8B": qwen3(tie_word_embeddings=False, num_key_value_heads=1),
    "Qwen 3 with YaRN": qwen3(rope_scaling={**YARN, "type": "yarn", "rope_type": "yarn", "attention_factor": None}),
    "Phi-3 mini 4K": phi3(num_key_value_heads=4, sliding_window=9),
    "Phi-3 mini 128K": phi3(original_max_position_embeddings=32, num_key_value_heads=4, sliding_window=262144,
                            rope_scaling={"type": "longrope", "short_factor": [1.05] * 6, "long_factor": [1.5] * 6}),
    "Phi-4 mini": phi3(partial_rotary_factor=2 / 3, tie_word_embeddings=True, original_max_position_embeddings=32,
                       rope_scaling={"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0, 1.2, 2.5, 8.0]}),
    "Phi-4": phi3(sliding_window=None, original_max_position_embeddings=64, rope_theta=250000),
    "SmolLM3": smollm3(),
    "SmolLM3 with windows": smollm3(use_sliding_window=True, sliding_window=9, **{"layer_types": None, "no_rope_layers": None}),
    "OLMo 2": olmo2(),
    "OLMo 2 32B": olmo2(num_key_value_heads=2),
    "StableLM 3B": stablelm(use_qkv_bias=False),
    "StableLM 2 1.6B": stablelm(),
    "StableLM alpha": stablelm(use_parallel_residual=True, num_key_value_heads=2, partial_rotary_factor=0.5),
    "StarCoder2 3B": starcoder2(),
    "StarCoder2 without biases": starcoder2(use_bias=False, sliding_window=None, num_key_value_heads=1),
    "Ministral": mistral(architectures=["MinistralForCausalLM"], model_type="ministral", head_dim=12, sliding_window=9,
                         layer_types=["full_attention", "sliding_attention"]),
    "Gemma 2B": gemma(num_key_value_heads=1),
    "Gemma 7B": gemma(head_dim=256, hidden_act="gelu", hidden_activation=None, num_key_value_heads=4),
    "CodeGemma": gemma(hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=False, attention_bias=True),
    "Gemma 2 2B": gemma2(),
    "Gemma 2 9B": gemma2(head_dim=256, query_pre_attn_scalar=256, attn_logit_softcapping=2.0, final_logit_softcapping=3.0),
    "Gemma 2 27B": gemma2(query_pre_attn_scalar=144, num_key_value_heads=4, attn_logit_softcapping=0.5, sliding_window=4096),
    "Gemma 2 without caps": gemma2(attn_logit_softcapping=None, final_logit_softcapping=None,
                                   layer_types=["full_attention", "sliding_attention", "sliding_attention"]),
    "Gemma 3 1B": gemma3(num_key_value_heads=1),
    "Gemma 3 270M": gemma3(_sliding_window_pattern=6, layer_types=["sliding_attention", "sliding_attention", "full_attention"],
                           use_bidirectional_attention=False),
    "Text of Gemma 3 4B": without(gemma3(rope_scaling={"factor": 8.0, "rope_type": "linear"}, sliding_window_pattern=3), "rope_theta",
                                  "rope_local_base_freq", "final_logit_softcapping", "attn_logit_softcapping"),
    "Gemma 3 of newer files": without(gemma3(final_logit_softcapping=3.0, layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                                             rope_parameters={"full_attention": {"factor": 8.0, "rope_theta": 1000000, "rope_type": "linear"},
                                                              "sliding_attention": {"rope_theta": 20000.0, "rope_type": "default"}}),
                                      "rope_scaling", "rope_theta", "rope_local_base_freq", "sliding_window_pattern"),
    "Granite 3 2B": granite(),
    "Granite 3 8B": granite(attention_multiplier=0.0078125, logits_scaling=16.0, num_key_value_heads=1, tie_word_embeddings=False),
    "Granite without factors": without(granite(), "attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier"),
    "OLMo 3 7B": olmo3(layer_types=["sliding_attention"] * 3 + ["full_attention"],
                       rope_scaling={**YARN, "attention_factor": 1.2079441541679836, "beta_fast": 32, "beta_slow": 1, "rope_type": "yarn"}),
    "OLMo 3 32B": olmo3(num_key_value_heads=2, num_hidden_layers=5),
    "OLMo 3 with a theta of its own": olmo3(rope_theta=777, num_hidden_layers=4),
    "Command R": cohere(),
    "Aya 23 8B": cohere(num_key_value_heads=2, rope_theta=10000, tie_word_embeddings=True, use_qk_norm=False),
    "Cohere with biases": cohere(attention_bias=True, tie_word_embeddings=False, logit_scale=2.0),
    "Command R7B": cohere2(),
    "Command A": without(cohere2(layer_types=["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
                                 tie_word_embeddings=False), "sliding_window_pattern", "head_dim"),
    "Pythia": neox(),
    "GPT-NeoX 20B": neox(attention_probs_dropout_prob=0, hidden_dropout_prob=0, hidden_act="gelu_fast"),
    "RedPajama INCITE": neox(use_parallel_residual=False, rotary_pct=1.0),
    "Dolly": neox(attention_bias=True, classifier_dropout=0.1, hidden_dropout=0.0, attention_dropout=0.0, rope_scaling=None),
    "OPT 125M": opt(),
    "OPT 350M": opt(do_layer_norm_before=False, word_embed_proj_dim=24),
    "BERT base": bert(),
    "BERT multilingual": bert(directionality="bidi", pooler_fc_size=768, pooler_num_fc_layers=3, pooler_type="first_token_transform"),
    "SciBERT": without(bert(), "gradient_checkpointing", "initializer_range", "layer_norm_eps", "pad_token_id", "position_embedding_type"),
    "GLM-4 9B": glm(),
    "GLM Edge": glm(attention_bias=False, partial_rotary_factor=1.0, num_key_value_heads=4, rms_norm_eps=1e-05, pad_token_id=None),
    "GLM-4 9B 0414": glm(architectures=["Glm4ForCausalLM"], model_type="glm4", partial_rotary_factor=0.5, rms_norm_eps=1e-05),
    "GLM-4 32B 0414": glm(architectures=["Glm4ForCausalLM"], model_type="glm4", partial_rotary_factor=0.5, attention_bias=False,
                          rope_scaling={"type": "yarn", **YARN}),
    "BLOOM 560M": bloom(),
    "BLOOMZ": without(bloom(n_head=3, hidden_size=48, pretraining_tp=2), "n_embed", "num_attention_heads"),
    "BLOOM with 6 heads": bloom(num_attention_heads=6, tie_word_embeddings=False),
    "GPT-J 6B": gptj(),
    "GPT-J with whole heads": gptj(rotary_dim=16, n_inner=70, activation_function="gelu"),
    "Phi-1": phi(),
    "Phi-1.5 with groups": phi(num_key_value_heads=2),
    "Phi-2": phi(hidden_size=80, partial_rotary_factor=0.4, num_key_value_heads=4),
    "Falcon 7B": falcon(),
    "Falcon 40B": falcon(new_decoder_architecture=True, num_attention_heads=8, num_kv_heads=2, num_ln_in_parallel_attn=2,
                         hidden_size=64),
    "Falcon 180B": falcon(new_decoder_architecture=True, num_attention_heads=6, num_kv_heads=3, hidden_size=48, bias=True,
                          tie_word_embeddings=False),
    "Falcon 2 11B": falcon(new_decoder_architecture=True, num_attention_heads=4, num_kv_heads=2, num_ln_in_parallel_attn=1,
                           hidden_size=32, ffn_hidden_size=80, rope_theta=500042.0),
    "Falcon of one group": falcon(new_decoder_architecture=True, num_attention_heads=4, num_kv_heads=1, hidden_size=32),
    "Falcon of groups of one": falcon(new_decoder_architecture=True, num_attention_heads=4, num_kv_heads=None, hidden_size=32),
    "Falcon RW": falcon(alibi=True, bias=True, multi_query=False, parallel_attn=False, num_attention_heads=6),
    "Falcon RW of 5 heads": falcon(alibi=True, num_attention_heads=5, hidden_size=40, max_position_embeddings=64),
    "Falcon with biases": falcon(bias=True, parallel_attn=False, ffn_hidden_size=70, tie_word_embeddings=False),
    "Falcon with all keys": falcon(multi_query=False, rope_theta=500000.0, max_position_embeddings=64),
    "Seed-OSS 36B": seed_oss(),
    "Seed-OSS with all biases": seed_oss(attention_out_bias=True, mlp_bias=True, num_key_value_heads=4),
    "AFM 4.5B": arcee(rope_scaling={"rope_type": "yarn", **YARN, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0}),
    "AFM with biases": arcee(attention_bias=True, mlp_bias=True, pad_token_id=5),
    "Helium 1 2B": helium(),
    "Helium with biases": helium(attention_bias=True, mlp_bias=True, num_key_value_heads=2, tie_word_embeddings=True),
    "ERNIE 4.5 0.3B": ernie(),
    "ERNIE 4.5 with biases": ernie(use_bias=True, tie_word_embeddings=False, rope_scaling={"rope_type": "linear", "factor": 2.0}),
    "Hunyuan 7B": hunyuan(),
    "Hunyuan 0.5B": hunyuan(tie_word_embeddings=True, num_key_value_heads=4, attention_bias=True,
                            rope_scaling={"type": "dynamic", "factor": 2.0}),
    "EXAONE 4.0 1.2B": exaone4(sliding_window=None, sliding_window_pattern=None, tie_word_embeddings=True,
                               layer_types=["full_attention"] * 4, rope_scaling={**llama3(16.0, 32)}),
    "EXAONE 4.0 32B": exaone4(sliding_window=9, sliding_window_pattern="LLLG", layer_types=["sliding_attention"] * 3 + ["full_attention"]),
    "EXAONE 4.0 by a pattern": exaone4(sliding_window=9, sliding_window_pattern=2),
    "DeepSeek-V2-Lite": deepseek_v2(),
    "DeepSeek-V2": deepseek_v2(q_lora_rank=28, n_group=4, topk_group=2, topk_method="group_limited_greedy", n_routed_experts=16,
                               routed_scaling_factor=16.0),
    "DeepSeek-V2 with biases": deepseek_v2(attention_bias=True, mlp_bias=True, q_lora_rank=28, rope_scaling=None,
                                           first_k_dense_replace=0, tie_word_embeddings=True),
    "DeepSeek-V3": deepseek_v3(),
    "DeepSeek-V3 with other widths": deepseek_v3(v_head_dim=32, attention_bias=True, rope_interleave=False, head_dim=8,
                                                 norm_topk_prob=False, topk_group=1),
    "DeepSeek-V3 in fp8": deepseek_v3(quantization_config={"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                                                           "weight_block_size": [16, 32]}),
    "Moonlight 16B-A3B": deepseek_v3(n_group=1, topk_group=1, q_lora_rank=None, n_shared_experts=2, rope_scaling=None, rope_theta=50000.0,
                                     num_nextn_predict_layers=0, routed_scaling_factor=2.446, num_experts_per_tok=6),
    "GLM-4.5-Air": glm4_moe(),
    "GLM-4.5": glm4_moe(use_qk_norm=True, routed_scaling_factor=2.5, first_k_dense_replace=2),
    "ERNIE 4.5 21B-A3B": ernie_moe(),
    "ERNIE 4.5 with few experts": ernie_moe(moe_layer_start_index=0, moe_layer_end_index=1, moe_num_shared_experts=0,
                                            tie_word_embeddings=False, head_dim=16),
    "Hunyuan A13B": hunyuan_moe(),
    "MPT 7B": mpt(),
    "MPT 30B": mpt(n_heads=6, attn_config={"softmax_scale": 0.3}),
    "Minitron 4B": nemotron(),
    "Nemotron-4 with biases": nemotron(head_dim=12, attention_bias=True, mlp_bias=True, rope_scaling=None, pad_token_id=4),
    "Qwen3-Next 80B": qwen3_next(),
    "Qwen3-Next of one head": without(qwen3_next(linear_num_key_heads=1, linear_num_value_heads=1, num_attention_heads=1,
                                                 num_key_value_heads=1, mlp_only_layers=[0], norm_topk_prob=False), "rope_theta"),
    "Qwen 3.5 9B": qwen3_5(),
    "Qwen 3.5 0.8B": without(qwen3_5(tie_word_embeddings=True, linear_num_value_heads=2, linear_conv_kernel_dim=3,
                                     full_attention_interval=2), "layer_types", "mtp_num_hidden_layers"),
    "Qwen 3.5 35B A3B": qwen3_5_moe(),
    "Qwen 3.6 with other layers": qwen3_5_moe(layer_types=["full_attention", "linear_attention"] * 2, linear_num_key_heads=4,
                                              linear_key_head_dim=6, linear_value_head_dim=5, attention_bias=True),
    "RoBERTa base": roberta(),
    "RoBERTa of BERT's defaults": without(roberta(pad_token_id=4, type_vocab_size=3, hidden_act="gelu_new", max_position_embeddings=32),
                                          "layer_norm_eps", "initializer_range"),
    "XLM-RoBERTa base": roberta(architectures=["XLMRobertaForMaskedLM"], model_type="xlm-roberta", output_past=True,
                                position_embedding_type="absolute", use_cache=True),
    "CamemBERT base": roberta(architectures=["CamembertForMaskedLM"], model_type="camembert", bos_token_id=5, eos_token_id=6,
                              output_past=True),
    "DistilBERT base": distilbert(),
    "DistilBERT of its own head": distilbert(tie_word_embeddings=False, activation="relu", pad_token_id=None,
                                             sinusoidal_pos_embds=True),
    "ModernBERT base": modernbert(),
    "mmBERT": modernbert(local_rope_theta=160000, sparse_prediction=True, sparse_pred_ignore_index=-100, repad_logits_with_grad=False),
    "ModernBERT by layers": without(modernbert(
        layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"], local_attention=7,
        rope_parameters={"full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 777.0}}),
        "global_attn_every_n_layers", "global_rope_theta", "local_rope_theta"),
    "ModernBERT with biases": modernbert(attention_bias=True, mlp_bias=True, norm_bias=True, classifier_bias=True, tie_word_embeddings=False,
                                         classifier_activation="relu", hidden_activation="silu"),
    "GPT-OSS 20B": gpt_oss(),
    "GPT-OSS 120B": gpt_oss(num_local_experts=16, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=1,
                            layer_types=["sliding_attention", "full_attention"]),
    "GPT-OSS 20B in MXFP4": gpt_oss(hidden_size=64, intermediate_size=32, quantization_config={"modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"], "quant_method": "mxfp4"}),
    "GPT-OSS of newer files": without(gpt_oss(swiglu_limit=0.25, swiglu_alpha=1.25, num_experts_per_tok=2, tie_word_embeddings=True),
                                      "rope_scaling", "rope_theta", "layer_types", "pad_token_id", "attention_bias"),
    "GPT-OSS without biases": gpt_oss(attention_bias=False, layer_types=["full_attention"] * 4, rope_scaling=None, num_experts_per_tok=1,
                                      rope_parameters={"rope_type": "default", "rope_theta": 777.0}),
    "GPT-2": gpt2(),
    "DistilGPT-2": gpt2(_num_labels=1, id2label={"0": "LABEL_0"}, label2id={"LABEL_0": 0}),
    "Cerebras-GPT": gpt2(activation_function="gelu", n_inner=96, scale_attn_weights=True, attn_pdrop=0.0),
    "CodeParrot": gpt2(reorder_and_upcast_attn=True, scale_attn_by_inverse_layer_idx=True, scale_attn_weights=True),
}


def random_rope(r, head):
    kind = r.choice(["default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional"])
    rope = {"rope_type": kind}
    if kind in ("linear", "dynamic", "llama3", "yarn"):
        rope["factor"] = r.choice([1.0, 2.0, 4.0, 8.0])
    if kind in ("llama3", "yarn", "longrope"):
        rope["original_max_position_embeddings"] = r.choice([16, 32])
    if kind == "llama3":
        rope.update(low_freq_factor=r.choice([1.0, 2.0]), high_freq_factor=r.choice([4.0, 8.0]))
    if kind == "yarn":
        more = {"beta_fast": r.choice([32, 16]), "beta_slow": 2, "attention_factor": 1.2, "truncate": False}
        rope.update({k: v for k, v in more.items() if r.random() < .4})
        rope.update({"mscale": .7, "mscale_all_dim": .5} if r.random() < .4 else {})
    if kind == "longrope":
        rope["short_factor"] = [round(1 + r.random(), 3) for _ in range(head // 2)]
        rope["long_factor"] = [round(1 + 4 * r.random(), 3) for _ in range(head // 2)]
        rope.update({k: v for k, v in {"attention_factor": 1.1, "factor": 4.0}.items() if r.random() < .3})
    if kind == "proportional":  # only newer files have it
        rope.update(factor=r.choice([1.0, 2.0]), partial_rotary_factor=r.choice([.5, 1.0]))
    theta = r.choice([10000.0, 500000.0, 777.0, 1e6])
    if kind == "proportional" or r.random() < .5:
        return {"rope_parameters": {**rope, "rope_theta": theta}}
    if r.random() < .5:
        rope["type"] = rope.pop("rope_type")
    return {"rope_scaling": rope, "rope_theta": theta}


def random_llama(r, make, heads, size, layers, inner):
    c = make(hidden_size=heads * size, num_attention_heads=heads, num_hidden_layers=layers, intermediate_size=inner,
             num_key_value_heads=r.choice([h for h in range(1, heads + 1) if heads % h == 0]), tie_word_embeddings=r.random() < .5)
    head = size
    if make is qwen3 or (make is not qwen2 and r.random() < .5):
        head = c["head_dim"] = r.choice([4, 8, 12, 16])
    if make in (llama, qwen3):
        c["attention_bias"] = r.random() < .4
    if make is llama:
        c["mlp_bias"] = r.random() < .3
    if make is mistral:
        c["sliding_window"] = r.choice([None, 3, 9, 24, 40, 4096])
    if make in (qwen2, qwen3):
        c.update(use_sliding_window=r.random() < .6, sliding_window=r.choice([None, 5, 11, 4096]), max_window_layers=r.choice([0, 1, 2, 28]))
        kinds = ["full_attention", "sliding_attention"][:1 + (c["use_sliding_window"] and c["sliding_window"] is not None)]
        if r.random() < .4:
            c["layer_types"] = [r.choice(kinds) for _ in range(layers)]
    if r.random() < .2:
        c["pad_token_id"] = r.choice([None, 0, 5, -1])
    return {**c, **(random_rope(r, head) if r.random() < .7 else {})}


def random_by_kinds(r, head):
    """Positions by kinds of layers; a border of longrope is the same for both."""
    found = {}
    for kind in ("full_attention", "sliding_attention"):
        rope = random_rope(r, head)
        rope = rope.get("rope_parameters") or {**rope["rope_scaling"], "rope_theta": rope["rope_theta"]}
        found[kind] = {("rope_type" if k == "type" else k): v for k, v in rope.items() if k != "truncate"}
        if found[kind]["rope_type"] == "longrope":
            found[kind]["original_max_position_embeddings"] = 16
    return found


def random_newer(r, make):
    heads, size, layers = r.choice([2, 3, 4]), r.choice([8, 16]), r.choice([1, 2, 3, 5])
    c = make(hidden_size=heads * size, num_attention_heads=heads, num_hidden_layers=layers, intermediate_size=r.choice([7, 33, 64]),
             num_key_value_heads=r.choice([h for h in range(1, heads + 1) if heads % h == 0]), tie_word_embeddings=r.random() < .5,
             attention_bias=r.random() < .4)
    if "head_dim" in c:
        size = c["head_dim"] = r.choice([4, 8, 12, 16])
    if "sliding_window" in c:
        c["sliding_window"] = r.choice([3, 9, 24, 4096])
        c.update({"layer_types": [r.choice(["full_attention", "sliding_attention"]) for _ in range(layers)]} if r.random() < .5 else {})
    if "sliding_window_pattern" in c:
        c["sliding_window_pattern"] = r.choice([1, 2, 3, 6])
    if "query_pre_attn_scalar" in c:
        c.update(query_pre_attn_scalar=r.choice([1, 5, 64]), final_logit_softcapping=r.choice([None, 1.5, 30.0]))
    if make is gemma2:
        c["attn_logit_softcapping"] = r.choice([None, .7, 50.0])
    if r.random() < .3:
        c["pad_token_id"] = r.choice([None, 0, 5])
    if make not in (gemma3, olmo3):
        return {**c, **(random_rope(r, size) if r.random() < .7 else {})}
    c = without(c, "rope_scaling", "rope_theta", "rope_local_base_freq")
    return {**c, **({"rope_parameters": random_by_kinds(r, size)} if r.random() < .7 else {})}


def random_config(seed):
    r = random.Random(seed)
    heads, size, layers, inner = r.choice([1, 2, 3, 4, 6]), r.choice([4, 6, 8, 10, 16]), r.choice([1, 2, 3]), r.choice([7, 33, 64, 100])
    kinds = [llama, mistral, qwen2, qwen3, gpt2, neox, opt, bert, roberta, distilbert, modernbert, gemma, gemma2, gemma3, granite, olmo3,
             cohere, cohere2]
    wide, tied, make = heads * size, r.random() < .5, kinds[seed % len(kinds)]
    if seed % len(kinds) > kinds.index(modernbert):
        return random_newer(r, make)
    if make is gpt2:
        return gpt2(n_embd=wide, n_head=heads, n_layer=layers, n_inner=r.choice([None, inner]), scale_attn_weights=r.random() < .7,
                    activation_function=r.choice(["gelu", "gelu_new", "relu", "gelu_pytorch_tanh", "gelu_fast"]), tie_word_embeddings=tied,
                    scale_attn_by_inverse_layer_idx=r.random() < .3)
    if make is opt:
        before = r.random() < .6
        return opt(hidden_size=wide, num_attention_heads=heads, num_hidden_layers=layers, ffn_dim=inner, do_layer_norm_before=before,
                   word_embed_proj_dim=wide if before else r.choice([wide, 8, 20]), tie_word_embeddings=tied,
                   activation_function=r.choice(["relu", "gelu", "gelu_new"]), pad_token_id=r.choice([1, 0, None]))
    common = dict(hidden_size=wide, num_attention_heads=heads, num_hidden_layers=layers, intermediate_size=inner)
    if make is bert:
        return bert(**common, hidden_act=r.choice(["gelu", "relu", "gelu_new"]), type_vocab_size=r.choice([1, 2, 3]),
                    pad_token_id=r.choice([0, None, 3]))
    if make is distilbert:
        return distilbert(dim=wide, n_heads=heads, n_layers=layers, hidden_dim=inner, activation=r.choice(["gelu", "relu"]),
                          pad_token_id=r.choice([0, None, 5]), tie_word_embeddings=tied)
    if make is modernbert:
        return modernbert(**common, local_attention=r.choice([1, 2, 5, 16, 200]), global_attn_every_n_layers=r.choice([1, 2, 3]),
                          norm_bias=r.random() < .3, mlp_bias=r.random() < .3, attention_bias=r.random() < .3,
                          classifier_bias=r.random() < .3, pad_token_id=r.choice([83, None]), tie_word_embeddings=tied)
    if make is roberta:
        pad = r.choice([0, 1, 6])
        return roberta(**common, hidden_act=r.choice(["gelu", "relu", "gelu_new"]), type_vocab_size=r.choice([1, 2]), pad_token_id=pad,
                       max_position_embeddings=64 + pad + 1, model_type=r.choice(["roberta", "xlm-roberta", "camembert"]))
    if make is neox:
        shares = [p for p in (.25, .5, 1.0) if int(size * p) >= 2 and int(size * p) % 2 == 0]
        return neox(**common, rotary_pct=r.choice(shares), use_parallel_residual=r.random() < .6, attention_bias=r.random() < .7,
                    tie_word_embeddings=tied, hidden_act=r.choice(["gelu", "gelu_new", "gelu_fast", "relu"]),
                    **({"rope_scaling": {"type": "linear", "factor": 2.0}} if r.random() < .3 else {}))
    return random_llama(r, make, heads, size, layers, inner)


def write_old_buffers(path, layers):
    """Tensors that older versions of transformers left in a file beside the weights."""
    tensors = load_file(path)
    for i in range(layers):
        tensors[f"gpt_neox.layers.{i}.attention.bias"] = torch.ones(1, 1, 64, 64, dtype=torch.uint8)
        tensors[f"gpt_neox.layers.{i}.attention.masked_bias"] = torch.tensor(-1e9)
        tensors[f"gpt_neox.layers.{i}.attention.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(tensors, path, metadata={"format": "pt"})


def pack_mxfp4(hf):
    """Experts' matrices as random blocks and scales, as the published GPT-OSS are."""
    for path in (os.path.join(hf, name) for name in os.listdir(hf) if name.endswith(".safetensors")):
        tensors = load_file(path)
        for name in [k for k in tensors if k.endswith(("gate_up_proj", "down_proj"))]:
            experts, n_in, n_out = tensors.pop(name).shape
            tensors[name + "_blocks"] = torch.randint(0, 256, (experts, n_out, n_in // 32, 16), dtype=torch.uint8)
            tensors[name + "_scales"] = torch.randint(118, 124, (experts, n_out, n_in // 32), dtype=torch.uint8)
        save_file(tensors, path, metadata={"format": "pt"})


def write_later_layers(path, config):
    """Tensors of the layers that predict further tokens, as DeepSeek-V3 and GLM-4.5 are published."""
    tensors, last = load_file(path), config["num_hidden_layers"]
    tensors[f"model.layers.{last}.eh_proj.weight"] = torch.ones(4, 8)
    tensors[f"model.layers.{last}.mlp.gate.e_score_correction_bias"] = torch.ones(3)
    save_file(tensors, path, metadata={"format": "pt"})


def to_fp8(tensors, block):
    """As DeepSeek-V3 is published: matrices of layers in fp8 with a scale for each block; and what the codes stand for."""
    packed, plain = {}, {}
    for key, x in tensors.items():
        packed[key] = plain[key] = x
        if not key.endswith("proj.weight") and "kv_a_proj" not in key:
            continue
        rows, cols = x.shape
        up, across = -(-rows // block[0]), -(-cols // block[1])
        whole = torch.nn.functional.pad(x.float(), (0, across * block[1] - cols, 0, up * block[0] - rows))
        whole = whole.reshape(up, block[0], across, block[1])
        scale = whole.abs().amax((1, 3)).clamp(min=1e-9) / 448
        codes = (whole / scale[:, None, :, None]).to(torch.float8_e4m3fn)
        flat = (up * block[0], across * block[1])
        packed[key], packed[key + "_scale_inv"] = codes.reshape(flat)[:rows, :cols].contiguous(), scale
        plain[key] = (codes.float() * scale[:, None, :, None]).reshape(flat)[:rows, :cols].contiguous()
    return packed, plain


def check_refusals_of_fp8(packed, config, folder):
    """Scales that are missing or of another shape are refused by name."""
    name = next(key for key in packed if key.endswith("_scale_inv"))
    for number, (scale, words) in enumerate(((None, "is missing beside its matrix in F8_E4M3"),
                                             (packed[name][:1, :1].contiguous(), "with blocks of"))):
        bad = os.path.join(folder, f"bad{number}")
        os.mkdir(bad)
        json.dump(config, open(os.path.join(bad, "config.json"), "w"))
        tensors = {key: x for key, x in packed.items() if key != name}
        save_file({**tensors, **({} if scale is None else {name: scale})}, os.path.join(bad, "model.safetensors"))
        done = subprocess.run([f"{BIN}/dsc", "generate", "--model", bad, "--prompt-ids", "1"], capture_output=True, text=True)
        assert done.returncode == 2 and name in done.stderr and words in done.stderr, f"expected {words}: {done.stderr}"


def check_biases_of_routers(hf, folder):
    """A run in bf16 does not round the biases of a folder's routers: its export has them in fp32, bit by bit."""
    config, save, out = (os.path.join(folder, name) for name in ("bf16.json", "bf16", "bf16-export"))
    json.dump({"train_batch_size": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "bf16": {"enabled": True}}, open(config, "w"))
    run(f"{BIN}/train", "--config", config, "--model", hf, "--data", os.path.join(folder, "tokens.bin"), "--seq-len", "24", "--steps", "1",
        "--save", save)
    run(f"{BIN}/dsc", "ckpt", "export", f"{save}/step-1", "--out", out)
    theirs, ours = load_file(os.path.join(hf, "model.safetensors")), load_file(os.path.join(out, "model.safetensors"))
    biases = [key for key in theirs if key.endswith("e_score_correction_bias")]
    assert biases and all(ours[key].dtype == torch.float32 and torch.equal(ours[key], theirs[key]) for key in biases)
    assert ours["model.norm.weight"].dtype == torch.bfloat16


def check_fp8(config, folder):
    """A folder in fp8 against transformers' model of the numbers that its codes stand for."""
    hf, plain = os.path.join(folder, "hf"), os.path.join(folder, "plain")
    os.mkdir(plain)
    json.dump(without(config, "quantization_config"), open(os.path.join(plain, "config.json"), "w"))
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(plain))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.05)
        for key, buffer in model.named_buffers():
            if key.endswith("e_score_correction_bias"):
                buffer.add_(torch.randn_like(buffer) * 0.2)
    model.save_pretrained(plain)
    packed, values = to_fp8(load_file(os.path.join(plain, "model.safetensors")), config["quantization_config"]["weight_block_size"])
    save_file(packed, os.path.join(hf, "model.safetensors"), metadata={"format": "pt"})
    save_file(values, os.path.join(plain, "model.safetensors"), metadata={"format": "pt"})
    theirs = transformers.AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32, attn_implementation="eager")
    check_refusals_of_fp8(packed, config, folder)
    compare(theirs, hf, folder)
    check_biases_of_routers(plain, folder)
    assert "quantization_config" not in json.load(open(os.path.join(folder, "export", "config.json"))), "the export says fp8"


def check(config, name, folder):
    r, hf = random.Random(name), os.path.join(folder, "hf")
    torch.manual_seed(zlib.crc32(name.encode()))  # whatever ran before: another seed may change a token's expert in some step
    path, single = os.path.join(hf, "config.json"), os.path.join(hf, "model.safetensors")
    kind = transformers.AutoModelForMaskedLM if config["model_type"] in MASKED_FAMILIES else transformers.AutoModelForCausalLM
    os.mkdir(hf)
    json.dump(config, open(path, "w"))
    if config.get("quantization_config", {}).get("quant_method") == "fp8":
        return check_fp8(config, folder)
    packed = "quantization_config" in config  # in MXFP4
    json.dump(without(config, "quantization_config"), open(path, "w"))
    model = kind.from_config(transformers.AutoConfig.from_pretrained(hf)).to(r.choice([torch.float32, torch.bfloat16, torch.float16]))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.05)
        for buffer_name, buffer in [*model.named_buffers(), *model.named_parameters()]:
            if buffer_name.endswith("e_score_correction_bias"):
                buffer.add_(torch.randn_like(buffer) * 0.2)
    model.save_pretrained(hf, max_shard_size="1GB" if packed else r.choice(["1GB", "40KB", "15KB"]))
    if packed:
        pack_mxfp4(hf)
    json.dump(config, open(path, "w"))  # as it was published, not as it is written today
    if os.path.exists(single) and r.random() < .5:
        write_as_of_old(single, model.config)
    if os.path.exists(single) and config["model_type"] == "gpt_neox" and r.random() < .5:
        write_old_buffers(single, config["num_hidden_layers"])
    theirs = kind.from_pretrained(hf, dtype=torch.float32, attn_implementation=attention_of(model.config))
    if packed:  # a model that was read from 4 bits is not one to train until its config forgets them
        again = os.path.join(folder, "unpacked")
        theirs.save_pretrained(again)
        theirs = kind.from_pretrained(again, dtype=torch.float32, attn_implementation="eager")
    if os.path.exists(single) and config.get("num_nextn_predict_layers"):
        write_later_layers(single, config)
    compare(theirs, hf, folder)


DOCUMENTS = ("Qwen3-Next 80B", "Qwen 3.5 9B")  # layers with a state, which must begin anew


def check_documents(config, folder):
    """Samples of several documents: each is computed as a text of its own."""
    hf, data = os.path.join(folder, "hf"), os.path.join(folder, "tokens.bin")
    kind, end = transformers.AutoModelForCausalLM, 8
    os.mkdir(hf)
    json.dump(config, open(os.path.join(hf, "config.json"), "w"))
    kind.from_config(transformers.AutoConfig.from_pretrained(hf)).save_pretrained(hf)
    json.dump(config, open(os.path.join(hf, "config.json"), "w"))
    tokens = [t if i % 3 else end for i, t in enumerate(write_tokens(data))]
    array.array("H", tokens).tofile(open(data, "wb"))
    want = train_theirs(kind.from_pretrained(hf, dtype=torch.float32, attn_implementation="eager"), tokens, end)
    got, _, _ = train_ours(hf, data, folder, document_end=end)
    off = max(abs(a - b) for a, b in zip(got, want))
    print(f"# losses within {off:.2g}", flush=True)
    assert len(got) == len(want) and off < 2e-4, f"losses are {off} apart"


def main():
    seed = int(os.environ.get("DSC_TEST_SEED", time.time()))
    print(f"# seed {seed}; rerun: DSC_TEST_SEED={seed}", flush=True)
    wanted = os.environ.get("DSC_TEST_NAMES")  # separated by commas
    names = list(PUBLISHED) if NIGHT else random.Random(seed).sample(list(PUBLISHED), 5)
    names = wanted.split(",") if wanted else names
    tests = [(name, check, (PUBLISHED[name], name)) for name in names]
    tests += [(f"{name}, documents", check_documents, (PUBLISHED[name],)) for name in DOCUMENTS if not wanted or name in names]
    for number in range(0 if wanted else 100 if NIGHT else 3):
        config = random_config(seed + number)
        name = f"{config['model_type']} at random, {seed + number}"
        tests.append((name, check, (config, name)))
    sys.exit(run_all(tests))


if __name__ == "__main__":
    main()
