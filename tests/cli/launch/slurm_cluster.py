# slurm_cluster.py - a Slurm cluster on this machine: one slurmctld and two slurmd -N, for as long as a test runs.
#
# Needs root and the packages of `make deps-slurm`. Everything of it is in a folder of its own and on ports of 127.0.0.1.
# SPDX-License-Identifier: Apache-2.0
from harness import *

import socket

PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "squeue", "scancel", "sinfo", "unshare")
SBIN = "/usr/sbin:/usr/bin:/sbin:/bin"


def why_not():
    if os.geteuid() != 0:
        return "a Slurm cluster of its own needs root"
    for program in PROGRAMS:
        if shutil.which(program, path=os.environ.get("PATH", "") + ":" + SBIN) is None:
            return f"{program} is not installed (make deps-slurm)"
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        return "this machine does not let us make mount namespaces"
    return ""


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Cluster:
    """Nodes n1 and n2, four CPUs each as far as Slurm knows; gone when it is closed."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="dsc-slurm-")
        os.chmod(self.folder, 0o755)
        self.daemons = []
        self.marked = Marked()
        ports = free_ports(3)
        for name in ("state", "spool.n1", "spool.n2", "logs"):
            os.mkdir(self.path(name))
        # The nodes' names mean this machine, for the daemons and what they start.
        self.hosts = self.write("hosts", "127.0.0.1 localhost n1 n2\n")
        # MpiDefault=none, linuxproc and no cgroups: what a container allows. No munge: nobody else is on this cluster.
        self.conf = self.write("slurm.conf", f"""
ClusterName=dsc
SlurmctldHost={socket.gethostname()}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=5
StateSaveLocation={self.path('state')}
SlurmdSpoolDir={self.path('spool.%n')}
SlurmctldPidFile={self.path('slurmctld.pid')}
SlurmdPidFile={self.path('slurmd.%n.pid')}
SlurmctldLogFile={self.path('slurmctld.log')}
SlurmdLogFile={self.path('slurmd.%n.log')}
NodeName=n1 NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 State=UNKNOWN
NodeName=n2 NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 State=UNKNOWN
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
""")
        self.env = clean_env(SLURM_CONF=self.conf, DSC_TEST_MARK=self.marked.mark,
                             PATH=os.path.dirname(LAUNCH) + ":" + os.environ.get("PATH", "") + ":" + SBIN)
        self.env = {k: v for k, v in self.env.items() if not k.startswith("SLURM_") or k == "SLURM_CONF"}
        for command in (["slurmctld", "-D"], ["slurmd", "-D", "-N", "n1"], ["slurmd", "-D", "-N", "n2"]):
            self.daemons.append(self.daemon(command))
        wait_for(lambda: self.run("sinfo", "-h", "-t", "idle", "-o", "%D").stdout.strip() == "2", seconds=20,
                 what="two idle nodes; " + self.tails())

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w") as f:
            f.write(text)
        return self.path(name)

    def daemon(self, command):
        env = {k: v for k, v in self.env.items() if k != "DSC_TEST_MARK"}
        with open(self.path(command[0] + command[-1] + ".err"), "w") as log:
            return subprocess.Popen(["unshare", "-m", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', self.hosts,
                                     *command, "-f", self.conf], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder)

    def tails(self):
        text = ""
        for name in sorted(os.listdir(self.folder)):
            if name.endswith((".log", ".err")):
                with open(self.path(name), errors="replace") as f:
                    text += f"\n{name}: " + "".join(f.readlines()[-5:])
        return text

    def run(self, *args, env=None, cwd=None, timeout=60):
        return subprocess.run(args, env={**self.env, **(env or {})}, cwd=cwd or self.folder, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=timeout)

    def close(self):
        self.run("scancel", "--full", "--signal=KILL", "--user=root")
        for p in reversed(self.daemons):
            p.terminate()
        for p in self.daemons:
            try:
                p.wait(10)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()
        self.marked.wait_gone(5)
        shutil.rmtree(self.folder, ignore_errors=True)
