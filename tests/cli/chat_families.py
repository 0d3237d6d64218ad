#!/usr/bin/env python3
"""chat_families.py - instruction data beside transformers' apply_chat_template, in the templates of model families: text,
token ids, and the mask of templates with generation blocks. A row that transformers refuses is refused with one line.
Templates: *.jinja of the folders in DSC_CHAT_TEMPLATES, and those of the package trl (Apache-2.0) where it is installed.
Arguments: the program sft_render. SPDX-License-Identifier: Apache-2.0"""
import glob
import importlib.util
import json
import os
import random
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "..", "golden")
sys.path.insert(0, GOLDEN)
os.environ["TZ"] = "UTC"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
from chat_conversations import row_messages, tool  # noqa: E402

COUNT = int(os.environ.get("DSC_CHAT_CONVERSATIONS", "200" if os.environ.get("DSC_TEST_NIGHT") == "1" else "12"))
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
MARKS = ["<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<start_of_turn>", "<end_of_turn>",
         "[INST]", "[/INST]", "<|start|>", "<|message|>", "<|end|>", "<|channel|>", "<|return|>"]
TOKENIZERS = ["qwen", "gpt2", "llama3"]


def rows(rng, count):
    made = []
    while len(made) < count:
        row = {"messages": row_messages(rng)}
        if rng.random() < 0.4:
            row["tools"] = [tool(rng) for _ in range(rng.randrange(1, 4))]
        made.append(row)
    return made


def expected(tokenizer, row, masked):
    """(text, ids, mask or None), or None and the error of transformers."""
    try:
        text = tokenizer.apply_chat_template(row["messages"], tools=row.get("tools"), tokenize=False)
        out = tokenizer.apply_chat_template(row["messages"], tools=row.get("tools"), return_dict=True,
                                            return_assistant_tokens_mask=masked)
        return (text, list(out["input_ids"]), list(out["assistant_masks"]) if masked else None), None
    except Exception as error:  # noqa: BLE001 - a template may fail in any way
        return None, error


def reads_parts(tokenizer):
    question = [{"role": "user", "content": [{"type": "text", "text": "A question?"}]}]
    theirs, _ = expected(tokenizer, {"messages": question}, False)
    return theirs is not None and re.search(r"(?<!['\"])A question\?", theirs[0]) is not None


class Result:
    def __init__(self, name, reads_parts):
        self.reads_parts = reads_parts  # else the template refuses lists or prints them; dsc joins their texts
        self.name, self.equal, self.refused, self.unsupported, self.joined = name, 0, 0, 0, 0
        self.wrong = []

    def add(self, row, ours, theirs, error, masked):
        lists = any(isinstance(m.get("content"), list) for m in row["messages"])
        if "error" in ours:
            known = "not supported" in ours["error"]
            self.refused += theirs is None
            self.unsupported += theirs is not None and known
            if "\n" in ours["error"] or (theirs is not None and not known):
                self.wrong.append((row, ours["error"], theirs))
        elif theirs is not None and (ours["text"], ours["tokens"]) == theirs[:2] and (not masked or ours["mask"] == theirs[2]):
            self.equal += 1
        elif lists and not self.reads_parts:
            self.joined += 1
        else:
            self.wrong.append((row, ours, theirs or error))

    def line(self):
        return f"{self.name}: {self.equal} equal, {self.refused} refused by both, {self.unsupported} unsupported, " \
               f"{self.joined} joined, {len(self.wrong)} wrong"

    def explain(self):
        for row, ours, theirs in self.wrong[:1]:
            print("#   row:   ", json.dumps(row, ensure_ascii=False)[:2500])
            print("#   ours:  ", repr(ours)[:1500])
            print("#   theirs:", repr(theirs)[:1500])


def compare(program, path, tokenizer, folder):
    with open(path, encoding="utf-8", newline="") as file:
        tokenizer.chat_template = file.read()
    tokenizer.save_pretrained(folder)
    masked = re.search(r"\{%-?\s*generation\s*-?%\}", tokenizer.chat_template) is not None
    result = Result(os.path.basename(path), reads_parts(tokenizer))
    made = rows(random.Random(os.path.basename(path)), COUNT)
    data = os.path.join(folder, "rows.jsonl")
    with open(data, "w", encoding="utf-8") as file:
        for row in made:  # without blocks the text alone is compared, so no message has to be found in it
            out = row if masked else {**row, "messages": [{**m, "train": False} for m in row["messages"]]}
            file.write(json.dumps(out) + "\n")
    run = subprocess.run([program, folder, data, str(len(made))], capture_output=True, check=False, timeout=600)
    printed = [json.loads(line) for line in run.stdout.decode().split("\n") if line]
    if len(printed) != len(made):
        result.wrong.append((None, run.stderr.decode()[:400], None))
        return result
    for row, ours in zip(made, printed):
        result.add(row, ours, *expected(tokenizer, row, masked), masked)
    return result


def folders():
    out = [os.path.join(GOLDEN, "chat")] + [f for f in os.environ.get("DSC_CHAT_TEMPLATES", "").split(":") if f]
    trl = importlib.util.find_spec("trl")
    return out + ([os.path.join(os.path.dirname(trl.origin), "chat_templates")] if trl else [])


def main():
    from transformers import PreTrainedTokenizerFast
    tokenizers = [PreTrainedTokenizerFast(tokenizer_file=f"{GOLDEN}/tokenizer_{name}.json", **SPECIAL) for name in TOKENIZERS]
    for tokenizer in tokenizers:
        tokenizer.add_special_tokens({"additional_special_tokens": MARKS})
    failed, number = False, 0
    with tempfile.TemporaryDirectory() as folder:
        for path in [path for each in folders() for path in sorted(glob.glob(f"{each}/*.jinja"))]:
            number += 1
            result = compare(sys.argv[1], path, tokenizers[number % len(tokenizers)], folder)
            good = not result.wrong and result.equal + result.refused > 0
            failed |= not good
            print(f"{'ok' if good else 'not ok'} {number} - {result.line()}", flush=True)
            if not good:
                result.explain()
    print(f"1..{number}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
