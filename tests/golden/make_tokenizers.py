#!/usr/bin/env python3
"""make_tokenizers.py - small tokenizers of each style, a text, and its ids by the `tokenizers` package (0.23.3 here).

Writes tokenizer_STYLE.json, tokenizer_text.txt and tokenizer_ids.txt beside this file. A line "STYLE COUNT id id ..."
includes the tokens that the post-processor puts around the text. tokenizer_bert.txt is the text decoded from BERT's ids.
Needs the package from PyPI: python3 -m venv V, V/bin/pip install tokenizers.
SPDX-License-Identifier: Apache-2.0"""
import os

from tokenizer_styles import STYLES, build, corpus

HERE = os.path.dirname(os.path.abspath(__file__))
train, text = corpus(1, 200000), corpus(2, 8000)
with open(f"{HERE}/tokenizer_text.txt", "w", newline="") as f:
    f.write(text)
with open(f"{HERE}/tokenizer_ids.txt", "w") as f:
    for style in STYLES:
        t = build(style, train, 700)
        t.save(f"{HERE}/tokenizer_{style}.json", pretty=False)
        ids = t.encode(text).ids
        assert style in ("qwen", "llama2", "mistral", "bert") or t.decode(ids) == text
        if style == "bert":
            with open(f"{HERE}/tokenizer_bert.txt", "w", newline="") as back:
                back.write(t.decode(ids))
        f.write(f"{style} {len(ids)} {' '.join(map(str, ids))}\n")
