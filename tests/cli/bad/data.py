# data.py - missing, short, broken and foreign token files, and tokens that the model does not know.
# SPDX-License-Identifier: Apache-2.0
import os, struct

from common import *
from harness import *


def refuse_data(b, words, *paths, more=()):
    b.refuse(2, words, *without(b.train, "--data"), "--data", *paths, *more)
    b.refuse(2, words, *b.train, "--eval-data", *paths, *more)


def model(b, vocab):
    """A model folder without weights, of another vocabulary than bytes."""
    path = b.path(f"v{vocab}")
    if not os.path.isdir(path):
        b.put(f"v{vocab}/config.json", merged(GPT2, vocab_size=vocab))
    return path


@test
def data_that_is_not_there(b):
    inputs(b)
    os.mkfifo(b.path("pipe.txt"))
    os.symlink("loop.txt", b.path("loop.txt"))
    os.mkdir(b.path("folder"))
    for path, word in ((b.path("none.txt"), "No such file"), (b.path("none/x.bin"), "No such file"),
                       (b.path("good.txt/x"), "Not a directory"), (b.path("folder"), "is a folder; give"),
                       (b.path("pipe.txt"), "pipe or a device"), (b.path("loop.txt"), ""),
                       ("/dev/zero", "pipe or a device"), ("/dev/null", "pipe or a device"), ("/proc/self/mem", ""),
                       (b.input + "/" + "n" * 300, "too long"), ("a\x1b[31m\nb", "without control characters"),
                       ("\xff", "No such file")):
        refuse_data(b, word, path)
    refuse_data(b, ["none.txt", "No such file"], b.text, b.path("none.txt"))
    b.refuse(2, "--data", *without(b.train, "--data"), "--data", "")
    b.refuse(2, "--data", *b.train, "--data")
    b.refuse(2, "--data", *without(b.train, "--data"), "--data", *["x" * 200] * 3000)
    b.refuse(2, "data", *without(b.train, "--data"), "--data", *[b.text] * 5000)


@test
def data_that_is_too_short(b):
    inputs(b)
    for name, data in (("e.txt", b""), ("one.txt", b"x"), ("t.txt", b"x" * 16), ("e.bin", b""),
                       ("t.bin", uint16(*[5] * 16)),
                       ("l.bin", llmc([5] * 16)), ("zero.bin", llmc([]))):
        refuse_data(b, [name, "--seq-len"], b.put(name, data))
        r = b.accept(*without(b.train, "--data"), "--data", b.text, b.put(name, data))
        check(b"1 data file (" in r.err and name.encode() in r.err and b"left out" in r.err, r)
    refuse_data(b, ["e.txt", "1 others", "--seq-len"], b.path("e.txt"), b.path("t.txt"))
    b.accept(*without(b.train, "--data"), "--data", b.put("just.txt", b"x" * 17))
    b.refuse(2, ["samples", "train_batch_size"], *without(b.train, "--data", "--steps"), "--data",
             b.put("few.txt", b"x" * 40),
             "--batch-size", "3")


@test
def evaluation_data_may_be_shorter_than_a_batch(b):
    inputs(b)
    few = b.put("few.txt", b"x" * 40)  # two samples
    for words in (b.train, [LAUNCH, "--num_gpus=2", *b.train]):
        r = b.accept(*words, "--eval-data", few, "--batch-size", "3")
        check(b"validation loss" in r.out, r)


@test
def data_of_another_kind(b):
    inputs(b)
    for name, data, word in (
            ("p.png", b"\x89PNG\r\n\x1a\n" + bytes(2000), "PNG"), ("z.txt", bytes(2000), "byte 0"),
            ("l.txt", b"caf\xe9 " * 500, "byte 3"), ("late.txt", b"x" * 3000 + b"\xff" + b"x" * 3000, "byte 3000"),
            ("cut.txt", b"x" * 3000 + b"\xe2\x82", "byte 3000"),
            ("u.txt", "\ufefftext".encode("utf-16-le") * 99, "UTF-16"),
            ("d.jsonl", b'{"text": "x"}\n' * 99, "--tokenizer DIR"), ("d.idx", b"MMIDIDX\0\0" + bytes(99), "version 0"),
            ("d.npy", b"\x93NUMPY" + bytes(99), "NumPy"), ("d.parquet", b"PAR1" + bytes(99), "read_parquet"),
            ("d.gz", b"\x1f\x8b\x08" + bytes(99), "the gzip stream is damaged"), ("parquet.bin", b"PAR1" + bytes(98), "Parquet"),
            ("gzip.bin", b"\x1f\x8b\x08" + bytes(99), "gzip -dc")):
        refuse_data(b, [name, word], b.put(name, data))


@test
def token_files_with_a_broken_header(b):
    inputs(b)
    tokens = [5] * 100
    for name, data, word in (
            ("odd.bin", b"x" * 41, "41 bytes"), ("one.bin", b"x", "1 bytes"),
            ("version.bin", llmc(tokens, version=9), "version 9"),
            ("minus.bin", llmc(tokens, version=-1), "version -1"),
            ("more.bin", llmc(tokens, count=101), "says 101 tokens"),
            ("less.bin", llmc(tokens, count=99), "2 bytes after"),
            ("huge.bin", llmc(tokens, count=0x7fffffff), "says 2147483647 tokens"),
            ("negative.bin", llmc(tokens, count=-5), "says -5 tokens"), ("cut.bin", llmc(tokens)[:-1], "truncated"),
            ("head.bin", llmc(tokens)[:1000], "truncated"), ("magic.bin", llmc(tokens)[:4], "truncated"),
            ("nothing.bin", llmc(tokens)[:1024], "truncated")):
        refuse_data(b, [name, word], b.put(name, data))
        b.refuse(2, [name, word], DSC, "check", "--kind",
                 "tokens-raw" if name in ("odd.bin", "one.bin") else "tokens-llmc",
                 b.path(name))
    b.refuse(2, ["magic.bin", "magic number 5", "20240520"], DSC, "check", "--kind", "tokens-llmc",
             b.put("magic.bin", llmc(tokens, magic=5)))


@test
def tokens_above_the_vocabulary_are_found_before_the_first_step(b):
    """Wherever they are: in a sample that this short run never reads, behind the last sample, in the second file."""
    inputs(b)
    count = 16 * 4000 + 9
    good = [i % 256 for i in range(count)]
    for at in (0, 1, 16, 31999, 63999, 64000, count - 1):
        tokens = list(good)
        tokens[at] = 256
        for name, data in (("r.bin", uint16(*tokens)), ("l.bin", llmc(tokens))):
            path = b.put(name, data)
            refuse_data(b, [name, "token 256", f"position {at}", "vocabulary of 256"], path)
    refuse_data(b, ["r.bin", f"position {count - 1}"], b.text, b.path("r.bin"))
    big = b.put("big.bin", uint16(*[65535] * 1000))
    refuse_data(b, ["big.bin", "token 65535", "position 0", "vocabulary of 256"], big)
    b.put("edge.bin", uint16(*[255] * 1000))
    b.accept(*without(b.train, "--data"), "--data", b.path("edge.bin"))
    small = without(b.train, "--model") + ["--model", model(b, 100)]
    b.refuse(2, ["good.txt", "token 116", "position 0", "vocabulary of 100"], *small)
    b.accept(*without(small, "--data"), "--data", b.put("digits.txt", "0123456789" * 100))
    with open(b.path("digits.txt"), "a") as f:
        f.write("x")
    b.refuse(2, ["digits.txt", "token 120", "position 1000"], *without(small, "--data"), "--data", b.path("digits.txt"))
    b.accept(*without(b.train, "--model", "--data"), "--model", model(b, 65536), "--data", big)
    b.nothing_left()


@test
def dsc_check_reads_whole_token_files_when_it_knows_the_vocabulary(b):
    inputs(b)
    tokens = [i % 300 for i in range(100000)]
    raw, head = b.put("r.bin", uint16(*tokens, 50257)), b.put("l.bin", llmc(tokens + [50257]))
    for kind, path in (("tokens-raw", raw), ("tokens-llmc", head)):
        b.accept(DSC, "check", "--kind", kind, path)
        b.accept(DSC, "check", "--kind", kind, "--vocab-size", "50258", path)
        b.refuse(2, [path, "token 50257", "position 100000", "vocabulary of 50257"], DSC, "check", "--kind", kind,
                 "--vocab-size", "50257", path)
        for value in ("0", "-1", "x", "", "1e9"):
            b.refuse(2, "--vocab-size", DSC, "check", "--kind", kind, "--vocab-size", value, path)
    b.refuse(2, "--vocab-size", DSC, "check", "--kind", "config", "--vocab-size", "5", b.config)


@test
def a_terabyte_of_tokens_does_not_delay_the_start(b):
    inputs(b)
    path = b.put("vast.bin", uint16(*[7] * 4096))
    with open(path, "r+b") as f:
        f.truncate(1 << 40)
    r = b.accept(*without(b.train, "--data"), "--data", path)
    check(SAN or r.seconds < (10 if STRICT else 50), "read it all:", r)
    b.put("vast.bin", uint16(300, *[7] * 4096))
    with open(path, "r+b") as f:
        f.truncate(1 << 40)
    refuse_data(b, ["vast.bin", "token 300", "position 0"], path)
