#!/usr/bin/env python3
"""qlora_test.py BIN: frozen weights in 4 bits beside bitsandbytes, transformers and peft.

Folders that transformers saves in NF4 are read with their bits: unpacked weights are those of dequantize_4bit, and a
run that packs the plain folder itself has the same losses. 20 steps of a run with adapters are peft's on the
unpacked model, and peft loads the adapters that come of it. 50 steps in 4 bits are near those on the plain weights.
Folders that `dsc ckpt export --nf4` writes have the tensors that transformers saves, and both programs read them.
SPDX-License-Identifier: Apache-2.0"""
import json
import os
import subprocess
import sys

import bitsandbytes as bnb
import peft
from hf_runs import BIN, MASK, SPECIAL, SEQ, STEPS, VOCAB, files_of, is_masked, kind_of, run, run_all, torch, train_theirs, transformers, write_tokens

HERE = os.path.dirname(os.path.abspath(__file__))
SHAPE = dict(vocab_size=VOCAB, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2,
             intermediate_size=192, max_position_embeddings=64)
CONFIGS = {"llama": transformers.LlamaConfig(**SHAPE, tie_word_embeddings=True),
           "qwen2": transformers.Qwen2Config(**SHAPE, tie_word_embeddings=False),
           "gpt2": transformers.GPT2Config(vocab_size=VOCAB, n_embd=64, n_head=4, n_layer=2, n_positions=64)}


# Weights of several blocks of a checkpoint, other families, and elements that blocks of 64 do not divide.
# Linear layers that are packed, of models that are not Llamas.
PACKED = {"gpt2": 4 * 2, "gpt_neox": 4 * 2, "opt": 6 * 2, "bert": 6 * 2 + 1, "phi3": 4 * 2, "starcoder2": 6 * 2, "glm4": 6 * 2}
ODD = {"of a wide model": transformers.LlamaConfig(**dict(SHAPE, intermediate_size=16384)),
       "of a GPT-NeoX": transformers.GPTNeoXConfig(vocab_size=VOCAB, hidden_size=64, num_attention_heads=4, num_hidden_layers=2, intermediate_size=128,
                                                   max_position_embeddings=64, tie_word_embeddings=False),
       "of an OPT": transformers.OPTConfig(vocab_size=VOCAB, hidden_size=64, word_embed_proj_dim=64, num_attention_heads=4, num_hidden_layers=2,
                                           ffn_dim=128, max_position_embeddings=64, pad_token_id=1),
       "of an OPT with projections": transformers.OPTConfig(vocab_size=VOCAB, hidden_size=128, word_embed_proj_dim=64, num_attention_heads=4,
                                                            num_hidden_layers=2, ffn_dim=128, max_position_embeddings=64, pad_token_id=1,
                                                            do_layer_norm_before=False),
       "of a BERT": transformers.BertConfig(vocab_size=VOCAB, hidden_size=64, num_attention_heads=4, num_hidden_layers=2, intermediate_size=128,
                                            max_position_embeddings=64),
       "of a Phi-3": transformers.Phi3Config(**SHAPE, pad_token_id=0),
       "of a Gemma 2": transformers.Gemma2Config(**SHAPE, head_dim=16, query_pre_attn_scalar=16, sliding_window=9),
       "of a StarCoder2": transformers.Starcoder2Config(**SHAPE),
       "of a GLM-4": transformers.Glm4Config(**SHAPE, head_dim=16, pad_token_id=0),
       "of a Command R": transformers.CohereConfig(**SHAPE, pad_token_id=0),
       "of an odd width": transformers.Qwen3Config(**dict(SHAPE, hidden_size=24, head_dim=6, intermediate_size=25))}


GPTJ = transformers.GPTJConfig(vocab_size=VOCAB, n_embd=64, n_head=4, n_layer=1, n_positions=64, rotary_dim=8, tie_word_embeddings=False)


def quantization(double, compute):
    return transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=double,
                                           bnb_4bit_compute_dtype=compute)


def make_folders(config, double, folder, dtype=torch.bfloat16):
    """The plain folder, and the one in 4 bits that transformers makes of it."""
    plain, packed = os.path.join(folder, "plain"), os.path.join(folder, "packed")
    model = kind_of(config).from_config(config).to(dtype)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.05)
    model.save_pretrained(plain)
    load_packed(plain, double, dtype).save_pretrained(packed)
    return plain, packed


def load_packed(folder, double=None, dtype=torch.bfloat16, compute=torch.float32):
    more = {} if double is None else {"quantization_config": quantization(double, compute)}
    kind = kind_of(transformers.AutoConfig.from_pretrained(folder))
    return kind.from_pretrained(folder, dtype=dtype, device_map="cpu", attn_implementation="eager", **more)


def train_ours(model, data, folder, name, own, steps=STEPS, stage=2, ranks=2, bf16=False, rate=1e-3):
    config, log, save = (os.path.join(folder, f"{name}.{n}") for n in ("json", "jsonl", "save"))
    json.dump({"train_batch_size": 4, "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0, "bf16": {"enabled": bf16},
               "optimizer": {"type": "AdamW", "params": {"lr": rate, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.1}},
               "zero_optimization": {"stage": stage}, "dsc": own}, open(config, "w"))
    run(f"{BIN}/dsc-launch", f"--num_gpus={ranks}", "train", "--config", config, "--model", model, "--data", data, "--seq-len",
        str(SEQ), "--no-shuffle", "--steps", str(steps), "--log", log, "--save", save)
    return [json.loads(line)["loss"] for line in open(log)], f"{save}/step-{steps}"


def check_golden(folder):
    done = subprocess.run([sys.executable, os.path.join(HERE, "..", "golden", "make_nf4.py"), "--check"], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True)
    assert done.returncode == 0, f"tests/golden/nf4.safetensors and bitsandbytes {bnb.__version__}: {done.stdout.strip()}"


def check_unpacked(config, double, folder):
    """A run without adapters unpacks the folder; its first weights, at a rate of 0, are bitsandbytes'."""
    plain, packed = make_folders(CONFIGS[config], double, folder)
    data = os.path.join(folder, "tokens.bin")
    write_tokens(data)
    _, step = train_ours(packed, data, folder, "zero", {}, steps=1, bf16=True, rate=0)
    ours, theirs = files_of(step), load_packed(packed)
    checked = 0
    for name, module in theirs.named_modules():
        if isinstance(module, bnb.nn.Linear4bit):
            weight = module.weight
            want = as_stored(config, bnb.functional.dequantize_4bit(weight.data, weight.quant_state))
            assert torch.equal(ours[f"{name}.weight"], want), f"{name} differs"
            checked += 1
    assert checked == PACKED.get(config, 7 * SHAPE["num_hidden_layers"]), f"{checked} layers are in 4 bits"


def as_stored(family, weight):
    """GPT-2's Conv1D has its weight as [in,out], and bitsandbytes as [out,in]."""
    return weight.t() if family == "gpt2" else weight


def check_adapters(config, double, folder):
    plain, packed = make_folders(CONFIGS[config], double, folder, torch.float32)
    data, adapter = os.path.join(folder, "tokens.bin"), os.path.join(folder, "adapter")
    tokens = write_tokens(data)
    lora = peft.LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules="all-linear")
    # transformers computes in bf16 beside weights in 4 bits, so its fp32 numbers are those of the unpacked model
    theirs = peft.get_peft_model(load_packed(packed, dtype=torch.float32).dequantize().to(torch.float32), lora)
    with torch.no_grad():
        for p in theirs.parameters():
            if p.requires_grad:
                p.add_(torch.randn_like(p) * 0.05)
    theirs.save_pretrained(adapter)
    own = {"lora": {"adapter": adapter}}
    got, step = train_ours(packed, data, folder, "packed", own)
    if config != "gpt2":  # a plain GPT-2 is packed in the order of its files
        again, _ = train_ours(plain, data, folder, "plain", dict(own, quantize_base={"double_quant": double}), stage=3)
        assert got == again, "the folder in 4 bits and the plain one, packed while loading, differ"
    want = train_theirs(theirs, tokens)
    off = max(abs(a - b) for a, b in zip(got, want))
    out = os.path.join(folder, "export")
    run(f"{BIN}/dsc", "ckpt", "export", step, "--out", out)
    back = peft.PeftModel.from_pretrained(load_packed(packed, dtype=torch.float32), out).eval()
    x = torch.tensor(tokens[:SEQ]).view(1, -1)
    with torch.no_grad():
        logits = (back(input_ids=x).logits - theirs.eval()(input_ids=x).logits).abs().max().item()
    print(f"# losses within {off:.2g} of peft's, logits of the adapters within {logits:.2g}", flush=True)
    assert off < 2e-4, f"losses are {off} apart"
    assert logits < 0.2, f"logits are {logits} apart"
    merged = subprocess.run([f"{BIN}/dsc", "ckpt", "export", step, "--out", f"{out}-merged", "--merge"], stderr=subprocess.PIPE, text=True)
    assert merged.returncode == 2 and "kept its base in 4 bits" in merged.stderr, merged.stderr


def check_fifty_steps(folder):
    """Beside a run whose base is the same weights in bf16, unpacked."""
    plain, packed = make_folders(CONFIGS["llama"], True, folder)
    data, unpacked = os.path.join(folder, "tokens.bin"), os.path.join(folder, "unpacked")
    write_tokens(data)
    load_packed(packed).dequantize().to(torch.bfloat16).save_pretrained(unpacked)
    own = {"lora": {"r": 8, "target_modules": "all-linear"}}
    base, _ = train_ours(unpacked, data, folder, "base", own, steps=50, bf16=True)
    ours, _ = train_ours(packed, data, folder, "ours", own, steps=50, bf16=True, stage=3)
    sixteen, _ = train_ours(plain, data, folder, "sixteen", own, steps=50, bf16=True)
    off, cost = (max(abs(a - b) for a, b in zip(ours, other)) for other in (base, sixteen))
    print(f"# 50 steps: within {off:.2g} of the unpacked base, within {cost:.2g} of the base in bf16", flush=True)
    assert ours == base, f"losses are {off} apart"


def state_of(tensors, name):
    return json.loads(bytes(tensors[f"{name}.quant_state.bitsandbytes__nf4"].tolist()))


def check_same_folder(ours, theirs, count):
    """Tensors and quantization_config. Numbers of the 8-bit code may differ in their last bit (models/packed_weights.c)."""
    a, b = files_of(ours), files_of(theirs)
    assert a.keys() == b.keys(), sorted(a.keys() ^ b.keys())
    packed = [name for name in a if f"{name}.quant_map" in a]
    assert len(packed) == count, f"{len(packed)} weights are in 4 bits"
    for name in packed:
        assert state_of(a, name) == state_of(b, name), f"{name}: {state_of(a, name)}"
    for name, tensor in a.items():
        if name.endswith(".nested_quant_map"):
            assert torch.allclose(tensor, b[name], rtol=2**-21, atol=0), f"{name} differs"
        elif "quant_state" not in name:
            assert tensor.dtype == b[name].dtype and torch.equal(tensor, b[name]), f"{name} differs"
    configs = [json.load(open(os.path.join(f, "config.json")))["quantization_config"] for f in (ours, theirs)]
    assert configs[0] == configs[1], configs[0]


def check_written(config, double, merge, folder):
    """A trained model in 4 bits: what transformers makes of the plain export, and what both programs read back.

    Weights in bf16 with double quantization, and master weights in fp32 without."""
    dtype = torch.bfloat16 if double else torch.float32
    plain, _ = make_folders(config, double, folder)
    data = os.path.join(folder, "tokens.bin")
    tokens = write_tokens(data)
    own = {"mlm": {"mask_token": MASK, "special_tokens": SPECIAL}} if is_masked(config) else {}
    lora = {"lora": {"r": 4, "target_modules": "all-linear"}} if merge else {}
    _, step = train_ours(plain, data, folder, "run", dict(own, **lora), steps=3, bf16=True)
    full, ours, theirs = (os.path.join(folder, n) for n in ("full", "ours", "theirs"))
    export = [f"{BIN}/dsc", "ckpt", "export", step, "--dtype", "bf16" if double else "fp32"] + ["--merge"] * merge
    run(*export, "--out", full)
    run(*export, "--out", ours, "--nf4", "double" if double else "single", "--shard-size", "30KB")
    load_packed(full, double, dtype, dtype).save_pretrained(theirs)
    assert len([n for n in os.listdir(ours) if n.endswith(".safetensors")]) >= 2, os.listdir(ours)
    projected = getattr(config, "word_embed_proj_dim", config.hidden_size) != config.hidden_size
    check_same_folder(ours, theirs, PACKED.get(config.model_type, 7 * SHAPE["num_hidden_layers"]) + 2 * projected)
    if config.hidden_size % 64 == 0:  # bitsandbytes 0.50 fails on CPUs with AVX-512 else
        with torch.no_grad():
            x = torch.tensor(tokens[:SEQ]).view(1, -1)
            logits = [load_packed(f, dtype=dtype).eval()(input_ids=x).logits for f in (ours, theirs)]
        assert torch.equal(*logits), "logits of the two folders differ"
    _, back = train_ours(ours, data, folder, "back", own, steps=1, bf16=double, rate=0)
    again, model = files_of(back), load_packed(ours, dtype=dtype)
    for name, module in model.named_modules():
        if isinstance(module, bnb.nn.Linear4bit):
            want = bnb.functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
            assert torch.equal(again[f"{name}.weight"], as_stored(config.model_type, want)), f"{name} differs"


def check_mixed(folder):
    """Beside adapters a GPT-2 whose square matrices are not all in 4 bits is refused: their order would be another."""
    from safetensors.torch import load_file, save_file
    _, packed = make_folders(CONFIGS["gpt2"], True, folder)
    data, path, name = os.path.join(folder, "tokens.bin"), os.path.join(packed, "model.safetensors"), "transformer.h.1.attn.c_proj.weight"
    write_tokens(data)
    tensors = {n: t for n, t in load_file(path).items() if not n.startswith(name)}
    save_file(dict(tensors, **{name: torch.zeros(64, 64, dtype=torch.bfloat16)}), path, metadata={"format": "pt"})
    config = os.path.join(folder, "mixed.json")
    json.dump({"train_batch_size": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "dsc": {"lora": {"r": 4}}}, open(config, "w"))
    done = subprocess.run([f"{BIN}/train", "--config", config, "--model", packed, "--data", data, "--seq-len", str(SEQ), "--steps", "1"],
                          stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert done.returncode != 0 and f'"{name}" is not in 4 bits as others of the model are' in done.stderr, done.stderr


def check_refused(folder):
    """Exports that are not written in 4 bits end with one line, and without a folder."""
    plain, _ = make_folders(CONFIGS["llama"], True, folder)
    data, out = os.path.join(folder, "tokens.bin"), os.path.join(folder, "out")
    write_tokens(data)
    _, adapters = train_ours(plain, data, folder, "adapters", {"lora": {"r": 4}}, steps=1)
    other = os.path.join(folder, "gptj")
    kind_of(GPTJ).from_config(GPTJ).save_pretrained(other)
    _, gptj = train_ours(other, data, folder, "other", {}, steps=1)
    for step, kind, said in ((adapters, "double", "export with --merge"), (gptj, "double", '"model_type" is "gptj"; weights in 4 bits are written for'),
                             (gptj, "fp4", '"fp4" is unknown; expected double or single')):
        done = subprocess.run([f"{BIN}/dsc", "ckpt", "export", step, "--out", out, "--nf4", kind], stderr=subprocess.PIPE, text=True)
        assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1, done.stderr
        assert not os.path.exists(out) and not os.path.exists(f"{out}.tmp"), said


tests = [("golden numbers are those of this bitsandbytes", check_golden, ())]
for config in CONFIGS:
    for double in (True, False):
        how = "with" if double else "without"
        tests.append((f"{config} {how} double quantization is unpacked to the same bits", check_unpacked, (config, double)))
        tests.append((f"{config} {how} double quantization trains adapters as peft does", check_adapters, (config, double)))
        tests.append((f"{config} {how} double quantization is written as transformers does", check_written, (CONFIGS[config], double, False)))
tests.append(("merged adapters are written in 4 bits", check_written, (CONFIGS["llama"], True, True)))
tests += [(f"weights {which} are written in 4 bits", check_written, (ODD[which], True, False)) for which in ODD]
tests.append(("a GPT-2 of which one matrix is not in 4 bits is refused beside adapters", check_mixed, ()))
tests.append(("an export in 4 bits that makes no sense is refused", check_refused, ()))
tests.append(("50 steps are those of a run whose base is the unpacked weights", check_fifty_steps, ()))
sys.exit(run_all(tests))
