#!/usr/bin/env python3
"""tokenizers_unigram_test.py - Unigram models and SentencePiece's normalizers beside the `tokenizers` package: models that it
trains here, random vocabularies and scores, random compiled normalizers and sentencepiece's own.
SPDX-License-Identifier: Apache-2.0"""
import base64
import io
import json
import os
import random
import unicodedata

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tokenizers_beside import NIGHT, Ours, check, cuts, differs, finish, odd_bytes, same
from charsmap import build_charsmap
from tokenizer_styles import ODD, WORDS, corpus


def nfkc_map():
    """Entries as those of SentencePiece's nmt_nfkc: single characters, letters with marks, white space, control characters."""
    table = {}
    for code in range(1, 0x10000):
        c = chr(code)
        if unicodedata.category(c) in ("Cn", "Cs") or 0x3400 <= code < 0xF900:
            continue
        if unicodedata.normalize("NFKC", c) != c:
            table[c] = unicodedata.normalize("NFKC", c)
        if len(unicodedata.normalize("NFD", c)) > 1 and code < 0x2000:
            table[unicodedata.normalize("NFD", c)] = unicodedata.normalize("NFC", c)
    table.update({c: " " for c in "\t\n\r\f\u1680\u200b\u200e\u2028\u3000\ufeff"})
    table.update({chr(c): "" for c in [*range(1, 9), 0xB, 0x7F]})
    table["\r\n"] = " "
    return build_charsmap(table)


def sentencepiece_maps():
    """The compiled normalizers that sentencepiece writes into its models; none without the package."""
    try:
        import sentencepiece
    except ImportError:
        return {}
    maps = {}
    for rule in ("nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf"):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(["a b c"] * 10), model_writer=model, vocab_size=8,
                                                 normalization_rule_name=rule, hard_vocab_limit=False, minloglevel=9)
        maps[rule] = member(member(model.getvalue(), 3), 2)
    return maps


def member(message, wanted):
    """Bytes of a length-delimited member of a protobuf message."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
    found = None
    while at < len(message):
        tag = varint()
        size = varint() if tag & 7 in (0, 2) else 4 if tag & 7 == 5 else 8
        if tag & 7 != 0:
            if tag >> 3 == wanted and tag & 7 == 2:
                found = message[at:at + size]
            at += size
    return found


def trained(texts, size, byte_fallback=False, normalizer=None, splitter=None):
    t = Tokenizer(models.Unigram())
    if normalizer is not None:
        t.normalizer = normalizer
    if splitter is not None:
        t.pre_tokenizer = splitter
    special = ["<s>", "<pad>", "</s>", "<unk>"] + [f"<0x{b:02X}>" for b in range(256)] * byte_fallback
    t.train_from_iterator(texts, trainers.UnigramTrainer(vocab_size=size + 256 * byte_fallback, show_progress=False,
                                                         special_tokens=special, unk_token="<unk>"))
    file = json.loads(t.to_str())
    file["model"]["byte_fallback"] = byte_fallback
    if byte_fallback:
        file["added_tokens"] = file["added_tokens"][:4]
    return Tokenizer.from_str(json.dumps(file))


def styles(train, charsmap):
    """The published families' parts."""
    precompiled = normalizers.Precompiled(charsmap)
    metaspace = pre_tokenizers.Metaspace("▁", prepend_scheme="always")
    lines = [train[i:i + 2000] for i in range(0, len(train), 2000)]
    ends = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    made = {}

    def add(name, normalizer, splitter, template=None, decoder=decoders.Metaspace("▁", prepend_scheme="always"), **more):
        t = made[name] = trained(lines, 1000, normalizer=normalizer, splitter=splitter, **more)
        t.decoder = decoder
        if template is not None:
            t.post_processor = template
    add("T5", normalizers.Sequence([precompiled, normalizers.Strip(left=False), normalizers.Replace(Regex(" {2,}"), "▁")]), metaspace,
        processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)]))
    add("XLM-R", precompiled, pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace]), ends)
    add("ALBERT", normalizers.Sequence([
        normalizers.Replace("``", '"'), normalizers.Replace("''", '"'), normalizers.NFKD(), normalizers.StripAccents(),
        normalizers.Lowercase(), precompiled, normalizers.Replace(Regex(" {2,}"), " ")]), metaspace, ends)
    add("DeBERTa-v3", normalizers.Sequence([normalizers.Strip(), precompiled, normalizers.Replace(Regex(" {2,}"), " ")]), metaspace, ends)
    add("bytes for unknown characters", normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), None,
        byte_fallback=True, decoder=decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                                       decoders.Strip(" ", 1, 0)]))
    add("Nmt, NFKC", normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()]), metaspace)
    add("Nmt, words without a mark", normalizers.Nmt(), pre_tokenizers.WhitespaceSplit(), decoder=decoders.Fuse())
    add("no other part", None, None, decoder=decoders.Fuse())
    for scheme in ("first", "never"):
        for split in (True, False):
            add(f"Metaspace {scheme}, split={split}", precompiled, pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=split),
                decoder=decoders.Metaspace("▁", prepend_scheme=scheme, split=split))
    return made


EDGES = ["", " ", "a", "\n", "\r\n", " a", "  a  ", "\u2581 \u2581\u2581a", "<s> hi</s> <unk>x<unk>", "<0x41>", "e\u0301", "e\u0301\u0301",
         "ﬁ\u0301 x", "\x01\x02", "\x01a", "a\x01b", "\t\u3000x", "½²", "か\u3099", "\u1112\u1161\u11ab", "👩‍👩‍👧🇩🇪🇫🇷🇩", "क्षि", "``''"]


def published_styles(charsmap):
    """Models of the repository's own pages and of words of many scripts; the text has characters that they do not know."""
    docs = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "ZERO.md")
    with open(docs, encoding="utf-8") as file:
        train = file.read() + " ".join(WORDS * 20)
    text = corpus(22, 400000 if NIGHT else 60000) + train[:20000]
    for name, t in styles(train, charsmap).items():
        ours = Ours(t)
        pieces = [text[i:i + 5000] for i in range(0, len(text), 5000)]
        same(f"{name}: mixed text, ids and back", t, ours, pieces + EDGES + ["".join(ODD), " ".join(WORDS)])
        found = [s for s in range(10) if t.encode(odd_bytes(s).decode("utf-8", "replace")).ids != ours.encode(odd_bytes(s))]
        check(f"{name}: bytes that are no UTF-8 are U+FFFD as in Python", not found)
        lines = "".join(f"Line {i}, x\nnext, it's {i}.\n\n  y\n\u00a0z\n" for i in range(60))
        check(f"{name}: ids of a text that was cut follow each other", cuts(ours, (text[:6000] + lines).encode(), 0))
        ours.close()


def outcome(encode):
    try:
        return encode()
    except Exception:  # the package raises its own kinds
        return "refused"


def random_vocabularies():
    """Few characters, so that pieces overlap; equal and positive scores, a piece twice, the unknown token's own text, bytes."""
    r = random.Random(31)
    chars = ["a", "b", "é", "東", "🙂", "<", "u", ">", " ", "\u0301"]
    wrong, texts, refused = [], 0, 0

    def some(*counts):
        return "".join(r.choice(chars) for _ in range(r.choice(counts)))
    for _ in range(3000 if NIGHT else 400):
        scores = r.choice([[-1.0, -2.0, -3.0], [-r.random() * 9 for _ in range(9)], [0.0, 30.0, -5.5], [1e308, -1e308, 1e300, 0.0]])
        vocab = [(some(1, 1, 2, 2, 3, 4), r.choice(scores)) for _ in range(r.randrange(1, 30))]
        if r.random() < .7:
            vocab.insert(r.randrange(len(vocab) + 1), ("<u>", r.choice(scores)))
        if r.random() < .4:
            wanted = range(256) if r.random() < .5 else b"\xc3\xa9a<"
            vocab += [(f"<0x{b:02X}>", r.choice(scores)) for b in wanted]
        file = {"model": {"type": "Unigram", "unk_id": r.choice([None, 0, r.randrange(len(vocab))]), "vocab": vocab,
                          "byte_fallback": r.random() < .5}}
        t = Tokenizer.from_str(json.dumps({"version": "1.0", "added_tokens": [], **file}))
        ours = Ours(t)
        for _ in range(40):
            text = some(*range(1, 12)) + r.choice(["", "<u>", "q"])
            theirs = outcome(lambda: t.encode(text).ids)
            mine = outcome(lambda: ours.encode(text.encode()))
            texts += 1
            refused += theirs == "refused"
            if theirs != mine:
                wrong.append(f"{text!r}: {theirs}, ours {mine}; {file}")
        ours.close()
    for line in wrong[:3]:
        print(f"# {line}")
    check(f"random vocabularies: {texts} texts, of which some have a character without a token", not wrong and refused > 100)


def random_maps():
    """Entries of one to three characters that become more, fewer, or none, before a Metaspace that asks for a text's start."""
    r = random.Random(41)
    chars = ["a", "b", "é", "e", "\u0301", "\u0327", "\r", "\n", " ", "東", "か", "\u3099", "🙂", "\u200d", "👩", "🇩", "🇪", "\u0600", "ᄒ", "ᅡ",
             "\ufe0f", "\x01", "\u2581"]
    wrong, texts = [], 0

    def some(*counts):
        return "".join(r.choice(chars) for _ in range(r.choice(counts)))
    for _ in range(3000 if NIGHT else 400):
        table = {some(1, 1, 1, 2, 2, 3): some(0, 0, 1, 1, 2, 3) for _ in range(r.randrange(1, 12))}
        t = Tokenizer(models.Unigram([("<unk>", 0.0)] + [(c, -1.0) for c in chars] + [("▁" + c, -1.5) for c in chars], 0, False))
        steps = [normalizers.Precompiled(build_charsmap(table))]
        if r.random() < .4:
            steps.insert(r.randrange(2), r.choice([normalizers.Nmt(), normalizers.Strip(), normalizers.NFD(), normalizers.Lowercase(),
                                                   normalizers.Replace("a", r.choice(["", "bb"])), normalizers.Prepend("b")]))
        t.normalizer = normalizers.Sequence(steps)
        scheme = r.choice(["first", "first", "always", "never"])
        t.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=r.random() < .5)
        t.decoder = decoders.Metaspace("▁", prepend_scheme=scheme)
        t.add_special_tokens(["<s>"])
        ours = Ours(t)
        for _ in range(40):
            text = some(*range(1, 9)) + r.choice(["", "", "<s>" + some(1, 2)])
            texts += 1
            found = differs(t, ours, text)
            if found:
                wrong.append(f"{text!r} with {table} in {t.normalizer}: {found}")
        ours.close()
    for line in wrong[:3]:
        print(f"# {line}")
    check(f"random compiled normalizers: {texts} texts", not wrong)


def every_character(name, charsmap):
    known = [chr(c) for c in range(1, 0x20000) if unicodedata.category(chr(c)) not in ("Cn", "Cs") and not 0x3500 <= c < 0x4D00 and
             not 0x5000 <= c < 0x9F00 and not 0xAD00 <= c < 0xD700]
    t = Tokenizer(models.Unigram([("<unk>", 0.0), *((c, -1.0) for c in known), ("\u0301x", -1.0)], 0, False))
    t.normalizer = normalizers.Precompiled(charsmap)
    t.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="never")
    ours = Ours(t)
    same(f"{name}: {len(known)} characters, alone and with a mark behind", t, ours,
         ["".join(f"{c} {c}\u0301x" for c in known[i:i + 1000]) for i in range(0, len(known), 1000)])
    r = random.Random(5)
    common = [c for c in known if c < "\u3100" or unicodedata.combining(c)]
    same(f"{name}: random characters in a row", t, ours, ["".join(r.choice(common) for _ in range(1000)) for _ in range(60)])
    ours.close()


def hostile_maps():
    """Maps that point outside of themselves are refused, when they are read or when a text needs that place."""
    good, refused, text = nfkc_map(), 0, corpus(3, 3000)
    r = random.Random(51)
    for k in range(200):
        bad = bytearray(good[:r.randrange(len(good))] if k % 4 == 0 else good)
        for _ in range(r.choice([1, 20, 2000])):
            if len(bad) > 8:
                bad[r.randrange(4, min(len(bad), 60000))] = r.randrange(256)
        t = Tokenizer(models.Unigram([("<unk>", 0.0)], 0, False))
        file = json.loads(t.to_str())
        file["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(bad).decode()}
        try:
            ours = Ours(file)
            ours.encode(text.encode())
            ours.close()
        except RuntimeError as error:
            refused += "charsmap" in str(error)
    check("damaged maps are refused or read", refused > 20)


def growing_map():
    """A text that a map makes more than 64 times as long is refused; one below that is read."""
    for length, refused in ((60, False), (200, True)):
        file = json.loads(Tokenizer(models.Unigram([("<unk>", 0.0), ("b", -1.0)], 0, False)).to_str())
        file["normalizer"] = {"type": "Precompiled",
                              "precompiled_charsmap": base64.b64encode(build_charsmap({"a": "b" * length})).decode()}
        ours, said = Ours(file), ""
        try:
            ours.encode(b"a" * 300)
        except RuntimeError as error:
            said = str(error)
        ours.close()
        check(f"a map to {length} characters is {'refused' if refused else 'read'}", ("more than 64 times as long" in said) == refused)


charsmap = nfkc_map()
published_styles(charsmap)
random_vocabularies()
random_maps()
every_character("a map of NFKC", charsmap)
maps = sentencepiece_maps()
for rule, made in maps.items():
    every_character(f"sentencepiece's {rule}", made)
if not maps:
    print("# the sentencepiece package is not installed: its own maps are not compared")
hostile_maps()
growing_map()
finish()
