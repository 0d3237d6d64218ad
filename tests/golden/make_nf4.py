#!/usr/bin/env python3
"""make_nf4.py - writes nf4.safetensors: NF4 codes and scales of bitsandbytes, for tests/unit/test_nf4.c.

    python3 tests/golden/make_nf4.py            writes the file
    python3 tests/golden/make_nf4.py --check    compares it with what bitsandbytes makes now

Made with bitsandbytes 0.50.2, torch 2.15.0 on a CPU. The numbers that are packed are not stored: x_i below is exact in
fp32. 17000 of them make 266 blocks, the last one short, and two blocks of scales. SPDX-License-Identifier: Apache-2.0
"""
import os
import sys

import bitsandbytes.functional as bnb
import torch
from safetensors.torch import load_file, save_file

COUNT = 17000
MEANS = (1, 7, 8, 33, 64, 150, 511, 512, 704, 1000, 5000, 16383, 17000)


def numbers():
    i = torch.arange(COUNT, dtype=torch.int64)
    return ((i * 7919 % 2003 - 1001).double() * 2.0 ** -(12 + (i // 64) % 5).double()).float()


def packed(dtype):
    x = numbers().to(dtype).reshape(1, COUNT)  # one row: its blocks are the tensor's
    codes, plain = bnb.quantize_4bit(x, quant_type="nf4", compress_statistics=False)
    nested_codes, nested = bnb.quantize_4bit(x, quant_type="nf4", compress_statistics=True)
    assert torch.equal(codes, nested_codes)
    return codes, plain, nested


def tensors():
    codes, plain, nested = packed(torch.float32)
    _, half_plain, half_nested = packed(torch.bfloat16)
    return {
        "codes": codes.reshape(-1),
        "scales": plain.absmax,
        "scale_codes": nested.absmax,
        "tops": nested.state2.absmax,
        "offset": nested.offset.reshape(1),
        "values": nested.code,
        "scale_values": nested.state2.code,
        "unpacked": bnb.dequantize_4bit(codes, nested).reshape(-1)[-1500:].clone(),
        "unpacked_plain": bnb.dequantize_4bit(codes, plain).reshape(-1)[-1500:].clone(),
        "bf16_codes": packed(torch.bfloat16)[0].reshape(-1),
        "unpacked_bf16": bnb.dequantize_4bit(packed(torch.bfloat16)[0], half_nested).reshape(-1),
        "bf16_offset": half_nested.offset.reshape(1),
        "bf16_scales": half_plain.absmax,
        "bf16_scale_codes": half_nested.absmax,
        "bf16_tops": half_nested.state2.absmax,
        "means": torch.stack([(numbers().abs()[:n] + 0.03125).mean() for n in MEANS]),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nf4.safetensors")
    made = {name: tensor.contiguous() for name, tensor in tensors().items()}
    if "--check" not in sys.argv:
        save_file(made, path)
        sys.exit(0)
    stored = load_file(path)
    wrong = [name for name in made if not torch.equal(stored[name], made[name])]
    print("equal" if not wrong else "differ: " + " ".join(wrong))
    sys.exit(1 if wrong else 0)
