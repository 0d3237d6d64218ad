#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench_elastic.py BIN [--rounds N] [--python PROGRAM] [--soak SECONDS] [--every SECONDS]

Jobs of four CPU ranks of which one is killed (SIGKILL) at a random moment. Each round prints nothing; at the end the
median with the middle half of:

  death    time from the kill to the next finished step, and the time of an undisturbed step. Goal: 2 s plus one step
  restart  the same of torchrun with --max-restarts, whose ranks save each step (with --python, which has torch)
  mirrors  an undisturbed step with mirrors beside one without, paired. Goal: 1.03

--soak: instead, one job of so many seconds with a kill about every 30 s (--every). Its useful share is the number of
different steps times the median step, over the whole time. Goal: 0.9. Processes and files that are left are counted."""
import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
MARK = f"DSC_BENCH_MARK={os.getpid()}"


def config(folder, mirrors):
    path = os.path.join(folder, f"mirrors{mirrors}.json")
    with open(path, "w") as f:
        json.dump({"train_batch_size": 12, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2},
                   "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}, "steps_per_print": 0,
                   "dsc": {"quota": "even", "reproducible": "world_size", "elastic": {"mirror_every": mirrors}, "threads": 1,
                           "seq_length": 64}}, f)
    return path


def marked(word):
    """Processes of this bench whose environment has a variable that begins so."""
    found = []
    for name in os.listdir("/proc"):
        try:
            words = open(f"/proc/{name}/environ", "rb").read().split(b"\0") if name.isdigit() else []
        except OSError:
            continue
        if MARK.encode() in words and any(w.startswith(word) for w in words):
            found.append(int(name))
    return found


def rows(log):
    try:
        with open(log) as f:
            return [json.loads(line) for line in f if line.endswith("}\n")]
    except FileNotFoundError:
        return []


def last_step(log):
    return max((row["step"] for row in rows(log) if "step" in row), default=0)


def wait_step(log, step, process):
    while last_step(log) < step and process.poll() is None:
        time.sleep(0.01)


def one_death(command, log, word, env, steps_before):
    """Seconds from a kill to the next finished step, and of the median step before."""
    process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    wait_step(log, steps_before, process)
    time.sleep(random.random() * 0.3)
    before, victims = last_step(log), marked(word)
    begin = time.monotonic()
    os.kill(random.choice(victims), signal.SIGKILL)
    wait_step(log, before + 2, process)  # one may have been under way, and needed no rank any more
    took = time.monotonic() - begin
    process.terminate()
    process.wait()
    steps = [row["step_ms"] * 1e-3 for row in rows(log) if row.get("step", 0) in range(2, before + 1)]
    return took, statistics.median(steps)


def show(name, values, unit="s"):
    quarters = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
    print(f"{name} {statistics.median(values):.3f} ({quarters[0]:.3f} .. {quarters[2]:.3f}) {unit}")


def undisturbed(args, folder, mirrors):
    log = os.path.join(folder, "plain.jsonl")
    subprocess.run([args.bin + "/dsc-launch", "-np", "4", args.bin + "/train", "--config", config(folder, mirrors), "--steps",
                    "8", "--log", log], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    steps = [row["step_ms"] for row in rows(log)[2:]]
    os.unlink(log)
    return statistics.median(steps)


def measure(args, folder):
    env = dict(os.environ, DSC_BENCH_MARK=MARK.split("=")[1], OMP_NUM_THREADS="1")
    ours, theirs, step, ratios = [], [], [], []
    for number in range(args.rounds):
        log = os.path.join(folder, f"log{number}")
        took, each = one_death([args.bin + "/dsc-launch", "-np", "4", "--min_np", "2", args.bin + "/train", "--config",
                                config(folder, 1), "--steps", "100000", "--log", log], log, b"DSC_WORLD_CHANNEL=", env, 3)
        ours.append(took)
        step.append(each)
        if args.python:
            log += "torch"
            took, _ = one_death([args.python, "-m", "torch.distributed.run", "--nproc_per_node", "4", "--max_restarts", "9",
                                 "--monitor_interval", "0.1", "--master_port", str(29600 + number), HERE + "/torch_elastic.py",
                                 "100000", log + ".pt", log], log, b"TORCHELASTIC_RUN_ID=", env, 3)
            theirs.append(took)
        ratios.append(undisturbed(args, folder, 1) / undisturbed(args, folder, 0))
    show("death", ours)
    show("step", step)
    if theirs:
        show("restart", theirs)
        show("restart_by_death", [b / a for a, b in zip(ours, theirs)], "times")
    show("mirrors", ratios, "times")


def soak(args, folder):
    env = dict(os.environ, DSC_BENCH_MARK=MARK.split("=")[1], OMP_NUM_THREADS="1")
    log, shared = os.path.join(folder, "log"), set(os.listdir("/dev/shm"))
    out = os.path.join(folder, "out")
    with open(out, "w") as f:
        process = subprocess.Popen([args.bin + "/dsc-launch", "-np", "4", "--min_np", "1", "--chaos",
                                    f"seed=1,kill={args.every}", args.bin + "/train", "--config", config(folder, 1), "--steps",
                                    "1000000", "--log", log], env=env, stdin=subprocess.DEVNULL, stdout=f, stderr=f)
        wait_step(log, 2, process)
        begin, first = time.monotonic(), last_step(log)
        time.sleep(args.soak)
        took, done = time.monotonic() - begin, last_step(log) - first
        process.terminate()
        code = process.wait()
    said = open(out).read()
    kills = said.count("dsc-launch: chaos: kill")
    if code != 143:
        sys.exit(f"bench_elastic: the job ended with {code}:\n" + said[-2000:])
    step = statistics.median(row["step_ms"] * 1e-3 for row in rows(log) if "step" in row)
    time.sleep(1)
    print(f"soak {took:.0f} s, {kills} kills, {done} steps of {step:.3f} s: useful share {min(1.0, done * step / took):.3f}")
    print(f"left {len(marked(b''))} processes, {len(set(os.listdir('/dev/shm')) - shared)} files in /dev/shm")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bin")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--python", default="")
    parser.add_argument("--soak", type=float, default=0)
    parser.add_argument("--every", type=float, default=30)
    args = parser.parse_args()
    random.seed(1)
    with tempfile.TemporaryDirectory() as folder:
        (soak if args.soak > 0 else measure)(args, folder)


main()
