#!/usr/bin/env python3
"""make_mxfp4.py - writes mxfp4.safetensors: blocks and scales in MXFP4 and the matrices that transformers makes of them, for
tests/unit/test_mxfp4.c.

    python3 tests/golden/make_mxfp4.py            writes the file
    python3 tests/golden/make_mxfp4.py --check    compares it with what transformers makes now

Made with transformers 5.24.0, torch on a CPU. Two experts of 64 inputs and 64 outputs. All codes have all scales from 0 to 252, which
are finite in bf16. SPDX-License-Identifier: Apache-2.0
"""
import os
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mxfp4.safetensors")


def tensors():
    generator = torch.Generator().manual_seed(4)
    blocks = torch.randint(0, 256, (2, 64, 2, 16), dtype=torch.uint8, generator=generator)
    scales = (torch.arange(256) % 253).to(torch.uint8).reshape(2, 64, 2)
    for i, code in enumerate(range(16)):  # every code beside the least and the largest scales too
        blocks[0, 0, 0, i] = blocks[1, 62, 0, i] = code * 17
    matrices = convert_moe_packed_tensors(blocks.clone(), scales.clone(), dtype=torch.bfloat16)
    assert matrices.shape == (2, 64, 64) and matrices.isfinite().all()
    return {"blocks": blocks, "scales": scales, "matrices": matrices.contiguous()}


if sys.argv[1:] == ["--check"]:
    kept = load_file(PATH)
    sys.exit(0 if all(torch.equal(kept[k].view(torch.uint8), t.view(torch.uint8)) for k, t in tensors().items()) else 1)
save_file(tensors(), PATH)
