#!/usr/bin/env python3
# demo_vision_data.py DIR - scikit-learn's handwritten digits as IDX files: 1500 to train on in DIR/train-*, 297 to validate in
# DIR/t10k-*. They come from an installed scikit-learn or Debian's python3-sklearn, else from its wheel on PyPI. Exit code 3: from
# neither. SPDX-License-Identifier: Apache-2.0
import glob, gzip, importlib.util, os, struct, subprocess, sys, tempfile, zipfile

MEMBER, SIDE, COUNT, TRAIN = "sklearn/datasets/data/digits.csv.gz", 8, 1797, 1500


def installed():
    found = importlib.util.find_spec("sklearn")
    path = os.path.join(os.path.dirname(found.origin), "datasets/data/digits.csv.gz") if found and found.origin else ""
    if os.path.isfile(path):
        with open(path, "rb") as file:
            return file.read()
    return None


def downloaded():
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary",
                   ":all:", "--dest", folder, "scikit-learn"]
        try:
            subprocess.run(command, check=True, timeout=120, stderr=subprocess.DEVNULL)
            with zipfile.ZipFile(glob.glob(folder + "/*.whl")[0]) as wheel:
                return wheel.read(MEMBER)
        except (OSError, subprocess.SubprocessError, IndexError, KeyError, zipfile.BadZipFile):
            return None


def write(folder, name, rows):
    with open(f"{folder}/{name}-images-idx3-ubyte", "wb") as file:
        file.write(struct.pack(">4I", 0x803, len(rows), SIDE, SIDE))
        for row in rows:  # levels are 0 to 16
            file.write(bytes(min(255, level * 16) for level in row[:-1]))
    with open(f"{folder}/{name}-labels-idx1-ubyte", "wb") as file:
        file.write(struct.pack(">2I", 0x801, len(rows)) + bytes(row[-1] for row in rows))


def main(folder):
    data = installed() or downloaded()
    if data is None:
        sys.exit(3)
    rows = [[int(float(number)) for number in line.split(",")] for line in gzip.decompress(data).decode().split()]
    assert len(rows) == COUNT and all(len(row) == SIDE * SIDE + 1 for row in rows), "another file of digits than expected"
    write(folder, "train", rows[:TRAIN])
    write(folder, "t10k", rows[TRAIN:])


main(sys.argv[1])
