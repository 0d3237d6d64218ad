# hosts_elastic.py - over two hosts: a host is lost while ranks leave and join. SPDX-License-Identifier: Apache-2.0
from elastic_job import config_of, losses_of, text_of_data
from hosts_jobs import *

STEPS = 60


def steps_of(log):
    with contextlib.suppress(FileNotFoundError), open(log) as f:
        return losses_of("".join(l for l in f if l.endswith("}\n")))
    return {}


# Mirrors are on the other host, so no step is lost with a host. Its ranks are replaced when it is there again.
@test
def a_lost_host_is_replaced_and_no_bit_changes():
    args = ["train", "--config", net.write("elastic.json", config_of()), "--data", net.write("elastic.txt", text_of_data()),
            "--steps", str(STEPS), "--log"]
    r = launch("-np", "1", *args, net.folder + "/alone.jsonl", cwd=net.folder, timeout=300)
    equal(r.code, 0, r)
    log = net.folder + "/elastic.jsonl"
    with open(net.folder + "/elastic.out", "w") as out:
        p = net.start("-H", net.list(2), "--min_np", "1", *args, log, stdout=out, stderr=subprocess.STDOUT)
        wait_for(lambda: len(steps_of(log)) >= 3 or p.poll() is not None, 60, "step 3")
        kill_all([pid for pid in net.processes(host=1) if "--agent" in net.title(pid) or "dsc-agent" in net.title(pid)],
                 signal.SIGKILL)
        code = p.wait(300)
    said = open(net.folder + "/elastic.out").read()
    equal(code, 0, said)
    worlds = [int(n) for n in re.findall(r"dsc-launch: world \d+: (\d+) ranks?$", said, re.M)]
    equal((worlds[0], 2 in worlds, worlds[-1]), (4, True, 4), said)
    got, want = steps_of(log), steps_of(net.folder + "/alone.jsonl")
    equal({k: set(v) for k, v in got.items()}, {k: set(v) for k, v in want.items()}, said)
    check(sum(len(v) - 1 for v in got.values()) <= 1, "more than one step was repeated", said)
    net.wait_gone(5)
