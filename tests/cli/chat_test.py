#!/usr/bin/env python3
"""chat_test.py - chat templates beside jinja2 with the settings of transformers: random conversations with tools and
system prompts through the templates of tests/golden/chat and of the folders in DSC_CHAT_TEMPLATES, and random
expressions. The hashes of golden/chat/hashes.txt are compared with or without jinja2, for each template that is found.
Arguments: the program chat_render. SPDX-License-Identifier: Apache-2.0"""
import glob
import importlib.util
import json
import os
import random
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "..", "golden")
sys.path.insert(0, GOLDEN)
from chat_conversations import conversation  # noqa: E402
from chat_hashes import COUNT as HASHED, hash_template, read_hashes, template_hash  # noqa: E402

try:
    from chat_reference import Theirs
except ImportError:
    Theirs = None

NOW = 1764201600  # 2025-11-27, as in chat_reference.py

NIGHT = os.environ.get("DSC_TEST_NIGHT") == "1"
COUNT = int(os.environ.get("DSC_CHAT_CONVERSATIONS", "200" if NIGHT else "15"))
UNSUPPORTED = 3  # DSC_ERR_UNSUPPORTED


class Ours:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def render(self, template, variables):
        """(output, spans) or (None, (status, message)); an empty template is the one before."""
        template, context = template.encode(), json.dumps(variables, ensure_ascii=False).encode()
        self.process.stdin.write(b"%d %d %d\n" % (len(template), len(context), NOW) + template + context)
        self.process.stdin.flush()
        line = self.process.stdout.readline().split()
        if len(line) != 3:
            sys.exit(f"chat_render ended: exit {self.process.wait()}")
        status, count, _ = map(int, line)
        text = self.process.stdout.read(count)
        spans = [int(x) for x in self.process.stdout.readline().split()]
        if status != 0:
            return None, (status, text.decode(errors="replace"))
        return text, list(zip(spans[::2], spans[1::2]))


# ---- Comparison ----

class Result:
    def __init__(self, name):
        self.name, self.equal, self.refused, self.opened = name, 0, 0, False
        self.unsupported, self.wrong = [], []

    def add(self, ours, theirs, variables):
        if ours[0] is not None and ours == theirs:
            self.equal += 1
        elif ours[0] is None and theirs[0] is None:
            self.refused += 1
        elif ours[0] is None and (ours[1][0] == UNSUPPORTED or (theirs[0] is not None and b" at 0x" in theirs[0])):
            self.unsupported.append(ours[1][1])
        else:
            self.wrong.append((variables, ours, theirs))

    def line(self):
        text = f"{self.name}: {self.equal} equal, {self.refused} refused by both, {len(self.unsupported)} unsupported, " \
               f"{len(self.wrong)} wrong"
        return text + (f" ({self.unsupported[0][:150]})" if self.unsupported else "")

    def explain(self):
        for variables, ours, theirs in self.wrong[:1]:
            print("#   context:", json.dumps(variables, ensure_ascii=False)[:3000])
            print("#   ours:  ", repr(ours)[:1500])
            print("#   theirs:", repr(theirs)[:1500])


def compare_file(ours, path, count):
    with open(path, encoding="utf-8", newline="") as file:
        text = file.read()
    theirs, rng, result = Theirs(text), random.Random(os.path.basename(path)), Result(os.path.basename(path))
    for i in range(count):
        variables = conversation(rng)
        result.add(ours.render(text if i == 0 or not result.opened else "", variables), theirs.render(variables), variables)
        result.opened = True
    return result


# ---- Random expressions ----

# Only variables: jinja2 computes constant expressions with other rules, which matter for wrong types alone.
VARIABLES = {"i": 1, "z": 0, "j": -3, "f": 2.5, "t": "ab", "c": "a,b c", "e": "", "x": 5, "s": " some Text, a\tb ", "n": None,
             "b": True, "m": [1, 2, 3], "w": ["b", "A", "c"], "k": {"k": 1, "j": [2]}, "a": "\u00e9x", "h": 1000, "o": [],
             "d": {"k": "v", "n": None, "z": 1.0, "items": 3}, "l": ["b", {"k": 2}, "A", 1.5, None]}
ATOMS = sorted(VARIABLES) + ["u", "[i, x]", "{'k': i, t: m}", "(i, t)", "range(x)", "d.items()", "l[1:]", "s[::-1]", "d.k", "d['n']"]
FILTERS = ["trim", "upper", "lower", "title", "capitalize", "length", "first", "last", "list", "join(',')", "string", "int", "float",
           "tojson", "tojson(indent=2)", "default('D')", "default('D', true)", "replace('a', 'o')", "reverse", "sort", "unique",
           "items", "dictsort", "map('string')", "select", "reject('none')", "map('upper')", "sum", "min", "max", "abs",
           "indent(2)", "select('string')", "sort(reverse=true)", "tojson(sort_keys=true)", "count", "map(attribute='k')"]
TESTS = ["defined", "undefined", "none", "string", "mapping", "sequence", "iterable", "number", "integer", "float", "boolean",
         "true", "false", "odd", "even", "divisibleby 2", "in [1, 'ab']", "eq 1", "callable", "lt 3", "not none"]
METHODS = [".strip()", ".split()", ".split(',')", ".upper()", ".title()", ".items()", ".get('k', 5)", ".startswith('a')", ".keys()",
           ".endswith(('b', 'c'))", ".rsplit(' ', 1)", ".values()", ".replace('b', '')", ".splitlines()", ".count('a')", ".find('b')",
           ".lstrip('a')", ".partition(',')", ".join(['p', 'q'])", ".capitalize()", "[0]", "[-1]", "['k']", ".k", "[1:]", "[::-1]",
           "[:2]", "[-2::2]", ".nothing", "[5]", ".append", ".removeprefix('a')", ".isdigit()"]
BINARY = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "and", "or", "in", "not in"]


def expression(rng, depth=0):
    kind = rng.randrange(10) if depth < 3 else 0
    if kind < 3:
        return rng.choice(ATOMS)
    if kind < 5:
        return f"({expression(rng, depth + 1)} {rng.choice(BINARY)} {expression(rng, depth + 1)})"
    if kind == 5:
        return f"({expression(rng, depth + 1)} if {expression(rng, depth + 1)} else {expression(rng, depth + 1)})"
    if kind == 6:
        return f"({expression(rng, depth + 1)} is {rng.choice(['', 'not '])}{rng.choice(TESTS[:-1])})"
    if kind == 7:
        return f"({expression(rng, depth + 1)}|{rng.choice(FILTERS)})"
    return f"({expression(rng, depth + 1)}){rng.choice(METHODS)}"


def compare_expressions(ours, count):
    rng, result = random.Random(5), Result("expressions")
    for _ in range(count):
        text = "{{ " + expression(rng) + " }}" + rng.choice(["", "|{% for y in " + expression(rng) + " %}[{{ y }}]{% endfor %}"])
        result.add(ours.render(text, VARIABLES), Theirs(text).render(VARIABLES), text)
    return result


# ---- Golden hashes ----

def opened_by(ours):
    def open_template(text):
        pending = [text]
        return lambda variables: ours.render(pending.pop() if pending else "", variables)
    return open_template


def compare_hashes(ours, paths):
    """(line, all are equal) for all templates whose hash is known."""
    known, equal, wrong = read_hashes(), 0, []
    for path in paths:
        with open(path, encoding="utf-8", newline="") as file:
            expected = known.get(template_hash(file.read()))
        if expected is not None:
            same = hash_template(path, opened_by(ours))[2] == expected
            equal += same
            wrong += [] if same else [os.path.basename(path)]
    return f"{HASHED} conversations in each of {equal} templates have their golden hash; others: {wrong[:5]}", not wrong and equal


def main():
    ours = Ours(sys.argv[1])
    folders = [os.path.join(GOLDEN, "chat")] + [folder for folder in os.environ.get("DSC_CHAT_TEMPLATES", "").split(":") if folder]
    trl = importlib.util.find_spec("trl")
    hashed = folders + ([os.path.join(os.path.dirname(trl.origin), "chat_templates")] if trl else [])
    text, good = compare_hashes(ours, [path for folder in hashed for path in sorted(glob.glob(f"{folder}/*.jinja"))])
    print(f"{'ok' if good else 'not ok'} 1 - {text}")
    if Theirs is None:
        print("ok 2 - templates beside jinja2 # SKIP jinja2 3.1 is not installed\n1..2")
        return 0 if good else 1
    number, failed = 1, not good
    results = [compare_file(ours, path, COUNT) for folder in folders for path in sorted(glob.glob(f"{folder}/*.jinja"))]
    results.append(compare_expressions(ours, 100000 if NIGHT else 1000))
    for result in results:
        number += 1
        good = not result.wrong and (result.equal or result.refused)
        failed |= not good
        print(f"{'ok' if good else 'not ok'} {number} - {result.line()}")
        if not good:
            result.explain()
    print(f"1..{number}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
