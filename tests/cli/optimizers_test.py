#!/usr/bin/env python3
"""optimizers_test.py LIBRARY: 100 steps of the distributed optimizer (dsc_optimizer_step), compared in fp32.

Every optimizer runs beside torch.optim with the same options. Lion, Lamb, 1-bit Lamb of one rank and Adafactor run
beside their papers' formulas, Adafactor also beside transformers' and 1-bit Lamb beside DeepSpeed's.
SPDX-License-Identifier: Apache-2.0"""
import ctypes as c
import json
import sys
import types

import torch

from dsc_ctypes import NO_MODEL, Error, Result, Tensor, check, failed, lib, must, run_world, tests

STEPS, N = 100, 400


def gradients(step):
    """Gradients of many sizes, some of them 0, and none of them a simple function of the weights."""
    g = torch.Generator().manual_seed(step)
    x = torch.randn(N, generator=g) * torch.logspace(-4, 0, N)
    x[step % 7::7] = 0
    return x


def start():
    return torch.randn(N, generator=torch.Generator().manual_seed(12345)) + 0.25


def ours(section, groups=(), names=(b"a.weight", b"a.bias"), columns=(0, 0)):
    """Two tensors, of one parameter group each where `groups` says so; matrices where they have columns."""
    config = json.dumps({"train_micro_batch_size_per_gpu": 1, "optimizer": section, "dsc": {"threads": 1, "param_groups": list(groups)}}).encode()

    def body(rank, open_engine):
        engine, err = open_engine(flags=NO_MODEL, config_text=config), Error()
        halves = [(c.c_float * (N // 2))(*part.tolist()) for part in start().chunk(2)]
        tensors = (Tensor * 2)(*[Tensor(name, part, N // 2, cols) for name, part, cols in zip(names, halves, columns)])
        optimizer = c.c_void_p()
        must(lib.dsc_optimizer_open(c.byref(optimizer), engine, tensors, 2, c.byref(err)), err)
        for step in range(STEPS):
            grads = (c.POINTER(c.c_float) * 2)(*[(c.c_float * (N // 2))(*g.tolist()) for g in gradients(step).chunk(2)])
            result = Result(struct_bytes=c.sizeof(Result))
            must(lib.dsc_optimizer_step(optimizer, grads, c.byref(result), c.byref(err)), err)
        lib.dsc_optimizer_close(c.byref(optimizer))
        return torch.tensor(list(halves[0]) + list(halves[1]))
    return run_world(1, body)[0]


def shaped(part, cols):
    return part.view(-1, cols) if cols else part


def theirs(make, params, groups=({}, {}), columns=(0, 0)):
    halves = [shaped(part.clone(), cols).requires_grad_(True) for part, cols in zip(start().chunk(2), columns)]
    optimizer = make([dict(params=[w], **group) for w, group in zip(halves, groups)], **params)
    for step in range(STEPS):
        for w, g, cols in zip(halves, gradients(step).chunk(2), columns):
            w.grad = shaped(g, cols)
        optimizer.step()
    return torch.cat([w.detach().flatten() for w in halves])


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, algorithm 2: the same products as AdamW's where weights decay."""

    def __init__(self, params, **options):
        super().__init__(params, options)
        self.m = [torch.zeros_like(group["params"][0]) for group in self.param_groups]

    def step(self):
        for o, m in zip(self.param_groups, self.m):
            (beta1, beta2), lr, p = o["betas"], o["lr"], o["params"][0]
            c = beta1 * m + (1 - beta1) * p.grad
            p.data.mul_(1 - lr * o["weight_decay"]).sub_(lr * torch.sign(c))
            m.mul_(beta2).add_(p.grad, alpha=1 - beta2)


class Lamb(torch.optim.Optimizer):
    """You et al. 2020 as DeepSpeed has it: a tensor's step is times the norm of its weights over that of its direction, within
    bounds; bias corrections are in the rate. In double, but for the weights between steps."""

    def __init__(self, params, **options):
        super().__init__(params, dict(betas=(0.9, 0.999), eps=1e-8, weight_decay=0, max_coeff=10.0, min_coeff=0.01, bias_correction=True,
                                      eps_inside_sqrt=False) | options)
        self.m, self.v = ([torch.zeros_like(group["params"][0], dtype=torch.double) for group in self.param_groups] for _ in range(2))
        self.steps = 0

    def step(self):
        self.steps += 1
        for o, m, v in zip(self.param_groups, self.m, self.v):
            (beta1, beta2), p, inside = o["betas"], o["params"][0], o["eps_inside_sqrt"]
            w, g = p.detach().double(), p.grad.double()
            m.mul_(beta1).add_(g, alpha=1 - beta1)
            v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
            u = m / ((v + o["eps"]).sqrt() if inside else v.sqrt() + o["eps"]) + o["weight_decay"] * w
            trust = min(max(float(w.norm() / u.norm()), o["min_coeff"]), o["max_coeff"]) if w.norm() > 0 and u.norm() > 0 else 1.0
            rate = o["lr"] * ((1 - beta2 ** self.steps) ** 0.5 / (1 - beta1 ** self.steps) if o["bias_correction"] else 1.0)
            p.data.copy_(w - rate * trust * u)


class Lars(torch.optim.Optimizer):
    """You et al. 2017: the gradient and the decay of a matrix are times trust_coefficient |w| / (|g| + weight_decay |w| + eps), those of
    a vector are neither adapted nor decayed; then torch.optim.SGD's momentum. In double, but for the weights between steps."""

    def __init__(self, params, **options):
        super().__init__(params, dict(lr=0.1, momentum=0.9, weight_decay=0, trust_coefficient=0.001, eps=1e-8, nesterov=False) | options)

    def step(self):
        for o in self.param_groups:
            p, state = o["params"][0], self.state[o["params"][0]]
            w, u = p.detach().double(), p.grad.double()
            if p.dim() > 1:
                ratio = o["trust_coefficient"] * w.norm() / (u.norm() + o["weight_decay"] * w.norm() + o["eps"])
                u = (u + o["weight_decay"] * w) * (ratio if w.norm() > 0 and u.norm() > 0 else 1.0)
            b = state["b"] = o["momentum"] * state.get("b", 0) + u
            p.data.copy_(w - o["lr"] * (o["momentum"] * b + u if o["nesterov"] else b))


class OneBitLamb(torch.optim.Optimizer):
    """Li et al. 2021 as DeepSpeed has it, of one rank, in double but for the weights between steps: first Lamb without bias
    corrections; then along the frozen variance, by the average of the coefficients so far times a factor."""

    def __init__(self, params, **options):
        super().__init__(params, dict(betas=(0.9, 0.999), eps=1e-8, weight_decay=0, max_coeff=10.0, min_coeff=0.01, coeff_beta=0.9,
                                      factor_max=4.0, factor_min=0.5, factor_threshold=0.1) | options)
        zeros = lambda: [torch.zeros_like(group["params"][0], dtype=torch.double) for group in self.param_groups]
        self.m, self.v, self.fresh = zeros(), zeros(), zeros()
        self.coeff, self.factor, self.steps = [0.0] * len(self.m), [1.0] * len(self.m), 0

    def step(self):
        self.steps += 1
        for k, o in enumerate(self.param_groups):
            (beta1, beta2), p, eps, last = o["betas"], o["params"][0], o["eps"], self.factor[k]
            w, g = p.detach().double(), p.grad.double()
            self.m[k].mul_(beta1).add_(g, alpha=1 - beta1)
            self.fresh[k].mul_(beta2).addcmul_(g, g, value=1 - beta2)
            if self.steps <= o["freeze_step"]:
                self.v[k].copy_(self.fresh[k])
            d = self.v[k].sqrt() + eps
            u = self.m[k] / d + o["weight_decay"] * w
            if self.steps <= o["freeze_step"]:
                coeff = min(max(float(w.norm() / u.norm()), o["min_coeff"]), o["max_coeff"])
                self.coeff[k] = o["coeff_beta"] * self.coeff[k] + (1 - o["coeff_beta"]) * coeff
            else:
                share = min(1.0, float((self.m[k] / d).norm() / u.norm())) if o["weight_decay"] else 1.0
                factor = float((d / (self.fresh[k].sqrt() + eps)).max()) * share + 1 - share
                factor = max(min(factor, o["factor_max"]), o["factor_min"])
                self.factor[k] = max(min(factor, last * (1 + o["factor_threshold"])), last * (1 - o["factor_threshold"]))
                coeff = self.coeff[k] * self.factor[k]
            p.data.copy_(w - o["lr"] * coeff * u)


def deepspeeds_onebit_lamb(groups, freeze_step, **options):
    """Its class on one rank. The first of its calls prepares buffers and is counted."""
    lamb = sys.modules[OnebitLamb.__module__]
    lamb.dist = types.SimpleNamespace(is_initialized=lambda: True, get_rank=lambda: 1)
    sys.modules["deepspeed.runtime.comm.nccl"] = types.SimpleNamespace(NcclBackend=lambda mpu: types.SimpleNamespace(size=1))
    optimizer = OnebitLamb(groups, types.SimpleNamespace(mpu=None, local_rank=0), freeze_step=freeze_step + 1, **options)
    for group in groups:
        group["params"][0].grad = torch.zeros_like(group["params"][0])
    optimizer.step()
    return optimizer


def zeropower(g, steps):
    """Newton-Schulz (Jordan 2024) in double."""
    x = g.double() / max(float(g.double().norm()), 1e-7)
    for _ in range(steps):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


class Muon(torch.optim.Optimizer):
    """torch.optim.Muon's formula with its Newton-Schulz steps in double instead of bf16."""

    def __init__(self, params, **options):
        super().__init__(params, dict(momentum=0.95, weight_decay=0, nesterov=True, ns_steps=5) | options)
        self.m = [torch.zeros_like(group["params"][0]) for group in self.param_groups]

    def step(self):
        for o, m in zip(self.param_groups, self.m):
            p, beta = o["params"][0], o["momentum"]
            m.lerp_(p.grad, 1 - beta)
            u = zeropower(p.grad.lerp(m, beta) if o["nesterov"] else m, o["ns_steps"])
            p.data.mul_(1 - o["lr"] * o["weight_decay"])
            p.data.copy_(p.data - o["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5 * u)


class Adafactor(torch.optim.Optimizer):
    """Shazeer & Stern 2018 as transformers has it, in double but for the weights, after they decay and after the step."""

    def __init__(self, params, **options):
        super().__init__(params, dict(lr=None, eps=(1e-30, 1e-3), clip_threshold=1.0, decay_rate=-0.8, beta1=None, weight_decay=0,
                                      scale_parameter=True, relative_step=True, warmup_init=False) | options)
        self.steps = 0

    def step(self):
        self.steps += 1
        for o in self.param_groups:
            p, state = o["params"][0], self.state[o["params"][0]]
            w, g = p.detach().double(), p.grad.double()
            old, q = 1 - self.steps ** o["decay_rate"], g * g + o["eps"][0]
            if g.dim() == 2:
                row = state["row"] = old * state.get("row", 0) + (1 - old) * q.mean(1)
                col = state["col"] = old * state.get("col", 0) + (1 - old) * q.mean(0)
                u = g / torch.outer(row / row.mean(), col).sqrt()
            else:
                v = state["v"] = old * state.get("v", 0) + (1 - old) * q
                u = g / v.sqrt()
            rate = min(1e-6 * self.steps if o["warmup_init"] else 1e-2, self.steps ** -0.5) if o["relative_step"] else o["lr"]
            rate *= max(o["eps"][1], float(w.square().mean().sqrt())) if o["scale_parameter"] else 1
            step = rate * u / max(1.0, float(u.square().mean().sqrt()) / o["clip_threshold"])
            if o["beta1"] is not None:
                step = state["m"] = o["beta1"] * state.get("m", 0) + (1 - o["beta1"]) * step
            p.data.copy_(w * (1 - o["weight_decay"] * rate))
            p.data.copy_(p.data.double() - step)


class Parts:
    """An optimizer for each tensor."""

    def __init__(self, groups, makes):
        self.parts = [make(group.pop("params"), **group) for make, group in zip(makes, groups)]

    def step(self):
        for part in self.parts:
            part.step()


CASES = [
    ("SGD", torch.optim.SGD, dict(lr=0.01)),
    ("SGD", torch.optim.SGD, dict(lr=0.01, weight_decay=0.1)),
    ("SGD", torch.optim.SGD, dict(lr=0.01, momentum=0.9)),
    ("SGD", torch.optim.SGD, dict(lr=0.01, momentum=0.9, dampening=0.5, weight_decay=0.01)),
    ("SGD", torch.optim.SGD, dict(lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.01)),
    ("Adagrad", torch.optim.Adagrad, dict()),
    ("Adagrad", torch.optim.Adagrad, dict(lr=0.01, lr_decay=0.05, weight_decay=0.01, eps=1e-6)),
    ("RMSprop", torch.optim.RMSprop, dict(lr=0.001)),
    ("RMSprop", torch.optim.RMSprop, dict(lr=0.001, alpha=0.9, eps=1e-3, momentum=0.9, weight_decay=1e-2)),
    ("AdamW", torch.optim.AdamW, dict(lr=0.001, weight_decay=0.1)),
    ("Lion", Lion, dict(lr=0.001, betas=[0.9, 0.99], weight_decay=0.1)),
    ("Lamb", Lamb, dict(lr=0.001, weight_decay=0.1)),
    ("Lamb", Lamb, dict(lr=0.01, betas=[0.8, 0.95], weight_decay=0.01, max_coeff=0.3, bias_correction=False)),
    ("Lamb", Lamb, dict(lr=0.001, min_coeff=0.9, eps=1e-6, eps_inside_sqrt=True)),
]
ONEBIT_LAMBS = [dict(lr=0.001, freeze_step=20, weight_decay=0.1), dict(lr=0.002, freeze_step=50, betas=[0.8, 0.95], factor_threshold=0.5),
                dict(lr=0.005, freeze_step=10, max_coeff=0.3, coeff_beta=0.5, factor_max=1.2, factor_min=0.95, weight_decay=0.01, eps=1e-6)]


def compare(name, make, params, what="", ours_have=(), theirs_have=({}, {}), theirs_params=None, names=(b"a.weight", b"a.bias"),
            columns=(0, 0), most=1e-6):
    a = ours({"type": name, "params": params}, ours_have, names, columns).double()
    b = theirs(make, params if theirs_params is None else theirs_params, theirs_have, columns).double()
    # relative to a weight, or to 1, the size of all, where one has come close to 0: its roundings were those of larger ones
    off = float(((a - b).abs() / b.abs().clamp(min=1.0)).max())
    own = float((b - start().double()).abs().max())
    check(f"{name} {params}{what}: {STEPS} steps within {most:g}", off < most and own > 0.01, f"off by {off}, moved by {own}")
    print(f"# off by {off:.2g} relative", flush=True)


for name, make, params in CASES:
    compare(name, make, params)
for params in ONEBIT_LAMBS:
    compare("OneBitLamb", OneBitLamb, params)
compare("OneBitLamb", OneBitLamb, dict(lr=0.001, freeze_step=20, weight_decay=0.1), ", no decay of biases, at twice the rate",
        [dict(params=["*.bias"], weight_decay=0, lr=0.002)], [dict(), dict(weight_decay=0, lr=0.002)])
try:
    from deepspeed.runtime.fp16.onebit.lamb import OnebitLamb
except ImportError:
    print("# DeepSpeed's OneBitLamb: there is none")
else:
    for params in ONEBIT_LAMBS:
        compare("OneBitLamb", deepspeeds_onebit_lamb, params, " beside DeepSpeed's")
compare("AdamW", torch.optim.AdamW, dict(lr=0.001, weight_decay=0.1), ", no decay of biases, at twice the rate",
        [dict(params=["*.bias"], weight_decay=0, lr=0.002)], [dict(), dict(weight_decay=0, lr=0.002)])
compare("SGD", torch.optim.SGD, dict(lr=0.01, momentum=0.9), ", decay of weights only, at half the rate",
        [dict(params="*.weight", weight_decay=0.1, lr_scale=0.5), dict(params=["*"])], [dict(weight_decay=0.1, lr=0.005), dict()])
# torch in fp32 is 8e-7 from torch in double here: the variance is a difference
for params in (dict(lr=0.001, centered=True, weight_decay=1e-2, eps=1e-3), dict(lr=0.001, momentum=0.8, centered=True, eps=1e-3)):
    compare("RMSprop", torch.optim.RMSprop, params, most=2e-6)
for params in (dict(lr=2.0, weight_decay=1e-2), dict(lr=1.0, momentum=0.8, nesterov=True, trust_coefficient=0.01, eps=1e-3)):
    for columns in ((10, 25), (10, 0)):
        compare("LARS", Lars, params, f", columns {columns}", [dict(params=["*.bias"], lr=0.01)], [dict(), dict(lr=0.01)], columns=columns)
# tall and wide; the second also as an embedding, which goes by Adam
MATRICES = dict(theirs_params={}, columns=(10, 25))
compare("Muon", Muon, dict(lr=0.002, weight_decay=0.1, momentum=0.9), **MATRICES | dict(theirs_params=dict(lr=0.002, weight_decay=0.1, momentum=0.9)))
compare("Muon", Muon, dict(muon_lr=0.002, nesterov=False, ns_steps=3), **MATRICES | dict(theirs_params=dict(lr=0.002, nesterov=False, ns_steps=3)))
compare("Muon", lambda groups, **_: Parts(groups, (torch.optim.AdamW, Muon)), dict(muon_lr=0.005, adam_lr=0.001, betas=[0.8, 0.99], eps=1e-8),
        ", an embedding by AdamW", theirs_have=(dict(lr=0.001, betas=(0.8, 0.99), eps=1e-8, weight_decay=0), dict(lr=0.005)),
        names=(b"word_embeddings.weight", b"h.0.weight"), **MATRICES)
if hasattr(torch.optim, "Muon"):  # its steps are in bf16: bound relative to each element's change
    compare("Muon", torch.optim.Muon, dict(lr=0.002, weight_decay=0.1), " beside torch.optim.Muon, whose Newton-Schulz steps are in bf16",
            most=2e-3, **MATRICES | dict(theirs_params=dict(lr=0.002, weight_decay=0.1)))
else:
    print("# torch.optim.Muon: this torch has none")
# tall and wide, and a vector beside a matrix
ADAFACTORS = [dict(lr=0.01), dict(lr=0.05, weight_decay=0.1, d=1.1, beta2_decay=-0.5, eps=[1e-4, 0.1])]
OURS = [dict(lr=0.002, relative_step=False), dict(relative_step=True, weight_decay=0.1, clip_threshold=0.5, eps=[1e-20, 0.1]),
        dict(lr=0.003, relative_step=False, scale_parameter=False, decay_rate=-0.6), dict(lr=0.002, relative_step=False, beta1=0.9, weight_decay=0.01)]
for shape in ((10, 25), (0, 8)):
    for params in ADAFACTORS if hasattr(torch.optim, "Adafactor") else ():
        compare("Adafactor", torch.optim.Adafactor, params, f" beside torch.optim.Adafactor, columns {shape}", columns=shape)
    for params in OURS:
        compare("Adafactor", Adafactor, params, f", columns {shape}", columns=shape)
compare("Adafactor", Adafactor, dict(lr=0.002, relative_step=False, weight_decay=0.1), ", no decay of biases, at twice the rate",
        [dict(params=["*.bias"], weight_decay=0, lr=0.004)], [dict(), dict(weight_decay=0, lr=0.004)], columns=(10, 0))
try:
    from transformers import Adafactor as Theirs
except ImportError:
    print("# transformers' Adafactor: there is none")
else:
    for params in OURS:
        compare("Adafactor", Theirs, params, " beside transformers' Adafactor", columns=(10, 25))
if not hasattr(torch.optim, "Adafactor"):
    print("# torch.optim.Adafactor: this torch has none")
print(f"1..{tests[0]}")
sys.exit(1 if failed[0] else 0)
