#!/usr/bin/env python3
"""ctypes_test.py LIBRARY: drives the engine from Python: ranks as threads, collectives, a training run fed by a Python
callback, and the distributed optimizer beside a formula. SPDX-License-Identifier: Apache-2.0"""
import ctypes as c
import math
import sys

from dsc_ctypes import FILL, NO_MODEL, Error, Options, Result, Source, Tensor, check, failed, lib, must, run_world, tests


def collectives(rank, open_engine):
    engine, err = open_engine(flags=NO_MODEL), Error()
    buf = (c.c_float * 5)(*[rank + 1.0 + i for i in range(5)])
    must(lib.dsc_engine_all_reduce(engine, buf, c.c_int64(5), c.c_bool(True), c.byref(err)), err)
    only = (c.c_float * 1)(rank + 1.0)
    must(lib.dsc_engine_reduce(engine, only, c.c_int64(1), c.c_bool(False), 1, c.byref(err)), err)
    text = c.create_string_buffer(b"from rank 2" if rank == 2 else b"", 12)
    must(lib.dsc_engine_broadcast(engine, text, c.c_int64(12), 2, c.byref(err)), err)
    must(lib.dsc_engine_barrier(engine, c.byref(err)), err)
    return list(buf), only[0], text.value, lib.dsc_engine_rank(engine), lib.dsc_engine_size(engine)


def train(rank, open_engine):
    def fill(user, first, count, data, err):
        tokens, targets = (c.cast(data[i], c.POINTER(c.c_int32)) for i in (0, 1))
        for k in range(count):
            for t in range(16):
                tokens[k * 16 + t] = (first + k + t) % 8
                targets[k * 16 + t] = (first + k + t + 1) % 8
        return 0
    config = (b'{"train_batch_size": 4, "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}, "zero_optimization": {"stage": 2},'
              b' "dsc": {"model": "gpt2-nano", "seq_length": 16, "threads": 1}}')
    callback = FILL(fill)
    engine, err = open_engine(config_text=config, data=Source(callback, None, 1000)), Error()
    losses = []
    for _ in range(12):
        result = Result(struct_bytes=c.sizeof(Result))
        must(lib.dsc_engine_train_batch(engine, c.byref(result), c.byref(err)), err)
        losses.append(result.loss)
    lib.dsc_engine_close(c.byref(engine))
    return losses


def host_optimizer(rank, open_engine):
    config = (b'{"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0,'
              b' "optimizer": {"type": "AdamW", "params": {"lr": 0.1, "weight_decay": 0.01, "betas": [0.9, 0.99], "eps": 1e-8}}}')
    engine, err = open_engine(flags=NO_MODEL, config_text=config), Error()
    n = 1500
    weights = (c.c_float * n)(*[math.sin(i) if rank == 0 else 99.0 for i in range(n)])
    bias = (c.c_float * 3)(1, 2, 3)
    tensors = (Tensor * 2)(Tensor(b"w", weights, n), Tensor(b"b", bias, 3))
    optimizer = c.c_void_p()
    must(lib.dsc_optimizer_open(c.byref(optimizer), engine, tensors, 2, c.byref(err)), err)
    norms = []
    for step in range(3):
        g_w = (c.c_float * n)(*[math.cos(i + step) * (rank + 1) for i in range(n)])
        g_b = (c.c_float * 3)(rank, 0, -rank)
        grads = (c.POINTER(c.c_float) * 2)(g_w, g_b)
        result = Result(struct_bytes=c.sizeof(Result))
        must(lib.dsc_optimizer_step(optimizer, grads, c.byref(result), c.byref(err)), err)
        norms.append(result.grad_norm)
    lib.dsc_optimizer_close(c.byref(optimizer))
    return list(weights), list(bias), norms


def adamw_by_formula(size):
    """Loshchilov & Hutter 2019 in double precision, gradients averaged over ranks and clipped to norm 1."""
    n = 1500
    p = [math.sin(i) for i in range(n)] + [1.0, 2.0, 3.0]
    m, v, norms = [0.0] * len(p), [0.0] * len(p), []
    for step in range(3):
        mean = sum(r + 1 for r in range(size)) / size
        bias = sum(range(size)) / size
        g = [math.cos(i + step) * mean for i in range(n)] + [bias, 0.0, -bias]
        norm = math.sqrt(sum(x * x for x in g))
        norms.append(norm)
        g = [x * min(1.0, 1.0 / (norm + 1e-6)) for x in g]
        for i, x in enumerate(g):
            m[i] += 0.1 * (x - m[i])
            v[i] = 0.99 * v[i] + 0.01 * x * x
            p[i] = p[i] * (1 - 0.1 * 0.01) - 0.1 * (m[i] / (1 - 0.9 ** (step + 1))) / (math.sqrt(v[i] / (1 - 0.99 ** (step + 1))) + 1e-8)
    return p, norms


check("version is a text", lib.dsc_version().decode()[0].isdigit())
for rank, (buf, only, text, my_rank, size) in enumerate(run_world(3, collectives)):
    check(f"rank {rank}: all_reduce gives the mean", buf == [2.0 + i for i in range(5)], str(buf))
    check(f"rank {rank}: reduce leaves the sum on its root only", only == (6.0 if rank == 1 else rank + 1.0), str(only))
    check(f"rank {rank}: broadcast", text == b"from rank 2" and my_rank == rank and size == 3)
one, two = run_world(1, train)[0], run_world(2, train)
check("a run fed by a Python callback learns", one[-1] < 0.8 * one[0], str(one))
check("all ranks see the same losses", two[0] == two[1])
check("one and two ranks see nearly the same losses", all(abs(a - b) < 1e-3 for a, b in zip(one, two[0])), f"{one} {two[0]}")
expected, expected_norms = adamw_by_formula(2)
for rank, (weights, bias, norms) in enumerate(run_world(2, host_optimizer)):
    off = max(abs(a - b) for a, b in zip(weights + bias, expected))
    check(f"rank {rank}: the distributed optimizer follows the formula", off < 2e-5, f"off by {off}")
    check(f"rank {rank}: gradient norms", all(abs(a / b - 1) < 1e-5 for a, b in zip(norms, expected_norms)), str(norms))
bad, err = c.c_void_p(), Error()
options = Options(struct_bytes=c.sizeof(Options), config_text=b'{"train_batch_size": }', cpu_caps_mask=0xFFFFFFFF)
status = lib.dsc_engine_open(c.byref(bad), c.byref(options), c.byref(err))
check("a bad config is an error with its place", status == 1 and b":1:2" in err.where and not bad.value, repr(err.where))
print(f"1..{tests[0]}")
sys.exit(1 if failed[0] else 0)
