#!/usr/bin/env python3
"""make_gpt2.py - losses and gradients of small GPT-2s in double precision, from PyTorch's autograd.

Writes gpt2_*.safetensors (losses, gradients) and the folder gpt2_folder/ beside this file; tests/unit/test_gpt2.c and
test_model.c read them. Weights and tokens come from an integer hash that the test computes too, so they are not stored.
Needs python3-torch and numpy. Run again only when a case changes; the output is the same bytes for the same torch.
SPDX-License-Identifier: Apache-2.0
"""
import json
import math
import os

import numpy as np
import torch

from golden import HERE, gradients, make_case, values, write_safetensors


def shapes(c):
    C, I = c["n_embd"], c["n_inner"]
    out = {"transformer.wte.weight": [c["vocab_size"], C], "transformer.wpe.weight": [c["n_positions"], C]}
    for i in range(c["n_layer"]):
        h = "transformer.h.%d." % i
        out.update({h + "ln_1.weight": [C], h + "ln_1.bias": [C], h + "attn.c_attn.weight": [C, 3 * C],
                    h + "attn.c_attn.bias": [3 * C], h + "attn.c_proj.weight": [C, C], h + "attn.c_proj.bias": [C],
                    h + "ln_2.weight": [C], h + "ln_2.bias": [C], h + "mlp.c_fc.weight": [C, I],
                    h + "mlp.c_fc.bias": [I], h + "mlp.c_proj.weight": [I, C], h + "mlp.c_proj.bias": [C]})
    out.update({"transformer.ln_f.weight": [C], "transformer.ln_f.bias": [C]})
    if not c["tie_word_embeddings"]:
        out["lm_head.weight"] = [c["vocab_size"], C]
    return out


def loss_of(c, p, tokens, targets):
    """Radford et al. 2019: pre-norm blocks, packed q k v, tanh GELU, Conv1D weights as [in, out]."""
    B, T = tokens.shape
    C, H, eps = c["n_embd"], c["n_head"], c["layer_norm_epsilon"]

    def norm(x, name):
        return torch.nn.functional.layer_norm(x, (C,), p[name + ".weight"], p[name + ".bias"], eps)

    def linear(x, name):
        return x @ p[name + ".weight"] + p[name + ".bias"]

    x = p["transformer.wte.weight"][tokens] + p["transformer.wpe.weight"][:T]
    mask = torch.full((T, T), -math.inf, dtype=torch.float64).triu(1)
    for i in range(c["n_layer"]):
        h = "transformer.h.%d." % i
        q, k, v = linear(norm(x, h + "ln_1"), h + "attn.c_attn").view(B, T, 3, H, C // H).permute(2, 0, 3, 1, 4)
        scale = (1 / math.sqrt(C // H) if c["scale_attn_weights"] else 1.0)
        scale /= i + 1 if c["scale_attn_by_inverse_layer_idx"] else 1
        a = torch.softmax(q @ k.transpose(-1, -2) * scale + mask, -1) @ v
        x = x + linear(a.transpose(1, 2).reshape(B, T, C), h + "attn.c_proj")
        f = linear(norm(x, h + "ln_2"), h + "mlp.c_fc")
        f = 0.5 * f * (1 + torch.tanh(math.sqrt(2 / math.pi) * (f + 0.044715 * f**3)))
        x = x + linear(f, h + "mlp.c_proj")
    x = norm(x, "transformer.ln_f")
    head = p["transformer.wte.weight" if c["tie_word_embeddings"] else "lm_head.weight"]
    return torch.nn.functional.cross_entropy((x @ head.T).view(B * T, -1), targets.view(-1), reduction="none")


def bf16_bits(x):
    u = x.astype(np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def make_folder(c, batch, sequence):
    """A folder as the hub's gpt2: names without the prefix, masks beside the weights, here in three dtypes."""
    folder = os.path.join(HERE, "gpt2_folder")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new",
                   "attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1, "n_ctx": c["n_positions"],
                   "task_specific_params": {"text-generation": {"do_sample": True}}, "bos_token_id": 50256,
                   **{k: v for k, v in c.items() if k not in ("n_inner", "tie_word_embeddings")}}, f, indent=2)
    tensors, weights = {}, {}
    for i, (name, shape) in enumerate(shapes(c).items()):
        w = values(name, shape)
        stored = [("F32", w), ("F16", w.astype(np.float16)), ("BF16", bf16_bits(w))][i % 3]
        tensors[name[len("transformer."):]] = stored
        weights[name] = [w, w.astype(np.float16).astype(np.float32),
                         (bf16_bits(w).astype(np.uint32) << 16).view(np.float32)][i % 3]
    mask = np.tril(np.ones((1, 1, c["n_positions"], c["n_positions"]), dtype=np.uint8))
    tensors["h.0.attn.bias"] = ("BOOL", mask)
    tensors["h.0.attn.masked_bias"] = ("F32", np.array(-1e4, dtype=np.float32))
    write_safetensors(os.path.join(folder, "model.safetensors"), tensors)
    losses, _ = gradients(loss_of, c, weights, batch, sequence)
    path = os.path.join(HERE, "gpt2_folder_loss.safetensors")
    write_safetensors(path, {"losses": ("F32", losses.astype(np.float32))})
    print("folder   loss %.6f" % losses.mean())


def config(V, C, H, L, P, I=None, **more):
    c = {"vocab_size": V, "n_embd": C, "n_head": H, "n_layer": L, "n_positions": P, "n_inner": I or 4 * C,
         "layer_norm_epsilon": 1e-5, "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
         "tie_word_embeddings": True}
    c.update(more)
    return c


make_case("gpt2_tiny", loss_of, shapes, config(23, 12, 2, 1, 9), 3, 7, True)
make_case("gpt2_tied", loss_of, shapes, config(311, 60, 3, 2, 40), 2, 40, False)
make_case("gpt2_untied", loss_of, shapes, config(311, 60, 4, 3, 48, 100, tie_word_embeddings=False, scale_attn_by_inverse_layer_idx=True,
                           layer_norm_epsilon=1e-3), 3, 33, False)
make_folder(config(23, 12, 2, 2, 9), 2, 9)
