#!/usr/bin/env python3
"""moe_test.py BIN: losses of routers and loads of experts beside transformers (5.x), over 20 fp32 AdamW steps.

transformers' models make the loss with their balance loss, from their own router logits; the z loss is made of the same
logits. Both runs have two micro-batches in a step. SPDX-License-Identifier: Apache-2.0"""
import json
import os
import random
import sys

from hf_runs import BIN, SEQ, STEPS, VOCAB, kind_of, make_folder, run, run_all, samples_of, torch, transformers, write_tokens

MICRO, RANKS = 2, 2
MOE = dict(vocab_size=VOCAB, hidden_size=48, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=3, max_position_embeddings=64)
QWEN3 = dict(**MOE, head_dim=16, intermediate_size=70, moe_intermediate_size=24, num_experts=8, num_experts_per_tok=2, norm_topk_prob=True)
LOSS = dict(output_router_logits=True, router_aux_loss_coef=0.5)  # large, so that its gradient decides where weights go
# config, keys of dsc.moe, the factors that follow
CASES = [
    (transformers.MixtralConfig(**MOE, intermediate_size=40, num_local_experts=4, num_experts_per_tok=2, **LOSS), {}, 0.5, 0.0),
    (transformers.OlmoeConfig(**MOE, intermediate_size=24, num_experts=8, num_experts_per_tok=3, eos_token_id=2, output_router_logits=True), {},
     0.01, 0.0),
    (transformers.Qwen2MoeConfig(**MOE, intermediate_size=70, moe_intermediate_size=24, shared_expert_intermediate_size=32, num_experts=6,
                                 num_experts_per_tok=4, mlp_only_layers=[1], **LOSS), {}, 0.5, 0.0),
    (transformers.Qwen3MoeConfig(**QWEN3, **LOSS), {"z_loss_coef": 0.2}, 0.5, 0.2),
    (transformers.Qwen3MoeConfig(**QWEN3), {"aux_loss_coef": 0.3, "log_load": True}, 0.3, 0.0),
    (transformers.Qwen3MoeConfig(**QWEN3, **LOSS), {"aux_loss_coef": 0, "z_loss_coef": 0.2}, 0.0, 0.2),
    (transformers.Qwen3MoeConfig(**QWEN3, router_aux_loss_coef=0.5), {}, 0.0, 0.0),
]


def micro_batches(config, tokens):
    """[step][micro-batch] of inputs, and targets of the same places."""
    count, data = (len(tokens) - 1) // SEQ, torch.tensor(tokens)
    for step in range(STEPS):
        first = step * MICRO * RANKS
        numbers = [range(first + MICRO * r, first + MICRO * (r + 1)) for r in range(RANKS)]
        yield [samples_of(config, data, [n % count * SEQ for n in some], None) + (None,) for some in numbers]


def losses_of(model, out, mask, aux, z):
    """The rest of transformers' loss, with other factors than the model's; balance and z without factors."""
    c = model.config
    balance = transformers.models.mixtral.modeling_mixtral.load_balancing_loss_func(out.router_logits, model.num_experts, c.num_experts_per_tok, mask)
    keep = slice(None) if mask is None else mask.reshape(-1) > 0
    logits = torch.cat([each.view(-1, each.shape[-1])[keep] for each in out.router_logits])
    square = torch.logsumexp(logits, -1).square().mean()
    return aux * balance + z * square, balance.item(), square.item()


def loads_of(model, out):
    k = model.config.num_experts_per_tok
    return [torch.bincount(each.topk(k, -1).indices.flatten(), minlength=model.num_experts) for each in out.router_logits]


def train_theirs(model, steps, aux, z):
    model.eval()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
    rows = []
    for micro in steps:
        opt.zero_grad()
        counted = [(y >= 0).sum().item() for _, y, _ in micro]
        row = {"loss": 0.0, "aux_loss": 0.0, "z_loss": 0.0, "load": 0}
        for (x, y, mask), n in zip(micro, counted):
            share = n / sum(counted)
            out = model(input_ids=x, attention_mask=mask, output_router_logits=True)
            more, balance, square = losses_of(model, out, mask, aux, z)
            loss = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), y.reshape(-1)) + more
            if z == 0 and mask is None and aux == model.config.router_aux_loss_coef:  # all of it as transformers makes it
                labels = torch.cat([torch.zeros_like(y[:, :1]), y[:, :-1]], 1)
                own = model(input_ids=x, labels=labels, shift_labels=y, output_router_logits=True)
                assert abs(own.loss.item() - loss.item()) < 1e-5 and abs(own.aux_loss.item() - balance) < 1e-6
            (loss * share).backward()
            for key, value in (("loss", loss.item()), ("aux_loss", balance), ("z_loss", square)):
                row[key] += value * share
            if mask is None:
                row["load"] = [a + b for a, b in zip(loads_of(model, out), row["load"] or [0] * 99)]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        rows.append(row)
    return rows


def train_ours(hf, data, folder, moe, **own):
    config, log, save = (os.path.join(folder, n) for n in ("c.json", "log.jsonl", "save"))
    json.dump({"train_batch_size": MICRO * RANKS, "train_micro_batch_size_per_gpu": MICRO, "gradient_clipping": 1.0,
               "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.1}},
               "zero_optimization": {"stage": 2}, "dsc": dict(own, moe=moe)}, open(config, "w"))
    told = run(f"{BIN}/dsc-launch", f"--num_gpus={RANKS}", "train", "--config", config, "--model", hf, "--data", data, "--seq-len", str(SEQ),
               "--no-shuffle", "--steps", str(STEPS), "--log", log, "--save", save)
    out = os.path.join(folder, "export")
    run(f"{BIN}/dsc", "ckpt", "export", f"{save}/step-{STEPS}", "--out", out)
    return [json.loads(line) for line in open(log)], out, told


def compare(model, steps, folder, data, moe, aux, z, **own):
    want = train_theirs(model, steps, aux, z)
    got, exported, told = train_ours(os.path.join(folder, "hf"), data, folder, moe, **own)
    keys = ["loss"] + (["aux_loss", "z_loss"] if aux > 0 or z > 0 else [])
    keys = [k for k in keys if not (k == "aux_loss" and aux == 0) and not (k == "z_loss" and z == 0)]
    apart = {k: max(abs(a[k] - b[k]) for a, b in zip(got, want)) for k in keys}
    back = kind_of(model.config).from_pretrained(exported, dtype=torch.float32)
    mine, other = dict(back.named_parameters()), dict(model.named_parameters())
    off = max((mine[k] - other[k]).abs().max().item() for k in mine)
    print(f"# within {apart}, weights {off:.2g}", flush=True)
    assert len(got) == STEPS and max(apart.values()) < 2e-4, f"losses are {apart} apart"
    assert off < 2 * STEPS * 1e-3, f"weights are {off} apart"
    assert ("aux_loss" in got[0]) == (aux > 0 or z > 0), "the log has losses that the model has not"
    assert "load " in told, told
    return got, want


def check_losses(config, moe, aux, z, folder):
    data = os.path.join(folder, "tokens.bin")
    model = make_folder(config, torch.float32, "1GB", os.path.join(folder, "hf"))
    got, want = compare(model, list(micro_batches(config, write_tokens(data))), folder, data, moe, aux, z)
    # a token whose logits are equal to the last digit may go to another expert
    if moe.get("log_load"):
        theirs = [[layer.tolist() for layer in row["load"]] for row in want]
        moved = sum(abs(a - b) for g, t in zip(got, theirs) for x, y in zip(g["expert_load"], t) for a, b in zip(x, y))
        assert moved <= 4, f"{moved} slots differ from transformers'"
    assert ("expert_load" in got[0]) == bool(moe.get("log_load"))
    for row, step in zip(got, want):
        loads = torch.stack(step["load"]).float()
        assert abs(row["expert_load_ratio"] - (loads.max() / loads.mean()).item()) < 0.05, (row, loads)
        assert abs(row["experts_idle"] - (loads == 0).sum().item()) <= 1


def check_padding(folder):
    """Examples of different lengths, one in a sample: padding is in no loss, prompts are in those of routers."""
    config = transformers.Qwen3MoeConfig(**QWEN3, **LOSS)
    data, draw = os.path.join(folder, "rows.jsonl"), random.Random(5)
    rows = []
    with open(data, "w") as out:
        for _ in range(MICRO * RANKS * STEPS):
            length = draw.randrange(4, SEQ + 1)
            ids, prompt = [draw.randrange(VOCAB) for _ in range(length)], draw.randrange(1, length - 1)
            rows.append((ids, prompt))
            print(json.dumps({"input_ids": ids, "labels": [-100] * prompt + ids[prompt:]}), file=out)

    def batch(some):
        x = torch.tensor([ids + [0] * (SEQ - len(ids)) for ids, _ in some])
        y = torch.tensor([[t if i + 1 >= p else -100 for i, t in enumerate(ids[1:])] + [-100] * (SEQ - len(ids) + 1) for ids, p in some])
        return x, y, torch.tensor([[1] * len(ids) + [0] * (SEQ - len(ids)) for ids, _ in some])

    model = make_folder(config, torch.float32, "1GB", os.path.join(folder, "hf"))
    json.dump({"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
               "model": {"type": "WordPiece", "unk_token": "0", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
                         "vocab": {str(i): i for i in range(VOCAB)}}}, open(os.path.join(folder, "hf", "tokenizer.json"), "w"))
    steps = [[batch(rows[i + MICRO * r:i + MICRO * (r + 1)]) for r in range(RANKS)] for i in range(0, len(rows), MICRO * RANKS)]
    compare(model, steps, folder, data, {"z_loss_coef": 0.1}, 0.5, 0.1, sft={"packing": False})


tests = [(f"{c.model_type} with {m or 'its own loss'}, factors {a} and {z}", check_losses, (c, m, a, z)) for c, m, a, z in CASES]
tests.append(("padding is left out of the losses of routers", check_padding, ()))
sys.exit(run_all(tests))
