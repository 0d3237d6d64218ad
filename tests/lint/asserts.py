#!/usr/bin/env python3
"""asserts.py - the C files of a folder have at least one assertion per function on average (CONTRIBUTING.md, "Style").

asserts.py FOLDER...   prints each folder below the average with the files that lack most; exits 1 if there is any
asserts.py -v FOLDER...   prints the counts of all files first

Counted are DSC_ASSERT and static assertions. A function is a definition whose first line begins in column 0.
SPDX-License-Identifier: Apache-2.0
"""
import os
import re
import sys

LEAST = 1.0
COMMENT = re.compile(r"/\*.*?\*/", re.S)
FUNCTION = re.compile(r"^(?:\{\s*$|[A-Za-z_][^;=#{}]*\)\s*\{.*$)", re.M)
ASSERTION = re.compile(r"\b(?:DSC_ASSERT|_Static_assert|static_assert)\(")


def count(path):
    with open(path, encoding="utf-8") as file:
        text = COMMENT.sub("", file.read())
    return len(FUNCTION.findall(text)), len(ASSERTION.findall(text))


def main():
    verbose, bad = "-v" in sys.argv[1:], 0
    for folder in [name for name in sys.argv[1:] if name != "-v"]:
        rows = []
        for name in sorted(os.listdir(folder)):
            if name.endswith((".c", ".h")):
                functions, assertions = count(os.path.join(folder, name))
                rows.append((functions - assertions, functions, assertions, name))
        functions, assertions = sum(row[1] for row in rows), sum(row[2] for row in rows)
        for _, of_file, in_file, name in rows if verbose else []:
            print(f"{folder + '/' + name:48} {of_file:5} functions {in_file:5} assertions")
        if assertions < LEAST * functions:
            print(f"asserts: {folder}: {assertions} assertions in {functions} functions, at least {LEAST:.1f} each; most "
                  f"are missing in {', '.join(row[3] for row in sorted(rows, reverse=True)[:3])}")
            bad = 1
    return bad


if __name__ == "__main__":
    sys.exit(main())
