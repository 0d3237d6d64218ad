"""peers.py - the programs that a bench compares, as processes. If one is missing, one line says which and how to get it,
and the bench exits with 77, as a skipped test does. SPDX-License-Identifier: Apache-2.0"""
import os
import shutil
import subprocess
import sys

FIO = "fio is not installed (apt-get install fio)"


def has_fio():
    return shutil.which("fio") is not None


def skip(bench, why):
    print(f"{bench}: skipped: {why}", flush=True)
    sys.exit(77)


def python_of(bench, peers):
    """The program of PEERS/venv."""
    python = f"{peers}/venv/bin/python"
    if not os.access(python, os.X_OK):
        skip(bench, f"PEERS={peers} has no venv/bin/python: make one there (python3 -m venv) that has torch and deepspeed")
    return python


def cpu_ms(process):
    """CPU time of a process's threads so far, as the scheduler counts it."""
    total = 0
    for task in os.listdir(f"/proc/{process.pid}/task"):
        with open(f"/proc/{process.pid}/task/{task}/schedstat", encoding="ascii") as file:
            total += int(file.read().split()[0])
    return total / 1e6


class Ranks:
    """Rank processes that make one step together per line (step_worker.c, torch_worker.py, deepspeed_worker.py)."""

    def __init__(self, command, ranks, threads, port, cores=()):
        """cores: rank r stays on core r of them, from the first on again behind the last; none: anywhere."""
        self.ranks, self.ms, self.cpu_ms, self.losses, self.kib = [], [], [], [], 0
        for rank in range(ranks):
            env = dict(os.environ, OMP_NUM_THREADS=str(threads), DS_ACCELERATOR="cpu")
            if ranks > 1:
                env.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), LOCAL_SIZE=str(ranks),
                           LOCAL_WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            self.ranks.append(subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                               stderr=subprocess.DEVNULL, text=True, bufsize=1))
            if cores:
                os.sched_setaffinity(self.ranks[-1].pid, {cores[rank % len(cores)]})
        for process in self.ranks:
            if process.stdout.readline().strip() != "ready":
                raise SystemExit(f"bench: {' '.join(command)} did not start")

    def step(self, count, line="step"):
        """The time of the slowest rank counts."""
        before = sum(map(cpu_ms, self.ranks))
        for process in self.ranks:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        answers = [process.stdout.readline().split() for process in self.ranks]
        if not all(answers):
            raise SystemExit("bench: a rank ended before its answer")
        self.kib = max([self.kib] + [int(answer[2]) for answer in answers])
        self.losses.append([answer[1] for answer in answers])
        if count:
            self.ms.append(max(float(answer[0]) for answer in answers))
            self.cpu_ms.append(sum(map(cpu_ms, self.ranks)) - before)

    def close(self):
        for process in self.ranks:
            process.stdin.close()
        for process in self.ranks:
            process.wait(60)
