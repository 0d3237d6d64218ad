#!/usr/bin/env python3
"""sft_test.py - `dsc data render` beside jinja2 with the settings of transformers: texts, and the tokens that count, of
random conversations in each template of tests/golden/chat. Arguments: the program dsc, a folder with tokenizer.json.
SPDX-License-Identifier: Apache-2.0"""
import glob
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "..", "golden")
sys.path.insert(0, GOLDEN)
import chat_reference  # noqa: E402
from chat_conversations import tool, words  # noqa: E402
from chat_reference import Theirs  # noqa: E402

chat_reference.NOW = int(time.time())  # dsc prints the day of the run

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def conversation(rng):
    messages = [{"role": "system", "content": words(rng)}] if rng.random() < 0.4 else []
    for _ in range(rng.randrange(1, 4)):
        messages.append({"role": "user", "content": words(rng) or "hi"})
        messages.append({"role": "assistant", "content": words(rng) or "yes"})
    row = {"messages": messages}
    if rng.random() < 0.2:
        row["tools"] = [tool(rng)]
    return row


def byte_of_char():
    """GPT-2's table of printable characters for bytes."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(b): b for b in printed}
    table.update({chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in printed)})
    return table


def spelling(folder):
    with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as file:
        tokenizer = json.load(file)
    table, out = byte_of_char(), {}
    for name, index in tokenizer["model"]["vocab"].items():
        out[index] = bytes(table[c] for c in name)
    for added in tokenizer["added_tokens"]:
        out[added["id"]] = added["content"].encode()
    return out


def expected_spans(theirs, row, text):
    """Bytes of each answer: generation blocks, or the difference of two renders; None: another rule of dsc."""
    variables = {**SPECIAL, **row}
    _, blocks = theirs.render(variables)
    if blocks:
        return blocks
    spans = []
    for i, message in enumerate(row["messages"]):
        if message["role"] != "assistant":
            continue
        begin = theirs.render({**variables, "messages": row["messages"][:i], "add_generation_prompt": True})[0]
        end = theirs.render({**variables, "messages": row["messages"][:i + 1]})[0]
        if begin is None or end is None or not text.startswith(end) or not end.startswith(begin):
            return None
        spans.append((len(begin), len(end)))
    return spans


def drops_answer(theirs, row):
    """An answer that the template leaves out, which dsc refuses."""
    whole, messages = theirs.render({**SPECIAL, **row})[0], row["messages"]
    return any(theirs.render({**SPECIAL, **row, "messages": messages[:i] + messages[i + 1:]})[0] == whole
               for i, message in enumerate(messages) if message["role"] == "assistant")


def compare(dsc, folder, template, spelled, count):
    """(rows with equal text, rows with equal spans, rows of another rule, faults)"""
    with open(template, encoding="utf-8", newline="") as file:
        text = file.read()
    theirs, rng = Theirs(text), random.Random(os.path.basename(template))
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump({**SPECIAL, "model_max_length": 1000000000000000019884624838656, "chat_template": text}, file)
    equal = spans_equal = other = 0
    faults, rows = [], []
    for _ in range(count):
        row = conversation(rng)
        if theirs.render({**SPECIAL, **row})[0] is not None and not drops_answer(theirs, row):
            rows.append(row)
    data = os.path.join(folder, "rows.jsonl")
    with open(data, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    run = subprocess.run([dsc, "data", "render", "--model", folder, data], capture_output=True, check=False)
    if run.returncode != 0:
        return 0, 0, 0, [run.stderr.decode()[:400]]
    printed = [json.loads(line) for line in run.stdout.decode().split("\n") if line]
    if len(printed) != len(rows):
        return 0, 0, 0, [f"{len(printed)} examples of {len(rows)}"]
    for row, ours in zip(rows, printed):
        whole = theirs.render({**SPECIAL, **row})[0]
        if ours["text"].encode() != whole or b"".join(spelled[i] for i in ours["tokens"]) != whole:
            faults.append(f"text {ours['text']!r}, expected {whole!r}")
            continue
        equal += 1
        spans = expected_spans(theirs, row, whole)
        if spans is None:
            other += 1
            continue
        at, wrong = 0, False
        for index, counted in zip(ours["tokens"], ours["mask"]):
            begin, at = at, at + len(spelled[index])
            inside = any(begin < e and at > b for b, e in spans)
            blank_end = not counted and inside and not spelled[index].strip()  # behind an end token
            wrong |= bool(counted) != inside and not blank_end
        spans_equal += not wrong
        if wrong:
            faults.append(f"mask of {row!r}")
    return equal, spans_equal, other, faults


def main():
    dsc, source = sys.argv[1:3]
    templates = sorted(glob.glob(os.path.join(GOLDEN, "chat", "*.jinja")))
    failed, number = False, 0
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(source, os.path.join(folder, "tokenizer.json"))
        spelled = spelling(folder)
        for template in templates:
            name = os.path.basename(template)
            if name == "constructs.jinja":
                continue
            number += 1
            equal, spans, other, faults = compare(dsc, folder, template, spelled, 40)
            good = not faults and equal > 0
            failed |= not good
            print(f"{'ok' if good else 'not ok'} {number} - {name}: {equal} texts equal, {spans} masks equal, {other} "
                  "found by replacement")
            for fault in faults[:2]:
                print("#", fault[:1500])
    print(f"1..{number}")
    sys.exit(failed)


main()
