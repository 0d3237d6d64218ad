#!/usr/bin/env python3
"""bench_comm.py BENCH_FOLDER [--peers DIR] [--ranks 2,4] [--rounds 15] [--mib 1,4 | --kib 64,256] [--comm shm] [--bind core]

All-gather, reduce-scatter and all-reduce of our transports beside Open MPI, torch's gloo and DeepSpeed's shared-memory
all-reduce. gloo and mpi are compared with the library that they use, the others with the best peer. All programs are
started once and take turns within every round, in a new order each round; a program without a turn sleeps in a read. Per
case: median over the rounds, spread, and ratio to the best peer, paired round by round. GB/s are the bytes of the whole
vector over the time of the slowest rank.

SPDX-License-Identifier: Apache-2.0"""
import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile

import peers

OPS = ("all_gather", "reduce_scatter", "all_reduce")


class Contender:
    """One program with all its ranks, asked through one FIFO per rank."""

    def __init__(self, folder, name, ranks, commands, env, ops=OPS):
        self.name, self.ops = name, ops
        self.fifos = [f"{folder}/{name}.{r}" for r in range(ranks)]
        for path in self.fifos:
            os.mkfifo(path)
        # Open for both: neither side then waits for the other.
        self.pipes = [os.open(path, os.O_RDWR | os.O_CLOEXEC) for path in self.fifos]
        self.log = open(f"{folder}/{name}.log", "w+")
        self.processes = []
        for command, more in zip(commands, env):
            out = subprocess.DEVNULL if self.processes else subprocess.PIPE
            self.processes.append(
                subprocess.Popen(command, env={**os.environ, **more}, stdout=out, stderr=self.log, text=True))

    def ask(self, op, size_bytes, repeats):
        for pipe in self.pipes:
            os.write(pipe, f"{op} {size_bytes} {repeats}\n".encode())
        while True:
            line = self.processes[0].stdout.readline()
            if not line:
                self.log.seek(0)
                raise RuntimeError(f"{self.name} ended: {self.log.read()[-600:]}")
            try:
                return statistics.median(float(t) for t in line.split())
            except ValueError:
                continue  # a banner of the library

    def close(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait()
        for pipe in self.pipes:
            os.close(pipe)


def rank_env(ranks, port, **more):
    everywhere = {"WORLD_SIZE": ranks, "LOCAL_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1",
                  "MASTER_PORT": port, "OMP_NUM_THREADS": 1, **more}
    return [{k: str(v) for k, v in {**everywhere, "RANK": r, "LOCAL_RANK": r}.items()} for r in range(ranks)]


def start(args, folder, ranks):
    port = 20000 + os.getpid() % 20000 + ranks
    ours = f"{args.bench}/bench_comm"
    all_of = []
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", args.bind, "-np", str(ranks)]
    for i, comm in enumerate(args.comm):
        for memory in ("shared", "plain") if comm == "shm" else ("plain",):
            name = f"dsc {memory}" if comm == "shm" else f"dsc {comm}"
            command = [ours, folder, name, memory, comm]
            own = {"DSC_PLUGIN_DIR": os.path.abspath(args.plugins), "DSC_JOB_TOKEN": os.urandom(16).hex()}
            if comm == "mpi":
                all_of.append(Contender(folder, name, ranks, [mpirun + command], [own]))
            else:
                env = rank_env(ranks, port + i * 10 + (memory == "plain"), **own)
                all_of.append(Contender(folder, name, ranks, [command] * ranks, env))
    mpi = f"{args.bench}/peer_comm_mpi"
    if os.path.exists(mpi) and shutil.which("mpirun"):
        all_of.append(Contender(folder, "openmpi", ranks, [mpirun + [mpi, folder, "openmpi"]], [{}]))
    if args.comm == ["mpi"]:  # the other peers are not compared with it
        return all_of
    torch = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peer_comm_torch.py")
    if subprocess.run([args.python, "-c", "import torch.distributed"], capture_output=True).returncode == 0:
        command = [args.python, torch, folder, "gloo", "gloo"]
        all_of.append(Contender(folder, "gloo", ranks, [command] * ranks, rank_env(ranks, port + 120)))
        if subprocess.run([args.python, "-c", "import deepspeed"], capture_output=True).returncode == 0:
            env = rank_env(ranks, port + 130, DS_ACCELERATOR="cpu", TORCH_EXTENSIONS_DIR=f"{args.peers}/torch_ext")
            command = [args.python, torch, folder, "deepspeed", "deepspeed"]
            all_of.append(Contender(folder, "deepspeed", ranks, [command] * ranks, env, OPS[2:]))
    return all_of


def measure(args, ranks):
    folder = tempfile.mkdtemp(prefix="bench-comm-")
    contenders, samples = [], {}
    order = random.Random(args.seed)
    try:
        contenders = start(args, folder, ranks)
        for c in contenders:  # starting takes seconds and is not timed
            for op in c.ops:
                c.ask(op, 1 << 20, 1)
        for _ in range(args.rounds):
            for op in OPS:
                for kib in args.kib:
                    turn = [c for c in contenders if op in c.ops]
                    order.shuffle(turn)
                    for c in turn:
                        samples.setdefault((op, kib, c.name), []).append(c.ask(op, kib << 10, 5 if kib <= 4096 else 3))
    finally:
        for c in contenders:
            c.close()
        shutil.rmtree(folder, ignore_errors=True)
    return [c.name for c in contenders], samples


def report(args, ranks, names, samples):
    for op in OPS:
        for kib in args.kib:
            rate = {n: [(kib << 10) / t * 1e-9 for t in samples[op, kib, n]] for n in names if (op, kib, n) in samples}
            peers = [n for n in rate if not n.startswith("dsc")]
            for n, r in rate.items():
                made_of = {"dsc gloo": "gloo", "dsc mpi": "openmpi"}.get(n)
                best = made_of if made_of in peers else max(peers, key=lambda p: statistics.median(rate[p]), default=None)
                line = f"{ranks} ranks  {op:15s} {kib:6d} KiB  {n:11s} {statistics.median(r):7.2f} GB/s"
                line += f"  {min(r):6.2f} .. {max(r):6.2f}"
                if best and n.startswith("dsc"):
                    ratio = sorted(a / b for a, b in zip(r, rate[best]))
                    low, high = ratio[len(ratio) // 4], ratio[3 * len(ratio) // 4]
                    line += f"   x {statistics.median(ratio):5.2f} of {best} ({low:.2f} .. {high:.2f})"
                print(line, flush=True)


def main():
    numbers = lambda text: [int(t) for t in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bench", help="folder of bench_comm and peer_comm_mpi")
    parser.add_argument("--peers", default="", help="folder with venv/ (torch, deepspeed)")
    parser.add_argument("--ranks", type=numbers, default=[2, 4])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--kib", type=numbers, default=[64, 256, 1024, 4096, 16384, 65536])
    parser.add_argument("--mib", dest="kib", type=lambda text: [n << 10 for n in numbers(text)])
    parser.add_argument("--comm", type=lambda text: text.split(","), default=["shm"], help="our transports: shm,gloo,mpi")
    parser.add_argument("--plugins", default="lib/dsc", help="folder of our plugins")
    parser.add_argument("--bind", default="none", help="mpirun --bind-to, for us and Open MPI")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if "mpi" in args.comm and not shutil.which("mpirun"):
        peers.skip("bench-comm", "COMM=mpi needs mpirun (apt-get install openmpi-bin)")
    args.python = peers.python_of("bench-comm", args.peers) if args.peers else sys.executable
    print(f"# median of {args.rounds} rounds, lowest .. highest; x: paired ratio to the best peer (its middle half); "
          f"load {os.getloadavg()[0]:.1f}")
    for ranks in args.ranks:
        report(args, ranks, *measure(args, ranks))


if __name__ == "__main__":
    sys.exit(main())
