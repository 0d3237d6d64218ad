#!/usr/bin/env python3
"""make_llama.py - losses and gradients of small Llamas, Mistrals and Qwens in double precision, from PyTorch's autograd.

Writes llama_*.safetensors and, for those that the tests open as config.json, the configs beside this file. Needs python3-torch
and numpy. Run again only when a case changes; the output is the same bytes for the same torch. SPDX-License-Identifier: Apache-2.0
"""
import json
import os

from golden import HERE, make_case
from llama import shapes, token_losses


def config(model_type, V, C, heads, kv, L, I, P, **more):
    c = {"model_type": model_type, "vocab_size": V, "hidden_size": C, "num_attention_heads": heads,
         "num_key_value_heads": kv, "num_hidden_layers": L, "intermediate_size": I, "max_position_embeddings": P,
         "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False}
    c.update(more)
    return c


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 24}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 200}
# name, config, batch, tokens, whole gradients
CASES = [
    ("llama_tiny", config("llama", 23, 12, 2, 1, 1, 20, 9, tie_word_embeddings=True), 3, 7, True),
    ("llama_llama3", config("llama", 311, 60, 6, 2, 2, 101, 64, rope_theta=500000.0, rope_scaling=LLAMA3), 2, 40, False),
    ("llama_biased", config("llama", 311, 60, 3, 3, 2, 77, 48, attention_bias=True, mlp_bias=True, tie_word_embeddings=True,
                            rope_scaling={"rope_type": "linear", "factor": 2.0}), 3, 33, False),
    ("llama_yarn", config("llama", 97, 36, 4, 2, 1, 50, 800, head_dim=14, rope_scaling=YARN), 2, 70, False),
    ("llama_mistral", config("mistral", 97, 36, 4, 1, 2, 50, 64, head_dim=16, sliding_window=40, rope_theta=1e6), 2, 40, False),
    ("llama_qwen2", config("qwen2", 97, 60, 6, 3, 2, 50, 64, tie_word_embeddings=True, rms_norm_eps=1e-6), 2, 33, False),
    ("llama_qwen3", config("qwen3", 97, 36, 6, 2, 2, 50, 64, head_dim=18, rope_theta=1e6), 2, 33, False),
]
for name, c, batch, tokens, whole in CASES:
    make_case(name, token_losses, shapes, c, batch, tokens, whole)
    with open(os.path.join(HERE, name + ".json"), "w") as f:
        json.dump(c, f, indent=1)
        f.write("\n")
