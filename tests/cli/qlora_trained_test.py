#!/usr/bin/env python3
"""qlora_trained_test.py BIN: adapters beside 4-bit weights of a model that has been trained, not of a random one.

A Llama of 1.8 million parameters learns the facts of `make demo-chat` as text. Then 50 steps of adapters follow on the
same kind of text: beside the weights in bf16, beside them in 4 bits, and with peft and bitsandbytes. Data, order and
first adapters are the same. SPDX-License-Identifier: Apache-2.0"""
import json
import os
import subprocess
import sys

import numpy
import peft
from hf_runs import BIN, run, run_all, torch, transformers

HERE = os.path.dirname(os.path.abspath(__file__))
SEQ, BATCH, BASE_STEPS, STEPS, RATE = 128, 16, 300, 50, 2e-4
ENOUGH = 1e-3  # largest difference of a step's loss: QLoRA beside LoRA on the same weights in bf16
EQUAL = 2e-4   # largest difference of a step's loss: two programs that compute the same numbers in fp32


def train(folder, name, model, steps, rate, own, *more, warm_up=0, bf16=True):
    config, log = (os.path.join(folder, f"{name}.{n}") for n in ("json", "jsonl"))
    settings = {"train_batch_size": BATCH, "gradient_clipping": 1.0, "bf16": {"enabled": bf16}, "zero_optimization": {"stage": 2},
                "optimizer": {"type": "AdamW", "params": {"lr": rate, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}},
                "dsc": dict(own, threads=1)}
    if warm_up:
        settings["scheduler"] = {"type": "WarmupCosineLR", "params": {"total_num_steps": steps, "warmup_num_steps": warm_up,
                                                                      "warmup_type": "linear", "cos_min_ratio": 0.1}}
    json.dump(settings, open(config, "w"))
    run(f"{BIN}/train", "--config", config, "--model", model, "--data", os.path.join(folder, "tokens.bin"), "--seq-len", str(SEQ),
        "--no-shuffle", "--steps", str(steps), "--log", log, *more)
    return [json.loads(line)["loss"] for line in open(log)]


def make_base(folder):
    """The trained model's folder, in bf16; its losses."""
    subprocess.run([sys.executable, "-B", os.path.join(HERE, "..", "..", "scripts", "demo_chat_data.py"), folder], check=True,
                   stdout=subprocess.DEVNULL)
    model, saved, base = (os.path.join(folder, n) for n in ("model", "saved", "base"))
    path = os.path.join(model, "config.json")
    config = json.load(open(path))
    config.update(hidden_size=256, intermediate_size=704, num_hidden_layers=2)
    json.dump(config, open(path, "w"))
    run(f"{BIN}/dsc", "data", "tokenize", "--tokenizer", model, "--format", "raw", "--out", os.path.join(folder, "tokens.bin"), os.path.join(folder, "facts.txt"))
    losses = train(folder, "first", model, BASE_STEPS, 3e-3, {}, "--save", saved, warm_up=20)
    run(f"{BIN}/dsc", "ckpt", "export", f"{saved}/step-{BASE_STEPS}", "--out", base, "--dtype", "bf16")
    return base, losses


def load(base, packed, dtype):
    more = {"quantization_config": transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                                                                   bnb_4bit_compute_dtype=dtype)} if packed else {}
    return transformers.AutoModelForCausalLM.from_pretrained(base, dtype=dtype, device_map="cpu", attn_implementation="eager", **more)


def train_peft(model, tokens):
    """As a user of peft does it: adapters in fp32 beside the loaded model."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=RATE, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    losses, count = [], (len(tokens) - 1) // SEQ
    for step in range(STEPS):
        samples = [(step * BATCH + i) % count for i in range(BATCH)]
        rows = torch.stack([tokens[n * SEQ:(n + 1) * SEQ + 1] for n in samples])
        optimizer.zero_grad()
        logits = model(input_ids=rows[:, :-1]).logits.float()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def apart(got, want):
    """Differences of two runs' losses: mean and largest."""
    each = [abs(a - b) for a, b in zip(got, want)]
    return sum(each) / len(each), max(each)


def check(folder):
    base, first = make_base(folder)
    adapter = os.path.join(folder, "adapter")
    tokens = torch.tensor(numpy.fromfile(os.path.join(folder, "tokens.bin"), dtype=numpy.uint16).astype(numpy.int64))
    lora = peft.LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=16, target_modules="all-linear")
    theirs = peft.get_peft_model(load(base, True, torch.float32), lora)
    theirs.save_pretrained(adapter)
    own, packed = {"lora": {"adapter": adapter}}, {"lora": {"adapter": adapter}, "quantize_base": {}}
    sixteen, ours = (train(folder, "bf16", base, STEPS, RATE, keys) for keys in (own, packed))
    wide, exact = (train(folder, "fp32", base, STEPS, RATE, keys, bf16=False) for keys in (own, packed))
    want = train_peft(theirs, tokens)
    print(f"# the base learned from {first[0]:.3f} to {first[-1]:.3f}, adapters in bf16 from {sixteen[0]:.4f} to {sixteen[-1]:.4f}", flush=True)
    pairs = {"QLoRA and peft's, in fp32": (exact, want), "QLoRA and LoRA, in fp32": (exact, wide), "QLoRA and LoRA, in bf16": (ours, sixteen),
             "LoRA in bf16 and in fp32": (sixteen, wide)}
    for name, pair in pairs.items():
        print("# {}: losses differ by {:.2g}, at most by {:.2g}".format(name, *apart(*pair)), flush=True)
    assert first[-1] < first[0] / 4, f"the base has not learned: {first[-1]}"
    assert apart(exact, want)[1] < EQUAL, "losses are not peft's"
    assert apart(exact, wide)[1] < ENOUGH, "4 bits cost more than they may, in fp32"
    assert apart(ours, sixteen)[1] < ENOUGH, "4 bits cost more than they may, in bf16"


sys.exit(run_all([("50 steps of QLoRA on a trained model have the losses of LoRA in bf16 and of peft", check, ())]))
