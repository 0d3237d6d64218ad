#!/usr/bin/env python3
"""dpo_test.py BIN: direct preference optimization by train beside TRL's DPOTrainer.

Both train a tiny Llama folder on the same pairs with SGD, so that gradients are what moves the weights: in full and by
adapters, with and without label smoothing, texts and messages. Losses, rewards, gradient norms and weights are compared.
SPDX-License-Identifier: Apache-2.0"""
import json
import math
import os
import random
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
import transformers
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from trl import DPOConfig, DPOTrainer

BIN, ROOT = sys.argv[1], os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PAIRS, STEPS, SEQ, BETA = 8, 3, 96, 0.3
torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
number = failed = 0

# Nothing follows the end token of an answer: TRL counts what a template writes there, and train does not.
TEMPLATE = ("{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{{ eos_token if m['role'] == 'assistant' else '\\n' }}"
            "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}")


def check(name, good, why):
    global number, failed
    number += 1
    failed += not good
    print(f"{'ok' if good else 'not ok'} {number} - {name}" + ("" if good else f"\n# {why}"))


def make_folder(place):
    folder = os.path.join(place, "model")
    torch.manual_seed(3)
    config = transformers.LlamaConfig(vocab_size=704, hidden_size=32, num_attention_heads=4, num_key_value_heads=2,
                                      num_hidden_layers=2, intermediate_size=48, max_position_embeddings=SEQ)
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.05)
    model.save_pretrained(folder)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=os.path.join(ROOT, "tests/golden/tokenizer_gpt2.json"), eos_token="<|endoftext|>",
        pad_token="<|endoftext|>", chat_template=TEMPLATE)
    tokenizer.save_pretrained(folder)
    return folder


def rows(messages):
    rng = random.Random(5)
    words = "hello there the model reads an answer and learns to say it again".split()

    def text(n):
        return " ".join(rng.choice(words) for _ in range(rng.randrange(1, n)))
    out = []
    for _ in range(PAIRS):
        question, good, bad = text(6), "yes " + text(8), "no " + text(8)
        if messages:
            out.append({"prompt": [{"role": "user", "content": question}],
                        "chosen": [{"role": "assistant", "content": good}],
                        "rejected": [{"role": "assistant", "content": bad}]})
        else:
            out.append({"prompt": question + ":\n", "chosen": good, "rejected": bad})
    return out


def by_trl(folder, data, lora, smoothing, rate, place):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    if lora is not None:
        model = get_peft_model(model, lora)
    # Of TRL's losses "aot" has the smoothing of conservative DPO; of one pair it is DPO.
    each = 1 if smoothing > 0 else PAIRS
    args = DPOConfig(output_dir=os.path.join(place, "trl"), per_device_train_batch_size=each, max_steps=STEPS,
                     gradient_accumulation_steps=PAIRS // each, loss_type=["aot" if smoothing > 0 else "sigmoid"],
                     learning_rate=rate, lr_scheduler_type="constant", optim="sgd", max_grad_norm=0.0, beta=BETA,
                     label_smoothing=smoothing, logging_steps=1,
                     max_length=SEQ, report_to=[], use_cpu=True, bf16=False, save_strategy="no",
                     gradient_checkpointing=False, disable_tqdm=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    trainer = DPOTrainer(model=model, args=args, train_dataset=Dataset.from_list(data), processing_class=tokenizer)
    start = {k: v.detach().clone() for k, v in model.named_parameters() if v.requires_grad}
    if lora is not None:
        model.save_pretrained(os.path.join(place, "adapter"))
    quiet, sys.stdout = sys.stdout, sys.stderr
    trainer.train()
    sys.stdout = quiet
    log = [e for e in trainer.state.log_history if "loss" in e]
    end = {k: v.detach() for k, v in model.named_parameters() if v.requires_grad}
    return log, start, end


def by_train(folder, data, lora, smoothing, rate, ranks, place):
    path, log, saved = (os.path.join(place, n) for n in ("pairs.jsonl", "log.jsonl", "saved"))
    with open(path, "w") as f:
        f.writelines(json.dumps(r) + "\n" for r in data)
    config = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": PAIRS // 2 // ranks,
              "optimizer": {"type": "SGD", "params": {"lr": rate}}, "zero_optimization": {"stage": 2},
              "dsc": {"model": folder, "seq_length": SEQ, "threads": 1, "data": path, "shuffle": False, "steps": STEPS,
                      "save": saved, "log": log, "dpo": {"beta": BETA, "label_smoothing": smoothing},
                      "data_cache": os.path.join(place, "cache")}}
    if lora is not None:
        config["dsc"]["lora"] = {"adapter": os.path.join(place, "adapter")}
    with open(os.path.join(place, "c.json"), "w") as f:
        json.dump(config, f)
    done = subprocess.run([os.path.join(BIN, "dsc-launch"), f"--num_gpus={ranks}", "train", "--config",
                           os.path.join(place, "c.json")], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        return None, done.stdout + done.stderr
    out = os.path.join(place, "export")
    subprocess.run([os.path.join(BIN, "dsc"), "ckpt", "export", saved, "--dtype", "fp32", "--out", out], check=True,
                   stdout=sys.stderr)
    with open(log) as f:
        entries = [json.loads(line) for line in f]
    return entries, load_file(os.path.join(out, "adapter_model.safetensors" if lora is not None else "model.safetensors"))


def compare(name, folder, messages, lora, smoothing, rate, ranks):
    with tempfile.TemporaryDirectory() as place:
        data = rows(messages)
        theirs, start, end = by_trl(folder, data, lora, smoothing, rate, place)
        mine, weights = by_train(folder, data, lora, smoothing, rate, ranks, place)
    if mine is None:
        check(name, False, weights)
        return
    keys = (("loss", "loss"), ("reward_chosen", "rewards/chosen"), ("reward_rejected", "rewards/rejected"),
            ("reward_margin", "rewards/margins"), ("reward_accuracy", "rewards/accuracies"))
    worst = max(abs(m[a] - t[b]) / max(1, abs(t[b])) for m, t in zip(mine, theirs) for a, b in keys)
    moved = off = 0.0
    for k, v in end.items():
        short = k.replace(".default.", ".")
        moved += float(((v - start[k]).double() ** 2).sum())
        off += float(((v - weights[short].reshape(v.shape)).double() ** 2).sum())
    share = math.sqrt(off / moved)
    check(name, len(mine) == len(theirs) == STEPS and worst <= 1e-5 and share <= 1e-4,
          f"worst number off by {worst:.2g}, weights by {share:.2g} of their way; {mine} {theirs}")
    print(f"# losses {[round(m['loss'], 5) for m in mine]}: numbers off by {worst:.1e}, weights by {share:.1e} of their way")


with tempfile.TemporaryDirectory() as top:
    model_folder = make_folder(top)
    adapters = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM")
    for of_messages in (False, True):
        kind = "messages" if of_messages else "texts"
        compare(f"{kind}, all weights: TRL's losses, rewards and weights", model_folder, of_messages, None, 0.0, 0.05, 1)
        compare(f"{kind}, label smoothing, two ranks: TRL's", model_folder, of_messages, None, 0.2, 0.05, 2)
        compare(f"{kind}, adapters: TRL's", model_folder, of_messages, adapters, 0.0, 0.5, 1)
print(f"1..{number}")
sys.exit(1 if failed else 0)
