#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch_pipeline.py MODE SIZES BATCH SEQUENCE MICRO_BATCHES: one stage of a pipeline in PyTorch: one step per line on stdin.

MODE: pipelining (torch.distributed.pipelining's Schedule1F1B) or plain (1F1B by send and recv). Both by gloo; ranks come from the
environment, and each one is a stage. SIZES: "layers,heads,width,inner,vocabulary" of torch_llama.py's model in fp32. The stages have
equal numbers of layers, the first one the embedding too and the last one the head. Prints "ready", then milliseconds, loss, peak KiB and 0
per step, as step_worker."""
import os
import resource
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

import torch_llama


class Stage(nn.Module):
    """Layers [first, end) of a Llama."""

    def __init__(self, sizes, stage, stages):
        super().__init__()
        layers, heads, width, inner, vocab = sizes
        self.whole = torch_llama.Llama(0, heads, width, inner, vocab)
        first, end = layers * stage // stages, layers * (stage + 1) // stages
        self.blocks = nn.ModuleList([torch_llama.LlamaBlock(width, heads, inner) for _ in range(first, end)])
        self.begins, self.ends = stage == 0, stage == stages - 1
        if not self.begins:
            self.whole.tokens = None
        if not self.ends:
            self.whole.norm = self.whole.head = None
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, x):
        h = self.whole.tokens(x) if self.begins else x
        cos, sin = self.whole.table(h)
        for block in self.blocks:
            h = block(h, cos, sin)
        return self.whole.head(self.whole.norm(h)) if self.ends else h


def loss_of(logits, y):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))


class Plain:
    """1F1B: as many forward passes ahead as stages follow, then one forward and one backward in turns."""

    def __init__(self, module, stage, stages, shape, micro_batches):
        self.module, self.stage, self.stages, self.shape, self.m = module, stage, stages, shape, micro_batches

    def forward(self, k, x, y):
        if not self.module.begins:
            given = torch.empty(self.shape)
            dist.recv(given, self.stage - 1)
            x = given.requires_grad_()
        out = self.module(x)
        if self.module.ends:
            out = loss_of(out, y)
            self.loss += out.item() / self.m
            out = out / self.m
        else:
            self.sends.append((out, dist.isend(out.detach(), self.stage + 1)))
        self.open.append((x, out))

    def backward(self):
        x, out = self.open.pop(0)
        if self.module.ends:
            out.backward()
        else:
            gradient = torch.empty(self.shape)
            dist.recv(gradient, self.stage + 1)
            out.backward(gradient)
        if not self.module.begins:
            self.sends.append((x.grad, dist.isend(x.grad, self.stage - 1)))

    def step(self, xs, ys):
        self.loss, self.open, self.sends = 0.0, [], []
        ahead = min(self.stages - 1 - self.stage, self.m)
        for k in range(ahead):
            self.forward(k, xs[k], ys[k])
        for k in range(ahead, self.m):
            self.forward(k, xs[k], ys[k])
            self.backward()
        for _ in range(ahead):
            self.backward()
        for _, send in self.sends:
            send.wait()
        return self.loss


class Pipelining:
    def __init__(self, module, stage, stages, micro_batches):
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B
        self.module = module
        self.schedule = Schedule1F1B(PipelineStage(module, stage, stages, torch.device("cpu")), micro_batches, loss_fn=loss_of)

    def step(self, xs, ys):
        losses = []
        given = (torch.cat(xs),) if self.module.begins else ()
        self.schedule.step(*given, **({"target": torch.cat(ys), "losses": losses} if self.module.ends else {}))
        return sum(loss.item() for loss in losses) / max(1, len(losses))


def main():
    mode, sizes, batch, sequence, m = sys.argv[1], [int(n) for n in sys.argv[2].split(",")], *map(int, sys.argv[3:6])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    stage, stages = dist.get_rank(), dist.get_world_size()
    module = Stage(sizes, stage, stages)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    xs = list(torch.randint(0, sizes[4], (m, batch, sequence)))
    shape = (batch, sequence, sizes[2])
    run = Plain(module, stage, stages, shape, m) if mode == "plain" else Pipelining(module, stage, stages, m)
    print("ready", file=out, flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = run.step(xs, xs)
        optimizer.step()
        print(f"{(time.perf_counter() - start) * 1e3:.3f} {loss:.6f} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss} 0", file=out,
              flush=True)


if __name__ == "__main__":
    main()
