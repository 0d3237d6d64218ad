#!/usr/bin/env python3
"""sft_equal_test.py BIN: trains hub-shaped Llama and Qwen2 folders on instruction data, packed and padded, with `train`.

The losses of 20 steps are those of tests/golden/sft_losses.json within 1e-5, for ranks, stages and accumulation. With
DSC_TEST_PYTHON, transformers' own models and TRL's SFTTrainer make the expected losses again. SPDX-License-Identifier: Apache-2.0"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "..", "golden")
sys.path.insert(0, GOLDEN)
sys.dont_write_bytecode = True
import sft_case as case  # noqa: E402
import tensors  # noqa: E402

BIN = sys.argv[1]
BOUND = 1e-5  # relative: fp32 sums of other orders, over 20 updates; measured: at most 1e-7
EXPECTED = json.load(open(os.path.join(GOLDEN, "sft_losses.json")))
tests, failures = 0, 0


def report(name, good, why=""):
    global tests, failures
    tests, failures = tests + 1, failures + (not good)
    print(f"{'ok' if good else 'not ok'} {tests} - {name}" + (f"\n# {why}" if why and not good else ""), flush=True)


def skip(name, why):
    global tests
    tests += 1
    print(f"ok {tests} - {name} # SKIP {why}", flush=True)


def off(got, want):
    return max(abs(a - b) / abs(b) for a, b in zip(got, want)) if len(got) == len(want) == case.STEPS else float("inf")


def write_config(path, folder, packing, **more):
    config = {"gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": case.OPTIMIZER},
              "dsc": {"model": folder, "data": "examples.jsonl", "seq_length": case.SEQ, "steps": case.STEPS, "shuffle": False, "threads": 1,
                      "sft": {"packing": packing}}}
    config.update(more)
    json.dump(config, open(path, "w"))


def train(ranks, config):
    if os.path.exists("log.jsonl"):
        os.remove("log.jsonl")
    done = subprocess.run([f"{BIN}/dsc-launch", f"--num_gpus={ranks}", "train", "--config", config, "--log", "log.jsonl"], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=300)
    if done.returncode != 0:
        print(f"# exit {done.returncode}: {done.stdout[-500:]}".replace("\n", "\n# "))
        return []
    return [json.loads(line)["loss"] for line in open("log.jsonl")]


def check_runs(name, packing, ranks_list, stages, accumulations):
    want = EXPECTED[f"{name} {'packed' if packing else 'padded'}"]
    for ranks in ranks_list:
        for stage in stages:
            for accumulation in accumulations:
                micro = case.BATCH // (ranks * accumulation)
                write_config("c.json", name, packing, train_micro_batch_size_per_gpu=micro, gradient_accumulation_steps=accumulation,
                             zero_optimization={"stage": stage})
                apart = off(train(ranks, "c.json"), want)
                report(f"{name}, {'packed' if packing else 'padded'}, {ranks} ranks, stage {stage}, accumulation {accumulation}", apart < BOUND,
                       f"losses are {apart:.2g} apart")
                if os.environ.get("SHOW"):
                    print(f"# within {apart:.2g}")


def check_python(name, script, package):
    """A script of this folder by the Python that has the packages: it prints losses as JSON, {case: [20 losses]}."""
    python = os.environ.get("DSC_TEST_PYTHON", "/usr/bin/python3")
    there = subprocess.run([python, "-c", f"import torch, transformers, {package}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if there.returncode != 0:
        return skip(name, f"{package} is not installed (DSC_TEST_PYTHON names a python that has it)")
    done = subprocess.run([python, os.path.join(HERE, script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=600,
                          env=dict(os.environ, HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES=""))
    if done.returncode != 0:
        return report(name, False, done.stderr[-800:].replace("\n", "\n# "))
    found = json.loads(done.stdout.splitlines()[-1])
    apart = max(off(losses, EXPECTED[key]) for key, losses in found.items())
    return report(name, apart < BOUND, f"losses are {apart:.2g} apart")


with tempfile.TemporaryDirectory() as place:
    os.chdir(place)
    os.environ["XDG_CACHE_HOME"] = place
    for family, settings in case.CONFIGS.items():
        tensors.write(family, "model.safetensors", settings, case.weights(settings))
        shutil.copy(os.path.join(GOLDEN, "tokenizer_gpt2.json"), os.path.join(family, "tokenizer.json"))
    with open("examples.jsonl", "w") as out:
        for ids, labels in case.examples():
            out.write(json.dumps({"input_ids": ids, "labels": labels}) + "\n")
    for packed in (True, False):
        check_runs("llama", packed, (1, 2, 4), (0, 1, 2, 3), (1, 4))
        check_runs("qwen2", packed, (2,), (0, 3), (4,))
    check_python("transformers makes the expected losses", "sft_transformers.py", "numpy")
    check_python("and so does TRL's SFTTrainer, in micro-batches", "sft_trl.py", "trl")
print(f"1..{tests}")
sys.exit(1 if failures else 0)
