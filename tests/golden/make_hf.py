#!/usr/bin/env python3
"""make_hf.py - logits, losses and gradients of small GPT-NeoX, OPT, BERT and Llamas in double precision, from `transformers` itself.

Writes hf_*.safetensors and their config.json beside this file, and lora_*.safetensors of models with adapters by `peft`. Needs
torch, numpy, transformers 5 and peft (PyPI; the weights are golden.py's, nothing is downloaded). Run again only when a case changes. SPDX-License-Identifier: Apache-2.0"""
import json
import os
import sys

import numpy as np
import torch
import transformers

from golden import HERE, SAMPLES, fnv, mixed, values, write_safetensors


def neox(V, C, heads, L, I, P, **more):
    c = {"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"], "vocab_size": V, "hidden_size": C,
         "num_attention_heads": heads, "num_hidden_layers": L, "intermediate_size": I, "max_position_embeddings": P,
         "hidden_act": "gelu", "layer_norm_eps": 1e-5, "rotary_pct": 0.25, "rotary_emb_base": 10000,
         "tie_word_embeddings": False, "hidden_dropout": 0.0, "attention_dropout": 0.0}
    c.update(more)
    return c


def opt(V, C, heads, L, I, P, **more):
    c = {"model_type": "opt", "architectures": ["OPTForCausalLM"], "vocab_size": V, "hidden_size": C,
         "num_attention_heads": heads, "num_hidden_layers": L, "ffn_dim": I, "max_position_embeddings": P,
         "word_embed_proj_dim": C, "activation_function": "relu", "do_layer_norm_before": True, "dropout": 0.0,
         "attention_dropout": 0.0, "layerdrop": 0.0, "tie_word_embeddings": True, "pad_token_id": 5}
    c.update(more)
    return c


def llama(V, C, heads, kv, L, I, P, **more):
    c = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": V, "hidden_size": C,
         "num_attention_heads": heads, "num_key_value_heads": kv, "num_hidden_layers": L, "intermediate_size": I,
         "max_position_embeddings": P, "rms_norm_eps": 1e-6, "tie_word_embeddings": False}
    c.update(more)
    return c


def qwen2(*sizes, **more):
    return {**llama(*sizes), "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], **more}


def bert(V, C, heads, L, I, P, **more):
    c = {"model_type": "bert", "architectures": ["BertForMaskedLM"], "vocab_size": V, "hidden_size": C,
         "num_attention_heads": heads, "num_hidden_layers": L, "intermediate_size": I, "max_position_embeddings": P,
         "type_vocab_size": 3, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "pad_token_id": 4}
    c.update(more)
    return c


def moe(kind, *sizes, **more):
    """qwen3_moe, qwen2_moe, mixtral or olmoe"""
    name = {"qwen3_moe": "Qwen3Moe", "qwen2_moe": "Qwen2Moe", "mixtral": "Mixtral", "olmoe": "Olmoe"}[kind]
    return {**llama(*sizes), "model_type": kind, "architectures": [name + "ForCausalLM"], **more}


def gpt_oss(experts, top_k, limit):
    rope = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False, "original_max_position_embeddings": 16}
    return {**llama(31, 24, 4, 2, 2, 20, 64), "model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "head_dim": 6,
            "num_local_experts": experts, "num_experts_per_tok": top_k, "sliding_window": 4, "swiglu_limit": limit, "rope_scaling": rope}


def deepseek(kind, V, C, heads, L, I, P, **more):
    """deepseek_v2 or deepseek_v3: values wider or narrower than keys, a dense layer, one expert for all tokens"""
    c = {**llama(V, C, heads, heads, L, I, P), "model_type": kind, "architectures": [f"Deepseek{kind[-2:].upper()}ForCausalLM"],
         "kv_lora_rank": 20, "q_lora_rank": 14, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 8,
         "moe_intermediate_size": 12, "n_routed_experts": 8, "n_shared_experts": 1, "n_group": 4, "topk_group": 2,
         "num_experts_per_tok": 2, "first_k_dense_replace": 1, "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}}
    c.update(more)
    return c


def gpt2(V, C, heads, L, P):
    return {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": V, "n_embd": C, "n_head": heads,
            "n_layer": L, "n_positions": P, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}


YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 100, "mscale": 0.7,
        "mscale_all_dim": 0.4}
LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 24,
        "short_factor": [1.0, 1.05, 1.2, 1.5], "long_factor": [1.1, 2.5, 7.0, 12.0]}
# name, config, batch, tokens, whole gradients, arguments of peft's LoraConfig
CASES = [
    ("hf_neox", neox(97, 48, 3, 2, 70, 64), 2, 33, False),
    ("hf_neox_serial", neox(23, 24, 2, 1, 20, 16, use_parallel_residual=False, attention_bias=False, rotary_pct=1.0,
                            hidden_act="gelu_new", tie_word_embeddings=True), 3, 7, True),
    ("hf_opt", opt(97, 60, 3, 2, 77, 48), 2, 33, False),
    ("hf_yarn", llama(97, 32, 4, 2, 1, 50, 800, rope_parameters=YARN, pad_token_id=7), 2, 40, False),
    ("hf_longrope", llama(97, 32, 4, 2, 1, 50, 96, rope_parameters=LONG), 2, 33, False),
    ("hf_longrope_short", llama(31, 32, 4, 2, 1, 20, 96, rope_parameters={**LONG, "attention_factor": 1.3}), 2, 24, False),
    ("hf_proportional", llama(31, 32, 4, 2, 1, 20, 40, rope_parameters={"rope_type": "proportional", "rope_theta": 5000.0,
                                                                    "factor": 2.0, "partial_rotary_factor": 0.5}), 2, 24, False),
    ("hf_windows", qwen2(31, 24, 4, 2, 3, 20, 40, use_sliding_window=True, sliding_window=9,
                         layer_types=["sliding_attention", "full_attention", "sliding_attention"]), 2, 24, False),
    ("hf_windows_last", qwen2(23, 16, 2, 1, 2, 20, 40, use_sliding_window=True, sliding_window=5, max_window_layers=1), 2, 17, False),
    ("hf_opt_gelu", opt(23, 16, 2, 1, 20, 9, activation_function="gelu", tie_word_embeddings=False), 3, 7, True),
    ("hf_opt_post", opt(31, 24, 2, 2, 40, 12, do_layer_norm_before=False, word_embed_proj_dim=16,
                        activation_function="gelu"), 3, 7, False),
    # In these no logits of a router are so near each other that 16 bits change the experts.
    ("hf_qwen3_moe", moe("qwen3_moe", 97, 48, 4, 2, 2, 70, 64, head_dim=12, moe_intermediate_size=20, num_experts=8,
                         num_experts_per_tok=2, norm_topk_prob=True, decoder_sparse_step=2), 2, 12, False),
    ("hf_qwen2_moe", moe("qwen2_moe", 29, 24, 4, 2, 1, 20, 16, moe_intermediate_size=12, num_experts=4, num_experts_per_tok=3,
                         shared_expert_intermediate_size=16), 3, 9, True),
    ("hf_mixtral", moe("mixtral", 31, 24, 4, 2, 2, 20, 16, num_local_experts=4, num_experts_per_tok=2), 2, 10, False),
    ("hf_olmoe", moe("olmoe", 31, 24, 4, 2, 1, 20, 16, num_experts=6, num_experts_per_tok=4, pad_token_id=7), 3, 7, False),
    ("hf_moe_all", moe("qwen3_moe", 31, 24, 4, 2, 1, 20, 16, head_dim=6, moe_intermediate_size=12, num_experts=3,
                       num_experts_per_tok=3), 3, 7, False),
    ("hf_gpt_oss", gpt_oss(5, 3, 7.0), 2, 10, False),
    ("hf_gpt_oss_clamped", gpt_oss(3, 3, 0.5), 2, 10, False),
    ("hf_deepseek_v3", deepseek("deepseek_v3", 97, 48, 4, 2, 40, 800), 2, 12, False),
    ("hf_deepseek_v2", deepseek("deepseek_v2", 29, 24, 2, 2, 20, 800, q_lora_rank=None, v_head_dim=14,
                                topk_method="group_limited_greedy", routed_scaling_factor=2.0), 3, 9, False),
    ("hf_bert", bert(97, 48, 3, 2, 70, 64), 2, 33, False),
    ("hf_bert_new", bert(31, 24, 2, 1, 20, 16, hidden_act="gelu_new", layer_norm_eps=1e-5, pad_token_id=None), 3, 9, True),
    ("lora_llama", llama(23, 24, 4, 2, 2, 20, 16, attention_bias=True), 3, 7, False,
     {"r": 5, "lora_alpha": 12, "target_modules": "all-linear"}),
    ("lora_gpt2", gpt2(23, 16, 2, 2, 16), 3, 7, False,
     {"r": 3, "lora_alpha": 6, "use_rslora": True, "target_modules": ["c_attn", "mlp.c_proj"], "fan_in_fan_out": True}),
    ("lora_neox", neox(23, 24, 2, 2, 20, 16, rotary_pct=0.5), 3, 7, False,
     {"r": 4, "lora_alpha": 4, "target_modules": ["query_key_value", "dense_h_to_4h", "attention.dense"]}),
    ("lora_opt", opt(23, 16, 2, 2, 20, 9, activation_function="gelu"), 3, 7, False,
     {"r": 2, "lora_alpha": 3, "target_modules": ["q_proj", "v_proj", "out_proj", "fc1", "fc2"]}),
    ("lora_opt_wide", opt(23, 24, 2, 2, 20, 9, word_embed_proj_dim=16, do_layer_norm_before=False,
                          activation_function="gelu"), 3, 7, False,
     {"r": 3, "lora_alpha": 5, "target_modules": ["project_in", "project_out", "fc1"]}),
    ("lora_bert", bert(31, 24, 2, 2, 20, 16), 3, 9, False, {"r": 3, "lora_alpha": 7, "target_modules": "all-linear"}),
    ("dora_llama", llama(23, 24, 4, 2, 2, 20, 16, attention_bias=True), 3, 7, False,
     {"r": 5, "lora_alpha": 12, "target_modules": "all-linear", "use_dora": True}),
    ("dora_gpt2", gpt2(23, 16, 2, 2, 16), 3, 7, False,
     {"r": 3, "lora_alpha": 6, "use_rslora": True, "target_modules": ["c_attn", "mlp.c_proj"], "fan_in_fan_out": True, "use_dora": True}),
    ("dora_opt_wide", opt(23, 24, 2, 2, 20, 9, word_embed_proj_dim=16, do_layer_norm_before=False,
                          activation_function="gelu"), 3, 7, False,
     {"r": 3, "lora_alpha": 5, "target_modules": ["project_in", "project_out", "fc1"], "use_dora": True}),
    ("dora_bert", bert(31, 24, 2, 2, 20, 16), 3, 9, False,
     {"r": 3, "lora_alpha": 7, "target_modules": "all-linear", "use_dora": True}),
]

FILE_NAMES = {("gpt_neox", "lm_head.weight"): "embed_out.weight"}


def file_name(c, name):
    """The name in a file of the parameter that the model, or peft around it, has under this one."""
    for part in ("base_model.model.", ".base_layer", ".default"):
        name = name.replace(part, "")
    name = name.replace("lora_magnitude_vector.weight", "lora_magnitude_vector")  # as peft saves it
    return FILE_NAMES.get((c["model_type"], name), name)


def views_of(c, name, p):
    """Parameters with dsc's names, and where they are: an expert's matrices are apart, those of all experts are one."""
    if ".experts." not in name or c["model_type"] == "gpt_oss":
        return [(file_name(c, name), p, slice(None))]
    base = name.rsplit(".", 1)[0].replace("mlp.experts", "block_sparse_moe.experts" if c["model_type"] == "mixtral" else "mlp.experts")
    gate, up, down = ("w1", "w3", "w2") if c["model_type"] == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    if name.endswith(".down_proj"):
        return [(f"{base}.*.{down}.weight", p, slice(None))]
    half = p.shape[1] // 2
    return [(f"{base}.*.{gate}.weight", p, (slice(None), slice(0, half))), (f"{base}.*.{up}.weight", p, (slice(None), slice(half, None)))]


def make(name, c, batch, sequence, whole, lora=None):
    with open(os.path.join(HERE, name + ".json"), "w") as f:
        json.dump(c, f, indent=1)
        f.write("\n")
    config = transformers.AutoConfig.for_model(**c)
    config._attn_implementation = config._experts_implementation = "eager"
    masked = c["model_type"] == "bert"
    kind = transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM
    model = kind.from_config(config).double().eval()
    # By the names of files, which are not all the model's own; a tied one once.
    if lora:
        import peft
        model = peft.get_peft_model(model, peft.LoraConfig(task_type=None if masked else "CAUSAL_LM", **lora)).double()
    params = {k.replace("mlp.gate.", "block_sparse_moe.gate.") if c["model_type"] == "mixtral" else k: (p, at)
              for name_, whole_ in model.named_parameters() for k, p, at in views_of(c, name_, whole_)}
    with torch.no_grad():
        for k, (all_, at) in params.items():
            p = all_[at]
            p.copy_(torch.from_numpy(values(k, list(p.shape)).astype(np.float64)))
        for k, b in model.named_buffers():
            if k.endswith("e_score_correction_bias"):
                b.copy_(torch.from_numpy(values(k, list(b.shape)).astype(np.float64)))
    count = batch * sequence
    stream = torch.from_numpy((mixed(fnv("tokens"), 2 * count) % c["vocab_size"]).astype(np.int64))
    logits = model(input_ids=stream[:count].view(batch, sequence)).logits
    targets = stream[count:]
    if masked:  # the tokens that lmrun.c predicts
        each = max(1, int(0.15 * sequence + 0.5))
        apart = int(sequence // each > 1)
        at = torch.tensor([b * sequence + (k + 1) * sequence // each - 1 - apart * (b % 2) for b in range(batch) for k in range(each)])
        count = batch * each
        logits, targets = logits.reshape(-1, c["vocab_size"])[at], targets[:count]
    losses = torch.nn.functional.cross_entropy(logits.reshape(count, -1), targets, reduction="none")
    losses.mean().backward()
    out = {"losses": ("F32", losses.detach().numpy().astype(np.float32)),
           "logits": ("F32", logits.detach().numpy().astype(np.float32).reshape(count, -1)[:: max(1, count // 8)])}
    for k, (p, at) in params.items():
        if not p.requires_grad:
            continue
        flat = p.grad[at].numpy().reshape(-1)
        out["norm." + k] = ("F32", np.array([np.linalg.norm(flat)], dtype=np.float32))
        where = np.arange(flat.size) if whole else mixed(fnv(k + "?"), SAMPLES) % flat.size
        out["grad." + k] = ("F32", flat[where].astype(np.float32))
    write_safetensors(os.path.join(HERE, name + ".safetensors"), out)
    print("%-16s loss %.6f, transformers %s" % (name, losses.mean().item(), transformers.__version__))


for case in CASES:
    if len(sys.argv) < 2 or case[0] in sys.argv[1:]:
        make(*case)
