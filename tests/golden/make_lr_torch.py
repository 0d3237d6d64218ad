#!/usr/bin/env python3
"""make_lr_torch.py - the learning rates of torch's schedules, alone and behind a LinearLR as torchvision's references have them:
writes lr_torch.txt beside this file, in the form of make_lr.py's. Made with torch 2.15 from PyPI. SPDX-License-Identifier: Apache-2.0"""
import json
import os

import torch
from torch.optim import lr_scheduler as s

CASES = [  # lr, type, params of the config, steps, schedule
    (0.1, "StepLR", dict(step_size=7, gamma=0.1), 40, lambda o: s.StepLR(o, 7, 0.1)),
    (0.045, "StepLR", dict(step_size=1, gamma=0.98), 60, lambda o: s.StepLR(o, 1, 0.98)),
    (0.1, "MultiStepLR", dict(milestones=[5, 11, 30]), 40, lambda o: s.MultiStepLR(o, [5, 11, 30])),
    (0.1, "ExponentialLR", dict(gamma=0.9), 40, lambda o: s.ExponentialLR(o, 0.9)),
    (0.5, "CosineAnnealingLR", dict(T_max=30), 31, lambda o: s.CosineAnnealingLR(o, 30)),
    (0.5, "CosineAnnealingLR", dict(T_max=25, eta_min=0.01, linear_warmup=5), 31,
     lambda o: s.SequentialLR(o, [s.LinearLR(o, 0.01, total_iters=5), s.CosineAnnealingLR(o, 25, 0.01)], [5])),
    (0.5, "CosineAnnealingLR", dict(linear_warmup=5, linear_warmup_factor=0.1), 45,
     lambda o: s.SequentialLR(o, [s.LinearLR(o, 0.1, total_iters=5), s.CosineAnnealingLR(o, 40)], [5])),
    (0.2, "StepLR", dict(step_size=10, gamma=0.5, linear_warmup=4), 50,
     lambda o: s.SequentialLR(o, [s.LinearLR(o, 0.01, total_iters=4), s.StepLR(o, 10, 0.5)], [4])),
    (0.2, "MultiStepLR", dict(milestones=[10, 20], gamma=0.2, linear_warmup=3), 40,
     lambda o: s.SequentialLR(o, [s.LinearLR(o, 0.01, total_iters=3), s.MultiStepLR(o, [10, 20], 0.2)], [3])),
]

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "lr_torch.txt"), "w") as out:
    for lr, name, params, steps, make in CASES:
        config = {"train_batch_size": 1, "optimizer": {"type": "AdamW", "params": {"lr": lr}},
                  "scheduler": {"type": name, "params": params}, "dsc": {"steps": steps}}
        print(json.dumps(config), file=out)
        optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=lr)
        schedule = make(optimizer)
        for step in range(1, steps + 1):
            print(step, repr(float(optimizer.param_groups[0]["lr"])), 0.9, 0.999, file=out)
            optimizer.step()
            schedule.step()
        print(file=out)
