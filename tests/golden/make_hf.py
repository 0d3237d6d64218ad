#!/usr/bin/env python3
"""make_hf.py - logits, losses and gradients of small GPT-NeoX, OPT and Llamas in double precision, from `transformers` itself.

Writes hf_*.safetensors and their config.json beside this file. Needs torch, numpy and transformers 5 (PyPI; the weights are
golden.py's, nothing is downloaded). Run again only when a case changes. SPDX-License-Identifier: Apache-2.0"""
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


YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 100, "mscale": 0.7,
        "mscale_all_dim": 0.4}
# name, config, batch, tokens, whole gradients
CASES = [
    ("hf_neox", neox(97, 48, 3, 2, 70, 64), 2, 33, False),
    ("hf_neox_serial", neox(23, 24, 2, 1, 20, 16, use_parallel_residual=False, attention_bias=False, rotary_pct=1.0,
                            hidden_act="gelu_new", tie_word_embeddings=True), 3, 7, True),
    ("hf_opt", opt(97, 60, 3, 2, 77, 48), 2, 33, False),
    ("hf_yarn", llama(97, 32, 4, 2, 1, 50, 800, rope_parameters=YARN, pad_token_id=7), 2, 40, False),
    ("hf_opt_gelu", opt(23, 16, 2, 1, 20, 9, activation_function="gelu", tie_word_embeddings=False), 3, 7, True),
]

FILE_NAMES = {("gpt_neox", "lm_head.weight"): "embed_out.weight"}


def make(name, c, batch, sequence, whole):
    with open(os.path.join(HERE, name + ".json"), "w") as f:
        json.dump(c, f, indent=1)
        f.write("\n")
    config = transformers.AutoConfig.for_model(**c)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).double().eval()
    # By the names of files, which are not all the model's own; a tied one once.
    params = {FILE_NAMES.get((c["model_type"], k), k): p for k, p in model.named_parameters()}
    with torch.no_grad():
        for k, p in params.items():
            p.copy_(torch.from_numpy(values(k, list(p.shape)).astype(np.float64)))
    count = batch * sequence
    stream = torch.from_numpy((mixed(fnv("tokens"), 2 * count) % c["vocab_size"]).astype(np.int64))
    logits = model(input_ids=stream[:count].view(batch, sequence)).logits
    losses = torch.nn.functional.cross_entropy(logits.reshape(count, -1), stream[count:], reduction="none")
    losses.mean().backward()
    out = {"losses": ("F32", losses.detach().numpy().astype(np.float32)),
           "logits": ("F32", logits.detach().numpy().astype(np.float32).reshape(count, -1)[:: max(1, count // 8)])}
    for k, p in params.items():
        flat = p.grad.numpy().reshape(-1)
        out["norm." + k] = ("F32", np.array([np.linalg.norm(flat)], dtype=np.float32))
        where = np.arange(flat.size) if whole else mixed(fnv(k + "?"), SAMPLES) % flat.size
        out["grad." + k] = ("F32", flat[where].astype(np.float32))
    write_safetensors(os.path.join(HERE, name + ".safetensors"), out)
    print("%-16s loss %.6f, transformers %s" % (name, losses.mean().item(), transformers.__version__))


for case in CASES:
    if len(sys.argv) < 2 or case[0] in sys.argv[1:]:
        make(*case)
