#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench_quota.py --train BIN/train [--rounds N] [--steps N] [--share S]

Two ranks on CPUs, of which rank 1 runs for the share S (0.5) of the time: it is stopped and continued every few
milliseconds. Runs with "quota": "even" and "measured" alternate. Each run makes N steps (24), of which those after the
measurement count. Prints the median milliseconds of a step with the middle half for both, and the paired ratio. All runs
must have the same loss bits. The goal is a ratio of 1.25."""
import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

MEASURED = 5  # steps until measured quotas are in use
SLICE_S = 0.01


def config(quota):
    return {"train_batch_size": 24, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2},
            "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}, "steps_per_print": 0,
            "dsc": {"quota": quota, "reproducible": "world_size", "threads": 1, "comm": "shm"}}


def slow_down(process, share):
    """Stops the process for a part of each time slice until it ends."""
    while process.poll() is None:
        process.send_signal(signal.SIGSTOP)
        time.sleep(SLICE_S * (1 - share))
        process.send_signal(signal.SIGCONT)
        time.sleep(SLICE_S * share)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run(args, folder, quota):
    """Milliseconds of each counted step, the losses, and the line of measured quotas."""
    paths = [os.path.join(folder, name) for name in ("config.json", "text.txt", "log.jsonl")]
    with open(paths[0], "w") as f:
        json.dump(config(quota), f)
    with open(paths[1], "wb") as f:
        f.write(bytes(range(32, 127)) * 2000)
    port, ranks = free_port(), []
    for r in range(2):
        env = dict(os.environ, RANK=str(r), LOCAL_RANK=str(r), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                   MASTER_PORT=str(port))
        ranks.append(subprocess.Popen([args.train, "--config", paths[0], "--model", "gpt2-nano", "--data", paths[1], "--steps",
                                       str(args.steps), "--seq-len", "64", "--device", "cpu", "--log", paths[2]], env=env,
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    slower = threading.Thread(target=slow_down, args=(ranks[1], args.share))
    slower.start()
    out = [p.communicate()[0] for p in ranks]
    slower.join()
    if any(p.returncode != 0 for p in ranks):
        sys.exit(f"bench_quota: a rank failed with {quota}:\n" + "\n".join(out))
    with open(paths[2]) as f:
        steps = [json.loads(line) for line in f]
    os.unlink(paths[2])
    lines = [line for line in "".join(out).splitlines() if "micro-batches of each rank" in line]
    return [s["step_ms"] for s in steps[MEASURED:]], [s["loss"] for s in steps], lines


def middle(values):
    quarters = statistics.quantiles(values, n=4)
    return f"{statistics.median(values):.1f} ({quarters[0]:.1f} .. {quarters[2]:.1f}) ms/step"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", required=True)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--share", type=float, default=0.5)
    args = parser.parse_args()
    medians, losses = {"even": [], "measured": []}, []
    with tempfile.TemporaryDirectory() as folder:
        for i in range(args.rounds):
            for quota in sorted(medians, reverse=i % 2 == 1):
                ms, loss, lines = run(args, folder, quota)
                medians[quota].append(statistics.median(ms))
                losses.append(loss)
                for line in lines if i == 0 else []:
                    print(f"  {line.strip()}")
    if any(loss != losses[0] for loss in losses):
        sys.exit("bench_quota: losses differ between quotas")
    ratios = [e / m for e, m in zip(medians["even"], medians["measured"])]
    if args.rounds > 1:
        for quota, values in medians.items():
            print(f"  {quota:9} {middle(values)}")
    print(f"quota_speed {statistics.median(ratios):.2f} times ({min(ratios):.2f} .. {max(ratios):.2f}), measured beside even; "
          f"{args.rounds} paired rounds, {len(losses)} runs with equal losses")


if __name__ == "__main__":
    main()
