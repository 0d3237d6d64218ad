# deaths.py - jobs that train for ever, and what happens to all of them when one of their processes dies.
#
# Several jobs run at once on the same hosts. In each job another process dies in another way, all in the same moment.
# An untouched job must go on training. SPDX-License-Identifier: Apache-2.0
from exits import *
from stuck import *

EXIT_3 = "exit 3"
CRASH = signal.SIGABRT if os.environ.get("DSC_SAN") else signal.SIGSEGV  # AddressSanitizer turns a SIGSEGV into an exit
WAYS = (signal.SIGSTOP, signal.SIGKILL, CRASH, EXIT_3)


def code_of(who, how):
    """The launcher's exit code; the code of the dead process, or of the parent, if the launcher itself dies."""
    if who == "rank":
        return {signal.SIGKILL: 137, CRASH: 128 + CRASH, signal.SIGSTOP: 5, EXIT_3: 3}[how]
    if who == "launcher":
        return {signal.SIGKILL: -9, CRASH: -CRASH, signal.SIGSTOP: 4, EXIT_3: 3}[how]
    return 4


def cells(kinds):
    """Every (who, how). The end of a stopped process takes seconds to be noticed, so these come first, all at once."""
    return [(who, how) for how in WAYS if how != EXIT_3 or can_make_exit() for who in kinds]


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as f:
            return [int(word) for word in f.read().split()]
    except OSError:
        return []


def stat(pid):
    """State, parent and time of birth of a process; None: it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            words = f.read().rsplit(")", 1)[1].split()
        return None if words[0] in "ZX" else (words[0], int(words[1]), words[19])
    except OSError:
        return None


class Job:
    """dsc-launch with `args`, started by `prefix`; what it prints goes to files in `folder`."""

    def __init__(self, folder, args, command=lambda *words: [LAUNCH, *words]):
        self.marked = Marked()
        self.name = os.path.join(folder, self.marked.mark)
        with open(self.name + ".out", "wb") as out, open(self.name + ".err", "wb") as err:
            self.p = subprocess.Popen(command(*args), env=dict(self.marked.env, OMP_WAIT_POLICY="passive"),
                                      stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder)

    def text(self, kind):
        """The end of what it printed."""
        with open(f"{self.name}.{kind}", "rb") as f:
            f.seek(max(0, os.fstat(f.fileno()).st_size - 4096))
            return f.read().decode(errors="replace")

    def steps(self):
        """The last step that it has done; 0: none."""
        return int((re.findall(r"step +(\d+)/", self.text("out")) or [0])[-1])

    def until_step(self, step, seconds=20):
        def is_there():
            check(self.p.poll() is None, "ended early", self.text("out"), self.text("err"))
            return self.steps() >= step
        wait_for(is_there, seconds=seconds, what=f"step {step}")

    def look(self, among=None):
        """The job's processes: children of the launcher, and on another host all of our processes between a sshd and a
        rank. The doors are sshd's own processes for that."""
        self.ranks = ranks_of(self.marked.pids(among))
        self.family, self.doors = {}, set()
        left = [self.p.pid, *self.ranks.values()]
        while left:
            pid = left.pop()
            here = stat(pid)
            if here is None or pid in self.family:
                continue
            self.family[pid] = (title(pid), here[2])
            left += children(pid)
            name = title(here[1])
            if name.startswith(("dsc-agent of", "dsc-coordinator of", "dsc-supervisor of", LAUNCH)) or \
                    (LAUNCH in name and re.match(r"(/bin/)?(ba)?sh -c", name)):
                left.append(here[1])
            door = here[1]
            while re.match(r"sshd: (?!.*\[listener\])", title(door)):
                self.doors.add(door)
                door = (stat(door) or (0, 0))[1]

    def victim(self, who, host):
        """The process that `who` is: of rank `host` where each host has a rank and things of its own."""
        if who in ("rank", "launcher"):
            return self.ranks[host] if who == "rank" else self.p.pid
        above, pid = [], self.ranks[host]
        while pid in self.family:
            above.append(pid)
            pid = stat(pid)[1]
        shared = [pid for pid in self.family if pid not in above]
        found = [pid for pid in above + shared if who in self.family[pid][0] and
                 not self.family[pid][0].startswith(("sh -c", "/bin/sh -c")) and pid != self.p.pid]
        check(found, who, "of rank", host, "is not among", self.family)
        return found[0]

    def left(self):
        """Those of it that still live, but for a launcher that was stopped itself."""
        return {pid: name for pid, (name, birth) in self.family.items() if pid != self.stays and
                (stat(pid) or (0, 0, None))[2] == birth}

    def die(self, who, how, host):
        self.what = f"{who}, {how!r}, of rank {host}"
        self.who, self.how = who, how
        pid = self.victim(who, host)
        self.stays = pid if (who, how) == ("launcher", signal.SIGSTOP) else None
        self.begin = time.monotonic()
        if how == EXIT_3:
            make_exit(pid, 3)
        else:
            os.kill(pid, how)

    def ended(self, said):
        """The launcher's last line on it."""
        if self.stays is not None:
            self.p.send_signal(signal.SIGCONT)
        code, err = self.p.wait(timeout=20), self.text("err")
        equal(code, code_of(self.who, self.how), self.what, err)
        if self.who != "launcher" or self.how == signal.SIGSTOP:
            lines = [l for l in err.splitlines() if l.startswith("dsc: error:")]
            check(len(lines) == 1 and all(s in lines[0] for s in said), self.what, "said", lines, "expected", said)

    def kill(self):
        """Whatever a test that failed has left."""
        self.look()
        for pid in [*self.family, *self.marked.pids()]:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.p.wait()


def die_together(jobs, deaths, seconds):
    """Job i has deaths[i] = (who, how, host, words of the error line); how long the slowest took to be gone."""
    among = environments()
    for job in jobs:
        job.look(among)
    for job, (who, how, host, _) in zip(jobs, deaths):
        job.die(who, how, host)
    waiting, worst = list(jobs), 0
    while waiting:
        for job in list(waiting):
            took = time.monotonic() - job.begin
            left = job.left()
            check(took < seconds * SLOW, job.what, f"after {took:.1f} s there are still", left)
            if not left:
                waiting.remove(job)
                worst = max(worst, took)
        time.sleep(0.02)
    for job, (_, _, _, said) in zip(jobs, deaths):
        job.ended(said)
    return worst


def deaths_beside_a_living_job(folder, kinds, seconds, make, names, nothing_left):
    """Every cell (at night more), half of them at once, beside a job that trains on. make(number): a job; names(who,
    host): words that the launcher must say; nothing_left(other): what the caller looks at after each round."""
    seed = int(os.environ.get("DSC_TEST_SEED", random.randrange(1 << 30)))
    rng = random.Random(seed)
    print(f"# seed {seed}")
    whole = cells(kinds)
    chosen = (whole * 50)[:50] if NIGHT else whole
    deaths = [(who, how, host, names(who, host)) for who, how in chosen for host in (rng.randrange(2),)]
    at_once, worst = (len(whole) + 1) // 2, 0
    jobs = [make(0)]
    other = jobs[0]
    try:
        other.until_step(1)
        check_left = nothing_left(other)
        for first in range(0, len(deaths), at_once):
            now = deaths[first:first + at_once]
            jobs[1:] = [make(1 + i) for i in range(len(now))]
            for job in jobs[1:]:
                job.until_step(2)
            worst = max(worst, die_together(jobs[1:], now, seconds))
            among = environments()
            alive = [pid for job in jobs[1:] for pid in job.marked.pids(among)]
            equal(alive, [], [title(pid) for pid in alive])
            check_left()
            other.until_step(other.steps() + 2)
        other.p.terminate()
        equal(other.p.wait(timeout=20), 143, other.text("err"))
    finally:
        for job in jobs:
            job.kill()
    print(f"# {len(deaths)} deaths; over after {worst:.1f} s at most")
