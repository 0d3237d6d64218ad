"""peers.py - what a bench does where a program that it is compared with is missing: one line that says what and how to
get it, and exit 77, as tests that are skipped. SPDX-License-Identifier: Apache-2.0"""
import os
import shutil
import sys

FIO = "fio is not installed (apt-get install fio)"


def has_fio():
    return shutil.which("fio") is not None


def skip(bench, why):
    print(f"{bench}: skipped: {why}", flush=True)
    sys.exit(77)


def python_of(bench, peers):
    """The program of PEERS/venv."""
    python = f"{peers}/venv/bin/python"
    if not os.access(python, os.X_OK):
        skip(bench, f"PEERS={peers} has no venv/bin/python: make one there (python3 -m venv) that has torch and deepspeed")
    return python
