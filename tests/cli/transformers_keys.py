#!/usr/bin/env python3
"""transformers_keys.py BIN: config.json with one key changed, for every key of a published config and of its class in transformers: absent,
null, another value, or its second name. The loss of a step is transformers', or the key is refused by name. Some changes, chosen by
DSC_TEST_SEED; all with DSC_TEST_NIGHT=1. SPDX-License-Identifier: Apache-2.0"""
import json
import os
import random
import subprocess
import sys
import time
import zlib

import hf_runs
from hf_runs import BIN, MASKED_FAMILIES, run_all, torch, transformers, write_tokens
from transformers_shapes import PUBLISHED, llama, without

hf_runs.STEPS = 1
MOE = {"attention_dropout": 0.0, "norm_topk_prob": False, "num_experts": 6, "num_experts_per_tok": 3, "output_router_logits": False,
       "rms_norm_eps": 1e-06, "router_aux_loss_coef": 0.001}
QWEN_MOE = {**MOE, "decoder_sparse_step": 1, "max_window_layers": 21, "moe_intermediate_size": 24, "sliding_window": 32768,
            "use_sliding_window": False}
CONFIGS = {**PUBLISHED,
           "Mixtral": {**without(llama(), "rms_norm_eps"), "architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
                       "num_experts_per_tok": 2, "num_local_experts": 4, "output_router_logits": False, "sliding_window": None},
           "OLMoE": {**llama(), **MOE, "architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "attention_bias": False, "clip_qkv": None,
                     "pad_token_id": 1, "rope_scaling": None},
           "Qwen 1.5 MoE": {**llama(), **QWEN_MOE, "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe",
                            "shared_expert_intermediate_size": 30},
           "Qwen 3 MoE": {**llama(), **QWEN_MOE, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "attention_bias": False,
                          "head_dim": 16, "mlp_only_layers": [], "norm_topk_prob": True, "rope_scaling": None}}

# Keys of names and tokens; losses that a model of transformers does not give back here; and what the published code reads, not transformers.
LEFT_ALONE = {"architectures", "model_type", "transformers_version", "torch_dtype", "dtype", "id2label", "label2id", "bos_token_id",
              "eos_token_id", "sep_token_id", "pad_token_id", "problem_type", "chunk_size_feed_forward", "return_dict", "output_attentions",
              "output_hidden_states", "use_cache", "is_encoder_decoder", "is_decoder", "add_cross_attention", "cross_attention_hidden_size",
              "output_router_logits", "norm_topk_prob", "moe_layer_freq", "name_or_path", "task_specific_params"}
ADDED = {"head_dim": 8, "num_key_value_heads": 1, "partial_rotary_factor": 0.5, "rope_theta": 777.0, "sliding_window": 7,
         "attention_bias": True, "mlp_bias": True, "qkv_bias": True, "use_bias": True, "tie_word_embeddings": True, "rms_norm_eps": 0.1,
         "layer_norm_eps": 0.1, "rope_scaling": {"type": "linear", "factor": 2.0}, "hidden_act": "relu",
         "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}}
SIZES = ("size", "layer", "dim", "embd", "model", "heads", "experts", "positions", "rank", "n_inner", "seq", "ctx")


def class_of(config):
    return transformers.models.auto.configuration_auto.CONFIG_MAPPING[config["model_type"]]


def others(value):
    if isinstance(value, bool):
        return [not value, None]
    if isinstance(value, (int, float)):
        return [2 * value, None]
    return [None] if value is not None else [True, 2]


def changes(config):
    """(description, key, config)"""
    made = class_of(config)
    keys = {**made().to_dict(), **config}
    found = []
    for second, own in getattr(made, "attribute_map", {}).items():
        if own in config:
            found.append((f"{second} for {own}", second, {**without(config, own), second: config[own]}))
    for key, value in keys.items():
        if key in LEFT_ALONE or key.startswith("_"):
            continue
        if key in config and not any(word in key for word in SIZES):  # without its size a model is as large as the published one
            found.append((f"no {key}", key, without(config, key)))
        found += [(f"{key} {json.dumps(other)}", key, {**config, key: other}) for other in others(value)]
    found += [(f"{key} {json.dumps(value)}", key, {**config, key: value}) for key, value in ADDED.items() if key not in keys]
    return found


def loss_of_theirs(config, hf, tokens):
    """The folder is written too. None: transformers refuses the config, or has a model that is too large here."""
    kind = transformers.AutoModelForMaskedLM if config["model_type"] in MASKED_FAMILIES else transformers.AutoModelForCausalLM
    try:
        described = transformers.AutoConfig.from_pretrained(hf)
        with torch.device("meta"):
            if sum(p.numel() for p in kind.from_config(described).parameters()) > 3e6:
                return None
        how = "sdpa" if config["model_type"] == "falcon" else "eager"
        model = kind.from_config(described, attn_implementation=how, dtype=torch.float32)
        with torch.no_grad():
            for name, value in [*model.named_parameters(), *model.named_buffers()]:
                if value.is_floating_point() and (isinstance(value, torch.nn.Parameter) or name.endswith("e_score_correction_bias")):
                    value.add_(torch.randn_like(value) * 0.1)
        model.save_pretrained(hf)
        return hf_runs.train_theirs(model, tokens)[0]
    except Exception:  # of any kind: the config is not one of this model
        return None


def check(config, key, folder):
    hf, data, settings, log = (os.path.join(folder, name) for name in ("hf", "tokens.bin", "c.json", "log.jsonl"))
    own = {"mlm": {"mask_token": hf_runs.MASK, "special_tokens": hf_runs.SPECIAL}, "seed": hf_runs.SEED}
    torch.manual_seed(zlib.crc32(json.dumps(config).encode()))
    os.mkdir(hf)
    json.dump(config, open(f"{hf}/config.json", "w"))
    tokens = write_tokens(data)
    want = loss_of_theirs(config, hf, tokens)
    json.dump(config, open(f"{hf}/config.json", "w"))
    json.dump({"train_batch_size": 4, "dsc": own if config["model_type"] in MASKED_FAMILIES else {}}, open(settings, "w"))
    done = subprocess.run([f"{BIN}/train", "--config", settings, "--model", hf, "--data", data, "--seq-len", "24", "--no-shuffle", "--steps", "1",
                           "--log", log], capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 2, 3), f"exit {done.returncode}: {done.stderr[-400:]}"
    if want is None:
        return
    if done.returncode != 0:
        assert key in done.stderr or "heads of" in done.stderr, f"refused without the key: {done.stderr[-400:]}"
        return
    got = json.loads(open(log).readline())["loss"]
    assert abs(got - want) < 1e-4, f"the loss is {got}, transformers' {want}; {done.stderr[-300:]}"


def main():
    seed = int(os.environ.get("DSC_TEST_SEED", time.time()))
    print(f"# seed {seed}; rerun: DSC_TEST_SEED={seed}", flush=True)
    wanted = os.environ.get("DSC_TEST_NAMES")  # types of models, separated by commas
    first = {}  # of each type
    for name, config in CONFIGS.items():
        if "quantization_config" not in config and (wanted is None or config["model_type"] in wanted.split(",")):
            first.setdefault(config["model_type"], (name, config))
    cases = [(f"{name}: {what}", check, (changed, key)) for name, config in first.values() for what, key, changed in changes(config)]
    if wanted is None and os.environ.get("DSC_TEST_NIGHT") != "1":
        print(f"# tried 8 of {len(cases)} changes", flush=True)
        cases = random.Random(seed).sample(cases, 8)
    return run_all(cases)


if __name__ == "__main__":
    sys.exit(main())
