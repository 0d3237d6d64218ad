#!/usr/bin/env python3
"""bench_pipeline.py BENCH_FOLDER [--peers DIR] [--rounds 15] [--stages 2] [--micro-batches 2,4,8] [--short]

Stages of a pipeline, one CPU rank with one thread for each: a step of ours (1F1B). With PEERS=DIR the 1F1B of
torch.distributed.pipelining and one by plain send and recv over gloo run in turns with it. The idle share of ours is
1 - (forward and backward passes of all stages) / (stages x step). The step has the update too. The schedule's own share is
(P - 1) / (m + P - 1). Medians, middle halves and paired
ratios are printed. A side that does not answer is named and left out. SPDX-License-Identifier: Apache-2.0"""
import argparse
import json
import os
import select
import statistics
import tempfile

from peers import Ranks, python_of, skip

# layers, heads, width, inner width, vocabulary
SIZES, SHORT = (8, 6, 384, 1024, 4096), (4, 2, 32, 64, 256)
ANSWER_S = 120
FIRST_PORT = 29840


def text(values):
    low, _, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else (values[0],) * 3
    return f"{statistics.median(values):.3f} ({low:.3f}..{high:.3f})"


class Side:
    """Ranks of one side; dead: they did not answer a step."""

    def __init__(self, name, command, ranks, port):
        self.name, self.idle, self.dead = name, [], False
        self.ranks = Ranks(command, ranks, 1, port)

    def step(self, count):
        for process in self.ranks.ranks:
            process.stdin.write("step\n")
            process.stdin.flush()
        answers = []
        for process in self.ranks.ranks:
            ready, _, _ = select.select([process.stdout], [], [], ANSWER_S)
            answers.append(process.stdout.readline().split() if ready else [])
        if not all(answers):
            self.dead = True
            return
        ms = max(float(answer[0]) for answer in answers)
        if count:
            self.ranks.ms.append(ms)
            if len(answers[0]) > 4:
                self.idle.append(1 - sum(float(answer[4]) for answer in answers) / (len(answers) * ms))

    def close(self):
        if self.dead:
            for process in self.ranks.ranks:
                process.kill()
        self.ranks.close()


def our_config(folder, sizes, batch, sequence, stages, m):
    layers, heads, width, inner, vocab = sizes
    with open(f"{folder}/model.json", "w", encoding="utf-8") as file:
        json.dump({"model_type": "llama", "vocab_size": vocab, "hidden_size": width, "num_attention_heads": heads, "num_key_value_heads": heads,
                   "num_hidden_layers": layers, "intermediate_size": inner, "max_position_embeddings": sequence, "rms_norm_eps": 1e-5,
                   "tie_word_embeddings": False}, file)
    with open(f"{folder}/{m}.json", "w", encoding="utf-8") as file:
        json.dump({"train_micro_batch_size_per_gpu": batch, "gradient_accumulation_steps": m, "gradient_clipping": 0,
                   "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}},
                   "dsc": {"model": f"{folder}/model.json", "seq_length": sequence, "threads": 1,
                           "grid": {"pipeline": stages, "partition": "uniform"}}}, file)
    return f"{folder}/{m}.json"


def run(args, python, m, folder, port):
    sizes, batch, sequence = (SHORT, 1, 16) if args.short else (SIZES, 1, 256)
    config = our_config(folder, sizes, batch, sequence, args.stages, m)
    worker = [python, os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_pipeline.py")]
    commands = {"dsc": [f"{args.bench}/step_worker", config, str(sizes[4]), str(sequence)]}
    for mode in ("pipelining", "plain") if python is not None else ():
        commands[mode] = worker + [mode, ",".join(map(str, sizes)), str(batch), str(sequence), str(m)]
    sides = [Side(name, command, args.stages, port + i) for i, (name, command) in enumerate(commands.items())]
    for number in range(-1, args.rounds):
        for side in sides[::1 if number % 2 else -1]:
            if not side.dead:
                side.step(number >= 0)
    for side in sides:
        side.close()
    bubble = (args.stages - 1) / (m + args.stages - 1)
    for side in sides:
        if side.dead or not side.ranks.ms:
            print(f"m {m}: {side.name} did not answer in {ANSWER_S} s and is left out")
            continue
        idle = f", idle {text(side.idle)} of (P-1)/(m+P-1) {bubble:.3f}" if side.idle else ""
        print(f"m {m}: {side.name:10s} step {text(side.ranks.ms)} ms{idle}")
    for side in sides[1:]:
        if not side.dead:
            ratios = [theirs / ours for ours, theirs in zip(sides[0].ranks.ms, side.ranks.ms)]
            print(f"m {m}: {side.name}'s step is {text(ratios)} times ours, paired")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("bench", help="folder of step_worker")
    parser.add_argument("--peers", help="folder whose venv has torch")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--micro-batches", default="2,4,8")
    parser.add_argument("--short", action="store_true")
    args = parser.parse_args()
    python = python_of("bench-pipeline", args.peers) if args.peers else None
    counts = [2] if args.short else [int(m) for m in args.micro_batches.split(",")]
    print(f"{args.stages} stages, one thread each, {args.rounds} rounds; load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        for i, m in enumerate(counts):
            run(args, python, m, folder, FIRST_PORT + 3 * i)
    if python is None:
        skip("bench-pipeline", "no PEERS=DIR given, so torch's pipelines are not timed")


if __name__ == "__main__":
    main()
