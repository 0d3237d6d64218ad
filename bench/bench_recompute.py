#!/usr/bin/env python3
"""bench_recompute.py BENCH_FOLDER DSC [--rounds 9] [--model gpt2-124m] [--sequence 512] [--micro 2]

Savings and cost of dsc.recompute: one rank each with "kept", "none", "selective" and "full", step by step in turns, in
a new order each round. Memory is the planned size of activations and the process's peak. Time is that of a step; its ratio to
"none" is paired round by round, with its middle half. The limit of "full" is one more forward pass: each matrix product
runs four times instead of three, except those of the head, which is not recomputed. The losses must be equal.

SPDX-License-Identifier: Apache-2.0"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

from bench_offload import Trainer, text

VOCAB = {"gpt2-124m": 50257, "gpt2-nano": 256}
CHOICES = ("kept", "none", "selective", "full")


def write_config(path, args, choice):
    with open(path, "w") as f:
        json.dump({"train_micro_batch_size_per_gpu": args.micro, "bf16": {"enabled": True}, "gradient_clipping": 1,
                   "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
                   "dsc": {"model": args.model, "seq_length": args.sequence, "recompute": choice}}, f)


def planned(dsc, path):
    """Bytes of activations."""
    out = subprocess.run([dsc, "plan", "--config", path, "--json"], capture_output=True, text=True, check=True).stdout
    return sum(row["bytes"] for row in json.loads(out)["per_rank"] if row["tag"] == "activations")


def peak_kib(trainer):
    with open(f"/proc/{trainer.process.pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bench", help="folder of step_worker")
    parser.add_argument("dsc", help="the dsc program")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--model", choices=sorted(VOCAB), default="gpt2-124m")
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--micro", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    order = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        trainers, bytes_of = {}, {}
        for choice in CHOICES:
            path = os.path.join(folder, f"{choice}.json")
            write_config(path, args, choice)
            bytes_of[choice] = planned(args.dsc, path)
            trainers[choice] = Trainer(args.bench, path, args.sequence, VOCAB[args.model])
        seconds = {choice: [] for choice in CHOICES}
        for number in range(args.rounds + 1):
            results = {choice: trainers[choice].single_step() for choice in order.sample(CHOICES, len(CHOICES))}
            if len({loss for _, loss in results.values()}) != 1:
                sys.exit(f"bench_recompute: the losses differ: {results}")
            for choice in CHOICES if number > 0 else ():  # the first step touches memory for the first time
                seconds[choice].append(results[choice][0])
        print(f"{args.model}, {args.micro} x {args.sequence} tokens, bf16, {args.rounds} rounds; load "
              f"{os.getloadavg()[0]:.1f}")
        for choice in CHOICES:
            ratio = [a / b for a, b in zip(seconds[choice], seconds["none"])]
            limit = " (limit 1.33)" if choice == "full" else ""
            print(f"  {choice:9s} activations {bytes_of[choice] * 1e-6:7.1f} MB planned, process "
                  f"{peak_kib(trainers[choice]) / 1024:7.1f} MiB at most, step {text(seconds[choice])} s, x {text(ratio)}"
                  f"{limit}", flush=True)
        for trainer in trainers.values():
            trainer.close()


if __name__ == "__main__":
    main()
