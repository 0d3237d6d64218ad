#!/usr/bin/env python3
"""torch_worker.py SIZE BATCH SEQUENCE MODE [STAGE]: the peer's half of a paired bench: one step per line on stdin.

SIZE: one of SIZES, or one of torch_llama.py's, whose weights and optimizer states are bf16. MODE: eager, compile (bf16 autocast, fp32
weights, fused AdamW), cuda (the same as compile on a GPU) or deepspeed (ZeRO STAGE, bf16, gloo; ranks from the environment). Prints "ready", then milliseconds, loss, peak KiB of the process and peak bytes of the GPU per step.
SPDX-License-Identifier: Apache-2.0"""
import math
import os
import resource
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

import torch_llama

VOCAB = 50304  # padded on both sides
SIZES = {"124m": (12, 12, 768, 1024), "small": (6, 6, 384, 256), "774m": (36, 20, 1280, 1024), "1558m": (48, 25, 1600, 1024),
         "nano": (4, 4, 128, 256)}


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = (y.view(b, t, self.heads, w // self.heads).transpose(1, 2) for y in self.qkv(x).split(w, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, w))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self, layers, heads, width, positions):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, width), nn.Embedding(positions, width)
        self.blocks, self.norm = nn.Sequential(*[Block(width, heads) for _ in range(layers)]), nn.LayerNorm(width)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, x, y):
        h = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        logits = F.linear(self.norm(self.blocks(h)), self.tokens.weight)
        return F.cross_entropy(logits.float().view(-1, VOCAB), y.reshape(-1))


def autocast_step(model, x, y, compiled):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0, fused=True)
    run = torch.compile(model) if compiled else model
    mixed = next(model.parameters()).dtype == torch.float32

    def step():
        with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=mixed):
            loss = run(x, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.item()
    return step


def deepspeed_step(model, x, y, batch, stage):
    import deepspeed
    deepspeed.init_distributed("gloo")
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
        "train_micro_batch_size_per_gpu": batch, "bf16": {"enabled": True}, "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.0}}})

    def step():
        loss = engine(x, y)
        engine.backward(loss)
        engine.step()
        return loss.item()
    return step


def main():
    size, batch, seq, mode = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    torch.manual_seed(0)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not reach the driver
    if size in torch_llama.LLAMAS:
        model, vocab = torch_llama.bf16_llama(size, "cuda" if mode == "cuda" else "cpu", False), torch_llama.LLAMAS[size][4]
    else:
        model, vocab = Model(*SIZES[size]), VOCAB
    x, y = torch.randint(0, vocab, (batch, seq)), torch.randint(0, vocab, (batch, seq))
    if mode == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
        model, x, y = model.cuda(), x.cuda(), y.cuda()
    step = deepspeed_step(model, x, y, batch, int(sys.argv[5])) if mode == "deepspeed" else autocast_step(model, x, y, mode in ("compile", "cuda"))
    print("ready", file=out, flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        loss = step()
        assert math.isfinite(loss)
        print(f"{(time.perf_counter() - start) * 1e3:.3f} {loss:.6f} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss} "
              f"{torch.cuda.max_memory_allocated() if mode == 'cuda' else 0}", file=out, flush=True)


if __name__ == "__main__":
    main()
