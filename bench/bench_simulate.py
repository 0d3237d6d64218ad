#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench_simulate.py [--bin DIR] [--worker FILE] [--rounds N] [--models small,larger] [--stages 0,1,2,3] [--accumulation 1,4]

`dsc simulate --cpu` beside real steps of 1, 2 and 4 CPU ranks of one thread. `dsc simulate --measure` sees one rank
at stage 0 without accumulation, and small exchanges of two ranks. Stages 0 to 3, accumulation and other numbers of ranks
are predictions.

Two times are compared. CPU time of a rank is what its threads used, by the scheduler's count, so that other programs of
the machine disturb it little. Wall time is the slowest rank's, and needs a machine that does nothing else: the last line
says whether it was. Both are medians of rounds in which all numbers of ranks make one step in turn, with quarters of the
wall times. Rank r stays on core r. The card is measured before and after each config's rounds, and the mean of both
predictions counts."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from peers import Ranks, skip

RANKS = (1, 2, 4)
WITHIN = 0.05  # a ratio that counts as proved
IDLE = 1.05  # wall time of one rank in its CPU times, at most
MODELS = {  # name: (config.json or built-in name, vocabulary, sequence, micro-batch)
    "small": ({"model_type": "llama", "vocab_size": 512, "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
               "num_key_value_heads": 4, "intermediate_size": 352, "max_position_embeddings": 128}, 512, 128, 2),
    "larger": ({"model_type": "llama", "vocab_size": 2048, "hidden_size": 256, "num_hidden_layers": 4,
                "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 688,
                "max_position_embeddings": 64}, 2048, 64, 2),
}


def config_of(folder, model, stage, accumulation):
    spec, _, sequence, micro = MODELS[model]
    model_path = f"{folder}/{model}.json"
    with open(model_path, "w", encoding="utf-8") as file:
        json.dump(spec, file)
    path = f"{folder}/{model}-{stage}-{accumulation}.config"
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": accumulation,
                   "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "gradient_clipping": 1.0,
                   "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
                   "dsc": {"model": model_path, "seq_length": sequence, "threads": 1, "device": "cpu"}}, file)
    return path


class Simulator:
    def __init__(self, folder_of_dsc, folder):
        self.dsc, self.card = f"{folder_of_dsc}/dsc", f"{folder}/card.json"

    def run(self, *flags):
        env = dict(os.environ, OMP_NUM_THREADS="1")
        return subprocess.run([self.dsc, "simulate", *flags], check=True, capture_output=True, text=True, env=env).stdout

    def predict(self, one_rank, config):
        """{ranks: (CPU ms of a rank, ms of a step, share of exchanges)}"""
        self.run("--measure", self.card, "--config", one_rank)
        table = json.loads(self.run("--cpu", self.card, "--config", config, "--ranks", ",".join(map(str, RANKS)), "--json"))
        return {row["ranks"]: (row["rank_cpu_s"] * 1e3, row["step_s"] * 1e3, row["exchange_share"]) for row in table["rows"]}


def measure(worker, config, model, rounds, port):
    """{ranks: (CPU ms of a rank, ms of a step, ms of the fastest step, quarters of the ms)}"""
    _, vocab, sequence, _ = MODELS[model]
    cores = sorted(os.sched_getaffinity(0))
    sides = {w: Ranks([worker, config, str(vocab), str(sequence)], w, 1, port + w, cores) for w in RANKS}
    for number in range(rounds + 2):
        for side in sides.values():
            side.step(number >= 2)
    for side in sides.values():
        side.close()
    return {w: (statistics.median(side.cpu_ms) / w, statistics.median(side.ms), min(side.ms), quarters(side.ms))
            for w, side in sides.items()}


def quarters(values):
    first, _, third = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return first, third


def summary(name, ratios):
    for w in RANKS:
        near = sum(abs(ratio - 1) <= WITHIN for ratio in ratios[w])
        print(f"{name}, {w} rank{'s' if w > 1 else ''}: predicted / measured median {statistics.median(ratios[w]):.3f},"
              f" {min(ratios[w]):.3f} to {max(ratios[w]):.3f}; {near} of {len(ratios[w])} rows within {WITHIN * 100:.0f} %")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", default="bin")
    parser.add_argument("--worker", default="build/gcc-release/bench/step_worker")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--models", default="small,larger")
    parser.add_argument("--stages", default="0,1,2,3")
    parser.add_argument("--accumulation", default="1,4")
    args = parser.parse_args()
    if not os.access(args.worker, os.X_OK):
        skip("bench_simulate.py", f"there is no {args.worker}: make bench")
    off = {w: [] for w in RANKS}
    wall = {w: [] for w in RANKS}
    stretch = []  # wall time of one rank in its CPU times
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    print("model   stage  acc  ranks   CPU ms of a rank: predicted  measured  ratio   step ms: predicted  measured (fastest)"
          "  ratio  exchange  middle half of the steps")
    with tempfile.TemporaryDirectory() as folder:
        simulator, port = Simulator(args.bin, folder), 23000 + os.getpid() % 20000
        for model in args.models.split(","):
            one_rank = config_of(folder, model, 0, 1)
            for stage in map(int, args.stages.split(",")):
                for accumulation in map(int, args.accumulation.split(",")):
                    config = config_of(folder, model, stage, accumulation)
                    before = simulator.predict(one_rank, config)
                    seen = measure(args.worker, config, model, args.rounds, port)
                    after = simulator.predict(one_rank, config)
                    port += 8
                    stretch.append(seen[1][1] / seen[1][0])
                    for w in RANKS:
                        cpu, step, share = ((a + b) / 2 for a, b in zip(before[w], after[w]))
                        off[w].append(cpu / seen[w][0])
                        wall[w].append(step / seen[w][1])
                        print(f"{model:7} {stage:5} {accumulation:4} {w:6} {cpu:28.2f} {seen[w][0]:9.2f} {off[w][-1]:6.3f}"
                              f" {step:20.2f} {seen[w][1]:9.2f} ({seen[w][2]:.2f}) {wall[w][-1]:6.3f} {share * 100:7.1f} %"
                              f" {seen[w][3][0]:9.2f} .. {seen[w][3][1]:.2f}", flush=True)
    summary("CPU time", off)
    summary("wall time", wall)
    idle = statistics.median(stretch)
    print(f"one rank's step takes {idle:.2f} times its CPU time: " +
          ("the machine was idle" if idle <= IDLE else "the machine was not idle, and wall times prove nothing"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
