# hosts_death.py - over two hosts: signals, and the death of anything. SPDX-License-Identifier: Apache-2.0
from deaths import *
from hosts_jobs import *


@test
def a_ranks_end_ends_all_and_is_named():
    for host, how, code, said in ((1, signal.SIGKILL, 137, "SIGKILL"), (0, CRASH, 128 + CRASH, CRASH.name)):
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
def any_death_in_training_ends_it_everywhere_and_leaves_nothing():
    kinds = ("rank", "dsc-agent of", "dsc-launch --agent", "ssh -T", "dsc-coordinator of", "launcher")

    def make(number):
        args = ["-H", net.list(), "--master_port", str(29500 + number), "--stuck_seconds", "4"]
        return Job(net.folder, args + training(net.folder, stage=number % 4), command=net.command)

    def names(who, host):
        return {"rank": [f"rank {host} ", f"host {HOSTS[host]}"], "ssh -T": [f"host {HOSTS[1]}"]}.get(
            who, [f"host {HOSTS[host]}"] if "agent" in who else [])

    def nothing_left(other):
        before, memory = sockets(), left_in_memory()

        def check_left():
            other.look()
            wait_for(lambda: not set(net.processes()) - set(other.family) - other.doors, seconds=3, what="what ssh leaves")
            wait_for(lambda: not (sockets() - before), seconds=3, what="the end of sockets")
            wait_for(lambda: not left_in_memory() - memory, seconds=3, what="the end of files in memory")
        return check_left
    deaths_beside_a_living_job(net.folder, kinds, 10, make, names, nothing_left)


def cut_link():
    """A link goes down under a job; those that need it not, one on each host, go on."""
    local = [Job(net.folder, ["-np", "2", *training(net.folder)],
                 command=lambda *words, name=name: ["ip", "netns", "exec", name, LAUNCH, *words]) for name in net.names]
    job = Job(net.folder, ["-H", net.list(), "--stuck_seconds", "1", *training(net.folder)], command=net.command)
    try:
        for each in (job, *local):
            each.until_step(2)
        equal(sockets(listening=True), set(), "a port where a stranger can knock while ranks train")
        job.look()
        job.stays, begin = None, time.monotonic()
        run("ip", "-n", net.names[1], "link", "set", "veth0", "down")
        wait_for(lambda: not job.left(), seconds=10, what="the end on both hosts")
        took = time.monotonic() - begin
        # A host that is not heard of is lost, and nobody there is stuck: the hang finder waits for its word.
        equal(job.p.wait(timeout=20), 4, job.text("err"))
        check(f"host {HOSTS[1]}" in job.text("err"), job.text("err"))
        for each in local:
            each.until_step(each.steps() + 2)
            each.p.terminate()
            equal(each.p.wait(timeout=20), 143, each.text("err"))
    finally:
        run("ip", "-n", net.names[1], "link", "set", "veth0", "up")
        for each in (job, *local):
            each.kill()
    # The other sshd's own process notices when it writes or by its keep-alive; nothing of ours is left.
    for pid in net.find("sshd:", host=1):
        os.kill(pid, signal.SIGKILL)
    net.wait_gone(3)
    return took


@test
def a_link_that_is_down_ends_the_job():
    print(f"# over after {max(cut_link() for _ in range(5 if NIGHT else 1)):.1f} s at most")


@test
def a_lost_host_is_had_again_with_max_restarts():
    p = running("--max_restarts", "1", what="[ $DSC_RESTART_COUNT = 1 ] && { echo again $RANK; exit 0; }; " + WAITS)
    kill_all(net.find("ssh -T", host=0), signal.SIGKILL)
    r = ended(p, 20)
    equal(r.code, 0, r)
    check("restart 1 of 1" in r.err and "again 0" in r.out and "again 1" in r.out, r)


@test
def a_stopped_rank_is_named_over_hosts():
    worst, tries = 0, 20 if NIGHT else 1
    for i in range(tries):
        own, flags = ({"comm_timeout_s": 1}, []) if i % 2 == 0 else ({}, ["--stuck_seconds", "1"])
        p = net.start("-H", net.list(1 + i % 4 // 3), *flags, *training(net.folder, stage=(3 + i) % 4, **own))
        until_step(p, 2)
        ranks = ranks_of(net.processes())
        rank = i % len(ranks)
        worst = max(worst, stop_and_see(p, ranks[rank], rank, 1 + 2))
        net.wait_gone(5)
    print(f"# {tries} of {tries} named, and over {worst:.1f} s after SIGSTOP at most; timeout 1 s")
