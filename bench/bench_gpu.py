#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench_gpu.py WORKER [--python PROGRAM] [--checkkern PROGRAM] [--seconds N] [--results DIR] [--simulate] [PART...]

Training steps on this machine's GPU, ours and PyTorch's, in turns, step by step, each alone on the GPU while it runs; then
our kernels beside the card's peak. PART, by default in this order:
    124m (batch 32), 1558m (8: both sides stay on the GPU), kernels, short (124M, 2 x 256 tokens, bound by launches), 774m (16)
Samples have 1024 tokens in bf16; nano is a trial. 124m, short and nano run with dsc.cuda_graphs too, and 124m, 1558m and nano with
dsc.late_update ("late"), as sides of their own. The last sides do not start where the GPU's memory is taken.
offload-early runs only when named: the same with dsc.early_update, beside our own steps without it (95, then 112 GB).
offload runs only when named: Llama 2 7B, 4 x 2048 tokens, optimizer on the host (105 GB). It runs beside DeepSpeed if
PROGRAM has it (deepspeed_worker.py: eager, recomputation of every block on both sides), one after the other. PyTorch is
PROGRAM, a python3 with torch; without it only ours runs. It uses torch.compile, bf16 autocast and fused AdamW, with the attention
of its own choice (cuDNN's on H100). torch-fa is the same with FlashAttention (torch_worker.py cuda). 124m also runs beside
DeepSpeed if PROGRAM has it. ROUNDS (15) rounds follow 3 of warm-up. Parts that do not fit into N seconds (540) are named and
not run. Per side: median, minimum and maximum milliseconds, tokens/s, MFU and GPU memory; then the paired ratio peer/ours. MFU
counts causal attention once (6N + 6LCT operations a token); "published" is the usual 6N + 12LCT. All lines also go to
DIR/DATE-CARD.md. Exit 77 with one line if there is no GPU. --simulate: a simulated GPU, whose times mean nothing."""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

import turns

HERE = os.path.dirname(os.path.abspath(__file__))
ROUNDS, WARM_UP, ROUNDS_LEAST = int(os.environ.get("ROUNDS", "15")), 3, 5
VOCAB, TOKENS = 50304, 50257  # as padded; what tokens there are
# name: (our model, layers, width, batch, tokens a sample)
CASES = {"124m": ("gpt2-124m", 12, 768, 32, 1024), "774m": ("gpt2-large", 36, 1280, 16, 1024),
         "1558m": ("gpt2-xl", 48, 1600, 8, 1024), "short": ("gpt2-124m", 12, 768, 2, 256), "nano": ("gpt2-nano", 4, 128, 8, 128)}
WITH_GRAPHS = ("124m", "short", "nano")
WITH_LATE_UPDATE = ("124m", "1558m", "nano")
OFFLOAD = ("llama-2-7b", 32000, 4, 2048)  # our model, tokens, batch, tokens a sample
OFFLOAD_WARM_UP, OFFLOAD_STEPS = 2, 8
SIMULATED = ("gpt2-nano", 4, 128, 1, 16)
# Dense bf16 operations a second of the data sheets, by a part of nvidia-smi's name; the longest match counts.
PEAKS = {"H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12, "H200": 989e12, "GH200": 989e12, "A100": 312e12, "B200": 2250e12}
lines = []


def say(text):
    lines.append(text)
    print(text, flush=True)


def gpu(simulate, program="bench-gpu"):
    """(name and driver of the first GPU, its peak or None); exit 77 where there is none."""
    if simulate:
        return "simulated GPU", None
    try:
        text = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True,
                              timeout=30, check=True).stdout.strip().splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        print(f"{program}: skipped: no GPU (nvidia-smi says nothing)")
        sys.exit(77)
    if subprocess.run(["nvidia-smi", "--query-gpu=mig.mode.current", "--format=csv,noheader"], capture_output=True, text=True).stdout.startswith("Enabled"):
        return text, None  # a slice runs, and the peak is the whole card's
    names = [part for part in PEAKS if part in text]
    return text, PEAKS[max(names, key=len)] if names else None


def our_config(folder, case, graphs=False, name=None, **settings):
    """The path of the config of a case; `settings` are further keys of "dsc"."""
    model, _, _, batch, tokens = case
    path = os.path.join(folder, f"{name or model}{'-graphs' if graphs else ''}.json")
    with open(path, "w") as out:
        json.dump({"train_micro_batch_size_per_gpu": batch, "bf16": {"enabled": True}, "zero_optimization": {"stage": 1},
                   "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.0}},
                   "dsc": dict({"model": model, "seq_length": tokens, "vocab_multiple": 128, "device": "cuda", "cuda_graphs": graphs}, **settings)},
                  out)
    return path


def our_command(options, case, path):
    return [options.worker, path, str(256 if "nano" in case[0] else TOKENS), str(case[4])]


def show(side, name, case, peak):
    _, layers, width, batch, tokens = case
    count = batch * tokens
    parameters = VOCAB * width + tokens * width + layers * (12 * width * width + 13 * width) + 2 * width
    seconds = statistics.median(side.ms) * 1e-3
    line = f"{name} {side.name:9} {seconds * 1e3:9.2f} ms  min {min(side.ms):.2f} max {max(side.ms):.2f}  {count / seconds:10.0f} tokens/s"
    if peak:
        causal = (6 * parameters + 6 * layers * width * tokens) * count / seconds / peak
        published = (6 * parameters + 12 * layers * width * tokens) * count / seconds / peak
        line += f"  MFU {causal * 100:.1f} % (published {published * 100:.1f} %)"
    say(f"{line}  GPU memory {side.device_bytes / 2**20:.0f} MiB")


def start(sides, name, command, deadline, env=None):
    try:
        sides.append(turns.Side(name, command, deadline, env))
    except (OSError, RuntimeError) as error:
        say(f"{name} did not start: {error}")
    return len(sides)


def start_all(sides, name, options, folder, deadline):
    case = SIMULATED if options.simulate else CASES[name]
    for side in ["dsc", "graphs"] if name in WITH_GRAPHS else ["dsc"]:
        command = our_command(options, case, our_config(folder, case, side == "graphs"))
        if start(sides, side, command, deadline, options.env) == 0:
            return False
    if options.python and name != "short":
        command = [options.python, os.path.join(HERE, "torch_worker.py"), name, str(case[3]), str(case[4]), "cuda"]
        start(sides, "torch", command, deadline)
        start(sides, "torch-fa", command, deadline, {"TORCH_CUDNN_SDPA_DEPRIORITIZED": "1"})
    if name == "124m" and has_deepspeed(options.python):
        command = [options.python, os.path.join(HERE, "deepspeed_worker.py"), name, str(case[3]), str(case[4]), "gpu"]
        start(sides, "deepspeed", command, deadline)
    if name in WITH_LATE_UPDATE:
        start(sides, "late", our_command(options, case, our_config(folder, case, name=f"{name}-late", late_update=True)), deadline,
              options.env)
    return True


def has_deepspeed(python):
    looks = "import importlib.util, sys; sys.exit(importlib.util.find_spec('deepspeed') is None)"
    return bool(python) and subprocess.run([python, "-c", looks], stdin=subprocess.DEVNULL).returncode == 0


def train(name, options, folder, peak, deadline):
    """Our side must start and make every round. A peer that does not fit into the memory is named."""
    case, sides, problems = SIMULATED if options.simulate else CASES[name], [], []
    try:
        if not start_all(sides, name, options, folder, deadline):
            return False
        turns.take_turns(sides, ROUNDS, WARM_UP, deadline, ROUNDS_LEAST, failed=problems.append)
    finally:  # also of rounds that were cut off
        for side in sides:
            side.close()
        show_all(sides, name, case, peak)
        for problem in problems:
            say(f"{name}: {problem}")
    return not any(problem.startswith(("dsc", "graphs")) for problem in problems)


def show_all(sides, name, case, peak):
    for side in sides:
        if side.ms:
            show(side, name, case, peak)
    for side in sides[1:]:
        ratio = turns.paired(sides[0], side)
        if ratio:
            say(f"{name} {side.name}/dsc {statistics.median(ratio):.3f}  p10 {ratio[len(ratio) // 10]:.3f}  p90 {ratio[-1 - len(ratio) // 10]:.3f}  "
                f"of {len(ratio)} pairs")


def host_available():
    with open("/proc/meminfo") as lines_of:
        return next(int(line.split()[1]) for line in lines_of if line.startswith("MemAvailable")) / 1e6 * 1.024


def offload_side(name, command, deadline, env=None):
    """Times of one side, alone on the machine; None: it did not get so far."""
    before, begin, sides = host_available(), time.monotonic(), []
    if start(sides, name, command, deadline, env) == 0:
        return None
    side, ready = sides[0], time.monotonic() - begin
    try:
        for i in range(OFFLOAD_WARM_UP + OFFLOAD_STEPS):
            if i > OFFLOAD_WARM_UP and time.monotonic() + 2e-3 * side.ms[-1] > deadline:
                break
            side.step(i >= OFFLOAD_WARM_UP)
        used = before - host_available()
    except RuntimeError as error:
        say(f"offload: {error}")
        return None
    finally:
        side.close()
    ms = statistics.median(side.ms)
    say(f"offload {name:9} {ms:9.2f} ms  min {min(side.ms):.2f} max {max(side.ms):.2f} of {len(side.ms)}  {OFFLOAD[2] * OFFLOAD[3] / ms * 1e3:8.0f} tokens/s  "
        f"ready after {ready:.1f} s  GPU memory {side.device_bytes / 2**20:.0f} MiB  host memory {used:.1f} GB")
    return ms


def llama_config(folder, model, batch, tokens, zero, accumulation=1, **settings):
    path = os.path.join(folder, "llama.json")
    with open(path, "w") as out:
        json.dump({"train_micro_batch_size_per_gpu": batch, "gradient_accumulation_steps": accumulation, "bf16": {"enabled": True},
                   "zero_optimization": zero, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.0}},
                   "dsc": dict({"model": model, "seq_length": tokens, "device": "cuda"}, **settings)}, out)
    return path


def offload(options, folder, deadline):
    model, tokens, batch, length = OFFLOAD
    path = llama_config(folder, model, batch, length, {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}}, recompute="full")
    ours = offload_side("dsc", [options.worker, path, str(tokens), str(length)], deadline, options.env)
    if ours is None or not options.python:
        return ours is not None
    theirs = offload_side("deepspeed", [options.python, os.path.join(HERE, "deepspeed_worker.py"), model, str(batch), str(length)], deadline)
    if theirs is not None:
        say(f"offload deepspeed/dsc {theirs / ours:.3f}, of the medians")
    return True


# Settings of ours beside each other: the first of a pair is what the second is compared with. Host memory decides what fits.
OFFLOAD_PAIRS = (
    (("bf16 moments", {"moments": "bf16"}),
     ("early", {"moments": "bf16", "gradients": "bf16", "early_update": True, "early_update_share": 0.6})),
    (("fp32 moments", {}), ("early, 0.3", {"gradients": "bf16", "early_update": True, "early_update_share": 0.3})),
)


def offload_early(options, folder, deadline):
    """Updates by the host that begin under the backward pass, beside those that begin behind it; each alone."""
    model, tokens, batch, length = OFFLOAD
    good = False
    for pair in OFFLOAD_PAIRS:
        ms = []
        for name, own in pair:
            path = llama_config(folder, model, batch, length, {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}},
                                recompute="full", **own)
            ms.append(offload_side(name, [options.worker, path, str(tokens), str(length)], deadline, options.env))
            if ms[-1] is None:
                return good
        say(f"offload {pair[1][0]} / {pair[0][0]} {ms[1] / ms[0]:.3f}, of the medians")
        good = True
    return good


KERNELS = ("attention", "gemm", "cross_entropy", "adam", "layernorm", "gelu", "cast")


def kernels(options, deadline, patterns=KERNELS, most_s=90):
    """Our kernels by themselves: GB/s, TFLOP/s and the share of the card's peak, of those that pass their check."""
    if not options.checkkern:
        say("kernels: not run, no --checkkern PROGRAM")
        return True
    good = True
    for pattern in ["gelu"] if options.simulate else patterns:
        left = deadline - time.monotonic()
        if left < 20:
            say(f"kernels {pattern}: not run, the time is over")
            continue
        try:
            command = [options.checkkern, "--device", "cuda", "--fn", f"{'' if options.simulate else 'bench '}{pattern}*"] + ([] if options.simulate else ["--bench"])
            done = subprocess.run(command, capture_output=True, text=True, timeout=min(left, most_s), stdin=subprocess.DEVNULL,
                                  env=dict(os.environ, **options.env))
        except subprocess.TimeoutExpired:
            say(f"kernels {pattern}: stopped, it took longer than {min(left, most_s):.0f} s")
            continue
        for line in done.stdout.splitlines():
            if not re.match(r"(ok |TAP|1\.\.|# seed)", line):
                say(line)
        if done.returncode != 0:
            say(f"kernels {pattern}: exit {done.returncode}")
            good = False
    return good


def write_results(options, text, found, program, suffix=""):
    """The lines `found` become RESULTS/DATE-CARD.md, or DATE-CARD-SUFFIX.md; an earlier file is replaced as a whole."""
    card = re.sub(r"[^A-Za-z0-9]+", "-", text.split(",")[0]).strip("-")
    commit = os.environ.get("DSC_COMMIT") or subprocess.run(["git", "-C", HERE, "rev-parse", "--short", "HEAD"], capture_output=True,
                                                            text=True).stdout.strip() or "unknown"
    path = os.path.join(options.results, f"{time.strftime('%Y-%m-%d', time.gmtime())}-{card}{suffix}.md")
    os.makedirs(options.results, exist_ok=True)
    with open(path + ".new", "w") as out:
        out.write(f"# {text}\n\nCommit {commit}, {time.strftime('%F %H:%M UTC', time.gmtime())}, `make {program}`"
                  f"{', SIMULATED: the numbers mean nothing' if options.simulate else ''}.\n\n"
                  f"    {' '.join([os.path.basename(sys.argv[0])] + sys.argv[1:])}\n\n" + "".join(f"    {line}\n" for line in found))
    os.replace(path + ".new", path)
    return path


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("worker")
    parser.add_argument("--python")
    parser.add_argument("--checkkern")
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--results")
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("parts", nargs="*")
    options = parser.parse_intermixed_args()
    options.worker, options.env = os.path.abspath(options.worker), {}
    parts = options.parts or (["nano", "kernels"] if options.simulate else ["124m", "1558m", "kernels", "short", "774m"])
    unknown = [part for part in parts if part not in ("kernels", "offload", "offload-early") and part not in CASES]
    if unknown:
        parser.error(f"no part {unknown[0]}; there are {', '.join(CASES)}, kernels, offload and offload-early")
    if options.simulate and any(part.startswith("offload") for part in parts):
        parser.error("offload is a model of 7 B parameters, which no simulated GPU has time for")
    text, peak = gpu(options.simulate)
    deadline, good = time.monotonic() + options.seconds, True
    say(f"bench-gpu: {text}, {ROUNDS} rounds")
    with tempfile.TemporaryDirectory() as folder:
        for part in parts:
            if deadline - time.monotonic() < 30:
                say(f"{part}: not run, the {options.seconds:.0f} s are over")
            elif part == "kernels":
                good = kernels(options, deadline) and good
            elif part == "offload":
                good = offload(options, folder, deadline) and good
            elif part == "offload-early":
                good = offload_early(options, folder, deadline) and good
            else:
                good = train(part, options, folder, peak, deadline) and good
    if options.results:
        print(f"bench-gpu: written to {write_results(options, text, lines, 'bench-gpu')}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
