# hosts.py - jobs over two hosts with real sshds. SPDX-License-Identifier: Apache-2.0
from hosts_jobs import *

import functools

import hosts_death, hosts_elastic, hosts_saves  # noqa: F401 (they register their tests)


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
def settings_for_pdsh_reach_ssh():
    flags = " ".join("-o" + option for option in net.options)
    where = ["-H", f"{HOSTS[1]}:1", "sh", "-c", "echo $SSH_CONNECTION | wc -w; whoami"]
    for env in (clean_env(PDSH_SSH_ARGS_APPEND=flags), clean_env(PDSH_SSH_ARGS="-x -l %u %h " + flags)):
        for args in (["--launcher", "pdsh", "--launcher_args", "-S -f 1024 -t 9"], []):
            r = net.launch(*args, *where, env=env, options=[])
            equal((r.code, r.out), (0, "4\nroot\n"), r)
            check("PDSH_SSH_ARGS" in r.err, r)
        r = net.launch("--launcher", "ssh", *where, env=env, options=[])
        refused(r, HOSTS[1], code=4)
        if shutil.which("pdsh") is not None:  # it means the same there
            p = subprocess.run(["ip", "netns", "exec", net.names[0], "pdsh", "-R", "ssh", "-w", HOSTS[1], "whoami"],
                               env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, text=True)
            equal((p.returncode, p.stdout), (0, f"{HOSTS[1]}: root\n"), p)
    r = net.launch("--launcher", "pdsh", "--launcher_args", "-l nobody-of-this-name", *where, options=None)
    refused(r, HOSTS[1], code=4)


@test
def any_bytes_arrive_as_they_are():
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    net.write("dump.py", DUMP)

    def text():
        return bytes(rng.randrange(1, 256) for _ in range(rng.choice((1, 3, 17, 80, 300))))
    values = NASTY + [text() for _ in range(1000 - len(NASTY))]
    rng.shuffle(values)
    args, variables = values[:550], {b"DSC_V%d" % i: v for i, v in enumerate(values[550:])}
    env = {os.fsencode(k): os.fsencode(v) for k, v in clean_env().items()}
    flags, given = [], list(variables.items())
    for name, value in given[:250]:  # some by the environment, some by --export
        env[name] = value
    for name, value in given[250:]:
        flags += ["--export", name + b"=" + value]
    sent = dict(given)
    equal(len(args) + len(sent), 1000)
    for host in (HOSTS[1], "localhost"):  # through ssh, and through an agent here
        r = net.launch("--force_multi", "-H", f"{host}:1", *flags, sys.executable, "dump.py", *args, env=env, binary=True)
        equal((r.code, r.out[-4:]), (0, b"end\n"), "seed", seed, r.err)
        lines = r.out.decode().splitlines()
        equal([bytes.fromhex(l[2:]) for l in lines if l.startswith("A")], args, "seed", seed)
        got = dict(map(bytes.fromhex, (l.split(" ")[1:] + [""])[:2]) for l in lines if l.startswith("V"))
        equal(got, sent, "seed", seed)


@test
def listed_variables_reach_other_hosts_and_no_others():
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
                         ("RANK=3\n", ":1", "dsc-launch sets RANK"),
                         ("LD_PRELOAD=/x.so\n", ":1", "--export LD_PRELOAD")):
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
    ours = {t for t in saw if "dsc-launch" in t or t == "dsc-coordinator"}  # the user's own command line
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
    many = [f"{net.subnet}.{100 + i}" for i in range(12)]
    for address in many:
        run("ip", "-n", net.names[1], "addr", "add", address + "/24", "dev", "veth0")
    net.write("known2", "".join(f"{h} {net.host_key}\n" for h in many))
    options = [o.replace(net.path("known"), net.path("known2")) for o in net.options]
    with open(net.path("authorized")) as f:
        key = f.read()
    # Each login waits until all are there: what starts them one after another, or a few at once, never gets past it.
    here = net.path("logged-in")
    os.makedirs(here)
    net.write("wait.sh", f"touch {here}/$$; [ $(ls {here} | wc -l) -lt {len(many)} ] || touch {here}.all; i=0\n"
              f"while [ ! -e {here}.all ]; do [ $i -lt 200 ] || exit 1; i=$((i + 1)); sleep 0.3; done\n"
              "eval \"$SSH_ORIGINAL_COMMAND\"\n")
    net.write("authorized", f'command="sh {net.path("wait.sh")}" ' + key)
    r = net.launch("-H", ",".join(f"{h}:1" for h in many), "sh", "-c", "echo $RANK", options=options)
    net.write("authorized", key)
    equal((r.code, len(r.out.splitlines()), len(os.listdir(here))), (0, len(many), len(many)), r)


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
    out, err = p.communicate(timeout=60)
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
def a_file_missing_on_the_other_host_is_named():
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


@functools.cache
def of_one_host(world_size):
    save = f"one{world_size}"
    r = launch("-np", str(world_size), "train", "--config", config(2), "--steps", "3", "--save", save, cwd=net.folder,
               timeout=60)
    equal(r.code, 0, r)
    found = checkpoint(save + "/step-3")
    equal(len(found), 65, r)
    return found


def have_the_bits_of_one_host(comm, runs):
    """Each of the runs, stage and ranks a host, over both hosts by `comm`."""
    configs = [config(stage) for stage in range(4)]
    expected = [of_one_host(2 * ranks_here) for _, ranks_here in runs]

    def train(number):
        stage, ranks_here = runs[number]
        save = f"{comm}-{stage}-{ranks_here}"
        r = net.launch("-H", net.list(ranks_here), "--master_port", str(29500 + number), "--comm", comm, "train",
                       "--config", configs[stage], "--steps", "3", "--save", save)
        equal(r.code, 0, save, r)
        equal(checkpoint(save + "/step-3"), expected[number], save)
        name = comm if comm != "auto" else "hier" if ranks_here == 2 else "tcp"
        check(f"{2 * ranks_here} ranks ({name})" in r.out, r)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        list(pool.map(train, range(len(runs))))
    net.wait_gone(2)


ALL_STAGES = [(stage, ranks_here) for stage in range(4) for ranks_here in (1, 2)]


@test
def training_over_gloo_has_the_bits_of_one_host():
    if not os.path.exists(os.path.join(os.environ.get("DSC_LIB", os.path.dirname(LAUNCH) + "/../lib"), "dsc/libdsc_gloo.so")):
        raise Skipped("no libdsc_gloo.so (make deps-net)")
    have_the_bits_of_one_host("gloo", ALL_STAGES)


@test
def training_over_what_auto_is_has_the_bits_of_one_host():
    have_the_bits_of_one_host("auto", ALL_STAGES if NIGHT else [(0, 1), (1, 2), (2, 2), (3, 1)])


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
    # The dead rank is named with its signal, for any error of the others about a lost peer.
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
