#!/usr/bin/env python3
"""bench_ckpt.py BENCH_FOLDER TRAIN DIR [--rounds 15] [--short] [--model gpt2-124m] [PART...]

SPDX-License-Identifier: Apache-2.0

Checkpoints of GPT-2 124M in fp32 (1.5 GB) in DIR. Parts, each with its bar:
files    a save and a load beside fio's write and read of the same number of bytes, in turns. fio runs at the best setting
         that a sweep finds. Like a save, it writes a new file whose space is allocated before. It also overwrites a file:
         a disk that allocates a block at its first write, thin or emptied by discards, is faster at overwriting, but no
         save overwrites. A load is the first one of a new process, with none of the files in the cache. The process gets
         memory that another process has just released, as in a run that continues. "load, idle memory": nobody had the
         memory for some seconds. A virtual machine that returns free memory must ask for it again during the load.
         "idle memory, only written" is the time of that request alone, without reading: no load of as many bytes is
         faster there.
beside   some steps with a save that is written meanwhile, and as many steps without, in turns: the cost of the save over
         25 steps, as if a run saved at that interval. A save that takes longer than the steps is waited for, and counted.
restart  a new process, as for a load, from its start to the end of its first new step, and fio's read of as many bytes,
         in turns.
Every figure is a median with its middle half; differences and ratios are paired round by round. --short: one round of
gpt2-nano, a trial of seconds. Without fio the figures stand alone, and the bench ends with 77.
"""
import argparse
import ctypes
import json
import mmap
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import peers
from bench_io import FIO_ENGINES, run_fio, sweep

PARTS = ("files", "beside", "restart")
VOCAB = {"gpt2-124m": 50257, "gpt2-nano": 256}
SEQUENCE = 64
EVERY = 25   # steps between two saves
BESIDE = 8   # timed steps
HUGE_PAGE = 2 << 20
MEMORY = "idle memory, only written"
WHOLE = 4 << 20  # fio's largest block
IDLE_S = 4  # Linux tells a host which memory is free after 2


class Worker:
    """step_worker: steps, saves and loads of one engine, each answered by its seconds."""

    def __init__(self, args, config):
        self.process = subprocess.Popen([f"{args.bench}/step_worker", config, str(VOCAB[args.model]), str(SEQUENCE)],
                                        text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.process.stdout.readline().strip() != "ready":
            sys.exit("bench_ckpt: step_worker did not start")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"bench_ckpt: step_worker ended at: {line}")
        return float(answer)


def forget(folder):
    """The files' pages leave the cache."""
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as f:
            os.fsync(f.fileno())
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def text(samples, scale=1.0):
    s = sorted(x * scale for x in samples)
    return f"{statistics.median(s):7.3f} ({s[len(s) // 4]:.3f} .. {s[3 * len(s) // 4]:.3f})"


def new_file(path, size):
    """Nothing of it was written yet; what its predecessor's removal takes is over."""
    if os.path.exists(path):
        os.unlink(path)
    os.sync()
    with open(path, "wb") as f:
        os.posix_fallocate(f.fileno(), 0, size)


def give_back(size):
    """Memory that is free, and was in use a moment ago; never what this machine is short of."""
    with open("/proc/meminfo") as f:
        available = int(re.search(r"MemAvailable: *([0-9]+)", f.read()).group(1)) << 10
    size = min(size, available // 2 // mmap.PAGESIZE * mmap.PAGESIZE)
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, size, mmap.PAGESIZE):
            memory[at] = 1


def take_memory(size):
    """Seconds until as much idle memory is there, asked for by one thread a processor; ctypes waits outside the GIL."""
    populate_write = 23  # <linux/mman.h>: MADV_POPULATE_WRITE, Linux 5.14
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    count = max(1, min(len(os.sched_getaffinity(0)), size // HUGE_PAGE))
    part = size // count // HUGE_PAGE * HUGE_PAGE
    failed = []

    def ask(at):
        if libc.madvise(at, part, populate_write) != 0:
            failed.append(ctypes.get_errno())
    memory = mmap.mmap(-1, count * part + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    start += -start % HUGE_PAGE
    threads = [threading.Thread(target=ask, args=(start + i * part,)) for i in range(count)]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - begin
    memory.close()
    if failed:
        sys.exit(f"bench_ckpt: MADV_POPULATE_WRITE: {os.strerror(failed[0])}")
    return seconds * size / (count * part)


def best_fio(what, before, path, size, direction):
    """Its seconds as a function, at its best setting. Writing ends with an fsync, as a save does."""
    def run(who):
        before()
        return run_fio(path, size, direction, *who[1:], fsync=direction == "write")
    found = sweep("fio", FIO_ENGINES, run)[0]
    if not found:
        sys.exit("bench_ckpt: fio's engines do not work here")
    print(f"fio's best {what}: {found[0][1]}, {found[0][2]} KiB x {found[0][3]}", flush=True)
    return lambda: run(found[0])[0]


class Bench:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.config = f"{folder}/config.json"
        self.order = random.Random(1)
        with open(self.config, "w") as f:
            json.dump({"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 1,
                       "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
                       "dsc": {"model": args.model, "seq_length": SEQUENCE, "save_async": True}}, f)

    def turns(self, rounds, acts):
        """Every act once a round, in a new order each; the first round is not counted."""
        rows = {name: [] for name in acts}
        for number in range(rounds + 1):
            for name in self.order.sample(sorted(acts), len(acts)):
                seconds = acts[name]()
                if number > 0:
                    rows[name].append(seconds)
        return rows

    @staticmethod
    def remove(folder):
        """The disk has finished the removal when the next save begins."""
        shutil.rmtree(folder, ignore_errors=True)
        os.sync()

    def save(self, worker):
        folder = f"{self.folder}/run"
        self.remove(folder)
        seconds = worker.ask(f"save {folder}")
        with open(f"{folder}/latest") as f:
            self.step = f"{folder}/{f.read().strip()}"
        return seconds

    def prepare(self):
        """A checkpoint of a first step, its size, and fio at its best on a file as large."""
        with Worker(self.args, self.config) as worker:
            worker.ask("steps 1")
            self.save(worker)
        self.bytes = sum(os.path.getsize(f"{self.step}/{name}") for name in os.listdir(self.step))
        self.fio_bytes = self.bytes // WHOLE * WHOLE
        self.fio = {}
        if not peers.has_fio():
            return
        file, fresh, size = f"{self.folder}/file", f"{self.folder}/new", self.fio_bytes
        new_file(file, size)
        for what, before, path in (("write", lambda: new_file(fresh, size), fresh), ("overwrite", os.sync, file),
                                   ("read", lambda: None, file)):
            self.fio[what] = best_fio(what, before, path, size, "read" if what == "read" else "write")

    def load(self, prepare):
        prepare()
        with Worker(self.args, self.config) as worker:
            forget(self.step)
            return worker.ask(f"load {self.step}")

    def compare(self, rows, ours, theirs, bar):
        speed = [self.bytes / s for s in rows[ours]]
        line = f"{ours}: {text(speed, 1e-9)} GB/s"
        for peer in theirs:
            other = [self.fio_bytes / s for s in rows.get(peer, [])]
            if other:
                name = peer if peer == MEMORY else f"fio's {peer}"
                line += f"; {name} {text(other, 1e-9)}, x {text([a / b for a, b in zip(speed, other)])}"
                line += f" (bar {bar})" if peer == theirs[0] and bar else ""
        print(line, flush=True)

    def peers(self, *names):
        return {name: self.fio[name] for name in names if name in self.fio}

    def files(self):
        with Worker(self.args, self.config) as worker:
            worker.ask("steps 1")
            rows = self.turns(self.args.rounds, {"save": lambda: self.save(worker), **self.peers("write", "overwrite")})
        self.compare(rows, "save", ("write", "overwrite"), 0.8)
        rows = self.turns(self.args.rounds, {"load": lambda: self.load(self.leave),
                                             "load, idle memory": lambda: self.load(self.wait_for_idle_memory),
                                             MEMORY: self.write_idle_memory,
                                             **self.peers("read")})
        self.compare(rows, "load", ("read",), 0.8)
        self.compare(rows, "load, idle memory", ("read", MEMORY), None)

    def wait_for_idle_memory(self):
        time.sleep(0 if self.args.short else IDLE_S)

    def write_idle_memory(self):
        self.wait_for_idle_memory()
        return take_memory(self.fio_bytes)

    def leave(self):
        """As the run whose files these are did when it ended: states, gradients and some more."""
        give_back(2 * self.fio_bytes)

    def beside(self):
        def with_save():
            self.remove(f"{self.folder}/beside")
            return worker.ask(f"beside {BESIDE} {self.folder}/beside")
        with Worker(self.args, self.config) as worker:
            worker.ask("steps 2")
            rows = self.turns(self.args.rounds_beside, {"with": with_save,
                                                        "without": lambda: worker.ask(f"steps {BESIDE}")})
        pairs = list(zip(rows["with"], rows["without"]))
        print(f"beside: {BESIDE} steps {text(rows['without'])} s, with a save {text(rows['with'])} s: one every {EVERY} "
              f"steps adds {text([(a - b) / (b / BESIDE * EVERY) for a, b in pairs], 100)} %; bar 3.5", flush=True)

    def start(self):
        self.leave()
        forget(self.step)
        next_step = int(self.step.rsplit("-", 1)[1]) + 1
        out = subprocess.run([self.args.train, "--config", self.config, "--data", sys.argv[0], "--load", self.step,
                              "--steps", str(next_step)], capture_output=True, text=True)
        found = re.search(r"start to end of first step: ([0-9.]+) s", out.stdout)
        if out.returncode != 0 or not found:
            sys.exit(f"bench_ckpt: {out.stderr[-400:]}")
        return float(found.group(1))

    def restart(self):
        rows = self.turns(self.args.rounds_restart, {"start": self.start, **self.peers("read")})
        beyond = [a - b for a, b in zip(rows["start"], rows.get("read", []))]
        print(f"restart: to the end of the first new step {text(rows['start'])} s" +
              (f"; beyond fio's read of the files {text(beyond)} s; bar 3" if beyond else ""), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bench")
    parser.add_argument("train")
    parser.add_argument("dir")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--short", action="store_true", help="one round of gpt2-nano")
    parser.add_argument("--model", choices=sorted(VOCAB))
    args = parser.parse_intermixed_args()
    if not set(args.parts) <= set(PARTS):
        parser.error(f"a PART is one of {', '.join(PARTS)}")
    args.model = args.model or ("gpt2-nano" if args.short else "gpt2-124m")
    args.rounds_beside = args.rounds or (1 if args.short else 15)
    args.rounds_restart = args.rounds or (1 if args.short else 9)
    args.rounds = args.rounds or (1 if args.short else 15)
    folder = tempfile.mkdtemp(prefix="bench-ckpt-", dir=args.dir)
    try:
        bench = Bench(args, folder)
        bench.prepare()
        for part in args.parts or PARTS:
            getattr(bench, part)()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if not bench.fio and set(args.parts or PARTS) != {"beside"}:
        peers.skip("bench-ckpt", f"beside fio: {peers.FIO}")


if __name__ == "__main__":
    main()
