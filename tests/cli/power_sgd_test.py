#!/usr/bin/env python3
"""power_sgd_test.py LIBRARY POWER_FACTORS: dsc.communication_hook "powersgd" beside torch's powerSGD_hook.

Two ranks of each have the same gradients. torch's ranks are processes on gloo, and the hook gets a bucket as DDP would give it. Its
first factors are replaced by those of dsc. Both then apply plain SGD, so that the weights are the sum of all decompressed gradients.
The two make the same products in another order. After 40 updates the weights may differ from torch's in fp64 by 1e-4 of their largest
change, or by three times as much as torch's own in fp32. Where singular values are close, as those of noise, rounding turns factors.
SPDX-License-Identifier: Apache-2.0"""
import ctypes as c
import json
import os
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

SHAPES = [(48, 32), (40,), (24, 60), (4, 5)]
STEPS, START, SEED, LR = 40, 3, 7, 0.5


def gradients(rank, step):
    """Matrices of a low rank and noise, other ones on each rank."""
    g = torch.Generator().manual_seed(1000 * step + rank)
    common = torch.Generator().manual_seed(99)
    out = []
    for shape in SHAPES:
        noise = torch.randn(*shape, generator=g)
        if len(shape) == 2:
            noise = 0.3 * noise + torch.randn(shape[0], 2, generator=common) @ torch.randn(2, shape[1], generator=common)
        out.append(noise)
    return out


def first_factor(program, number, rows, rank):
    text = subprocess.run([program, str(SEED), str(number), str(rows * rank)], check=True, capture_output=True, text=True).stdout
    return torch.tensor([float(x) for x in text.split()]).view(rows, rank)


class Bucket:
    """The methods of a dist.GradBucket that the hook calls."""

    def __init__(self, tensors):
        self.flat = torch.cat([t.reshape(-1) for t in tensors])
        self.tensors = [part.view(t.shape) for part, t in zip(self.flat.split([t.numel() for t in tensors]), tensors)]

    def buffer(self): return self.flat
    def gradients(self): return self.tensors
    def index(self): return 0
    def is_last(self): return True
    def parameters(self): return self.tensors


def torch_rank(rank, size, store, program, factor_rank, dtype, out):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    state = power.PowerSGDState(None, matrix_approximation_rank=factor_rank, start_powerSGD_iter=START, min_compression_rate=2)
    drawn = iter([first_factor(program, n, shape[1], factor_rank) for n, shape in enumerate(SHAPES) if compressed(shape, factor_rank)])
    randn, weights = torch.randn, [torch.zeros(s, dtype=dtype) for s in SHAPES]
    for step in range(STEPS):
        bucket = Bucket([g.to(dtype) for g in gradients(rank, step)])
        torch.randn = lambda *shape, **_: next(drawn).view(*shape)
        power.powerSGD_hook(state, bucket).wait()
        torch.randn = randn
        for w, g in zip(weights, bucket.tensors):
            w -= LR * g
    if rank == 0:
        torch.save(weights, out)
    dist.barrier()
    dist.destroy_process_group()


def compressed(shape, rank):
    return len(shape) == 2 and (shape[0] + shape[1]) * min(rank, *shape) * 2 < shape[0] * shape[1]


def theirs(program, factor_rank, dtype):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "weights")
        mp.start_processes(torch_rank, (2, os.path.join(folder, "store"), program, factor_rank, dtype, out), nprocs=2, start_method="fork")
        return torch.load(out)


def ours(factor_rank, kind="powersgd"):
    from dsc_ctypes import NO_MODEL, Error, Result, Tensor, lib, must, run_world
    hook = {"type": kind} if kind != "powersgd" else {"type": kind, "rank": factor_rank, "start_step": START}
    config = json.dumps({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD", "params": {"lr": LR}},
                         "dsc": {"threads": 1, "seed": SEED, "communication_hook": hook}}).encode()

    def body(rank, open_engine):
        engine, err = open_engine(flags=NO_MODEL, config_text=config), Error()
        held = [(c.c_float * torch.Size(s).numel())() for s in SHAPES]
        tensors = (Tensor * len(SHAPES))(*[Tensor(b"t%d" % n, h, len(h), s[1] if len(s) == 2 else 0) for n, (h, s) in enumerate(zip(held, SHAPES))])
        optimizer = c.c_void_p()
        must(lib.dsc_optimizer_open(c.byref(optimizer), engine, tensors, len(SHAPES), c.byref(err)), err)
        for step in range(STEPS):
            grads = (c.POINTER(c.c_float) * len(SHAPES))(*[(c.c_float * g.numel())(*g.flatten().tolist()) for g in all_gradients[rank][step]])
            result = Result(struct_bytes=c.sizeof(Result))
            must(lib.dsc_optimizer_step(optimizer, grads, c.byref(result), c.byref(err)), err)
        lib.dsc_optimizer_close(c.byref(optimizer))
        return [torch.tensor(list(h)).view(s) for h, s in zip(held, SHAPES)]
    all_gradients = [[gradients(rank, step) for step in range(STEPS)] for rank in range(2)]
    first, second = run_world(2, body)
    return first, all(torch.equal(a, b) for a, b in zip(first, second))


def distance(a, b):
    return max(float((x - y).abs().max() / y.abs().max()) for x, y in zip(a, b))


def plain_sum():
    weights = [torch.zeros(s) for s in SHAPES]
    for step in range(STEPS):
        for w, a, b in zip(weights, gradients(0, step), gradients(1, step)):
            w -= LR * (a + b) / 2
    return weights


if __name__ == "__main__":
    runs = {rank: [theirs(sys.argv[2], rank, dtype) for dtype in (torch.float64, torch.float32)] for rank in (1, 2, 4)}
    from dsc_ctypes import check, failed, tests
    exact = plain_sum()
    for rank, (expected, rounded) in runs.items():
        got, same = ours(rank)
        far, bound = distance(got, expected), max(1e-4, 3 * distance(rounded, expected))
        check(f"rank {rank}: both ranks have the same bits", same)
        check(f"rank {rank}: as torch's powerSGD_hook ({far:.2g} of at most {bound:.2g})", far < bound)
        check(f"rank {rank}: and not the exact sum", rank == 4 or distance(got, exact) > 1e-3, f"{distance(got, exact):.3g}")
    for kind, bound in (("fp16", 2e-3), ("bf16", 2e-2)):  # a rounding of each gradient: 2^-11 and 2^-8, of parts up to four times their sum
        got, same = ours(1, kind)
        check(f"{kind}: a rounding of the exact sum", same and 0 < distance(got, exact) < bound, f"{distance(got, exact):.3g}")
    print(f"1..{tests[0]}")
    sys.exit(failed[0] != 0)
