# stuck.py - training that goes on for ever, and what tests of hangs and deaths do to it. SPDX-License-Identifier: Apache-2.0
from harness import *

import random

NIGHT = os.environ.get("DSC_TEST_NIGHT") == "1"


def training(folder, stage=3, **own):
    """A config whose training takes for ever."""
    def write(name, words):  # whole at once: another job may be reading it
        path = os.path.join(folder, name)
        with open(f"{path}.{os.getpid()}", "w") as f:
            f.write(words)
        os.replace(f.name, path)
        return path
    text = write("text.txt", "so it goes, on and on; " * 400)
    path = write(f"hang{stage}-{len(own)}.json", json.dumps({
        "train_batch_size": 12, "bf16": {"enabled": False}, "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
        "dsc": {"model": "gpt2-nano", "data": text, "threads": 1, "seq_length": 16, **own}}))
    return ["train", "--config", path, "--steps", "1000000"]


def until_step(p, step):
    seen = b""
    while f"step {step}/".encode() not in seen:
        piece = os.read(p.stdout.fileno(), 4096)
        check(piece, "ended early", seen, p.stderr.read() if not piece else b"")
        seen += piece


def left_in_memory():
    """Files and sockets of ours where processes share memory or files; folders are other tests'."""
    return {f"{folder}/{n}" for folder in ("/dev/shm", "/tmp") for n in os.listdir(folder) if n.startswith("dsc") and
            not os.path.isdir(f"{folder}/{n}")}


def ranks_of(pids):
    """Rank -> pid of the processes whose environment names a rank."""
    found = {}
    for pid in pids:
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                rank = [v for v in f.read().split(b"\0") if v.startswith(b"RANK=")]
        except OSError:
            continue
        if rank:
            found[int(rank[0][5:])] = pid
    return found


def stop_and_see(p, pid, rank, seconds):
    """SIGSTOP of a rank: the launcher names it within `seconds` and ends the job with code 5."""
    begin = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    _, err = p.communicate(timeout=60)
    took = time.monotonic() - begin
    err = err.decode(errors="replace")
    equal(p.returncode, 5, err)
    stuck = [l for l in err.splitlines() if "stuck: rank" in l]
    equal(len(stuck), 1, err)
    check(f" for rank {rank} (host " in stuck[0] and f"pid {pid})" in stuck[0], stuck[0])
    check(f"rank {rank} is stopped" in stuck[0] and " (step " in stuck[0] and "collective " in stuck[0], stuck[0])
    check(took < seconds * SLOW, f"{took:.1f} s", err)
    equal(err.count("dsc: error:"), 1, err)
    return took
