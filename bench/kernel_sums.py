#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kernel_sums.py FILE.csv... [--steps N] [--all] [--rows N] [--no-grid]

GPU time by kernel, of one training step. FILE is the csv of ncu or of tests/gpu/kernel_trace.c:

    printf 'step\\nstep\\n' | ncu --clock-control none --cache-control none --target-processes all \\
        --metrics gpu__time_duration.sum,dram__bytes.sum --csv --log-file FILE.csv step_worker CONFIG 50257 1024
    kernel_sums.py FILE.csv

The run makes two or three steps. Only kernels of the last one count: the longest row of kernels at the end of the file that
the same row precedes. If the steps differ, --steps N takes the last N-th of the file, and --all takes every kernel. Kernels are
summed by name and grid; the table has N (60) rows. With dram__bytes.sum a row has GB/s; with a column "Start" (ns) the
first line has the time in which no kernel ran. Two files of the same program give the difference by kernel, the second minus
the first."""
import argparse
import collections
import csv
import re
import sys

NS = {"n": 1.0, "u": 1e3, "m": 1e6, "s": 1e9}  # the first letter of nsecond, ns, usecond, us, ms, second
BYTES = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9}
TIME, DRAM = "gpu__time_duration.sum", "dram__bytes.sum"


class Kernel:
    def __init__(self, name, grid):
        self.name, self.grid, self.ns, self.bytes, self.start, self.stream = name, grid, 0.0, 0.0, None, None

    def key(self):
        return self.name, self.grid


def short_name(text):
    """The name without its return type, its arguments and unnamed namespaces."""
    text = re.sub(r"\(anonymous namespace\)::|<unnamed>::", "", text)
    text = re.sub(r"^void ", "", text)
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "<") - (c == ">")
        if c == "(" and depth == 0:
            return text[:i]
    return text


def number(text):
    return float(text.replace(",", ""))


def add_metric(kernel, metric, unit, value):
    """False: a value that cannot be read."""
    try:
        if metric == TIME:
            kernel.ns += number(value) * NS[unit[:1]]
        elif metric == DRAM:
            kernel.bytes += number(value) * BYTES[unit]
    except (ValueError, KeyError):
        return False
    return True


def read(path):
    """Kernels of a file, in its order. ncu writes one line per kernel and metric; lines of other programs are passed over."""
    kernels, by_id, bad = [], {}, 0
    with open(path, newline="", errors="replace") as lines:
        for row in csv.DictReader(line for line in lines if line.startswith('"')):
            if row.get("Kernel Name") is None or row.get("Metric Value") is None:
                bad += 1
                continue
            key = row.get("Process ID"), row.get("ID")
            if key not in by_id or key[1] is None:  # a trace has no numbers: each line is a kernel of its own
                by_id[key] = Kernel(short_name(row["Kernel Name"]), row.get("Grid Size") or "")
                kernels.append(by_id[key])
            bad += not add_metric(by_id[key], row.get("Metric Name"), row.get("Metric Unit") or "", row["Metric Value"])
            by_id[key].stream = row.get("Stream")
            if row.get("Start"):
                by_id[key].start = number(row["Start"])
    if bad:
        print(f"{path}: {bad} lines have no readable kernel or value", file=sys.stderr)
    return kernels


def last_step(kernels):
    """The longest tail that an equal one precedes; None: there is none. With starts, streams overlap differently each time: the
    busiest stream alone says when the last step began."""
    if not kernels or any(kernel.start is None for kernel in kernels):
        return repeated_tail(kernels)
    kernels = sorted(kernels, key=lambda kernel: kernel.start)
    busiest = collections.Counter(kernel.stream for kernel in kernels).most_common(1)[0][0]
    tail = repeated_tail([kernel for kernel in kernels if kernel.stream == busiest])
    return tail and [kernel for kernel in kernels if kernel.start >= tail[0].start]


def repeated_tail(kernels):
    keys = [kernel.key() for kernel in kernels]
    for count in range(len(keys) // 2, 0, -1):
        if keys[-1] == keys[-1 - count] and keys[-count:] == keys[-2 * count:-count]:
            return kernels[-count:]
    return None


def idle_ns(kernels):
    """Time between the first start and the last end in which no kernel ran; None without starts."""
    if not kernels or any(kernel.start is None for kernel in kernels):
        return None
    idle, end = 0.0, None
    for kernel in sorted(kernels, key=lambda kernel: kernel.start):
        if end is not None and kernel.start > end:
            idle += kernel.start - end
        end = max(end or 0.0, kernel.start + kernel.ns)
    return idle


def sums(kernels, with_grid):
    """{name: [ns, count, bytes]}"""
    out = collections.defaultdict(lambda: [0.0, 0, 0.0])
    for kernel in kernels:
        row = out[f"{kernel.name[:100]} {kernel.grid}".rstrip() if with_grid else kernel.name[:100]]
        row[0] += kernel.ns
        row[1] += 1
        row[2] += kernel.bytes
    return out


def show(path, kernels, options):
    total, idle = sum(kernel.ns for kernel in kernels), idle_ns(kernels)
    print(f"{path}: {total * 1e-6:.3f} ms in {len(kernels)} kernels" + (f", {idle * 1e-6:.3f} ms without one" if idle is not None else ""))
    rows = sorted(sums(kernels, not options.no_grid).items(), key=lambda row: -row[1][0])
    for name, (ns, count, bytes_) in rows[:options.rows]:
        speed = f" {bytes_ / ns:7.0f} GB/s" if bytes_ and ns else ""
        print(f"{ns * 1e-6:9.3f} ms {100 * ns / max(total, 1):5.1f} % {count:5d} x {ns * 1e-3 / count:9.1f} us{speed}  {name}")
    rest = rows[options.rows:]
    if rest:
        print(f"{sum(row[1][0] for row in rest) * 1e-6:9.3f} ms in {sum(row[1][1] for row in rest)} kernels of {len(rest)} other rows")


def show_difference(first, second, options):
    a, b = sums(first, not options.no_grid), sums(second, not options.no_grid)
    print(f"difference {sum(k.ns for k in second) * 1e-6 - sum(k.ns for k in first) * 1e-6:+.3f} ms, second minus first")
    rows = sorted(((b[name][0] - a[name][0], name) for name in set(a) | set(b)), key=lambda row: -abs(row[0]))
    for ns, name in rows[:options.rows]:
        print(f"{ns * 1e-6:+9.3f} ms {a[name][1]:5d} -> {b[name][1]:5d} x  {name}")


def one_step(path, options):
    kernels = read(path)
    if options.all:
        return kernels
    if options.steps:
        return kernels[len(kernels) - len(kernels) // options.steps:]
    step = last_step(kernels)
    if step is None:
        print(f"{path}: no two equal steps at its end, so every kernel counts (--steps N takes the last N-th)")
    return kernels if step is None else step


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--rows", type=int, default=60)
    parser.add_argument("--no-grid", action="store_true")
    options = parser.parse_args()
    if (options.steps is not None and options.steps < 1) or options.rows < 1:
        parser.error("--steps and --rows are 1 or more")
    steps = [one_step(path, options) for path in options.files]
    for path, kernels in zip(options.files, steps):
        if not kernels:
            print(f"{path}: no kernels", file=sys.stderr)
            return 1
        show(path, kernels, options)
    if len(steps) == 2:
        show_difference(*steps, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
