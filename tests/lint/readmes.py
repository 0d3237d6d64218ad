#!/usr/bin/env python3
"""readmes.py - every folder has a README.md that names each of its source files, by name or by a pattern in backticks.

SPDX-License-Identifier: Apache-2.0
"""
import fnmatch
import os
import re
import subprocess
import sys

SOURCES = (".c", ".h", ".cu", ".cuh", ".cc", ".def", ".py", ".sh", ".sbatch")
WITHOUT = ("tests/fuzz/corpus", "tests/golden", "bench/results")  # inputs and records, not sources


def main():
    files = subprocess.run(["git", "ls-files"], stdout=subprocess.PIPE, check=True, text=True).stdout.split("\n")
    folders, bad = {}, 0
    for path in files:
        folder, name = os.path.split(path)
        if folder and not folder.startswith(".") and not folder.startswith(WITHOUT):
            folders.setdefault(folder, []).append(name)
    for folder, names in sorted(folders.items()):
        names = [name for name in names if name.endswith(SOURCES)]
        if not names:
            continue
        path = os.path.join(folder, "README.md")
        if not os.path.isfile(path):
            print(f"readmes: {folder}: no README.md that names its {len(names)} source files")
            bad = 1
            continue
        with open(path, encoding="utf-8") as file:
            text = file.read()
        patterns = [word for quoted in re.findall(r"`([^`\n]+)`", text) for word in quoted.split() if "*" in word]
        for name in names:
            stem = name.rpartition(".")[0]
            named = re.search(rf"(?<![\w-]){re.escape(stem)}(?![\w-])", text)
            if not named and not any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
                print(f"readmes: {path}: does not name {name}")
                bad = 1
    return bad


if __name__ == "__main__":
    sys.exit(main())
