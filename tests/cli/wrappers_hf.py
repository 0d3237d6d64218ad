#!/usr/bin/env python3
"""wrappers_hf.py BIN: `train` beside transformers for the text part of its multimodal models.

As transformers_test.py: 20 fp32 AdamW steps from a folder that it saved, the export loaded by it, and greedy continuations. Tensors
of the vision part keep their bytes and dtype. SPDX-License-Identifier: Apache-2.0"""
import json
import os
import sys

from hf_runs import (BIN, SEQ, STEPS, VOCAB, check_generate, files_of, kind_of, make_folder, run_all, torch, run, train_ours, train_theirs,
                     transformers, write_tokens)
try:
    import peft
except ImportError:
    peft = None

T = dict(vocab_size=VOCAB, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2, intermediate_size=48,
         max_position_embeddings=64)
V = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=8)
MROPE = dict(T, rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}, bos_token_id=None, eos_token_id=None)
MIXED = dict(T, head_dim=8, rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1], "mrope_interleaved": True})
IDS = dict(image_token_id=96, video_token_id=95, vision_start_token_id=94, vision_end_token_id=93)
GEMMA = {k: v for k, v in T.items() if k != "max_position_embeddings"}  # as published, with the defaults of the class
QWEN_V = dict(depth=1, hidden_size=32, out_hidden_size=32, num_heads=2, intermediate_size=48, patch_size=4)
clip = transformers.CLIPVisionConfig(**V, projection_dim=16)
CASES = [
    (transformers.LlavaConfig(vision_config=clip, text_config=transformers.LlamaConfig(**T), image_token_index=96), torch.float32, "1GB"),
    (transformers.LlavaNextConfig(vision_config=clip, text_config=transformers.MistralConfig(**T, head_dim=8, sliding_window=9), image_token_index=96),
     torch.bfloat16, "30KB"),
    (transformers.Mistral3Config(vision_config=transformers.PixtralVisionConfig(**V, head_dim=16), text_config=transformers.MistralConfig(**T, head_dim=8),
                                 image_token_index=96), torch.bfloat16, "1GB"),
    (transformers.InternVLConfig(vision_config=transformers.InternVLVisionConfig(**{**V, "image_size": [16, 16], "patch_size": [8, 8]}),
                                 text_config=transformers.Qwen2Config(**T), image_token_id=96), torch.float32, "30KB"),
    (transformers.SmolVLMConfig(vision_config=dict(V), text_config=transformers.LlamaConfig(**T), image_token_id=96), torch.float16, "1GB"),
    (transformers.Qwen2VLConfig(text_config=MROPE, vision_config=dict(depth=1, embed_dim=32, hidden_size=32, num_heads=2, mlp_ratio=2, patch_size=4), **IDS),
     torch.float32, "1GB"),
    (transformers.Qwen2_5_VLConfig(text_config=MROPE, vision_config=dict(QWEN_V, fullatt_block_indexes=[0]), tie_word_embeddings=True, **IDS),
     torch.float32, "40KB"),
    (transformers.Gemma3Config(text_config=dict(GEMMA, model_type="gemma3_text", head_dim=8, query_pre_attn_scalar=8, sliding_window=9,
                                                num_hidden_layers=6, rope_scaling={"rope_type": "linear", "factor": 8.0}),
                               vision_config=dict(V, model_type="siglip_vision_model"), image_token_index=96, mm_tokens_per_image=4),
     torch.float32, "40KB"),
    (transformers.Qwen3VLConfig(text_config=MIXED, vision_config=dict(QWEN_V, deepstack_visual_indexes=[0], num_position_embeddings=16), **IDS),
     torch.bfloat16, "1GB"),
]


LINEAR = dict(T, head_dim=8, num_hidden_layers=2, layer_types=["linear_attention", "full_attention"], linear_key_head_dim=8, linear_num_key_heads=2,
              linear_num_value_heads=4, linear_value_head_dim=6,
              rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0],
                               "mrope_interleaved": True})
for config, kind in ((transformers.Qwen3_5Config, "qwen3_5"), (transformers.Qwen3_5MoeConfig, "qwen3_5_moe")):
    experts = dict(moe_intermediate_size=12, shared_expert_intermediate_size=16, num_experts=4, num_experts_per_tok=2) if "moe" in kind else {}
    CASES.insert(0, (config(text_config=dict(LINEAR, **experts), vision_config=dict(QWEN_V, num_position_embeddings=16), **IDS), torch.float32, "1GB"))


def is_text(name):
    return any(part in name for part in ("language_model.", "text_model.", "lm_head.")) or name.startswith(("model.embed_tokens", "model.layers", "model.norm"))


def check(config, dtype, shard, folder):
    hf, data = os.path.join(folder, "hf"), os.path.join(folder, "tokens.bin")
    theirs = make_folder(config, dtype, shard, hf)
    before, tokens = files_of(hf), write_tokens(data)
    want = train_theirs(theirs, tokens)
    got, exported, _ = train_ours(hf, data, folder)
    loss_off = max(abs(a - b) / abs(b) for a, b in zip(got, want))
    after = files_of(exported)
    back, info = kind_of(config).from_pretrained(exported, dtype=torch.float32, output_loading_info=True)
    mine, other = dict(back.named_parameters()), dict(theirs.named_parameters())
    apart = max((mine[k] - other[k]).abs().max().item() for k in mine)
    others = [k for k in before if not is_text(k)]
    missing = [k for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") for k in info[kind]]
    print(f"# losses within {loss_off:.2g}, weights within {apart:.2g}, {len(after)} tensors, {len(others)} of other parts", flush=True)
    assert len(got) == STEPS and loss_off < 1e-5, f"losses are {loss_off} apart"
    assert set(after) == set(before) and not missing, f"{set(after) ^ set(before)} {missing}"
    assert others and all(torch.equal(before[k], after[k]) and before[k].dtype == after[k].dtype for k in others), "another part has changed"
    assert apart < 2 * STEPS * 1e-3, f"weights are {apart} apart"
    said, was = (json.load(open(os.path.join(f, "config.json"))) for f in (exported, hf))
    assert said.pop("dtype") == "float32" and was.pop("dtype") == str(dtype)[6:] and said == was, "config.json has changed"
    check_generate(back, exported)


def check_adapters(config, folder):
    """peft loads the exported adapters beside transformers' model, whose logits are then those of the merged export."""
    hf, data, save = (os.path.join(folder, n) for n in ("hf", "tokens.bin", "save"))
    make_folder(config, torch.float32, "1GB", hf)
    tokens = write_tokens(data)
    json.dump({"train_batch_size": 4, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}, "dsc": {"lora": {"r": 4, "target_modules": "all-linear"}}},
              open(os.path.join(folder, "c.json"), "w"))
    run(f"{BIN}/train", "--config", os.path.join(folder, "c.json"), "--model", hf, "--data", data, "--seq-len", str(SEQ), "--steps", "8", "--save", save)
    for out, flags in (("adapter", ()), ("merged", ("--merge",))):
        run(f"{BIN}/dsc", "ckpt", "export", f"{save}/step-8", "--out", os.path.join(folder, out), *flags)
    x = torch.tensor(tokens[:SEQ]).view(1, -1)
    base, merged = (kind_of(config).from_pretrained(f, dtype=torch.float32).eval() for f in (hf, os.path.join(folder, "merged")))
    with torch.no_grad():
        plain = base(input_ids=x).logits
        adapted = peft.PeftModel.from_pretrained(base, os.path.join(folder, "adapter")).eval()(input_ids=x).logits
        off = (adapted - merged(input_ids=x).logits).abs().max().item()
    assert off < 1e-5 and (adapted - plain).abs().max() > 1e-3, f"merged, the logits are {off} off"


with_adapters = [("adapters beside qwen3_vl, loaded by peft", check_adapters if peft else None, (CASES[-1][0],) if peft else "peft is not installed")]
sys.exit(run_all(with_adapters + [(f"{c.model_type}, {str(d)[6:]} in shards of {s}", check, (c, d, s)) for c, d, s in CASES]))
