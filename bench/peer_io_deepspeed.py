#!/usr/bin/env python3
"""peer_io_deepspeed.py FILE MIB: DeepSpeed's aio_handle reads or writes FILE whenever bench_io.py asks.

Lines "read 1024 32" (direction, KiB of a block, depth) are answered by "seconds cpu_seconds". Its pinned tensor holds
the whole file, as its own ds_io does it. SPDX-License-Identifier: Apache-2.0"""
import os
import sys
import time

OUT = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # output during the start is not an answer

import torch
from deepspeed.ops.op_builder import AsyncIOBuilder

path, size = sys.argv[1], int(sys.argv[2]) << 20
module = AsyncIOBuilder().load()
handles, pinned = {}, None


def handle(kib, depth):
    global pinned
    if (kib, depth) not in handles:
        handles[kib, depth] = module.aio_handle(kib << 10, depth, False, True, 1)
    if pinned is None:
        pinned = handles[kib, depth].new_cpu_locked_tensor(size, torch.empty(0, dtype=torch.uint8))
        pinned.random_()
    return handles[kib, depth]


print("ready", file=OUT, flush=True)
for line in sys.stdin:
    direction, kib, depth = line.split()
    h = handle(int(kib), int(depth))
    start, cpu = time.perf_counter(), time.process_time()
    moved = h.sync_pwrite(pinned, path, 0) if direction == "write" else h.sync_pread(pinned, path, 0)
    print(time.perf_counter() - start, time.process_time() - cpu, file=OUT, flush=True)
    if moved < 0:
        sys.exit(f"{direction} failed")
