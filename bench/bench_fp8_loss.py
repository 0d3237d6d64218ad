#!/usr/bin/env python3
"""bench_fp8_loss.py TRAIN [--seeds 3] [--steps 500] [--device cpu] [--rate 3e-4] [--model llama-nano] [--own JSON]

The loss of products in fp8 beside that of bf16, so that the difference can be judged. Text is Python's own standard
library, as bytes. Runs of a seed have equal first values and an equal order of samples, so the samples' own losses fall
out of a ratio. A run's loss is the mean over all its steps, which a single divergence hardly moves. Seeds are
independent: the mean ratio has a 95 % interval by Student's t. fp32 beside bf16 is the control: it shows how far
rounding alone moves the same figure. Verdict: "below" if the whole interval is below 0.5 %, "above", or "undecided".

A CPU computes the values of fp8 with sums in fp32. --own has members of dsc.fp8: '{"scaling": "block"}'.

SPDX-License-Identifier: Apache-2.0"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile

LIMIT = 0.5  # % of the loss
# Two-sided 95 % of Student's t for 1, 2, ... degrees of freedom.
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def write_text(path, most):
    """Sources in the order of their names, up to so many bytes."""
    folder, size = sysconfig.get_paths()["stdlib"], 0
    with open(path, "wb") as out:
        for name in sorted(os.listdir(folder)):
            if name.endswith(".py") and size < most:
                with open(os.path.join(folder, name), "rb") as source:
                    size += out.write(source.read(most - size))
    return size


def write_config(path, args, text, precision, fp8):
    config = {"train_micro_batch_size_per_gpu": args.batch, "gradient_clipping": 1,
              "optimizer": {"type": "AdamW", "params": {"lr": args.rate, "weight_decay": 0.1}},
              "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": args.rate, "warmup_num_steps": 50}},
              "dsc": {"model": args.model, "seq_length": args.sequence, "data": text, "device": args.device}}
    if args.device == "cpu":
        config["dsc"]["threads"] = args.threads
    if precision == "bf16":
        config["bf16"] = {"enabled": True}
    if fp8 is not None:
        config["dsc"]["fp8"] = {"enabled": True, **fp8}
    with open(path, "w") as f:
        json.dump(config, f)


def mean_loss(args, folder, name, seed):
    log = os.path.join(folder, f"{name}-{seed}.jsonl")
    command = [args.train, "--config", os.path.join(folder, f"{name}.json"), "--steps", str(args.steps), "--seed",
               str(seed), "--log", log]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    with open(log) as f:
        rows = [json.loads(line) for line in f]
    losses = [row["loss"] for row in rows if row.get("loss") is not None and row.get("step", 0) > 0]
    if len(losses) != args.steps:
        sys.exit(f"{log}: {len(losses)} losses, expected {args.steps}")
    return statistics.fmean(losses)


def report(name, ratios):
    """Mean and interval of the seeds' differences, in % of bf16's loss."""
    gaps = [100 * (ratio - 1) for ratio in ratios]
    middle = statistics.fmean(gaps)
    if len(gaps) == 1:
        print(f"{name:24s} {middle:+.3f} %  one seed: no interval")
        return
    half = T95[min(len(gaps) - 2, len(T95) - 1)] * statistics.stdev(gaps) / len(gaps) ** 0.5
    verdict = "below" if middle + half < LIMIT else "above" if middle - half > LIMIT else "undecided"
    each = " ".join(f"{gap:+.3f}" for gap in gaps)
    print(f"{name:24s} {middle:+.3f} %  95 % interval {middle - half:+.3f} to {middle + half:+.3f}  "
          f"seeds {each}  {verdict} at {LIMIT} %", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("train", help="the train program")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--rate", type=float, default=3e-4)
    parser.add_argument("--model", default="llama-nano", help="one that reads bytes")
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--text-bytes", type=int, default=8 << 20)
    parser.add_argument("--own", type=json.loads, action="append", default=[], help="further members of dsc.fp8")
    args = parser.parse_args()
    if os.environ.get("SHORT"):
        args.seeds, args.steps = 2, 5
    runs = {"bf16": ("bf16", None), "fp32 (control)": ("fp32", None)}
    for own in args.own or [{}, {"format": "e4m3"}]:
        text = ", ".join(f"{key} {value}" for key, value in own.items())
        runs[f"fp8 {text or 'as by default'}"] = ("bf16", own)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "stdlib.txt")
        size = write_text(path, args.text_bytes)
        print(f"{args.model} on {args.device}, {size} bytes of Python sources, {args.steps} steps of {args.batch} x "
              f"{args.sequence} bytes, rate {args.rate:g}, {args.seeds} seeds", flush=True)
        losses = {}
        for name, (precision, fp8) in runs.items():
            write_config(os.path.join(folder, f"{name}.json"), args, path, precision, fp8)
            losses[name] = [mean_loss(args, folder, name, seed) for seed in range(1, args.seeds + 1)]
            if name == "bf16":
                print(f"{name:24s} mean loss {statistics.fmean(losses[name]):.4f}  "
                      f"seeds {' '.join(f'{loss:.4f}' for loss in losses[name])}", flush=True)
            else:
                report(name, [loss / base for loss, base in zip(losses[name], losses["bf16"])])
    return 0


if __name__ == "__main__":
    sys.exit(main())
