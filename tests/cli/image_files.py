#!/usr/bin/env python3
"""image_files.py FOLDER - pictures for test_image_data.sh, with the standard library alone: a folder of classes, the same pictures
as a shard, two shards and a CSV file, and broken files. SPDX-License-Identifier: Apache-2.0"""
import io
import os
import random
import struct
import sys
import tarfile
import zlib

os.chdir(sys.argv[1])


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, pixels, color=2):
    row = width * 3
    rows = b"".join(b"\0" + pixels[y * row:(y + 1) * row] for y in range(height))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def picture(seed, kind):
    r = random.Random(seed)
    width, height = r.randrange(14, 40), r.randrange(14, 40)
    return png(width, height, bytes(r.randrange(70) + (150 if c == kind else 0) for _ in range(width * height) for c in range(3)))


names = ["ant", "cat", "dog"]
files = []
for folder, count in ("train", 11), ("eval", 4):
    for kind, name in enumerate(names):
        os.makedirs(f"{folder}/{name}")
        for i in range(count):
            data = picture(kind * 100 + i + 1000 * (folder == "eval"), kind)
            path = f"{folder}/{name}/{i:03d}.png"
            with open(path, "wb") as out:
                out.write(data)
            if folder == "train":
                files.append((path, kind, data))


def shard(path, some):
    with tarfile.open(path, "w") as out:
        for number, (_, kind, data) in some:
            for ending, content in ("png", data), ("cls", b"%d\n" % kind), ("json", b"{}"):
                info = tarfile.TarInfo(f"{number:06d}.{ending}")
                info.size = len(content)
                out.addfile(info, io.BytesIO(content))


numbered = list(enumerate(files))
shard("all.tar", numbered)
shard("part-000000.tar", numbered[:20])
shard("part-000001.tar", numbered[20:])
with open("list.csv", "w") as out:
    out.write("path,label\n" + "".join(f"{path},{names[kind]}\n" for path, kind, _ in files))

os.makedirs("broken")
good = files[0][2]
header = lambda width, height: b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) + \
    chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
jpeg = lambda width, height, scans: b"\xff\xd8\xff\xc2\0\x11\x08" + struct.pack(">HH", height, width) + \
    b"\x03\x01\x11\0\x02\x11\0\x03\x11\0" + b"\xff\xda\0\x0c\x03\x01\0\x02\0\x03\0\0\x3f\0\0" * scans + b"\xff\xd9"
for name, data in {
        "truncated.png": good[:len(good) // 2], "header.png": good[:20], "bomb.png": header(65535, 65535), "short.png": header(4000, 4000),
        "bomb.jpg": jpeg(65535, 65535, 1), "scans.jpg": jpeg(5000, 5000, 5000), "cut.jpg": b"\xff\xd8\xff\xe0\0\x10JFIF\0",
        "bomb.webp": b"RIFF\x1a\0\0\0WEBPVP8L\x0d\0\0\0\x2f\xff\xff\xff\x0f" + bytes(9), "empty.png": b"", "text.png": b"not a picture\n",
        "gif.png": b"GIF89a" + bytes(20), "crc.png": good[:60] + bytes([good[60] ^ 0x55]) + good[61:]}.items():
    with open(f"broken/{name}", "wb") as out:
        out.write(data)
with open("cut.tar", "wb") as out:
    out.write(open("all.tar", "rb").read()[:9000])
