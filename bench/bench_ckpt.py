#!/usr/bin/env python3
"""bench_ckpt.py BENCH_FOLDER TRAIN DIR [--rounds 15] [--rounds-beside 5] [--every 25]

Checkpoints of GPT-2 124M in fp32 (1.5 GB) in DIR: a save and a load beside fio's write and read of as many bytes, taken
in turns, "x" paired round by round with its middle half; what a save beside training costs when one is made every
25 steps, beside as many steps without one; and how long a restarted run takes to the end of its first new step.

SPDX-License-Identifier: Apache-2.0"""
import argparse
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

MODEL, VOCAB, SEQUENCE = "gpt2-124m", 50257, 64


class Worker:
    """step_worker: steps, saves and loads of one engine, each answered by its seconds."""

    def __init__(self, bench, config):
        self.process = subprocess.Popen([f"{bench}/step_worker", config, str(VOCAB), str(SEQUENCE)], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.process.stdout.readline().strip() != "ready":
            sys.exit("bench_ckpt: step_worker did not start")

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"bench_ckpt: step_worker ended at: {line}")
        return float(answer)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def fio(path, size, direction):
    """The better of fio past the page cache and, for writes, through it with an fsync."""
    command = ["fio", "--name=b", f"--filename={path}", f"--size={size}", "--bs=1M", "--iodepth=16", "--direct=1",
               f"--rw={direction}", "--ioengine=io_uring", "--end_fsync=1", "--output-format=json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout[done.stdout.index("{"):])["jobs"][0][direction]["runtime"] * 1e-3


def forget(folder):
    """The files' pages leave the cache."""
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as f:
            os.fsync(f.fileno())
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def text(samples, scale=1.0):
    s = sorted(x * scale for x in samples)
    return f"{statistics.median(s):7.3f} ({s[len(s) // 4]:.3f} .. {s[3 * len(s) // 4]:.3f})"


def turns(order, acts):
    numbered = list(acts.items())
    order.shuffle(numbered)
    return {name: act() for name, act in numbered}


def save_and_load(args, folder, order, worker):
    save_dir, path = f"{folder}/run", f"{folder}/file"
    size = 0
    rows = {"save": [], "fio write": [], "load": [], "fio read": []}

    def save():
        shutil.rmtree(save_dir, ignore_errors=True)
        return worker.ask(f"save {save_dir}")

    def load():
        forget(step)
        return worker.ask(f"load {step}")

    save()
    step = f"{save_dir}/{open(f'{save_dir}/latest').read().strip()}"
    size = sum(os.path.getsize(f"{step}/{name}") for name in os.listdir(step))
    for number in range(args.rounds + 1):
        result = turns(order, {"save": save, "fio write": lambda: fio(path, size, "write")})
        result.update(turns(order, {"load": load, "fio read": lambda: fio(path, size, "read")}))
        for name, seconds in result.items():
            if number > 0:
                rows[name].append(seconds)
    os.unlink(path)
    for ours, peer in (("save", "fio write"), ("load", "fio read")):
        print(f"{ours:5s} {text([size / s for s in rows[ours]], 1e-9)} GB/s; {peer} "
              f"{text([size / s for s in rows[peer]], 1e-9)} GB/s; x {text([b / a for a, b in zip(rows[ours], rows[peer])])}",
              flush=True)
    return step, statistics.median(rows["fio read"])


def beside(args, folder, order, worker):
    save_dir = f"{folder}/beside"
    rows = []

    def with_save():
        shutil.rmtree(save_dir, ignore_errors=True)
        return worker.ask(f"beside {args.every} {save_dir}")

    worker.ask("steps 2")
    for number in range(args.rounds_beside + 1):
        result = turns(order, {"with": with_save, "without": lambda: worker.ask(f"steps {args.every}")})
        if number > 0:
            rows.append((result["with"], result["without"]))
    print(f"{args.every} steps {text([r[1] for r in rows])} s, with a save beside them {text([r[0] for r in rows])} s: "
          f"{text([r[0] / r[1] - 1 for r in rows], 100)} % slower", flush=True)


def restart(args, config, step, read_seconds):
    number = int(step.rsplit("-", 1)[1])
    times = []
    for _ in range(3):
        forget(step)
        out = subprocess.run([args.train, "--config", config, "--data", sys.argv[0], "--load", step, "--steps",
                              str(number + 1)], capture_output=True, text=True)
        found = re.search(r"start to end of first step: ([0-9.]+) s", out.stdout)
        if out.returncode != 0 or not found:
            sys.exit(f"bench_ckpt: {out.stderr[-400:]}")
        times.append(float(found.group(1)))
    print(f"restart to the end of the first new step {text(times)} s, of which reading as fast as fio takes "
          f"{read_seconds:.3f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("bench")
    parser.add_argument("train")
    parser.add_argument("dir")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rounds-beside", type=int, default=5)
    parser.add_argument("--every", type=int, default=25)
    args = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="bench-ckpt-", dir=args.dir)
    config = f"{folder}/config.json"
    with open(config, "w") as f:
        json.dump({"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 1,
                   "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
                   "dsc": {"model": MODEL, "seq_length": SEQUENCE, "save_async": True}}, f)
    order = random.Random(1)
    try:
        worker = Worker(args.bench, config)
        beside(args, folder, order, worker)
        step, read_seconds = save_and_load(args, folder, order, worker)
        worker.close()
        restart(args, config, step, read_seconds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
