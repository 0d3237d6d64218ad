#!/usr/bin/env python3
"""bench_gpu.py WORKER [--python PROGRAM] [CASE...]: training steps on this machine's GPU, ours and PyTorch's, one after the other.

CASE: 124m (batch 32), 774m (16), 1558m (8: both sides stay on the GPU), all with 1024 tokens, bf16; nano is for trying it out. PyTorch is PROGRAM with
torch.compile, bf16 autocast, flash attention and fused AdamW (bench/torch_worker.py cuda). ROUNDS (default 15) rounds after 3 of
warm-up; the two sides take turns step by step, each alone on the GPU while it runs. Prints per side median, minimum and maximum
milliseconds, tokens/s, MFU and GPU memory, and the paired ratio peer/ours. MFU counts causal attention once (6N + 6LCT operations a
token); "published" is the usual 6N + 12LCT. Exit 77 where there is no GPU. SPDX-License-Identifier: Apache-2.0"""
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROUNDS = int(os.environ.get("ROUNDS", "15"))
VOCAB = 50304
# name: (our model, layers, width, batch, tokens a sample)
CASES = {"124m": ("gpt2-124m", 12, 768, 32, 1024), "774m": ("gpt2-large", 36, 1280, 16, 1024),
         "1558m": ("gpt2-xl", 48, 1600, 8, 1024), "nano": ("gpt2-nano", 4, 128, 8, 128)}
# Dense bf16 operations a second of the data sheets, by a part of nvidia-smi's name; the longest match counts.
PEAKS = {"H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12, "H200": 989e12, "GH200": 989e12, "A100": 312e12, "B200": 2250e12}


def skip(why):
    print(f"bench-gpu: skipped: {why}")
    sys.exit(77)


class Side:
    """One process that makes a step per line."""

    def __init__(self, name, command):
        self.name, self.ms, self.loss, self.device_bytes = name, [], [], 0
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline().strip() != "ready":
            self.process.wait()
            raise RuntimeError(f"{name} did not start (exit {self.process.returncode})")

    def step(self, count):
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().split()
        if len(answer) < 4:
            raise RuntimeError(f"{self.name} ended")
        self.device_bytes = max(self.device_bytes, int(answer[3]))
        self.loss.append(float(answer[1]))
        if count:
            self.ms.append(float(answer[0]))

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)


def gpu():
    try:
        text = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True,
                              timeout=30, check=True).stdout.strip().splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        skip("no GPU (nvidia-smi says nothing)")
    names = [part for part in PEAKS if part in text]
    return text, PEAKS[max(names, key=len)] if names else None


def our_config(folder, name):
    model, _, _, batch, tokens = CASES[name]
    path = os.path.join(folder, name + ".json")
    with open(path, "w") as out:
        json.dump({"train_micro_batch_size_per_gpu": batch, "bf16": {"enabled": True}, "zero_optimization": {"stage": 1},
                   "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.0}},
                   "dsc": {"model": model, "seq_length": tokens, "vocab_multiple": 128, "device": "cuda"}}, out)
    return path


def show(side, name, peak):
    _, layers, width, batch, tokens = CASES[name]
    count = batch * tokens
    parameters = VOCAB * width + tokens * width + layers * (12 * width * width + 13 * width) + 2 * width
    seconds = statistics.median(side.ms) * 1e-3
    line = f"{name} {side.name:6} {seconds * 1e3:9.2f} ms  min {min(side.ms):.2f} max {max(side.ms):.2f}  {count / seconds:10.0f} tokens/s"
    if peak:
        causal = (6 * parameters + 6 * layers * width * tokens) * count / seconds / peak
        published = (6 * parameters + 12 * layers * width * tokens) * count / seconds / peak
        line += f"  MFU {causal * 100:.1f} % (published {published * 100:.1f} %)"
    print(f"{line}  GPU memory {side.device_bytes / 2**20:.0f} MiB", flush=True)


def run(name, worker, python, folder, peak):
    _, _, _, batch, tokens = CASES[name]
    sides = [Side("dsc", [worker, our_config(folder, name), str(VOCAB), str(tokens)])]
    if python:
        sides.append(Side("torch", [python, os.path.join(HERE, "torch_worker.py"), name, str(batch), str(tokens), "cuda"]))
    try:
        for i in range(-3, ROUNDS):
            for side in sides if i % 2 == 0 else sides[::-1]:
                side.step(i >= 0)
    finally:
        for side in sides:
            side.close()
    for side in sides:
        show(side, name, peak)
    if python:
        ratio = sorted(b / a for a, b in zip(sides[0].ms, sides[1].ms))
        print(f"{name} torch/dsc {statistics.median(ratio):.3f}  p10 {ratio[len(ratio) // 10]:.3f}  p90 {ratio[-1 - len(ratio) // 10]:.3f}")


def main():
    arguments = sys.argv[1:]
    python = None
    if "--python" in arguments:
        at = arguments.index("--python")
        python = arguments[at + 1]
        del arguments[at:at + 2]
    worker, names = os.path.abspath(arguments[0]), arguments[1:] or ["124m", "774m", "1558m"]
    text, peak = gpu()
    print(f"bench-gpu: {text}, {ROUNDS} rounds")
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            run(name, worker, python, folder, peak)


main()
