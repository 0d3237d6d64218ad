"""chat_hashes.py - one hash of 200 rendered conversations for each template; the templates of model families are found by
their own hash, because their licences keep most of them out of this repository. Only Python's own modules are needed.
SPDX-License-Identifier: Apache-2.0"""
import hashlib
import json
import os
import random

from chat_conversations import conversation

COUNT = 200
HASHES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "chat", "hashes.txt")
HEAD = """# FILE SHA256_OF_TEMPLATE SHA256_OF_OUTPUTS (16 digits each), 200 conversations of chat_conversations.py; by make_chat.py
# from jinja2 3.1.6. Templates: *.jinja here; trl 1.16.0 (Apache-2.0); models/templates of llama.cpp (MIT, as of the fork
# acproject/seq2seq_llama.cpp, 1358114); axolotl (Apache-2.0, 067b021); chujiezheng/chat_templates (MIT).
"""


def template_hash(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def hash_template(path, open_template):
    """(file, hash of the template, hash of what open_template(text)(variables) gives for each conversation)"""
    with open(path, encoding="utf-8", newline="") as file:
        text = file.read()
    own, rng, render = template_hash(text), random.Random(template_hash(text)), open_template(text)
    sha = hashlib.sha256()
    for _ in range(COUNT):
        output, spans = render(conversation(rng))
        out = [output.decode(), [list(s) for s in spans]] if output is not None else "refused"
        sha.update(json.dumps(out).encode() + b"\n")
    return os.path.basename(path), own, sha.hexdigest()[:16]


def write_hashes(path, rows):
    unique = {own: (name, own, output) for name, own, output in reversed(rows)}
    with open(path, "w", encoding="utf-8") as file:
        file.write(HEAD + "".join(" ".join(row) + "\n" for row in sorted(unique.values())))


def read_hashes():
    """Hash of a template -> hash of its outputs."""
    with open(HASHES, encoding="utf-8") as file:
        return {row.split()[1]: row.split()[2] for row in file if not row.startswith("#")}
