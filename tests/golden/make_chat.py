#!/usr/bin/env python3
"""make_chat.py - renders the templates of chat/ by jinja2 (3.1.6 here, Python 3.11) to chat/expected.txt, and these and
the *.jinja of all folders in the arguments to chat/hashes.txt (chat_hashes.py).

The templates were written for this test, in the style of common model families. A case is a line "TEMPLATE STATUS
CONTEXT_BYTES OUTPUT_BYTES BEGIN END ..." with the byte ranges of generation blocks, then the context and the output,
each with a line end. STATUS is 0, or 2 when jinja2 raises an error.
SPDX-License-Identifier: Apache-2.0"""
import glob
import json
import os
import random
import sys

from chat_conversations import conversation
from chat_hashes import HASHES, hash_template, write_hashes
from chat_reference import Theirs

HERE = os.path.dirname(os.path.abspath(__file__))
COUNT = 6

with open(f"{HERE}/chat/expected.txt", "wb") as out:
    for path in sorted(glob.glob(f"{HERE}/chat/*.jinja")):
        with open(path, encoding="utf-8", newline="") as file:
            theirs = Theirs(file.read())
        rng, errors, made = random.Random(os.path.basename(path)), 0, 0
        while made < COUNT:
            variables = conversation(rng)
            context = json.dumps(variables, ensure_ascii=False).encode()
            text, spans = theirs.render(variables)
            if len(context) > 3000 or (text is None and errors > 0):
                continue
            errors += text is None
            made += 1
            numbers = [x for span in spans for x in span] if text is not None else []
            head = [os.path.basename(path), 2 if text is None else 0, len(context), len(text or b""), *numbers]
            out.write(" ".join(map(str, head)).encode() + b"\n" + context + b"\n" + (text or b"") + b"\n")

paths = [path for folder in [f"{HERE}/chat", *sys.argv[1:]] for path in sorted(glob.glob(f"{folder}/*.jinja"))]
write_hashes(HASHES, [hash_template(path, lambda text: Theirs(text).render) for path in paths])
