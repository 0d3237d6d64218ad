#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""day.py --step-worker PROGRAM --checkkern PROGRAM --train PROGRAM [--seconds N] [--results DIR] [FLAG...] [PART...] -- TEST...

Everything that a card can decide, in one call: first whether the numbers are right, then measurements in order of value.
PART, by default all in this order:
    check-kernels  every kernel against its reference      llama-7b     Llama 2 7B, one sample of 4096 tokens
    engine         the engine's tests (TEST...), one rank  two-ranks    2, then 4 NCCL ranks that share the card
    user           train as a user starts it               killed-rank  kill -9 of one of two NCCL ranks
    124m           GPT-2 beside PyTorch and DeepSpeed      sanitizers   memcheck and racecheck
    bench-kernels  our kernels beside the card's peak      offload-7b   7B, optimizer on the host, beside DeepSpeed
    profile        one step by kernel                      llm.c        llm.c's 124M (with --llmc)
    1558m          GPT-2 1.5B beside PyTorch               llama-7b-fp8 Llama 2 7B in bf16, then in fp8, 8 samples a step
    qwen3, olmoe   Qwen3 0.6B; experts, beside transformers fp8-losses  500 steps in bf16 and in fp8
    offload-early  7B, updates on the host under the backward pass, beside updates behind it
The N seconds (1800) bound the whole run. A part that cannot end in what is left is named and not run. After each part its lines
are written to DIR/DATE-CARD.md (measurements) or DIR/DATE-CARD-test.md (tests), so a cut-off loses one part at most.

--python PROGRAM  a python3 with torch: the peers    --nccl DIR      folder of a libnccl.so.2 of 2.30 or newer
--libraries DIR   for our programs only              --trace FILE    kernel_trace.so (tests/gpu/kernel_trace.c)
--llmc PROGRAM    llm.c's train_gpt2cu               --simulate      simulated GPUs, short: the times mean nothing
Exit 1 if a part failed, 77 without a GPU."""
import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "bench"))
import bench_gpu  # noqa: E402
import day_parts  # noqa: E402


class Day:
    """State that the parts share: options, time, results."""

    def __init__(self, options, tests, folder):
        self.options, self.tests, self.folder = options, tests, folder
        self.begin = time.monotonic()
        self.deadline = self.begin + options.seconds
        self.card, self.peak = bench_gpu.gpu(options.simulate, "gpu-day")
        self.test_lines, self.good = [], True

    def left(self):
        return self.deadline - time.monotonic()

    def say_test(self, text):
        self.test_lines.append(text)
        print(text, flush=True)

    def run(self, command, most_s, env=None, text_in=None):
        """(exit code, output) of a program of ours; the code is None if it was stopped."""
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   errors="replace", start_new_session=True, env=dict(os.environ, **self.options.env, **(env or {})))
        try:
            out, _ = process.communicate(text_in, timeout=max(1, min(most_s, self.left())))
            return process.returncode, out
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, process.communicate()[0]
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)

    def write(self):
        if self.options.results:
            for lines, suffix in ((bench_gpu.lines, ""), (self.test_lines, "-test")):
                if lines:
                    bench_gpu.write_results(self.options, self.card, lines, "gpu-day", suffix)


def run_part(day, part):
    """One line per part, whatever happens in it."""
    say = day.say_test if part.is_test else bench_gpu.say
    need_s = 2 if day.options.simulate else part.need_s
    if day.left() < need_s:
        say(f"{part.name}: not run, {max(0, day.left()):.0f} s of {day.options.seconds:.0f} are left and it needs {need_s}")
        return True
    begin = time.monotonic()
    try:
        verdict = part.run(day, min(day.deadline, begin + part.most_s))
    except (OSError, RuntimeError, ValueError, KeyError, subprocess.SubprocessError) as error:
        verdict = f"FAILED: {type(error).__name__}: {error}"
    say(f"{part.name}: {verdict}, {time.monotonic() - begin:.0f} s")
    return not verdict.startswith("FAILED")


def arguments():
    parser = argparse.ArgumentParser(usage=__doc__)
    for flag in ("step-worker", "checkkern", "train"):
        parser.add_argument(f"--{flag}", required=True)
    for flag in ("results", "python", "nccl", "libraries", "trace", "llmc"):
        parser.add_argument(f"--{flag}")
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("parts", nargs="*")
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    options = parser.parse_intermixed_args(words[:cut])
    known = [part.name for part in day_parts.PARTS]
    for name in options.parts:
        if name not in known:
            parser.error(f"no part {name}; there are {', '.join(known)}")
    options.worker = os.path.abspath(options.step_worker)
    options.env = {}
    if options.libraries:
        path = os.environ.get("LD_LIBRARY_PATH")
        options.env = {"LD_LIBRARY_PATH": options.libraries + (f":{path}" if path else ""), "DSC_PLUGIN_DIR": f"{options.libraries}/dsc"}
    return options, words[cut + 1:]


def stop(number, frame):
    raise KeyboardInterrupt


def main():
    options, tests = arguments()
    signal.signal(signal.SIGTERM, stop)
    with tempfile.TemporaryDirectory() as folder:
        day, failed, name = Day(options, tests, folder), [], "start"
        bench_gpu.say(f"gpu-day: {day.card}, {options.seconds:.0f} s")
        day.say_test(f"gpu-day: {day.card}")
        try:
            for part in day_parts.PARTS:
                name = part.name
                if options.parts and name not in options.parts:
                    continue
                if not run_part(day, part):
                    failed.append(name)
                day.write()
        except KeyboardInterrupt:
            day.say_test(f"stopped in {name}; what follows it was not run")
            failed.append(name)
        day.say_test(f"{'FAILED: ' + ', '.join(failed) if failed else 'no part failed'}, {time.monotonic() - day.begin:.0f} s")
        day.write()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
