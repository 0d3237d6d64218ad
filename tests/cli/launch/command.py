# command.py - flags, hosts, the dry run, the ranks' environment, and the scripts. SPDX-License-Identifier: Apache-2.0
import os, socket

from harness import *


def places(plan):
    return [(r["host"], r["slot"], r["local_rank"]) for r in plan["ranks"]]


@test
def usage_and_version():
    r = launch("--help")
    equal(r.code, 0, r)
    for word in ("usage: dsc-launch", "--num_gpus", "--hostfile", "--dry_run", "not built yet"):
        check(word in r.out, word, r)
    equal(max(len(l) for l in r.out.splitlines()) <= 120, True, "width of the usage text")
    r = launch("--version")
    equal((r.code, r.out.startswith("dsc-launch ")), (0, True), r)
    r = launch()
    refused(r, "PROGRAM")
    check("usage: dsc-launch" in r.err, r)


@test
def flags_that_are_refused():
    cases = [
        (["--nunm_gpus", "2", "true"], "--nunm_gpus", "--num_gpus"),
        (["--enable-each-rnk-log=x", "true"], "--enable-each-rnk-log", "--enable_each_rank_log"),
        (["--zzz", "true"], "--zzz", "--help"),
        (["--num_gpus", "x", "true"], "--num_gpus", "\"x\""),
        (["--num_gpus=0", "true"], "--num_gpus"),
        (["--num_gpus=2x", "true"], "--num_gpus"),
        (["--num_gpus=-2", "true"], "--num_gpus"),
        (["--num_gpus=99999999999999999999", "true"], "--num_gpus"),
        (["--num_gpus"], "--num_gpus", "value"),
        (["--include", "--dry_run", "true"], "--include", "value"),
        (["--master_port", "0", "true"], "--master_port"),
        (["--master_port", "65536", "true"], "--master_port"),
        (["--master_addr", "a;b", "true"], "--master_addr"),
        (["--master_addr", "-a", "true"], "--master_addr"),
        (["--no_python=1", "true"], "--no_python", "no value"),
        (["--module", "--no_python", "true"], "--module"),
        (["--log_level", "loud", "true"], "--log_level"),
        (["--include", "localhost", "--exclude", "localhost:0", "true"], "--include"),
        (["--include", "localhost", "--num_gpus", "0x", "true"], "--num_gpus"),
        (["--include", "localhost:0", "--num_gpus", "1", "true"], "--include"),
        (["--exclude", "localhost:0", "--num_nodes", "1", "true"], "--exclude"),
        (["-np", "2", "--num_gpus", "2", "true"], "-np"),
        (["--num_nodes", "2", "true"], "--num_nodes"),
        (["--bind_core_list", "0", "true"], "--bind_core_list"),
        (["--bind_cores_to_rank", "--bind_core_list", "0-", "true"], "--bind_core_list"),
        (["--bind_cores_to_rank", "--num_gpus=1000", "true"], "--bind_cores_to_rank"),
        (["", "x"], "PROGRAM"),
        (["/no/such/program"], "/no/such/program"),
        (["/etc"], "/etc"),
        (["/etc/passwd"], "not executable"),
        (["no-such-program"], "PROGRAM", "no-such-program"),
    ]
    for args, *parts in cases:
        refused(launch(*args), *parts)


@test
def flags_that_come_later_are_refused_by_name():
    for flag in (["--venv_script", "v"], ["--autotuning", "run"], ["--elastic_training"],
                 ["--min_elastic_nodes", "1"], ["--max_elastic_nodes", "1"],
                 ["--blacklist-cooldown-range", "1"]):
        refused(launch(*flag, "true"), flag[0].split("=")[0], "not built yet")
    refused(launch("--launcher", "rsh", "true"), "--launcher", "rsh")
    refused(launch("--launcher_args", "--x y", "true"), "--launcher_args", "--ssh_option")
    refused(launch("--launcher", "ssh", "--launcher_args", "-t 3", "true"), "--launcher_args", "--ssh_option")
    refused(launch("--node_rank", "1", "true"), "--node_rank", "--no_ssh")
    refused(launch("--ssh_option", "-oProxyCommand=x", "true"), "--ssh_option")
    refused(launch("--ssh_option=-oProxyCommand=x", "true"), "--ssh_option", "NAME=VALUE")
    refused(launch("--ssh_port", "0", "true"), "--ssh_port")
    for text in ("1A=x", "", "A-B=1", "=1", "RANK=1", "DSC_JOB_TOKEN=1"):
        refused(launch("--export=" + text, "true"), "--export")


@test
def accepted_flags_do_no_harm():
    for args in (["--no_python"], ["--no_local_rank"], ["--module"], ["--no_ssh"], ["--no_ssh_check"],
                 ["--node_rank=0"], ["-q"],
                 ["--quiet"], ["--log_level", "critical"], ["--num-gpus", "1"], ["--num_accelerators=1"],
                 ["--num_nodes", "1"],
                 ["--num_gpus", "-1"], ["--nproc_per_node=1", "--nnodes=1", "--standalone"], ["--master_port", "1234"],
                 ["--enable_each_rank_log", "None"], ["--include", ""], ["--num_gpus", "7", "--num_gpus", "1"], ["--"]):
        r = launch(*args, "sh", "-c", "echo $RANK/$WORLD_SIZE; echo $#", "x", "--num_gpus=9")
        equal((r.code, r.out), (0, "0/1\n1\n"), args, r)


@test
def an_agent_for_this_host_does_the_same():
    for flags in (["--force_multi"], ["--force_multi", "--launcher", "pdsh"]):
        r = launch("-np", "2", *flags, "sh", "-c", "echo $RANK $MASTER_ADDR; [ $RANK = 0 ] || { sleep 0.3; exit 3; }")
        equal((r.code, sorted(r.out.splitlines())), (3, ["0 127.0.0.1", "[rank 1 localhost] 1 127.0.0.1"]), r)
        refused(r, "rank 1", "code 3", code=3)
    r = launch("-np", "2", "--export", "A B=C", "true")
    refused(r, "--export")
    for more in ([], ["--force_multi"]):
        r = launch(*more, "--export", "A1=x y", "-x", "HOME", "sh", "-c", "echo $A1,$HOME", env=clean_env(HOME="/h"))
        equal((r.code, r.out), (0, "x y,/h\n"), r)


@test
def an_agent_that_nobody_talks_to_ends():
    p = subprocess.run([LAUNCH, "--agent"], stdin=subprocess.DEVNULL, capture_output=True, timeout=10)
    check(p.returncode == 2 and b"started by dsc-launch itself" in p.stderr, p)
    for text in (b"", b"A\x05\0\0\0", b"\xff" * 100, b"\x01\0\0\0T", b"\x02\0\0\0Ox", os.urandom(5000)):
        p = subprocess.run([LAUNCH, "--agent"], input=text, capture_output=True, timeout=10)
        check(p.returncode == 0 and p.stdout.startswith(b"\x16\x02dsc-agent"), text, p)


@test
def dry_run_of_one_host():
    p = dry_run("--num_gpus=3", "train", "--config", "a \"b\"\n\u00e9")
    equal(p["hosts"], {"localhost": [0, 1, 2]})
    equal(p["world_size"], 3)
    equal(p["ranks"], [{"rank": i, "host": "localhost", "slot": i, "local_rank": i} for i in range(3)])
    equal(p["master_addr"], "127.0.0.1")
    equal(p["command"], ["train", "--config", "a \"b\"\n\u00e9"])
    env = p["env"]
    equal((env["WORLD_SIZE"], env["MASTER_PORT"], env["MASTER_ADDR"], env["LOCAL_SIZE"]), ("3", "29500",
                                                                                           "127.0.0.1", "3"))
    equal(env["CUDA_VISIBLE_DEVICES"], "0,1,2")
    check("DSC_JOB_TOKEN" not in env, "the token is a secret")
    equal(dry_run()["world_size"], 1)
    long = "x" * 5000 + "\u00e9" * 3000
    equal(dry_run("p", long)["command"], ["p", long])


@test
def dry_run_of_many_hosts():
    with Folder() as f:
        hosts = f.file("hosts", "worker-0 slots=4\r\n# note\r\n\tworker-1\tslots=4\r\n")
        p = dry_run("--hostfile", hosts)
        equal(p["hosts"], {"worker-0": [0, 1, 2, 3], "worker-1": [0, 1, 2, 3]})
        equal(list(p["hosts"]), ["worker-0", "worker-1"])
        equal(p["master_addr"], "worker-0")
        equal(dry_run("-H", hosts), p)
        cases = [
            (["--include", "worker-0@worker-1:0,2"], {"worker-0": [0, 1, 2, 3], "worker-1": [0, 2]}),
            (["-i", "worker-1:3,1,1"], {"worker-1": [1, 3]}),
            (["-e", "worker-1:0"], {"worker-0": [0, 1, 2, 3], "worker-1": [1, 2, 3]}),
            (["--exclude=worker-0"], {"worker-1": [0, 1, 2, 3]}),
            (["--num_nodes", "1"], {"worker-0": [0, 1, 2, 3]}),
            (["--num_gpus", "2"], {"worker-0": [0, 1], "worker-1": [0, 1]}),
            (["--num_nodes=1", "--num_gpus=2"], {"worker-0": [0, 1]}),
            (["-np", "5"], {"worker-0": [0, 1, 2, 3], "worker-1": [0]}),
            (["-np", "2"], {"worker-0": [0, 1]}),
            (["--num_gpus=6", "--oversubscribe"], {"worker-0": list(range(6)), "worker-1": list(range(6))}),
        ]
        for args, expected in cases:
            equal(dry_run("--hostfile", hosts, *args)["hosts"], expected, args)
        p = dry_run("--hostfile", hosts, "--include", "worker-0:1,3@worker-1:2")
        equal(places(p), [("worker-0", 1, 0), ("worker-0", 3, 1), ("worker-1", 2, 0)])
        refused(launch("--hostfile", hosts, "--num_gpus=6", "true"), "--num_gpus", "worker-0", "--oversubscribe")
        refused(launch("--hostfile", hosts, "--num_nodes=3", "true"), "--num_nodes", "2 hosts")
        refused(launch("--hostfile", hosts, "-np", "9", "true"), "-np", "8 slots")
        refused(launch("--hostfile", hosts, "-H", "a:1", "true"), "-H", "--hostfile")
        refused(launch("-np", "2", "-H", hosts, "true"), "--hostfile")
    p = dry_run("-np", "8", "-H", "localhost:4,host2:4")
    equal((p["world_size"], p["hosts"]["host2"], p["master_addr"]), (8, [0, 1, 2, 3], socket.gethostname()))
    p = dry_run("-np", "24", "-H", "node1:8,node2:8,node3:8")
    equal([r["rank"] for r in p["ranks"] if r["host"] == "node3"], list(range(16, 24)))


@test
def a_dry_run_refuses_what_a_start_would():
    with Folder() as f:
        env = clean_env(DS_ENV_FILE=f.file("env", "A=1\nLD_PRELOAD=/x.so\n"))
        refused(launch("--dry-run", "-H", "a:1,b:1", "true", env=env), "env:2:1", "LD_PRELOAD")
        refused(launch("--dry-run", "-H", "a:1,b:1", "--export", "NOT_SET", "true"), "--export", "NOT_SET")
        dry_run("-np", "1", "true", env=env)  # the file is for other hosts


@test
def the_last_error_of_ssh_is_reported_after_long_output():
    with Folder() as f:
        f.file("ssh", "#!/usr/bin/env python3\nimport os\nos.write(2, b'debug1: so it goes\\n' * 2000 + b'u@far: Permission "
               "denied (publickey).\\n')\nos._exit(255)\n", 0o755)
        r = launch("--force_multi", "-H", "far:1", "true", env=clean_env(PATH=f.path + ":" + os.environ["PATH"]))
        refused(r, "host far", "ssh-copy-id far", code=4)


@test
def hostfiles_are_checked_with_their_place():
    with Folder() as f:
        for text, place in (("a slots=2.5\n", ":1:10"), ("ok slots=1\n-oProxyCommand=x slots=1\n", ":2:1"),
                            ("a slots=0\n", ":1:3"),
                            ("a slots=1\na slots=1\n", ":2:1"), ("", ""), ("a;b slots=1\n", ":1:2"),
                            ("a\0 slots=1\n", ":1:2")):
            path = f.file("hosts", text)
            refused(launch("--hostfile", path, "true"), path + place)
            r = subprocess.run([os.path.dirname(LAUNCH) + "/dsc", "check", "--kind", "hostfile", path],
                               capture_output=True, text=True)
            equal((r.returncode, r.stderr.count("\n"), path + place in r.stderr), (2, 1, True), r)
        path = f.file("hosts", "a slots=1\n")
        equal(subprocess.run([os.path.dirname(LAUNCH) + "/dsc", "check", "--kind", "hostfile", path],
                             capture_output=True).returncode, 0)
        refused(launch("--hostfile", f.path + "/none", "true"), "no such hostfile")
        refused(launch("--hostfile", f.path, "true"), f.path)
        refused(launch("--hostfile", "/dev/zero", "true"), "/dev/zero")
        refused(launch("-H", "a:1,a:1", "true"), "-H:5", "twice")


@test
def names_of_this_host():
    with Folder() as f:
        for host in ("localhost", "127.0.0.1", "127.1.2.3", "::1", socket.gethostname(), socket.gethostname().upper(),
                     socket.gethostname().split(".")[0]):
            r = launch("--hostfile", f.file("hosts", f"{host} slots=2\n"), "sh", "-c", "echo $LOCAL_RANK $MASTER_ADDR")
            equal((r.code, sorted(r.out.split("\n"))), (0, ["", "0 127.0.0.1", "[rank 1] 1 127.0.0.1"]), host, r)
    for args in (["-H", "localhost:2"], ["-np", "2", "-H", "localhost:4"], ["--include", "127.0.0.1:0,5"], ["-np", "2"],
                 ["-H", "localhost:4", "--exclude", "localhost:1,2"]):
        r = launch(*args, "sh", "-c", "echo $RANK", env=clean_env())
        equal((r.code, sorted(r.out.split("\n"))), (0, ["", "0", "[rank 1] 1"]), args, r)


@test
def cuda_visible_devices():
    def run(value, *args):
        return dry_run(*args, env=clean_env(CUDA_VISIBLE_DEVICES=value))
    equal(run("0,2")["hosts"], {"localhost": [0, 2]})
    equal(run("3")["env"]["CUDA_VISIBLE_DEVICES"], "3")
    equal(run("5,7", "--num_gpus=1")["hosts"], {"localhost": [0]})
    p = run("2,3", "-H", "localhost:2")  # the slots of a host that the user named mean the devices of his list
    equal((p["hosts"], p["env"]["CUDA_VISIBLE_DEVICES"]), ({"localhost": [0, 1]}, "2,3"))
    equal(run("GPU-a,GPU-b", "-H", "localhost:1")["env"]["CUDA_VISIBLE_DEVICES"], "GPU-a")
    r = launch("-H", "localhost:3", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES", env=clean_env(CUDA_VISIBLE_DEVICES="4,5"))
    check("CUDA_VISIBLE_DEVICES=4,5 is ignored" in r.err and "0,1,2\n" in r.out, r)
    for hidden in ("", "-1"):
        p = run(hidden, "--num_gpus=2")
        equal((p["world_size"], "CUDA_VISIBLE_DEVICES" in p["env"]), (2, False))
        r = launch("sh", "-c", "echo \"<$CUDA_VISIBLE_DEVICES>\"", env=clean_env(CUDA_VISIBLE_DEVICES=hidden))
        equal(r.out, f"<{hidden}>\n")
    refused(launch("true", env=clean_env(CUDA_VISIBLE_DEVICES="GPU-abc")), "CUDA_VISIBLE_DEVICES")
    r = launch("--num_gpus=1", "true", env=clean_env(CUDA_VISIBLE_DEVICES="4"))
    check("CUDA_VISIBLE_DEVICES=4 is ignored" in r.err, r)


@test
def ranks_learn_their_place():
    names = ("RANK LOCAL_RANK WORLD_SIZE LOCAL_SIZE LOCAL_WORLD_SIZE CROSS_RANK CROSS_SIZE MASTER_ADDR MASTER_PORT "
             "OMP_NUM_THREADS DSC_JOB_TOKEN DSC_LAUNCHER_PID DSC_LAUNCH_TTY KEPT").split()
    script = "echo " + " ".join(f"{n}=${{{n}-none}}" for n in names)
    r = launch("--num_gpus=3", "--master_port", "31000", "--master_addr", "10.0.0.9", "sh", "-c", script,
               env=clean_env(KEPT="a b", RANK="77", DSC_LAUNCH_TTY="80", DSC_JOB_TOKEN="old"))
    equal(r.code, 0, r)
    check("starting 3 CPU ranks" in r.err or os.path.exists("/dev/nvidia0"), r)
    lines = sorted(re.sub(r"^\[rank \d+\] ", "", l) for l in r.out.splitlines())
    threads = max(1, len(os.sched_getaffinity(0)) // 3)
    tokens = set()
    for rank, line in enumerate(lines):
        got = dict(re.findall(r"(\w+)=(\S+)", line))
        tokens.add(got.pop("DSC_JOB_TOKEN"))
        check(int(got.pop("DSC_LAUNCHER_PID")) > 1, line)
        check(1 <= int(got.pop("OMP_NUM_THREADS")) <= threads, line)
        equal(got, {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_SIZE": "3",
                    "LOCAL_WORLD_SIZE": "3",
                    "CROSS_RANK": "0", "CROSS_SIZE": "1", "MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "31000",
                    "DSC_LAUNCH_TTY": "none", "KEPT": "a"})
    equal(len(tokens), 1)
    check(re.fullmatch("[0-9a-f]{32}", tokens.pop()), "token")
    two = [launch("sh", "-c", "echo $DSC_JOB_TOKEN").out for _ in range(2)]
    check(two[0] != two[1], "every start has its own token")
    equal(launch("sh", "-c", "echo $OMP_NUM_THREADS", env=clean_env(OMP_NUM_THREADS="5")).out, "5\n")


@test
def numbers_of_an_outer_launcher_do_not_reach_the_ranks():
    """srun or mpirun start dsc-launch once per host: their numbers are those of dsc-launch, not of its ranks."""
    outer = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "0", "SLURM_NODEID": "0",
             "SLURM_STEP_NUM_NODES": "4", "SLURM_STEP_TASKS_PER_NODE": "1(x4)", "OMPI_COMM_WORLD_RANK": "1",
             "OMPI_COMM_WORLD_SIZE": "4", "PMI_RANK": "3", "PMI_SIZE": "4", "GROUP_RANK": "2"}
    for flags in ([], ["--force_multi"]):
        r = launch("-np", "2", *flags, "env", env=clean_env(SLURM_JOB_ID="7", **outer))
        equal(r.code, 0, r)
        names = {line.split("=")[0] for line in r.out.splitlines()}
        equal(sorted(names & set(outer)), [], flags)
        check(flags or "SLURM_JOB_ID" in names, r)
    with Folder() as f:
        config = f.file("c.json", json.dumps({
            "train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
            "dsc": {"model": "gpt2-nano", "data": f.file("t.txt", "some words " * 200), "seq_length": 16, "steps": 1}}))
        r = launch("-np", "2", "train", "--config", config, env=clean_env(SLURM_JOB_ID="7", **outer), cwd=f.path)
        equal(r.code, 0, r)


@test
def arguments_and_environment_arrive_byte_for_byte():
    argument = bytes(range(1, 256))
    with Folder() as f:
        show = f.file("show", "#!/usr/bin/env python3\nimport os, sys\n"
                      "os.write(1, os.fsencode(sys.argv[1]) + b'|' + os.environb[b'ODD'] + b'|' + "
                      "os.fsencode(str(len(sys.argv))))\n",
                      0o755)
        env = {os.fsencode(k): os.fsencode(v) for k, v in clean_env().items()}
        env[b"ODD"] = argument
        p = subprocess.run([LAUNCH.encode(), show.encode(), argument, b""], env=env, capture_output=True, timeout=20)
        equal(p.stdout, argument + b"|" + argument + b"|3")


@test
def program_beside_the_launcher_comes_before_path():
    with Folder() as f:
        shutil.copy(LAUNCH, f.path)
        f.file("mine", "#!/bin/sh\necho beside\n", 0o755)
        os.mkdir(f.path + "/p")
        f.file("p/mine", "#!/bin/sh\necho path\n", 0o755)
        f.file("p/other", "#!/bin/sh\necho other\n", 0o755)
        f.file("no-x", "#!/bin/sh\n")
        f.file("text", "just text\n", 0o755)
        env = clean_env(PATH=f.path + "/p:" + os.environ["PATH"])
        run = lambda *a: subprocess.run([f.path + "/dsc-launch", *a], env=env, capture_output=True, text=True,
                                        cwd=f.path)
        equal(run("mine").stdout, "beside\n")
        equal(run("other").stdout, "other\n")
        equal(run("./p/mine").stdout, "path\n")
        r = run("no-x")
        equal((r.returncode, "./no-x" in r.stderr), (2, True), r)
        r = run("-np", "3", "./text")
        equal((r.returncode, r.stderr.count("dsc: error: ./text: cannot be started")), (2, 1), r)


@test
def cores_are_divided():
    cores = sorted(os.sched_getaffinity(0))
    show = "grep Cpus_allowed_list /proc/self/status; echo omp $OMP_NUM_THREADS"
    r = launch("--bind_cores_to_rank", "--bind_core_list", str(cores[0]), "sh", "-c", show)
    check(f"Cpus_allowed_list:\t{cores[0]}\nomp 1\n" == r.out, r)
    refused(launch("--bind_cores_to_rank", "true", env=clean_env(KMP_AFFINITY="x")), "KMP_AFFINITY")
    refused(launch("--bind_cores_to_rank", "--bind_core_list", "1000", "true"), "may not use")
    if len(cores) >= 2:
        r = launch("-np", "2", "--bind_cores_to_rank", "--bind_core_list", f"{cores[0]},{cores[1]}", "sh", "-c", show)
        lines = sorted(r.out.splitlines())
        check(f"Cpus_allowed_list:\t{cores[0]}" in lines and f"[rank 1] Cpus_allowed_list:\t{cores[1]}" in lines, r)


@test
def save_pid_file_lives_as_long_as_the_job():
    p = start("--save_pid", "sh", "-c", "cat /tmp/$DSC_LAUNCHER_PID.deepspeed")
    out, err = p.communicate(timeout=60)
    equal((p.returncode, out), (0, str(p.pid).encode()), err)
    check(not os.path.exists(f"/tmp/{p.pid}.deepspeed"), "pid file left")
    marked = Marked()
    p = start("--save_pid", "sleep", "600", env=marked.env)
    wait_for(lambda: len(marked.pids()) >= 3, what="the rank")
    p.kill()
    p.communicate(timeout=60)
    marked.wait_gone(2 * SLOW)
    check(not os.path.exists(f"/tmp/{p.pid}.deepspeed"), "pid file left after kill -9")


@test
def scripts_check_their_arguments_and_call_the_launcher():
    with Folder() as f:
        fake = f.file("dsc-launch", "#!/bin/sh\nprintf '%s|' \"$@\"\n", 0o755)
        def script(name, *args, **env):
            return subprocess.run(["bash", f"{ROOT}/scripts/{name}", *args], env=clean_env(DSC_LAUNCH=fake, **env),
                                  capture_output=True, text=True, timeout=20)
        one, many = "launch_distributed.sh", "launch_multi_node.sh"
        train = "train|--model-type|gpt2-nano|--strategy|ddp|--batch-size|16|--epochs|1|"
        equal(script(one, "gpt2-nano", "ddp", "4", "16", "1").stdout, "--num_gpus=4|" + train)
        equal(script(one, "gpt2-nano", "ddp", "4", "16", "1", "--steps", "a b").stdout,
              "--num_gpus=4|" + train + "--steps|a b|")
        equal(script(many, "gpt2-nano", "ddp", "1", "2", "16", "1").stdout, "--num_nodes=1|--num_gpus=2|" + train)
        equal(script(many, "gpt2-nano", "ddp", "2", "8", "16", "1", HOSTFILE="h", MASTER_PORT="1").stdout,
              "--num_nodes=2|--num_gpus=8|--hostfile|h|--master_port|1|" + train)
        for name, *args in ((one,), (one, "gpt2-nano", "ddp", "4", "16"), (one, "gpt2-nano", "dpd", "4", "16", "1"),
                            (one, "gpt2-nano", "ddp", "0", "16", "1"), (one, "gpt2-nano", "ddp", "4", "1.5", "1"),
                            (one, "-x", "ddp", "4", "1", "1"), (one, "gpt2-nano", "ddp", "4", "1", "$(id)"), (many,),
                            (many, "gpt2-nano", "ddp", "2", "8", "16", "1")):
            r = script(name, *args)
            equal(r.returncode, 2, name, args, r)
            check("usage:" in r.stderr or r.stderr.startswith("dsc: error: "), r)
