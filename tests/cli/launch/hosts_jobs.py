# hosts_jobs.py - the two hosts that all tests of this program share, and jobs on them. SPDX-License-Identifier: Apache-2.0
from hosts_net import *
from stuck import *

import atexit

missing = why_not()
if missing:
    print(missing)
    sys.exit(77)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # a time limit, too, leaves no network behind
net = Net()
atexit.register(net.close)
HOSTS = net.hosts
WAITS = "echo ready $RANK; exec sleep 600"


def running(*flags, ranks=1, what=WAITS, env=None):
    """A job whose ranks all said that they are ready."""
    p = net.start("-H", net.list(ranks), *flags, "sh", "-c", what, env=env)
    seen = b""
    while seen.count(b"ready") < 2 * ranks:
        piece = os.read(p.stdout.fileno(), 4096)
        check(piece, "ended early", seen, p.stderr.read() if not piece else b"")
        seen += piece
    return p


def ended(p, seconds=10):
    begin = time.monotonic()
    out, err = p.communicate(timeout=60)
    took = time.monotonic() - begin
    check(took < seconds * SLOW, f"took {took:.1f} s", err)
    net.wait_gone(seconds)
    return Result(p.returncode, out.decode(errors="replace"), err.decode(errors="replace"), took)


def kill_all(pids, number):
    check(pids, "nothing to kill")
    for pid in pids:
        os.kill(pid, number)


def ranks(host=None, title="sleep 600"):
    return [pid for pid in net.processes(host=host) if net.title(pid) == title]


def sockets(listening=False):
    """Sockets of both hosts that some process holds, listening sshds' excepted: TCP by address, Unix ones by name."""
    found = set()
    for name in net.names:
        text = run("ip", "netns", "exec", name, "cat", "/proc/net/tcp", "/proc/net/tcp6")
        rows = [l.split() for l in text.splitlines() if "local_address" not in l]
        found.update((name, r[1], r[2]) for r in rows if r[3] == "0A" and
                     int(r[1].rsplit(":", 1)[1], 16) not in (22, *range(2222, 2227)))
        if listening:
            continue
        found.update((name, r[1], r[2]) for r in rows if r[9] != "0" and r[3] != "0A")
        rows = run("ip", "netns", "exec", name, "cat", "/proc/net/unix").splitlines()[1:]
        found.update((name, *r.split()[7:]) for r in rows if "dsc" in " ".join(r.split()[7:]))
    return found
