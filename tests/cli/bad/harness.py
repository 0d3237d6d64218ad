# harness.py - runs a program on bad input and looks at what it says, takes and leaves.
# SPDX-License-Identifier: Apache-2.0
"""Every refusal is held to one rule, whatever the input:

    exactly one line "dsc: error: ..." in stderr, at most 4 KB, with the words that the case asks for (file, place,
    what to do); no control characters and only UTF-8 anywhere; the exit code of the contract; within 2 s (on
    a quiet machine, see STRICT), and no process of it above 256 MiB; nothing left in the folder it ran in, in /dev/shm, or running.
"""
import json, os, resource, shutil, signal, subprocess, sys, tempfile, time, unicodedata

BIN = os.path.abspath(os.environ["DSC_BIN"])
ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
SAN = bool(os.environ.get("DSC_SAN"))
STRICT = bool(os.environ.get("DSC_TEST_STRICT"))  # see tests/README.md
TRAIN, DSC, LAUNCH = (os.path.join(BIN, name) for name in ("train", "dsc", "dsc-launch"))
LINE_BYTES, SECONDS, MEMORY = 4096, 2.0 if STRICT else 10.0, 256 << 20
SHOWN = 8  # failed cases of one test
ADDRESS_SPACE = 2 << 30  # a stop for what would take the machine's memory: peaks are judged by what was resident
MARK = "DSC_TEST_MARK"

tests = []


def test(fn):
    tests.append(fn)
    return fn


class Failed(Exception):
    pass


def check(condition, *what):
    if not condition:
        raise Failed(" ".join(str(w) for w in what))


class Result:
    def __init__(self, argv, code, out, err, seconds, peak):
        self.argv, self.code, self.out, self.err, self.seconds, self.peak = argv, code, out, err, seconds, peak

    def errors(self):
        return [l for l in self.err.split(b"\n") if l.startswith(b"dsc: error:")]

    def __repr__(self):
        command = " ".join(a.replace(BIN + "/", "") for a in self.argv)
        return (f"\n{command[:600]}\nexit {self.code}, {self.seconds:.2f} s, {self.peak >> 20} MiB\n"
                f"stdout: {self.out[-300:]!r}\nstderr: {self.err[-1200:]!r}")


def marked(mark):
    """Processes that carry the mark in their environment, wherever they are and whoever their parent is."""
    want, found = f"{MARK}={mark}".encode(), []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/environ", "rb") as f:
                    if want in f.read().split(b"\0"):
                        found.append(int(name))
            except OSError:
                pass
    return found


def listing(folder):
    return sorted(os.path.relpath(os.path.join(at, name), folder)
                  for at, dirs, files in os.walk(folder) for name in dirs + files)


def shared_memory():
    """Names of POSIX shared memory. Folders there are other tests' own."""
    return {e.name for e in os.scandir("/dev/shm") if "dsc" in e.name and e.is_file(follow_symlinks=False)}


def limit():
    if not SAN:
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class Bench:
    """A folder of inputs and an empty one beside it, in which every program runs."""

    def __init__(self):
        self.top = tempfile.mkdtemp(prefix="dsc-bad-")
        self.input, self.work = os.path.join(self.top, "in"), os.path.join(self.top, "work")
        os.mkdir(self.input)
        os.mkdir(self.work)
        self.runs, self.failures, self.shm = 0, [], shared_memory()

    def close(self):
        shutil.rmtree(self.top, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.input, name)

    def put(self, name, data):
        path = self.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if isinstance(data, (dict, list)):
            data = json.dumps(data)
        with open(path, "wb") as f:
            f.write(data.encode() if isinstance(data, str) else data)
        return path

    def run(self, *argv, env=None, seconds=None):
        """One program, its peak memory (of the largest process it waited for) and what it printed."""
        self.runs += 1
        mark = f"bad-{os.getpid()}-{self.runs}"
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "RANK", "WORLD_SIZE", "DSC_LAUNCH"))}
        clean.update(env or {}, **{MARK: mark})
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            start = time.monotonic()
            p = subprocess.Popen(argv, env=clean, cwd=self.work, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                 preexec_fn=limit)
            signal.alarm(int(seconds or (120 if SAN else 60)))
            try:
                _, status, usage = os.wait4(p.pid, 0)
            except TimeoutError:
                for pid in marked(mark):
                    os.kill(pid, signal.SIGKILL)
                _, status, usage = os.wait4(p.pid, 0)
            signal.alarm(0)
            took = time.monotonic() - start
            p.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            err.seek(0)
            r = Result(argv, p.returncode, out.read(), err.read(), took, usage.ru_maxrss << 10)
        left = marked(mark)
        check(not left, "processes are left:", left, r)
        return r

    def nothing_left(self, *allowed):
        left = [n for n in listing(self.work) if n not in allowed]
        for name in os.listdir(self.work):
            path = os.path.join(self.work, name)
            shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
        check(not left, "left behind:", left)
        shm = shared_memory() - self.shm
        check(not shm, "left in /dev/shm:", shm)

    def refuse(self, code, words, *argv, leaves=(), env=None):
        """`words`: what the error line must say, a string or several. A failure is kept: the next case runs too."""
        try:
            self._refuse(code, words, argv, leaves, env)
        except Failed as e:
            self.failures.append(str(e))

    def _refuse(self, code, words, argv, leaves, env):
        r = self.run(*argv, env=env)
        lines = r.errors()
        check(r.code == code, f"expected exit {code}", r)
        check(len(lines) == 1, f"{len(lines)} error lines", r)
        check(b"dsc: error:" not in r.out, "an error line on stdout", r)
        for word in [words] if isinstance(words, str) else words:
            check(word.encode() in lines[0], f"{word!r} is not in the line", r)
        self.decent(r)
        self.nothing_left(*leaves)

    def accept(self, *argv, env=None):
        r = self.run(*argv, env=env)
        check(r.code == 0, "expected exit 0", r)
        check(not r.errors(), "an error line", r)
        self.decent(r, fast=False)
        return r

    def decent(self, r, fast=True):
        """Checks of every run."""
        check(r.code >= 0, "died of a signal", r)
        for line in r.err.split(b"\n"):
            check(len(line) <= LINE_BYTES, f"a line of {len(line)} bytes", r)
        for text in (r.out, r.err):
            try:
                bad = [c for c in text.decode() if (ord(c) < 32 and c != "\n") or 0x7f <= ord(c) < 0xa0]
            except UnicodeDecodeError as e:
                raise Failed("not UTF-8:", e, r)
            check(not bad, "control characters:", bad, r)
        unseen = [c for c in r.err.decode() if unicodedata.category(c) in ("Cf", "Zl", "Zp")]
        check(not unseen, "characters that turn, hide or break a line:", unseen, r)
        if fast and not SAN:
            check(r.seconds <= SECONDS, f"{r.seconds:.2f} s", r)
            check(r.peak <= MEMORY, f"{r.peak >> 20} MiB", r)


def _alarm(*_):
    raise TimeoutError


def run_all(pattern):
    signal.signal(signal.SIGALRM, _alarm)
    failed = 0
    chosen = [t for t in tests if pattern in t.__name__]
    print(f"1..{len(chosen)}")
    for number, t in enumerate(chosen, 1):
        name, bench, begin = t.__name__.replace("_", " "), Bench(), time.monotonic()
        try:
            t(bench)
            check(not bench.failures, f"{len(bench.failures)} cases:", *bench.failures[:SHOWN])
            print(f"ok {number} - {name}", flush=True)
        except Exception as e:  # a test that breaks has failed
            failed += 1
            print(f"not ok {number} - {name}")
            for line in (str(e) if isinstance(e, Failed) else repr(e)).splitlines():
                print("#   " + line)
            print(f"#   rerun: tests/cli/test_bad_input.sh {t.__name__}", flush=True)
        finally:
            bench.close()
        if "-v" in sys.argv:
            print(f"#   {time.monotonic() - begin:.2f} s, {bench.runs} runs")
    return 1 if failed else 0
