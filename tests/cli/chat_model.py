#!/usr/bin/env python3
"""chat_model.py - a tokenizer of bytes with ChatML's tokens and a chat template, for tests of conversations.

    chat_model.py DIR              tokenizer.json and tokenizer_config.json in DIR
    chat_model.py tokens T OUT     lines of `dsc data render` on stdin to token samples of T, one example each
SPDX-License-Identifier: Apache-2.0"""
import json
import os
import struct
import sys

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def write_folder(folder):
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printed]
    vocab = {chr(b): b for b in printed} | {chr(256 + i): b for i, b in enumerate(others)}
    added = [{"id": 256 + i, "content": name, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for i, name in enumerate(SPECIAL)]
    tokenizer = {"added_tokens": added, "normalizer": None,
                 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}, "decoder": {"type": "ByteLevel"},
                 "model": {"type": "BPE", "merges": [], "vocab": vocab}}
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump(tokenizer, file)
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump({"eos_token": "<|im_end|>", "chat_template": TEMPLATE}, file)


def write_samples(length, out):
    rows = [json.loads(line)["tokens"] for line in sys.stdin]
    with open(out, "wb") as file:
        for row in rows:
            assert len(row) <= length
            file.write(struct.pack(f"<{length}H", *row, *[258] * (length - len(row))))
        file.write(struct.pack("<H", 258))


if __name__ == "__main__":
    if sys.argv[1] == "tokens":
        write_samples(int(sys.argv[2]), sys.argv[3])
    else:
        write_folder(sys.argv[1])
