#!/usr/bin/env python3
"""language.py - checks the language of documents, comments and names: sentence length, openings, private vocabulary.

language.py [PATH...]   checks the tracked files below each PATH (default: all); prints FILE:LINE: finding, exits 1 on any

docs/GLOSSARY.md holds the terms to use instead. CONTRIBUTING.md, section "Language", explains the rules.
SPDX-License-Identifier: Apache-2.0
"""
import io
import re
import subprocess
import sys
import tokenize

WORDS_MAX = 30     # per sentence
COLUMNS_MAX = 140  # per line of Markdown prose

C_FILES = (".c", ".h", ".cu", ".cuh", ".cc", ".def")
HASH_FILES = (".sh", ".mk", ".py", "Makefile", "tests/run", ".ci/run")

# Phrases that a reader has to decode, with the plain ones.
PHRASES = [(re.compile(pattern, re.I), plain) for pattern, plain in (
    (r"\bmanieth\b", "the index of"),
    (r"\b(?:that|which) (?:is|are) none\b", "is invalid"),
    (r"\b(?:is|are|was|were|been|be) told\b(?! apart)", "is reported, passed or configured"),
    (r"\bwhat it is of\b", "name the thing"),
    (r"\bsaid so\b", "requested it"),
    (r"\bat most so (?:often|many|much)\b", "at most N times"),
    (r"\bso many of the (?:first|last)\b", "the first N"),
    (r"\bfinds? (?:no )?room\b", "fits, does not fit"),
    (r"\bways that ranks\b", "local updates"),
    (r"\b(?:walk|walks|walked|gone) alone\b", "run local steps"),
    (r"\btheirs\b", "name the owner and the thing"),
)]

# Identifiers whose word has a standard term (docs/GLOSSARY.md).
NAMES = [(re.compile(pattern), term) for pattern, term in (
    (r"dsc_early\w*", "speculative_update, prefetch"),
    (r"dsc_ahead\w*", "prefetch, read_ahead"),
    (r"dsc_rooms?(?:_\w+)?", "borrowed_memory"),
    (r"dsc_board\w*", "shm_barrier, flight_log"),
    (r"dsc_(?:coeffs|matrices|norms|secondary)(?:_\w+)?", "onebit_lamb, muon, trust_ratio, hpz"),
    (r"dsc_ring(?:_\w+)?", "tile_buffers"),
    (r"dsc_(?:leaf|leaves)(?:_\w+)?", "grad_part"),
    (r"dsc_\w+_(?:told|tell|say|heard|hear)", "log, report, publish, receive"),
    (r"dsc_(?!lock)\w+_takes?", "acquire, compute, consume, load, set"),
    (r"dsc_(?:comm|leaf|sum|config|window|rope|embedding|json)_places?", "rank_info, slot, cursor, source_pos, position"),
    (r"dsc_\w+_turn", "phase, next_slot, poll"),
    (r"dsc_(?:wire|aio|swap|step)_words?", "msg, warning, stats"),
    (r"dsc_own_\w+", "ext_config, local"),
    (r"dsc_(?:cpu_)?team\w*", "thread_pool"),
    (r"dsc_chance\w*", "stochastic_round"),
    (r"dsc_zero_bytes", "fill_zero"),
)]

# A sentence that opens with one of these hides its subject behind a relative clause.
OPENING = re.compile(r"(?:What|Whose|Who|Whoever|Likewise)\b(?!-)|Of (?!course\b)(?:what|which|these|those|them|it)\b", re.S)
ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|etc|vs|resp|Fig|Eq|No|et al)|(?<![\w.])[A-Z])\.$")
SENTENCE_END = re.compile(r"(?<!\.)[.!?][\"')\]*_]*(?=\s|$)")
WORD = re.compile(r"[^\W\d_][\w'’./%:+-]*|\d[\w.,%/-]*")
C_TOKEN = re.compile(r"/\*.*?\*/|(?://[^\n]*(?:\n[ \t]*(?=//))?)+|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])+'", re.S)
# Lines of a comment that belong to no paragraph: bullets, aligned tables, code, rules.
APART = re.compile(r"\s{3,}\S|\s*\S.*[^\s.!?:] {2,}\S|\s*(?:[-+]\s|\d+[.)]\s|[-=]{3,})|\s*[\w*/.-]+(?: \d+)?: ")
FILE_HEAD = re.compile(r"^[\w./*-]+\.[a-z0-9]+ - ")

findings = 0


def report(path, line, text):
    global findings
    findings += 1
    print(f"language: {path}:{line}: {text}")


def sentences(text):
    """Yields (offset, sentence) of a paragraph."""
    begin = 0
    for end in SENTENCE_END.finditer(text):
        sentence = text[begin:end.end()]
        if ABBREVIATION.search(text[begin:end.start() + 1]) and text[end.end():].strip():
            continue
        yield begin + len(sentence) - len(sentence.lstrip()), sentence.strip()
        begin = end.end()
    if text[begin:].strip():
        yield begin + len(text[begin:]) - len(text[begin:].lstrip()), text[begin:].strip()


def check_paragraph(path, rows):
    """rows: [(line number, text)] of one paragraph."""
    text, starts = "", []
    for number, row in rows:
        starts.append((len(text), number))
        text += row.strip() + " "
    text = text.rstrip()
    for offset, sentence in sentences(text):
        line = max((start, number) for start, number in starts if start <= offset)[1]
        count = len(WORD.findall(re.sub(r"`[^`]*`", "code", sentence)))
        if count > WORDS_MAX:
            report(path, line, f"a sentence of {count} words, at most {WORDS_MAX}: split it: {sentence[:60]}...")
        bare = sentence.lstrip("*_\"'(")
        if OPENING.match(bare) and not sentence.rstrip("\"')*_ ").endswith("?"):
            report(path, line, f"start with the noun: {sentence[:60]}...")
        for pattern, plain in PHRASES:
            found = pattern.search(re.sub(r"`[^`]*`", "code", sentence))
            if found:
                report(path, line, f"\"{found.group()}\": say {plain}")


def check_markdown(path, text):
    rows, fence = [], None
    for number, raw in enumerate(text.split("\n") + [""], 1):
        line = raw.strip()
        mark = re.match(r"```+|~~~+", line)
        if mark or fence:
            if mark and (fence is None or line.startswith(fence)):
                fence = None if fence else mark.group()
            line = ""
        if not line or line.startswith(("|", "#", "<")) or (raw.startswith("    ") and not rows) or \
                re.match(r"(?:[-*+]|\d+[.)])\s", line):
            if rows:
                check_paragraph(path, rows)
            rows = []
            if not line or line.startswith(("|", "#", "<")) or raw.startswith("    "):
                continue
            line = re.sub(r"^(?:[-*+]|\d+[.)])\s+", "", line)
        if len(raw) > COLUMNS_MAX:
            report(path, number, f"{len(raw)} columns, at most {COLUMNS_MAX}")
        line = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", line.lstrip("> "))
        rows.append((number, re.sub(r"https?://\S+", "link", line)))


def check_comment(path, line, text):
    rows = []
    for number, row in enumerate(text.split("\n"), line):
        row = re.sub(r"^\s*(?:\*(?!\*)|//|#)\s?", "", row) if number > line else re.sub(FILE_HEAD, "", row.strip())
        row = re.sub(r"SPDX-License-Identifier:\s*\S+", "", row)
        if not row.strip() or (number > line and APART.match(row)):
            if rows:
                check_paragraph(path, rows)
            rows = []
            continue
        rows.append((number, row))
    if rows:
        check_paragraph(path, rows)


def check_c(path, text):
    last = 0
    for token in C_TOKEN.finditer(text):
        check_names(path, text, last, token.start())
        last = token.end()
        value = token.group()
        line = text.count("\n", 0, token.start()) + 1
        if value.startswith("/*"):
            check_comment(path, line, value[2:-2])
        elif value.startswith("//"):
            check_comment(path, line, value[2:])
    check_names(path, text, last, len(text))


def check_names(path, text, begin, end):
    for found in re.finditer(r"[A-Za-z_]\w*", text[begin:end]):
        for pattern, term in NAMES:
            if pattern.fullmatch(found.group()):
                line = text.count("\n", 0, begin + found.start()) + 1
                report(path, line, f"{found.group()}: a private name; the glossary says {term}")


def check_hash(path, text):
    """Comments of scripts and make files; docstrings of Python."""
    if path.endswith(".py"):
        try:
            for token in tokenize.generate_tokens(io.StringIO(text).readline):
                if token.type == tokenize.COMMENT:
                    check_comment(path, token.start[0], token.string.lstrip("#!"))
        except (tokenize.TokenError, IndentationError):
            report(path, 1, "does not parse")
        return
    rows, first = [], 0
    for number, line in enumerate(text.split("\n") + [""], 1):
        body = re.match(r"\s*#(?!!|\s*shellcheck)\s?(.*)", line)
        if body:
            first = first if rows else number
            rows.append(body.group(1))
        elif rows:
            check_comment(path, first, "\n".join(rows))
            rows = []


def main():
    listed = subprocess.run(["git", "ls-files", "--"] + sys.argv[1:], stdout=subprocess.PIPE, check=True, text=True)
    for path in listed.stdout.split("\n"):
        if not path or "/corpus/" in path or "/golden/" in path or path == "tests/lint/language.py":
            continue
        markdown, c, script = path.endswith(".md"), path.endswith(C_FILES), path.endswith(HASH_FILES)
        if not (markdown or c or script):
            continue
        with open(path, encoding="utf-8") as file:
            text = file.read()
        if markdown:
            check_markdown(path, text)
        elif c:
            check_c(path, text)
        else:
            check_hash(path, text)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
