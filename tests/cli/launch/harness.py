# harness.py - runs dsc-launch and looks at what it leaves. SPDX-License-Identifier: Apache-2.0
import concurrent.futures, contextlib, io, json, multiprocessing, os, re, shutil, signal, subprocess, sys, tempfile, time

LAUNCH = os.path.join(os.path.abspath(os.environ["DSC_BIN"]), "dsc-launch")
ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
SCRIPT = "tests/cli/test_" + {"hosts": "launch_hosts", "elastic": "elastic"}.get(os.path.basename(sys.argv[0])[:-3], "launch") + ".sh"
# Factor of time bounds. Without DSC_TEST_STRICT a bound detects waits that would last ten times as long or for ever
# (tests/README.md).
SLOW = (3 if os.environ.get("DSC_SAN") else 1) * (1 if os.environ.get("DSC_TEST_STRICT") else 5)
tests = []
alone = []


def test(fn):
    tests.append(fn)
    return fn


def test_alone(fn):
    alone.append(fn)
    return test(fn)


class Failed(Exception):
    pass


class Skipped(Exception):
    pass


def check(condition, *what):
    if not condition:
        raise Failed(" ".join(str(w) for w in what))


def equal(got, expected, *what):
    check(got == expected, *what, f"got {got!r}, expected {expected!r}")


def clean_env(**more):
    env = {k: v for k, v in os.environ.items()
           if k not in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "KMP_AFFINITY", "RANK", "WORLD_SIZE")}
    env.update(more)
    return env


class Result:
    def __init__(self, code, out, err, seconds):
        self.code, self.out, self.err, self.seconds = code, out, err, seconds

    def __repr__(self):
        return f"code {self.code}, {self.seconds:.2f} s\nstdout: {self.out!r}\nstderr: {self.err!r}"

    def errors(self):
        return [l for l in (self.out + "\n" + self.err).splitlines() if l.startswith("dsc: error:")]


def launch(*args, env=None, stdin=subprocess.DEVNULL, timeout=60, cwd=None, binary=False):
    start = time.monotonic()
    p = subprocess.run([LAUNCH, *args], env=env or clean_env(), stdin=stdin, capture_output=True, timeout=timeout,
                       cwd=cwd)
    seconds = time.monotonic() - start
    if binary:
        return Result(p.returncode, p.stdout, p.stderr, seconds)
    return Result(p.returncode, p.stdout.decode(errors="replace"), p.stderr.decode(errors="replace"), seconds)


def start(*args, env=None, **more):
    more.setdefault("stdout", subprocess.PIPE)
    more.setdefault("stderr", subprocess.PIPE)
    more.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.Popen([LAUNCH, *args], env=env or clean_env(), **more)


def refused(result, *parts, code=2):
    equal(result.code, code, result)
    equal(len(result.errors()), 1, result)
    for part in parts:
        check(part in result.errors()[0], f"{part!r} is not in", result.errors()[0])


def dry_run(*args, env=None):
    r = launch("--dry-run", *args, env=env)
    equal(r.code, 0, r)
    return json.loads(r.out)


def environments():
    """The environment of every process, as words."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as f:
                found[int(name)] = f.read().split(b"\0")
    return found


class Marked:
    """Processes that carry a mark in their environment: found wherever they are, whoever their parent is."""

    def __init__(self):
        self.mark = f"mark-{os.getpid()}-{time.monotonic_ns()}"
        self.env = clean_env(DSC_TEST_MARK=self.mark)

    def pids(self, among=None):
        """Counts over all processes, or over these environments()."""
        want = b"DSC_TEST_MARK=" + self.mark.encode()
        return [pid for pid, words in (environments() if among is None else among).items() if want in words]

    def wait_gone(self, seconds):
        until = time.monotonic() + seconds
        while self.pids() and time.monotonic() < until:
            time.sleep(0.01)
        left = []
        for pid in self.pids():
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    left.append((pid, f.read().replace(b"\0", b" ")))
            except OSError:
                pass
        for pid, _ in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        check(not left, "left behind:", left)


def title(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            return f.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def supervisor_of(p):
    with open(f"/proc/{p.pid}/task/{p.pid}/children") as f:
        return int(f.read().split()[0])


def wait_for(condition, seconds=10, what="condition"):
    until = time.monotonic() + seconds * SLOW
    while time.monotonic() < until:
        value = condition()
        if value:
            return value
        time.sleep(0.005)
    raise Failed(f"waited {seconds} s for {what}")


class Folder:
    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="dsc-launch-test-")
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.path, ignore_errors=True)

    def file(self, name, text, mode=0o644):
        path = os.path.join(self.path, name)
        with open(path, "wb") as f:
            f.write(text.encode() if isinstance(text, str) else text)
        os.chmod(path, mode)
        return path

    def read(self, name):
        try:
            with open(os.path.join(self.path, name), "rb") as f:
                return f.read().decode()
        except FileNotFoundError:
            return ""


def outcome(number, t):
    """Runs a test; its TAP lines and whether it failed."""
    name = t.__name__.replace("_", " ")
    begin = time.monotonic()
    lines, failed, said = [], False, io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            t()
        lines.append(f"ok {number} - {name}")
    except Skipped as e:
        lines.append(f"ok {number} - {name} # SKIP {e}")
    except Exception as e:  # a test that breaks has failed
        failed = True
        lines.append(f"not ok {number} - {name}")
        lines += ["#   " + line for line in (str(e) if isinstance(e, Failed) else repr(e)).splitlines()]
        lines.append(f"#   rerun: {SCRIPT} {t.__name__}")
    if "-v" in sys.argv:
        lines.append(f"#   {time.monotonic() - begin:.2f} s")
    return said.getvalue().splitlines() + lines, failed


def run_all(pattern, at_once=1):
    """Runs the tests, so many at once: most of them wait for a time or an end. Those that load the machine, or measure
    it, then run alone."""
    chosen = [t for t in tests if pattern in t.__name__]
    print(f"1..{len(chosen)}", flush=True)
    failed = 0

    def show(result):
        nonlocal failed
        print("\n".join(result[0]), flush=True)
        failed += result[1]

    numbered = list(enumerate(chosen, 1))
    with concurrent.futures.ProcessPoolExecutor(at_once, multiprocessing.get_context("fork")) as pool:
        for result in pool.map(outcome, *zip(*[nt for nt in numbered if nt[1] not in alone] or [(), ()])):
            show(result)
    for nt in numbered:
        if nt[1] in alone:
            show(outcome(*nt))
    return 1 if failed else 0
