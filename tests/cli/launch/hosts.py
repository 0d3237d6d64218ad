# hosts.py - jobs over two hosts with real sshds. SPDX-License-Identifier: Apache-2.0
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


@test
def ranks_on_two_hosts_know_their_place():
    r = net.launch("-H", f"{HOSTS[0]}:1,{HOSTS[1]}:2", "sh", "-c",
                   'echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_SIZE $CROSS_RANK $CROSS_SIZE $MASTER_ADDR $MASTER_PORT '
                   '$CUDA_VISIBLE_DEVICES $(grep -c " ' + HOSTS[1] + '$" /proc/net/fib_trie)"; pwd')
    equal((r.code, r.err), (0, ""), r)
    lines = [l for l in r.out.splitlines() if net.folder not in l]
    fields = {}
    for line in lines:
        prefix, _, rest = line.rpartition("] ")
        fields[rest.split()[0]] = (prefix, rest.split()[1:9], rest.split()[9] != "0")
    equal(sorted(fields), ["0", "1", "2"], r)
    equal(fields["0"], ("", ["0", "3", "1", "0", "2", HOSTS[0], "29500", "0"], False), r)
    equal(fields["1"], (f"[rank 1 {HOSTS[1]}", ["0", "3", "2", "1", "2", HOSTS[0], "29500", "0,1"], True), r)
    equal(fields["2"], (f"[rank 2 {HOSTS[1]}", ["1", "3", "2", "1", "2", HOSTS[0], "29500", "0,1"], True), r)
    equal(r.out.count(net.folder), 3, "all start in the user's folder", r)
    net.wait_gone(2)


@test
def one_other_host_alone_and_as_the_first():
    r = net.launch("-H", f"{HOSTS[1]}:2", "sh", "-c", "echo $RANK $MASTER_ADDR")
    equal((r.code, sorted(r.out.splitlines())), (0, [f"0 {HOSTS[1]}", f"[rank 1 {HOSTS[1]}] 1 {HOSTS[1]}"]), r)
    r = net.launch("-H", f"{HOSTS[1]}:1,localhost:1", "sh", "-c", "echo $RANK $MASTER_ADDR")
    equal((r.code, sorted(r.out.splitlines())), (0, [f"0 {HOSTS[1]}", f"[rank 1 localhost] 1 {HOSTS[1]}"]), r)
    r = net.launch("-H", f"localhost:1,{HOSTS[1]}:1", "sh", "-c", "echo $RANK $MASTER_ADDR")
    equal(sorted(r.out.splitlines()), [f"0 {HOSTS[0]}", f"[rank 1 {HOSTS[1]}] 1 {HOSTS[0]}"], r)
    hosts = net.write("hostfile", f"{HOSTS[1]} slots=4\nlocalhost slots=4\n")
    r = net.launch("--hostfile", hosts, "--include", f"{HOSTS[1]}:1,3", "--master_addr", "10.9.8.7", "--master_port",
                   "4444", "sh", "-c", "echo $RANK $MASTER_ADDR:$MASTER_PORT $CUDA_VISIBLE_DEVICES")
    equal(sorted(r.out.splitlines()), ["0 10.9.8.7:4444 1,3", f"[rank 1 {HOSTS[1]}] 1 10.9.8.7:4444 1,3"], r)


# Prints what it was given, in hexadecimal; a line for each argument and each variable of ours.
DUMP = """
import os, sys
for a in sys.argv[1:]:
    print("A", os.fsencode(a).hex())
for k, v in os.environb.items():
    if k.startswith(b"DSC_V"):
        print("V", k.hex(), v.hex())
print("end", flush=True)
"""
NASTY = [b"", b" ", b"'", b'"', b"\\", b"$HOME", b"`id`", b"$(id)", b"a\nb", b"\r", b"*", b"~", b"-", b"--", b";", b"&&",
         b"|", b">x", b"#", b"!", b"%s%n", b"\xff\xfe", b"\x1b[31m", b"\x7f", b"\t", b"a=b", b"{}", b"\xc3\xa9",
         bytes(range(1, 256))]


@test
def any_bytes_arrive_as_they_are():
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    net.write("dump.py", DUMP)

    def text():
        return bytes(rng.randrange(1, 256) for _ in range(rng.choice((1, 3, 17, 80, 300))))
    values = NASTY + [text() for _ in range(1000 - len(NASTY))]
    rng.shuffle(values)
    args, variables = values[:500], {b"DSC_V%d" % i: v for i, v in enumerate(values[500:])}
    env = {os.fsencode(k): os.fsencode(v) for k, v in clean_env().items()}
    flags, given = [], list(variables.items())
    for name, value in given[:250]:  # half by the environment, half by --export
        env[name] = value
    for name, value in given[250:]:
        flags += ["--export", name + b"=" + value]
        if len(flags) == 400:
            break
    sent = dict(given[:250] + given[250:450])
    for host in (HOSTS[1], "localhost"):  # through ssh, and through an agent here
        r = net.launch("--force_multi", "-H", f"{host}:1", *flags, sys.executable, "dump.py", *args, env=env, binary=True)
        equal((r.code, r.out[-4:]), (0, b"end\n"), "seed", seed, r.err)
        lines = r.out.decode().splitlines()
        equal([bytes.fromhex(l[2:]) for l in lines if l.startswith("A")], args, "seed", seed)
        got = dict(map(bytes.fromhex, (l.split(" ")[1:] + [""])[:2]) for l in lines if l.startswith("V"))
        equal(got, sent, "seed", seed)


@test
def what_travels_and_what_does_not():
    folder = net.path("sub")
    os.makedirs(folder, exist_ok=True)
    show = "env | grep -E '^(NCCL_X|UCX_X|OMP_X|PYTHON_X|MY_OWN|OTHER|FILE_[ABC]|RANK)=' | sort"
    net.write("sub/.deepspeed_env", "# ours\n\n FILE_A = a b \nFILE_B=1\r\nFILE_C=of the file\n")
    env = clean_env(NCCL_X="n", UCX_X="u", OMP_X="o", PYTHON_X="p", MY_OWN="m", OTHER="x", HOME=net.folder, RANK="77")
    r = net.launch("-H", f"{HOSTS[1]}:1", "--export", "MY_OWN", "-x", "FILE_C=of the flag", "sh", "-c", show, env=env,
                   cwd=folder)
    equal((r.code, r.out), (0, "FILE_A=a b\nFILE_B=1\nFILE_C=of the flag\nMY_OWN=m\nNCCL_X=n\nOMP_X=o\nPYTHON_X=p\n"
                               "RANK=0\nUCX_X=u\n"), r)
    r = net.launch("-H", f"{HOSTS[1]}:1", "--export", "NOT_SET", "true")
    refused(r, "--export", "NOT_SET is not set here")
    for text, *parts in (("A=1\nno sign\n", ":2:1", "NAME=VALUE"), ("export A=1\n", ":1:1", "without \"export\""),
                         ("A B=1\n", ":1:1", "not a variable's name"), ("A=\x01\n", ":1:3", "control byte"),
                         ("RANK=3\n", ":1", "RANK is told"), ("LD_PRELOAD=/x.so\n", ":1", "--export LD_PRELOAD")):
        net.write("bad.env", text)
        r = net.launch("-H", f"{HOSTS[1]}:1", "true", env=clean_env(DS_ENV_FILE=net.path("bad.env")))
        refused(r, "bad.env" + parts[0], *parts[1:])


@test
def a_secret_is_seen_by_nobody_else():
    secret = "s3cret" + os.urandom(8).hex()
    logs = net.path("logs")
    p = running("--export", "PLANTED", "--enable_each_rank_log", logs, ranks=2,
                what="echo ready; [ $RANK -gt 0 ] || for i in 1 2 3; do echo ready; done; exec sleep 600",
                env=clean_env(PLANTED=secret, NCCL_SECRET=secret))
    time.sleep(0.3)
    saw = {}
    for pid in os.listdir("/proc"):
        for what in ("cmdline", "environ"):
            try:
                with open(f"/proc/{pid}/{what}", "rb") as f:
                    if secret.encode() in f.read():
                        saw.setdefault(net.title(pid).split(" of ")[0], set()).add(what)
            except OSError:
                pass
    ours = {t for t in saw if "dsc-launch" in t or t == "dsc-head"}  # what the user gave it to himself
    equal({t: saw[t] for t in saw if t not in ours}, {"sleep 600": {"environ"}}, saw)
    check(all(saw[t] == {"environ"} for t in saw), saw)
    tokens = set()
    for pid in ranks():
        with open(f"/proc/{pid}/environ", "rb") as f:
            tokens.update(v for v in f.read().split(b"\0") if v.startswith(b"DSC_JOB_TOKEN="))
    equal(len(tokens), 1, tokens)
    token = tokens.pop().split(b"=")[1]
    for pid in os.listdir("/proc"):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                check(token not in f.read(), "token in argv of", net.title(pid))
        except OSError:
            pass
    p.terminate()
    r = ended(p)
    texts = r.out + r.err + "".join(open(os.path.join(logs, n)).read() for n in os.listdir(logs))
    texts += "".join(open(net.path(n)).read() for n in os.listdir(net.folder) if n.startswith("log."))
    check(secret not in texts and token.decode() not in texts, "in a log")


@test
def start_is_as_quick_as_ssh():
    plain = ["ip", "netns", "exec", net.names[0], "ssh", "-T", "-x", "-o", "BatchMode=yes",
             *(w for o in net.options for w in ("-o", o)), HOSTS[1], "echo", "x"]

    def first_line(command):
        begin = time.monotonic()
        p = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        check(os.read(p.stdout.fileno(), 100), "nothing came")
        seconds = time.monotonic() - begin
        p.communicate()
        return seconds
    pairs = [(first_line(plain), first_line(net.command("-H", net.list(), "sh", "-c", "echo $RANK"))) for _ in range(4)]
    ssh, ours = (min(p[i] for p in pairs) for i in (0, 1))
    print(f"# first line over ssh after {ours:.2f} s, of ssh alone after {ssh:.2f} s")
    check(ours < ssh + 0.5 * SLOW, pairs)


@test
def many_hosts_start_at_once():
    many = [f"{net.subnet}.{i}" for i in range(100, 112)]
    for address in many:
        run("ip", "-n", net.names[1], "addr", "add", address + "/24", "dev", "veth0")
    net.write("known2", "".join(f"{h} {net.host_key}\n" for h in many))
    options = [o.replace(net.path("known"), net.path("known2")) for o in net.options]
    with open(net.path("authorized")) as f:
        key = f.read()
    # Each login waits until all are there: what starts them one after another, or a few at once, never gets past it.
    here = net.path("logged-in")
    os.makedirs(here)
    net.write("wait.sh", f"touch {here}/$$; i=0\nwhile [ $(ls {here} | wc -l) -lt {len(many)} ]; do\n"
              "[ $i -lt 300 ] || exit 1; i=$((i + 1)); sleep 0.1\ndone\neval \"$SSH_ORIGINAL_COMMAND\"\n")
    net.write("authorized", f'command="sh {net.path("wait.sh")}" ' + key)
    r = net.launch("-H", ",".join(f"{h}:1" for h in many), "sh", "-c", "echo $RANK", options=options)
    net.write("authorized", key)
    equal((r.code, len(r.out.splitlines()), len(os.listdir(here))), (0, len(many), len(many)), r)


# ---- ends ----

def kill_all(pids, number):
    check(pids, "nothing to kill")
    for pid in pids:
        os.kill(pid, number)


def ranks(host=None, title="sleep 600"):
    return [pid for pid in net.processes(host=host) if net.title(pid) == title]


@test
def a_ranks_end_ends_all_and_is_named():
    for host, how, code, said in ((1, signal.SIGKILL, 137, "SIGKILL"), (0, signal.SIGSEGV, 139, "SIGSEGV")):
        p = running(ranks=2)
        os.kill(ranks(host)[0], how)
        r = ended(p, 5)
        refused(r, f"host {HOSTS[host]}", said, code=code)
    r = net.launch("-H", net.list(2), "sh", "-c", "echo I am $RANK; [ $RANK = 2 ] && exit 3; exec sleep 600")
    refused(r, "rank 2", f"host {HOSTS[1]}", "code 3", code=3)
    check("  | I am 2\n" in r.err and r.seconds < 8 * SLOW, r)
    r = net.launch("-H", net.list(), "sh", "-c", "[ $RANK = 1 ] && { sleep 0.2; exit 6; }; "
                   "echo 'dsc: error: rank 1 is lost' >&2; exit 4")
    refused(r, "rank 1", "code 6", code=6)
    net.wait_gone(2)


@test
def a_rank_that_ignores_sigterm_is_killed():
    p = running("--grace_seconds", "1", what="trap '' TERM INT; echo ready; while :; do sleep 0.1; done")
    p.send_signal(signal.SIGTERM)
    r = ended(p, 5)
    equal((r.code, r.errors()), (143, []), r)


@test
def ctrl_c_reaches_every_rank_once():
    p = running(what="trap 'echo got $RANK' INT; echo ready; sleep 600 & wait; kill $!; exit 130")
    time.sleep(0.1)
    p.send_signal(signal.SIGINT)
    r = ended(p, 5)
    equal((r.code, sorted(l.rpartition("] ")[2] for l in r.out.splitlines() if "got" in l)), (130, ["got 0", "got 1"]), r)
    check("SIGINT: waiting up to 10 s for 2 ranks" in r.err and not r.errors(), r)


@test
def signals_are_passed_on():
    p = running(what="trap 'echo usr $RANK' USR1; echo ready; while :; do sleep 0.05; done")
    p.send_signal(signal.SIGUSR1)
    seen = b""
    while seen.count(b"usr") < 2:
        seen += os.read(p.stdout.fileno(), 4096)
    p.terminate()
    equal(ended(p, 5).code, 143)


@test
def an_agent_that_dies_ends_the_job():
    for part, how in (("dsc-agent of", signal.SIGKILL), ("dsc-launch --agent", signal.SIGKILL),
                      ("dsc-agent of", signal.SIGSTOP), ("dsc-launch --agent", signal.SIGSTOP)):
        for host in (1,) if (part, how) == ("dsc-launch --agent", signal.SIGSTOP) else (0, 1):
            p = running()
            kill_all([pid for pid in net.find(part, host=host) if "sh -c" not in net.title(pid)], how)
            r = ended(p, 10)
            refused(r, f"host {HOSTS[host]}", code=4)


@test
def a_launcher_that_dies_ends_the_job():
    for part in ("dsc-head of", LAUNCH):
        p = running()
        kill_all([pid for pid in net.find(part, host=0) if "--agent" not in net.title(pid)][:1], signal.SIGKILL)
        r = ended(p, 10)
        equal(r.code, 4 if part == "dsc-head of" else -9, r)


@test
def an_ssh_client_that_dies_or_stops_ends_the_job():
    for how in (signal.SIGKILL, signal.SIGSTOP):
        p = running()
        kill_all([pid for pid in net.find("ssh -T", host=0)], how)
        refused(ended(p, 10), f"host {HOSTS[1]}", code=4)


@test
def a_link_that_is_down_ends_the_job():
    # A host that is not heard of is lost, and nobody there is stuck: the hang finder waits for its word.
    p = net.start("-H", net.list(), "--stuck_seconds", "1", *training(net.folder))
    until_step(p, 2)
    run("ip", "-n", net.names[1], "link", "set", "veth0", "down")
    try:
        begin = time.monotonic()
        out, err = p.communicate(timeout=60)
        check(time.monotonic() - begin < 10 * SLOW, "the launcher took too long")
        check(p.returncode == 4 and f"host {HOSTS[1]}".encode() in err, err)
        wait_for(lambda: not ranks_of(net.processes()), seconds=10 - (time.monotonic() - begin), what="the other host's rank")
    finally:
        run("ip", "-n", net.names[1], "link", "set", "veth0", "up")
    # The other sshd's own process notices when it writes or by its keep-alive; nothing of ours is left.
    kill_all(net.find("sshd:", host=1) or [os.getpid()], 0)
    for pid in net.find("sshd:", host=1):
        os.kill(pid, signal.SIGKILL)
    net.wait_gone(3)


@test
def a_second_job_is_not_harmed():
    other = running()
    p = running()
    os.kill(ranks(1)[0], signal.SIGKILL)
    # Whichever of the two jobs that was: it ends, the other goes on.
    wait_for(lambda: p.poll() is not None or other.poll() is not None, what="the end of one")
    time.sleep(0.5)
    dead, living = (p, other) if p.poll() is not None else (other, p)
    equal((dead.returncode, living.poll()), (137, None))
    equal(len(ranks()), 2)
    living.terminate()
    ended(living, 5)
    dead.communicate()


@test
def a_lost_host_is_had_again_with_max_restarts():
    p = running("--max_restarts", "1", what="[ $DSC_RESTART_COUNT = 1 ] && { echo again $RANK; exit 0; }; " + WAITS)
    kill_all(net.find("ssh -T", host=0), signal.SIGKILL)
    r = ended(p, 20)
    equal(r.code, 0, r)
    check("restart 1 of 1" in r.err and "again 0" in r.out and "again 1" in r.out, r)


def sockets(listening=False):
    """Sockets of both hosts that some process holds, listening sshds' excepted: TCP by address, Unix ones by name."""
    found = set()
    for name in net.names:
        text = run("ip", "netns", "exec", name, "cat", "/proc/net/tcp", "/proc/net/tcp6")
        rows = [l.split() for l in text.splitlines() if "local_address" not in l]
        found.update((name, r[1], r[2]) for r in rows if r[3] == "0A" and
                     int(r[1].rsplit(":", 1)[1], 16) not in (22, *range(2222, 2226)))
        if listening:
            continue
        found.update((name, r[1], r[2]) for r in rows if r[9] != "0" and r[3] != "0A")
        rows = run("ip", "netns", "exec", name, "cat", "/proc/net/unix").splitlines()[1:]
        found.update((name, *r.split()[7:]) for r in rows if "dsc" in " ".join(r.split()[7:]))
    return found


# Whom, how it is found, how it dies, what the launcher ends with (None: it is it that dies).
HOW = {signal.SIGKILL: 137, signal.SIGSEGV: 139, signal.SIGSTOP: 5, signal.SIGUSR2: 3}
DEATHS = [("rank", how, code) for how, code in HOW.items()]
DEATHS += [(who, how, 4) for who in ("dsc-agent of", "dsc-launch --agent", "ssh -T", "dsc-head of")
           for how in (signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP)]
DEATHS += [("launcher", signal.SIGKILL, -9), ("launcher", signal.SIGSEGV, -11), ("launcher", signal.SIGSTOP, 4)]
DEATHS += [("link", None, 4)]


def victim_of(who, host, others, wrapped):
    mine = [pid for pid in net.processes() if pid not in others]
    if who == "rank":
        found = ranks_of(pid for pid in mine if not wrapped or net.title(pid).startswith("sh -c"))
        check(host in found, "rank", host, "is not among", [net.title(pid) for pid in mine])
        return found[host]
    if who == "launcher":
        found = [pid for pid in mine if net.title(pid).startswith(LAUNCH) and "--agent" not in net.title(pid)]
    else:
        there = net.processes(host=0 if who in ("ssh -T", "dsc-head of") else host)
        found = [pid for pid in mine if pid in there and who in net.title(pid) and
                 not net.title(pid).startswith(("sh -c", "/bin/sh -c"))]
    check(found, who, "of host", host, "is not among", [net.title(pid) for pid in mine])
    return found[0]


def die_in_training(who, how, code, host, others, before):
    what = f"{who}, {how!r}, host {host}"
    args = training(net.folder, stage=2 + host)
    command = ENDS_WITH_3 + args[1:] if how == signal.SIGUSR2 else args
    p = net.start("-H", net.list(), "--stuck_seconds", "1", *command)
    until_step(p, 2)
    equal(sockets(listening=True), set(), "a port where a stranger can knock while ranks train")
    begin = time.monotonic()
    if who == "link":
        run("ip", "-n", net.names[1], "link", "set", "veth0", "down")
    else:
        pid = victim_of(who, host, others, how == signal.SIGUSR2)
        os.kill(pid, how)

    def over():
        left = [q for q in net.processes() if q not in others and not net.title(q).startswith("sshd:")]
        stopped = who == "launcher" and how == signal.SIGSTOP
        return [net.title(q) for q in left if not (stopped and q == pid)]
    try:
        wait_for(lambda: not over(), seconds=10, what="the end everywhere: " + what)
    except Failed as e:
        raise Failed(f"{e}; left: {over()}")
    finally:
        run("ip", "-n", net.names[1], "link", "set", "veth0", "up")
        for q in net.find("sshd:") if who == "link" else []: # they notice by their keep-alive
            if q not in others:
                os.kill(q, signal.SIGKILL)
    took = time.monotonic() - begin
    if who == "launcher" and how == signal.SIGSTOP:
        os.kill(pid, signal.SIGCONT)
    _, err = p.communicate(timeout=20)
    equal(p.returncode, code, what, err.decode(errors="replace"))
    wait_for(lambda: not (set(net.processes()) - others), seconds=3, what="what ssh leaves")
    wait_for(lambda: not (sockets() - before), seconds=3, what="the end of sockets: " + what)
    return took


@test
def any_death_in_training_ends_it_everywhere_and_leaves_nothing():
    # Beside the tests above, which are a death each: here ranks hold sockets and memory, and a second job runs on.
    seed = int(os.environ.get("DSC_TEST_SEED", random.randrange(1 << 30)))
    rng = random.Random(seed)
    cases = DEATHS * 3
    rng.shuffle(cases)
    if NIGHT:  # each of them, and then whichever
        cases = [c for c in DEATHS if c[0] != "link"] + [("link", None, 4)] + cases
    cases = [c for c in cases if NIGHT or c[0] != "link"][:50 if NIGHT else 1]
    if NIGHT:  # a link that goes down takes the second job too: last
        cases.sort(key=lambda c: c[0] == "link")
    other = running()
    others, before, memory = set(net.processes()), sockets(), left_in_memory()
    worst = 0
    for who, how, code in cases:
        if who == "link" and other.poll() is None:
            equal(len([q for q in ranks() if q in others]), 2, "the other job")
            other.terminate()
            ended(other, 5)
            others, before = set(), set()
        took = die_in_training(who, how, code, rng.randrange(2), others, before)
        worst = max(worst, took)
        equal(left_in_memory() - memory, set(), who, how, "seed", seed)
    if other.poll() is None:
        equal(len([q for q in ranks() if q in others]), 2, "the other job")
        other.terminate()
        ended(other, 5)
    print(f"# {len(cases)} deaths, seed {seed}; over after {worst:.1f} s at most")


@test
def a_stopped_rank_is_named_over_hosts():
    worst = 0
    for i in range(20 if NIGHT else 1):
        own, flags = ({"comm_timeout_s": 1}, []) if i % 2 == 0 else ({}, ["--stuck_seconds", "1"])
        p = net.start("-H", net.list(1 + i % 4 // 3), *flags, *training(net.folder, stage=(3 + i) % 4, **own))
        until_step(p, 2)
        ranks = ranks_of(net.processes())
        rank = i % len(ranks)
        worst = max(worst, stop_and_see(p, ranks[rank], rank, 1 + 2))
        net.wait_gone(5)
    print(f"# named and over {worst:.1f} s after SIGSTOP at most, timeout 1 s")


# ---- output ----

@test
def much_output_is_whole_and_not_mixed():
    lines, width = 3000, 70
    r = net.launch("-H", net.list(2), "sh", "-c", f"i=0; while [ $i -lt {lines} ]; do printf '%s:%{width}d\\n' $RANK $i; "
                   "i=$((i+1)); done")
    equal(r.code, 0, r.err)
    counts = {}
    for line in r.out.splitlines():
        rank, number = line.rpartition("] ")[2].split(":")
        equal((len(number), int(number)), (width, counts.get(rank, 0)), line)
        counts[rank] = counts.get(rank, 0) + 1
    equal(counts, {str(i): lines for i in range(4)})


@test
def a_reader_that_does_not_read_does_not_blind_the_launcher():
    p = net.start("-H", net.list(), "sh", "-c", "if [ $RANK = 1 ]; then sleep 1; kill -9 $$; fi; yes 0123456789")
    wait_for(lambda: ranks(title="yes 0123456789"), what="the ranks")
    wait_for(lambda: not ranks(title="yes 0123456789"), seconds=10, what="the end of the ranks")
    out, err = p.communicate(timeout=20)
    equal(p.returncode, 137, err)
    net.wait_gone(3)


@test
def a_reader_that_went_away_ends_the_ranks():
    p = net.start("-H", net.list(), "sh", "-c", "yes 0123456789")
    p.stdout.close()
    wait_for(lambda: p.poll() is not None, seconds=10, what="the end")
    equal(p.returncode, 141, p.stderr.read())
    net.wait_gone(3)


# ---- what can be wrong ----

@test
def hosts_that_cannot_be_had_are_diagnosed():
    name = net.names[1]
    net.sshd(name, 2222, prepare=f"mount -t tmpfs none {os.path.dirname(LAUNCH)}")
    fake = net.write("fake", "#!/usr/bin/env python3\nimport sys, time\nversion = b'9.9.9'\n"
                     "body = b'H' + bytes([1, 0, 0, 0, len(version), 0, 0, 0]) + version + b'\\0' * 16\n"
                     "sys.stdout.buffer.write(b'welcome\\n\\x16\\x02dsc-agent' + len(body).to_bytes(4, 'little') + body)\n"
                     "sys.stdout.flush(); sys.stdin.read()\n", 0o755)
    net.sshd(name, 2223, prepare=f"mount --bind {fake} {LAUNCH}")
    both, other = net.list(), f"{HOSTS[1]}:1"
    mine = [o for o in net.options if "IdentityFile" not in o and "KnownHosts" not in o]
    strange = mine + [f"IdentityFile={net.path('stranger')}", f"UserKnownHostsFile={net.path('known')}"]
    unknown = mine + [f"IdentityFile={net.path('user')}", "UserKnownHostsFile=/dev/null"]
    cases = [
        ([], strange, f"ssh-copy-id {HOSTS[1]}"),
        (["--ssh_port", "2222"], strange, f"ssh-copy-id -p 2222 {HOSTS[1]}"),
        ([], unknown, "host key is not known", f"ssh {HOSTS[1]} true"),
        (["--ssh_port", "3333"], None, "cannot be reached", "refused", "--ssh_port"),
        (["--ssh_port", "2222"], None, "dsc-launch is not there", LAUNCH, "install dsc"),
        (["--ssh_port", "2223"], None, "version 9.9.9", "here 0."),
    ]
    for flags, options, *parts in cases:
        r = net.launch("-H", both, *flags, "sh", "-c", "echo ran", options=options)
        refused(r, f"host {HOSTS[1]}", *parts, code=4)
        check("ran" not in r.out, "a rank was started", r)
    r = net.launch("-H", f"nobody@{other}", "true")
    refused(r, f"host nobody@{HOSTS[1]}", f"ssh-copy-id nobody@{HOSTS[1]}", code=4)
    r = net.launch("-H", f"no-such-host.invalid:1,{other}", "true")
    refused(r, "host no-such-host.invalid", "no such host name", code=4)
    net.wait_gone(3)


@test
def what_is_not_there_on_the_other_host_is_named():
    folder = net.path("mine")
    os.makedirs(folder + "/sub")
    net.sshd(net.names[1], 2224, prepare=f"mount -t tmpfs none {folder}")
    program = net.write("mine/program", "#!/bin/sh\necho ran\n", 0o755)
    other = ["--ssh_port", "2224", "-H", f"{HOSTS[1]}:1"]
    refused(net.launch(*other, program), program, "no such program", f"(host {HOSTS[1]})")
    refused(net.launch(*other, "true", cwd=folder + "/sub"), folder + "/sub", "all hosts share", f"(host {HOSTS[1]})")
    both = ["--ssh_port", "2224", "-H", net.list()]
    r = net.launch(*both, program)
    refused(r, program, f"(host {HOSTS[1]})")
    refused(net.launch(*both, "no-such-program"), "PROGRAM", "nor in PATH", f"(host {HOSTS[0]})")
    refused(net.launch(*both, "--bind_cores_to_rank", "--bind_core_list", "1023", "true"), "--bind_core_list")
    r = net.launch("-H", net.list(), "--bind_cores_to_rank", "sh", "-c", "nproc; echo $OMP_NUM_THREADS")
    equal((r.code, len(r.out.splitlines())), (0, 4), r)
    net.wait_gone(3)


# ---- training ----

def config(stage):
    return net.write(f"stage{stage}.json", json.dumps({
        "train_batch_size": 4, "bf16": {"enabled": False}, "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
        "dsc": {"model": "gpt2-nano", "data": net.write("text.txt", "so it goes, on and on; " * 400), "threads": 1,
                "seq_length": 16}}))


def checkpoint(name):
    return subprocess.run([os.path.join(os.path.dirname(LAUNCH), "dsc"), "ckpt", "hash", net.path(name)],
                          capture_output=True, text=True).stdout


@test
def training_has_the_bits_of_one_host():
    expected = {}
    for ranks_here in (1, 2):
        args = ["train", "--config", config(2), "--steps", "3", "--save", f"one{ranks_here}"]
        r = launch("-np", str(2 * ranks_here), *args, cwd=net.folder, timeout=60)
        equal(r.code, 0, r)
        expected[ranks_here] = checkpoint(f"one{ranks_here}/step-3")
        equal(len(expected[ranks_here]), 65, r)
    for stage in range(4):
        for ranks_here in (1, 2):
            save = f"two{stage}{ranks_here}"
            r = net.launch("-H", net.list(ranks_here), "train", "--config", config(stage), "--steps", "3", "--save", save)
            equal(r.code, 0, "stage", stage, r)
            equal(checkpoint(save + "/step-3"), expected[ranks_here], "stage", stage, 2 * ranks_here, "ranks")
            check(f'auto is "{"hier" if ranks_here == 2 else "tcp"}"' in r.out, r)
    net.wait_gone(2)


@test
def mpirun_trains_over_both_hosts():
    if shutil.which("mpirun") is None:
        raise Skipped("mpirun is not installed")
    env = clean_env(OMPI_MCA_plm_rsh_agent="ssh " + " ".join("-o " + o for o in net.options), OMPI_ALLOW_RUN_AS_ROOT="1",
                    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    args = ["train", "--config", config(2), "--steps", "3", "--save"]
    r = launch("-np", "2", *args, "ours", cwd=net.folder, timeout=60)
    equal(r.code, 0, r)
    r = net.launch("--launcher", "openmpi", "-H", net.list(), *args, "mpi", env=env, options=[])
    equal((r.code, len(checkpoint("mpi/step-3"))), (0, 65), r)
    equal(checkpoint("mpi/step-3"), checkpoint("ours/step-3"), r)
    net.wait_gone(5)


@test
def training_with_a_launcher_on_each_host():
    token = {"DSC_JOB_TOKEN": os.urandom(16).hex()}
    args = ["-H", net.list(), "--no_ssh", "train", "--config", config(1), "--steps", "3", "--save", "by-hand"]
    jobs = [subprocess.Popen(["ip", "netns", "exec", name, LAUNCH, "--node_rank", str(i), *args], env=clean_env(**token),
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=net.folder)
            for i, name in enumerate(net.names)]
    outs = [p.communicate(timeout=60)[0] for p in jobs]
    equal([p.returncode for p in jobs], [0, 0], outs)
    equal(len(checkpoint("by-hand/step-3")), 65)


@test
def a_death_in_training_ends_it_everywhere():
    # Whoever dies is named with its signal, whatever the others say of a lost peer.
    for host in (0, 1):
        p = net.start("-H", net.list(), "train", "--config", config(3), "--steps", "100000")
        seen = b""
        while b"step 5" not in seen and b"step     5" not in seen and seen.count(b"\n") < 12:
            piece = os.read(p.stdout.fileno(), 4096)
            check(piece, seen, p.stderr.read() if not piece else b"")
            seen += piece
        train = os.path.join(os.path.dirname(LAUNCH), "train")
        os.kill([pid for pid in net.processes(host=host) if net.title(pid).startswith(train + " ") or
                 net.title(pid).startswith("train ")][0], signal.SIGKILL)
        r = ended(p, 10)
        refused(r, f"rank {host}", f"host {HOSTS[host]}", "SIGKILL", code=137)


@test
def the_doctor_asks_every_host():
    dsc = os.path.join(os.path.dirname(LAUNCH), "dsc")
    other = net.path("other-dsc")
    with open(dsc, "rb") as source, open(other, "wb") as copy:
        copy.write(source.read() + b"x")
    os.chmod(other, 0o755)
    net.sshd(net.names[1], 2225, prepare=f"mount --bind {other} {dsc}")

    def doctor(*flags):
        options = [w for o in net.options for w in ("--ssh_option", o)]
        p = subprocess.run(["ip", "netns", "exec", net.names[0], dsc, "doctor", "--hostfile", *flags, *options],
                           env=clean_env(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
        return Result(p.returncode, p.stdout, p.stderr, 0)
    hosts = net.write("doctor-hosts", f"{HOSTS[0]} slots=4\n{HOSTS[1]} slots=2\n")
    r = doctor(hosts)
    rows = r.out.splitlines()
    equal((r.code, rows[2].split()[0], rows[1].split()[2], r.err), (0, HOSTS[1], rows[2].split()[2], ""), r)
    check("another build" not in r.out and "clock is" not in r.out, r)
    r = doctor(hosts, "--ssh_port", "2225")
    check(r.code == 0 and f"{HOSTS[1]}: another build of dsc" in r.out, r)
    r = doctor(hosts, "--ssh_port", "3333")
    refused(r, f"host {HOSTS[1]}", "cannot be reached", code=4)
    r = doctor(net.write("bad-hosts", "a slots=0\n"))
    refused(r, "bad-hosts:1:3")


sys.exit(run_all(next((a for a in sys.argv[1:] if not a.startswith("-")), "")))
