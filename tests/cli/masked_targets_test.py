#!/usr/bin/env python3
"""masked_targets_test.py LIBRARY: trains a tiny Llama folder on masked targets with the engine and with PyTorch.

PyTorch sums the losses of the counted targets of a whole step and divides the sum by their number, as transformers does
with num_items_in_batch. Losses, gradient norms and weights are compared for ranks, stages, accumulation and dtypes.
Micro-batches come from a data source or are given one by one. SPDX-License-Identifier: Apache-2.0"""
import array
import ctypes as c
import json
import math
import os
import random
import struct
import sys
import tempfile

import torch

from dsc_ctypes import FILL, Error, Result, Source, check, failed, lib, must, run_world, tests

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden"))
sys.dont_write_bytecode = True
import llama  # noqa: E402

MODEL = dict(model_type="llama", vocab_size=61, hidden_size=48, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2,
             intermediate_size=70, max_position_embeddings=32, rms_norm_eps=1e-6, rope_theta=10000.0, tie_word_embeddings=True)
V, T, STEPS = MODEL["vocab_size"], 24, 5
OPTIMIZERS = {"SGD": dict(lr=0.5), "AdamW": dict(lr=1e-3, betas=[0.9, 0.999], eps=1e-8, weight_decay=0.1)}
torch.set_num_threads(1)
torch.manual_seed(7)


def write_safetensors(path, tensors):
    header, blobs, at = {}, [], 0
    for name, t in tensors.items():
        blob = array.array("f", t.reshape(-1).tolist()).tobytes()
        header[name] = {"dtype": "F32", "shape": list(t.shape), "data_offsets": [at, at + len(blob)]}
        at += len(blob)
        blobs.append(blob)
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def read_masters(folder):
    """The fp32 weights of a checkpoint: the file of the optimizer has them in 16-bit runs."""
    found = {}
    for name in ("model.safetensors", "optimizer.safetensors"):
        with open(os.path.join(folder, name), "rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
            data = f.read()
        for key, entry in header.items():
            if entry.get("dtype") == "F32" and (key.startswith("master.") or name.startswith("model")):
                first, last = entry["data_offsets"]
                values = torch.tensor(array.array("f", data[first:last]).tolist())
                found[key[7:] if key.startswith("master.") else key] = values.reshape(entry["shape"])
    return found


def sample(g):
    """Tokens and targets: every fifth sample has no counted target, others have between one and all of them."""
    r = random.Random(g)
    tokens = [r.randrange(V) for _ in range(T)]
    share = [0, 0.1, 0.5, 0.9, 1][g % 5]
    return tokens, [(t * 7 + 3) % V if r.random() < share else (-1 if g % 2 else -100) for t in tokens]


def train_torch(start, batch, kind):
    w = {k: v.clone().requires_grad_(True) for k, v in start.items()}
    make = torch.optim.SGD if kind == "SGD" else torch.optim.AdamW
    optimizer = make(list(w.values()), **OPTIMIZERS[kind])
    losses, norms, counts = [], [], []
    for step in range(STEPS):
        rows = [sample(step * batch + k) for k in range(batch)]
        tokens, targets = torch.tensor([r[0] for r in rows]), torch.tensor([r[1] for r in rows])
        counted = targets >= 0
        optimizer.zero_grad()
        each = llama.token_losses(MODEL, w, tokens, targets.clamp(min=0)).reshape(targets.shape)
        loss = (each * counted).sum() / counted.sum()
        loss.backward()
        norms.append(math.sqrt(sum(float((p.grad.double() ** 2).sum()) for p in w.values())))
        optimizer.step()
        losses.append(loss.item())
        counts.append(int(counted.sum()))
    return losses, norms, counts, {k: v.detach() for k, v in w.items()}


def fill_batch(first, count, tokens, targets):
    for k in range(count):
        for t, (token, target) in enumerate(zip(*sample(first + k))):
            tokens[k * T + t], targets[k * T + t] = token, target


def step_by_hand(engine, err, rank, ranks, micro, accumulation, step):
    """One optimizer step from micro-batches that the program gives."""
    room = c.c_int32 * (micro * T)
    for m in range(accumulation):
        tokens, targets = room(), room()
        fill_batch((step * accumulation * ranks + m * ranks + rank) * micro, micro, tokens, targets)
        batch = (c.c_void_p * 2)(c.cast(tokens, c.c_void_p), c.cast(targets, c.c_void_p))
        result = Result(struct_bytes=c.sizeof(Result))
        must(lib.dsc_engine_forward(engine, batch, None, c.byref(err)), err)
        must(lib.dsc_engine_backward(engine, c.byref(err)), err)
        must(lib.dsc_engine_step(engine, c.byref(result), c.byref(err)), err)
    return result


def train_engine(folder, ranks, stage, micro, accumulation, precision, kind, by_hand):
    config = {"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": accumulation,
              "optimizer": {"type": kind, "params": OPTIMIZERS[kind]}, "zero_optimization": {"stage": stage},
              "dsc": {"model": folder, "seq_length": T, "threads": 1}}
    if precision != "fp32":
        config[precision] = {"enabled": True}
    saved = tempfile.mkdtemp(dir=os.path.dirname(folder))

    def fill(user, first, count, data, err):
        fill_batch(first, count, *(c.cast(data[i], c.POINTER(c.c_int32)) for i in (0, 1)))
        return 0
    callback = FILL(fill)

    def body(rank, open_engine):
        fields = {} if by_hand else {"data": Source(callback, None, 1 << 20)}
        engine, err = open_engine(config_text=json.dumps(config).encode(), **fields), Error()
        results = []
        for step in range(STEPS):
            result = Result(struct_bytes=c.sizeof(Result))
            if by_hand:
                result = step_by_hand(engine, err, rank, ranks, micro, accumulation, step)
            else:
                must(lib.dsc_engine_train_batch(engine, c.byref(result), c.byref(err)), err)
            results.append((result.loss, result.grad_norm, result.counted_tokens))
        must(lib.dsc_engine_save(engine, saved.encode(), c.byref(err)), err)
        return results
    rows = run_world(ranks, body)
    assert all(row == rows[0] for row in rows)
    return (*map(list, zip(*rows[0])), read_masters(os.path.join(saved, f"step-{STEPS}")))


def distance(a, b):
    return math.sqrt(sum(float(((a[k] - b[k]).double() ** 2).sum()) for k in b))


# Largest differences of the loss, of the norm and of the weights beside their movement. Measured: a fifth or less.
BOUNDS = {"fp32": (3e-6, 2e-6, 3e-5), "bf16": (0.03, 0.03, 0.3), "fp16": (3e-3, 8e-3, 0.1)}

with tempfile.TemporaryDirectory() as place:
    hf = os.path.join(place, "model")
    os.mkdir(hf)
    with open(os.path.join(hf, "config.json"), "w") as file:
        json.dump(MODEL, file)
    start = {k: torch.randn(*s) * 0.08 + ("norm." in k) for k, s in llama.shapes(MODEL).items()}
    write_safetensors(os.path.join(hf, "model.safetensors"), start)
    # ranks, accumulation, micro-batch
    for ranks, accumulation, micro in ((1, 1, 8), (1, 4, 1), (2, 1, 2), (2, 4, 2), (4, 1, 1), (4, 4, 1)):
        for kind in OPTIMIZERS:
            losses, norms, counts, weights = train_torch(start, ranks * accumulation * micro, kind)
            for stage, precision, by_hand in ((0, "fp32", False), (1, "fp32", True), (3, "bf16", False), (2, "fp16", True)):
                mine = train_engine(hf, ranks, stage, micro, accumulation, precision, kind, by_hand)
                off = (max(abs(a - b) for a, b in zip(mine[0], losses)), max(abs(a / b - 1) for a, b in zip(mine[1], norms)),
                       distance(mine[3], weights) / distance(start, weights))
                good = all(a <= b for a, b in zip(off, BOUNDS[precision])) and mine[2] == counts
                check(f"{kind}: {ranks} ranks, accumulation {accumulation}, micro-batch {micro}, stage {stage}, {precision}, "
                      + ("given batches" if by_hand else "data source"), good, "loss %.2g, norm %.2g, weights %.2g" % off)
                if os.environ.get("SHOW"):
                    print("# loss %.2g, norm %.2g, weights %.2g; counted %s" % (*off, counts))
print(f"1..{tests[0]}")
sys.exit(1 if failed[0] else 0)
