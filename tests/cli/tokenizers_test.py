#!/usr/bin/env python3
"""tokenizers_test.py - libdsc's tokenizer beside the `tokenizers` package: the five styles on 1 MB of mixed text (5 MB in
test-night), odd bytes, every added token's options, other components. SPDX-License-Identifier: Apache-2.0"""
import ctypes
import os
import random
import sys
import tempfile

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden"))
from tokenizer_styles import STYLES, build, corpus  # noqa: E402

lib = ctypes.CDLL(sys.argv[1])
lib.dsc_tokenizer_cut.restype = ctypes.c_int64
NIGHT = os.environ.get("DSC_TEST_NIGHT") == "1"
SPECIAL, GOES_ON = 1, 2


class Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("rank", ctypes.c_int32), ("where", ctypes.c_char * 256),
                ("message", ctypes.c_char * 512), ("file", ctypes.c_char_p), ("line", ctypes.c_int32)]


class Ours:
    def __init__(self, theirs):
        self.tokenizer, self.encoder = ctypes.c_void_p(), ctypes.c_void_p()
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            f.write(theirs.to_str())
            f.flush()
            self.call(lib.dsc_tokenizer_open, ctypes.byref(self.tokenizer), f.name.encode())
        self.call(lib.dsc_encoder_open, ctypes.byref(self.encoder), self.tokenizer)

    def call(self, function, *args):
        err = Error()
        if function(*args, ctypes.byref(err)) != 0:
            raise RuntimeError(f"{err.where.decode()}: {err.message.decode()}")

    def encode(self, data, flags=SPECIAL):
        ids, count = ctypes.POINTER(ctypes.c_int32)(), ctypes.c_int64()
        self.call(lib.dsc_encode, self.encoder, ctypes.c_char_p(data), ctypes.c_int64(len(data)), flags, ctypes.byref(ids),
                  ctypes.byref(count))
        return ids[:count.value]

    def decode(self, ids, skip):
        text, count = ctypes.c_char_p(), ctypes.c_int64()
        self.call(lib.dsc_decode, self.encoder, (ctypes.c_int32 * len(ids))(*ids), ctypes.c_int64(len(ids)), ctypes.c_bool(skip),
                  ctypes.byref(text), ctypes.byref(count))
        return ctypes.string_at(text, count.value)

    def cut(self, data):
        return lib.dsc_tokenizer_cut(self.tokenizer, ctypes.c_char_p(data), ctypes.c_int64(len(data)))

    def close(self):
        lib.dsc_encoder_close(ctypes.byref(self.encoder))
        lib.dsc_tokenizer_close(ctypes.byref(self.tokenizer))


count = 0


def check(name, good):
    global count
    count += 1
    print(f"{'ok' if good else 'not ok'} {count} - {name}", flush=True)


def differs(theirs, ours, text):
    """The first difference, "" when there is none."""
    ids = theirs.encode(text).ids
    mine = ours.encode(text.encode())
    if ids != mine:
        at = next((i for i in range(min(len(ids), len(mine))) if ids[i] != mine[i]), min(len(ids), len(mine)))
        return f"ids from {at} on: {[theirs.id_to_token(i) for i in ids[at:at + 4]]}, ours {[theirs.id_to_token(i) for i in mine[at:at + 4]]}"
    for skip in (True, False):
        if theirs.decode(ids, skip_special_tokens=skip).encode() != ours.decode(ids, skip):
            return f"text of {len(ids)} ids, skip_special_tokens={skip}"
    return ""


def same(name, theirs, ours, texts):
    found = [d for d in (differs(theirs, ours, t) for t in texts) if d]
    for d in found[:3]:
        print(f"# {name}: {d}")
    check(name, not found)


def odd_bytes(seed):
    r = random.Random(seed)
    return bytes(r.choice(b"\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82\xff\x61\x20\xed\xa0\x80\xc0") for _ in range(3000))


def cuts(ours, data):
    whole = ours.encode(data, 0)
    r = random.Random(3)
    made = 0
    for _ in range(40):
        at = ours.cut(data[:r.randrange(len(data))])
        made += at > 0
        if at > 0 and ours.encode(data[:at], 0) + ours.encode(data[at:], GOES_ON) != whole:
            print(f"# cut at {at}")
            return False
    return made > 20


def style_test(style, train, text):
    theirs = build(style, train, 2000)
    ours = Ours(theirs)
    pieces = [text[i:i + 20000] for i in range(0, len(text), 20000)]
    edges = ["", "a", " ", "\n", " a", "  a  ", "\u2581 \u2581\u2581a", "<|endoftext|>x <|endoftext|>", "<s> hi</s> <s>", "<0x41>"]
    same(f"{style}: {len(text.encode())} bytes of mixed text, ids and back", theirs, ours, [text] + pieces + edges)
    found = [s for s in range(10) if theirs.encode(odd_bytes(s).decode("utf-8", "replace")).ids != ours.encode(odd_bytes(s))]
    check(f"{style}: bytes that are no UTF-8 are U+FFFD as in Python", not found)
    lines = "".join(f"line {i} x\nnext, it's {i}.\n\n  y\n\u00a0z\n" for i in range(300)).encode()
    check(f"{style}: ids of a text that was cut follow each other", cuts(ours, text[:60000].encode() + lines))
    ours.close()


def other_components(train):
    """Components that none of the styles has."""
    def byte_level(*splits, prefix=False, use_regex=True):
        t = Tokenizer.from_str(build("gpt2", train[:20000], 400).to_str())
        t.pre_tokenizer = pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(prefix, use_regex=use_regex)])
        return t
    o200k = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
             r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
             r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    cl100k = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
    cases = {
        "ByteLevel with a space in front": byte_level(prefix=True),
        "o200k's pattern": byte_level(pre_tokenizers.Split(Regex(o200k), "isolated"), use_regex=False),
        "cl100k's pattern": byte_level(pre_tokenizers.Split(Regex(cl100k), "isolated"), use_regex=False),
        "Digits, then ByteLevel": byte_level(pre_tokenizers.Digits(individual_digits=True)),
        "Digits in rows": byte_level(pre_tokenizers.Digits(individual_digits=False)),
        "Punctuation": byte_level(pre_tokenizers.Punctuation(), use_regex=False),
        "WhitespaceSplit": byte_level(pre_tokenizers.WhitespaceSplit(), use_regex=False),
    }
    for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        for invert in (False, True):
            cases[f"Split, {behavior}{', inverted' if invert else ''}"] = byte_level(
                pre_tokenizers.Split(Regex(r"\s|[aeiou]"), behavior, invert=invert), use_regex=False)
    for name in ("NFC", "NFD", "NFKC", "NFKD"):
        cases[name] = byte_level()
        cases[name].normalizer = getattr(normalizers, name)()
    for scheme in ("always", "first", "never"):
        for split in (False, True):
            t = cases[f"Metaspace, {scheme}, split={split}"] = build("mistral", train[:20000], 500)
            t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)
            t.decoder = decoders.Metaspace(prepend_scheme=scheme, split=split)
    for fuse in (False, True):
        cases[f"unknown characters, fuse_unk={fuse}"] = t = Tokenizer(models.BPE(
            {"<unk>": 0, "a": 1, "b": 2, " ": 3, "ab": 4, "\n": 5}, [("a", "b")], unk_token="<unk>", fuse_unk=fuse))
    text = corpus(7, 30000)
    for name, t in cases.items():
        ours = Ours(t)
        same(f"{name}: as the package", t, ours, [text[i:i + 3000] for i in range(0, len(text), 3000)] + ["", " ", "x y"])
        ours.close()


def added_tokens(train):
    r = random.Random(11)
    for seed in range(6):
        style = STYLES[seed % len(STYLES)]
        t = build(style, train[:20000], 500)
        # Where a normalizer prepends, releases differ in what name an added token that is normalised decodes to.
        normal = 0 if style == "llama2" else .5
        for k, content in enumerate(["<a>", "<a><b>", "word", "\u00e9t\u00e9", " x", "<ab", "ab>"]):
            token = AddedToken(content, single_word=r.random() < .3, lstrip=r.random() < .3, rstrip=r.random() < .3,
                               normalized=r.random() < normal)
            (t.add_special_tokens if k % 2 else t.add_tokens)([token])
        parts = ["<a>", "<b>", "word", "words", "e\u0301t\u00e9", "\u00e9t\u00e9", " x", "x", "<ab>", " ", "  ", "\n", "q", ".", "é"]
        ours = Ours(t)
        same(f"added tokens with seeded options, {seed}", t, ours,
             ["".join(r.choice(parts) for _ in range(r.randrange(1, 12))) for _ in range(400)])
        ours.close()


train = corpus(1, 200000)
text = corpus(2, 1000000 if NIGHT else 200000)
for style in STYLES:
    style_test(style, train, text)
other_components(train)
added_tokens(train)
print(f"1..{count}")
