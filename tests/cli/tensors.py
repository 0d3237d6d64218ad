# SPDX-License-Identifier: Apache-2.0
"""tensors.py - small model and adapter folders for tests: config and safetensors file, written and read without a library."""
import json
import os
import struct


def write(folder, file, config, tensors):
    """tensors: name -> (shape, values), stored as fp32. The config's name follows from the file's."""
    os.makedirs(folder, exist_ok=True)
    head, at, data = {"__metadata__": {"format": "pt"}}, 0, b""
    for name, (shape, values) in tensors.items():
        stored = struct.pack(f"<{len(values)}f", *values)
        head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + len(stored)]}
        at, data = at + len(stored), data + stored
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(f"{folder}/{file}", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text + data)
    with open(f"{folder}/" + ("adapter_config.json" if file.startswith("adapter") else "config.json"), "w") as out:
        json.dump(config, out)


def read(path):
    """name -> (shape, bytes as stored)"""
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + size])
    head.pop("__metadata__")
    return {name: (t["shape"], data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]]) for name, t in head.items()}


def read_numbers(path):
    """name -> (shape, values) of fp32 tensors"""
    return {name: (shape, struct.unpack(f"<{len(data) // 4}f", data)) for name, (shape, data) in read(path).items()}
