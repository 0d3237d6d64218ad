# SPDX-License-Identifier: Apache-2.0
"""day_parts.py - the parts of day.py. Each takes the day and its own deadline and returns its verdict, which begins with
"FAILED" if a test of ours failed; a missing peer or tool is "skipped: why"."""
import array
import collections
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time

import bench_gpu
import turns

RUN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "run")
BENCH = os.path.dirname(os.path.abspath(bench_gpu.__file__))
KILLED_LIMIT_S = 5
BENCHED = ("attention", "cross_entropy", "layernorm", "rmsnorm", "colsum", "gemm", "cast_fp8", "gelu", "swiglu")
SHARED_CARD = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "32", "CUDA_MODULE_LOADING": "EAGER"}
# Llama 2 7B; the layers' settings are tried in this order until one fits the card and the host.
LLAMA = {"model": "llama-2-7b", "vocab": 32000, "tokens": 4096, "layers": 32, "width": 4096, "parameters": 6738415616}
LLAMA_SIMULATED = {"model": "llama-nano", "vocab": 256, "tokens": 16, "layers": 4, "width": 128, "parameters": 855168}
HOST_STATES = {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}}
LLAMA_SETTINGS = (("states on the card", {"stage": 1}, {}), ("bf16 moments", {"stage": 1}, {"moments": "bf16"}),
                  ("optimizer on the host", HOST_STATES, {}), ("optimizer on the host, selective", HOST_STATES, {"recompute": "selective"}),
                  ("optimizer on the host, full", HOST_STATES, {"recompute": "full"}))


# ---- tests ----


def failures(day, output, count=60):
    for line in [line for line in output.splitlines() if line.strip()][-count:]:
        day.say_test(f"    {line}")


def verdict_of(day, rc, output):
    """Verdict of a program that prints TAP through tests/run, or of a sanitizer."""
    counts = re.findall(r"\d+ passed, \d+ failed.*|ERROR SUMMARY.*|RACECHECK SUMMARY.*", output)
    text = f" ({counts[-1]})" if counts else ""
    if rc == 0:
        return f"ok{text}"
    if rc == 77:
        return f"skipped: {output.strip().splitlines()[-1] if output.strip() else 'no word'}"
    failures(day, output, 20 if rc is None else 60)
    return f"FAILED (stopped, not whole){text}" if rc is None else f"FAILED (exit {rc}){text}"


def joined(verdicts):
    text = "; ".join(verdicts)
    return f"FAILED: {text}" if "FAILED" in text else f"ok: {text}"


def run_tests(day, deadline, programs, env):
    settings = dict({"DSC_TEST_TIMEOUT": "300", "CK_DEVICE": "cuda"}, **env)
    return verdict_of(day, *day.run([RUN, "gpu"] + programs, deadline - time.monotonic(), settings))


def check_kernels(day, deadline):
    if day.options.simulate:
        return verdict_of(day, *day.run([day.options.checkkern, "--device", "cuda", "--fn", "gelu*"], deadline - time.monotonic()))
    return run_tests(day, deadline, [day.options.checkkern], {})


def engine(day, deadline):
    return run_tests(day, deadline, day.tests, {"DSC_TEST_RANKS_MAX": "1"}) if day.tests else "skipped: no test was given"


def two_ranks(day, deadline):
    if not day.tests:
        return "skipped: no test was given"
    if not day.options.nccl and not day.options.simulate:
        return "skipped: no --nccl DIR (NCCL 2.30 or newer)"
    verdicts = []
    for ranks in (2, 4):
        env = dict(nccl_env(day), DSC_TEST_RANKS_MAX=str(ranks), NCCL_MAX_CTAS=str(32 // ranks))
        verdicts.append((ranks, run_tests(day, deadline, day.tests, env)))
    return joined([f"{ranks} ranks: {verdict}" for ranks, verdict in verdicts])


def nccl_env(day):
    env = dict(SHARED_CARD)
    if day.options.nccl:
        path = day.options.env.get("LD_LIBRARY_PATH", os.environ.get("LD_LIBRARY_PATH"))
        env["LD_LIBRARY_PATH"] = day.options.nccl + (f":{path}" if path else "")
    return env


def train_command(day, steps, device="cuda", stage=0):
    config, data = os.path.join(day.folder, f"train-{device}-{stage}.json"), os.path.join(day.folder, "text.txt")
    with open(config, "w") as out:
        out.write('{"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": true}, "zero_optimization": {"stage": %d}, '
                  '"dsc": {"device": "%s", "seq_length": 64}}' % (stage, device))
    with open(data, "w") as out:
        out.write("".join(f"{i}\n" for i in range(1, 20001)))
    return [day.options.train, "--config", config, "--model", "gpt2-nano", "--data", data, "--steps", str(steps)]


def user(day, deadline):
    return verdict_of(day, *day.run(train_command(day, 1 if day.options.simulate else 20), deadline - time.monotonic()))


def sanitizers(day, deadline):
    if day.options.simulate:
        return "skipped: simulated GPUs check every access themselves"
    program = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.access(program, os.X_OK):
        return "skipped: compute-sanitizer is not installed"
    verdicts = []
    jobs = [("training", train_command(day, 1)),
            ("attention", [day.options.checkkern, "--device", "cuda", "--fn", "attention*"]),
            ("every kernel", [day.options.checkkern, "--device", "cuda"])]
    for what, command in jobs:
        for tool in ("memcheck", "racecheck"):
            left = deadline - time.monotonic()
            if left < 10:
                verdicts.append(f"{tool} {what}: not run")
                continue
            rc, output = day.run([program, "--target-processes", "all", "--tool", tool, "--error-exitcode", "9"] + command, min(left, 120))
            verdicts.append(f"{tool} {what}: {'not whole' if rc is None else verdict_of(day, rc, output)}")
    return joined(verdicts)


# ---- a killed rank ----


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start_ranks(day, logs):
    """Two processes of one run that lasts longer than the test. Simulated GPUs are one process's, so that ranks are on the CPU."""
    simulated = day.options.simulate
    command = train_command(day, 1000000, "cpu" if simulated else "cuda", 2)
    env = dict(os.environ, **day.options.env)
    if not simulated:
        env.update(nccl_env(day), NCCL_MAX_CTAS="16")
    env.update(WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    return [subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=logs[r], stderr=subprocess.STDOUT, start_new_session=True,
                             env=dict(env, RANK=str(r), LOCAL_RANK=str(r))) for r in range(2)]


def log_of(path):
    with open(path, errors="replace") as log:
        return log.read()


def kill_one(day, deadline, victim):
    """Kills a rank in the middle of training and says how the other one ends."""
    paths = [os.path.join(day.folder, f"killed-{victim}-{r}.log") for r in range(2)]
    logs = [open(path, "w") for path in paths]
    ranks = start_ranks(day, logs)
    try:
        while not re.search(r"step ([3-9]|\d\d+)/", log_of(paths[0])):
            if time.monotonic() > deadline - 10:
                return f"rank {victim}: the time was over before step 3"
            if any(rank.poll() is not None for rank in ranks):
                failures(day, log_of(paths[0]) + log_of(paths[1]), 20)
                return f"FAILED: rank {victim}: a rank ended before step 3"
            time.sleep(0.05)
        ranks[victim].send_signal(signal.SIGKILL)
        begin = time.monotonic()
        other = ranks[1 - victim]
        try:
            other.wait(max(1, min(30, deadline - begin)))
        except subprocess.TimeoutExpired:
            failures(day, log_of(paths[1 - victim]), 20)
            return f"FAILED: rank {1 - victim} still runs {time.monotonic() - begin:.0f} s after rank {victim} was killed"
        took = time.monotonic() - begin
        words = log_of(paths[1 - victim]).strip().splitlines()
        text = f"rank {1 - victim} ended {took:.1f} s after rank {victim} was killed, exit {other.returncode}: {words[-1] if words else 'no word'}"
        return text if took <= KILLED_LIMIT_S and other.returncode > 0 else f"FAILED, at most {KILLED_LIMIT_S} s expected: {text}"
    finally:
        for rank in ranks:
            if rank.poll() is None:
                os.killpg(rank.pid, signal.SIGKILL)
            rank.wait()
        for log in logs:
            log.close()


def killed_rank(day, deadline):
    if not day.options.nccl and not day.options.simulate:
        return "skipped: no --nccl DIR (NCCL 2.30 or newer)"
    return joined([kill_one(day, deadline, victim) for victim in (1, 0)])


# ---- measurements ----


def verdict(good):
    return "done" if good else "FAILED"


def steps_of(name):
    def run(day, deadline):
        return verdict(bench_gpu.train("nano" if day.options.simulate else name, day.options, day.folder, day.peak, deadline))
    return run


def bench_kernels(day, deadline):
    return verdict(bench_gpu.kernels(day.options, deadline, ("gelu",) if day.options.simulate else BENCHED, 60))


def offload(day, deadline):
    if day.options.simulate:
        return "skipped: no simulated GPU has the time"
    return verdict(bench_gpu.offload(day.options, day.folder, deadline))


def offload_early(day, deadline):
    if day.options.simulate:
        return "skipped: no simulated GPU has the time"
    return verdict(bench_gpu.offload_early(day.options, day.folder, deadline))


def profiled(day, command, deadline, env, what, path):
    """Two steps under a tool that writes csv to `path`, then the sums of the last one."""
    rc, output = day.run(command, deadline - time.monotonic(), env, "step\nstep\n")
    if not os.path.exists(path) or '"Kernel Name"' not in log_of(path) or rc is None:
        words = [line for line in output.splitlines() if "ERR" in line or "rror" in line] or output.strip().splitlines() or ["no word"]
        return f"{what} gave no kernels ({'stopped' if rc is None else f'exit {rc}'}): {words[0][:160]}"
    sums = subprocess.run([sys.executable, os.path.join(BENCH, "kernel_sums.py"), "--rows", "40", path], capture_output=True, text=True)
    for line in (sums.stdout + sums.stderr).splitlines():
        bench_gpu.say(f"profile {what}: {line.replace(path, '124m step')}")
    return f"{what} done" if sums.returncode == 0 else f"{what}: kernel_sums.py failed"


def profile(day, deadline):
    case = bench_gpu.SIMULATED if day.options.simulate else bench_gpu.CASES["124m"]
    texts = []
    ncu = shutil.which("ncu") or "/usr/local/cuda/bin/ncu"
    if os.access(ncu, os.X_OK):
        # Under ncu kernels are slow and alone, so the step's own choice by measurement would be another one.
        command = bench_gpu.our_command(day.options, case, bench_gpu.our_config(day.folder, case, name="first", gemm_plans="first"))
        path = os.path.join(day.folder, "ncu.csv")
        texts.append(profiled(day, [ncu, "--clock-control", "none", "--cache-control", "none", "--target-processes", "all", "--metrics",
                                    "gpu__time_duration.sum", "--csv", "--log-file", path] + command, deadline, {}, "ncu", path))
    else:
        texts.append("ncu is not installed")
    if day.options.trace:
        command = bench_gpu.our_command(day.options, case, bench_gpu.our_config(day.folder, case, name="traced"))
        path = os.path.join(day.folder, "trace.csv")
        env = {"CUDA_INJECTION64_PATH": os.path.abspath(day.options.trace), "KERNEL_TRACE_FILE": path}
        texts.append(profiled(day, command, deadline, env, "trace", path))
    else:
        texts.append("no kernel_trace.so (built where cupti.h is)")
    done = any(text.endswith(" done") for text in texts)
    return ("" if done else "skipped: ") + "; ".join(texts)


def llama_side(day, name, command, model, deadline, env):
    """None: it did not start, or made no counted step."""
    sides = []
    if bench_gpu.start(sides, f"llama-7b {name}", command, deadline, env) == 0:
        return None
    side, problems = sides[0], []
    try:
        turns.take_turns(sides, 1 if day.options.simulate else 8, 1 if day.options.simulate else 2, deadline, 3, failed=problems.append)
    finally:
        side.close()
    for problem in problems:
        bench_gpu.say(problem)
    if not side.ms:
        return None
    ms, n, tokens = statistics.median(side.ms), model["parameters"], model["tokens"] * model.get("samples", 1)
    attention = model["layers"] * model["width"] * model["tokens"]
    line = f"{side.name} {ms:9.2f} ms  min {min(side.ms):.2f} max {max(side.ms):.2f} of {len(side.ms)}  {tokens / ms * 1e3:8.0f} tokens/s"
    if day.peak:
        line += "  MFU %.1f %% (published %.1f %%)" % tuple(
            100 * (6 * n + factor * attention) * tokens / (ms * 1e-3) / day.peak for factor in (6, 12))
    bench_gpu.say(f"{line}  loss {side.loss}  GPU memory {side.device_bytes / 2**20:.0f} MiB")
    return ms


def llama(day, deadline):
    model = LLAMA_SIMULATED if day.options.simulate else LLAMA
    ours = None
    for name, zero, settings in LLAMA_SETTINGS:
        path = bench_gpu.llama_config(day.folder, model["model"], 1, model["tokens"], zero, **settings)
        command = [day.options.worker, path, str(model["vocab"]), str(model["tokens"])]
        ours = llama_side(day, f"dsc, {name}:", command, model, deadline, day.options.env)
        if ours:
            break
    if ours and day.options.python:
        command = [day.options.python, os.path.join(BENCH, "torch_worker.py"), model["model"], "1", str(model["tokens"]), "cuda"]
        theirs = llama_side(day, "torch, bf16 states:", command, model, deadline, {})
        if theirs:
            bench_gpu.say(f"llama-7b torch/dsc {theirs / ours:.3f}, of the medians")
    return verdict(ours is not None)


FP8_SIDES = (("bf16", {}), ("fp8", {"fp8": {"enabled": True}}), ("fp8, all sums fast", {"fp8": {"enabled": True, "fast_sums": "always"}}))


def llama_fp8(day, deadline):
    """Eight samples a step, one after the other, so that the update counts as in training. No card has both at a time."""
    model = dict(LLAMA_SIMULATED if day.options.simulate else LLAMA, samples=8)
    base = None
    for name, settings in FP8_SIDES:
        path = bench_gpu.llama_config(day.folder, model["model"], 1, model["tokens"], {"stage": 1}, accumulation=8, moments="bf16", **settings)
        command = [day.options.worker, path, str(model["vocab"]), str(model["tokens"])]
        ms = llama_side(day, f"8 samples, {name}:", command, model, deadline, day.options.env)
        if base is None:
            base = ms
        if base is None:
            break
        if ms and ms != base:
            bench_gpu.say(f"llama-7b bf16/{name} {base / ms:.3f}, of the medians")
    return verdict(base is not None)


# ---- families beside transformers ----

QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False, "head_dim": 128, "hidden_act": "silu",
         "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960, "num_attention_heads": 16,
         "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": True,
         "vocab_size": 151936}
OLMOE = {"architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 1024,
         "max_position_embeddings": 4096, "num_attention_heads": 16, "num_experts": 64, "num_experts_per_tok": 8, "num_hidden_layers": 3,
         "num_key_value_heads": 16, "norm_topk_prob": False, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "router_aux_loss_coef": 0.01,
         "tie_word_embeddings": False, "vocab_size": 50304}
SMALLER = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 1,
           "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "vocab_size": 128}  # what a simulated GPU has the time for


def family(name, config, batch, tokens):
    """Steps of a config.json in turns with transformers, whose model is compiled before ours starts."""
    def run(day, deadline):
        keys, samples, length = dict(config), batch, tokens
        if day.options.simulate:
            keys.update({key: value for key, value in SMALLER.items() if key in keys})
            samples, length = 1, 16
        path = os.path.join(day.folder, f"{name}.json")
        with open(path, "w") as out:
            json.dump(keys, out)
        run_path, sides, problems = bench_gpu.llama_config(day.folder, path, samples, length, {"stage": 1}), [], []
        ours = [day.options.worker, run_path, str(keys["vocab_size"]), str(length)]
        if day.options.python:
            theirs = [day.options.python, os.path.join(BENCH, "transformers_worker.py"), path, str(samples), str(length)]
            bench_gpu.start(sides, "transformers", theirs, deadline)
        bench_gpu.start(sides, "dsc", ours, deadline, day.options.env)
        sides.reverse()
        try:
            turns.take_turns(sides, 1 if day.options.simulate else 8, 1 if day.options.simulate else 2, deadline, 3, failed=problems.append)
        finally:
            for side in sides:
                side.close()
        for side in sides:
            if side.ms:
                bench_gpu.say(f"{name} {side.name:12} {statistics.median(side.ms):9.2f} ms  min {min(side.ms):.2f} max {max(side.ms):.2f} of "
                              f"{len(side.ms)}  GPU memory {side.device_bytes / 2**20:.0f} MiB")
        for side in sides[1:]:
            ratio = turns.paired(sides[0], side)
            if ratio:
                bench_gpu.say(f"{name} {side.name}/{sides[0].name} {statistics.median(ratio):.3f} of {len(ratio)} pairs")
        for problem in problems:
            bench_gpu.say(f"{name}: {problem}")
        return verdict(any(side.name == "dsc" and side.ms for side in sides))
    return run


# ---- losses in fp8 ----

BYTES_LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 24,
               "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 256, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5,
               "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False}
LOSS_TEXT_BYTES = 12_000_000


def source_text(path, most):
    """Python's own library as text: every machine with this script has it."""
    with open(path, "wb") as out:
        for folder, _, names in sorted(os.walk(os.path.dirname(os.__file__))):
            for name in sorted(names):
                if name.endswith(".py") and out.tell() < most:
                    with open(os.path.join(folder, name), "rb") as source:
                        out.write(source.read())


def fp8_losses(day, deadline):
    """Mean losses of 500 steps in bf16 and in fp8, for two orders of the samples: the spread of the orders says what a gap means."""
    steps, batch, tokens = (2, 1, 16) if day.options.simulate else (500, 8, 1024)
    text, keys = os.path.join(day.folder, "source.txt"), dict(BYTES_LLAMA)
    if day.options.simulate:
        keys.update({key: value for key, value in SMALLER.items() if key in keys}, vocab_size=256)
    model = os.path.join(day.folder, "bytes.json")
    with open(model, "w") as out:
        json.dump(keys, out)
    source_text(text, 100_000 if day.options.simulate else LOSS_TEXT_BYTES)
    means = {}
    for seed in (1, 2):
        for name, settings in (("bf16", {}), ("fp8", {"fp8": {"enabled": True}})):
            config = bench_gpu.llama_config(day.folder, model, batch, tokens, {"stage": 1}, **settings)
            log = os.path.join(day.folder, f"{name}-{seed}.jsonl")
            rc, output = day.run([day.options.train, "--config", config, "--data", text, "--steps", str(steps), "--seed", str(seed), "--log", log],
                                 deadline - time.monotonic())
            if rc != 0:
                failures(day, output, 20)
                return f"FAILED: {name}, seed {seed}, {'stopped' if rc is None else f'exit {rc}'}"
            with open(log) as lines:
                losses = [json.loads(line)["loss"] for line in lines]
            means[name, seed] = statistics.mean(losses), statistics.mean(losses[-50:])
            bench_gpu.say(f"fp8-losses {name}, seed {seed}: mean {means[name, seed][0]:.4f}, of the last 50 steps {means[name, seed][1]:.4f}")
    for seed in (1, 2):
        gaps = [100 * (means["fp8", seed][i] / means["bf16", seed][i] - 1) for i in range(2)]
        bench_gpu.say(f"fp8-losses fp8 and bf16, seed {seed}: {gaps[0]:+.2f} %, of the last 50 steps {gaps[1]:+.2f} %")
    return "done"


def llmc(day, deadline):
    program = day.options.llmc
    if not program:
        return "skipped: no --llmc PROGRAM (llm.c's train_gpt2cu)"
    _, _, _, batch, tokens = bench_gpu.CASES["124m"]
    steps, path = 20, os.path.join(day.folder, "tokens.bin")
    count, state, values = batch * tokens * (steps + 2) + 1, 12345, array.array("H")
    for _ in range(65536):
        state = (state * 1664525 + 1013904223) % 2**32
        values.append((state >> 8) % bench_gpu.TOKENS)
    with open(path, "wb") as out: # llm.c's format: 256 int32, then uint16 tokens
        array.array("i", [20240520, 1, count] + [0] * 253).tofile(out)
        (values * (count // len(values) + 1))[:count].tofile(out)
    words = ["-i", path, "-j", path, "-e", "d12", "-b", batch, "-t", tokens, "-d", batch * tokens, "-x", steps, "-v", 0, "-s", 0, "-r", 0, "-l", 1e-4]
    rc, output = day.run([program] + [str(word) for word in words], deadline - time.monotonic())
    ms = [float(text) for text in re.findall(r"\| *([0-9.]+) ms *\|", output)][3:]
    if not ms:
        return f"skipped: llm.c made no step (exit {rc}): {(output.strip().splitlines() or ['no word'])[-1][:160]}"
    bench_gpu.say(f"124m llm.c {statistics.median(ms):9.2f} ms  min {min(ms):.2f} max {max(ms):.2f} of {len(ms)}, after ours and alone")
    return "done"


Part = collections.namedtuple("Part", "name is_test need_s most_s run")
PARTS = (
    Part("check-kernels", True, 30, 240, check_kernels),
    Part("engine", True, 30, 240, engine),
    Part("user", True, 15, 60, user),
    Part("124m", False, 40, 300, steps_of("124m")),
    Part("bench-kernels", False, 30, 240, bench_kernels),
    Part("profile", False, 30, 150, profile),
    Part("1558m", False, 60, 240, steps_of("1558m")),
    Part("llama-7b", False, 60, 300, llama),
    Part("llama-7b-fp8", False, 90, 240, llama_fp8),
    Part("two-ranks", True, 40, 300, two_ranks),
    Part("killed-rank", True, 60, 120, killed_rank),
    Part("sanitizers", True, 40, 300, sanitizers),
    Part("qwen3", False, 60, 180, family("qwen3-0.6b", QWEN3, 4, 2048)),
    Part("olmoe", False, 60, 180, family("olmoe, 3 blocks", OLMOE, 4, 2048)),
    Part("fp8-losses", False, 120, 300, fp8_losses),
    Part("offload-7b", False, 120, 300, offload),
    Part("offload-early", False, 150, 420, offload_early),
    Part("llm.c", False, 30, 120, llmc),
)
