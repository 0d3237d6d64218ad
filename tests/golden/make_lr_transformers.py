#!/usr/bin/env python3
"""make_lr_transformers.py - the learning rates of transformers' schedules for dsc.lr_schedule: writes lr_transformers.txt beside
this file, in the form of make_lr.py's. Made with transformers 5.23 and torch 2.15 from PyPI. SPDX-License-Identifier: Apache-2.0"""
import json
import os

import torch
from transformers import optimization as o

CASES = [  # lr, members of "dsc", steps, schedule
    (0.001, dict(lr_schedule="constant"), 10, lambda opt, t: o.get_constant_schedule(opt)),
    (0.001, dict(lr_schedule="constant", lr_warmup_steps=5), 20, lambda opt, t: o.get_constant_schedule_with_warmup(opt, 5)),
    (0.001, dict(lr_schedule="linear"), 60, lambda opt, t: o.get_linear_schedule_with_warmup(opt, 0, t)),
    (0.0003, dict(lr_schedule="linear", lr_warmup_steps=7), 60, lambda opt, t: o.get_linear_schedule_with_warmup(opt, 7, t)),
    (0.001, dict(lr_schedule="cosine"), 50, lambda opt, t: o.get_cosine_schedule_with_warmup(opt, 0, t)),
    (0.0006, dict(lr_schedule="cosine", lr_warmup_steps=9), 60, lambda opt, t: o.get_cosine_schedule_with_warmup(opt, 9, t)),
    (0.001, dict(lr_schedule="cosine", lr_warmup_steps=4, lr_min_ratio=0.1), 60,
     lambda opt, t: o.get_cosine_with_min_lr_schedule_with_warmup(opt, 4, t, min_lr_rate=0.1)),
    (0.001, dict(lr_schedule="wsd", lr_warmup_steps=6, lr_decay_steps=20), 70, lambda opt, t: o.get_wsd_schedule(opt, 6, 20, t)),
    (0.002, dict(lr_schedule="wsd", lr_warmup_steps=6, lr_decay_steps=30, lr_min_ratio=0.05), 90,
     lambda opt, t: o.get_wsd_schedule(opt, 6, 30, t, min_lr_ratio=0.05)),
    (0.002, dict(lr_schedule="wsd"), 100, lambda opt, t: o.get_wsd_schedule(opt, 0, 10, t)),
]

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "lr_transformers.txt"), "w") as out:
    for lr, own, steps, make in CASES:
        config = {"train_batch_size": 1, "optimizer": {"type": "AdamW", "params": {"lr": lr}}, "dsc": dict(own, steps=steps)}
        print(json.dumps(config), file=out)
        optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=lr)
        schedule = make(optimizer, steps)
        for step in range(1, steps + 1):
            print(step, repr(float(optimizer.param_groups[0]["lr"])), 0.9, 0.999, file=out)
            optimizer.step()
            schedule.step()
        print(file=out)
