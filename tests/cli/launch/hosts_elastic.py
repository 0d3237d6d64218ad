# hosts_elastic.py - over two hosts: a host is lost while ranks leave and join. SPDX-License-Identifier: Apache-2.0
import pathlib

from elastic_job import config_of, losses_of, text_of_data
from hosts_jobs import *


def steps_of(log):
    with contextlib.suppress(FileNotFoundError), open(log) as f:
        return losses_of("".join(l for l in f if l.endswith("}\n")))
    return {}


def sizes_after_the_loss_of_a_host(least, steps):
    args = ["train", "--config", net.write("elastic.json", config_of()), "--data", net.write("elastic.txt", text_of_data()),
            "--steps", str(steps), "--log"]
    alone, log = net.folder + "/alone.jsonl", net.folder + "/elastic.jsonl"
    for name in (alone, log):
        pathlib.Path(name).unlink(missing_ok=True)
    r = launch("-np", "1", *args, alone, cwd=net.folder, timeout=300)
    equal(r.code, 0, r)
    with open(net.folder + "/elastic.out", "w") as out:
        p = net.start("-H", net.list(2), "--min_np", str(least), *args, log, stdout=out, stderr=subprocess.STDOUT)
        wait_for(lambda: len(steps_of(log)) >= 3 or p.poll() is not None, 60, "step 3")
        kill_all([pid for pid in net.processes(host=1) if "--agent" in net.title(pid) or "dsc-agent" in net.title(pid)],
                 signal.SIGKILL)
        code = p.wait(300)
    said = open(net.folder + "/elastic.out").read()
    equal(code, 0, said)
    got, want = steps_of(log), steps_of(alone)
    equal({k: set(v) for k, v in got.items()}, {k: set(v) for k, v in want.items()}, said)
    check(sum(len(v) - 1 for v in got.values()) <= 1, "more than one step was repeated", said)
    net.wait_gone(5)
    return [int(n) for n in re.findall(r"dsc-launch: world \d+: (\d+) ranks?$", said, re.M)]


# Mirrors are on the other host, so no step is lost with a host. Its ranks are replaced when it is there again, after
# 7.5 s, which the steps have to outlast.
@test
def a_lost_host_is_replaced_and_no_bit_changes():
    sizes = sizes_after_the_loss_of_a_host(1, 300)
    equal((sizes[0], 2 in sizes, sizes[-1]), (4, True, 4), sizes)


@test
def too_few_ranks_wait_for_a_lost_host():
    sizes = sizes_after_the_loss_of_a_host(3, 30)
    check(sizes[0] == 4 and len(sizes) > 1 and min(sizes) >= 3, sizes)
