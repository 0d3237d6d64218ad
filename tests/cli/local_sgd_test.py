#!/usr/bin/env python3
"""local_sgd_test.py BIN: local SGD and DiLoCo of dsc.local_sgd beside a script of PyTorch on gloo.

A tiny GPT-2 is trained by groups of ranks. In PyTorch each group is a process with AdamW and clipping of its own. Every few steps the
processes average the differences to the last common weights, which torch.optim.SGD takes as gradients. Both make the same products in
another order, in fp32: losses of 20 steps may differ by 1e-5. A resumed run must have the bits of the one that went on.
SPDX-License-Identifier: Apache-2.0"""
import array
import json
import os
import random
import sys
import tempfile

from hf_runs import BATCH, BIN, SEQ, STEPS, VOCAB, make_folder, run
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import transformers

CASES = [  # ranks, ranks of a group, updates between exchanges, outer rate, momentum, Nesterov
    (2, 1, 5, 1.0, 0.0, False),  # local SGD: the mean of the weights
    (2, 1, 5, 0.7, 0.9, True),  # DiLoCo
    (4, 2, 3, 0.7, 0.9, True),
    (4, 1, 1, 0.5, 0.5, False),
]


def group_losses(rank, size, store, hf, tokens, case, out):
    ranks, group, every, rate, momentum, nesterov = case
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(hf, dtype=torch.float32).eval()
    params = list(model.parameters())
    common = [p.detach().clone() for p in params]
    inner = torch.optim.AdamW(params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
    outer = torch.optim.SGD(common, lr=rate, momentum=momentum, nesterov=nesterov)
    data, losses, each = torch.tensor(tokens), [], BATCH // ranks
    for step in range(STEPS):
        numbers = [step * BATCH + r * each + k for r in range(rank * group, (rank + 1) * group) for k in range(each)]
        at = [n % ((len(tokens) - 1) // SEQ) * SEQ for n in numbers]
        x, y = (torch.stack([data[i + shift:i + shift + SEQ] for i in at]) for shift in (0, 1))
        inner.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(input_ids=x).logits.flatten(0, 1), y.view(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        inner.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / size)
        if (step + 1) % every == 0:
            for c, p in zip(common, params):
                c.grad = c - p.detach()
                dist.all_reduce(c.grad)
                c.grad /= size
            outer.step()
            for c, p in zip(common, params):
                p.data.copy_(c)
    if rank == 0:
        json.dump(losses, open(out, "w"))
    dist.barrier()
    dist.destroy_process_group()


def theirs(hf, tokens, case, folder):
    out, size = os.path.join(folder, "theirs.json"), case[0] // case[1]
    store = os.path.join(folder, "store")
    if os.path.exists(store):
        os.remove(store)
    mp.start_processes(group_losses, (size, store, hf, tokens, case, out), nprocs=size, start_method="fork")
    return json.load(open(out))


def ours(hf, data, case, folder, name, *flags):
    ranks, group, every, rate, momentum, nesterov = case
    config, log = os.path.join(folder, name + ".json"), os.path.join(folder, name + ".jsonl")
    local = {"inner_steps": every, "outer_lr": rate, "outer_momentum": momentum, "nesterov": nesterov}
    json.dump({"train_batch_size": BATCH, "train_micro_batch_size_per_gpu": BATCH // ranks, "gradient_clipping": 1.0,
               "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.1}},
               "zero_optimization": {"stage": 3, "mics_shard_size": group}, "dsc": {"threads": 1, "local_sgd": local}}, open(config, "w"))
    run(f"{BIN}/dsc-launch", f"--num_gpus={ranks}", "train", "--config", config, "--model", hf, "--data", data, "--seq-len", str(SEQ),
        "--no-shuffle", "--steps", str(STEPS), "--log", log, *flags)
    return [json.loads(line)["loss"] for line in open(log)]


def main():
    tests = []

    def check(name, good, detail=""):
        tests.append(good)
        print(f"{'ok' if good else 'not ok'} {len(tests)} - {name}" + (f" # {detail}" if detail else ""), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        hf, data = os.path.join(folder, "hf"), os.path.join(folder, "data.bin")
        config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, vocab_size=VOCAB, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
        make_folder(config, torch.float32, "10GB", hf)
        drawn = random.Random(5)
        tokens = [drawn.randrange(VOCAB) for _ in range(SEQ * 60 + 1)]
        array.array("H", tokens).tofile(open(data, "wb"))
        for case in CASES:
            mine, expected = ours(hf, data, case, folder, "ours"), theirs(hf, tokens, case, folder)
            far = max(abs(a - b) for a, b in zip(mine, expected))
            check(f"{case[0]} ranks in groups of {case[1]}, every {case[2]} updates, rate {case[3]}, momentum {case[4]}: PyTorch's losses",
                  len(mine) == STEPS and far < 1e-5, f"{far:.2g}")
        save = os.path.join(folder, "save")
        through = ours(hf, data, CASES[1], folder, "through", "--save", save, "--save-every", "12")
        resumed = ours(hf, data, CASES[1], folder, "resumed", "--load", os.path.join(save, "step-12"))
        check("a resumed run has the losses of the one that went on", through[12:] == resumed)
    print(f"1..{len(tests)}")
    return 0 if all(tests) else 1


if __name__ == "__main__":
    sys.exit(main())
