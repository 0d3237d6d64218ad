#!/usr/bin/env python3
"""bench_startup.py BIN_FOLDER [--peers DIR] [--rounds 15]

The time from the start of dsc-launch to the first line of rank 0, on this host and over two hosts. The two hosts are
network namespaces joined by a veth pair, with a stock sshd in each (tests/cli/test_launch_hosts.sh); they need root. The
limits (the program alone, ssh alone) and other launchers (mpirun, torchrun from DIR/venv) take turns with it, in a new
order each round. With 64 ranks the last rank's line counts.

SPDX-License-Identifier: Apache-2.0"""
import argparse
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time

PATIENCE = 60  # seconds
SAY = ["sh", "-c", "echo $$"]
BAR = {"dsc-launch, 2 ranks here": 0.2, "dsc-launch, 1 rank on each of 2 hosts": 1.0}


def seconds_until(command, lines, env):
    signal.alarm(PATIENCE)  # a command that hangs is named
    begin = time.perf_counter()
    p = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    seen = b""
    while seen.count(b"\n") < lines:
        piece = os.read(p.stdout.fileno(), 1 << 16)
        if not piece:
            sys.exit(f"bench_startup: {' '.join(command)} ended early: {p.stderr.read().decode(errors='replace')}")
        seen += piece
    took = time.perf_counter() - begin
    _, err = p.communicate()
    signal.alarm(0)
    if p.returncode != 0:
        sys.exit(f"bench_startup: {' '.join(command)} ended with {p.returncode}: {err.decode(errors='replace')}")
    return took


def on_this_host(bin_folder, peers):
    launch = os.path.join(bin_folder, "dsc-launch")
    cases = {"the program alone": (SAY, 1), "dsc-launch, 1 rank here": ([launch, *SAY], 1),
             "dsc-launch, 2 ranks here": ([launch, "-np", "2", *SAY], 1),
             "dsc-launch, 64 ranks here, the last one": ([launch, "-np", "64", *SAY], 64)}
    if shutil.which("mpirun"):
        cases["mpirun, 2 ranks here"] = (["mpirun", "--oversubscribe", "-np", "2", *SAY], 1)
    torchrun = os.path.join(peers or "", "venv/bin/torchrun")
    if os.path.exists(torchrun):
        cases["torchrun, 2 ranks here"] = ([torchrun, "--no-python", "--nproc-per-node", "2", *SAY], 1)
    return cases


def over_two_hosts(net):
    options = [word for option in net.options for word in ("-o", option)]
    ssh = ["ip", "netns", "exec", net.names[0], "ssh", "-T", "-x", "-o", "BatchMode=yes", *options]
    cases = {"ssh alone": ([*ssh, net.hosts[1], "echo", "x"], 1),
             "dsc-launch, 1 rank on each of 2 hosts": (net.command("-H", net.list(), *SAY), 1),
             "dsc-launch, rank 0 on the other host": (net.command("-H", f"{net.hosts[1]}:1", *SAY), 1)}
    if shutil.which("mpirun"):
        cases["mpirun, 1 rank on each of 2 hosts"] = (
            ["ip", "netns", "exec", net.names[0], "mpirun", "--mca", "plm_rsh_agent", "ssh " + " ".join(options), "-H",
             net.list(), *SAY], 1)
    return cases


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bin", help="folder of dsc-launch")
    parser.add_argument("--peers", help="folder with a venv that has torch")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    os.environ["DSC_BIN"] = os.path.abspath(args.bin)
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/cli/launch"))
    import hosts_net
    cases = on_this_host(os.environ["DSC_BIN"], args.peers)
    missing = hosts_net.why_not()
    net = None if missing else hosts_net.Net()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # no network is left behind
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(f"bench_startup: {name!r} has not ended after {PATIENCE} s"))
    try:
        if net is not None:
            cases.update(over_two_hosts(net))
        env = hosts_net.clean_env(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        took, order = {name: [] for name in cases}, random.Random(args.seed)
        for number in range(args.rounds + 1):
            for name in order.sample(sorted(cases), len(cases)):
                seconds = seconds_until(*cases[name], env)
                if number > 0:  # the first one reads programs from the disk
                    took[name].append(seconds)
    finally:
        if net is not None:
            net.close()
    for name, seconds in took.items():
        seconds.sort()
        quarter = len(seconds) // 4
        bar = f"  bar {BAR[name]:.1f} s" if name in BAR else ""
        print(f"{name:40} {statistics.median(seconds):7.3f} s  middle half {seconds[quarter]:.3f} .. "
              f"{seconds[-1 - quarter]:.3f}  most {seconds[-1]:.3f}{bar}")
    if missing:
        print(f"bench-startup: not over hosts: {missing}")


main()
