#!/usr/bin/env python3
"""bench_train.py WORKER PEERS [CASE...]: whole training steps, ours and the peer's alternating step by step on the same cores.

CASE: 124m, small (one rank, two threads, beside torch.compile with bf16 autocast), ds1, ds2, ds3 (two ranks of one thread, ZeRO
stage, beside DeepSpeed on gloo). ROUNDS (default 15) paired rounds after 3 of warm-up. Prints, per side, median, minimum and
maximum milliseconds and peak memory, and the paired ratio peer/ours as median with its 10th and 90th percentile.
SPDX-License-Identifier: Apache-2.0"""
import json
import os
import statistics
import sys
import tempfile

import peers

WORKER = os.path.abspath(sys.argv[1])
if not sys.argv[2]:
    peers.skip("bench-train", "PEERS=DIR is needed (DIR/venv has torch and deepspeed)")
PEERS = os.path.abspath(sys.argv[2])
PYTHON = peers.python_of("bench-train", PEERS)
CASES = sys.argv[3:] or ["124m", "small", "ds1", "ds2", "ds3"]
ROUNDS = int(os.environ.get("ROUNDS", "15"))
HERE = os.path.dirname(os.path.abspath(__file__))


def our_config(folder, size, batch, seq, stage):
    path = os.path.join(folder, f"{size}-{stage}.json")
    json.dump({"train_micro_batch_size_per_gpu": batch, "bf16": {"enabled": True}, "zero_optimization": {"stage": stage},
               "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.0}},
               "dsc": {"model": {"124m": "gpt2-124m", "small": "gpt2-small-384"}[size], "seq_length": seq, "vocab_multiple": 128}},
              open(path, "w"))
    return path


def show(name, side):
    print(f"{name} {statistics.median(side.ms):.1f} ms/step  min {min(side.ms):.1f} max {max(side.ms):.1f}  peak {side.kib / 1024:.0f} MiB", flush=True)


def run(case, folder, port):
    deepspeed = case.startswith("ds")
    size, batch, seq = ("small", 4, 256) if deepspeed or case == "small" else ("124m", 4, 64)
    stage, ranks = (int(case[2:]), 2) if deepspeed else (1, 1)
    threads = 1 if deepspeed else 2
    peer = [PYTHON, f"{HERE}/torch_worker.py", size, str(batch), str(seq)]
    peer += ["deepspeed", str(stage)] if deepspeed else ["compile"]
    ours = peers.Ranks([WORKER, our_config(folder, size, batch, seq, stage), "50257", str(seq)], ranks, threads, port)
    theirs = peers.Ranks(peer, ranks, threads, port + 1)
    for i in range(-3, ROUNDS):
        first, second = (ours, theirs) if i % 2 else (theirs, ours)
        first.step(i >= 0)
        second.step(i >= 0)
    ratios = sorted(t / o for t, o in zip(theirs.ms, ours.ms))
    name = f"train_{case}_B{batch}T{seq}_W{ranks}"
    show(f"{name}_dsc", ours)
    show(f"{name}_{'deepspeed' if deepspeed else 'torch_compile'}", theirs)
    print(f"{name}_speed {statistics.median(ratios):.2f} times  p10 {ratios[len(ratios) // 10]:.2f} p90 {ratios[-1 - len(ratios) // 10]:.2f}  "
          f"tokens/s {batch * seq * ranks / statistics.median(ours.ms) * 1e3:.0f}", flush=True)
    ours.close()
    theirs.close()


with tempfile.TemporaryDirectory() as scratch:
    for index, wanted in enumerate(CASES):
        run(wanted, scratch, 29610 + 2 * index)
