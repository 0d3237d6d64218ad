#!/usr/bin/env python3
"""adam8_test.py PROGRAM: AdamW with 8-bit states (adam8_steps.c) beside bitsandbytes, in one process on the CPU.

Codes are compared with bitsandbytes' operator for every device. Its CPU library, which takes codes from a coarse table,
is replaced by that operator for the steps. SPDX-License-Identifier: Apache-2.0"""
import math
import subprocess
import sys

import bitsandbytes as bnb
import bitsandbytes.backends.cpu.ops as cpu_ops
import bitsandbytes.functional as F
import numpy as np
import torch

BLOCK = 256
GENERAL = torch._C.DispatchKeySet(torch._C.DispatchKey.CompositeExplicitAutograd)
results = []


def report(name, good, why=""):
    results.append(good)
    print(("ok" if good else "not ok") + f" {len(results)} - {name}")
    if not good:
        print(f"# {why}")


def ours(p, grads, lr, betas, eps, decay):
    n, blocks = p.size, -(-p.size // BLOCK)
    data = p.astype(np.float32).tobytes() + b"".join(g.astype(np.float32).tobytes() for g in grads)
    arguments = [str(x) for x in (n, len(grads), lr, *betas, eps, decay)]
    out = subprocess.run([sys.argv[1], *arguments], input=data, stdout=subprocess.PIPE, check=True, timeout=300).stdout
    sizes, at, parts = (4 * n, n, n, 4 * blocks, 4 * blocks), 0, []
    for k, size in enumerate(sizes):
        parts.append(np.frombuffer(out[at:at + size], np.uint8 if k in (1, 2) else np.float32))
        at += size
    assert at == len(out)
    return parts


def quantize(x, code):
    return torch.ops.bitsandbytes.quantize_blockwise.default.redispatch(GENERAL, x, code, BLOCK)


def general_into(x, code, absmax, out, blocksize):
    q, scale = quantize(x.reshape(-1), code)
    out.copy_(q.view_as(out))
    absmax.copy_(scale)


def compare_codes():
    generator = np.random.default_rng(7)
    x = generator.standard_normal(4000 * BLOCK) * 10.0 ** generator.uniform(-9, 0, 4000 * BLOCK)
    x = (x.reshape(-1, BLOCK) * 10.0 ** generator.uniform(-15, 4, (4000, 1))).astype(np.float32).reshape(-1)
    _, m, v, m_absmax, v_absmax = ours(np.zeros_like(x), [x], 1e-3, (0, 0), 1, 0)
    for name, value, signed, code, absmax in (("signed", x, True, m, m_absmax), ("unsigned", x * x, False, v, v_absmax)):
        q, scale = quantize(torch.from_numpy(value), F.create_dynamic_map(signed=signed))
        other = int((q.numpy() != code).sum() + (scale.numpy() != absmax).sum())
        report(f"4000 blocks of {name} states have the codes and absmax of quantize_blockwise", other == 0,
               f"{other} differ")


def compare_steps():
    cpu_ops._quant_blockwise_fp32_direct = general_into
    generator = np.random.default_rng(11)
    n, steps, lr, betas, eps, decay = 64 * BLOCK, 200, 1e-3, (0.9, 0.999), 1e-8, 0.1
    start = (generator.standard_normal(n) * 0.02).astype(np.float32)
    scale = 10.0 ** generator.uniform(-2, 0, n)
    grads = [(generator.standard_normal(n) * scale).astype(np.float32) for _ in range(steps)]
    p = torch.nn.Parameter(torch.from_numpy(start.copy()))
    wide = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizers = [bnb.optim.AdamW8bit([p], lr=lr, betas=betas, eps=eps, weight_decay=decay),
                  torch.optim.AdamW([wide], lr=lr, betas=betas, eps=eps, weight_decay=decay)]
    for g in grads:
        p.grad, wide.grad = torch.from_numpy(g), torch.from_numpy(g)
        for optimizer in optimizers:
            optimizer.step()
    weights, m, v, _, _ = ours(start, grads, lr, betas, eps, decay)
    theirs, exact = p.detach().numpy(), wide.detach().numpy()
    state = optimizers[0].state[p]
    same = [float((state[name].numpy() == code).mean()) for name, code in (("state1", m), ("state2", v))]
    moved = np.linalg.norm(exact - start)
    apart, error = np.linalg.norm(weights - theirs) / moved, np.linalg.norm(theirs - exact) / moved
    print(f"# {steps} steps: {apart:.2e} of the way apart, AdamW in fp32 is {error:.2e} away; equal codes {same}")
    report("200 steps are those of AdamW8bit, within a tenth of its distance to AdamW", apart < error / 10,
           f"{apart} of the way apart, AdamW8bit is {error} from AdamW")
    report("9 of 10 codes are equal after them", min(same) > 0.9, str(same))
    print(f"# bitsandbytes {bnb.__version__}, finite: {math.isfinite(apart)}")


compare_codes()
compare_steps()
print(f"1..{len(results)}")
sys.exit(0 if all(results) else 1)
