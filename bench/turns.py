#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""turns.py [--rounds N] [--warm-up N] [--seconds N] [--write FILE] NAME=COMMAND...

Steps of several workers in turns: one step of each side a round, in alternating order, so that all sides see the same
clocks. COMMAND is a worker (step_worker, torch_worker.py, deepspeed_worker.py). The worker prints "ready", then makes a
step per line on stdin. It prints milliseconds, loss, peak KiB of the process and peak bytes of the GPU. Words VAR=VALUE before the
program are its environment:

    turns.py a="./step_worker a.json 50257 1024" fa2="TORCH_CUDNN_SDPA_DEPRIORITIZED=1 python3 torch_worker.py 124m 32 1024 cuda"

N rounds (15) follow the rounds of warm-up (3). All sides hold their memory at the same time. A side that does not start or
dies is named with its last line, and the others go on. The end of the N seconds, SIGTERM and SIGINT end the rounds; what was
measured by then is printed. Per side: median, minimum, maximum and the middle half in milliseconds, last loss, GPU memory;
then the paired ratio to the first side. --write: the lines also go to FILE, which has a valid state after every round.
Exit 1 if a side failed."""
import argparse
import os
import re
import select
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time

STOP_S = 20
NO_LIMIT_S = 86400.0


class Side:
    """One process that makes a step per line."""

    def __init__(self, name, command, deadline, env=None):
        self.name, self.ms, self.rounds, self.device_bytes, self.deadline, self.rest = name, [], [], 0, deadline, b""
        self.loss, self.words = "-", tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.words, bufsize=0,
                                        env=dict(os.environ, **(env or {})))
        if self.line() != "ready":
            raise RuntimeError(self.last_words())

    def line(self):
        while b"\n" not in self.rest:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, self.deadline - time.monotonic()))
            part = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            if not part:
                return "" if ready else "late"
            self.rest += part
        line, self.rest = self.rest.split(b"\n", 1)
        return line.decode().strip()

    def last_words(self):
        if self.process.poll() is None and time.monotonic() >= self.deadline:
            self.close()
            return f"{self.name}: no answer in time"
        self.close()
        self.words.seek(0)
        words = self.words.read().decode(errors="replace").strip().splitlines()
        return f"{self.name} ended with {self.process.returncode}: {words[-1] if words else 'no word'}"

    def step(self, count, number=0):
        try:
            self.process.stdin.write(b"step\n")
        except OSError:
            pass  # the process has ended: its last words follow
        answer = self.line().split()
        if len(answer) < 4:
            raise RuntimeError(self.last_words())
        self.loss = answer[1]
        self.device_bytes = max(self.device_bytes, int(answer[3]))
        if count:
            self.ms.append(float(answer[0]))
            self.rounds.append(number)

    def close(self):
        """Kills what does not end: a hung GPU program keeps its memory."""
        try:
            self.process.stdin.close()
        except OSError:
            pass
        late = time.monotonic() >= self.deadline
        try:
            self.process.wait(1 if late else STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def paired(base, side):
    """Ratios side / base of the rounds that both have made, sorted."""
    of = dict(zip(base.rounds, base.ms))
    return sorted(ms / of[number] for number, ms in zip(side.rounds, side.ms) if number in of)


def middle_half(values):
    values = sorted(values)
    return values[len(values) // 4], values[-1 - len(values) // 4]


def table(sides):
    """Lines of all sides that have made a counted step."""
    lines, width = [], max([len(side.name) for side in sides] + [1])
    for side in sides:
        if side.ms:
            low, high = middle_half(side.ms)
            lines.append(f"{side.name:{width}} {statistics.median(side.ms):9.2f} ms  min {min(side.ms):.2f} max {max(side.ms):.2f}  "
                         f"middle half {low:.2f} .. {high:.2f} of {len(side.ms)}  loss {side.loss}  "
                         f"GPU memory {side.device_bytes / 2**20:.0f} MiB")
    for side in sides[1:]:
        ratio = paired(sides[0], side)
        if ratio:
            lines.append(f"{side.name}/{sides[0].name} {statistics.median(ratio):.3f}  p10 {ratio[len(ratio) // 10]:.3f}  "
                         f"p90 {ratio[-1 - len(ratio) // 10]:.3f}  of {len(ratio)} pairs")
    return lines


def take_turns(sides, rounds, warm_up, deadline, least=5, after_round=lambda: None, failed=None):
    """Rounds until `rounds` are made, or `least` are and the next one would pass the deadline. A side that fails leaves the
    rounds and calls failed(message); without `failed` its error ends them."""
    begin, going = time.monotonic(), list(sides)
    for i in range(-warm_up, rounds):
        for side in list(going if i % 2 == 0 else going[::-1]):
            try:
                side.step(i >= 0, i)
            except RuntimeError as error:
                if failed is None:
                    raise
                failed(str(error))
                going.remove(side)
        if not going:
            return
        if i == 0:
            begin = time.monotonic()
        after_round()
        if i >= least and time.monotonic() + (time.monotonic() - begin) / i > deadline:
            return


def environment_of(words):
    """(environment, command) of a split command line."""
    env = {}
    while words and re.match(r"[A-Za-z_][A-Za-z0-9_]*=", words[0]):
        name, value = words.pop(0).split("=", 1)
        env[name] = value
    return env, words


def run(options, deadline):
    sides, problems = [], []

    def write():
        if options.write:
            with open(options.write + ".new", "w") as out:
                out.write("".join(f"{line}\n" for line in table(sides) + problems) if sides else "")
            os.replace(options.write + ".new", options.write)

    def failed(message):
        problems.append(message)
        print(message, flush=True)

    try:
        for name, command in options.sides:
            env, words = environment_of(shlex.split(command))
            try:
                sides.append(Side(name, words, deadline, env))
            except (OSError, RuntimeError) as error:
                failed(f"{name} did not start: {error}")
        if sides:
            take_turns(sides, options.rounds, options.warm_up, deadline, 1, write, failed)
    except KeyboardInterrupt:
        failed("interrupted")
    finally:
        for line in table(sides):
            print(line, flush=True)
        write()
        for side in sides:
            side.close()
    return 1 if problems else 0


def main():
    def side(text):
        name, equals, command = text.partition("=")
        if not name or not equals or not environment_of(shlex.split(command))[1]:
            raise argparse.ArgumentTypeError(f"{text!r} is not NAME=COMMAND")
        return name, command

    def stop(number, frame):
        raise KeyboardInterrupt

    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=NO_LIMIT_S)
    parser.add_argument("--write")
    parser.add_argument("sides", nargs="+", type=side)
    options = parser.parse_args()
    if len({name for name, _ in options.sides}) < len(options.sides):
        parser.error("two sides have the same name")
    signal.signal(signal.SIGTERM, stop)
    return run(options, time.monotonic() + options.seconds)


if __name__ == "__main__":
    sys.exit(main())
