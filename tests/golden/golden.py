"""golden.py - functions that the generators share.

Weights and tokens come from an integer hash that tests/support/lmrun.c computes too, so they are not stored. Losses
and gradients are files in double. SPDX-License-Identifier: Apache-2.0"""
import json
import os
import struct

import numpy as np
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
SAMPLES = 48  # gradients of a large case are compared in this many elements a tensor, and in their norm


def fnv(text):
    h = 0x811C9DC5
    for c in text.encode():
        h = ((h ^ c) * 0x01000193) & 0xFFFFFFFF
    return h


def mixed(seed, count):
    """The murmur3 finaliser of (index * golden ratio + seed), 32 bits."""
    h = (np.arange(count, dtype=np.uint64) * 2654435769 + seed) & 0xFFFFFFFF
    h ^= h >> 16
    h = (h * 0x85EBCA6B) & 0xFFFFFFFF
    h ^= h >> 13
    h = (h * 0xC2B2AE35) & 0xFFFFFFFF
    return h ^ (h >> 16)


def values(name, shape):
    """fp32 in [-1/8, 1/8), around 1 for a norm's weight."""
    u = (mixed(fnv(name), int(np.prod(shape))) >> 8).astype(np.float32) * np.float32(2.0**-24) - np.float32(0.5)
    base = np.float32(1 if (".ln_" in name or "norm." in name.lower()) and name.endswith("weight") else 0)
    return (base + u * np.float32(0.25)).reshape(shape)


def write_safetensors(path, tensors):
    """tensors: name -> (dtype text, numpy array of its raw elements)"""
    header, data = {}, b""
    for name, (dtype, array) in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def gradients(loss_of, c, weights, batch, sequence):
    """loss_of(config, parameters, tokens, targets): one loss a token."""
    count = batch * sequence
    stream = torch.from_numpy((mixed(fnv("tokens"), 2 * count) % c["vocab_size"]).astype(np.int64))
    p = {k: torch.tensor(v, dtype=torch.float64, requires_grad=True) for k, v in weights.items()}
    losses = loss_of(c, p, stream[:count].view(batch, sequence), stream[count:].view(batch, sequence))
    losses.mean().backward()
    return losses.detach().numpy(), {k: v.grad.numpy() for k, v in p.items()}


def make_case(name, loss_of, shapes, c, batch, sequence, whole):
    weights = {k: values(k, s) for k, s in shapes(c).items()}
    losses, grads = gradients(loss_of, c, weights, batch, sequence)
    out = {"losses": ("F32", losses.astype(np.float32))}
    for k, g in grads.items():
        flat = g.reshape(-1)
        out["norm." + k] = ("F32", np.array([np.linalg.norm(flat)], dtype=np.float32))
        where = np.arange(flat.size) if whole else mixed(fnv(k + "?"), SAMPLES) % flat.size
        out["grad." + k] = ("F32", flat[where].astype(np.float32))
    write_safetensors(os.path.join(HERE, name + ".safetensors"), out)
    print("%-14s loss %.6f" % (name, losses.mean()))
