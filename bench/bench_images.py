#!/usr/bin/env python3
"""bench_images.py PROGRAM: pictures a second of one core, from JPEG files to normalised floats of 224 by 224: a random part, resized, and
the mirror image. Ours (bench_images.c) beside torchvision with Pillow, torchvision's own decoder and webdataset, in alternating rounds.
SHORT=1: few rounds. SPDX-License-Identifier: Apache-2.0"""
import io
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time

import peers

try:
    import numpy as np
    import torch
    import torchvision
    from PIL import Image
    from torchvision import transforms as T
    from torchvision.transforms import v2
except ImportError:
    peers.skip("bench-images", "torchvision, Pillow or numpy is missing: give PEERS=DIR, whose venv has them (pip install torchvision)")
try:
    import webdataset
except ImportError:
    webdataset = None

ROUNDS, COUNT, WIDTH, HEIGHT = (3, 64, 500, 375) if os.environ.get("SHORT") else (15, 192, 500, 375)
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
torch.set_num_threads(1)


def photo(seed):  # smooth colours, edges and noise: 90 to 110 KB at quality 90
    r = np.random.default_rng(seed)
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    planes = [127 + 70 * np.sin(x / r.uniform(5, 60) + y / r.uniform(5, 60) + c) + 40 * ((x // 24 + y // 24) % 2) for c in range(3)]
    noise = r.normal(0, 12, (HEIGHT, WIDTH, 1))
    return Image.fromarray(np.clip(np.stack(planes, -1) + noise, 0, 255).astype(np.uint8))


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        shard = os.path.join(folder, "s.tar")
        with tarfile.open(shard, "w") as tar:
            for i in range(COUNT):
                data = io.BytesIO()
                photo(i).save(data, "JPEG", quality=90)
                os.makedirs(f"{folder}/set/{i % 8}", exist_ok=True)
                open(f"{folder}/set/{i % 8}/{i}.jpg", "wb").write(data.getvalue())
                for name, text in ((f"{i}.jpg", data.getvalue()), (f"{i}.cls", str(i % 8).encode())):
                    info = tarfile.TarInfo(name)
                    info.size = len(text)
                    tar.addfile(info, io.BytesIO(text))
        run(program, folder, shard)


def run(program, folder, shard):
    pillow = T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)])
    tensors = v2.Compose([v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True),
                          v2.Normalize(MEAN, STD)])
    decode = lambda path: torchvision.io.decode_image(torchvision.io.read_file(path), mode="RGB")
    sets = {"torchvision with Pillow": torchvision.datasets.ImageFolder(f"{folder}/set", pillow),
            "torchvision.io and v2": torchvision.datasets.ImageFolder(f"{folder}/set", tensors, loader=decode)}

    def of_set(data):
        order = torch.randperm(len(data)).tolist()
        batch = []
        for i in order:
            batch.append(data[i][0])
            if len(batch) == 32:
                torch.stack(batch)
                batch = []

    sides = {name: (lambda data=data: of_set(data)) for name, data in sets.items()}
    if webdataset is not None:
        shards = webdataset.WebDataset(shard, shardshuffle=False, empty_check=False).decode("pil").to_tuple("jpg", "cls").map_tuple(pillow, int).batched(32)
        sides["webdataset"] = lambda: [None for _ in shards]
    ours = {name: subprocess.Popen([program, f"{folder}/set", flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for name, flags in (("dsc", "-"), ("dsc with dct_scaling", "d"))}
    def time_of(name):
        if name in ours:
            ours[name].stdin.write(f"{COUNT}\n")
            ours[name].stdin.flush()
            return float(ours[name].stdout.readline())
        start = time.perf_counter()
        sides[name]()
        return time.perf_counter() - start

    names = [*ours, *sides]
    rates = {name: [] for name in names}
    for turn in range(ROUNDS + 1):
        for name in names:
            seconds = time_of(name)
            if turn > 0:
                rates[name].append(COUNT / seconds)
    for name in names:
        r = sorted(rates[name])
        print(f"{name:26} {statistics.median(r):8.1f} pictures/s   {r[0]:.1f} .. {r[-1]:.1f}")
    best = max((n for n in sides), key=lambda n: statistics.median(rates[n]))
    for name in ours:
        paired = sorted(a / b for a, b in zip(rates[name], rates[best]))
        print(f"{name} against {best}: {statistics.median(paired):.2f} times ({paired[0]:.2f} .. {paired[-1]:.2f})")
    for p in ours.values():
        p.stdin.close()
        p.wait()


main()
