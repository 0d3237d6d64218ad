# hosts_saves.py - two hosts whose checkpoints are on disks of their own. SPDX-License-Identifier: Apache-2.0
from hosts_jobs import *

DSC = os.path.join(os.path.dirname(LAUNCH), "dsc")
PORT = ["--ssh_port", "2226"]


def own_disks():
    """The folder "disk" of the other host is what lies at "disk-b" here."""
    if not os.path.exists(net.path("disk")):
        os.mkdir(net.path("disk"))
        os.mkdir(net.path("disk-b"))
        net.sshd(net.names[1], 2226, prepare=f"mount --bind {net.path('disk-b')} {net.path('disk')}")


def config(**more):
    return net.write("disks.json", json.dumps({
        "train_batch_size": 4, "bf16": {"enabled": True}, "zero_optimization": {"stage": 3},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}, "checkpoint": {"use_node_local_storage": True},
        "dsc": {"model": "gpt2-nano", "data": net.write("text.txt", "so it goes, on and on; " * 400), "threads": 1,
                "seq_length": 16, "save_every": 1, **more}}))


def ckpt(*args):
    p = subprocess.run([DSC, "ckpt", *args], capture_output=True, text=True, cwd=net.folder)
    return Result(p.returncode, p.stdout, p.stderr, 0)


def merged(run, step, out):
    r = ckpt("merge", f"disk/{run}/step-{step}", f"disk-b/{run}/step-{step}", "--out", out)
    equal(r.code, 0, r)
    return ckpt("hash", out).out


def expected(steps):
    r = launch("-np", "4", "train", "--config", config(), "--steps", str(steps), "--save", f"undisturbed-{steps}",
               cwd=net.folder, timeout=60)
    equal(r.code, 0, r)
    found = ckpt("hash", f"undisturbed-{steps}").out  # on one host: the usual form
    equal(len(found), 65, r)
    return found


def train(hosts, run, *args, **more):
    return net.launch(*PORT, "-H", hosts, "train", "--config", config(**more), "--save", f"disk/{run}", *args)


@test
def each_host_saves_its_part_and_any_placement_loads_it():
    own_disks()
    r = train(net.list(2), "run", "--steps", "2", keep_last=2)
    equal(r.code, 0, r)
    check("saved step 2" in r.out, r)
    for folder in ("disk", "disk-b"):
        r = ckpt("ls", folder + "/run")
        equal(r.code, 0, r)
        check(f"part {1 + (folder == 'disk-b')} of 2 (host " in r.out, r)
        r = ckpt("verify", folder + "/run")
        check(r.code == 0 and "good, step 2" in r.out and "dsc ckpt merge" in r.out, r)
    refused(ckpt("hash", "disk/run"), "part 1 of 2", "dsc ckpt merge")
    refused(ckpt("merge", "disk/run", "--out", "none"), "part 2 of 2")
    r = launch("-np", "1", "train", "--config", config(), "--model", "disk/run/step-2", "--save", "none", "--steps", "1",
               cwd=net.folder, timeout=60)
    refused(r, "one host's part of a checkpoint")
    end = expected(3)
    swapped = f"{HOSTS[1]}:2,{HOSTS[0]}:2"
    r = train(swapped, "run", "--steps", "3", "--load", "auto", keep_last=2)
    equal(r.code, 0, r)
    equal(merged("run", 3, "merged"), end)
    for folder in ("disk", "disk-b"):
        equal(sorted(os.listdir(net.path(folder) + "/run")), ["latest", "step-2", "step-3"])
    # The whole goes on on one host.
    r = launch("-np", "2", "train", "--config", config(), "--load", "merged", "--steps", "4", "--save", "whole",
               cwd=net.folder, timeout=60)
    equal((r.code, ckpt("ls", "whole").code), (0, 0), r)
    # And a part of it on none of the job's hosts is said.
    r = launch("-np", "2", "train", "--config", config(), "--load", "disk/run", "--steps", "4", "--save", "whole-2",
               cwd=net.folder, timeout=60)
    refused(r, "disk/run/step-3", "part 1 of 2", "is on no host of this job")
    net.wait_gone(3)


@test
def a_host_that_is_killed_while_it_saves_loses_nothing():
    own_disks()
    end = expected(12)
    for number, host in ((0, 1), (1, 0)):
        run = f"killed-{number}"
        p = subprocess.Popen(net.command(*PORT, "-H", net.list(2), "train", "--config", config(save_async=number == 1),
                                         "--save", f"disk/{run}", "--steps", "12"), env=clean_env(), cwd=net.folder,
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        near = net.path(("disk", "disk-b")[host]) + f"/{run}/step-{2 + number}"
        wait_for(lambda: os.path.exists(near) or os.path.exists(near + ".tmp"), seconds=30, what="a save")
        title = os.path.join(os.path.dirname(LAUNCH), "train")
        pids = [pid for pid in net.processes(host=host) if net.title(pid).startswith((title + " ", "train "))]
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        ended(p, 20)
        r = train(net.list(2), run, "--steps", "12", "--load", "auto")
        equal(r.code, 0, run, r)
        check("step 1 " not in r.out.replace("step  ", "step "), "it began again", r)
        equal(merged(run, 12, run + "-merged"), end, run)
    net.wait_gone(3)
