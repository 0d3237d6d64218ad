#!/usr/bin/env python3
"""bench_accuracy.py TRAIN [--seeds 5] [--epochs 10] [--threads 2] [--short]: the accuracy that a network reaches, beside PyTorch's.

resnet18_cifar learns scikit-learn's digits (scripts/demo_vision_data.py): 1500 to train on and 297 others to validate. The program
TRAIN and a plain PyTorch script have the same schedule, batches, first values by the same rules, and seeds of their own. The last
lines are the mean accuracies, and their difference with its 95 % interval. SPDX-License-Identifier: Apache-2.0"""
import argparse
import json
import math
import os
import re
import statistics
import struct
import subprocess
import sys
import tempfile

TRAINED, CLASSES, BATCH, RATE, WARMUP, DECAY, MEAN, STD = 1500, 10, 32, 0.002, 20, 0.05, 0.3, 0.35
SHORT = 3  # steps
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306}  # 97.5 % points


def steps_of(args, count):
    """An epoch drops the samples behind its last whole batch."""
    return SHORT if args.short else args.epochs * (count // BATCH)


def rate(step, steps):
    """As torch's scripts with LambdaLR have it, in fractions of the largest rate: a linear warm-up, then half a cosine to 0."""
    return step / WARMUP if step < WARMUP else 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / max(1, steps - WARMUP)))


def ours(args, folder, seed):
    config = f"{folder}/c.json"
    json.dump({"train_batch_size": BATCH, "train_micro_batch_size_per_gpu": BATCH, "steps_per_print": 1000,
               "optimizer": {"type": "AdamW", "params": {"lr": RATE, "weight_decay": DECAY}},
               "scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": "auto", "warmup_num_steps": WARMUP, "warmup_type": "linear",
                                                                  "warmup_min_ratio": 0.0, "cos_min_ratio": 0.0}},
               "dsc": {"model": "resnet18_cifar", "threads": args.threads, "steps": steps_of(args, TRAINED), "seed": seed, "decay_vectors": False,
                       "data": f"{folder}/train-images-idx3-ubyte", "eval_data": f"{folder}/t10k-images-idx3-ubyte",
                       "images": {"mean": [MEAN], "std": [STD]}}}, open(config, "w"))
    done = subprocess.run([args.train, "--config", config], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    found = re.findall(r"^evaluation: accuracy ([0-9.]+)", done.stdout, re.M)
    if done.returncode != 0 or not found:
        raise SystemExit(f"bench: {args.train} ended with {done.returncode}: {done.stdout[-400:]}")
    return 100 * float(found[-1])


def pictures(folder, name):
    import torch
    with open(f"{folder}/{name}-images-idx3-ubyte", "rb") as file:
        count, height, width = struct.unpack(">4I", file.read(16))[1:]
        pixels = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).reshape(count, 1, height, width)
    with open(f"{folder}/{name}-labels-idx1-ubyte", "rb") as file:
        labels = torch.frombuffer(bytearray(file.read()[8:]), dtype=torch.uint8).long()
    return (pixels.float() / 255 - MEAN) / STD, labels


def theirs(args, folder, seed):
    import torch
    import torchvision
    torch.set_num_threads(args.threads)
    torch.manual_seed(seed)
    (x, labels), (held_out, truth) = pictures(folder, "train"), pictures(folder, "t10k")
    model = torchvision.models.resnet18(num_classes=CLASSES)
    model.conv1, model.maxpool = torch.nn.Conv2d(1, 64, 3, padding=1, bias=False), torch.nn.Identity()
    torch.nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}], lr=RATE)
    each, steps = len(x) // BATCH, steps_of(args, len(x))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, steps))
    model.train()
    for step in range(steps):
        order = torch.randperm(len(x)) if step % each == 0 else order
        at = order[step % each * BATCH:][:BATCH]
        torch.nn.functional.cross_entropy(model(x[at]), labels[at]).backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        return 100 * (model(held_out).argmax(1) == truth).double().mean().item()


def report(name, values):
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    print(f"{name:8s} {statistics.mean(values):.2f} % right, deviation {spread:.2f}, of {len(values)} seeds: "
          + " ".join(f"{value:.2f}" for value in values), flush=True)


def compare(got, want):
    apart = statistics.mean(got) - statistics.mean(want)
    if len(got) < 2:
        print(f"difference {apart:+.2f} points, of one seed")
        return
    error = ((statistics.variance(got) + statistics.variance(want)) / len(got)) ** 0.5
    half = STUDENT.get(2 * (len(got) - 1), 2.0) * error
    print(f"difference {apart:+.2f} points, 95 % interval {apart - half:+.2f} to {apart + half:+.2f}; at most 0.5 are asked for")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("train")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--short", action="store_true")
    args = parser.parse_args()
    from peers import skip
    if args.short:
        args.seeds = 1
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with tempfile.TemporaryDirectory() as folder:
        if subprocess.run([sys.executable, "-B", f"{root}/scripts/demo_vision_data.py", folder], check=False).returncode != 0:
            skip("bench-accuracy", "scikit-learn's digits are not here (PyPI: scikit-learn; Debian: python3-sklearn)")
        got, want = [], []
        try:
            import torchvision  # noqa: F401
        except ImportError:
            report("dsc", [ours(args, folder, 1)])
            skip("bench-accuracy", "torchvision is not installed (PYTHON=PROGRAM names a python that has it)")
        for seed in range(1, args.seeds + 1):
            got.append(ours(args, folder, seed))
            want.append(theirs(args, folder, seed))
            print(f"  seed {seed}: dsc {got[-1]:.2f} %, pytorch {want[-1]:.2f} %", flush=True)
        report("dsc", got)
        report("pytorch", want)
        compare(got, want)


if __name__ == "__main__":
    main()
