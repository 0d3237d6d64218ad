# runners.py - other launchers: mpirun, srun, and the user himself on each host. SPDX-License-Identifier: Apache-2.0
from harness import *

SHOW = "#!/bin/sh\nprintf '%s\\n' \"$0\" \"$@\"; env | grep -E '^(MASTER_|DSC_JOB|DSC_COMM|CUDA_VIS|I_MPI|MV2_|A=)' | sort\n"


def fake(folder, name):
    """A launcher that prints its arguments."""
    folder.file(name, SHOW, 0o755)
    return folder.path + ":" + os.environ["PATH"]


@test
def no_ssh_starts_this_hosts_ranks():
    show = "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_SIZE $CROSS_RANK $CROSS_SIZE $MASTER_ADDR,$DSC_JOB_TOKEN"
    token = "0123456789abcdef" * 2
    out = []
    for node in range(2):
        r = launch("--no_ssh", "--node_rank", str(node), "-H", "h1:1,h2:2", "sh", "-c", show,
                   env=clean_env(DSC_JOB_TOKEN=token))
        equal(r.code, 0, r)
        out += sorted(r.out.splitlines())
    equal(out, [f"0 0 3 1 0 2 h1,{token}", f"[rank 1] 1 0 3 2 1 2 h1,{token}", f"[rank 2] 2 1 3 2 1 2 h1,{token}"])
    r = launch("--no_ssh", "--node_rank=1", "-H", "h1:1,h2:2", "sh", "-c", show)
    check("h1,\n" in r.out, "a token of one host alone would keep the ranks apart", r)
    r = launch("--no_ssh", "--node_rank=1", "-H", "h1:4,h2:2", "sh", "-c", "echo last; [ $RANK = 5 ] && exit 9; sleep 60")
    refused(r, "rank 5", "host h2", "code 9", code=9)
    check("  | last\n" in r.err, r)
    for args, *parts in ((["-H", "a:1,b:1"], "--node_rank", "0 to 1"),
                         (["--node_rank=2", "-H", "a:1,b:1"], "--node_rank", "0 to 1"),
                         (["--node_rank=1"], "--node_rank", "one host"),
                         (["--node_rank=1", "-H", "localhost:1,b:1"], "--no_ssh", "--master_addr")):
        refused(launch("--no_ssh", *args, "true"), *parts)
    r = launch("--no_ssh", "--node_rank=1", "-H", "a:1,b:1", "true", env=clean_env(DSC_JOB_TOKEN="x"))
    refused(r, "DSC_JOB_TOKEN", "32 hexadecimal digits")


@test
def mpirun_is_told_hosts_and_names_of_variables():
    with Folder() as f:
        env = clean_env(PATH=fake(f, "mpirun"), A="1 2")
        r = launch("--launcher", "openmpi", "-H", "a:2,b:3", "--master_port", "77", "--export", "A", "--launcher_args",
                   "--mca btl tcp", "--include", "a:0@b:0", f.file("p", SHOW, 0o755), "x y", env=env)
        lines = r.out.splitlines()
        equal((r.code, lines[0]), (0, f.path + "/mpirun"), r)
        equal(lines[1:8], ["-n", "2", "--host", "a:1,b:1", "--mca", "btl", "tcp"], r)
        at = lines.index(f.path + "/p")
        equal((lines[at + 1], "A=1 2" in lines, "MASTER_ADDR=a" in lines, "MASTER_PORT=77" in lines), ("x y",) + (True,) * 3)
        names = lines[8:at]
        equal((set(names[::2]), {"A", "MASTER_ADDR", "MASTER_PORT", "DSC_JOB_TOKEN", "CUDA_VISIBLE_DEVICES"} - set(names)),
              ({"-x"}, set()), r)
        check(any(re.fullmatch("DSC_JOB_TOKEN=[0-9a-f]{32}", l) for l in lines[at:]), r)
        r = launch("--launcher", "mpich", "-H", "a:2,b:2", "true", env=env)
        equal(r.out.splitlines()[1:7], ["-n", "4", "-ppn", "2", "-hosts", "a,b"], r)
        for name, flags, variable in (("impi", ["-genvall"], "I_MPI_PIN=0"), ("mvapich", [], "MV2_ENABLE_AFFINITY=0")):
            r = launch("--launcher", name, "-H", "a:2,b:2", "/bin/true", env=env)
            equal(r.out.splitlines()[1:8 + len(flags)], ["-n", "4", "-ppn", "2", "-hosts", "a,b", *flags, "/bin/true"], r)
            check(variable in r.out and "MASTER_ADDR=a\n" in r.out, r)
            r = launch("--launcher", name, "-H", "a:2,b:2", "/bin/true", env={**env, variable.split("=")[0]: "1"})
            check(variable not in r.out, "the user's own value is kept", r)
        p = json.loads(launch("--launcher", "impi", "--dry-run", "-H", "a:2,b:2", env=env).out)
        equal(p["launcher_command"][:3], ["mpirun", "-n", "4"])
        r = launch("--launcher", "mpich", "-H", "a:2,b:3", "true", env=env)
        refused(r, "--launcher", "--num_gpus")
        r = launch("--launcher", "openmpi", "-H", "a:2,b:2", "--include", "a:0@b:1", "true", env=env)
        refused(r, "--launcher", "CUDA_VISIBLE_DEVICES")
        os.remove(f.path + "/mpirun")
    with Folder() as f:
        r = launch("--launcher", "openmpi", "-np", "2", "/bin/true", env=clean_env(PATH=f.path))
        refused(r, "--launcher", "mpirun cannot be started")


@test
def srun_is_told_ranks_and_nodes():
    with Folder() as f:
        env = dict(PATH=fake(f, "srun"), SLURM_JOB_NODELIST="gpu[08-10,3],x", SLURM_TASKS_PER_NODE="4(x5)")
        r = launch("--launcher", "slurm", f.file("p", SHOW, 0o755), env=clean_env(**env))
        equal((r.code, r.out.splitlines()[1:7]),
              (0, ["--ntasks=20", "--nodes=5", "--ntasks-per-node=4", "--nodelist=gpu08,gpu09,gpu10,gpu3,x", "--export=ALL",
                   "--kill-on-bad-exit=1"]), r)
        check("MASTER_ADDR=gpu08" in r.out and "CUDA_VISIBLE" not in r.out, r)
        r = launch("--launcher", "slurm", "--num_nodes=2", "--num_gpus=8", "true", env=clean_env(**env))
        equal(r.out.splitlines()[1:5], ["--ntasks=16", "--nodes=2", "--ntasks-per-node=8", "--nodelist=gpu08,gpu09"], r)
        # Hosts with different numbers of ranks: one name for each rank, in their order.
        uneven = {**env, "SLURM_JOB_NODELIST": "a[1-3]", "SLURM_TASKS_PER_NODE": "2(x2),1", "SLURM_JOB_ID": "3007"}
        r = launch("--launcher", "slurm", "true", env=clean_env(**uneven))
        equal(r.out.splitlines()[1:5], ["--ntasks=5", "--nodes=3", "--distribution=arbitrary", "--nodelist=a1,a1,a2,a2,a3"], r)
        check("MASTER_PORT=29507" in r.out, "two jobs may share a node", r)
        r = launch("--launcher", "slurm", "--master_port", "77", "--comm", "tcp", "true", env=clean_env(**uneven))
        check("MASTER_PORT=77" in r.out and "DSC_COMM=tcp" in r.out, r)
        for tasks in ("2(x2)", "x", "0(x3)", "2000(x3)"):
            r = launch("--launcher", "slurm", "true", env=clean_env(**{**uneven, "SLURM_TASKS_PER_NODE": tasks}))
            refused(r, "SLURM_TASKS_PER_NODE")
        r = launch("--launcher", "slurm", "-np", "3", "true", env=clean_env(PATH=env["PATH"]))
        equal(r.out.splitlines()[1:4], ["--ntasks=3", "--nodes=1", "--ntasks-per-node=3"], r)
        refused(launch("--launcher", "slurm", "--num_nodes=2", "true", env=clean_env(PATH=env["PATH"])), "--num_nodes",
                "salloc or sbatch")
        for bad in ("a[", "a[1", "a[1-", "a[2-1]", "a[1]b", ",", "a;b", "a[1-999999]", "a,a", "a[01-2][3]", "-a"):
            r = launch("--launcher", "slurm", "true", env=clean_env(PATH=env["PATH"], SLURM_JOB_NODELIST=bad))
            refused(r, "SLURM_JOB_NODELIST")
        p = json.loads(launch("--launcher", "slurm", "--dry-run", "true", env=clean_env(**env)).out)
        equal((p["world_size"], p["launcher_command"][0], len(p["hosts"])), (20, "srun", 5))


@test
def flags_that_slurm_cannot_serve_are_refused():
    for flag in (["--enable_each_rank_log", "logs"], ["--max_restarts", "1"], ["--bind_cores_to_rank"], ["--no_ssh"]):
        refused(launch("--launcher", "slurm", *flag, "true"), flag[0], "--launcher slurm")
    equal(launch("--launcher", "slurm", "--enable_each_rank_log", "None", "--max_restarts", "0", "--dry-run", "true").code, 0)


@test
def the_batch_script_says_what_was_asked():
    r = launch("--launcher", "slurm", "--sbatch", "--num_nodes=2", "--num_gpus=4", "--launcher_args",
               "--time=1:00:00 --gpus-per-node=4", "--master_port", "77", "--comm", "tcp", "-x", "A=it's", "sh", "-c", "echo 1")
    equal((r.code, r.err), (0, ""), r)
    *directives, command = r.out.splitlines()
    equal(directives, ["#!/bin/sh", "#SBATCH --job-name=dsc", "#SBATCH --output=dsc-%j.out", "#SBATCH --signal=TERM@60",
                       "#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=4", "#SBATCH --time=1:00:00 --gpus-per-node=4"], r)
    sh = shutil.which("sh")
    equal(command, f"exec '{LAUNCH}' --launcher slurm --master_port 77 --comm 'tcp' --export 'A=it'\\''s' -- '{sh}' '-c' "
          "'echo 1'")
    check("#SBATCH --ntasks=3\n" in launch("--launcher", "slurm", "--sbatch", "-np", "3", "true").out)
    refused(launch("--sbatch", "true"), "--sbatch", "--launcher slurm")
    refused(launch("--launcher", "slurm", "--sbatch"), "PROGRAM")
    refused(launch("--launcher", "slurm", "--sbatch", "-H", "a:1,b:1", "true"), "--sbatch", "--nodelist")
    for args in ("x", "--a\n#SBATCH --b", ";id"):
        refused(launch("--launcher", "slurm", "--sbatch", "--launcher_args", args, "true"), "--launcher_args")


@test
def one_transport_for_all_ranks():
    with Folder() as f:
        f.file("config.json", json.dumps({**CONFIG, "dsc": {
            "model": "gpt2-nano", "data": f.file("text.txt", "so it goes, on and on; " * 400), "threads": 1,
            "seq_length": 16, "comm": "shm"}}))
        train = ["train", "--config", "config.json", "--steps", "1"]
        r = launch("-np", "2", "--comm", "tcp", *train, cwd=f.path, timeout=60)
        check(r.code == 0 and "2 ranks (tcp)" in r.out, r)
        equal(r.out.count("DSC_COMM \"tcp\" overrides dsc.comm \"shm\""), 1, r)
        r = launch("-np", "2", "--comm", "auto", *train, cwd=f.path, timeout=60)
        check(r.code == 0 and 'comm: auto is "shm": all ranks are on this host' in r.out, r)
        r = launch("-np", "2", *train, cwd=f.path, timeout=60, env=clean_env(DSC_COMM="ether\"net"))
        refused(r, "DSC_COMM", 'ether', "not one of")
    equal(launch("-np", "1", "--force_multi", "--comm", "gloo", "sh", "-c", "echo $DSC_COMM").out, "gloo\n")
    refused(launch("--comm", "ether", "true"), "--comm", "tcp")
    refused(launch("--comm", "shm", "-H", "a:1,b:1", "true"), "--comm", "tcp or gloo")
    refused(launch("--comm", "mpi", "true"), "--comm", "--launcher openmpi")
    p = json.loads(launch("--comm", "mpi", "--launcher", "openmpi", "-np", "2", "--dry-run", "true").out)
    check("DSC_COMM" in p["launcher_command"], p)


@test
def the_slurm_script_checks_its_arguments():
    with Folder() as f:
        fake(f, "dsc-launch")

        def script(*args, **env):
            return subprocess.run(["bash", f"{ROOT}/scripts/slurm_distributed.sh", *args], capture_output=True, text=True,
                                  env=clean_env(DSC_LAUNCH=f.path + "/dsc-launch", SLURM_SUBMIT_DIR=ROOT, **env))
        r = script("gpt2-nano", "ddp", "16", "1", "--steps", "a b", SLURM_JOB_ID="1")
        equal(r.stdout.splitlines()[1:], ["--launcher", "slurm", "train", "--model-type", "gpt2-nano", "--strategy", "ddp",
                                          "--batch-size", "16", "--epochs", "1", "--steps", "a b"], r)
        # With the number of ranks, as the guides have it: equal to the job's, shared by a node's only task, or refused.
        guide = ["mobilenet", "ddp", "8", "16", "100"]
        rest = ["train", "--model-type", "mobilenet", "--strategy", "ddp", "--batch-size", "16", "--epochs", "100"]
        r = script(*guide, SLURM_JOB_ID="1", SLURM_NTASKS="8", SLURM_JOB_NUM_NODES="2")
        equal((r.stdout.splitlines()[1:], r.stderr), (["--launcher", "slurm", *rest], ""), r)
        r = script(*guide, SLURM_JOB_ID="1", SLURM_NTASKS="1", SLURM_JOB_NUM_NODES="1")
        equal(r.stdout.splitlines()[1:], ["--num_gpus=8", *rest], r)
        check("--ntasks-per-node=8" in r.stderr, r)
        r = script(*guide, SLURM_JOB_ID="1", SLURM_NTASKS="2", SLURM_JOB_NUM_NODES="2")
        check(r.returncode == 2 and "NUM_GPUS" in r.stderr, r)
        for args in ([], ["gpt2-nano"], ["gpt2-nano", "x", "1", "1"], ["-m", "ddp", "1", "1"], ["m", "ddp", "0", "1"]):
            equal(script(*args, SLURM_JOB_ID="1").returncode, 2, args)
        r = script("gpt2-nano", "ddp", "16", "1")
        check(r.returncode == 2 and "sbatch" in r.stderr, r)


CONFIG = {"train_batch_size": 4, "bf16": {"enabled": False}, "zero_optimization": {"stage": 2},
          "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}


@test
def hydra_trains_to_the_same_bits():
    hydra = shutil.which("mpiexec.hydra")
    if hydra is None:
        raise Skipped("MPICH is not installed")
    with Folder() as f, Folder() as path:
        path.file("mpirun", f"#!/bin/sh\nexec {hydra} \"$@\"\n", 0o755)
        f.file("config.json", json.dumps({**CONFIG, "dsc": {
            "model": "gpt2-nano", "data": f.file("text.txt", "so it goes, on and on; " * 400), "threads": 1,
            "seq_length": 16}}))
        args = ["-np", "2", "train", "--config", "config.json", "--steps", "3", "--save"]
        env = clean_env(PATH=path.path + ":" + os.environ["PATH"])
        for r in (launch(*args, "ours", cwd=f.path, timeout=60),
                  launch("--launcher", "mpich", *args, "theirs", cwd=f.path, timeout=60, env=env)):
            equal(r.code, 0, r)
        hashes = [subprocess.run([os.path.join(os.path.dirname(LAUNCH), "dsc"), "ckpt", "hash", f"{f.path}/{d}/step-3"],
                                 capture_output=True, text=True).stdout for d in ("ours", "theirs")]
        equal((len(hashes[0]), len(set(hashes))), (65, 1), hashes)


@test
def pdsh_arguments_that_are_not_for_ssh_are_refused():
    def asked(*args, **env):
        return launch("--dry-run", "-H", "me@away:1,other:1", *args, "true", env=clean_env(**env))
    for args in ("-l me -t 3", "-S -f1024 -N -R ssh", "-t3 -b"):
        equal(asked("--launcher", "pdsh", "--launcher_args", args).code, 0, args)
    for args, part in (("-w a", "--hostfile"), ("-x a", "--exclude"), ("-t x", "number"), ("-S -l", "lacks"), ("x", "flags"),
                       ("-R mrsh", "ssh only"), ("-u 3", "flags")):
        refused(asked("--launcher", "pdsh", "--launcher_args", args), "--launcher_args", part)
    for name in ("PDSH_SSH_ARGS", "PDSH_SSH_ARGS_APPEND"):
        for text in ("-4 -p 22 -i key -l%u %h", "-oStrictHostKeyChecking=no\t-q", "", " -vv %u@%h", "-o ProxyCommand=x%%y"):
            for args in ([], ["--launcher", "pdsh"], ["--launcher", "PDSH"]):
                equal(asked(*args, **{name: text}).code, 0, text)
        for text, part in (("-n", "no input"), ("-fq", "no input"), ("other", "not an option"), ("-o", "lacks a value"),
                           ("-Z", "not an option"), ("--", "not an option"), ("-p %n", "%h"), ("-l %", "%h"), ("-", "not an option"),
                           ("-4 " * 99, "more than"), ("-p" + "1" * 9000, "more than"), ("-qW x:1", "no input")):
            r = asked(**{name: text})
            refused(r, name, part)
            equal(asked("--launcher", "ssh", **{name: text}).code, 0, "not its business")
        equal(launch("--dry-run", "-np", "2", "true", env=clean_env(**{name: "-n"})).code, 0, "no other host")


@test
def mpirun_trains_to_the_same_bits():
    if shutil.which("mpirun") is None:
        raise Skipped("mpirun is not installed")
    with Folder() as f:
        f.file("config.json", json.dumps({**CONFIG, "dsc": {
            "model": "gpt2-nano", "data": f.file("text.txt", "so it goes, on and on; " * 400), "threads": 1,
            "seq_length": 16}}))
        args = ["train", "--config", "config.json", "--steps", "3", "--save"]
        r = launch("-np", "2", *args, "ours", cwd=f.path, timeout=60)
        equal(r.code, 0, r)
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        r = launch("--launcher", "openmpi", "-np", "2", "--launcher_args", " ".join(root + ["--oversubscribe"]), *args,
                   "theirs", cwd=f.path, timeout=60)
        equal(r.code, 0, r)
        # And with nobody between mpirun and the program.
        p = subprocess.run(["mpirun", *root, "--oversubscribe", "-n", "2", os.path.join(os.path.dirname(LAUNCH), "train"),
                            *args[1:], "plain"], cwd=f.path, env=clean_env(), capture_output=True, timeout=60)
        equal(p.returncode, 0, p)
        hashes = [subprocess.run([os.path.join(os.path.dirname(LAUNCH), "dsc"), "ckpt", "hash", f"{f.path}/{d}/step-3"],
                                 capture_output=True, text=True).stdout for d in ("ours", "theirs", "plain")]
        equal((len(hashes[0]), len(set(hashes))), (65, 1), hashes)
