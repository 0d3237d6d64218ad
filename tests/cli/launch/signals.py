# signals.py - Ctrl-C, SIGTERM and the others: once to each rank, with a grace time. SPDX-License-Identifier: Apache-2.0
import pty, select, termios

from harness import *

# Counts its signals in a file, and ends a little after the first.
COUNTER = """#!/usr/bin/env python3
import os, signal, sys, time
rank, folder, hold = os.environ["RANK"], sys.argv[1], float(sys.argv[2])
seen = []
def note(number, frame):
    seen.append(number)
for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(s, note)
open(f"{folder}/ready{rank}", "w").close()
end = None
while end is None or time.monotonic() < end:
    time.sleep(0.02)
    if end is None and any(s not in (signal.SIGUSR1, signal.SIGUSR2) for s in seen):
        end = time.monotonic() + hold
with open(f"{folder}/seen{rank}", "w") as f:
    f.write(" ".join(signal.Signals(s).name for s in seen))
sys.exit(int(sys.argv[3]))
"""


def ready(f, ranks):
    wait_for(lambda: all(os.path.exists(f"{f.path}/ready{i}") for i in range(ranks)), what="ranks to be ready")


@test
def signals_reach_every_rank_once():
    for name, code in (("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129), ("SIGQUIT", 131)):
        with Folder() as f:
            marked = Marked()
            p = start("-np", "3", f.file("counter", COUNTER, 0o755), f.path, "0.2", "0", env=marked.env)
            ready(f, 3)
            p.send_signal(getattr(signal, name))
            _, err = p.communicate(timeout=60)
            equal(p.returncode, code, err)
            equal([f.read(f"seen{i}") for i in range(3)], [name] * 3)
            check(b"dsc: error" not in err and name.encode() in err, err)
            marked.wait_gone(0.2 * SLOW)


@test
def a_signal_to_every_process_of_the_job_counts_once():
    with Folder() as f:
        marked = Marked()
        p = start("-np", "2", f.file("counter", COUNTER, 0o755), f.path, "0.3", "0", env=marked.env)
        ready(f, 2)
        for pid in marked.pids():  # as a scheduler does
            os.kill(pid, signal.SIGTERM)
        _, err = p.communicate(timeout=60)
        equal((p.returncode, b"killed" in err), (143, False), err)


@test
def ranks_that_fail_after_the_users_signal_do_not_change_the_code():
    with Folder() as f:
        p = start("-np", "2", f.file("counter", COUNTER, 0o755), f.path, "0.1", "1")
        ready(f, 2)
        p.send_signal(signal.SIGINT)
        _, err = p.communicate(timeout=60)
        equal((p.returncode, b"dsc: error" in err), (130, False), err)


@test
def user_signals_are_passed_on_and_the_job_goes_on():
    with Folder() as f:
        p = start("-np", "2", f.file("counter", COUNTER, 0o755), f.path, "0", "0")
        ready(f, 2)
        p.send_signal(signal.SIGUSR1)
        time.sleep(0.1)
        p.send_signal(signal.SIGUSR2)
        time.sleep(0.1)
        p.send_signal(signal.SIGTERM)
        p.communicate(timeout=60)
        equal([f.read(f"seen{i}") for i in range(2)], ["SIGUSR1 SIGUSR2 SIGTERM"] * 2)


@test
def grace_time_ends_and_a_second_signal_ends_it_sooner():
    with Folder() as f:
        counter = f.file("counter", COUNTER, 0o755)
        marked = Marked()
        p = start("-np", "2", "--grace-seconds", "1", counter, f.path, "600", "0", env=marked.env)
        ready(f, 2)
        begin = time.monotonic()
        p.send_signal(signal.SIGTERM)
        _, err = p.communicate(timeout=60)
        seconds = time.monotonic() - begin
        check(0.9 < seconds < 2 * SLOW, seconds)
        equal((p.returncode, err.count(b"did not end in time")), (143, 2), err)
        marked.wait_gone(0.2 * SLOW)
    with Folder() as f:
        p = start("-np", "2", f.file("counter", COUNTER, 0o755), f.path, "600", "0")
        ready(f, 2)
        p.send_signal(signal.SIGINT)
        time.sleep(0.5)
        check(p.poll() is None, "ended before the second signal")
        begin = time.monotonic()
        p.send_signal(signal.SIGINT)
        p.communicate(timeout=60)
        check(time.monotonic() - begin < 1 * SLOW, "second signal took long")
        equal(p.returncode, 130)


@test
def sigint_works_for_a_background_job_of_a_script_and_nohup_is_respected():
    with Folder() as f:
        counter = f.file("counter", COUNTER, 0o755)
        r = subprocess.run(["sh", "-c", f"'{LAUNCH}' -np 2 '{counter}' '{f.path}' 0 0 & while [ ! -e "
                            f"'{f.path}/ready1' ] || [ ! -e '{f.path}/ready0' ]; do sleep 0.02; done; "
                            "kill -INT $!; wait $!; echo code $?"], capture_output=True, text=True, timeout=60,
                            env=clean_env())
        check("code 130" in r.stdout, r)
    with Folder() as f:
        p = subprocess.Popen(["nohup", LAUNCH, f.file("counter", COUNTER, 0o755), f.path, "0", "0"],
                             stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_env())
        ready(f, 1)
        p.send_signal(signal.SIGHUP)
        time.sleep(0.2)
        check(p.poll() is None, "ended by SIGHUP under nohup")
        p.terminate()
        p.communicate(timeout=60)
        equal(p.returncode, 143)


class Terminal:
    """dsc-launch as the foreground job of a terminal of its own."""

    def __init__(self, *args, env=None, shell=None):
        self.pid, self.fd = pty.fork()
        if self.pid == 0 and shell is not None:  # with job control: background jobs have groups of their own
            os.execve("/bin/bash", ["bash", "-mc", shell], clean_env())
        if self.pid == 0:
            os.execve(LAUNCH, [LAUNCH, *args], env or clean_env())
        termios.tcsetwinsize(self.fd, (24, 77))
        self.text = b""

    def read_until(self, part, seconds=10):
        until = time.monotonic() + seconds * SLOW
        while part not in self.text:
            if time.monotonic() > until:
                raise Failed(f"{part!r} did not come; {self.text!r}")
            if select.select([self.fd], [], [], 0.05)[0]:
                try:
                    self.text += os.read(self.fd, 65536)
                except OSError:
                    break
        return self.text

    def wait(self, seconds=10):
        until = time.monotonic() + seconds * SLOW
        while time.monotonic() < until:
            if select.select([self.fd], [], [], 0.02)[0]:
                try:
                    self.text += os.read(self.fd, 65536)
                except OSError:
                    pass
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, signal.SIGKILL)
        raise Failed(f"did not end; {self.text!r}")


@test
def ctrl_c_in_a_terminal_reaches_every_rank_once():
    for ranks in (1, 3):
        with Folder() as f:
            marked = Marked()
            t = Terminal("-np", str(ranks), f.file("counter", COUNTER, 0o755), f.path, "0.2", "0", env=marked.env)
            ready(f, ranks)
            os.write(t.fd, b"\x03")
            equal(t.wait(), 130, t.text)
            equal([f.read(f"seen{i}") for i in range(ranks)], ["SIGINT"] * ranks)
            marked.wait_gone(0.2 * SLOW)


@test
def a_closed_terminal_ends_the_job():
    with Folder() as f:
        marked = Marked()
        t = Terminal("-np", "2", f.file("counter", COUNTER, 0o755), f.path, "0", "0", env=marked.env)
        ready(f, 2)
        os.close(t.fd)
        equal(os.waitstatus_to_exitcode(os.waitpid(t.pid, 0)[1]), 129)
        marked.wait_gone(0.2 * SLOW)


@test
def ctrl_z_stops_the_ranks_and_fg_continues_them():
    def state(pid):
        with open(f"/proc/{pid}/stat") as s:
            return s.read().rsplit(")", 1)[1].split()[0]
    marked = Marked()
    p = start("-np", "2", "sleep", "600", env=marked.env)
    wait_for(lambda: len(marked.pids()) == 4, what="ranks")
    p.send_signal(signal.SIGTSTP)
    wait_for(lambda: state(p.pid) == "T", what="the launcher to stop")
    with open(f"/proc/{p.pid}/task/{p.pid}/children") as f:
        supervisor = int(f.read().split()[0])
    with open(f"/proc/{supervisor}/task/{supervisor}/children") as f:
        ranks = [int(w) for w in f.read().split()]
    equal(len(ranks), 2)
    wait_for(lambda: all(state(r) == "T" for r in ranks), what="the ranks to stop")
    p.send_signal(signal.SIGCONT)
    wait_for(lambda: all(state(r) != "T" for r in ranks), what="the ranks to go on")
    p.terminate()
    p.communicate(timeout=60)
    equal(p.returncode, 143)
    marked.wait_gone(0.2 * SLOW)


@test
def a_bar_on_a_terminal_is_live_and_clean():
    # rank 0 draws a bar; rank 1 says a line in between; then a line of its own ends the bar
    script = ("if [ $RANK = 0 ]; then printf \"cols=$DSC_LAUNCH_TTY\\n\"; sleep 0.15; printf '\\rstep 1'; "
              "sleep 0.3; printf '\\rstep 2'; sleep 0.1; printf '\\rdone  \\n'; "
              "else echo \"tty=${DSC_LAUNCH_TTY-none}\"; sleep 0.3; echo hello; fi")
    t = Terminal("-np", "2", "sh", "-c", script)
    t.read_until(b"done")
    equal(t.wait(), 0)
    check(re.search(rb"cols=(77|80)\r\n", t.text), t.text)
    check(b"[rank 1] tty=none\r\n" in t.text, t.text)
    check(b"\rstep 1\r\x1b[K[rank 1] hello\r\nstep 1\rstep 2\rdone  \r\n" in t.text, t.text)


@test
def a_background_job_does_not_take_the_shells_input():
    t = Terminal(shell=f"'{LAUNCH}' sh -c 'read x; echo \"<$x>\"' & wait; read y; echo \"[$y]\"")
    t.read_until(b"<>")
    os.write(t.fd, b"word\n")
    t.read_until(b"[word]")
    equal(t.wait(), 0, t.text)


@test
def one_rank_has_the_terminal_itself():
    t = Terminal("sh", "-c", "test -t 0 && test -t 1 && test -t 2 && echo all three ${DSC_LAUNCH_TTY-none}; read x; "
                 "echo got $x; exit 3")
    t.read_until(b"all three none")
    os.write(t.fd, b"word\n")
    equal(t.wait(), 3, t.text)
    check(b"got word" in t.text and b"rank 0 (host localhost" in t.text, t.text)
