#!/usr/bin/env python3
"""images_test.py PROGRAM FOLDER - decoding, resizing, parts and colours of pictures compared with Pillow and torchvision. PROGRAM is
image_cases.c. TAP. SPDX-License-Identifier: Apache-2.0"""
import math
import os
import random
import struct
import subprocess
import sys

import numpy as np
import torch
from PIL import Image, ImageOps
from torchvision import transforms as T
from torchvision.transforms import functional as F

program, folder = sys.argv[1], sys.argv[2]
number, failed = 0, 0


def report(name, good, why=""):
    global number, failed
    number += 1
    print(f"{'ok' if good else 'not ok'} {number} - {name}")
    if not good:
        failed = 1
        print(f"# {why}")


def run(*words):
    done = subprocess.run([program, *map(str, words)], capture_output=True)
    if done.returncode != 0:
        return done.stderr.decode()
    width, height = struct.unpack("<2i", done.stdout[:8])
    return np.frombuffer(done.stdout[8:], np.uint8).reshape(height, width, 3).astype(int)


def distance(ours, theirs):
    theirs = np.asarray(theirs).astype(int)
    return f"{ours if isinstance(ours, str) else (ours.shape, theirs.shape)}" if isinstance(ours, str) or ours.shape != theirs.shape \
        else int(np.abs(ours - theirs).max())


def photo(width, height, seed=0):  # smooth colours with edges
    y, x = np.mgrid[0:height, 0:width]
    r = np.random.default_rng(seed)
    planes = [127 + 90 * np.sin(x / r.uniform(5, 40) + y / r.uniform(5, 40) + c) + 30 * ((x // 16 + y // 16) % 2) for c in range(3)]
    return Image.fromarray(np.clip(np.stack(planes, -1) + r.normal(0, 4, (height, width, 3)), 0, 255).astype(np.uint8))


def path(name):
    return os.path.join(folder, name)


base = photo(301, 203)
exif = Image.Exif()
exif[0x0112] = 6
alpha = base.convert("RGBA")
alpha.putalpha(Image.linear_gradient("L").resize(base.size))
palette = base.quantize(200)
gray16 = (np.arange(301 * 203, dtype=np.uint32).reshape(203, 301) * 7 % 65536).astype(np.uint16)
written = {
    "plain.jpg": (base, {"quality": 90}), "444.jpg": (base, {"quality": 95, "subsampling": 0}),
    "progressive.jpg": (base, {"progressive": True}), "gray.jpg": (base.convert("L"), {}), "cmyk.jpg": (base.convert("CMYK"), {}),
    "turned.jpg": (base, {"exif": exif}), "tiny.jpg": (base.crop((0, 0, 1, 1)), {}),
    "plain.png": (base, {}), "gray.png": (base.convert("L"), {}), "one.png": (base.convert("1"), {}), "palette.png": (palette, {}),
    "clear_palette.png": (palette, {"transparency": 3}), "alpha.png": (alpha, {}), "gray_alpha.png": (base.convert("LA"), {}),
    "turned.png": (base, {"exif": exif}),
    "plain.webp": (base, {"quality": 80}), "lossless.webp": (base, {"lossless": True}), "alpha.webp": (alpha, {}),
    "turned.webp": (base, {"exif": exif}),
}
for name, (image, options) in written.items():
    image.save(path(name), **options)
    theirs = ImageOps.exif_transpose(Image.open(path(name))).convert("RGB")
    d = distance(run("decode", path(name), 8), theirs)
    report(f"{name} has the bytes of Pillow's convert(\"RGB\")", d == 0, f"distance {d}")
Image.fromarray(gray16).save(path("gray16.png"))
d = distance(run("decode", path("gray16.png"), 8), np.repeat((gray16 >> 8)[..., None], 3, -1))
report("16 bits become their upper 8", d == 0, f"distance {d}")
for orientation in range(1, 9):
    exif[0x0112] = orientation
    base.save(path("o.jpg"), exif=exif)
    d = distance(run("decode", path("o.jpg"), 8), ImageOps.exif_transpose(Image.open(path("o.jpg"))))
    report(f"orientation {orientation}", d == 0, f"distance {d}")
for eighths in 1, 2, 4:
    draft = Image.open(path("444.jpg"))
    draft.draft("RGB", (301 * eighths // 8, 203 * eighths // 8))
    ours = run("decode", path("444.jpg"), eighths)
    d = distance(ours, draft.convert("RGB"))
    report(f"DCT scaling to {eighths}/8 is that of libjpeg", d == 0, f"distance {d} {draft.size}")

# resizing: Pillow sums along x or y first, as is cheaper, and rounds between
worst = 0
for size in (301, 203), (640, 111), (97, 300):
    photo(*size, seed=3).save(path("r.png"))
    image = Image.open(path("r.png"))
    for filter, mode in (0, T.InterpolationMode.BILINEAR), (1, T.InterpolationMode.BICUBIC):
        for side, crop in (64, 56), (256, 224), (97, 97):
            theirs = F.center_crop(F.resize(image, side, mode), [crop, crop])
            d = distance(run("transform", path("r.png"), 0, 0, 0, 0, 0, 0, side, crop, crop, filter, 0), theirs)
            worst = max(worst, d if isinstance(d, int) else 999)
report("shorter side and centre are those of torchvision on Pillow images, within 1 level", worst <= 1, f"distance {worst}")

# parts: the distribution of get_params
torch.manual_seed(0)
width, height, count = 500, 375, 10000
text = subprocess.run([program, "boxes", str(width), str(height), str(count)], capture_output=True, check=True).stdout
ours = np.array([list(map(int, line.split())) for line in text.splitlines()])
image = Image.new("L", (width, height))
theirs = np.array([T.RandomResizedCrop.get_params(image, [0.08, 1], [3 / 4, 4 / 3]) for _ in range(count)])
for column, name in enumerate(("y", "x", "height", "width")):
    a, b = np.sort(ours[:, column]), np.sort(theirs[:, column])
    points = np.arange(0, max(width, height) + 1)
    gap = np.abs(np.searchsorted(a, points, "right") - np.searchsorted(b, points, "right")).max() / count
    report(f"the {name} of random parts is distributed as torchvision's (Kolmogorov and Smirnov)", gap < 1.95 * math.sqrt(2 / count), f"{gap}")
report("half of the pictures are mirrored", abs(ours[:, 4].mean() - 0.5) < 0.02)
inside = (ours[:, 0] + ours[:, 2] <= height) & (ours[:, 1] + ours[:, 3] <= width) & (ours[:, :2].min(1) >= 0) & (ours[:, 2:4].min(1) >= 1)
report("every part lies in the picture", bool(inside.all()))
for sample in range(3):
    y, x, h, w = map(int, ours[sample, :4])
    photo(width, height, seed=5).save(path("crop.png"))
    theirs = F.resized_crop(Image.open(path("crop.png")), y, x, h, w, [224, 224])
    d = distance(run("transform", path("crop.png"), sample, 1, 0, 0, 0, 0, 0, 224, 224, 0, 0), theirs)
    report(f"random part {sample} has the pixels of resized_crop within 1 level", d in (0, 1), f"distance {d}")

# colours: one kind at a time, whose factor follows from the mean, and all at once in range
photo(64, 48, seed=7).save(path("c.png"))
image = Image.open(path("c.png"))
changes = (("brightness", F.adjust_brightness), ("contrast", F.adjust_contrast), ("saturation", F.adjust_saturation), ("hue", F.adjust_hue))
for kind, (name, change) in enumerate(changes):
    numbers = [0, 0, 0, 0]
    numbers[kind] = 0.4
    good, factors = True, []
    low, high = (-0.4, 0.4) if name == "hue" else (0.6, 1.4)
    for sample in range(4):
        ours = run("transform", path("c.png"), sample, 0, *numbers, 0, 64, 48, 0, 0)
        steps = np.linspace(low, high, 401)
        gaps = [int(np.abs(ours - np.asarray(change(image, f)).astype(int)).max()) for f in steps]
        good = good and min(gaps) <= 1 + (name == "hue")
        factors.append(steps[int(np.argmin(gaps))])
    report(f"{name} is that of adjust_{name} with some factor", good and np.std(factors) > 0.02, f"{min(gaps)} {factors}")
# RandAugment: each sample is one operation of torchvision's list at level 9, within 1 level
augment, seen, worst = T.RandAugment(num_ops=1, magnitude=9), {}, 0
space = augment._augmentation_space(31, (48, 64))
candidates = {}
for name, (sizes, signed) in space.items():
    for sign in (1, -1) if signed else (1,):
        size = sign * float(sizes[9]) if sizes.ndim > 0 else 0.0
        changed = T.autoaugment._apply_op(image, name, size, T.InterpolationMode.NEAREST, None)
        candidates[name, sign] = np.asarray(changed).astype(int)
for sample in range(120):
    ours = run("transform", path("c.png"), sample, 0, 0, 0, 0, 0, 0, 64, 48, 0, 1)
    gaps = {key: ((np.abs(ours - theirs) > 1).mean(), (ours != theirs).mean()) for key, theirs in candidates.items()}
    key = min(gaps, key=gaps.get)
    seen[key] = seen.get(key, 0) + 1
    worst = max(worst, gaps[key][0])
missing = {name for name in space} - {name for name, _ in seen}
report("RandAugment has torchvision's operations and sizes", worst == 0 and not missing, f"{worst} {missing} {seen}")
# 10,000 draws beside as many of torchvision: Kolmogorov's distance of two samples is below 0.026 in 99.8 of 100 cases
def lines_of(*words):
    return np.array([[float(x) for x in line.split()] for line in
                     subprocess.run([program, *map(str, words)], capture_output=True, text=True).stdout.splitlines()])


def gap_of(a, b):
    at = np.sort(np.concatenate([a, b]))
    return np.abs(np.searchsorted(np.sort(a), at, "right") / len(a) - np.searchsorted(np.sort(b), at, "right") / len(b)).max()


torch.manual_seed(5)
blank = torch.zeros(3, 375, 500)
theirs = np.array([T.RandomResizedCrop.get_params(blank, (0.08, 1.0), (3 / 4, 4 / 3)) for _ in range(10000)], float)
ours = lines_of("boxes", 500, 375, 10000)
facts = {"area": lambda b: b[:, 2] * b[:, 3], "ratio": lambda b: b[:, 3] / b[:, 2], "top": lambda b: b[:, 0], "left": lambda b: b[:, 1]}
gaps = {name: gap_of(fact(ours), fact(theirs)) for name, fact in facts.items()}
report("10,000 random parts have the areas, ratios and places of RandomResizedCrop", max(gaps.values()) < 0.026, f"{gaps}")
report("half of 10,000 pictures are mirrored", abs(ours[:, 4].mean() - 0.5) < 0.016, f"{ours[:, 4].mean()}")
factors = np.array([T.ColorJitter.get_params((0.6, 1.4), None, None, None)[1] for _ in range(10000)])
gap = gap_of(lines_of("factors", 10000)[:, 0], np.floor(factors * 100))
report("10,000 factors of brightness have the distribution of ColorJitter's", gap < 0.026 + 0.0125, f"{gap}")
# MixUp and CutMix: shares have the Beta distribution, and rectangles those of CutMix.make_params
def mixes(*numbers):
    return [[float(x) for x in line.split()] for line in
            subprocess.run([program, "mixes", *map(str, numbers)], capture_output=True, text=True).stdout.splitlines()]


for alpha in (0.2, 0.8, 1.0, 2.5, 40.0):
    ours = torch.tensor([m[0] for m in mixes(alpha, 0, 1, 0.5, 42, 32, 10000, 64)]).sort().values
    theirs = torch.distributions.Beta(alpha, alpha)
    torch.manual_seed(1)
    sample = theirs.sample((100000,)).double().sort().values
    gap = (torch.searchsorted(sample, ours.double()) / len(sample) - (torch.arange(10000) + 0.5) / 10000).abs().max().item()
    report(f"10,000 shares have the distribution Beta({alpha}, {alpha})", gap < 0.0195 + 0.0062, f"Kolmogorov's distance {gap}")
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mix_reference import mix
numbers = (0.4, 1.5, 0.9, 0.3, 7)
ours, same = mixes(*numbers, 24, 2000, 56), True
for k, m in enumerate(ours):
    share, box = mix(*numbers, k * 24, 56, 56)
    same = same and abs(share - m[0]) < 1e-12 and bool(m[1]) == (box is not None) and (box is None or box == m[2:])
kinds = [sum(m[0] > 0 and not m[1] for m in ours), sum(m[1] > 0 for m in ours)]
report("choices and rectangles follow from the seed and the first sample", same and abs(kinds[0] - 1260) < 90 and abs(kinds[1] - 540) < 80, f"{kinds}")
from torchvision.transforms import v2
torch.manual_seed(3)
cutmix, theirs = v2.CutMix(alpha=1.0, num_classes=10), []
for _ in range(10000):
    made = cutmix.make_params([torch.zeros(2, 3, 56, 56)])
    theirs.append(1 - made["lam_adjusted"])
ours = [m[0] for m in mixes(0, 1, 1, 0.5, 5, 16, 10000, 56)]
moments = [(np.mean(x), np.std(x), np.mean(np.array(x) == 0)) for x in (ours, theirs)]
apart = max(abs(a - b) for a, b in zip(*moments))
report("10,000 shares of CutMix have the moments of torchvision's", apart < 0.015, f"{moments}")
print(f"1..{number}")
sys.exit(failed)
