#!/usr/bin/env python3
"""expert_adapters_test.py BIN: adapters of experts beside peft.

20 steps from a folder of peft's are peft's. The exported adapters load in peft, with the logits of the merged export.
Fresh adapters have the tensors and the config that peft gives the same targets. Experts in 4 bits are read from folders
of transformers 4 with bitsandbytes' numbers, and train near the plain ones. DSC_TEST_NIGHT=1: more families.
SPDX-License-Identifier: Apache-2.0"""
import json
import os
import subprocess
import sys

import peft

try:
    import bitsandbytes as bnb
except ImportError:
    bnb = None
from hf_runs import BIN, SEQ, VOCAB, files_of, kind_of, make_folder, run, run_all, save_file, torch, train_ours, train_theirs, transformers, write_tokens

NIGHT = os.environ.get("DSC_TEST_NIGHT") == "1"
SHAPE = dict(vocab_size=VOCAB, hidden_size=24, num_attention_heads=3, num_key_value_heads=1, num_hidden_layers=2, max_position_embeddings=64,
             tie_word_embeddings=False)
EXPERTS = dict(intermediate_size=20, moe_intermediate_size=12, num_experts=4, num_experts_per_tok=2)
CONFIGS = {
    "mixtral": transformers.MixtralConfig(**SHAPE, intermediate_size=20, num_local_experts=4),
    "qwen2_moe": transformers.Qwen2MoeConfig(**SHAPE, **EXPERTS, shared_expert_intermediate_size=16),
    "qwen3_moe": transformers.Qwen3MoeConfig(**SHAPE, **EXPERTS, head_dim=8, mlp_only_layers=[0]),
    "olmoe": transformers.OlmoeConfig(**dict(SHAPE, num_key_value_heads=3), intermediate_size=12, num_experts=4, num_experts_per_tok=2),
    "gpt_oss": transformers.GptOssConfig(**SHAPE, head_dim=8, intermediate_size=16, num_local_experts=4, num_experts_per_tok=2),
    "glm4_moe": transformers.Glm4MoeConfig(**SHAPE, intermediate_size=20, moe_intermediate_size=12, head_dim=8, n_routed_experts=4,
                                           num_experts_per_tok=2, n_group=1, topk_group=1, first_k_dense_replace=1),
}
WIDE = transformers.MixtralConfig(**dict(SHAPE, hidden_size=64, num_attention_heads=4, num_key_value_heads=2), intermediate_size=128, num_local_experts=4)
BOTH = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


def lora_of(**more):
    return peft.LoraConfig(**dict(dict(task_type="CAUSAL_LM", r=3, lora_alpha=6), **more))


def fill(model):
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(torch.randn_like(p) * 0.1)
    return model


def logits_of(model, tokens):
    with torch.no_grad():
        return model.eval()(input_ids=torch.tensor(tokens[:SEQ])[None]).logits


def check_steps(config, more, folder):
    """Training from what peft has saved, and both exports."""
    hf, data, adapter = (os.path.join(folder, n) for n in ("hf", "tokens.bin", "adapter"))
    base = make_folder(CONFIGS[config], torch.float32, "1MB", hf)
    tokens = write_tokens(data)
    theirs = fill(peft.get_peft_model(base, lora_of(**more)))
    theirs.save_pretrained(adapter)
    got, out, merged = train_ours(hf, data, folder, adapter)
    want = train_theirs(theirs, tokens)
    off = max(abs(a - b) for a, b in zip(got, want))
    kind = kind_of(CONFIGS[config])
    load = lambda path: kind.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    back = peft.PeftModel.from_pretrained(load(hf), out)
    again = os.path.join(folder, "again")
    back.save_pretrained(again)
    ours, saved, first = files_of(out), files_of(again), files_of(adapter)
    logits = logits_of(back, tokens)
    merging = (logits - logits_of(load(merged), tokens)).abs().max().item()
    apart = (logits - logits_of(theirs, tokens)).abs().max().item()
    print(f"# losses within {off:.2g}, logits within {apart:.2g} of peft's and {merging:.2g} of the merged ones, {len(ours)} tensors", flush=True)
    assert off < 2e-4, f"losses are {off} apart"
    assert ours.keys() == saved.keys() == first.keys(), sorted(ours.keys() ^ first.keys())
    assert all(torch.equal(ours[k], saved[k]) for k in ours), "what peft writes of our export is not our export"
    assert merging < 2e-5, f"logits of the merged export are {merging} apart"
    assert apart < 0.02, f"logits are {apart} apart"


def check_fresh(config, more, folder):
    """Which tensors there are, and what the config says."""
    hf, data, adapter = (os.path.join(folder, n) for n in ("hf", "tokens.bin", "adapter"))
    base = make_folder(CONFIGS[config], torch.float32, "1MB", hf)
    write_tokens(data)
    peft.get_peft_model(base, lora_of(**more)).save_pretrained(adapter)
    own = {"r": 3, "alpha": 6, **{k: v for k, v in more.items() if v != []}}
    _, out, _ = train_ours(hf, data, folder, lora=own)
    ours, theirs = files_of(out), files_of(adapter)
    shapes = lambda tensors: {k: tuple(t.shape) for k, t in tensors.items()}
    assert shapes(ours) == shapes(theirs), f"{set(shapes(ours).items()) ^ set(shapes(theirs).items())}"
    a, b = (json.load(open(os.path.join(f, "adapter_config.json"))) for f in (out, adapter))
    for key in ("rank_pattern", "alpha_pattern"):
        assert a.get(key, {}) == b[key], f"{key}: {a.get(key)}, {b[key]}"
    assert set(a.get("target_parameters") or []) == set(b["target_parameters"] or []), a
    assert "experts" not in a, "a key that is not peft's"


def check_refused(more, said, folder):
    """In one line, as peft refuses it."""
    hf, data, config = (os.path.join(folder, n) for n in ("hf", "tokens.bin", "c.json"))
    base = make_folder(CONFIGS["mixtral"], torch.float32, "1MB", hf)
    write_tokens(data)
    own = {"dropout" if k == "lora_dropout" else k: v for k, v in more.items()}
    json.dump({"train_batch_size": 2, "optimizer": {"type": "AdamW"}, "dsc": {"lora": own}}, open(config, "w"))
    done = subprocess.run([f"{BIN}/train", "--config", config, "--model", hf, "--data", data, "--seq-len", str(SEQ), "--steps", "1"],
                          stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1, done.stderr
    try:
        peft.get_peft_model(base, lora_of(**more))
    except ValueError:
        return
    raise AssertionError("peft takes it")


def write_packed(hf, out):
    """As transformers 4 saved experts, which were linear layers, with bitsandbytes. Returns the unpacked weights."""
    tensors, unpacked = {}, {}
    for name, tensor in files_of(hf).items():
        if ".layers." not in name or tensor.dim() != 2 or "gate." in name:
            tensors[name] = tensor.to(torch.bfloat16)
            continue
        codes, state = bnb.functional.quantize_4bit(tensor.to(torch.bfloat16), quant_type="nf4", compress_statistics=True)
        tensors[name], unpacked[name] = codes, bnb.functional.dequantize_4bit(codes, state)
        tensors.update({f"{name}.{k}": v for k, v in state.as_dict(packed=True).items()})
    os.mkdir(out)
    save_file(tensors, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
    config = json.load(open(os.path.join(hf, "config.json")))
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": "nf4",
                                     "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": "bfloat16"}
    json.dump(config, open(os.path.join(out, "config.json"), "w"))
    return unpacked


def losses_of(model, data, folder, name, own, rate=1e-3, stage=2):
    config, log, save = (os.path.join(folder, f"{name}.{n}") for n in ("json", "jsonl", "save"))
    json.dump({"train_batch_size": 4, "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}, "zero_optimization": {"stage": stage},
               "optimizer": {"type": "AdamW", "params": {"lr": rate, "weight_decay": 0}}, "dsc": own}, open(config, "w"))
    run(f"{BIN}/dsc-launch", "--num_gpus=2", "train", "--config", config, "--model", model, "--data", data, "--seq-len", str(SEQ), "--no-shuffle",
        "--steps", "20" if rate else "1", "--log", log, "--save", save)
    return [json.loads(line)["loss"] for line in open(log)], f"{save}/step-{20 if rate else 1}"


def check_packed(folder):
    hf, data, packed, out = (os.path.join(folder, n) for n in ("hf", "tokens.bin", "packed", "out"))
    make_folder(WIDE, torch.float32, "1MB", hf)
    write_tokens(data)
    want = write_packed(hf, packed)
    _, step = losses_of(packed, data, folder, "read", {}, rate=0)
    got = files_of(step)
    assert len(want) == 2 * (4 + 4 * 3) and all(torch.equal(got[k], want[k]) for k in want), [k for k in want if not torch.equal(got[k], want[k])]
    lora = {"r": 4, "target_modules": ["q_proj"], "target_parameters": BOTH}
    plain, step = losses_of(hf, data, folder, "plain", {"lora": lora})
    own, _ = losses_of(hf, data, folder, "own", {"lora": lora, "quantize_base": {"experts": True}}, stage=3)
    theirs, four = losses_of(packed, data, folder, "theirs", {"lora": lora, "quantize_base": {"experts": True}})
    off, between = (max(abs(a - b) for a, b in zip(own, other)) for other in (plain, theirs))
    print(f"# 20 steps in 4 bits: within {off:.2g} of bf16, both folders within {between:.2g}", flush=True)
    # one base is packed from fp32, the other from bf16, with scales of scales of each expert
    assert off < 0.1 and between < 0.05 and plain[0] - plain[-1] > 0.02, (own, plain, theirs)
    for step, options, said in ((four, ["--merge"], "kept its base in 4 bits"), (step, ["--merge", "--nf4", "double"], "experts are parameters")):
        done = subprocess.run([f"{BIN}/dsc", "ckpt", "export", step, "--out", out, *options], stderr=subprocess.PIPE, text=True)
        assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1, done.stderr


tests = [("steps of Mixtral with both tensors", check_steps, ("mixtral", dict(target_modules=[], target_parameters=BOTH))),
         ("steps of GPT-OSS with one, and layers", check_steps,
          ("gpt_oss", dict(target_modules=["q_proj"], target_parameters=[BOTH[0], "router.weight"], use_rslora=True, rank_pattern={"experts.gate_up_proj": 2}))),
         ("steps of Qwen3 MoE with all linear layers", check_steps, ("qwen3_moe", dict(target_modules="all-linear"))),
         ("names of Mixtral's layers", check_fresh, ("mixtral", dict(target_modules=["w1", "w2", "w3", "q_proj"]))),
         ("one matrix of two in a tensor is refused", check_refused, (dict(target_modules=["w1"]), '"w1" is there without "w3"')),
         ("dropout is refused", check_refused, (dict(target_parameters=BOTH, lora_dropout=0.1), "have no dropout")),
         ("magnitudes are refused", check_refused, (dict(target_parameters=BOTH, use_dora=True), "have no magnitudes")),
         ("experts in 4 bits", check_packed if bnb else None, () if bnb else "bitsandbytes is not installed")]
if NIGHT:
    for name in CONFIGS:
        tests += [(f"steps of {name} with one tensor", check_steps, (name, dict(target_modules=["o_proj"], target_parameters=["down_proj"]))),
                  (f"steps of {name} with the other", check_steps, (name, dict(target_modules=[], target_parameters=["gate_up_proj"]))),
                  (f"steps of {name} with both tensors", check_steps, (name, dict(target_parameters=BOTH, target_modules=["q_proj"])))]
        if name != "gpt_oss":
            tests.append((f"all linear layers of {name}", check_fresh, (name, dict(target_modules="all-linear"))))
sys.exit(run_all(tests))
