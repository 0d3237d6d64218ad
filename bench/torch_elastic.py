#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch_elastic.py STEPS CHECKPOINT LOG

A rank that torchrun starts again after a loss: data-parallel steps over gloo of a model of about the demo's size. Rank 0 saves
each step, and writes a line per step to LOG. A restarted run goes on from CHECKPOINT."""
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    steps, checkpoint, log = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    torch.set_num_threads(1)
    # A store of its own for each start: in torchrun's, ranks find the addresses of processes that are gone.
    dist.init_process_group("gloo", init_method=f"file://{os.path.abspath(log)}.store{os.environ['TORCHELASTIC_RESTART_COUNT']}",
                            rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    torch.manual_seed(1)
    layers = [m for _ in range(4) for m in (torch.nn.Linear(464, 464), torch.nn.GELU())]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = 0
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    for step in range(first + 1, steps + 1):
        begin = time.monotonic()
        loss = (model(torch.randn(96, 464)) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, checkpoint + ".new")
            os.replace(checkpoint + ".new", checkpoint)
            with open(log, "a") as f:
                f.write(json.dumps({"step": step, "step_ms": (time.monotonic() - begin) * 1e3}) + "\n")
    dist.destroy_process_group()


main()
