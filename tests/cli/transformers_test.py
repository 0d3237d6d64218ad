#!/usr/bin/env python3
"""transformers_test.py BIN: `train` beside transformers, for a random model of every family that transformers saves.

Compared are 20 fp32 AdamW steps on the same tokens (losses within 2e-4). transformers reads the export after the last
step: its tensors equal its own within 20 steps of roundings, and ours bit by bit. Then `dsc generate` and transformers
continue a prompt, token for token. BERT trains on samples that masking.py makes as train does. With peft, models with
adapters start from a folder that peft saved; peft loads our export, and transformers the merged one.
SPDX-License-Identifier: Apache-2.0"""
import json
import os
import sys

from hf_runs import (BIN, SEQ, STEPS, VOCAB, compare, files_of, is_masked, kind_of, make_folder, run, run_all, save_file, torch, train_ours,
                     train_theirs, transformers, write_tokens)
try:
    import peft
except ImportError:
    peft = None

LLAMA = dict(vocab_size=VOCAB, hidden_size=48, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2, intermediate_size=70,
             max_position_embeddings=64)
DENSE = dict(vocab_size=VOCAB, hidden_size=48, num_attention_heads=3, num_hidden_layers=2, max_position_embeddings=64)
GPT2 = dict(vocab_size=VOCAB, n_embd=48, n_head=3, n_layer=2, n_positions=64, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
# config, dtype on disk, shard size
CASES = [
    (transformers.GPT2Config(**GPT2), torch.float32, "1GB"),
    (transformers.LlamaConfig(**LLAMA, tie_word_embeddings=True), torch.float32, "40KB"),
    (transformers.LlamaConfig(**LLAMA, tie_word_embeddings=False), torch.bfloat16, "1GB"),
    (transformers.MistralConfig(**LLAMA, sliding_window=9), torch.float32, "1GB"),
    (transformers.MistralConfig(**LLAMA, head_dim=12, sliding_window=9, layer_types=["sliding_attention", "full_attention"]),
     torch.float32, "1GB"),
    (transformers.Qwen2Config(**LLAMA, use_sliding_window=True, sliding_window=7, layer_types=["sliding_attention", "full_attention"]),
     torch.bfloat16, "1GB"),
    (transformers.Qwen3Config(**LLAMA, head_dim=16), torch.float16, "30KB"),
    (transformers.GPTNeoXConfig(**DENSE, intermediate_size=70, hidden_dropout=0, attention_dropout=0), torch.float32, "40KB"),
    (transformers.GPTNeoXConfig(**DENSE, intermediate_size=70, hidden_dropout=0, attention_dropout=0, use_parallel_residual=False),
     torch.bfloat16, "1GB"),
    (transformers.OPTConfig(**DENSE, ffn_dim=70, word_embed_proj_dim=48, dropout=0, attention_dropout=0), torch.float32, "1GB"),
    (transformers.OPTConfig(**DENSE, ffn_dim=70, word_embed_proj_dim=48, dropout=0, attention_dropout=0, activation_function="gelu",
                            tie_word_embeddings=False), torch.float16, "30KB"),
    (transformers.BertConfig(**DENSE, intermediate_size=70, hidden_dropout_prob=0, attention_probs_dropout_prob=0), torch.float32, "40KB"),
    (transformers.BertConfig(**DENSE, intermediate_size=70, hidden_dropout_prob=0, attention_probs_dropout_prob=0, hidden_act="relu",
                             pad_token_id=None), torch.bfloat16, "1GB"),
    (transformers.OPTConfig(**DENSE, ffn_dim=70, word_embed_proj_dim=32, dropout=0, attention_dropout=0, do_layer_norm_before=False),
     torch.float32, "40KB"),
]
# Mixtures of experts: normed weights or not, layers without experts, a gated shared expert, windows.
MOE = dict(vocab_size=VOCAB, hidden_size=48, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2, max_position_embeddings=64)
CASES += [
    (transformers.Qwen3MoeConfig(**MOE, head_dim=16, intermediate_size=70, moe_intermediate_size=24, num_experts=8, num_experts_per_tok=2,
                                 norm_topk_prob=True), torch.float32, "1GB"),
    (transformers.Qwen3MoeConfig(**MOE, head_dim=16, intermediate_size=70, moe_intermediate_size=24, num_experts=16, num_experts_per_tok=4,
                                 decoder_sparse_step=2), torch.float16, "1GB"),
    (transformers.MixtralConfig(**MOE, intermediate_size=40, num_local_experts=4, num_experts_per_tok=2, sliding_window=9), torch.float32,
     "30KB"),
    (transformers.OlmoeConfig(**MOE, intermediate_size=24, num_experts=8, num_experts_per_tok=3, eos_token_id=2), torch.bfloat16, "1GB"),
    (transformers.Qwen2MoeConfig(**MOE, intermediate_size=70, moe_intermediate_size=24, shared_expert_intermediate_size=32, num_experts=6,
                                 num_experts_per_tok=4, mlp_only_layers=[0]), torch.float32, "40KB"),
]
# config, dtype on disk, arguments of peft's LoraConfig
LORA_CASES = [
    (transformers.LlamaConfig(**LLAMA, tie_word_embeddings=True), torch.float32, dict(r=4, lora_alpha=6, target_modules="all-linear")),
    (transformers.GPT2Config(**GPT2), torch.bfloat16,
     dict(r=3, lora_alpha=8, use_rslora=True, target_modules=["c_attn", "mlp.c_proj"], fan_in_fan_out=True)),
    (transformers.GPTNeoXConfig(**DENSE, intermediate_size=70, hidden_dropout=0, attention_dropout=0), torch.float32,
     dict(r=4, lora_alpha=16, target_modules=r".*\.1\..*(query_key_value|dense_4h_to_h)")),
    (transformers.BertConfig(**DENSE, intermediate_size=70, hidden_dropout_prob=0, attention_probs_dropout_prob=0), torch.float32,
     dict(r=4, lora_alpha=6, target_modules="all-linear")),
    (transformers.BertConfig(**DENSE, intermediate_size=70, hidden_dropout_prob=0, attention_probs_dropout_prob=0), torch.float16,
     dict(r=3, lora_alpha=9, target_modules=r".*\d\.output\.dense")),
    (transformers.OPTConfig(**DENSE, ffn_dim=70, word_embed_proj_dim=32, dropout=0, attention_dropout=0, do_layer_norm_before=False),
     torch.float32, dict(r=4, lora_alpha=6, target_modules="all-linear")),
    # modules that are trained whole, also a table that head and embedding share; numbers of single layers
    (transformers.LlamaConfig(**LLAMA, tie_word_embeddings=False), torch.float32,
     dict(r=5, lora_alpha=6, target_modules=["q_proj", "up_proj"], modules_to_save=["lm_head", "embed_tokens", "model.norm"])),
    (transformers.LlamaConfig(**LLAMA, tie_word_embeddings=True), torch.float32,
     dict(r=6, lora_alpha=6, target_modules="all-linear", exclude_modules=r".*k_proj", modules_to_save=["lm_head"])),
    (transformers.GPT2Config(**GPT2), torch.float32,
     dict(r=7, lora_alpha=8, target_modules=["c_attn"], fan_in_fan_out=True, modules_to_save=["wte", "lm_head"])),
    (transformers.Qwen3Config(**LLAMA, head_dim=16), torch.float32,
     dict(r=8, lora_alpha=8, target_modules="all-linear", rank_pattern={"(q|v)_proj": 3, r"layers\.0\..*": 2},  # peft sorts them when it saves
          alpha_pattern={"^model.*mlp.*": 12, r"self_attn\.[qk]_proj": 5})),
]
# magnitudes of outputs: each layout of weights, layers with biases and without, and what a layer adds to
LORA_CASES += [
    (transformers.LlamaConfig(**LLAMA, tie_word_embeddings=True, attention_bias=True), torch.float32,
     dict(r=4, lora_alpha=6, target_modules="all-linear", use_dora=True)),
    (transformers.GPT2Config(**GPT2), torch.float32,
     dict(r=3, lora_alpha=8, use_rslora=True, target_modules=["c_attn", "mlp.c_proj"], fan_in_fan_out=True, use_dora=True)),
    (transformers.GPTNeoXConfig(**DENSE, intermediate_size=70, hidden_dropout=0, attention_dropout=0), torch.float32,
     dict(r=5, lora_alpha=16, target_modules=r".*\.1\..*(query_key_value|dense_4h_to_h)", use_dora=True)),
    (transformers.BertConfig(**DENSE, intermediate_size=70, hidden_dropout_prob=0, attention_probs_dropout_prob=0), torch.float32,
     dict(r=4, lora_alpha=6, target_modules="all-linear", use_dora=True)),
    (transformers.OPTConfig(**DENSE, ffn_dim=70, word_embed_proj_dim=32, dropout=0, attention_dropout=0, do_layer_norm_before=False),
     torch.float16, dict(r=4, lora_alpha=6, target_modules="all-linear", use_dora=True)),
    (transformers.Qwen3Config(**LLAMA, head_dim=16), torch.float32,
     dict(r=8, lora_alpha=8, target_modules="all-linear", rank_pattern={"(q|v)_proj": 3, r"layers\.0\..*": 2}, alpha_pattern={"^model.*mlp.*": 12},
          use_dora=True, modules_to_save=["lm_head"])),
]
# encoders whose head has its layers under other names, one of them without biases and behind a norm of its own
LORA_CASES += [
    (transformers.RobertaConfig(**DENSE, intermediate_size=70), torch.float32, dict(r=4, lora_alpha=6, target_modules="all-linear")),
    (transformers.DistilBertConfig(vocab_size=VOCAB, dim=48, n_heads=3, n_layers=2, hidden_dim=70, max_position_embeddings=64), torch.float32,
     dict(r=4, lora_alpha=6, target_modules="all-linear")),
    (transformers.ModernBertConfig(**DENSE, intermediate_size=70, local_attention=8, pad_token_id=83), torch.float32,
     dict(r=4, lora_alpha=6, target_modules="all-linear")),
    (transformers.ModernBertConfig(**DENSE, intermediate_size=70, local_attention=8, pad_token_id=83), torch.float32,
     dict(r=3, lora_alpha=6, target_modules=["Wqkv", "mlp.Wo"], use_dora=True)),
]
# attention of GPT-OSS: all that peft takes for a linear layer there
GPT_OSS = transformers.GptOssConfig(**MOE, head_dim=16, intermediate_size=40, num_local_experts=8, sliding_window=9)
LORA_CASES += [(GPT_OSS, torch.bfloat16, dict(r=4, lora_alpha=6, target_modules="all-linear"))]
# Arguments of peft's LoraConfig that choose layers, which dsc.lora has under the same names.
TARGETS = [
    dict(target_modules=r"model\.layers\.1\..*(q|v)_proj"), dict(target_modules="all-linear", exclude_modules=["mlp.up_proj", "k_proj"]),
    dict(target_modules=["q_proj", "down_proj"], layers_to_transform=[1], layers_pattern="layers"),
    dict(target_modules=r".*(?:self_attn|attn).*(?:q_proj|o_proj)", exclude_modules=r".*\.0\..*", rank_pattern={r"1\.self_attn\.o_proj": 2}),
    dict(target_modules=["q_proj", "o_proj"], layers_to_transform=0, rank_pattern={"o_proj": 5, ".*_proj": 7}),
    dict(target_modules="all-linear", modules_to_save=["layers.1.mlp", "lm_head"]), dict(target_modules=None),
    dict(target_modules=["q_proj", "mlp.up_proj"], use_dora=True),
]


def check_targets(folder):
    """Tensors of fresh adapters, by name and shape, are those that peft makes of the same arguments."""
    hf, data, save, out = (os.path.join(folder, n) for n in ("hf", "tokens.bin", "save", "out"))
    config = transformers.LlamaConfig(**LLAMA, tie_word_embeddings=False)
    for i, target in enumerate(TARGETS):
        model = make_folder(config, torch.float32, "1GB", hf + str(i))
        peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", r=4, **target)).save_pretrained(out + str(i))
        write_tokens(data)
        json.dump({"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
                   "dsc": {"lora": dict({k: v for k, v in target.items() if v is not None}, r=4)}}, open(os.path.join(folder, "c.json"), "w"))
        run(f"{BIN}/train", "--config", os.path.join(folder, "c.json"), "--model", hf + str(i), "--data", data, "--seq-len", str(SEQ), "--steps", "1",
            "--save", save + str(i))
        run(f"{BIN}/dsc", "ckpt", "export", f"{save}{i}/step-1", "--out", f"{save}{i}-out")
        want, got = files_of(out + str(i)), files_of(f"{save}{i}-out")
        assert {k: t.shape for k, t in got.items()} == {k: t.shape for k, t in want.items()}, (target, set(got) ^ set(want))
        # magnitudes begin as peft's, and move at most by the rate in one step
        off = max([(t - want[k]).abs().max().item() for k, t in got.items() if "magnitude" in k], default=0.0)
        assert off < 1.01e-3, f"magnitudes are {off} from peft's first ones"


def check_adapters(config, dtype, lora, folder):
    hf, data, adapter, again = (os.path.join(folder, n) for n in ("hf", "tokens.bin", "adapter", "again"))
    task = None if is_masked(config) else "CAUSAL_LM"
    theirs = peft.get_peft_model(make_folder(config, dtype, "1GB", hf), peft.LoraConfig(task_type=task, **lora))
    with torch.no_grad():
        for p in theirs.parameters():
            if p.requires_grad:
                p.add_(torch.randn_like(p) * 0.05)
    theirs.save_pretrained(adapter)
    tokens = write_tokens(data)
    want = train_theirs(theirs, tokens)
    got, exported, merged = train_ours(hf, data, folder, adapter)
    loss_off = max(abs(a - b) for a, b in zip(got, want))
    base = kind_of(config).from_pretrained(hf, dtype=torch.float32)
    back = peft.PeftModel.from_pretrained(base, exported, is_trainable=True)
    back.save_pretrained(again)
    ours, saved = files_of(exported), files_of(again)
    mine = {k: p for k, p in back.named_parameters() if p.requires_grad}
    other = {k: p for k, p in theirs.named_parameters() if p.requires_grad}
    apart = max((mine[k] - other[k]).abs().max().item() for k in other)
    x = torch.tensor(tokens[:SEQ]).view(1, -1)
    whole = kind_of(config).from_pretrained(merged, dtype=torch.float32)
    with torch.no_grad():
        off = (back.eval()(input_ids=x).logits - whole.eval()(input_ids=x).logits).abs().max().item()
    told = json.load(open(os.path.join(exported, "adapter_config.json")))
    assert told["task_type"] == task, f"the task is {told['task_type']}"
    print(f"# losses within {loss_off:.2g}, adapters within {apart:.2g}, {len(ours)} tensors, merged logits within {off:.2g}", flush=True)
    assert len(got) == STEPS and loss_off < 2e-4, f"losses are {loss_off} apart"
    assert set(ours) == set(saved) and all(torch.equal(ours[k], saved[k]) for k in ours), "what peft writes of our export is not our export"
    assert set(mine) == set(other), "peft has other adapters than it had"
    assert off < 1e-4, f"merged, the logits are {off} off"
    assert apart < 2 * STEPS * 1e-3, f"adapters are {apart} apart"


ADDED = 3  # tokens that a tokenizer has and the model's tables lack
GROWN_CASES = [
    (transformers.LlamaConfig(**LLAMA, tie_word_embeddings=True), torch.float32), (transformers.LlamaConfig(**LLAMA, tie_word_embeddings=False), torch.bfloat16),
    (transformers.GPT2Config(**GPT2), torch.float32), (transformers.GPTNeoXConfig(**DENSE, intermediate_size=70, hidden_dropout=0, attention_dropout=0), torch.float32),
    (transformers.OPTConfig(**DENSE, ffn_dim=70, word_embed_proj_dim=32, dropout=0, attention_dropout=0, do_layer_norm_before=False), torch.float32),
    (transformers.BertConfig(**DENSE, intermediate_size=70, hidden_dropout_prob=0, attention_probs_dropout_prob=0), torch.float32),
    (transformers.RobertaConfig(**DENSE, intermediate_size=70), torch.float32),
    (transformers.ModernBertConfig(**DENSE, intermediate_size=70, local_attention=8, pad_token_id=83), torch.float32),
]


def write_tokenizer(folder):
    """One with VOCAB tokens and ADDED ones."""
    added = [{"id": VOCAB + i, "content": f"<|{i}|>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} for i in range(ADDED)]
    json.dump({"version": "1.0", "added_tokens": added, "normalizer": None, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
               "model": {"type": "WordPiece", "unk_token": "0", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
                         "vocab": {str(i): i for i in range(VOCAB)}}}, open(os.path.join(folder, "tokenizer.json"), "w"))


def grow(model):
    """As dsc.grow_vocab: transformers' rows, which are within a small part of the mean, without their noise."""
    old = {id(t): t.weight.detach().clone() for t in (model.get_input_embeddings(), model.get_output_embeddings())}
    model.resize_token_embeddings(VOCAB + ADDED)
    for table, was in zip((model.get_input_embeddings(), model.get_output_embeddings()), old.values()):
        off = (table.weight[VOCAB:] - was.mean(0)).abs().max().item()
        assert off < 1e-3 * was.std().item(), f"transformers begins {off} from the mean"
        with torch.no_grad():
            table.weight[VOCAB:] = was.mean(0)
            if getattr(table, "bias", None) is not None:
                table.bias[VOCAB:] = table.bias[:VOCAB].mean()
    return model


def check_grown(config, dtype, folder):
    hf, data = (os.path.join(folder, n) for n in ("hf", "tokens.bin"))
    theirs = grow(make_folder(config, dtype, "1GB", hf))
    write_tokenizer(hf)
    tokens = write_tokens(data, VOCAB if is_masked(config) else VOCAB + ADDED)  # hf_runs.py masks with the old ones
    want = train_theirs(theirs, tokens)
    got, exported, _ = train_ours(hf, data, folder, grow_vocab=True)
    loss_off = max(abs(a - b) for a, b in zip(got, want))
    back, info = kind_of(config).from_pretrained(exported, dtype=torch.float32, output_loading_info=True)
    mine, other = dict(back.named_parameters()), dict(theirs.named_parameters())
    apart = max((mine[k] - other[k]).abs().max().item() for k in mine)
    print(f"# losses within {loss_off:.2g}, weights within {apart:.2g}, {back.config.vocab_size} rows", flush=True)
    assert back.config.vocab_size == VOCAB + ADDED and not info["missing_keys"] and not info["mismatched_keys"], info
    assert len(got) == STEPS and loss_off < 2e-4, f"losses are {loss_off} apart"
    assert apart < 2 * STEPS * 1e-3, f"weights are {apart} apart"


def check_grown_adapters(tied, save, folder):
    """From an adapter that peft saved of a grown model, on the base as it was; and fresh ones, which peft loads."""
    hf, data, adapter = (os.path.join(folder, n) for n in ("hf", "tokens.bin", "adapter"))
    config = transformers.LlamaConfig(**LLAMA, tie_word_embeddings=tied)
    lora = dict(task_type="CAUSAL_LM", r=4, lora_alpha=6, target_modules="all-linear", modules_to_save=save)
    theirs = peft.get_peft_model(grow(make_folder(config, torch.float32, "1GB", hf)), peft.LoraConfig(**lora))
    write_tokenizer(hf)
    theirs.save_pretrained(adapter)
    tokens = write_tokens(data, VOCAB + ADDED)
    fresh = os.path.join(folder, "fresh")
    os.mkdir(fresh)
    _, exported, _ = train_ours(hf, data, fresh, grow_vocab=True, lora={k: v for k, v in lora.items() if k in ("r", "target_modules") or k == "modules_to_save" and v})
    want = train_theirs(theirs, tokens)
    got, again, merged = train_ours(hf, data, folder, adapter)
    loss_off = max(abs(a - b) for a, b in zip(got, want))
    x, logits = torch.tensor(tokens[:SEQ]).view(1, -1), []
    for out in (again, exported):
        base = kind_of(config).from_pretrained(hf, dtype=torch.float32)
        base.resize_token_embeddings(VOCAB + ADDED)
        back = peft.PeftModel.from_pretrained(base, out).eval()
        saved = files_of(out)
        tables = {k for k in saved if k.endswith(("embed_tokens.weight", "lm_head.weight"))}
        assert all(saved[k].shape[0] == VOCAB + ADDED for k in tables) and len(tables) == (1 if tied and not save else 2), tables
        with torch.no_grad():
            logits.append(back(input_ids=x).logits)
    whole = kind_of(config).from_pretrained(merged, dtype=torch.float32).eval()
    with torch.no_grad():
        off = (logits[0] - whole(input_ids=x).logits).abs().max().item()
        theirs_off = (logits[0] - theirs.eval()(input_ids=x).logits).abs().max().item()
    print(f"# losses within {loss_off:.2g}, merged logits within {off:.2g}, peft's own within {theirs_off:.2g}", flush=True)
    assert len(got) == STEPS and loss_off < 2e-4, f"losses are {loss_off} apart"
    assert off < 1e-4, f"merged, the logits are {off} off"
    assert theirs_off < 1e-2, f"the logits of peft's own run are {theirs_off} off"


def check(config, dtype, shard, folder):
    hf = os.path.join(folder, "hf")
    compare(make_folder(config, dtype, shard, hf), hf, folder)


def check_stacked(config, folder):
    """A file with all experts of a layer in two tensors, as the parameters of transformers 5 are."""
    hf = os.path.join(folder, "hf")
    theirs = make_folder(config, torch.float32, "1GB", hf)
    save_file({k: t.contiguous() for k, t in theirs.state_dict().items()}, os.path.join(hf, "model.safetensors"), metadata={"format": "pt"})
    compare(theirs, hf, folder)


tests = [(f"{config.model_type}, tied {config.tie_word_embeddings}, {str(dtype)[6:]} in shards of {shard}", check, (config, dtype, shard))
         for config, dtype, shard in CASES]
tests += [(f"{config.model_type}, experts in one tensor", check_stacked, (config,)) for config in (CASES[-5][0], CASES[-3][0])]
for config, dtype, lora in LORA_CASES:
    name = f"{config.model_type} with adapters of rank {lora['r']}" + (" and magnitudes" if "use_dora" in lora else "")
    tests.append((name, check_adapters, (config, dtype, lora)) if peft else (name, None, "peft is not installed"))
tests += [(f"{config.model_type} with {ADDED} added tokens, tied {config.tie_word_embeddings}", check_grown, (config, dtype)) for config, dtype in GROWN_CASES]
for tied, save in ((False, None), (True, None), (False, ["embed_tokens", "lm_head"])):
    name = f"adapters with {ADDED} added tokens, tied {tied}, modules to save: {save}"
    tests.append((name, check_grown_adapters, (tied, save)) if peft else (name, None, "peft is not installed"))
tests.append(("layers with adapters are those of peft", check_targets if peft else None, () if peft else "peft is not installed"))
sys.exit(run_all(tests))
