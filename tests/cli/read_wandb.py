"""read_wandb.py - checks the offline runs that a run's starts wrote against its --log: read_wandb.py FOLDER LOG BATCH
STARTS.

The file is decoded here: a head, LevelDB's log format with zlib's CRC, Record messages. If the wandb package is
installed, its own messages are checked too, and its own reader of the file if it still has one.
SPDX-License-Identifier: Apache-2.0"""
import glob
import json
import math
import struct
import sys
import zlib

from read_events import TAGS, fields

RUN, HEADER, HISTORY, SUMMARY, EXIT = 17, 21, 2, 3, 18


def records(path):
    """The bytes of each record; log_format.md of LevelDB."""
    data = open(path, "rb").read()
    assert data[:7] == b":W&B\xe1\xbe\x00", f"{path}: {data[:7]}"
    at, whole = 7, b""
    while at < len(data):
        left = 32768 - at % 32768
        if left < 7:
            assert data[at:at + left] == bytes(left), f"{path}: the end of the block at {at}"
            at += left
            continue
        crc, length, kind = struct.unpack_from("<IHB", data, at)
        part = data[at + 7:at + 7 + length]
        assert len(part) == length and length <= left - 7, f"{path}: a part of {length} bytes at {at}"
        assert crc == zlib.crc32(bytes([kind]) + part), f"{path}: CRC at {at}"
        assert (kind in (1, 2)) == (whole == b"") or kind == 4, f"{path}: kind {kind} at {at}"
        whole += part
        at += 7 + length
        if kind in (1, 4):
            yield whole
            whole = b""
    assert whole == b"", f"{path}: ends inside a record"


def items(message):
    out = {}
    for number, value in fields(message):
        if number == 1:
            item = dict(fields(value))
            out[item[1].decode()] = json.loads(item[16])
    return out


def packages_reader(path):
    """The same records through wandb: None where it is not installed."""
    try:
        from wandb.proto import wandb_internal_pb2
    except ImportError:
        return None
    out = []
    try:
        import wandb
        from wandb.sdk.internal.datastore import DataStore
        wandb._assert_is_internal_process = True # as `wandb sync` says
        store = DataStore()
        store.open_for_scan(path)
        for data in iter(store.scan_data, None):
            out.append(data)
    except ImportError: # later versions read it in another language
        out = list(records(path))
    parsed = [wandb_internal_pb2.Record.FromString(data) for data in out]
    assert [r.num for r in parsed] == list(range(1, len(parsed) + 1))
    assert parsed[0].WhichOneof("record_type") == "header" and parsed[1].run.project == "deepspeed"
    assert parsed[1].run.run_group == "a group" and parsed[1].run.run_id == path[-14:-6]
    assert [r.WhichOneof("record_type") for r in parsed].count("exit") == 1
    steps = {r.history.step.num: {i.key: json.loads(i.value_json) for i in r.history.item}
             for r in parsed if r.WhichOneof("record_type") == "history"}
    return steps


def own_reader(path):
    steps, kinds = {}, []
    for number, record in enumerate(records(path), 1):
        (one, num), (kind, message) = list(fields(record))
        assert (one, num) == (1, number), f"{path}: record {number} says {num}"
        kinds.append(kind)
        if kind == RUN:
            run = dict(fields(message))
            assert items(run[4])["model"] == "gpt2-nano" and items(run[4])["ranks"] == 2, items(run[4])
        if kind == HISTORY:
            step = dict(fields(dict(fields(message))[2]))[1]
            assert step not in steps, f"{path}: step {step} twice"
            steps[step] = items(message)
            assert steps[step]["_step"] == step
    assert kinds[:2] == [HEADER, RUN] and kinds[-1] == EXIT
    assert kinds[2:-1] == [SUMMARY, HISTORY] * len(steps)
    return steps


def main():
    folder, log, batch, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    # Starts of the same second differ in the random part of the name alone: the first steps tell them apart.
    starts = sorted((own_reader(p) for p in glob.glob(f"{folder}/offline-run-*/run-*.wandb")), key=min)
    for path in glob.glob(f"{folder}/offline-run-*/run-*.wandb"):
        theirs = packages_reader(path)
        if theirs is None:
            break
        assert theirs == own_reader(path), path
    assert len(starts) == count, len(starts)
    steps = {}
    for start in starts:
        assert list(start) == sorted(start)
        steps.update(start)
    # A run that resumes goes on in the same log.
    said = {line["step"] * batch: line for line in map(json.loads, open(log)) if "loss" in line}
    assert set(steps) == set(said), (sorted(steps), sorted(said))
    for samples, line in said.items():
        for tag, name in TAGS.items():
            number = steps[samples]["Train/Samples/" + tag]
            assert math.isclose(number, line[name], rel_tol=1e-8), (samples, tag, number, line[name])
    print(f"{len(said)} steps of {len(starts)} starts")


if __name__ == "__main__":
    main()
