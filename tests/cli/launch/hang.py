# hang.py - ranks that do not come to a collective: named by the launcher, whoever else waits for them.
# SPDX-License-Identifier: Apache-2.0
from harness import *

NIGHT = os.environ.get("DSC_TEST_NIGHT") == "1"


def training(folder, stage=3, **own):
    """A config whose training takes for ever."""
    text = os.path.join(folder, "text.txt")
    with open(text, "w") as f:
        f.write("so it goes, on and on; " * 400)
    path = os.path.join(folder, f"hang{stage}-{len(own)}.json")
    with open(path, "w") as f:
        json.dump({"train_batch_size": 12, "bf16": {"enabled": False}, "zero_optimization": {"stage": stage},
                   "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
                   "dsc": {"model": "gpt2-nano", "data": text, "threads": 1, "seq_length": 16, **own}}, f)
    return ["train", "--config", path, "--steps", "1000000"]


def until_step(p, step):
    seen = b""
    while f"step {step}/".encode() not in seen:
        piece = os.read(p.stdout.fileno(), 4096)
        check(piece, "ended early", seen, p.stderr.read() if not piece else b"")
        seen += piece


def ranks_of(pids):
    """Rank -> pid of the programs among these processes that were told one."""
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


@test
def a_stopped_rank_is_named():
    # The ranks' own timeout, and the launcher's while theirs is ten minutes.
    worst = 0
    with Folder() as f:
        for i in range(20 if NIGHT else 3):
            own, flags = ({"comm_timeout_s": 1}, []) if i % 2 == 0 else ({}, ["--stuck_seconds", "1"])
            marked = Marked()
            env = dict(marked.env, OMP_WAIT_POLICY="passive")
            p = start("-np", str(2 + i % 3), *flags, *training(f.path, stage=(3 + i) % 4, **own), env=env)
            until_step(p, 2)
            ranks = ranks_of(marked.pids())
            rank = i % len(ranks)
            worst = max(worst, stop_and_see(p, ranks[rank], rank, 1 + 2))
            marked.wait_gone(0.5 * SLOW)
    print(f"# named and over {worst:.1f} s after SIGSTOP at most, timeout 1 s")


@test
def a_job_that_the_user_stops_is_not_stuck():
    with Folder() as f:
        marked = Marked()
        p = start("-np", "2", "--stuck_seconds", "1", *training(f.path), env=dict(marked.env, OMP_WAIT_POLICY="passive"))
        until_step(p, 2)
        p.send_signal(signal.SIGTSTP)
        time.sleep(1.3)
        equal(p.poll(), None, "ended")
        p.send_signal(signal.SIGCONT)
        until_step(p, 3)
        p.terminate()
        _, err = p.communicate(timeout=20)
        equal((p.returncode, b"stuck" in err), (143, False), err)
        marked.wait_gone(0.5 * SLOW)


@test
def ranks_without_a_record_are_left_alone():
    r = launch("-np", "2", "--stuck_seconds", "1", "sh", "-c", "sleep 1.3; echo $DSC_FLIGHT")
    equal(r.code, 0, r)
    equal(len(re.findall(r"\d+:\d+:[01]", r.out)), 2, r)
    refused(launch("--stuck_seconds", "0", "true"), "--stuck_seconds")
