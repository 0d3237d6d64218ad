#!/usr/bin/env python3
"""bench_adam_peer.py LIB [--rounds R] [--threads T] [N ...]: our AdamW step beside DeepSpeedCPUAdam and fused torch.

Needs a Python with torch and deepspeed. All of them run in one process, once a round, starting from a different one
each round: memory bandwidth drifts within seconds, so only ratios inside a round compare. First the updates themselves
are compared; a difference ends the bench with exit 1. Lines: name value unit min .. max .. ; a ratio also has the 95 %
interval of its median (order statistics). SPDX-License-Identifier: Apache-2.0
"""
import argparse
import ctypes
import math
import os
import statistics
import sys
import time

import peers

os.environ.setdefault("DS_ACCELERATOR", "cpu")
parser = argparse.ArgumentParser()
parser.add_argument("lib")
parser.add_argument("sizes", nargs="*", type=float)
parser.add_argument("--rounds", type=int, default=15)
parser.add_argument("--threads", type=int, default=2)
options = parser.parse_intermixed_args()
os.environ["OMP_NUM_THREADS"] = str(options.threads)

try:  # after the environment; torch brings the OpenMP runtime that our library then shares
    import torch
    from deepspeed.ops.adam import DeepSpeedCPUAdam
except ImportError as error:
    peers.skip("bench-adam", f"beside DeepSpeed: {error}: PEERS/venv needs torch and deepspeed")

torch.set_num_threads(options.threads)
LR, DECAY = 1e-4, 0.01
pointer = ctypes.c_void_p
ours_step = ctypes.CDLL(os.path.abspath(options.lib)).dsc_bench_adamw
ours_step.argtypes = [pointer] * 5 + [ctypes.c_int64, ctypes.c_int32, ctypes.c_int32, ctypes.c_double, ctypes.c_double]


class Ours:
    def __init__(self, param, grad, copy):
        self.param, self.grad, self.count = param.clone(), grad.clone(), 0
        self.moment1, self.moment2 = torch.zeros_like(param), torch.zeros_like(param)
        self.copy = torch.empty(param.numel(), dtype=torch.bfloat16) if copy else None

    def step(self):
        self.count += 1
        at = [t.data_ptr() if t is not None else None
              for t in (self.param, self.moment1, self.moment2, self.grad, self.copy)]
        if ours_step(*at, self.param.numel(), options.threads, self.count, LR, DECAY) != 0:
            sys.exit("bench_adam_peer: our step failed")


class Peer:
    def __init__(self, param, grad, make, copy=False):
        self.param = torch.nn.Parameter(param.clone())
        self.param.grad = grad.clone()
        self.optimizer = make([self.param])
        self.copy = torch.empty(param.numel(), dtype=torch.bfloat16) if copy else None

    def step(self):
        self.optimizer.step()
        if self.copy is not None:  # as a program does that needs bf16 weights
            self.copy.copy_(self.param.data)


def deepspeed(params):
    return DeepSpeedCPUAdam(params, lr=LR, weight_decay=DECAY, adamw_mode=True)


def fused(params):
    return torch.optim.AdamW(params, lr=LR, weight_decay=DECAY, fused=True)


def check():
    """20 steps from the same start: parameters agree to 4 roundings of their own size and 1e-3 of what a step moves."""
    torch.manual_seed(1)
    param, grad = torch.randn(100_003), torch.randn(100_003) * 1e-3
    ours = Ours(param, grad, True)
    peers = {"deepspeed": Peer(param, grad, deepspeed), "torch": Peer(param, grad, fused)}
    for _ in range(20):
        ours.step()
        for peer in peers.values():
            peer.step()
    for name, peer in peers.items():
        off = (ours.param - peer.param.data).abs()
        allowed = 20 * 2.0 ** -24 * param.abs() * 4 + 1e-3 * LR
        worst = float((off / allowed).max())
        print(f"adamw_against_{name} {worst:.3f} of_allowed_difference", flush=True)
        if not worst <= 1:
            sys.exit(f"bench_adam_peer: our parameters differ from those of {name}")
    if not torch.equal(ours.copy, ours.param.to(torch.bfloat16)):
        sys.exit("bench_adam_peer: the bf16 copy is not the rounded parameter")


def interval(ratios):
    """Ranks around the median that hold it with 95 % (normal approximation of the binomial)."""
    ordered, n = sorted(ratios), len(ratios)
    reach = 1.96 * math.sqrt(n) / 2
    low, high = max(0, math.floor(n / 2 - reach)), min(n - 1, math.ceil(n / 2 + reach) - 1)
    return ordered[low], ordered[high]


def bench(count):
    param, grad = torch.randn(count), torch.randn(count) * 1e-3
    runs = {
        "deepspeed": Peer(param, grad, deepspeed),
        "dsc": Ours(param, grad, False),
        "torch_fused": Peer(param, grad, fused),
        "deepspeed_then_bf16": Peer(param, grad, deepspeed, copy=True),
        "dsc_with_bf16": Ours(param, grad, True),
    }
    del param, grad
    names, times = list(runs), {name: [] for name in runs}
    for number in range(-2, options.rounds):
        for k in range(len(names)):
            name = names[(k + number) % len(names)]
            start = time.perf_counter()
            runs[name].step()
            if number >= 0:
                times[name].append((time.perf_counter() - start) / count * 1e9)
    for name in names:
        t = times[name]
        print(f"adam_{name}_N{count} {statistics.median(t):.3f} ns/param min {min(t):.3f} max {max(t):.3f}", flush=True)
    for name, peer in (("dsc", "deepspeed"), ("dsc", "torch_fused"), ("dsc_with_bf16", "deepspeed_then_bf16")):
        ratios = [p / o for p, o in zip(times[peer], times[name])]
        low, high = interval(ratios)
        print(f"adam_{name}_speed_vs_{peer}_N{count} {statistics.median(ratios):.3f} ratio min {min(ratios):.3f} "
              f"max {max(ratios):.3f} interval {low:.3f} {high:.3f}", flush=True)


check()
for size in options.sizes or [1e6, 16e6, 128e6]:
    bench(int(size))
