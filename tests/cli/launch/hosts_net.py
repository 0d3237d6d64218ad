# hosts_net.py - two hosts on one machine: network namespaces joined by a veth pair, a stock sshd in each.
#
# Address .1 is the host where dsc-launch is started, .2 the other one. Needs root. SPDX-License-Identifier: Apache-2.0
from harness import *

NEEDED = ("ip", "sshd", "ssh", "ssh-keygen", "unshare", "nsenter")


def why_not():
    if os.geteuid() != 0:
        return "two hosts need root (network namespaces)"
    for program in NEEDED:
        if shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin") is None:
            return f"two hosts need {program} (make deps-test)"
    probe = f"dscprobe{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True).returncode != 0:
        return "this machine does not let us make network namespaces"
    subprocess.run(["ip", "netns", "del", probe])
    return ""


def run(*args):
    p = subprocess.run(args, capture_output=True, text=True)
    check(p.returncode == 0, " ".join(args), p.stderr)
    return p.stdout


class Net:
    """The two hosts; everything of them is gone when it is closed."""

    def __init__(self):
        self.names = [f"dsc{os.getpid()}a", f"dsc{os.getpid()}b"]
        self.subnet = f"10.{77 + os.getpid() % 100}.{os.getpid() // 100 % 250}"
        self.hosts = [f"{self.subnet}.1", f"{self.subnet}.2"]
        self.folder = tempfile.mkdtemp(prefix="dsc-hosts-")
        self.daemons = []
        for i, name in enumerate(self.names):
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "link", "add", "veth0", "netns", self.names[0], "type", "veth", "peer", "name", "veth0", "netns",
            self.names[1])
        for name, address in zip(self.names, self.hosts):
            run("ip", "-n", name, "addr", "add", address + "/24", "dev", "veth0")
            run("ip", "-n", name, "link", "set", "veth0", "up")
        for key in ("host", "user", "stranger"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.path(key))
        shutil.copy(self.path("user.pub"), self.path("authorized"))
        with open(self.path("host.pub")) as f:
            self.host_key = " ".join(f.read().split()[:2])
        self.write("known", "".join(f"{h},[{h}]:2222,[{h}]:2223,[{h}]:2224,[{h}]:2225,[{h}]:2226 {self.host_key}\n"
                                    for h in self.hosts))
        os.makedirs("/run/sshd", exist_ok=True)
        for name in self.names:
            self.sshd(name)
        self.options = [f"IdentityFile={self.path('user')}", "IdentitiesOnly=yes", "IdentityAgent=none",
                        f"UserKnownHostsFile={self.path('known')}", "GlobalKnownHostsFile=/dev/null",
                        "StrictHostKeyChecking=yes"]

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text, mode=0o644):
        with open(self.path(name), "w") as f:
            f.write(text)
        os.chmod(self.path(name), mode)
        return self.path(name)

    def sshd(self, name, port=22, prepare=""):
        """A sshd in a host; `prepare` is run first, in a mount namespace of its own."""
        config = self.write(f"sshd_config.{name}.{port}", f"""
Port {port}
HostKey {self.path('host')}
AuthorizedKeysFile {self.path('authorized')}
StrictModes no
UsePAM no
PidFile none
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
MaxStartups 200
SetEnv HOME={self.folder}
""")  # a login runs no file of the user's, which may be slow, and whose locks stay when it is killed
        daemon = f"exec {shutil.which('sshd', path='/usr/sbin:/usr/bin:/sbin')} -D -e -f {config}"
        with open(self.path(f"log.{name}.{port}"), "w") as log:
            self.daemons.append(subprocess.Popen(
                ["ip", "netns", "exec", name, "unshare", "-m", "sh", "-c", f"{prepare}\n{daemon}"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log))

        def listens():
            hexport = f":{port:04X} "
            out = run("ip", "netns", "exec", name, "cat", "/proc/net/tcp")
            return any(hexport in l and " 0A " in l for l in out.splitlines())
        wait_for(listens, what="sshd")

    def close(self):
        for pid in self.processes(all=True):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        for p in self.daemons:
            p.wait()
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name])
        shutil.rmtree(self.folder, ignore_errors=True)

    def processes(self, all=False, host=None):
        """Every process in the two hosts, listening sshds excepted."""
        spaces = {os.stat(f"/run/netns/{n}").st_ino for n in ([self.names[host]] if host is not None else self.names)}
        listeners = {p.pid for p in self.daemons}
        found = []
        for name in os.listdir("/proc"):
            try:
                if name.isdigit() and os.stat(f"/proc/{name}/ns/net").st_ino in spaces and \
                        (all or int(name) not in listeners):
                    with open(f"/proc/{name}/stat") as f:
                        if f.read().rsplit(")", 1)[1].split()[0] != "Z":
                            found.append(int(name))
            except OSError:
                pass
        return found

    def title(self, pid):
        return title(pid)

    def find(self, part, host=None):
        return [pid for pid in self.processes(host=host) if part in self.title(pid)]

    def wait_gone(self, seconds):
        until = time.monotonic() + seconds * SLOW
        while self.processes() and time.monotonic() < until:
            time.sleep(0.01)
        left = [(pid, self.title(pid)) for pid in self.processes()]
        for pid, _ in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        check(not left, "left behind:", left)

    def command(self, *args, options=None, prefix=()):
        flags = []
        for option in self.options if options is None else options:
            flags += ["--ssh_option", option]
        return ["ip", "netns", "exec", self.names[0], *prefix, LAUNCH, *flags, *args]

    def list(self, slots=1):
        return ",".join(f"{h}:{slots}" for h in self.hosts)

    def launch(self, *args, timeout=60, cwd=None, env=None, options=None, binary=False):
        begin = time.monotonic()
        p = subprocess.run(self.command(*args, options=options), env=env or clean_env(), stdin=subprocess.DEVNULL,
                           capture_output=True, timeout=timeout, cwd=cwd or self.folder)
        seconds = time.monotonic() - begin
        if binary:
            return Result(p.returncode, p.stdout, p.stderr, seconds)
        return Result(p.returncode, p.stdout.decode(errors="replace"), p.stderr.decode(errors="replace"), seconds)

    def start(self, *args, env=None, cwd=None, **more):
        more.setdefault("stdout", subprocess.PIPE)
        more.setdefault("stderr", subprocess.PIPE)
        return subprocess.Popen(self.command(*args), env=env or clean_env(), stdin=subprocess.DEVNULL,
                                cwd=cwd or self.folder, **more)
