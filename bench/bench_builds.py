#!/usr/bin/env python3
"""bench_builds.py [--rounds 15] BENCH_FOLDER OTHER_BENCH_FOLDER [CASE...]: two builds of this program beside each other,
for changes that must not change speed, memory or bits.

CASE: 124m, small (one rank, two threads), zero1, zero3 (two ranks of one thread), files (states in files below /tmp),
comm (collectives of two ranks); FAMILY or FAMILY-fp32 (llama, qwen3, gpt2, bert, neox, opt: four layers of 768 channels,
one rank, one thread, which a busy machine's CPU times compare too). The order changes each round. Prints per build the median, minimum and maximum, and the
paired ratio other/this of times (1.02: this build is 2 % faster) as median with its quartiles. "same loss": both builds
had equal losses in each step. SPDX-License-Identifier: Apache-2.0"""
import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile

import bench_comm
from peers import Ranks

CASES = ["124m", "small", "zero1", "zero3", "files", "comm"]
SMALL = ("gpt2-small-384", 4, 256, 50257)  # model, micro-batch, tokens, vocabulary
SIZES = {"124m": ("gpt2-124m", 4, 64, 50257), "files": ("gpt2-124m", 4, 64, 50257), "small": SMALL, "zero1": SMALL,
         "zero3": SMALL, "nano": ("gpt2-nano", 2, 32, 256)}


BLOCK = {"hidden_size": 768, "num_hidden_layers": 4, "num_attention_heads": 12, "max_position_embeddings": 512,
         "vocab_size": 2048}
GATED = {**BLOCK, "intermediate_size": 2048, "num_key_value_heads": 4, "head_dim": 64, "rms_norm_eps": 1e-5,
         "rope_theta": 1e4, "hidden_act": "silu", "tie_word_embeddings": True}
FAMILIES = {  # two samples of 256 tokens
    "llama": {**GATED, "model_type": "llama", "architectures": ["LlamaForCausalLM"]},
    "qwen3": {**GATED, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]},
    "gpt2": {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 768, "n_layer": 4, "n_head": 12,
             "n_positions": 512, "n_ctx": 512, "vocab_size": 2048, "layer_norm_epsilon": 1e-5,
             "activation_function": "gelu_new"},
    "bert": {**BLOCK, "model_type": "bert", "architectures": ["BertForMaskedLM"], "intermediate_size": 3072,
             "hidden_act": "gelu", "type_vocab_size": 2, "layer_norm_eps": 1e-12},
    "neox": {**BLOCK, "model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"], "intermediate_size": 3072,
             "hidden_act": "gelu", "layer_norm_eps": 1e-5, "rotary_pct": 0.25, "rotary_emb_base": 10000,
             "use_parallel_residual": True, "tie_word_embeddings": False},
    "opt": {**BLOCK, "model_type": "opt", "architectures": ["OPTForCausalLM"], "ffn_dim": 3072,
            "activation_function": "relu", "word_embed_proj_dim": 768, "do_layer_norm_before": True}}
for family in FAMILIES:
    SIZES[family] = SIZES[family + "-fp32"] = (family, 2, 256, 2048)


def show(name, unit, this, other, notes=("", "")):
    for label, values, note in zip(("this", "other"), (this, other), notes):
        print(f"{name}_{label} {statistics.median(values):.4g} {unit}  min {min(values):.4g} max {max(values):.4g}{note}")
    ratios = sorted(b / a for a, b in zip(this, other))
    low, high = ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]
    print(f"{name}_ratio {statistics.median(ratios):.3f} times  middle half {low:.3f} .. {high:.3f}", flush=True)


def steps(args, case, folder, port):
    """Half of the rounds with either build started first, because the memory that the first one gets costs 3 %."""
    model, batch, sequence, vocabulary = SIZES[case]
    ranks, threads = (2, 1) if case.startswith("zero") else (1, 1) if model in FAMILIES else (1, 2)
    name, more = model, ["38"] if model == "bert" else []  # predictions of 256 tokens
    if model in FAMILIES:
        name = os.path.join(folder, model)
        os.makedirs(name, exist_ok=True)
        with open(os.path.join(name, "config.json"), "w", encoding="utf-8") as file:
            json.dump(FAMILIES[model], file)
    zero = {"stage": int(case[4:]) if case.startswith("zero") else 1}
    if case == "files":
        zero["offload_optimizer"] = {"device": "nvme", "nvme_path": folder}
    path = os.path.join(folder, case + ".json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"train_micro_batch_size_per_gpu": batch, "bf16": {"enabled": not case.endswith("-fp32")},
                   "zero_optimization": zero,
                   "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.0}},
                   "dsc": {"model": name, "seq_length": sequence, "vocab_multiple": 128}}, file)
    start = lambda bench, index: Ranks([f"{bench}/step_worker", path, str(vocabulary), str(sequence)] + more, ranks,
                                       threads, port + index)
    this, other, cpu, kib, same = [], [], ([], []), [0, 0], True
    for first in (0, 1):
        builds = [None, None]
        for index in (first, 1 - first):
            builds[index] = start((args.bench, args.other)[index], index)
        for index in range(-2, (args.rounds + 1 - first) // 2):
            for build in builds if index % 2 else reversed(builds):
                build.step(index >= 0, "run 2" if case == "files" else "step")
        this, other = this + builds[0].ms, other + builds[1].ms
        for times, build in zip(cpu, builds):
            times.extend(build.cpu_ms)
        kib = [max(most, build.kib) for most, build in zip(kib, builds)]
        same = same and builds[0].losses == builds[1].losses
        for build in builds:
            build.close()
    loss = "same loss" if same else "other loss"
    show(case, "ms/step", this, other, [f"  peak {most / 1024:.0f} MiB  {loss}" for most in kib])
    if model in FAMILIES:
        show(case + "_cpu", "ms/step", *cpu)


def collectives(args, folder):
    """Shared-memory collectives of two ranks. Both builds start anew in each round, because the addresses of a start
    alone change short collectives by a fifth."""
    port, order, samples = 20000 + os.getpid() % 20000, random.Random(1), {}
    for index in range(args.rounds):
        builds = []
        for name, bench in (("this", args.bench), ("other", args.other)):
            env = bench_comm.rank_env(2, port + len(builds), DSC_JOB_TOKEN=os.urandom(16).hex())
            command = [f"{bench}/bench_comm", folder, f"{name}{index}", "shared", "shm"]
            builds.append(bench_comm.Contender(folder, f"{name}{index}", 2, [command] * 2, env))
        try:
            for op in bench_comm.OPS:
                for kib in (64, 4096):
                    pair = {build.name: build.ask(op, kib << 10, 15) * 1e6 for build in order.sample(builds, 2)}
                    samples.setdefault(f"comm_{op}_{kib}K", []).append([pair[build.name] for build in builds])
        finally:
            for build in builds:
                build.close()
    for name, pairs in samples.items():
        show(name, "us", *zip(*pairs))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("bench", help="folder of this build's step_worker and bench_comm")
    parser.add_argument("other", help="folder of the other build's")
    parser.add_argument("cases", nargs="*", default=CASES, help=", ".join(CASES + ["nano", *FAMILIES]))
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    for case in args.cases:
        if case != "comm" and case not in SIZES:
            parser.error(f"case {case} is unknown; the cases are {', '.join([*SIZES, 'comm'])}")
    for bench in (args.bench, args.other):
        if not os.access(f"{bench}/step_worker", os.X_OK) or not os.access(f"{bench}/bench_comm", os.X_OK):
            parser.error(f"{bench} lacks step_worker or bench_comm; run 'make test-programs' in that checkout")
    folder = tempfile.mkdtemp(prefix="bench-builds-")
    try:
        for index, case in enumerate(args.cases):
            if case == "comm":
                collectives(args, folder)
            else:
                steps(args, case, folder, 29710 + 2 * index)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
