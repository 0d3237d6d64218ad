# slurm.py - jobs under a real Slurm. SPDX-License-Identifier: Apache-2.0
from slurm_cluster import *

import atexit, select

missing = why_not()
if missing:
    print(missing)
    sys.exit(77)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # a time limit, too, leaves no daemons behind
cluster = Cluster()
atexit.register(cluster.close)
BIN = os.path.dirname(LAUNCH)


def config(stage, **more):
    cluster.write("text.txt", "so it goes, on and on; " * 400)
    return cluster.write(f"stage{stage}.json", json.dumps({
        "train_batch_size": 4, "bf16": {"enabled": False}, "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
        "dsc": {"model": "gpt2-nano", "data": cluster.path("text.txt"), "threads": 1, "seq_length": 16, **more}}))


def checkpoint(name, step=3):
    p = subprocess.run([f"{BIN}/dsc", "ckpt", "hash", cluster.path(f"{name}/step-{step}")], capture_output=True, text=True)
    equal(len(p.stdout), 65, p)
    return p.stdout


def one_host(ranks):
    """The same training with all ranks here and no Slurm; once."""
    name = f"one{ranks}"
    if not os.path.exists(cluster.path(name)):
        r = launch("-np", str(ranks), "train", "--config", config(2), "--steps", "3", "--save", name, cwd=cluster.folder,
                   timeout=60)
        equal(r.code, 0, r)
    return checkpoint(name)


def queue():
    return cluster.run("squeue", "-h", "-o", "%i %T").stdout


def processes_of_jobs():
    """Processes that Slurm's daemons started, on any host; without the calling one."""
    return [pid for pid in cluster.marked.pids() if pid != os.getpid()]


@test
def srun_by_dsc_launch_trains_to_the_bits_of_one_host():
    train = ["train", "--steps", "3"]
    r = cluster.run("salloc", "-N2", "--ntasks-per-node=2", LAUNCH, "--launcher", "slurm", *train, "--config", config(3),
                    "--save", "salloc")
    equal(r.returncode, 0, r)
    equal(checkpoint("salloc"), one_host(4))
    check('auto is "hier": several ranks on a host, on several hosts' in r.stdout, r)
    # As many ranks on each host is not needed.
    r = cluster.run("salloc", "-N2", "-n4", LAUNCH, "--launcher", "slurm", "sh", "-c",
                    "echo $SLURM_PROCID of $SLURM_STEP_NUM_TASKS on $SLURMD_NODENAME")
    equal(sorted(r.stdout.splitlines()), ["0 of 4 on n1", "1 of 4 on n1", "2 of 4 on n1", "3 of 4 on n2"], r)


@test
def srun_alone_trains_to_the_bits_of_one_host():
    # Nobody but Slurm tells the ranks who they are; it puts three of them on the first node.
    train = ["srun", "-N2", "-n4", f"{BIN}/train", "--config", config(2), "--steps", "3", "--save", "srun4"]
    r = cluster.run(*train)
    check(r.returncode == 2 and "export DSC_JOB_TOKEN=" in r.stderr, r)
    r = cluster.run(*train, env={"DSC_JOB_TOKEN": os.urandom(16).hex()})
    equal(r.returncode, 0, r)
    equal(checkpoint("srun4"), one_host(4), r)


def follow(path):
    """`tail -f`, from before the file is there."""
    return subprocess.Popen(["tail", "-n", "+1", "-F", path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def round_trip(submit, log, save, cwd=None, lines=3):
    """sbatch, squeue, tail -f, scancel: what is left is a checkpoint."""
    p = cluster.run("sbatch", *submit, cwd=cwd)
    number = re.search(r"Submitted batch job (\d+)", p.stdout)
    check(number, p)
    tail = follow(log(number[1]))
    try:
        seen = b""
        while seen.count(b"\nstep ") < lines:
            ready, _, _ = select.select([tail.stdout], [], [], 20 * SLOW)
            piece = os.read(tail.stdout.fileno(), 4096) if ready else b""
            check(piece, seen, queue(), cluster.tails())
            seen += piece
        equal(queue(), f"{number[1]} RUNNING\n")
        check(processes_of_jobs(), "no process of the job is found")
        begin = time.monotonic()
        equal(cluster.run("scancel", number[1]).returncode, 0)
        wait_for(lambda: not processes_of_jobs(), 10, "the end of all processes of the job")
        took = time.monotonic() - begin
        wait_for(lambda: queue() == "", 10, "an empty queue")
        print(f"# 0 processes {took:.1f} s after scancel")
    finally:
        tail.kill()
        tail.wait()
    with open(cluster.path(f"{save}/latest")) as f:
        name = f.read().strip()
    p = subprocess.run([f"{BIN}/dsc", "ckpt", "verify", cluster.path(f"{save}/{name}")], capture_output=True, text=True)
    equal(p.returncode, 0, p)
    check(int(name.split("-")[1]) >= lines, name)


@test
def a_batch_job_is_seen_and_cancelled():
    script = cluster.run(LAUNCH, "--launcher", "slurm", "--sbatch", "--num_nodes", "2", "--num_gpus", "2",
                         "--launcher_args", "--time=10 --comment=quick", "--export", "A=it's $HOME", "train", "--config",
                         config(2), "--steps", "1000000", "--save", "batch save")
    equal((script.returncode, script.stderr), (0, ""), script)
    round_trip([cluster.write("job.sh", script.stdout)], lambda number: cluster.path(f"dsc-{number}.out"), "batch save")


@test
def the_script_of_the_guides_is_seen_and_cancelled():
    round_trip(["--nodes=2", "--ntasks-per-node=1", f"--chdir={cluster.folder}",
                f"--export=ALL,OMP_NUM_THREADS=1,DSC_LAUNCH={LAUNCH}", f"{ROOT}/scripts/slurm_distributed.sh", "gpt2-nano", "fsdp_stage2", "2",
                "1000", "--seq-len", "16", "--data", cluster.path("text.txt"), "--save", cluster.path("guide")],
               lambda number: cluster.path(f"logs/slurm_distributed_{number}.out"), "guide", cwd=ROOT,
               lines=1)  # its preset prints every tenth step


@test
def a_rank_that_dies_ends_the_step():
    r = cluster.run("salloc", "-N2", "-n2", "--ntasks-per-node=1", LAUNCH, "--launcher", "slurm", "sh", "-c",
                    "[ $SLURM_PROCID = 1 ] && exit 9; sleep 600", timeout=30)
    check(r.returncode != 0 and "task 1: Exited with exit code 9" in r.stderr, r)
    wait_for(lambda: not processes_of_jobs(), 10, "the end of all processes of the job")


@test
def bytes_arrive_through_the_script_as_they_are():
    nasty = "a'b\"c $HOME `id` \\ * \t;|&<>()#!{}~ end"
    script = cluster.run(LAUNCH, "--launcher", "slurm", "--sbatch", "-np", "1", "--export", "NASTY=" + nasty,
                         sys.executable, "-c", "import os, sys; print(repr((sys.argv[1:], os.environ['NASTY'])))", nasty, "", "x\ny")
    equal(script.returncode, 0, script)
    r = cluster.run("sbatch", "--wait", "-o", cluster.path("nasty.out"), cluster.write("nasty.sh", script.stdout))
    with open(cluster.path("nasty.out")) as f:
        equal(f.read().splitlines()[-1], repr(([nasty, "", "x\ny"], nasty)), r)


sys.exit(run_all(next((a for a in sys.argv[1:] if not a.startswith("-")), "")))
