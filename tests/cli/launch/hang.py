# hang.py - ranks that do not come to a collective: named by the launcher, whoever else waits for them.
# SPDX-License-Identifier: Apache-2.0
from stuck import *

@test
def a_stopped_rank_is_named():
    # The ranks' own timeout, and the launcher's while theirs is ten minutes.
    worst = 0
    with Folder() as f:
        for i in range(20 if NIGHT else 2):
            own, flags = ({"comm_timeout_s": 1}, []) if i % 2 == 0 else ({}, ["--stuck_seconds", "1"])
            marked = Marked()
            env = dict(marked.env, OMP_WAIT_POLICY="passive")
            p = start("-np", str(2 + i % 3), *flags, *training(f.path, stage=(3 + i) % 4, **own), env=env)
            until_step(p, 2)
            ranks = ranks_of(marked.pids())
            rank = i % len(ranks)
            worst = max(worst, stop_and_see(p, ranks[rank], rank, 1 + 2))
            marked.wait_gone(0.5 * SLOW)
    print(f"# named and over {worst:.1f} s after SIGSTOP at most, timeout 1 s")


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
        _, err = p.communicate(timeout=20)
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
    # Whom, how, and what the launcher ends with. SIGUSR2 makes a rank end with 3, as one would of itself.
    deaths = [("rank", signal.SIGKILL, 137), ("rank", signal.SIGSEGV, 139), ("rank", signal.SIGSTOP, 5),
              ("rank", signal.SIGUSR2, 3), ("supervisor", signal.SIGKILL, 4), ("supervisor", signal.SIGSEGV, 4),
              ("supervisor", signal.SIGSTOP, 4), ("launcher", signal.SIGKILL, -9), ("launcher", signal.SIGSEGV, -11),
              ("launcher", signal.SIGSTOP, 4)]
    seed = int(os.environ.get("DSC_TEST_SEED", time.monotonic_ns() % 1000000))
    rng = random.Random(seed)
    rng.shuffle(deaths)
    worst = 0
    with Folder() as f:
        other = Marked()
        q = start("-np", "2", "sleep", "600", env=other.env)
        wait_for(lambda: len(other.pids()) == 4, what="the second job")
        memory = left_in_memory()
        for who, how, code in (deaths * 5 if NIGHT else deaths[:1]):
            worst = max(worst, die_alone(f.path, who, how, code, rng.randrange(2)))
            equal((left_in_memory() - memory, len(other.pids())), (set(), 4), who, how, "seed", seed)
        q.terminate()
        q.communicate(timeout=20)
        equal(q.returncode, 143)
    print(f"# seed {seed}; over after {worst:.1f} s at most")


def die_alone(folder, who, how, code, rank):
    what = f"{who}, {how!r}"
    args = training(folder)
    marked = Marked()
    p = start("-np", "2", "--stuck_seconds", "1", *(ENDS_WITH_3 + args[1:] if how == signal.SIGUSR2 else args),
              env=dict(marked.env, OMP_WAIT_POLICY="passive"))
    until_step(p, 2)
    wrapper = [pid for pid in marked.pids() if how != signal.SIGUSR2 or title(pid).startswith("sh -c")]
    pid = {"rank": ranks_of(wrapper).get(rank), "supervisor": supervisor_of(p), "launcher": p.pid}[who]
    begin = time.monotonic()
    os.kill(pid, how)
    stays = {p.pid} if who == "launcher" and how == signal.SIGSTOP else set()
    wait_for(lambda: not set(marked.pids()) - stays, seconds=5, what="the end: " + what)
    took = time.monotonic() - begin
    p.send_signal(signal.SIGCONT)
    _, err = p.communicate(timeout=20)
    equal(p.returncode, code, what, err.decode(errors="replace"))
    return took
