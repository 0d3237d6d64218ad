#!/usr/bin/env python3
"""bench_vision.py BENCH_FOLDER [--rounds 9] [--threads 2] [--cases NAME:SIDE:BATCH:PRECISION...] [--eager] [--ours FUNCTIONS] [--short]

A training step (SGD with momentum) of convolutional networks beside PyTorch's with channels_last, eager and compiled. All sides make
a step in turns, in alternating order. Medians and middle halves of a step's time and of its CPU time are printed, with paired ratios:
on a loaded machine the CPU time says more. Threads that wait give their core away, so that waiting is not counted. --eager: without the compiled side. --ours N: where our step's CPU time goes, as the N
functions that perf finds on top. "worker NAME SIDE BATCH PRECISION eager|compiled" is PyTorch's side, in the form of step_worker.
SPDX-License-Identifier: Apache-2.0"""
import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

CASES = [f"{name}:{side}:{batch}:{precision}" for name in ("resnet18", "mobilenet_v2") for side, batch in ((224, 16), (64, 32), (32, 64))
         for precision in ("fp32", "bf16")]
CLASSES, RATE = 100, 1e-3


def worker(name, side, batch, precision, way):
    import torch
    import torchvision
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(0)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    model = getattr(torchvision.models, name)(num_classes=CLASSES).to(memory_format=torch.channels_last).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    call = torch.compile(model) if way == "compiled" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9, fused=True)
    x = torch.randn(batch, 3, side, side).contiguous(memory_format=torch.channels_last)
    labels = torch.arange(batch) * 7919 % CLASSES

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = torch.nn.functional.cross_entropy(call(x), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    step()  # compiles
    print("ready", file=out, flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        loss = step()
        print(f"{(time.perf_counter() - start) * 1e3:.3f} {loss:.6f} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss} 0", file=out,
              flush=True)


def text(values):
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return f"{statistics.median(values):.1f} ({low:.1f}..{high:.1f})"


def configure(folder, name, side, batch, precision, threads):
    os.makedirs(folder)
    json.dump({"architecture": name, "num_classes": CLASSES, "drop_rate": 0.0, "drop_path_rate": 0.0,
               "pretrained_cfg": {"input_size": [3, side, side]}}, open(f"{folder}/config.json", "w"))
    json.dump({"train_micro_batch_size_per_gpu": batch, "bf16": {"enabled": precision == "bf16"},
               "optimizer": {"type": "SGD", "params": {"lr": RATE, "momentum": 0.9}},
               "dsc": {"model": f"{folder}/config.json", "threads": threads}}, open(f"{folder}/c.json", "w"))
    return [f"{folder}/c.json", str(CLASSES), str(side), "pictures"]


def top(worker_program, arguments, threads, count):
    """Our functions with the most CPU time, by perf."""
    if shutil.which("perf") is None:
        print("    perf is not installed: no functions")
        return
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["perf", "record", "-q", "-o", f"{folder}/perf", worker_program, *arguments], input="step\n" * 4, text=True,
                       env=dict(os.environ, OMP_NUM_THREADS=str(threads)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        said = subprocess.run(["perf", "report", "-q", "-i", f"{folder}/perf", "--stdio", "--sort", "symbol"], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False).stdout
    for line in [line for line in said.splitlines() if line.strip()][:count]:
        print(f"    {line.strip()}")


def compare(args, case, folder):
    from peers import Ranks
    name, side, batch, precision = case.split(":")
    ours = configure(f"{folder}/{case.replace(':', '-')}", name, int(side), int(batch), precision, args.threads)
    sides = {"dsc": Ranks([f"{args.bench}/step_worker", *ours], 1, args.threads, 0)}
    for way in () if args.alone else ("eager",) if args.eager or args.short else ("eager", "compiled"):
        sides[way] = Ranks([sys.executable, os.path.abspath(__file__), "worker", name, side, batch, precision, way], 1, args.threads, 0)
    for number in range(args.rounds + 1):
        for key in list(sides)[::1 if number % 2 else -1]:
            sides[key].step(number > 0)  # the first one touches memory for the first time
    for process in sides.values():
        process.close()
    print(f"{name} {side}x{side} batch {batch} {precision}, {args.threads} threads, {args.rounds} rounds, load {os.getloadavg()[0]:.1f}")
    for key, process in sides.items():
        line = f"  {key:8s} step {text(process.ms)} ms, CPU {text(process.cpu_ms)} ms, process {process.kib / 1024:.0f} MiB"
        if key != "dsc":
            ratios = [[b / a for a, b in zip(getattr(sides["dsc"], kind), getattr(process, kind))] for kind in ("ms", "cpu_ms")]
            line += f"; paired {statistics.median(ratios[0]):.2f} times ours, CPU {statistics.median(ratios[1]):.2f}"
        print(line, flush=True)
    if args.ours:
        top(f"{args.bench}/step_worker", ours, args.threads, args.ours)


def main():
    from peers import skip
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bench", help="folder of step_worker")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cases", nargs="+", default=CASES)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--alone", action="store_true", help="our side only")
    parser.add_argument("--ours", type=int, default=0)
    parser.add_argument("--short", action="store_true")
    args = parser.parse_args()
    os.environ["OMP_WAIT_POLICY"] = "passive"
    if not args.alone:
        try:
            import torchvision
        except ImportError:
            skip("bench-vision", "torchvision is not installed (PYTHON=PROGRAM names a python that has it)")
        print(f"PyTorch by torchvision {torchvision.__version__}; (low..high) is the middle half")
    with tempfile.TemporaryDirectory() as folder:
        for case in ["resnet18:32:4:fp32"] if args.short else args.cases:
            compare(args, case, folder)


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5], sys.argv[6])
    else:
        main()
