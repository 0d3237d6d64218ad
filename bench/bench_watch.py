#!/usr/bin/env python3
"""bench_watch.py BENCH_FOLDER [--rounds 600]

One rank with every monitor, table and trace on beside the same rank with none, step by step in turns, in a new order
each round. The model is small, so that a step is short and what watching adds is a large share of it. Time is the
caller's, from asking for a step to its answer; "share" is the median of the paired differences over the median step.

SPDX-License-Identifier: Apache-2.0"""
import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time

from bench_offload import Trainer

SEQUENCE, VOCAB = 256, 256


def write_config(path, folder, watched):
    config = {"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}, "gradient_clipping": 1,
              "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
              "dsc": {"model": "gpt2-nano", "seq_length": SEQUENCE}}
    if watched:
        for monitor in ("tensorboard", "csv_monitor"):
            config[monitor] = {"enabled": True, "output_path": os.path.join(folder, monitor)}
        config["wall_clock_breakdown"] = True
        config["comms_logger"] = {"enabled": True}
        config["dsc"].update({"trace": os.path.join(folder, "trace.json"), "trace_steps": 0})
    with open(path, "w") as f:
        json.dump(config, f)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bench", help="folder of step_worker")
    parser.add_argument("--rounds", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    order = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        trainers = []
        for watched in (False, True):
            path = os.path.join(folder, f"{watched}.json")
            write_config(path, folder, watched)
            trainers.append(Trainer(args.bench, path, SEQUENCE, VOCAB))
        seconds, losses = [[], []], [None, None]
        for number in range(args.rounds + 10):
            for i in order.sample((0, 1), 2):
                start = time.perf_counter()
                losses[i] = trainers[i].single_step()[1]
                if number >= 10:  # the first steps touch memory for the first time
                    seconds[i].append(time.perf_counter() - start)
            if losses[0] != losses[1]:
                sys.exit(f"bench_watch: the losses differ: {losses}")
        for trainer in trainers:
            trainer.close()
    plain, watched = (statistics.median(s) for s in seconds)
    added = sorted(b - a for a, b in zip(*seconds))
    middle = statistics.median(added)
    n = len(added)
    print(f"watch_none {plain * 1e3:.3f} ms/step")
    print(f"watch_all {watched * 1e3:.3f} ms/step")
    print(f"watch_adds {middle * 1e6:.0f} us/step  middle half {added[n // 4] * 1e6:.0f} .. {added[3 * n // 4] * 1e6:.0f}"
          f"  share {100 * middle / plain:.2f} %")


main()
