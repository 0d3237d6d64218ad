"""peers.py - looks for the programs that a bench compares with. If one is missing, one line says which and how to get it,
and the bench exits with 77, as a skipped test does. SPDX-License-Identifier: Apache-2.0"""
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
