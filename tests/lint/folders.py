#!/usr/bin/env python3
"""folders.py - no cycle of folders by #include. A folder and each folder in it count apart.

One line for each cycle names an include for each step. SPDX-License-Identifier: Apache-2.0
"""
import os
import re
import subprocess
import sys

CHECKED = ("base", "kernels", "offload", "comm", "zero", "models", "engine", "launcher", "tools")
SOURCES = (".c", ".h", ".cu", ".cuh", ".cc")


def includes():
    """{folder: {included folder: "FILE includes FILE", the first one}}"""
    command = ["git", "ls-files", "--", *CHECKED]
    files = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout.split("\n")
    steps = {}
    for path in files:
        if not path.endswith(SOURCES):
            continue
        folder = os.path.dirname(path)
        with open(path, encoding="utf-8") as file:
            targets = re.findall(r'^\s*#\s*include\s+"([^"]+)"', file.read(), re.MULTILINE)
        for target in targets:
            inner = os.path.dirname(target)
            if inner not in ("", folder):  # without a folder: the file's own
                steps.setdefault(folder, {}).setdefault(inner, f"{path} includes {target}")
    return steps


def way_back(steps, start, end):
    """Folders of the shortest way from start to end; None: there is no way."""
    ways = [[start]]
    seen = {start}
    for way in ways:
        if way[-1] == end:
            return way
        for following in sorted(steps.get(way[-1], {})):
            if following not in seen:
                seen.add(following)
                ways.append(way + [following])
    return None


def main():
    steps = includes()
    told = set()
    for folder in sorted(steps):
        for inner in sorted(steps[folder]):
            way = way_back(steps, inner, folder)
            if way is None or frozenset(way) in told:
                continue
            told.add(frozenset(way))
            reasons = [steps[a][b] for a, b in zip([folder] + way, way)]
            print(f"folders: {' -> '.join([folder] + way)}: {'; '.join(reasons)}; move a file so that one way remains")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
