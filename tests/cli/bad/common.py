# common.py - good inputs, from which the tests make bad ones. SPDX-License-Identifier: Apache-2.0
import json, struct

from harness import TRAIN

CONFIG = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}
TEXT = "the quick brown fox jumps over the lazy dog; " * 60
GPT2 = {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 32, "n_positions": 32, "n_ctx": 32,
        "vocab_size": 256,
        "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
LLMC_MAGIC = 20240520


def inputs(b):
    """A config and a text that train; `train` is their command line."""
    b.config, b.text = b.put("good.json", CONFIG), b.put("good.txt", TEXT)
    b.train = [TRAIN, "--config", b.config, "--data", b.text, "--model", "gpt2-nano", "--seq-len", "16", "--steps", "1"]


def without(argv, *flags):
    """The command line without these flags and their values."""
    out = list(argv)
    for flag in flags:
        at = out.index(flag)
        del out[at:at + 2]
    return out


def merged(config, **more):
    out = json.loads(json.dumps(config))
    for key, value in more.items():
        out[key] = {**out[key], **value} if isinstance(value, dict) and isinstance(out.get(key), dict) else value
    return out


def uint16(*tokens):
    return struct.pack(f"<{len(tokens)}H", *tokens)


def llmc(tokens, magic=LLMC_MAGIC, version=1, count=None):
    head = struct.pack("<256i", magic, version, len(tokens) if count is None else count, *[0] * 253)
    return head + uint16(*tokens)


def gpt2_shapes(c=GPT2):
    n, v, p, m = c["n_embd"], c["vocab_size"], c["n_positions"], 4 * c["n_embd"]
    shapes = {"transformer.wte.weight": [v, n], "transformer.wpe.weight": [p, n]}
    for i in range(c["n_layer"]):
        for name, shape in {"ln_1.weight": [n], "ln_1.bias": [n], "attn.c_attn.weight": [n, 3 * n],
                            "attn.c_attn.bias": [3 * n], "attn.c_proj.weight": [n, n], "attn.c_proj.bias": [n],
                            "ln_2.weight": [n], "ln_2.bias": [n], "mlp.c_fc.weight": [n, m], "mlp.c_fc.bias": [m],
                            "mlp.c_proj.weight": [m, n], "mlp.c_proj.bias": [n]}.items():
            shapes[f"transformer.h.{i}.{name}"] = shape
    shapes.update({"transformer.ln_f.weight": [n], "transformer.ln_f.bias": [n]})
    return shapes


def count_of(shape):
    n = 1
    for d in shape:
        n *= d
    return n


def safetensors(shapes=None, dtype="F32", edit=None, data=None, header=None):
    """A safetensors file of zeros. edit(entries) changes the header's members before it is written."""
    entries, at = {}, 0
    for name, shape in (gpt2_shapes() if shapes is None else shapes).items():
        size = count_of(shape) * {"F32": 4, "BF16": 2, "F16": 2, "I32": 4, "F64": 8}[dtype]
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    if edit is not None:
        edit(entries)
    text = json.dumps(entries).encode() if header is None else header
    return struct.pack("<Q", len(text)) + text + (bytes(at) if data is None else data)
