#!/usr/bin/env python3
"""tokenizers_beside.py - libdsc's tokenizer through ctypes, and checks that hold it against the `tokenizers` package.
sys.argv[1] is libdsc.so. SPDX-License-Identifier: Apache-2.0"""
import ctypes
import json
import os
import random
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden"))

lib = ctypes.CDLL(sys.argv[1])
lib.dsc_tokenizer_cut.restype = ctypes.c_int64
NIGHT = os.environ.get("DSC_TEST_NIGHT") == "1"
SPECIAL, GOES_ON = 1, 2


class Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("rank", ctypes.c_int32), ("where", ctypes.c_char * 256),
                ("message", ctypes.c_char * 512), ("file", ctypes.c_char_p), ("line", ctypes.c_int32)]


class Ours:
    """A tokenizer of the package, or the parsed text of a tokenizer.json, opened by libdsc."""

    def __init__(self, theirs):
        self.tokenizer, self.encoder = ctypes.c_void_p(), ctypes.c_void_p()
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            f.write(theirs.to_str() if hasattr(theirs, "to_str") else json.dumps(theirs))
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


def finish():
    print(f"1..{count}")


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


def cuts(ours, data, least=20):
    whole = ours.encode(data, 0)
    r = random.Random(3)
    made = 0
    for _ in range(40):
        at = ours.cut(data[:r.randrange(len(data))])
        made += at > 0
        if at > 0 and ours.encode(data[:at], 0) + ours.encode(data[at:], GOES_ON) != whole:
            print(f"# cut at {at}")
            return False
    return made >= least
