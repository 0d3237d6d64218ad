#!/usr/bin/env python3
"""make_dpo.py - losses and gradients of direct preference optimization in double precision, from PyTorch's autograd.

Writes dpo_llama*.safetensors: the model is llama_tiny.json. Needs torch and numpy (2.15.0, 2.4.6). The loss is that of
Rafailov et al. 2023, equation 7, with the label smoothing of TRL's "sigmoid" loss. SPDX-License-Identifier: Apache-2.0
"""
import json
import os

import numpy as np
import torch
from golden import HERE, fnv, mixed, values, write_safetensors
from llama import shapes, token_losses

BATCH, TOKENS, PROMPT = 4, 9, 3
LENGTHS = (9, 6, 8, 9)  # chosen, rejected, chosen, rejected; the rest is padding


def counted():
    """Targets that count: those of tokens behind the prompt, up to the sequence's end."""
    mask = np.zeros((BATCH, TOKENS), dtype=bool)
    for s, length in enumerate(LENGTHS):
        mask[s, PROMPT - 1:length - 1] = True
    return mask


def make(name, beta, smoothing):
    with open(os.path.join(HERE, "llama_tiny.json")) as f:
        c = json.load(f)
    weights = {k: values(k, s) for k, s in shapes(c).items()}
    p = {k: torch.tensor(v, dtype=torch.float64, requires_grad=True) for k, v in weights.items()}
    count = BATCH * TOKENS
    stream = torch.from_numpy((mixed(fnv("tokens"), 2 * count) % c["vocab_size"]).astype(np.int64))
    losses = token_losses(c, p, stream[:count].view(BATCH, TOKENS), stream[count:].view(BATCH, TOKENS))
    mask = torch.from_numpy(counted())
    logps = -(losses.view(BATCH, TOKENS) * mask).sum(1)
    reference = (logps.detach() + torch.tensor([0.5, -1.25, -2.0, 0.75])).float().double()
    rewards = beta * (logps - reference)
    margins = rewards[0::2] - rewards[1::2]
    loss = (-torch.nn.functional.logsigmoid(margins) * (1 - smoothing)
            - torch.nn.functional.logsigmoid(-margins) * smoothing).mean()
    loss.backward()
    out = {"losses": ("F32", (losses.view(BATCH, TOKENS) * mask).detach().numpy().astype(np.float32)),
           "reference": ("F32", reference.numpy().astype(np.float32)), "loss": ("F32", np.array([loss.item()], dtype=np.float32)),
           "counted": ("F32", counted().astype(np.float32))}
    for k, v in p.items():
        out["grad." + k] = ("F32", v.grad.numpy().reshape(-1).astype(np.float32))
    write_safetensors(os.path.join(HERE, name + ".safetensors"), out)
    print("%-20s loss %.6f" % (name, loss.item()))


make("dpo_llama", 0.1, 0.0)
make("dpo_llama_smooth", 0.7, 0.2)
