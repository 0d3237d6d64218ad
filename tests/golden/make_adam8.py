#!/usr/bin/env python3
"""make_adam8.py - writes adam8.safetensors: states as bitsandbytes quantises them, and steps of its AdamW8bit.

Needs torch and bitsandbytes (written with 2.15 and 0.50.2). Codes are those of its operator for every device
(backends/default/ops.py), whose numbers are those of its CUDA kernel: a product with 1 / absmax, then the nearest number
of the map. Its CPU library takes them from a table of 65536 entries instead, which is coarse near 0; for the steps it is
replaced by that operator. `--tables` writes kernels/q8_tables.h. SPDX-License-Identifier: Apache-2.0"""
import os
import sys

import bitsandbytes as bnb
import bitsandbytes.backends.cpu.ops as cpu_ops
import bitsandbytes.functional as F
import numpy as np
import torch

from golden import HERE, fnv, mixed, write_safetensors

BLOCK, BLOCKS, STEPS = 256, 8, 12
GENERAL = torch._C.DispatchKeySet(torch._C.DispatchKey.CompositeExplicitAutograd)


def quantize(x, code):
    return torch.ops.bitsandbytes.quantize_blockwise.default.redispatch(GENERAL, x, code, BLOCK)


def use_general(*_):
    def into(x, code, absmax, out, blocksize):
        q, scale = quantize(x, code)
        out.copy_(q.view_as(out))
        absmax.copy_(scale)

    cpu_ops._quant_blockwise_fp32_direct = into


def uniform(name, count):
    return (mixed(fnv(name), count) >> 8).astype(np.float32) * np.float32(2.0**-24)


def numbers():
    """Of both signs, over nine decades; a block of zeros, one of tiny numbers, and one of the map's own."""
    u = uniform("adam8.x", BLOCK * BLOCKS)
    x = (u - np.float32(0.5)) * np.float32(10.0) ** (-8 * uniform("adam8.decade", BLOCK * BLOCKS)).astype(np.float32)
    x = x.reshape(BLOCKS, BLOCK)
    x[1] = 0
    x[2] *= np.float32(1e-41)
    x[3] = F.create_dynamic_map().numpy()
    x[4, ::2] = 0
    return np.ascontiguousarray(x.reshape(-1))


def steps():
    """Gradients, and weights and states after the last step."""
    use_general()
    count = BLOCK * 17
    p = torch.nn.Parameter(torch.from_numpy(uniform("adam8.p", count) - np.float32(0.5)))
    optimizer = bnb.optim.AdamW8bit([p], lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for step in range(1, STEPS + 1):
        size = np.float32(10.0) ** (-3 * uniform("adam8.size", count)).astype(np.float32)
        p.grad = torch.from_numpy((uniform(f"adam8.g{step}", count) - np.float32(0.5)) * size)
        optimizer.step()
    state = optimizer.state[p]
    return {"p": ("F32", p.detach().numpy()), "size": ("F32", size), "m": ("U8", state["state1"].numpy()),
            "v": ("U8", state["state2"].numpy()), "m_absmax": ("F32", state["absmax1"].numpy()),
            "v_absmax": ("F32", state["absmax2"].numpy())}


def golden():
    x = torch.from_numpy(numbers())
    out = {"x": ("F32", x.numpy())}
    for name, value, signed in (("signed", x, True), ("unsigned", x * x, False)):
        code = F.create_dynamic_map(signed=signed)
        q, absmax = quantize(value, code)
        values = torch.ops.bitsandbytes.dequantize_blockwise(q, absmax, code, BLOCK, torch.float32)
        out |= {f"{name}.codes": ("U8", q.numpy()), f"{name}.absmax": ("F32", absmax.numpy()),
                f"{name}.values": ("F32", values.numpy())}
    write_safetensors(os.path.join(HERE, "adam8.safetensors"), out | steps())


def rows(name, values):
    line, lines = "   ", []
    for value in values:
        text = "-INFINITY," if np.isinf(value) else f"{float(value):.9g}" + ("" if value else ".0") + "f,"
        text = text if "." in text or "e" in text or "I" in text else text.replace("f,", ".0f,")
        if len(line) + 1 + len(text) > 116:
            lines.append(line)
            line = "   "
        line += " " + text
    return f"#define {name} {{ \\\n" + "".join(text + " \\\n" for text in lines) + line + " }\n"


def tables():
    path = os.path.join(HERE, "..", "..", "kernels", "q8_tables.h")
    with open(path) as f:
        text = f.read()
    head, tail = text.split("/* clang-format off */\n")[0], "/* clang-format on */\n\n#endif\n"
    body = ""
    for signed in (True, False):
        code = F.create_dynamic_map(signed=signed).numpy()
        middles = np.concatenate([[-np.inf], (code[:-1] + code[1:]) * np.float32(0.5)]).astype(np.float32)
        body += rows(f"DSC_Q8_{'' if signed else 'UN'}SIGNED_MAP", code)
        body += rows(f"DSC_Q8_{'' if signed else 'UN'}SIGNED_MIDDLES", middles)
    with open(path, "w") as f:
        f.write(head + "/* clang-format off */\n" + body + tail)


tables() if "--tables" in sys.argv else golden()
