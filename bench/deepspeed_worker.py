#!/usr/bin/env python3
"""deepspeed_worker.py SIZE BATCH SEQUENCE [gpu]: DeepSpeed's half of a bench on a GPU: ZeRO stage 2, one step per line on stdin.

The optimizer is on the host, or with "gpu" PyTorch's fused AdamW on the GPU. SIZE: llama-2-7b, llama-nano, or one of torch_worker.py's. Prints "ready", then milliseconds, loss, peak KiB of the process and peak bytes of
the GPU per step, as torch_worker.py does; the last line of stderr says what went wrong. Eager PyTorch, with activation checkpointing of every
Llama block. DS_ACCELERATOR=cpu tries it out without a GPU.
SPDX-License-Identifier: Apache-2.0"""
import os
import sys
import time

for key, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20000 + os.getpid() % 20000),
                   "DS_ACCELERATOR": "cuda", "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo", "MAX_JOBS": "8",
                   "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))}.items():
    os.environ.setdefault(key, value)
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", os.defpath)  # the ninja beside this python
if "CUDA_HOME" not in os.environ and os.path.isdir("/usr/local/cuda"):
    os.environ["CUDA_HOME"] = "/usr/local/cuda"
OUT = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # output of libraries must not reach the driver
with open("/proc/self/oom_score_adj", "w") as adj:
    adj.write("1000")  # should memory run out, this process goes and nothing else

import math  # noqa: E402
import resource  # noqa: E402

import torch  # noqa: E402

import torch_llama  # noqa: E402
import torch_worker  # noqa: E402

BUCKET = 200000000


def build(size, device):
    """Model in bf16 and number of its tokens."""
    if size in torch_llama.LLAMAS:
        return torch_llama.bf16_llama(size, device, True), torch_llama.LLAMAS[size][4]
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        model = torch_worker.Model(*torch_worker.SIZES[size])
    torch.set_default_dtype(torch.float32)
    return torch_llama.fill(model, device), torch_worker.VOCAB


def power_groups(params):
    """Groups whose element counts are just under powers of two: torch's pinned allocator rounds each block up to one, and DeepSpeed makes a
    block of each group."""
    rest, groups = list(params), []
    while rest:
        total = sum(p.numel() for p in rest)
        room = 1 << (total.bit_length() - 1) if total >= 1 << 26 else total
        group, later = [], []
        for p in rest:
            if p.numel() <= room:
                group.append(p)
                room -= p.numel()
            else:
                later.append(p)
        if not group:
            group, later = later, []
        groups.append(group)
        rest = later
    return groups


def host_engine(model, config, zero):
    import deepspeed
    zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.0}}
    engine, optimizer, _, _ = deepspeed.initialize(model=model, model_parameters=[{"params": g} for g in power_groups(model.parameters())], config=config)
    inner = type(getattr(optimizer, "optimizer", optimizer)).__name__
    if inner != "DeepSpeedCPUAdam":
        raise SystemExit(f"the optimizer is {inner}, not DeepSpeedCPUAdam")
    return engine


def main():
    size, batch, seq, on_gpu = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] == ["gpu"]
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(0)
    import deepspeed
    from deepspeed.accelerator import get_accelerator
    cuda = get_accelerator().device_name() == "cuda"
    device = get_accelerator().current_device_name() if cuda else "cpu"
    deepspeed.init_distributed(dist_backend="nccl" if cuda else "gloo", auto_mpi_discovery=False, verbose=False)
    model, vocab = build(size, device)
    zero = {"stage": 2, "overlap_comm": True, "contiguous_gradients": True, "reduce_bucket_size": BUCKET, "allgather_bucket_size": BUCKET}
    config = {"train_micro_batch_size_per_gpu": batch, "gradient_clipping": 0.0, "steps_per_print": 1 << 30, "bf16": {"enabled": True},
              "zero_optimization": zero}
    if on_gpu:
        engine, _, _, _ = deepspeed.initialize(model=model, config=config, optimizer=torch.optim.AdamW(
            model.parameters(), lr=1e-4, weight_decay=0.0, fused=cuda))
    else:
        engine = host_engine(model, config, zero)
    x, y = torch.randint(0, vocab, (batch, seq), device=device), torch.randint(0, vocab, (batch, seq), device=device)
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    print("ready", file=OUT, flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        loss = engine(x, y)
        engine.backward(loss)
        engine.step()
        value = loss.item()
        if cuda:
            torch.cuda.synchronize()
        assert math.isfinite(value), f"loss {value}"
        print(f"{(time.perf_counter() - start) * 1e3:.3f} {value:.6f} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss} "
              f"{torch.cuda.max_memory_allocated() if cuda else 0}", file=OUT, flush=True)
    OUT.flush()
    os._exit(0)  # no slow or noisy tear-down


try:
    main()
except BaseException as error:  # later output of libraries would hide it
    print(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}", file=sys.stderr, flush=True)
    os._exit(1)
