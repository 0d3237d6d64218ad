#!/usr/bin/env python3
"""peer_comm_torch.py DIR NAME gloo|deepspeed: the commands of bench_comm.c answered by torch.distributed with gloo, or
by DeepSpeed's shared-memory all-reduce (inference_all_reduce). RANK and the rest come from the environment.

SPDX-License-Identifier: Apache-2.0"""
import os
import sys
import time

import torch
import torch.distributed as dist

folder, name, kind = sys.argv[1:4]
torch.set_num_threads(1)
if kind == "deepspeed":
    import deepspeed
    deepspeed.init_distributed(verbose=False)
else:
    dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
most = (64 << 20) // 4
whole, other = torch.zeros(most), torch.zeros(most)
piece = torch.zeros(most // size)


def once(op, count):
    part = count // size
    if op == "all_gather":
        dist.all_gather_into_tensor(other[:count], piece[:part])
    elif op == "reduce_scatter":
        dist.reduce_scatter_tensor(piece[:part], whole[:count])
    elif kind == "deepspeed":
        deepspeed.comm.inference_all_reduce(whole[:count])
    else:
        dist.all_reduce(whole[:count])


with open(f"{folder}/{name}.{rank}") as commands:
    for line in commands:
        op, size_bytes, repeats = line.split()
        times = []
        for i in range(-1, int(repeats)):
            dist.barrier()
            start = time.perf_counter()
            once(op, int(size_bytes) // 4)
            took = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
            dist.all_reduce(took, op=dist.ReduceOp.MAX)
            if i >= 0:
                times.append(took.item())
        if rank == 0:
            print(" ".join(f"{t:.9f}" for t in times), flush=True)
dist.destroy_process_group()
