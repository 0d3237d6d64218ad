#!/usr/bin/env python3
"""transformers_worker.py CONFIG.json BATCH SEQUENCE: transformers' half of a paired bench on a GPU: one step per line on stdin.

The model of a config.json with fresh fp32 weights, compiled, with bf16 autocast, PyTorch's attention and fused AdamW. Experts are
transformers' grouped_mm. Prints "ready" after two steps, then per step what torch_worker.py prints; the last line of stderr says
what went wrong.
SPDX-License-Identifier: Apache-2.0"""
import json
import os
import sys
import time

OUT = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # output of libraries must not reach the driver

import torch  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

WARM_UP = 2  # compiles


def build(path):
    with open(path) as text:
        keys = json.load(text)
    config = AutoConfig.for_model(keys.pop("model_type"), **{k: v for k, v in keys.items() if k != "architectures"})
    config.use_cache = False
    if hasattr(config, "num_experts"):
        config._experts_implementation = "grouped_mm"
    torch.manual_seed(0)
    with torch.device("cuda"):
        return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32).train(), config.vocab_size


def main():
    path, batch, sequence = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_float32_matmul_precision("high")
    model, vocab = build(path)
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0, fused=True)
    tokens = torch.randint(0, vocab, (batch, sequence), device="cuda")

    def step():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = compiled(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    print("ready", file=OUT, flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        loss = step()
        torch.cuda.synchronize()
        print(f"{(time.perf_counter() - begin) * 1e3:.3f} {loss:.6f} 0 {torch.cuda.max_memory_allocated()}", file=OUT, flush=True)
    OUT.flush()
    os._exit(0)  # no slow or noisy tear-down


try:
    main()
except BaseException as error:  # later output of libraries would hide it
    print(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}", file=sys.stderr, flush=True)
    os._exit(1)
