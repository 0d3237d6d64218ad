#!/usr/bin/env python3
"""bench_offload.py BENCH_FOLDER DSC DIR [CASE...]

Training steps with parameters, gradient sums and optimizer states in files in DIR, beside steps in memory and the limit of
the disk. All run in turns, in a new order each round. "link" is the time to move a step's bytes alone, as `dsc plan` counts
them. They move as in a run: read and written at once in their shares, in swap space with the check of every block. One
measurement moves the bytes of all steps of a turn. The swap space is as large as the run's files, because a disk is not equally fast
everywhere. The bound is the larger of link and the step in memory; "x" is the step's time over the bound, paired round by
round, with its middle half. A turn is the mean of several steps in a row: an update continues during the next passes.
"link in bursts" are the same bytes at the speeds of 512 MiB read, written, and both at once. A disk may have these speeds
for a moment and not for a step.
SPDX-License-Identifier: Apache-2.0

That bound assumes that compute and link do not slow each other. "both at once" measures the real cost: steps in memory
while another process moves the same bytes, in any order and each block checked, until both have ended. It is the least
that this machine's cores, memory and disk allow. The order of a step adds to it: an update needs its norm first, and the
next forward pass needs the update.

With updates that begin before their norm (dsc.early_update), gradients are clipped only if --clip says so. Steps whose
updates wait for the norm take turns with them, with their own memory and time, unless --no-waiting leaves them out."""
import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from bench_io import Server

VOCAB, NANO_VOCAB = 50257, 256
# The link decides, compute decides, or neither. "compute" and "alike" have the settings of docs/offload.md; "plain" is
# "compute", and "balanced" and "single" are "alike", with no settings but the folders.
CASES = {"files": {"sequence": 64},
         "compute": {"micro": 2, "accumulation": 8, "ratio": 0.68, "gradients": 1, "buffers": 120, "block": 4096, "early": True,
                     "waiting": False, "rounds": 5},
         "plain": {"micro": 2, "accumulation": 8, "rounds": 5},
         "alike": {"model": "gpt2-large", "sequence": 208, "ratio": 0.885, "gradients": 0.34, "buffers": 360, "block": 4096,
                   "early": True, "waiting": False, "rounds": 5},
         "balanced": {"accumulation": 2}, "single": {}}
DEFAULTS = {"model": "gpt2-124m", "sequence": 256, "micro": 1, "accumulation": 1, "ratio": 1, "gradients": 0, "together": 1,
            "early": False, "waiting": True, "clip": None, "rounds": 15,
            "block": 1024,  # KiB
            "buffers": 4}  # DeepSpeed's default
DEPTH, LINK_MIB = 32, 512
SHORT = {"model": "gpt2-nano", "sequence": 16, "rounds": 2, "block": 64}
SHORT_LINK_MIB = 16
OPERATIONS_APART = 8
STEPS_A_TURN = 2
STEPS_BESIDE = STEPS_A_TURN + 1  # the steps of a turn with the untimed first one, so that losses of equal step numbers are compared


class Trainer:
    """step_worker: optimizer steps in turns."""

    def __init__(self, bench, config, sequence, vocab=VOCAB):
        self.process = subprocess.Popen([f"{bench}/step_worker", config, str(vocab), str(sequence)], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.process.stdout.readline().strip() != "ready":
            sys.exit(f"step_worker {config} did not start")
        self.steps = 0
        self.losses = {}  # by the number of steps before

    def start(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def step(self):
        """Seconds of a step and of its passes."""
        self.start(f"run {STEPS_A_TURN}")
        answer = self.process.stdout.readline().split()
        self.losses[self.steps] = answer[1]
        self.steps += STEPS_A_TURN + 1
        return float(answer[0]) * 1e-3, float(answer[4]) * 1e-3

    def single_step(self):
        """Seconds of one step that ends before the answer, and its loss."""
        self.start("step")
        answer = self.process.stdout.readline().split()
        if len(answer) < 2:
            sys.exit(f"{self.process.args[0]} ended at step {self.steps}")
        self.steps += 1
        return float(answer[0]) * 1e-3, answer[1]

    def step_beside(self, server, block, read, written):
        """Seconds of a step while that many bytes are moved, until both have ended."""
        begun = time.monotonic()
        server.start(move_command(block, read, written))
        self.start(f"steps {STEPS_BESIDE}")
        self.process.stdout.readline()
        server.line()
        self.steps += STEPS_BESIDE
        return (time.monotonic() - begun) / STEPS_BESIDE

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def settings_of(args, case):
    """The settings of a case; flags replace them."""
    given = {key: value for key, value in vars(args).items() if key in DEFAULTS and value is not None}
    chosen = argparse.Namespace(**(DEFAULTS | CASES[case] | (SHORT if args.short else {}) | given))
    if chosen.clip is None:
        chosen.clip = 0 if chosen.early else 1
    return chosen


def write_config(path, folder, chosen, early):
    zero = {"stage": 3}
    own = {"model": chosen.model, "seq_length": chosen.sequence}
    if folder:
        own["micro_batches_together"] = chosen.together
        own["early_update"] = early
        own["gradients_in_memory"] = chosen.gradients
        zero["offload_param"] = {"device": "nvme", "nvme_path": folder}
        zero["offload_optimizer"] = {"device": "nvme", "nvme_path": folder, "buffer_count": chosen.buffers,
                                     "ratio": chosen.ratio}
    with open(path, "w") as f:
        json.dump({"train_micro_batch_size_per_gpu": chosen.micro, "gradient_accumulation_steps": chosen.accumulation,
                   "bf16": {"enabled": True}, "gradient_clipping": chosen.clip, "zero_optimization": zero,
                   "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
                   "aio": {"block_size": chosen.block << 10, "queue_depth": DEPTH},
                   "dsc": own}, f)


def move_command(block, read, written):
    return f"move swap {block} {DEPTH} {STEPS_BESIDE * read} {STEPS_BESIDE * written}"


def move_alone(server, block, read, written):
    """Seconds that a step's bytes take."""
    seconds, _ = server.ask(move_command(block, read, written))
    return seconds / STEPS_BESIDE


def burst_seconds(read, written, speed):
    """The shorter of two times: one direction after the other, or both at once while both have bytes left."""
    apart = read / speed["read"] + written / speed["write"]
    shared = min(read, written)
    together = 2 * shared / speed["both"] + (read - shared) / speed["read"] + (written - shared) / speed["write"]
    return min(apart, together)


def measure_bursts(server, block, mib):
    speed = {}
    for direction in ("read", "write", "both"):
        seconds, _ = server.ask(f"{direction} swap {block} {DEPTH}")
        speed[direction] = (mib << 20) / seconds
    return speed


def text(samples, scale=1.0):
    s = sorted(x * scale for x in samples)
    return f"{statistics.median(s):7.3f} ({s[len(s) // 4]:.3f} .. {s[3 * len(s) // 4]:.3f})"


def moved_in_a_step(plans):
    step = plans["files"]["per_step"]
    return [step["pass_read_bytes"] + step["update_read_bytes"], step["pass_written_bytes"] + step["update_written_bytes"]]


def check_losses(memory, others):
    """Losses after the same number of steps are the same bits."""
    compared = 0
    for other in others:
        for steps in memory.losses.keys() & other.losses.keys():
            compared += 1
            if memory.losses[steps] != other.losses[steps]:
                sys.exit(f"bench_offload: the losses differ after {steps} steps: {memory.losses[steps]} in memory, "
                         f"{other.losses[steps]} in files")
    if compared == 0:
        sys.exit("bench_offload: no losses to compare; give it more --rounds")


def report(case, chosen, plans, rounds):
    bytes_moved = plans["files"]["per_step"]
    total = moved_in_a_step(plans)
    pass_bytes = [bytes_moved["pass_read_bytes"], bytes_moved["pass_written_bytes"]]
    update_bytes = [bytes_moved["update_read_bytes"], bytes_moved["update_written_bytes"]]
    rows = {"memory": [], "passes": [], "update": [], "link": [], "files": [], "x": [], "both": [], "x both": [],
            "both x": [], "bursts": [], "x bursts": []}
    for memory, files, speed, both, link, *_ in rounds:
        bursts = burst_seconds(*total, speed)
        values = (memory[0], memory[1], memory[0] - memory[1], link, files[0], files[0] / max(memory[0], link), both,
                  files[0] / both, both / max(memory[0], link), bursts, files[0] / max(memory[0], bursts))
        for row, value in zip(rows.values(), values):
            row.append(value)
    print(f"{case}, {chosen.rounds} rounds: {chosen.model}, {chosen.sequence} tokens, micro-batch {chosen.micro}, accumulation "
          f"{chosen.accumulation}, {chosen.together} together, clipping {chosen.clip:g}")
    print(f"  blocks of {chosen.block} KiB, buffer_count {chosen.buffers}, ratio {chosen.ratio:g}, gradients in memory "
          f"{chosen.gradients:g}, {'early' if chosen.early else 'waiting'} updates")
    print(f"  passes read {pass_bytes[0] * 1e-9:.2f} and write {pass_bytes[1] * 1e-9:.2f} GB, the update "
          f"{update_bytes[0] * 1e-9:.2f} and {update_bytes[1] * 1e-9:.2f} GB")
    print(f"  memory planned {plans['files']['total_bytes'] * 1e-9:.2f} GB beside files, without "
          f"{plans['memory']['total_bytes'] * 1e-9:.2f} GB")
    for direction in ("read", "write", "both"):
        print(f"  bursts {direction:5s} {text([r[2][direction] for r in rounds], 1e-9)} GB/s")
    print(f"  link alone   {text([sum(total) / r[4] for r in rounds], 1e-9)} GB/s")
    print(f"  step in memory {text(rows['memory'])} s: passes {text(rows['passes'])}, update {text(rows['update'])}")
    print(f"  link           {text(rows['link'])} s")
    print(f"  both at once   {text(rows['both'])} s: x {text(rows['both x'])} of max(memory, link)")
    print(f"  step in files  {text(rows['files'])} s")
    print(f"  x {text(rows['x'])} of max(memory, link)")
    print(f"  x {text(rows['x both'])} of both at once")
    print(f"  link in bursts {text(rows['bursts'])} s: x {text(rows['x bursts'])} of max(memory, that)", flush=True)
    if len(rounds[0]) > 5:
        print(f"  with updates that wait for the norm {text([r[5][0] for r in rounds])} s")
        print(f"  x {text([r[1][0] / r[5][0] for r in rounds])} of that", flush=True)


def check_room(args, plans):
    """All files and memory exist at the same time."""
    link = plans["files"]["nvme_bytes"]
    for what, key, beside, free in ((args.dir, "nvme_bytes", link, shutil.disk_usage(args.dir).free),
                                    ("memory", "total_bytes", 0, plans["memory"]["free_bytes"])):
        needed = beside + sum(plan[key] for plan in plans.values())
        if needed > free:
            sys.exit(f"bench_offload: {what} has {free * 1e-9:.1f} GB free, and these runs need {needed * 1e-9:.1f}")


def link_mib(args):
    return SHORT_LINK_MIB if args.short else LINK_MIB


def open_mover(args, folder, mib):
    path = f"{folder}/link-{mib}"
    with open(path, "wb"):
        pass
    return Server([f"{args.bench}/bench_io", path, str(mib)])


def run_case(args, case, folder, bursts, order):
    chosen, plans = settings_of(args, case), {}
    kinds = [("memory", "", False), ("files", folder, chosen.early)]
    if chosen.early and chosen.waiting:
        kinds.append(("waiting", folder, False))
    for name, where, early in kinds:
        path = os.path.join(folder, f"{case}-{name}.json")
        write_config(path, where, chosen, early)
        plan = subprocess.run([args.dsc, "plan", "--config", path, "--json"], capture_output=True, text=True)
        if plan.returncode != 0:
            sys.exit(f"bench_offload: {(plan.stderr.strip() or plan.stdout.strip()).splitlines()[-1]}")
        plans[name] = json.loads(plan.stdout)
    check_room(args, plans)
    # Reads and writes run at once around the file, so a small one is made large enough that they never overlap.
    least = OPERATIONS_APART * DEPTH * (chosen.block << 10)
    server = open_mover(args, folder, -(-max(plans["files"]["nvme_bytes"], least) // (1 << 20)))
    server.ask(move_command(chosen.block, 0, 0))  # its files are taken and written
    vocab = NANO_VOCAB if chosen.model == "gpt2-nano" else VOCAB
    trainers = [Trainer(args.bench, os.path.join(folder, f"{case}-{name}.json"), chosen.sequence, vocab)
                for name, *_ in kinds]
    rounds = []
    for number in range(chosen.rounds + 1):
        turn = [lambda: trainers[0].step(), lambda: trainers[1].step(), lambda: measure_bursts(bursts, chosen.block, link_mib(args)),
                lambda: trainers[0].step_beside(server, chosen.block, *moved_in_a_step(plans)),
                lambda: move_alone(server, chosen.block, *moved_in_a_step(plans)),
                *[trainer.step for trainer in trainers[2:]]]
        numbered = list(enumerate(turn))
        order.shuffle(numbered)
        results = {i: act() for i, act in numbered}
        if number > 0:  # the first step touches memory for the first time
            rounds.append(tuple(results[i] for i in range(len(turn))))
    check_losses(trainers[0], trainers[1:])
    for process in (*trainers, server):
        process.close()
    report(case, chosen, plans, rounds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bench", help="folder of step_worker and bench_io")
    parser.add_argument("dsc", help="the dsc program")
    parser.add_argument("dir", help="where the files go")
    parser.add_argument("--seed", type=int, default=1)
    # Settings that replace those of a case:
    parser.add_argument("--short", action="store_true", help="gpt2-nano, 2 rounds, case files unless others are named")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--model", help="one with GPT-2's tokens, or gpt2-nano")
    parser.add_argument("--sequence", type=int, help="tokens of a sample")
    parser.add_argument("--buffers", type=int, help="offload_optimizer.buffer_count")
    parser.add_argument("--ratio", type=float, help="offload_optimizer.ratio")
    parser.add_argument("--gradients", type=float, help="dsc.gradients_in_memory")
    parser.add_argument("--together", type=int, help="dsc.micro_batches_together")
    parser.add_argument("--early", action=argparse.BooleanOptionalAction, help="updates begin before their norm")
    parser.add_argument("--waiting", action=argparse.BooleanOptionalAction, help="beside early ones, also those that wait")
    parser.add_argument("--block", type=int, help="KiB of one request, here and of the link")
    parser.add_argument("--clip", type=float, help="gradient_clipping; 1, and 0 with early updates")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=" ".join(CASES))
    args = parser.parse_intermixed_args()
    unknown = [case for case in args.cases if case not in CASES]
    if unknown:
        parser.error(f"no case \"{unknown[0]}\"; there are {' '.join(CASES)}")
    folder = tempfile.mkdtemp(prefix="bench-offload-", dir=args.dir)
    bursts = open_mover(args, folder, link_mib(args))
    try:
        print(f"# medians of rounds (their middle halves) in {args.dir}; load {os.getloadavg()[0]:.1f}")
        order = random.Random(args.seed)
        for case in args.cases or (("files",) if args.short else ("files", "compute", "alike")):
            run_case(args, case, folder, bursts, order)
    finally:
        bursts.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
