#!/usr/bin/env python3
"""parquet_test.py - Parquet files of pyarrow beside the JSON lines of the same rows: `dsc data render` and `dsc data tokenize`
give the same for each format of rows, compression, encoding and size of row groups. Hostile files end with one line.
Arguments: the program dsc, a tokenizer.json, a folder. SPDX-License-Identifier: Apache-2.0"""
import json
import os
import random
import shutil
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq

DSC, TOKENIZER, FOLDER = sys.argv[1:4]
STRICT, NIGHT = (os.environ.get(f"DSC_TEST_{name}") == "1" for name in ("STRICT", "NIGHT"))
SANITIZED = bool(os.environ.get("DSC_SAN"))
OWN_MIB = 80  # the program and Arrow's library
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}|{% endfor %}"
number, failed = 0, False


def report(what, good, why=""):
    global number, failed
    number, failed = number + 1, failed or not good
    print(f"{'ok' if good else 'not ok'} {number} - {what}")
    if not good:
        print("#", why[:1000])


def run(*arguments):
    began = time.monotonic()
    out = subprocess.run([DSC, "data", *arguments], capture_output=True, check=False, timeout=120)
    return out.returncode, out.stdout, out.stderr.decode(errors="replace"), time.monotonic() - began


def without_nulls(value):
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    return [without_nulls(v) for v in value] if isinstance(value, list) else value


def rows_of(rng, kind, count):
    text = lambda most: "".join(rng.choice(["word ", "\n", "\u00e9\u4e16 ", "\"quoted\" ", "\\ ", "\U0001f642", "x"])  # noqa: E731
                                for _ in range(rng.randrange(1, most)))
    out = []
    for i in range(count):
        if kind == "messages":
            call = {"type": "function", "function": {"name": "f", "arguments": {"city": text(3), "days": i, "exact": i / 4}}}
            turns = [{"role": "user", "content": text(20)}, {"role": "assistant", "content": None, "tool_calls": [call]},
                     {"role": "tool", "content": text(9)}] if i % 3 == 0 else [{"role": "user", "content": text(20)}]
            out.append({"id": i + (1 << 60), "score": i / 3, "messages": turns + [{"role": "assistant", "content": text(30)}],
                        "image": bytes([i % 256, 255])})
        elif kind == "conversations":
            out.append({"conversations": [{"from": "human", "value": text(20)}, {"from": "gpt", "value": text(20)}],
                        "system": None if i % 2 else text(5)})
        elif kind == "prompt":
            out.append({"prompt": text(20), "completion": text(20)})
        elif kind == "alpaca":
            out.append({"instruction": text(9), "input": None if i % 2 else text(9), "output": text(20)})
        elif kind == "tokens":
            ids = [rng.randrange(50) for _ in range(rng.randrange(2, 40))]
            out.append({"input_ids": ids, "labels": [-100] + ids[1:]})
        else:
            out.append({"text": text(300)})
    return out


def write(path, rows, **options):
    pq.write_table(pa.Table.from_pylist(rows), path, **options)


def lines(path, rows):
    with open(path, "w", encoding="utf-8") as file:
        for row in rows:
            row = {k: v for k, v in without_nulls(row).items() if k not in ("image", "id")}
            file.write(json.dumps(row) + "\n")


STYLES = [{"compression": "snappy"}, {"compression": "zstd", "row_group_size": 7}, {"compression": "gzip", "use_dictionary": False},
          {"compression": "none", "data_page_version": "2.0"}, {"compression": "brotli", "data_page_size": 200},
          {"compression": "lz4", "write_statistics": False, "store_schema": False}]


def compare_formats():
    for kind in ("messages", "conversations", "prompt", "alpaca", "tokens", "text"):
        rows, faults = rows_of(random.Random(kind), kind, 100), []
        lines("want.jsonl", rows)
        want = run("render", "--model", "model", "want.jsonl")
        for style in STYLES:
            write("got.parquet", rows, **style)
            got = run("render", "--model", "model", "got.parquet")
            if got[0] != 0 or want[0] != 0 or got[1] != want[1]:
                faults.append(f"{style}: {got[2]} {want[2]}")
        report(f"format {kind}: {len(STYLES)} styles of files give the examples of JSON lines", not faults, "; ".join(faults))


def compare_types():
    table = pa.table({"text": pa.array(["a", "b", "c"]).dictionary_encode(), "x": pa.array([1.5, float("nan"), 2.0], pa.float32()),
                      "when": pa.array([1, 2, 3], pa.timestamp("s")), "m": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int8()))})
    pq.write_table(table, "types.parquet")
    pq.write_table(table.set_column(0, "text", pa.array(["a", "b", "c"], pa.large_string())), "large.parquet")
    lines("want.jsonl", [{"text": t} for t in "abc"])
    want = run("render", "--model", "model", "want.jsonl")[1]
    got = [run("render", "--model", "model", f) for f in ("types.parquet", "large.parquet")]
    report("columns of other types stand beside the text", all(g[1] == want for g in got), str(got))


def compare_documents():
    rows = rows_of(random.Random(9), "text", 300)
    lines("want.jsonl", rows)
    write("got.parquet", rows, row_group_size=50)
    made = [run("tokenize", "--tokenizer", "model", name, "-o", out) for name, out in (("want.jsonl", "w.bin"), ("got.parquet", "g.bin"))]
    same = all(m[0] == 0 for m in made) and open("w.bin", "rb").read() == open("g.bin", "rb").read()
    report("documents give the tokens of JSON lines", same, str(made))


def apart(make):
    """In a process of its own: the memory of this one counts for the programs that it starts."""
    pid = os.fork()
    if pid == 0:
        make()
        os._exit(0)
    os.waitpid(pid, 0)


def is_refused(path, want):
    began = time.monotonic()
    with open("out", "wb") as out:
        process = subprocess.Popen([DSC, "data", "tokenize", "--tokenizer", "model", path, "-o", "x.bin"], stdout=out, stderr=out)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    took, peak = time.monotonic() - began, usage.ru_maxrss / 1024
    with open("out", encoding="utf-8", errors="replace") as file:
        said = file.read()
    good = process.returncode == 2 and said.count("error") == 1 and want in said
    good &= SANITIZED or (took < (2 if STRICT else 10) and peak < 256 + OWN_MIB)
    return good, f"{path}: exit {process.returncode}, {took:.1f} s, {peak:.0f} MiB: {said}"


def make_bomb():
    pq.write_table(pa.table({"text": pa.array(["x" * (1 << 20)] * 4000).dictionary_encode()}), "bomb.parquet")


def make_page():
    pq.write_table(pa.table({"text": pa.array(["x" * (300 << 20)])}), "page.parquet", compression="zstd")


def make_nulls():
    pq.write_table(pa.table({"text": pa.array([[None] * (1 << 26), [1]], pa.list_(pa.int32()))}), "nulls.parquet", compression="zstd")


def make_deep():
    deep = pa.int8()
    for _ in range(40):
        deep = pa.list_(deep)
    pq.write_table(pa.table({"text": ["a"], "deep": pa.array([None], deep)}), "deep.parquet")


def hostile_files():
    write("good.parquet", rows_of(random.Random(1), "messages", 50))
    with open("good.parquet", "rb") as file:
        whole = file.read()
    faults, rng = [], random.Random(2)
    for i in range(600 if NIGHT else 60):  # cut anywhere, or a bit changed
        bad = bytearray(whole)
        if i % 3 == 0:
            bad = bad[:4 + rng.randrange(len(bad) - 4)]
        else:
            bad[4 + rng.randrange(len(bad) - 4)] ^= 1 << rng.randrange(8)
        with open("bad.parquet", "wb") as file:
            file.write(bad)
        code, _, err, took = run("render", "--model", "model", "bad.parquet")
        if code not in (0, 2) or (code == 2 and err.count("error:") != 1) or took > 10:
            faults.append(f"file {i}: exit {code} after {took:.1f} s: {err}")
    report("files that are cut or changed end with exit 0, or 2 and one error", not faults, "; ".join(faults))
    for what, make, path, want in (("a dictionary of one long text, 4 GB of rows", make_bomb, "bomb.parquet", "at most 256 for each byte"),
                                   ("a page of 300 MiB", make_page, "page.parquet", "more than 160 MiB"),
                                   ("a list of 67 million nulls", make_nulls, "nulls.parquet", "more than 160 MiB"),
                                   ("a column of 80 levels", make_deep, "deep.parquet", "levels")):
        apart(make)
        report(what + " is refused", *is_refused(path, want))


def main():
    os.chdir(FOLDER)
    os.mkdir("model")
    shutil.copy(TOKENIZER, "model/tokenizer.json")
    with open("model/chat_template.jinja", "w", encoding="utf-8") as file:
        file.write(TEMPLATE)
    compare_formats()
    compare_types()
    compare_documents()
    hostile_files()
    print(f"1..{number}")
    return 1 if failed else 0


sys.exit(main())
