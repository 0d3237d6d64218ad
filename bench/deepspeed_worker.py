#!/usr/bin/env python3
"""deepspeed_worker.py SIZE BATCH SEQUENCE: DeepSpeed's half of a bench on a GPU: ZeRO stage 2, optimizer on the host, one step per line on stdin.

SIZE: llama-2-7b, tiny (Llama), or one of torch_worker.py's. Prints "ready", then milliseconds, loss, peak KiB of the process and peak bytes of
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
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import torch_worker  # noqa: E402

# layers, heads, width, inner width, vocabulary
LLAMAS = {"llama-2-7b": (32, 32, 4096, 11008, 32000), "tiny": (4, 4, 128, 344, 1000)}
THETA, EPS = 10000.0, 1e-5
BUCKET = 200000000


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, EPS)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class LlamaBlock(nn.Module):
    def __init__(self, width, heads, inner):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up, self.down = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False), nn.Linear(inner, width, bias=False)

    def forward(self, x, cos, sin):
        b, t, w = x.shape
        h = self.norm1(x)
        q, k, v = (f(h).view(b, t, self.heads, w // self.heads).transpose(1, 2) for f in (self.q, self.k, self.v))
        a = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, w))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self, layers, heads, width, inner, vocab):
        super().__init__()
        self.vocab, self.head_size = vocab, width // heads
        self.tokens = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList([LlamaBlock(width, heads, inner) for _ in range(layers)])
        self.norm, self.head = RMSNorm(width), nn.Linear(width, vocab, bias=False)
        self.tables = {}

    def table(self, h):
        t = h.shape[1]
        if t not in self.tables:
            frequency = THETA ** (-torch.arange(0, self.head_size, 2, device=h.device, dtype=torch.float32) / self.head_size)
            angle = torch.outer(torch.arange(t, device=h.device, dtype=torch.float32), frequency)
            angle = torch.cat((angle, angle), -1)
            self.tables[t] = angle.cos().to(h.dtype), angle.sin().to(h.dtype)
        return self.tables[t]

    def forward(self, x, y):
        h = self.tokens(x)
        cos, sin = self.table(h)
        for block in self.blocks:
            h = checkpoint(block, h, cos, sin, use_reentrant=False)
        return F.cross_entropy(self.head(self.norm(h)).float().view(-1, self.vocab), y.reshape(-1))


def build(size, device):
    """Weights made on the device in bf16: shapes on meta first, so that no default initialiser runs."""
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        if size in LLAMAS:
            model, vocab = Llama(*LLAMAS[size]), LLAMAS[size][4]
        else:
            model, vocab = torch_worker.Model(*torch_worker.SIZES[size]), torch_worker.VOCAB
    torch.set_default_dtype(torch.float32)
    model.to_empty(device=device)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 2:
                p.normal_(std=0.02)
            else:
                p.fill_(0.0 if name.endswith("bias") else 1.0)
    return model, vocab


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


def main():
    size, batch, seq = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(0)
    import deepspeed
    from deepspeed.accelerator import get_accelerator
    cuda = get_accelerator().device_name() == "cuda"
    device = get_accelerator().current_device_name() if cuda else "cpu"
    deepspeed.init_distributed(dist_backend="nccl" if cuda else "gloo", auto_mpi_discovery=False, verbose=False)
    model, vocab = build(size, device)
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}, "overlap_comm": True, "contiguous_gradients": True,
            "reduce_bucket_size": BUCKET, "allgather_bucket_size": BUCKET}
    engine, optimizer, _, _ = deepspeed.initialize(model=model, model_parameters=[{"params": g} for g in power_groups(model.parameters())], config={
        "train_micro_batch_size_per_gpu": batch, "gradient_clipping": 0.0, "steps_per_print": 1 << 30, "bf16": {"enabled": True},
        "zero_optimization": zero, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.0}}})
    inner = type(getattr(optimizer, "optimizer", optimizer)).__name__
    if inner != "DeepSpeedCPUAdam":
        raise SystemExit(f"the optimizer is {inner}, not DeepSpeedCPUAdam")
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
