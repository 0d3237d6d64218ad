#!/usr/bin/env python3
"""make_batch.py - results of DeepSpeed's own code for every small batch triad, for tests/unit/test_config.c.

    DS_ACCELERATOR=cpu python make_batch.py > batch.txt

Made with deepspeed 0.19.8 from PyPI. A line is "T M G W -> T M G" or "T M G W -> error"; "-" is a key that is not given.
SPDX-License-Identifier: Apache-2.0"""
import itertools

from deepspeed.runtime.config import DeepSpeedConfig

T = [None, 1, 2, 3, 4, 6, 7, 8, 10, 12, 16, 24, 64]
M = [None, 1, 2, 3, 4, 8]
G = [None, 1, 2, 3, 4, 8]
W = [1, 2, 3, 4, 5, 8, 16]


def verdict(t, m, g, w):
    config = DeepSpeedConfig.__new__(DeepSpeedConfig)  # the two methods alone: no communicator, no other keys
    config.train_batch_size, config.train_micro_batch_size_per_gpu, config.gradient_accumulation_steps = t, m, g
    config.world_size = w
    try:
        config._configure_train_batch_size()
    except AssertionError:
        return "error"
    return f"{config.train_batch_size} {config.train_micro_batch_size_per_gpu} {config.gradient_accumulation_steps}"


for t, m, g, w in itertools.product(T, M, G, W):
    given = " ".join("-" if value is None else str(value) for value in (t, m, g))
    print(given, w, "->", verdict(t, m, g, w))
