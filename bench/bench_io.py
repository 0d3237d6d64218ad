#!/usr/bin/env python3
"""bench_io.py BENCH_FOLDER DIR [--peers DIR] [--rounds 15] [--mib 1024]

Reading and writing one file in DIR by our engines, by fio and, if --peers DIR/venv has it, DeepSpeed's aio_handle. First
a short sweep finds the best engine, block and depth of fio and of ours, for each direction. Then all take turns, in a new
order each round: each at its best setting, and each at 1 MiB and depth 32. GB/s is the median with the spread, cpu the
processor's seconds a GB, x the ratio to a peer, paired round by round, with its middle half. "swap" is the path of a
run: our first engine, with the CRC of every block of 4 KiB computed or checked.

SPDX-License-Identifier: Apache-2.0"""
import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile

import peers

SHAPES = ((256, 32), (1024, 8), (1024, 32), (4096, 8))  # KiB, depth
DIRECTIONS = ("write", "read")
FIO_ENGINES = ("io_uring", "io_uring 2M", "libaio", "libaio 2M")  # 2M: its buffers in 2 MiB pages, as ours are
OUR_ENGINES = ("io_uring", "libaio", "threads")
SWEEP_ROUNDS = 2


class Missing(Exception):
    """An engine that this system does not have."""


class Server:
    """A program that answers each line it is given by "seconds cpu_seconds" or "none"."""

    def __init__(self, command, env=None):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
                                        text=True, env={**os.environ, **(env or {})})

    def line(self):
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            raise RuntimeError(f"{self.process.args[0]} ended: {self.log.read()[-800:]}")
        return line

    def start(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def ask(self, line):
        self.start(line)
        answer = self.line()
        if answer.strip() == "none":
            raise Missing(line)
        seconds, cpu = answer.split()
        return float(seconds), float(cpu)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def run_fio(path, size, direction, engine, kib, depth, fsync=False):
    """Its seconds and the processor's."""
    command = ["fio", "--name=b", f"--filename={path}", f"--size={size}", f"--bs={kib}k", f"--iodepth={depth}",
               "--direct=1", f"--rw={direction}", f"--ioengine={engine.split(' ')[0]}", "--overwrite=1",
               "--scramble_buffers=0", "--output-format=json", *["--end_fsync=1"] * fsync]
    if engine.startswith("io_uring"):
        command += ["--fixedbufs=1", "--registerfiles=1"]
    env = {**os.environ, **({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"} if engine.endswith("2M") else {})}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode != 0 or "{" not in done.stdout:
        raise Missing(f"fio {engine}: {done.stderr[-200:]}")
    job = json.loads(done.stdout[done.stdout.index("{"):])["jobs"][0]
    seconds = job[direction]["runtime"] * 1e-3
    if seconds <= 0 or job[direction]["io_bytes"] != size:
        raise Missing(f"fio {engine} moved {job[direction]['io_bytes']} bytes")
    return seconds, seconds * (job["usr_cpu"] + job["sys_cpu"]) / 100


def sweep(name, engines, run, rounds=SWEEP_ROUNDS):
    """Every shape by turns; the one with the best round first (noise only adds time), and the engines not here."""
    times = {}
    missing = set()
    for _ in range(rounds):
        for shape in SHAPES:
            for engine in engines:
                if engine in missing:
                    continue
                who = (name, engine, *shape)
                try:
                    times.setdefault(who, []).append(run(who)[0])
                except Missing as error:
                    print(f"# not here: {error}")
                    missing.add(engine)
    return sorted((w for w in times if times[w]), key=lambda w: min(times[w])), missing


class Bench:
    def __init__(self, args):
        self.size = args.mib << 20
        free = shutil.disk_usage(args.dir).free
        if free < 2 * self.size + (256 << 20):
            sys.exit(f"bench_io: {args.dir} has {free >> 20} MiB free, twice {args.mib} and some are needed: take "
                     "another DIR or a smaller MIB")
        self.folder = tempfile.mkdtemp(prefix="bench-io-", dir=args.dir)
        self.path = f"{self.folder}/file"
        self.deepspeed = None
        with open(self.path, "wb") as f:
            os.posix_fallocate(f.fileno(), 0, self.size)
        self.ours = Server([f"{args.bench}/bench_io", self.path, str(args.mib)])
        self.fio = peers.has_fio()
        python = f"{args.peers}/venv/bin/python"
        if args.peers and os.path.exists(python):
            self.open_deepspeed(args, python)

    def open_deepspeed(self, args, python):
        peer = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peer_io_deepspeed.py")
        env = {"TORCH_EXTENSIONS_DIR": f"{args.peers}/torch_ext", "DS_ACCELERATOR": "cpu",
               "PATH": f"{args.peers}/venv/bin:{os.environ['PATH']}"}
        try:
            self.deepspeed = Server([python, peer, self.path, str(args.mib)], env)
            self.deepspeed.line()
        except RuntimeError as error:
            print(f"# DeepSpeed's aio cannot be used here: {str(error)[-200:]}")
            self.deepspeed = None

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        self.ours.close()
        if self.deepspeed:
            self.deepspeed.close()

    def run(self, who, direction):
        name, engine, kib, depth = who
        if name == "fio":
            return run_fio(self.path, self.size, direction, engine, kib, depth)
        if name == "deepspeed":
            return self.deepspeed.ask(f"{direction} {kib} {depth}")
        return self.ours.ask(f"{direction} {engine} {kib} {depth}")


def contenders(bench, direction):
    best, missing = sweep("dsc", OUR_ENGINES, lambda who: bench.run(who, direction))
    mine = best[:1] + [("dsc", e, 1024, 32) for e in OUR_ENGINES[:2] if e not in missing] + [("dsc", "swap", 1024, 32)]
    peers = []
    if bench.fio:
        best, missing = sweep("fio", FIO_ENGINES, lambda who: bench.run(who, direction))
        peers = best[:1] + [("fio", "io_uring", 1024, 32)] * ("io_uring" not in missing)
    if bench.deepspeed:
        peers.append(("deepspeed", "aio", 1024, 32))
    return list(dict.fromkeys(mine)), list(dict.fromkeys(peers))


def text(who):
    return f"{who[0]} {who[1]} {who[2]} KiB x {who[3]}"


def report(bench, direction, mine, peers, samples):
    gb = bench.size * 1e-9
    for who in mine + peers:
        rate = [gb / s for s, _ in samples[who]]
        cpu = statistics.median(c for _, c in samples[who]) / gb
        print(f"{direction:5s} {text(who):32s} {statistics.median(rate):6.2f} GB/s  {min(rate):5.2f} .. "
              f"{max(rate):5.2f}   cpu {cpu:.4f} s/GB")
        for peer in peers if who in mine else []:
            ratio = sorted(b[0] / a[0] for a, b in zip(samples[who], samples[peer]))
            low, high = ratio[len(ratio) // 4], ratio[3 * len(ratio) // 4]
            print(f"        x {statistics.median(ratio):.3f} ({low:.2f} .. {high:.2f}) of {text(peer)}", flush=True)


def measure(bench, direction, rounds, order):
    mine, peers = contenders(bench, direction)
    samples = {who: [] for who in mine + peers}
    for _ in range(rounds):
        turn = mine + peers
        order.shuffle(turn)
        for who in turn:
            samples[who].append(bench.run(who, direction))
    report(bench, direction, mine, peers, samples)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bench", help="folder of bench_io")
    parser.add_argument("dir", help="where the file goes")
    parser.add_argument("--peers", default="", help="folder with venv/ (torch, deepspeed)")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    bench = Bench(args)
    try:
        print(f"# median of {args.rounds} rounds over {args.mib} MiB in {args.dir}, lowest .. highest; x: paired ratio "
              f"(its middle half); load {os.getloadavg()[0]:.1f}")
        if not bench.fio:
            print(f"# {peers.FIO}: not measured beside ours")
        bench.ours.ask("write threads 1024 8")  # the file's blocks are written once before anything is timed
        order = random.Random(args.seed)
        for direction in DIRECTIONS:
            measure(bench, direction, args.rounds, order)
    finally:
        bench.close()


if __name__ == "__main__":
    sys.exit(main())
