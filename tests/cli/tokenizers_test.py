#!/usr/bin/env python3
"""tokenizers_test.py - libdsc's tokenizer beside the `tokenizers` package: the six styles on 1 MB of mixed text (5 MB in
test-night), odd bytes, every added token's options, other components. SPDX-License-Identifier: Apache-2.0"""
import random
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tokenizers_beside import NIGHT, Ours, check, cuts, finish, odd_bytes, same
from tokenizer_styles import STYLES, build, corpus


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
    """Components that none of the styles has, and the ids of texts that they let be cut."""
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
    published_patterns(cases, byte_level)
    for name, step in {"Whitespace": pre_tokenizers.Whitespace(), "WhitespaceSplit": pre_tokenizers.WhitespaceSplit(),
                       "Split of words": pre_tokenizers.Split(Regex(r"\w+|[^\w\s]+"), "isolated"),
                       "Split of no words": pre_tokenizers.Split(Regex(r"[^\s\w]+"), "contiguous")}.items():
        cases[f"{name}, then ByteLevel with a space in front"] = byte_level(step, prefix=True, use_regex=False)
        cases[f"{name}, then ByteLevel"] = byte_level(step, use_regex=False)
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
    for drop in ("th", " ", ""):  # a dropped prefix of a text is not its first token
        t = cases[f"Metaspace, first, behind a normalizer that drops {drop!r}"] = build("mistral", train[:20000], 500)
        t.normalizer = normalizers.Replace(drop, "") if drop else normalizers.Sequence(
            [normalizers.NFD(), normalizers.StripAccents(), normalizers.Strip()])
    for fuse in (False, True):
        cases[f"unknown characters, fuse_unk={fuse}"] = t = Tokenizer(models.BPE(
            {"<unk>": 0, "a": 1, "b": 2, " ": 3, "ab": 4, "\n": 5}, [("a", "b")], unk_token="<unk>", fuse_unk=fuse))
    for name, step in {
            "Lowercase": normalizers.Lowercase(), "StripAccents": normalizers.StripAccents(), "Strip": normalizers.Strip(),
            "Strip of one side": normalizers.Sequence([normalizers.Strip(left=False), normalizers.Replace("e", "")]),
            "Replace of a pattern": normalizers.Replace(Regex(r"\s{2,}|[0-9]+"), "#"),
            "NFD, StripAccents, Lowercase": normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(),
                                                                  normalizers.Lowercase()])}.items():
        cases[name] = byte_level()
        cases[name].normalizer = step
    wordpieces(train, cases)
    text = corpus(7, 30000)
    lines = "".join(f"Line {i}, x\nnext, it's {i}.\n\n  y\n\u00a0z\n" for i in range(60))
    for name, t in cases.items():
        ours = Ours(t)
        same(f"{name}: as the package", t, ours, [text[i:i + 3000] for i in range(0, len(text), 3000)] +
             ["", " ", "x y", " x", "the word", "\u0301a b", "\u00b2\u00bd\u200d x"])
        if not cuts(ours, (text[:6000] + lines).encode(), 0):
            check(f"{name}: ids of a text that was cut", False)
        ours.close()


def published_patterns(cases, byte_level):
    """Pre-tokenizers of Falcon, BLOOM, DeepSeek-LLM, Kimi and tiktoken's later patterns; CLIP's suffix of words."""
    isolated = [pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")]
    for use_regex in (True, False):
        t = cases[f"Falcon, use_regex={use_regex}"] = byte_level()
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"),
                                                   pre_tokenizers.ByteLevel(False, use_regex=use_regex), *isolated])
    t = cases["every kind of split behind ByteLevel"] = byte_level()
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(True), pre_tokenizers.Punctuation("merged_with_next"),
                                               pre_tokenizers.Split("\u0120", "merged_with_previous"), pre_tokenizers.Whitespace()])
    bloom = " ?[^(\\s|[.,!?…。，、।۔،])]+"
    cases["BLOOM's pattern"] = byte_level(pre_tokenizers.Split(Regex(bloom), "isolated"), use_regex=False)
    letters = "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-Ֆ]+"
    marks = "\\s?[!-/:-~！-／：-～‘-‟　-。]+"
    cases["DeepSeek-LLM's patterns"] = byte_level(
        *(pre_tokenizers.Split(Regex(p), "isolated") for p in ("[\r\n]", letters, marks, "\\s+$", "[一-龥ࠀ-一가-퟿]+")),
        pre_tokenizers.Digits(individual_digits=True), use_regex=False)
    cases["$ with lines"] = byte_level(pre_tokenizers.Split(Regex("\\s+$|[a-z]$|\\w+"), "removed", invert=True), use_regex=False)
    kimi = ("[\\p{Han}]+|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*"
            "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?"
            "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*"
            "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")
    cases["Kimi's pattern"] = byte_level(pre_tokenizers.Split(Regex(kimi), "isolated"), use_regex=False)
    later = ("'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|\\s++$"
             "|\\s*[\\r\\n]|\\s+(?!\\S)|\\s")
    cases["tiktoken's later pattern of cl100k"] = byte_level(pre_tokenizers.Split(Regex(later), "isolated"), use_regex=False)
    for pattern in ("[^[a-m]e&&[^x]]+", "[[a-z]&&[^aeiou]&&[^n-z]]", "[\\w&&[^\\p{Han}0-9]_]+", "[^\\W&&[\\p{L}]]+"):
        cases[f"Split of {pattern}"] = byte_level(pre_tokenizers.Split(Regex(pattern), "isolated"), use_regex=False)


def suffixes(train):
    """CLIP's words end with </w>, and so do those of OpenAI's first GPT, which have no bytes."""
    text = corpus(8, 30000)
    lines = [train[i:i + 1000] for i in range(0, 60000, 1000)]
    for name, bytes_too in {"CLIP": True, "GPT": False}.items():
        t = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>", fuse_unk=False))
        t.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex("\\s+"), " "), normalizers.Lowercase()])
        clip = "'s|'t|'re|'ve|'m|'ll|'d|[\\p{L}]+|[\\p{N}]|[^\\s\\p{L}\\p{N}]+"
        splits = [pre_tokenizers.Split(Regex(clip), "removed", invert=True), pre_tokenizers.ByteLevel(False)]
        t.pre_tokenizer = pre_tokenizers.Sequence(splits) if bytes_too else pre_tokenizers.BertPreTokenizer()
        t.decoder = decoders.ByteLevel() if bytes_too else decoders.BPEDecoder(suffix="</w>")
        t.train_from_iterator(lines, trainers.BpeTrainer(
            vocab_size=900, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if bytes_too else []))
        ours = Ours(t)
        same(f"{name}: words that end with a suffix", t, ours, [text[i:i + 3000] for i in range(0, len(text), 3000)] +
             ["", " ", "a", "x" * 3000, "东 </w> a</w>"])
        check(f"{name}: ids of a text that was cut", cuts(ours, text.encode(), 0))
        ours.close()


def wordpieces(train, cases):
    def bert(change):
        t = Tokenizer.from_str(build("bert", train[:20000], 500).to_str())
        change(t)
        return t
    for clean in (True, False):
        for accents in (None, True, False):
            for lower in (True, False):
                cases[f"BertNormalizer({clean}, {lower}, {accents}, {lower})"] = bert(lambda t: setattr(
                    t, "normalizer", normalizers.BertNormalizer(clean, lower, accents, lower)))
    cases["WordPiece without clean-up"] = bert(lambda t: setattr(t, "decoder", decoders.WordPiece("##", cleanup=False)))
    cases["WordPiece on words of Whitespace"] = bert(lambda t: setattr(t, "pre_tokenizer", pre_tokenizers.Whitespace()))
    cases["WordPiece on whole texts"] = bert(lambda t: setattr(t, "pre_tokenizer", None))
    cases["BertProcessing"] = bert(lambda t: setattr(t, "post_processor", processors.BertProcessing(
        ("[SEP]", t.token_to_id("[SEP]")), ("[CLS]", t.token_to_id("[CLS]")))))
    vocab = {"[UNK]": 0, "a": 1, "_a": 2, "ab": 3, "_b": 4, "_": 5, "_bé": 6, "é": 7, "x_a": 8, "_aab": 9, "##a": 10, "y": 11}
    for prefix in ("_", "##", ""):
        for most in (0, 3, 100):
            t = cases[f"WordPiece, prefix {prefix!r}, words of {most}"] = Tokenizer(models.WordPiece(
                vocab, unk_token="[UNK]", continuing_subword_prefix=prefix, max_input_chars_per_word=most))
            t.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
            t.decoder = decoders.WordPiece(prefix)


def every_character(train):
    """Each that Python and we know, between letters and beside a mark; but U+11938, which the package does not take apart."""
    ranges = list(range(1, 0x3400)) + list(range(0x4DC0, 0x4E20)) + list(range(0x9FF0, 0xAC10)) + list(range(0xD7A0, 0x18800))
    known = [chr(c) for c in ranges + list(range(0x1AFF0, 0x20010)) + list(range(0x2A6D0, 0x2A710)) +
             list(range(0xE0000, 0xE0200)) if unicodedata.category(chr(c)) not in ("Cn", "Cs") and c != 0x11938]
    if not NIGHT:  # most are letters of scripts without cases, which none of these steps is about
        known = [c for i, c in enumerate(known) if unicodedata.category(c) != "Lo" or i % 20 == 0]
    text = "".join(f"x{c}\u0301y " for c in known)
    for name, step in {
            "clean_text": normalizers.BertNormalizer(True, False, False, False),
            "handle_chinese_chars": normalizers.BertNormalizer(False, True, False, False),
            "strip_accents": normalizers.BertNormalizer(False, False, True, False),
            "Lowercase": normalizers.Lowercase(), "StripAccents": normalizers.StripAccents()}.items():
        t = Tokenizer.from_str(build("gpt2", train[:2000], 300).to_str())
        t.normalizer = step
        ours = Ours(t)
        same(f"{name}: {len(known)} characters", t, ours, [text[i:i + 50000] for i in range(0, len(text), 50000)])
        ours.close()
    t = Tokenizer(models.WordPiece({"[UNK]": 0, "x": 1, "y": 2, "xy": 3}, unk_token="[UNK]", max_input_chars_per_word=100))
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    ours = Ours(t)
    same(f"BertPreTokenizer: {len(known)} characters", t, ours, ["".join(f"x{c}y " for c in known)])
    ours.close()
    t = Tokenizer(models.WordPiece({"[UNK]": 0, "x": 1}, unk_token="[UNK]", max_input_chars_per_word=100))
    t.pre_tokenizer = pre_tokenizers.Split(Regex("\\p{Han}"), "removed")
    ours = Ours(t)
    han = known + [chr(c) for c in (0x3400, 0x4DBF, 0x4E00, 0x9FEF, 0x20010, 0x2A6D6, 0x2F800, 0x30000, 0x3134A)]
    same(f"\\p{{Han}}: {len(han)} characters", t, ours, ["".join(f"x{c}" for c in han)])
    ours.close()


def added_tokens(train):
    r = random.Random(11)
    for seed in range(12):
        style = STYLES[seed % len(STYLES)]
        t = build(style, train[:20000], 500)
        for k, content in enumerate(["<a>", "<a><b>", "word", "\u00e9t\u00e9", " x", "<ab", "ab>", "  ", "THE"]):
            left, right = r.random() < .3, r.random() < .3
            right |= left and content == "  "  # the package fails on blanks that strip their left alone
            token = AddedToken(content, single_word=r.random() < .3, lstrip=left, rstrip=right, normalized=r.random() < .5)
            (t.add_special_tokens if k % 2 else t.add_tokens)([token])
        parts = ["<a>", "<b>", "word", "words", "e\u0301t\u00e9", "\u00e9t\u00e9", " x", "x", "<ab>", " ", "  ", "\n", "q", ".", "é", "the", "THE"]
        t = Tokenizer.from_str(t.to_str())  # as made from a file: the present object also remembers earlier settings
        ours = Ours(t)
        same(f"added tokens with seeded options, {seed}", t, ours,
             ["".join(r.choice(parts) for _ in range(r.randrange(1, 12))) for _ in range(400)])
        ours.close()


def metaspace_first_pieces_are_the_same():
    """Texts of few characters through random normalizers and splits before a Metaspace: what has become of a text's start, if anything
    has, is "first"; a replacement counts as the last character that it replaces."""
    r = random.Random(17)
    chars = ["\u2581", "a", "b", "x", " ", "c", "e", "\u0301", "\u00e9", "\u4e2d", "A", "\u0130", "i", "\u0307"]

    def some(*counts):
        return "".join(r.choice(chars) for _ in range(r.choice(counts)))

    def replace():
        pattern = r.choice(["x+", "^x", "[ab]+", "a.", "..", "^..", "x?a", "\u0301", "^ +"])
        return normalizers.Replace(Regex(pattern) if r.random() < .4 else some(1, 1, 2, 2, 3), some(0, 0, 1, 1, 2))
    steps = [replace, replace, replace, normalizers.Lowercase, lambda: normalizers.Strip(r.random() < .8, r.random() < .5),
             lambda: normalizers.Prepend(r.choice(["x", "\u2581", " a"])), normalizers.StripAccents,
             lambda: getattr(normalizers, r.choice(["NFC", "NFD", "NFKC", "NFKD"]))(),
             lambda: normalizers.BertNormalizer(True, True, r.choice([None, True, False]), False)]
    splits = [pre_tokenizers.WhitespaceSplit, pre_tokenizers.Punctuation, pre_tokenizers.Whitespace, lambda: pre_tokenizers.Digits(True),
              lambda: pre_tokenizers.Split(r.choice("xa "), r.choice(["removed", "isolated", "merged_with_previous", "merged_with_next"]))]
    wrong, texts = [], 0
    for _ in range(3000 if NIGHT else 300):
        vocab = ["<unk>", *chars, "\u2581a", "\u2581b", "\u2581x"]
        t = Tokenizer(models.BPE({c: i for i, c in enumerate(vocab)}, [("\u2581", c) for c in "abx"], unk_token="<unk>"))
        t.normalizer = normalizers.Sequence([r.choice(steps)() for _ in range(r.choice([0, 1, 1, 1, 2, 2, 3]))])
        metaspace = pre_tokenizers.Metaspace(prepend_scheme=r.choice(["first", "first", "always"]), split=r.random() < .5)
        t.pre_tokenizer = pre_tokenizers.Sequence([r.choice(splits)() for _ in range(r.choice([0, 0, 0, 1]))] + [metaspace])
        t.add_special_tokens(["<s>"])
        try:
            ours = Ours(t)
        except RuntimeError as refused:  # two normalizers of Unicode, say: by name
            if "is not built" not in str(refused):
                wrong.append(str(refused))
            continue
        for _ in range(40):
            words = some(*range(1, 7)) + r.choice(["", "", "", "<s>" + some(1, 2)])
            texts += 1
            if t.encode(words).ids != ours.encode(words.encode()):
                wrong.append(f"{words!r} through {t.normalizer} and {t.pre_tokenizer}")
        ours.close()
    for line in wrong[:3]:
        print(f"# {line}")
    check(f"the first piece of a Metaspace: {texts} texts", not wrong and texts > 5000)


train = corpus(1, 200000)
text = corpus(2, 1000000 if NIGHT else 200000)
for style in STYLES:
    style_test(style, train, text)
other_components(train)
every_character(train)
suffixes(train)
added_tokens(train)
metaspace_first_pieces_are_the_same()
finish()
