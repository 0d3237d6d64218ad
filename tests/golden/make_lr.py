#!/usr/bin/env python3
"""make_lr.py - the learning rates that DeepSpeed's own schedules give, as golden files for tests/unit/test_schedule.c.

    DS_ACCELERATOR=cpu python make_lr.py            writes lr_NAME.txt beside this file, one per schedule
    DS_ACCELERATOR=cpu python make_lr.py --engine   checks one case against a whole DeepSpeed engine instead

Made with deepspeed 0.19.8 and torch 2.15 from PyPI. A file is made of cases: one line with the config as JSON, then
lines "STEP LR BETA1 BETA2" of chosen optimizer steps (from 1), then an empty line. Numbers are Python's repr: exact.
SPDX-License-Identifier: Apache-2.0"""
import json
import logging
import os
import sys

import torch

import deepspeed
from deepspeed.runtime import lr_schedules

logging.disable(logging.WARNING)
HERE = os.path.dirname(os.path.abspath(__file__))

CASES = {
    "WarmupLR": [
        (0.001, dict(warmup_min_lr=0, warmup_max_lr=0.001, warmup_num_steps=10), 30),
        (0.001, dict(warmup_min_lr=1e-5, warmup_max_lr=3e-4, warmup_num_steps=10, warmup_type="linear"), 30),
        (0.0005, dict(warmup_max_lr=None, warmup_num_steps=7), 20),
        (0.002, dict(warmup_max_lr=0.002, warmup_num_steps=1), 8),
        (0.002, dict(warmup_max_lr=0.002, warmup_num_steps=2, warmup_type="linear"), 8),
        (0.002, dict(warmup_max_lr=0.002), 1010),
        (0.002, dict(warmup_min_lr=0.01, warmup_max_lr=0.001, warmup_num_steps=5), 12),
        (0.003, dict(warmup_max_lr=0.002, warmup_num_steps=6, last_batch_iteration=3), 12),
        (0.003, dict(warmup_max_lr=0.002, warmup_num_steps=6, last_batch_iteration=0), 12),
        (0.003, dict(warmup_min_lr=[0.0001], warmup_max_lr=[0.002], warmup_num_steps=6), 12),
    ],
    "WarmupDecayLR": [
        (0.001, dict(total_num_steps=40, warmup_min_lr=0, warmup_max_lr=0.001, warmup_num_steps=10), 60),
        (0.001, dict(total_num_steps=40, warmup_min_lr=1e-6, warmup_max_lr=6e-4, warmup_num_steps=8, warmup_type="linear"), 60),
        (0.001, dict(total_num_steps=5, warmup_max_lr=0.001, warmup_num_steps=10), 30),
        (0.001, dict(total_num_steps=10, warmup_max_lr=0.001, warmup_num_steps=10, warmup_type="linear"), 30),
        (0.001, dict(total_num_steps=2500), 2600),
        (0.004, dict(total_num_steps=30, warmup_max_lr=0.001, warmup_num_steps=4, last_batch_iteration=10), 40),
    ],
    "WarmupCosineLR": [
        (0.001, dict(total_num_steps=40, warmup_num_steps=10), 60),
        (0.0006, dict(total_num_steps=50, warmup_num_steps=5, warmup_type="linear", warmup_min_ratio=0.1, cos_min_ratio=0.05), 70),
        (0.001, dict(total_num_steps=3, warmup_num_steps=10), 30),
        (0.001, dict(total_num_steps=1200), 1300),
        (0.001, dict(total_num_steps=20, warmup_num_steps=1, cos_min_ratio=0.0), 30),
        (0.001, dict(total_num_steps=30, warmup_num_steps=6, last_batch_iteration=8), 40),
    ],
    "OneCycle": [
        (0.001, dict(cycle_min_lr=0.0001, cycle_max_lr=0.001, cycle_first_step_size=10), 40),
        (0.001, dict(cycle_min_lr=0.0001, cycle_max_lr=0.001, cycle_first_step_size=10, cycle_second_step_size=5), 40),
        (0.001, dict(cycle_min_lr=0.0001, cycle_max_lr=0.001, cycle_first_step_size=7, cycle_second_step_size=13,
                     decay_step_size=4, decay_lr_rate=0.5, decay_mom_rate=0.001), 60),
        (0.001, dict(cycle_min_lr=0.0001, cycle_max_lr=0.001, cycle_first_step_size=12, cycle_second_step_size=8,
                     cycle_first_stair_count=4, cycle_second_stair_count=3), 40),
        (0.001, dict(cycle_min_lr=0.0001, cycle_max_lr=0.001, cycle_first_step_size=9, cycle_first_stair_count=5), 40),
        (0.001, dict(cycle_min_lr=0.0001, cycle_max_lr=0.001, cycle_first_step_size=10, cycle_momentum=False), 30),
        (0.001, dict(cycle_min_lr=0.0001, cycle_max_lr=0.001, cycle_first_step_size=6, cycle_min_mom=0.7,
                     cycle_max_mom=0.95, decay_step_size=0, decay_lr_rate=0.1), 30),
        (0.001, dict(cycle_min_lr=0.0001, cycle_max_lr=0.001, cycle_first_step_size=6, cycle_second_step_size=0), 20),
        (0.005, dict(cycle_min_lr=0.0001, cycle_max_lr=0.001, cycle_first_step_size=6, last_batch_iteration=4), 20),
        (0.001, dict(cycle_min_lr=0.0001, cycle_max_lr=0.001), 4100),
    ],
    "LRRangeTest": [
        (0.001, dict(lr_range_test_min_lr=0.0001, lr_range_test_step_size=5, lr_range_test_step_rate=2.0), 30),
        (0.001, dict(lr_range_test_min_lr=0.0001, lr_range_test_step_size=5, lr_range_test_step_rate=2.0,
                     lr_range_test_staircase=True), 30),
        (0.001, dict(), 2100),
        (0.001, dict(lr_range_test_step_size=3, last_batch_iteration=7), 20),
    ],
}


def config_of(name, lr, params):
    return {"train_batch_size": 1, "optimizer": {"type": "AdamW", "params": {"lr": lr}},
            "scheduler": {"type": name, "params": params}}


def rates(name, lr, params, steps):
    """(lr, beta1, beta2) as optimizer steps 1..steps find them."""
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    schedule = getattr(lr_schedules, name)(optimizer, **params)
    found = []
    for _ in range(steps):
        group = optimizer.param_groups[0]
        found.append((float(group["lr"]), *map(float, group["betas"])))
        optimizer.step()
        schedule.step()
    return found


def shown(step, steps):
    return step <= 70 or step > steps - 15 or step % 97 == 0 or 990 <= step <= 1012 or 1995 <= step <= 2005


def write_all():
    for name, cases in CASES.items():
        with open(os.path.join(HERE, f"lr_{name}.txt"), "w") as out:
            for lr, params, steps in cases:
                out.write(json.dumps(config_of(name, lr, params)) + "\n")
                for step, values in enumerate(rates(name, lr, params, steps), 1):
                    if shown(step, steps):
                        out.write(f"{step} " + " ".join(map(repr, values)) + "\n")
                out.write("\n")


def check_engine():
    """A whole engine calls its schedule after each optimizer step, and no earlier."""
    for name, cases in CASES.items():
        lr, params, _ = cases[0]
        config = config_of(name, lr, params)
        config["optimizer"]["params"]["torch_adam"] = True
        model = torch.nn.Linear(4, 1)
        engine, optimizer, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
        found = []
        for _ in range(15):
            group = optimizer.param_groups[0]
            found.append((float(group["lr"]), *map(float, group["betas"])))
            engine.backward(engine(torch.ones(1, 4)).sum())
            engine.step()
        assert found == rates(name, lr, params, 15), (name, found)
        print(name, "as the engine")


if __name__ == "__main__":
    check_engine() if "--engine" in sys.argv else write_all()
