#!/usr/bin/env python3
"""settings_sweep.py BIN DIR COUNT SEED [cuda]: random training runs, each done three ways that must give equal bits

The computation of a run (optimizer, precision, trained parameters, ...) is drawn once for each of COUNT cases from SEED
on. The way of a run (stage, placement of states and buffers, recomputation, threads, transport, a resume) is drawn for
each of its three ways. Losses and `dsc ckpt hash` are equal, checkpoints verify, and no rank takes more memory than
planned. A refused case is drawn again. With "cuda" BIN has a train of simulated GPUs. Prints TAP.
SPDX-License-Identifier: Apache-2.0"""
import json
import os
import random
import re
import shutil
import subprocess
import sys

WAYS, DRAWS = 3, 20
GPT2 = {"model_type": "gpt2", "vocab_size": 256, "n_embd": 32, "n_head": 2, "n_layer": 2, "n_positions": 100}
LLAMA = {"model_type": "llama", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2,
         "num_key_value_heads": 1, "num_hidden_layers": 2, "max_position_embeddings": 100, "tie_word_embeddings": False}
SIGNS = ("OneBitAdam", "ZeroOneAdam", "OneBitLamb")  # a save drops compression errors; stage 0 only
PARTS = {"gpt2": (["*.bias"], ["*h.0.*"], ["*wte*"], ["*", "!*mlp*"]),
         "llama": (["*layers.0.*"], ["*embed*"], ["*", "!*mlp*"])}


class Refused(Exception):
    pass


class Wrong(Exception):
    pass


def with_chance(draw, share, section, key, values):
    if draw.random() < share:
        section[key] = draw.choice(values)


# ---- what is computed ----

def optimizer(draw):
    kind = draw.choice(["AdamW"] * 5 + ["Adam", "Adagrad", "Lion", "Lamb", "Muon", "SGD", "Adafactor", *SIGNS])
    params = {"lr": draw.choice([1e-3, 3e-4])}
    if kind == "Adafactor" and draw.random() < 0.5:
        params = {"relative_step": True, "scale_parameter": True, "warmup_init": True}
    params |= {"SGD": {"momentum": draw.choice([0, 0.9])}, "Adam": {"adam_w_mode": draw.choice([True, False])},
               "OneBitAdam": {"freeze_step": draw.choice([2, 3, 100])},
               "OneBitLamb": {"freeze_step": draw.choice([2, 3, 100])},
               "ZeroOneAdam": {"var_freeze_step": 2, "local_step_scaler": draw.choice([1, 2]),
                               "local_step_clipper": draw.choice([2, 4])}}.get(kind, {})
    if kind != "Muon":
        with_chance(draw, 0.5, params, "weight_decay", [0.01])
    return {"type": kind, "params": params}


def computed(draw, models, text, cuda):
    """Ranks, and the config as far as numbers depend on it."""
    family = draw.choice(["gpt2", "llama"])
    config = {"train_micro_batch_size_per_gpu": draw.choice([1, 2]), "gradient_accumulation_steps": draw.choice([1, 1, 2, 3, 4, 6]),
              "optimizer": optimizer(draw), "zero_optimization": {}}
    own = config["dsc"] = {"model": models[family], "data": text, "seq_length": draw.choice([16, 24, 33]),
                           "steps": draw.choice([3, 4]), "seed": draw.randrange(1000)}
    precision = draw.choice(["fp32", "bf16", "bf16", "fp16"])
    if precision != "fp32":
        config[precision] = {"enabled": True}
    if precision == "fp16":
        with_chance(draw, 0.5, config["fp16"], "initial_scale_power", [8, 30])
    with_chance(draw, 0.6, config, "gradient_clipping", [0.1, 1, 5])
    with_chance(draw, 0.2, config, "communication_data_type", ["fp32", "fp16" if precision == "fp16" else "bf16"])
    with_chance(draw, 0.1, config, "prescale_gradients", [True])
    with_chance(draw, 0.1, config["zero_optimization"], "zero_quantized_gradients", [True])
    adam = config["optimizer"].get("type", "AdamW").lower() in ("adam", "adamw")
    with_chance(draw, 0.2, own, "moments", ["bf16", "8bit"] if adam else ["bf16"])
    with_chance(draw, 0.2, own, "gradients", ["bf16"])
    with_chance(draw, 0.15, own, "gradient_compression", ["int8", "int4", "bf16"])
    with_chance(draw, 0.15, own, "reproducible", ["world_size"])
    scope = draw.random()
    if scope < 0.15:
        own["freeze"] = draw.choice(PARTS[family])
    elif scope < 0.3:
        own["lora"] = {"r": draw.choice([2, 5]), "alpha": 4}
    elif scope < 0.4 and family == "gpt2":
        own["param_groups"] = [{"params": ["*.bias", "*ln_*"], "weight_decay": 0, "lr_scale": 0.5}]
    if draw.random() < 0.1:
        longest = own["seq_length"] // 8 * 8
        config["curriculum_learning"] = {
            "enabled": True, "curriculum_type": "seqlen", "min_difficulty": 8, "max_difficulty": longest,
            "schedule_type": "fixed_linear", "schedule_config": {"total_curriculum_step": 3, "difficulty_step": 8}}
    return 1 if cuda else draw.choice([1, 1, 2, 2, 3, 4]), config


# ---- how it is done ----

def offload_optimizer(draw, stage, folder):
    section = {"device": draw.choice(["cpu", "nvme", "nvme"])}
    if section["device"] == "nvme":
        section["nvme_path"] = draw.choice([folder, folder, [folder, folder]])
        with_chance(draw, 0.6, section, "buffer_count", [1, 3, 4, 8, 17, 96])
        for key in ("pipeline_read", "pipeline_write", "pin_memory"):
            with_chance(draw, 0.3, section, key, [True, False])
    if stage == 3:
        with_chance(draw, 0.3, section, "ratio", [0, 0.3, 0.5, 0.9])
    return section


def offload_param(draw, folder):
    section = {"device": draw.choice(["cpu", "nvme", "nvme"])}
    if section["device"] == "nvme":
        section["nvme_path"] = folder
        with_chance(draw, 0.3, section, "max_in_cpu", [0, 10000, 10**9])
        with_chance(draw, 0.3, section, "buffer_count", [1, 2, 5])
        with_chance(draw, 0.3, section, "buffer_size", [1, 1000, 50000])
    return section


def done(draw, config, ranks, folder, cuda):
    config = json.loads(json.dumps(config))
    zero, own = config["zero_optimization"], config["dsc"]
    stage = zero["stage"] = 0 if config["optimizer"]["type"] in SIGNS else draw.choice([0, 1, 2, 3, 3])
    if stage > 0 and draw.random() < 0.7:
        zero["offload_optimizer"] = offload_optimizer(draw, stage, folder)
    if stage == 3 and draw.random() < 0.6:
        zero["offload_param"] = offload_param(draw, folder)
    with_chance(draw, 0.7, zero, "sub_group_size", [1, 1000, 5000, 40000, 10**9])
    with_chance(draw, 0.4, zero, "overlap_comm", [True, False])
    with_chance(draw, 0.4, zero, "reduce_bucket_size", [0, 1000, 30000])
    if stage == 3:
        with_chance(draw, 0.4, zero, "stage3_prefetch_bucket_size", [0, 1000, 60000])
        with_chance(draw, 0.4, zero, "stage3_param_persistence_threshold", [0, 100, 10**7])
        with_chance(draw, 0.4, zero, "stage3_max_live_parameters", [0, 50000])
        with_chance(draw, 0.4, zero, "stage3_max_reuse_distance", [0, 30000])
        if ranks in (2, 4):
            with_chance(draw, 0.2, zero, "zero_hpz_partition_size", [ranks])
    with_chance(draw, 0.5, own, "recompute", ["kept", "none", "selective", "full"])
    with_chance(draw, 0.5, own, "micro_batches_together", [2, 3, 4, 256])
    with_chance(draw, 0.5, own, "early_update", [True])
    with_chance(draw, 0.3, own, "gradients_in_memory", [0.1, 0.3, 0.6, 1])
    with_chance(draw, 0.5, own, "aio", ["io_uring", "libaio", "threads"])
    if draw.random() < 0.5:
        config["aio"] = {"block_size": draw.choice([4096, 12288, 65536]), "queue_depth": draw.choice([1, 2, 64]),
                         "single_submit": draw.random() < 0.3, "overlap_events": draw.random() < 0.7}
    if cuda:
        own["device"] = "cuda"
        if "curriculum_learning" not in config:
            with_chance(draw, 0.3, own, "cuda_graphs", [True])
        if own.get("recompute") == "full":
            with_chance(draw, 0.4, config, "activation_checkpointing", [{"cpu_checkpointing": True}])
        return config
    with_chance(draw, 0.3, own, "threads", [1, 2, 3])
    if ranks > 1:
        with_chance(draw, 0.3, own, "comm", ["shm", "tcp", "hier"])
    return config


# ---- runs ----

class Case:
    def __init__(self, bin_dir, folder, ranks, order):
        self.bin, self.folder, self.ranks, self.order = bin_dir, folder, ranks, order

    def train(self, name, config, *flags):
        """The run's output."""
        path = os.path.join(self.folder, name + ".json")
        with open(path, "w") as f:
            json.dump(config, f, indent=1)
        program = [f"{self.bin}/train", "--config", path, *flags]
        if self.ranks > 1:
            program[:0] = [f"{self.bin}/dsc-launch", f"--num_gpus={self.ranks}"]
        self.order += 1  # in which a simulated GPU's work is done
        run = subprocess.run(program, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300,
                             env=os.environ | {"CUSIM_SEED": str(self.order)})
        text = run.stdout + run.stderr
        with open(os.path.join(self.folder, name + ".out"), "w") as f:
            f.write(text)
        if run.returncode == 2:
            raise Refused(text.strip().splitlines()[-1])
        if run.returncode != 0:
            raise Wrong(f"{name}: exit {run.returncode}: " + " | ".join(text.strip().splitlines()[-3:]))
        for share in re.findall(r"tracked peak .* \((\d+\.\d+) %\)", text):
            if float(share) > 100:
                raise Wrong(f"{name}: {share} % of what was planned was taken")
        return re.findall(r"^step (\d+)/\d+ +loss (\S+)", text, re.M)

    def tool(self, *words):
        run = subprocess.run([f"{self.bin}/dsc", *words], capture_output=True, text=True)
        if run.returncode != 0:
            raise Wrong(f"dsc {' '.join(words)}: {run.stderr.strip()}")
        return run.stdout.strip()

    def way(self, draw, number, config, cuda):
        """Losses by step and the hash of what was saved at the end."""
        name, save = f"way{number}", os.path.join(self.folder, f"save{number}")
        flags = ["--save", save, *(["--save-async"] if draw.random() < 0.3 else [])]
        losses = []
        if config["optimizer"]["type"] not in SIGNS and "gradient_compression" not in config["dsc"] and draw.random() < 0.5:
            first = done(draw, config, self.ranks, self.folder, cuda)
            losses = self.train(name + "-first", first, *flags, "--steps", str(draw.choice([1, 2])))
            flags += ["--load", save]
        losses += self.train(name, done(draw, config, self.ranks, self.folder, cuda), *flags)
        saved = f"{save}/step-{config['dsc']['steps']}"
        self.tool("ckpt", "verify", saved)
        return losses, self.tool("ckpt", "hash", saved)


def try_case(draw, bin_dir, folder, models, text, cuda):
    """The result, if all ways gave the same one."""
    refused = ""
    for _ in range(DRAWS):
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        ranks, config = computed(draw, models, text, cuda)
        case = Case(bin_dir, folder, ranks, draw.randrange(10**6))
        try:
            ways = [case.way(draw, i, config, cuda) for i in range(WAYS)]
        except Refused as e:
            refused = str(e)
            continue
        for i, way in enumerate(ways):
            if way != ways[0]:
                raise Wrong(f"way {i} is not way 0: {way}, {ways[0]}")
        left = [f for f in os.listdir(folder) if f.startswith(".")]
        if left:
            raise Wrong(f"left behind: {left}")
        precision = next((p for p in ("bf16", "fp16") if p in config), "fp32")
        return f"{config['optimizer']['type']}, {precision}, {ranks} rank{'s' if ranks > 1 else ''}"
    raise Wrong(f"all of {DRAWS} draws were refused, the last one: {refused}")


def main():
    bin_dir, root, count, seed, cuda = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), len(sys.argv) > 5
    models, text, failed = {}, os.path.join(root, "text.txt"), 0
    for name, model in (("gpt2", GPT2), ("llama", LLAMA)):
        models[name] = os.path.join(root, name + ".json")
        with open(models[name], "w") as f:
            json.dump(model, f)
    letters = random.Random(1)
    with open(text, "w") as f:
        f.write("".join(letters.choice("etaoin shrdlu\n") for _ in range(20000)))
    for number in range(1, count + 1):
        folder = os.path.join(root, f"case{number}")
        try:
            what = try_case(random.Random(seed + number - 1), bin_dir, folder, models, text, cuda)
            print(f"ok {number} - {WAYS} ways of seed {seed + number - 1}: {what}", flush=True)
            shutil.rmtree(folder)
        except (Wrong, subprocess.TimeoutExpired) as e:
            failed = 1
            print(f"not ok {number} - {WAYS} ways of seed {seed + number - 1}", flush=True)
            print(f"# {e}")
            for name in sorted(f for f in os.listdir(folder) if f.endswith(".json")):
                with open(os.path.join(folder, name)) as f:
                    print(f"# {name}: {json.dumps(json.load(f))}", flush=True)
    print(f"1..{count}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
