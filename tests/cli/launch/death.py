# death.py - ranks that fail, are killed or hang on; launchers that are killed; nothing may stay.
# SPDX-License-Identifier: Apache-2.0


from harness import *

PEERS_WAIT = "if [ $RANK = %d ]; then %s; fi; sleep 600"


def failing(rank, what, *flags, ranks=4, timeout=20):
    marked = Marked()
    r = launch("-np", str(ranks), *flags, "sh", "-c", PEERS_WAIT % (rank, what), env=marked.env, timeout=timeout)
    marked.wait_gone(0.5 * SLOW)
    return r


@test
def first_failing_rank_is_named_and_ends_all():
    r = failing(2, "echo last words; exit 3")
    equal(r.code, 3, r)
    check(r.seconds < 2 * SLOW, r)
    refused(r, "rank 2", "host localhost", "pid ", "code 3", code=3)
    check("  | last words\n" in r.err, r)


@test
def killed_ranks_give_128_plus_signal():
    for name, number in (("KILL", 9), ("SEGV", 11), ("TERM", 15), ("USR1", 10)):
        r = failing(1, f"kill -{name} $$", ranks=2)
        refused(r, "rank 1", "SIG" + name, code=128 + number)
        check(r.seconds < 2 * SLOW, r)
    r = launch("sh", "-c", "kill -KILL $$")
    refused(r, "rank 0", "SIGKILL", code=137)


@test
def peers_that_ignore_sigterm_are_killed_within_two_seconds():
    marked = Marked()
    r = launch("-np", "3", "sh", "-c", "if [ $RANK = 1 ]; then sleep 0.1; exit 7; fi; trap '' TERM; while :; "
               "do sleep 600; done",
               env=marked.env)
    equal(r.code, 7, r)
    check(r.seconds < 2 * SLOW, r)
    marked.wait_gone(0.2 * SLOW)


@test
def stopped_peers_do_not_delay_the_end():
    r = launch("-np", "3", "--grace_seconds", "20", "sh", "-c",
               "if [ $RANK = 1 ]; then sleep 0.1; exit 7; fi; kill -STOP $$; sleep 600")
    equal(r.code, 7, r)
    check(r.seconds < 0.9 * SLOW, r)  # before SIGKILL: SIGTERM reaches what is stopped


@test
def exit_codes_pass_through():
    for code in (0, 1, 2, 3, 4, 5, 42, 255):
        equal(launch("-np", "2", "sh", "-c", f"exit {code}").code, code)
        equal(launch("sh", "-c", f"exit {code}").code, code)
    r = launch("-np", "2", "sh", "-c", "exit $((RANK * 9))")
    equal(r.code, 9, r)


@test
def codes_4_and_5_of_victims_do_not_hide_the_cause():
    for victim in (4, 5):
        r = launch("-np", "3", "sh", "-c", f"if [ $RANK = 1 ]; then sleep 0.15; exit 6; fi; "
                   f"echo 'dsc: error: rank 1 is lost' >&2; exit {victim}")
        refused(r, "rank 1", "code 6", code=6)
        r = launch("-np", "3", "sh", "-c", f"if [ $RANK = 2 ]; then sleep 0.15; kill -9 $$; fi; "
                   f"echo 'dsc: error: rank 2 is lost' >&2; exit {victim}")
        refused(r, "rank 2", "SIGKILL", code=137)
    # A victim without a cause is reported itself, with what it said.
    r = failing(1, "echo 'dsc: error: rank 0 is stuck in all_gather' >&2; exit 5", ranks=3)
    refused(r, "stuck in all_gather", code=5)
    check("rank 1 (host localhost" in r.err and r.seconds < 2 * SLOW, r)


@test
def one_error_line_for_a_job():
    r = launch("-np", "8", "sh", "-c", "echo 'dsc: error: ds_config.json:3:1: bad' >&2; exit 2")
    refused(r, "ds_config.json:3:1: bad")
    equal(r.err.splitlines()[-1], "dsc: error: ds_config.json:3:1: bad")
    # The culprit's line wins over an earlier one of its victim; on stdout it counts too.
    r = launch("-np", "2", "sh", "-c", "if [ $RANK = 0 ]; then echo 'dsc: error: rank 1 is lost'; exit 4; fi; "
               "sleep 0.1; echo 'dsc: error: a.bin: truncated'; exit 2")
    refused(r, "a.bin: truncated")
    r = launch("sh", "-c", "echo 'dsc: error: a.bin: truncated' >&2; exit 2")
    refused(r, "a.bin: truncated")
    check("dsc-launch: rank 0 (host localhost, pid" in r.err, r)
    # Nothing is lost when the job succeeds in spite of the line, nor when it goes on.
    r = launch("-np", "2", "sh", "-c", "echo 'dsc: error: not fatal' >&2")
    equal((r.code, r.errors()), (0, ["dsc: error: not fatal"]), r)


@test
def a_held_error_line_is_shown_when_the_job_goes_on():
    p = start("-np", "2", "sh", "-c", "if [ $RANK = 1 ]; then echo 'dsc: error: still here' >&2; fi; sleep 600")
    begin = time.monotonic()
    p.stderr.readline()  # no GPU
    line = p.stderr.readline()
    equal(line, b"dsc: error: still here\n")
    check(1 < time.monotonic() - begin < 4 * SLOW, time.monotonic() - begin)
    p.terminate()
    _, err = p.communicate(timeout=60)
    equal((p.returncode, b"dsc: error" in err), (143, False), err)


@test
def replay_has_the_last_fifty_lines():
    r = failing(1, "i=0; while [ $i -lt 200 ]; do echo line $i; i=$((i+1)); done; exit 3", ranks=2)
    tail = [l for l in r.err.splitlines() if l.startswith("  | ")]
    equal(tail, [f"  | line {i}" for i in range(150, 200)])
    equal(r.err.splitlines()[-1].startswith("dsc: error: rank 1"), True, r)


@test_alone
def eight_ranks_and_sixty_four():
    for ranks in (8, 64):
        r = launch("-np", str(ranks), "sh", "-c", "echo $RANK of $WORLD_SIZE")
        got = sorted(int(re.sub(r"^\[rank \d+\] ", "", l).split()[0]) for l in r.out.splitlines())
        equal((r.code, got), (0, list(range(ranks))), r.err)
    r = failing(63, "exit 9", ranks=64)
    equal(r.code, 9, r)


@test
def background_processes_of_a_finished_rank_are_ended():
    marked = Marked()
    r = launch("-np", "2", "sh", "-c", "sleep 600 & exit 0", env=marked.env)
    equal(r.code, 0, r)
    check(r.seconds < 2 * SLOW, r)
    marked.wait_gone(0.2 * SLOW)
    # also those that ignore SIGTERM or left the session
    r = launch("sh", "-c", "(trap '' TERM; sleep 600) & setsid sleep 600 & setsid setsid sh -c 'sleep 600 & sleep "
               "600' & sleep 0.2; exit 5",
               env=marked.env)
    equal(r.code, 5, r)
    check(r.seconds < 2.5 * SLOW, r)
    marked.wait_gone(0.2 * SLOW)


TREE = "setsid sh -c 'sleep 600 & sleep 600' & sleep 600 & sleep 600"


def running_tree(ranks, *flags):
    """A job with grandchildren, some in sessions of their own: 6 processes a rank, and the launcher's two."""
    marked = Marked()
    p = start("-np", str(ranks), *flags, "sh", "-c", TREE, env=marked.env)
    wait_for(lambda: len(marked.pids()) >= 2 + 6 * ranks, what="the processes of the job")
    return marked, p


@test
def kill_9_of_the_launcher_leaves_nothing():
    for _ in range(3):
        marked, p = running_tree(2)
        p.kill()
        marked.wait_gone(2 * SLOW)
        p.communicate(timeout=60)


@test
def kill_9_of_the_supervisor_leaves_nothing():
    for _ in range(3):
        marked, p = running_tree(2)
        os.kill(supervisor_of(p), signal.SIGKILL)
        _, err = p.communicate(timeout=60)
        marked.wait_gone(0.2 * SLOW)
        equal((p.returncode, err.count(b"dsc: error:")), (4, 1), err)


@test
def a_stopped_supervisor_is_killed_with_its_ranks():
    marked, p = running_tree(2)
    os.kill(supervisor_of(p), signal.SIGSTOP)
    begin = time.monotonic()
    _, err = p.communicate(timeout=60)
    marked.wait_gone(0.2 * SLOW)
    equal((p.returncode, err.count(b"dsc: error:"), b"stopped" in err), (4, 1, True), err)
    check(time.monotonic() - begin < 4 * SLOW, "slow")


@test
def a_stopped_launcher_ends_the_job():
    marked, p = running_tree(2)
    p.send_signal(signal.SIGSTOP)
    wait_for(lambda: marked.pids() == [p.pid], seconds=5, what="the end of all but the launcher")
    p.send_signal(signal.SIGCONT)
    _, err = p.communicate(timeout=60)
    equal((p.returncode, err.count(b"dsc: error:"), b"stopped" in err), (4, 1, True), err)
    marked, p = running_tree(2)  # a stop that ends in time does no harm
    os.kill(supervisor_of(p), signal.SIGSTOP)
    time.sleep(0.3)
    os.kill(supervisor_of(p), signal.SIGCONT)
    time.sleep(2.5)
    equal(p.poll(), None, "ended")
    p.terminate()
    p.communicate(timeout=60)
    equal(p.returncode, 143)


@test
def kill_9_of_everything_named_dsc_launch_leaves_nothing():
    marked, p = running_tree(2)
    named = []
    for pid in marked.pids():
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            named += [pid] if b"dsc-launch" in f.read() else []
    for pid in named:
        os.kill(pid, signal.SIGKILL)
    marked.wait_gone(2 * SLOW)
    p.communicate(timeout=60)


@test
def kill_9_of_launcher_and_supervisor_at_once_takes_the_ranks():
    marked = Marked()
    p = start("-np", "3", "sleep", "600", env=marked.env)
    wait_for(lambda: len(marked.pids()) == 5, what="ranks")
    supervisor = supervisor_of(p)
    os.kill(supervisor, signal.SIGSTOP)  # it must not see the launcher's end
    p.kill()
    os.kill(supervisor, signal.SIGKILL)
    marked.wait_gone(1 * SLOW)
    p.communicate(timeout=60)


@test
def kill_9_while_the_ranks_start():
    for delay_ms in (0, 1, 2, 4, 8):
        marked = Marked()
        p = start("-np", "16", "sh", "-c", "sleep 600 & sleep 600", env=marked.env)
        time.sleep(delay_ms / 1000)
        p.kill()
        p.communicate(timeout=60)
        marked.wait_gone(2 * SLOW)


@test
def killed_rank_of_a_tree_leaves_nothing():
    marked, p = running_tree(3)
    with open(f"/proc/{supervisor_of(p)}/task/{supervisor_of(p)}/children") as f:
        os.kill(int(f.read().split()[1]), signal.SIGKILL)
    begin = time.monotonic()
    p.communicate(timeout=60)
    equal(p.returncode, 137)
    check(time.monotonic() - begin < 2 * SLOW, "too slow")
    marked.wait_gone(0.2 * SLOW)


@test
def a_second_job_is_not_harmed():
    other, q = running_tree(2)
    marked, p = running_tree(2)
    p.kill()
    marked.wait_gone(2 * SLOW)
    p.communicate(timeout=60)
    equal(len(other.pids()), 14)
    q.terminate()
    q.communicate(timeout=60)
    equal(q.returncode, 143)
    other.wait_gone(0.2 * SLOW)


@test
def no_zombies_while_it_runs():
    marked = Marked()
    p = start("-np", "4", "sh", "-c", "sh -c 'sleep 0.01 & ' ; if [ $RANK != 0 ]; then exit 0; fi; sleep 600",
              env=marked.env)
    wait_for(lambda: len(marked.pids()) == 4, what="three ranks to end")  # guardian, supervisor, sh, sleep
    parents = (p.pid, supervisor_of(p))

    def zombies():
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    with open(f"/proc/{name}/stat") as f:
                        fields = f.read().rsplit(")", 1)[1].split()
                    if fields[0] == "Z" and int(fields[1]) in parents:
                        found.append(name)
                except OSError:
                    pass
        return found

    wait_for(lambda: not zombies(), what="what ended to be collected")
    p.terminate()
    p.communicate(timeout=60)
    marked.wait_gone(0.2 * SLOW)


@test
def ranks_inherit_no_descriptor_of_the_launcher():
    with Folder() as f:
        show = f.file("show", "#!/usr/bin/env python3\nimport os\nprint([n for n in range(64) if "
                      "os.path.exists(f'/proc/self/fd/{n}')])\n", 0o755)
        for ranks in ("1", "3"):
            r = launch("-np", ranks, show)
            equal(set(re.sub(r"^\[rank \d+\] ", "", l) for l in r.out.splitlines()), {"[0, 1, 2]"}, r)
        fd = os.open("/dev/null", os.O_RDONLY)
        os.dup2(fd, 9)
        p = subprocess.run([LAUNCH, show], capture_output=True, text=True, pass_fds=(9,), env=clean_env())
        equal(p.stdout, "[0, 1, 2, 9]\n", "the user's own descriptor passes")
        os.close(fd)
        os.close(9)


@test
def closed_standard_files_do_no_harm():
    r = subprocess.run(["sh", "-c", f"exec '{LAUNCH}' -np 2 sh -c 'echo $RANK; echo e >&2; exit 3' <&- >&- 2>&-"],
                       timeout=20, env=clean_env())
    equal(r.returncode, 3)


@test
def nothing_to_start_with():
    r = subprocess.run(["bash", "-c", f"ulimit -n 40; exec '{LAUNCH}' -np 64 sleep 600"], capture_output=True,
                       text=True, timeout=20,
                       env=clean_env())
    equal((r.returncode, r.stderr.count("dsc: error:")), (1, 1), r)
    check("cannot start rank" in r.stderr, r)
