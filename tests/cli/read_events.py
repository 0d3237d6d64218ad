"""read_events.py - checks what the monitors of a run wrote against its --log: read_events.py EVENT_DIR CSV_DIR LOG BATCH.

TensorBoard's own reader is used where the package is installed, else the records are decoded here: lengths, CRCs
(rfc3720, masked as TFRecord does) and the few fields of an Event. SPDX-License-Identifier: Apache-2.0"""
import csv
import glob
import json
import math
import os
import struct
import sys

TAGS = {"train_loss": "loss", "lr": "lr", "grad_norm": "grad_norm", "loss_scale": "loss_scale",
        "tokens_per_second": "tokens_per_s"}


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def fields(data):
    """(number, value) of every field of a message."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        kind, count = key & 7, {1: 8, 5: 4}.get(key & 7)
        if kind == 0:
            yield key >> 3, varint()
            continue
        count = varint() if kind == 2 else count
        yield key >> 3, data[at:at + count]
        at += count


def records(path):
    data = open(path, "rb").read()
    at = 0
    while at < len(data):
        (length, crc) = struct.unpack_from("<QI", data, at)
        assert crc == masked(data[at:at + 8]), f"{path}: CRC of a length at {at}"
        event = data[at + 12:at + 12 + length]
        assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked(event), f"{path}: CRC of a record at {at}"
        yield event
        at += 16 + length


def own_reader(folder):
    """tag -> {samples: value}; an event of a session's start forgets what an earlier file says of later samples."""
    found = {}
    for path in sorted(glob.glob(os.path.join(folder, "events.out.tfevents.*"))):
        for number, event in enumerate(records(path)):
            parts = dict(fields(event))
            if number == 0:
                assert parts[3] == b"brain.Event:2", parts
            step = parts.get(2, 0)
            if 7 in parts:
                for values in found.values():
                    for samples in [s for s in values if s >= step]:
                        del values[samples]
            for _, value in fields(parts.get(5, b"")):
                scalar = dict(fields(value))
                found.setdefault(scalar[1].decode(), {})[step] = struct.unpack("<f", scalar[2])[0]
    return found


def tensorboard_reader(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    events = EventAccumulator(folder, size_guidance={"scalars": 0})
    events.Reload()
    return {tag: {e.step: e.value for e in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


def csv_reader(folder):
    found = {}
    for path in glob.glob(os.path.join(folder, "*.csv")):
        rows = list(csv.reader(open(path)))
        name = os.path.basename(path)[:-4]
        tag = name.replace("Samples_", "Samples/").replace("Train_", "Train/").replace("Validation_", "Validation/")
        assert rows[0] == ["step", tag.rsplit("/", 1)[1]], (path, rows[0])
        found[tag] = {int(step): float(value) for step, value in rows[1:]}
    return found


def check(name, found, log, batch, exact):
    for tag, key in TAGS.items():
        values = found["Train/Samples/" + tag]
        assert list(values) == [row["step"] * batch for row in log], f"{name}: {tag}: samples {list(values)}"
        for row in log:
            seen, want = values[row["step"] * batch], float(row[key])
            assert seen == want if exact else math.isclose(seen, want, rel_tol=1e-6), f"{name}: {tag}: {seen}, not {want}"
    assert len(found["Validation/Samples/loss"]) >= 1, f"{name}: no validation loss"
    assert "Train/Samples/elapsed_time_ms_backward" in found, f"{name}: no times"


def main():
    events, csvs, log_path, batch = sys.argv[1:4] + [int(sys.argv[4])]
    log = {}
    for line in open(log_path):
        row = json.loads(line)
        log[row["step"]] = row
    log = [log[step] for step in sorted(log)]
    check("TensorBoard", own_reader(events), log, batch, False)
    check("CSV", csv_reader(csvs), log, batch, True)
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        return
    check("its own reader", tensorboard_reader(events), log, batch, False)


if __name__ == "__main__":
    main()
