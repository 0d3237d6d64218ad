#!/usr/bin/env python3
"""make_sft.py - losses of 20 fp32 steps on instruction data by transformers' own models and torch's AdamW: sft_losses.json.

Padded: each example is a row with an attention mask. Packed: examples share a row, and position_ids restart at each, from which
transformers makes the mask. The loss is the model's own, with num_items_in_batch of the whole step, and gradients are clipped to 1.
Made with torch 2.15.0 and transformers 5.24.0 (PyPI) on CPUs. Run again only when sft_case.py changes.
SPDX-License-Identifier: Apache-2.0"""
import json
import os
import sys

import torch
import transformers

sys.dont_write_bytecode = True
import sft_case as case  # noqa: E402

MICRO = 4


def make_model(config):
    kind = transformers.AutoConfig.for_model(**config)
    model = transformers.AutoModelForCausalLM.from_config(kind, attn_implementation="eager").float()
    known = {k: torch.tensor(v).reshape(s) for k, (s, v) in case.weights(config).items()}
    missing, unexpected = model.load_state_dict(known, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    return model.train()  # the families have no dropout


def inputs_of(rows, packing):
    """The model's arguments for some samples."""
    ids, labels, places, mask = [], [], [], []
    for row in rows:
        tokens = [t for e in row for t in e[0]]
        pad = case.SEQ - len(tokens)
        ids.append(tokens + [0] * pad)
        labels.append([y if k > 0 else -100 for e in row for k, y in enumerate(e[1])] + [-100] * pad)
        places.append([k for e in row for k in range(len(e[0]))] + list(range(pad)))
        mask.append([1] * len(tokens) + [0] * pad)
    found = {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels)}
    found.update({"position_ids": torch.tensor(places)} if packing else {"attention_mask": torch.tensor(mask)})
    return found


def train(model, packing):
    rows, losses = case.samples(packing), []
    optimizer = torch.optim.AdamW(model.parameters(), **{**case.OPTIMIZER, "betas": tuple(case.OPTIMIZER["betas"])})
    for step in range(case.STEPS):
        taken = case.batch(rows, step)
        counted = int((inputs_of(taken, packing)["labels"] != -100).sum())
        optimizer.zero_grad()
        total = 0.0
        for at in range(0, case.BATCH, MICRO):
            loss = model(**inputs_of(taken[at:at + MICRO], packing), num_items_in_batch=counted, use_cache=False).loss
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(total)
    return losses


def all_losses():
    torch.set_num_threads(1)
    return {f"{name} {'packed' if packing else 'padded'}": train(make_model(config), packing)
            for name, config in case.CONFIGS.items() for packing in (True, False)}


if __name__ == "__main__":
    said = {"made by": f"make_sft.py; torch {torch.__version__}, transformers {transformers.__version__}, on CPUs"}
    said.update({k: [round(x, 7) for x in v] for k, v in all_losses().items()})
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "sft_losses.json"), "w") as out:
        out.write("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in said.items()) + "\n}\n")
