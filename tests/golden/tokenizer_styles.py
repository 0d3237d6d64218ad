"""tokenizer_styles.py - tokenizers of the published styles, trained by the `tokenizers` package on mixed text made here from a
seed: words of many scripts, code, emoji, odd characters. SPDX-License-Identifier: Apache-2.0"""
import json
import random
import unicodedata

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
          r"|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
STYLES = ["gpt2", "llama3", "qwen", "llama2", "mistral", "bert"]

WORDS = ["the", "and", "ZeRO", "shard", "didn't", "we'll", "I'VE", "it's", "Größe", "naïve", "café", "e\u0301te\u0301", "Москва",
         "привет", "东京", "こんにちは", "か\u3099", "안녕하세요", "\u1112\u1161\u11ab", "مرحبا", "नमस्ते", "ไทย", "Ἀθῆναι", "ﬁne", "½", "²",
         "Ⅷ", "१२३", "12345", "3.14", "1,000,000", "0x1F", "🙂", "👩‍👩‍👧", "🇩🇪", "İstanbul", "'ſ", "'S", "\u212a"]
CODE = ["def f(x):\n    return x**2\n", "for (int i = 0; i < n; i++) {\n\t\ta[i] += b[i];\n}\n", "<html>&nbsp;</html>",
        '{"a": [1, 2, null]}', "#include <stdio.h>\r\n", "x = y  if z else   w;;\n\n\n", "// comment --- !!!\n", "\\n\\t%s%d"]
BLANKS = ["\n", "\n\n", "  ", "    ", "\t", " \n ", "\r\n", ". ", ",", "!?", "...", " -- "]
ODD = ["\u200b", "\u00a0", "\u2003", "\u3000", "\u0085", "\u2028", "\ufeff", "\x01", "\x7f", "\u0301", "\u200d", "\ufffd",
       "\U0010ffff", "\ue000", "\u1680"]


def any_character(r):
    """One that Python knows: what younger versions of Unicode add is a letter to one library and nothing to another."""
    while True:
        c = chr(r.randrange(0x20, 0x110000))
        if unicodedata.category(c) not in ("Cn", "Cs"):
            return c


def corpus(seed, size):
    r = random.Random(seed)
    out, used = [], 0
    while used < size:
        kind = r.random()
        if kind < 0.75:
            s = " " + r.choice(WORDS)
        elif kind < 0.80:
            s = r.choice(CODE)
        elif kind < 0.85:
            s = r.choice(BLANKS)
        elif kind < 0.88:
            s = r.choice(ODD)
        elif kind < 0.97:
            s = "".join(chr(r.choice([r.randrange(0x20, 0x7F), r.randrange(0x20, 0x7F), r.randrange(0xA1, 0x500)]))
                        for _ in range(r.randrange(1, 12)))
        elif kind < 0.98:
            s = r.choice("aé東🙂 \n") * r.randrange(1, 200)
        else:
            s = any_character(r)
        out.append(s)
        used += len(s.encode())
    return "".join(out)


def byte_level(style):
    t = Tokenizer(models.BPE(ignore_merges=style == "llama3"))
    if style == "gpt2":
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        t.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(LLAMA3 if style == "llama3" else QWEN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    if style == "qwen":
        t.normalizer = normalizers.NFC()
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    return t


def sentencepiece(style):
    t = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    if style == "llama2":
        t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        t.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                   decoders.Strip(" ", 1, 0)])
    return t


def wordpiece():
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer()
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    return t


def template(t, first):
    return processors.TemplateProcessing(single=f"{first} $A", pair=f"{first} $A {first} $B",
                                         special_tokens=[(first, t.token_to_id(first))])


def build(style, text, vocab):
    pieces = [text[i:i + 5000] for i in range(0, len(text), 5000)]
    if style in ("llama2", "mistral"):
        t = sentencepiece(style)
        bytes_ = [f"<0x{i:02X}>" for i in range(256)]
        trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=["<unk>", "<s>", "</s>"] + bytes_, limit_alphabet=120,
                                      show_progress=False)
        # Words alone: no published one of these has a token over a line end.
        pieces = [w for p in pieces for line in p.split("\n") for w in line.replace(" ", " \x1f").split("\x1f")]
    elif style == "bert":
        t = wordpiece()
        trainer = trainers.WordPieceTrainer(vocab_size=vocab, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
                                            limit_alphabet=150, show_progress=False)
    else:
        t = byte_level(style)
        special = {"gpt2": ["<|endoftext|>"], "llama3": ["<|begin_of_text|>", "<|end_of_text|>"],
                   "qwen": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]}[style]
        trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=special, show_progress=False,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    t.train_from_iterator(pieces, trainer)
    if style == "llama3":
        t.post_processor = processors.Sequence([t.post_processor, template(t, "<|begin_of_text|>")])
    if style == "bert":
        t.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[(name, t.token_to_id(name)) for name in ("[CLS]", "[SEP]")])
    if style in ("llama2", "mistral"):
        t.post_processor = template(t, "<s>")
        as_json = json.loads(t.to_str())  # bytes are tokens of the model, as in published files, not added ones
        as_json["added_tokens"] = [a for a in as_json["added_tokens"] if not a["content"].startswith("<0x")]
        t = Tokenizer.from_str(json.dumps(as_json))
    return t
