# output.py - merging: whole lines, every byte, no waiting for slow readers. SPDX-License-Identifier: Apache-2.0
from harness import *

# Writes numbered lines of many lengths in odd pieces, to stdout and stderr.
CHATTER = """#!/usr/bin/env python3
import os, random, sys
rank = int(os.environ["RANK"])
count = int(sys.argv[1])
rng = random.Random(rank)
pending = {1: b"", 2: b""}
for i in range(count):
    fd = 1 if i % 3 else 2
    pending[fd] += b"%d:%d:" % (rank, i) + b"x" * rng.choice((0, 1, 10, 100, 1000)) + b"\\xff\\0;\\n"
    if len(pending[fd]) > 3000 or i >= count - 2:
        while pending[fd]:
            n = os.write(fd, pending[fd][:rng.randint(1, 2000)])
            pending[fd] = pending[fd][n:]
for fd in (1, 2):
    while pending[fd]:
        pending[fd] = pending[fd][os.write(fd, pending[fd]):]
"""


@test
def lines_stay_whole_under_load():
    with Folder() as f:
        count, ranks = 1500, 8
        r = launch("-q", "-np", str(ranks), f.file("chatter", CHATTER, 0o755), str(count), binary=True)
        equal(r.code, 0)
        seen = {}
        for which, data in ((1, r.out), (2, r.err)):
            check(data.endswith(b"\n"), "last line")
            for line in data[:-1].split(b"\n"):
                m = re.fullmatch(rb"(?:\[rank (\d+)\] )?(\d+):(\d+):(x*)\xff\0;", line)
                check(m, "broken line", line[:200])
                equal(int(m[1] or 0), int(m[2]))
                seen.setdefault((int(m[2]), which), []).append(int(m[3]))
        for rank in range(ranks):
            equal(seen[(rank, 1)], [i for i in range(count) if i % 3], "order on stdout")
            equal(seen[(rank, 2)], [i for i in range(count) if not i % 3], "order on stderr")


@test
def one_rank_passes_every_byte():
    for data in (b"no newline", bytes(range(256)) * 1000, b"a\n\n\rb\n", b"\n"):
        with Folder() as f:
            path = f.file("data", data)
            r = launch("sh", "-c", f"cat '{path}'; cat '{path}' >&2", binary=True)
            equal((r.code, r.out == data, r.err == data), (0, True, True))
            with open(f.path + "/both", "wb") as both:  # stdout and stderr in one file keep their order
                subprocess.run([LAUNCH, "sh", "-c",
                                "for i in 1 2 3 4 5 6 7 8 9; do echo out $i; echo err $i >&2; done"], stdout=both,
                                stderr=both,
                               env=clean_env(), timeout=20)
            equal(f.read("both"), "".join(f"out {i}\nerr {i}\n" for i in range(1, 10)))


@test
def a_rank_keeps_the_order_of_its_stdout_and_stderr():
    p = subprocess.run([LAUNCH, "-q", "-np", "2", "sh", "-c",
                        "for i in 1 2 3 4 5 6 7 8 9; do echo out $i; echo err $i >&2; done"],
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=clean_env(), timeout=20, text=True)
    expected = [f"{s} {i}" for i in range(1, 10) for s in ("out", "err")]
    lines = p.stdout.splitlines()
    equal([l for l in lines if not l.startswith("[")], expected)
    equal([l[9:] for l in lines if l.startswith("[rank 1] ")], expected)


@test
def long_lines_and_missing_newlines():
    with Folder() as f:
        writer = f.file("writer", "#!/usr/bin/env python3\nimport "
                        "os\nn=int(os.environ['N'])\ndata=b'abcdefghij'*(n//10)\n"
                        "while data: data=data[os.write(1,data):]\n", 0o755)
        for n in (100000, 1000000, 3000000):
            r = launch("-q", "-np", "2", "sh", "-c", f"if [ $RANK = 1 ]; then '{writer}'; fi",
                       env=clean_env(N=str(n)), binary=True)
            equal((r.code, r.out == b"[rank 1] " + b"abcdefghij" * (n // 10) + b"\n"), (0, True), n, len(r.out))
        # Two of them: beyond a megabyte lines may be cut, but no byte is lost and every piece is marked.
        r = launch("-q", "-np", "3", "sh", "-c", f"if [ $RANK != 0 ]; then '{writer}'; fi",
                   env=clean_env(N="3000000"), binary=True)
        equal(r.code, 0)
        for rank in (1, 2):
            text = b"".join(l[9:] for l in r.out.split(b"\n") if l.startswith(b"[rank %d] " % rank))
            check(text == b"abcdefghij" * 300000, rank, len(text))


@test
def a_reader_that_does_not_read_does_not_blind_the_supervisor():
    marked = Marked()
    p = start("-q", "-np", "3", "sh", "-c", "if [ $RANK = 1 ]; then sleep 0.3; exit 7; fi; exec yes", env=marked.env)
    wait_for(lambda: len(marked.pids()) >= 5, what="three ranks")
    # Nobody reads p.stdout: the pipe and the queue are full, yet rank 1's end is seen and the others are gone.
    wait_for(lambda: len(marked.pids()) <= 2, seconds=5, what="the ranks to be ended")
    out, err = p.communicate(timeout=60)
    equal(p.returncode, 7, err)
    check(len(out) > 100000 and out.endswith(b"\n"), len(out))


@test
def a_reader_that_went_away_ends_the_ranks_as_a_pipe_would():
    marked = Marked()
    r = subprocess.run(["bash", "-c", f"'{LAUNCH}' -q -np 2 yes | head -n 3; echo ${{PIPESTATUS[0]}}"],
                       capture_output=True, text=True, timeout=60,
                       env=marked.env)
    equal(r.stdout.splitlines()[-1], "141", r)
    marked.wait_gone(0.5 * SLOW)
    r = subprocess.run(["bash", "-c", f"'{LAUNCH}' -q yes | head -n 3; echo ${{PIPESTATUS[0]}}"],
                       capture_output=True, text=True, timeout=60,
                       env=marked.env)
    equal(r.stdout, "y\ny\ny\n141\n", r)
    marked.wait_gone(0.5 * SLOW)


@test
def lines_come_at_once():
    p = start("-q", "-np", "2", "sh", "-c", "if [ $RANK = 1 ]; then echo first; sleep 600; fi; sleep 600")
    begin = time.monotonic()
    equal(p.stdout.readline(), b"[rank 1] first\n")
    check(time.monotonic() - begin < 0.5 * SLOW, "late")
    p.terminate()
    p.communicate(timeout=60)


@test
def logs_of_each_rank():
    with Folder() as f:
        logs = f.path + "/a/b"
        r = launch("-np", "3", "--enable_each_rank_log", logs, "sh", "-c",
                   "echo out $RANK; echo err $RANK >&2; printf end")
        equal((r.code, r.out), (0, "out 0\nend\n"), r)
        check("err 0\n" in r.err and "rank 1" not in r.err, r)
        names = sorted(os.listdir(logs))
        equal(len(names), 3)
        for rank, name in enumerate(names):
            check(re.fullmatch(rf"20\d{{12}}_rank{rank}\.log", name), name)
            equal(sorted(f.read("a/b/" + name).split()), sorted(["out", str(rank), "err", str(rank), "end"]))
        equal(launch("--enable_each_rank_log", logs, "sh", "-c", "echo one").code, 0)
        refused(launch("--enable_each_rank_log", f.file("plain", ""), "true"), "--enable_each_rank_log", "not a folder")
        r = launch("-np", "2", "--enable_each_rank_log", logs, "sh", "-c",
                   "if [ $RANK = 1 ]; then echo why; exit 3; fi; sleep 600")
        refused(r, "rank 1", code=3)
        check("  | why\n" in r.err, r)


@test_alone
def start_is_quick():
    best = min(launch("-q", "-np", "2", "true").seconds for _ in range(5))
    check(best < 0.2 * SLOW, best)
