#!/usr/bin/env python3
"""make_loss_scale.py - the scales that DeepSpeed's own scaler goes through, for tests/unit/test_loss_scale.c.

    DS_ACCELERATOR=cpu python make_loss_scale.py            writes loss_scale.txt beside this file

Made with deepspeed 0.19.8 and torch 2.15 from PyPI. A case is one line with the "fp16" section as JSON, then lines
"OVERFLOW SCALE" of its steps: whether the step's gradients overflowed, and the scale of the step. "end" instead of a
scale's line: the scaler raised an error at its lowest scale. Then an empty line. SPDX-License-Identifier: Apache-2.0"""
import json
import logging
import os
import random

import torch

import deepspeed.comm as dist
from deepspeed.runtime.fp16.loss_scaler import CreateLossScaler

logging.disable(logging.WARNING)
HERE = os.path.dirname(os.path.abspath(__file__))
dist.get_rank = lambda group=None: 0


def script(seed, steps, chance):
    rng = random.Random(seed)
    return [int(rng.random() < chance) for _ in range(steps)]


CASES = [
    (dict(), [1, 1, 1, 1, 0, 0, 1, 0, 1, 1]),
    (dict(initial_scale_power=32, loss_scale_window=3, hysteresis=1), script(1, 50, 0.2)),
    (dict(loss_scale_window=4, hysteresis=2), script(2, 60, 0.25)),
    (dict(loss_scale_window=5, hysteresis=3, consecutive_hysteresis=True), script(3, 60, 0.4)),
    (dict(loss_scale_window=2, hysteresis=3), script(4, 60, 0.3)),
    (dict(initial_scale_power=3, loss_scale_window=1, hysteresis=1, min_loss_scale=2), script(5, 40, 0.55)),
    (dict(initial_scale_power=2, hysteresis=1), [1, 1, 1, 1]),
    (dict(initial_scale_power=4, hysteresis=2, min_loss_scale=8), [1, 1, 1, 1, 0]),
    (dict(loss_scale=128), [0, 1, 1, 0]),
    (dict(initial_scale_power=8, loss_scale_window=1000), [0] * 40 + [1, 1] + [0] * 10),
    (dict(initial_scale_power=0, loss_scale_window=7, hysteresis=0), script(6, 50, 0.1)),
]

with open(os.path.join(HERE, "loss_scale.txt"), "w") as out:
    for fp16, overflows in CASES:
        scaler = CreateLossScaler(torch.half, fp16.get("loss_scale", 0), fp16.get("loss_scale", 0) == 0, dict(
            init_scale=2.0**fp16.get("initial_scale_power", 16), scale_window=fp16.get("loss_scale_window", 1000),
            min_scale=fp16.get("min_loss_scale", 1), delayed_shift=fp16.get("hysteresis", 2),
            consecutive_hysteresis=fp16.get("consecutive_hysteresis", False)))
        print(json.dumps({"fp16": dict(enabled=True, **fp16)}), file=out)
        for overflow in overflows:
            print(overflow, repr(float(scaler.loss_scale)), file=out)
            try:
                scaler.update_scale(bool(overflow))
            except Exception:
                print("end", file=out)
                break
        print(file=out)
