# SPDX-License-Identifier: Apache-2.0
"""torch_llama.py - Llama in PyTorch for torch_worker.py and deepspeed_worker.py."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

# layers, heads, width, inner width, vocabulary
LLAMAS = {"llama-2-7b": (32, 32, 4096, 11008, 32000), "llama-nano": (4, 4, 128, 352, 256)}
THETA, EPS = 10000.0, 1e-5


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
    def __init__(self, layers, heads, width, inner, vocab, recompute=False):
        super().__init__()
        self.vocab, self.head_size, self.recompute = vocab, width // heads, recompute
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
            h = checkpoint(block, h, cos, sin, use_reentrant=False) if self.recompute else block(h, cos, sin)
        return F.cross_entropy(self.head(self.norm(h)).float().view(-1, self.vocab), y.reshape(-1))


def fill(model, device):
    """Weights of a model whose shapes are on the meta device, made on the device: no default initialiser runs."""
    model.to_empty(device=device)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 2:
                p.normal_(std=0.02)
            else:
                p.fill_(0.0 if name.endswith("bias") else 1.0)
    return model


def bf16_llama(size, device, recompute):
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        model = Llama(*LLAMAS[size], recompute)
    torch.set_default_dtype(torch.float32)
    return fill(model, device)
