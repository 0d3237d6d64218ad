# hang.py - ranks that do not come to a collective: named by the launcher, whoever else waits for them.
# SPDX-License-Identifier: Apache-2.0
from deaths import *

@test
def a_stopped_rank_is_named():
    # The ranks' own timeout, and the launcher's while the ranks' timeout is ten minutes.
    worst, tries = 0, 20 if NIGHT else 2
    with Folder() as f:
        for i in range(tries):
            own, flags = ({"comm_timeout_s": 1}, []) if i % 2 == 0 else ({}, ["--stuck_seconds", "1"])
            marked = Marked()
            env = dict(marked.env, OMP_WAIT_POLICY="passive")
            p = start("-np", str(2 + i % 3), *flags, *training(f.path, stage=(3 + i) % 4, **own), env=env)
            until_step(p, 2)
            ranks = ranks_of(marked.pids())
            rank = i % len(ranks)
            worst = max(worst, stop_and_see(p, ranks[rank], rank, 1 + 2))
            marked.wait_gone(0.5 * SLOW)
    print(f"# {tries} of {tries} named, and over {worst:.1f} s after SIGSTOP at most; timeout 1 s")


@test
def a_stopped_rank_that_is_alone_is_named():
    with Folder() as f:
        marked = Marked()
        p = start("-np", "1", *training(f.path, comm_timeout_s=1), env=dict(marked.env, OMP_WAIT_POLICY="passive"))
        until_step(p, 2)
        pid = ranks_of(marked.pids())[0]
        begin = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        _, err = p.communicate(timeout=60)
        took = time.monotonic() - begin
        equal(p.returncode, 5, err)
        check(re.search(rf"stuck: rank 0 \(host \S+, pid {pid}\) is stopped", err.decode()), err)
        check(took < 3.5 * SLOW, f"{took:.1f} s")
        marked.wait_gone(0.5 * SLOW)


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
        _, err = p.communicate(timeout=60)
        equal((p.returncode, b"stuck" in err), (143, False), err)
        marked.wait_gone(0.5 * SLOW)


@test
def ranks_without_a_record_are_left_alone():
    r = launch("-np", "2", "--stuck_seconds", "1", "sh", "-c", "sleep 1.2; echo $DSC_FLIGHT")
    equal(r.code, 0, r)
    equal(len(re.findall(r"\d+:\d+:[01]", r.out)), 2, r)
    refused(launch("--stuck_seconds", "0", "true"), "--stuck_seconds")


@test_alone
def any_death_in_training_on_one_host_leaves_nothing():
    kinds = ("rank", "dsc-supervisor of", "launcher")
    with Folder() as f:
        def make(number):
            return Job(f.path, ["-np", "2", "--stuck_seconds", "2", *training(f.path, stage=number % 4)])

        def nothing_left(other):
            memory = left_in_memory()
            return lambda: wait_for(lambda: not left_in_memory() - memory, seconds=3, what="the end of files in memory")
        deaths_beside_a_living_job(f.path, kinds, 5, make,
                                   lambda who, host: [f"rank {host} "] if who == "rank" else [], nothing_left)
