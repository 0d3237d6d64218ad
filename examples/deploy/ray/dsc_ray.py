#!/usr/bin/env python3
# dsc_ray.py - dsc on a Ray cluster: one actor for each node starts and watches dsc-launch, and so that node's ranks.
#
#   python3 dsc_ray.py --nodes 2 --ranks_per_node 4 [--gpus] -- train --config ds_config.json --save run --load auto
#
# The code is that of the first node that failed; 4 when a node was lost. SPDX-License-Identifier: Apache-2.0
import argparse, ctypes, os, secrets, signal, socket, subprocess, sys

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

PEER_LOST = 4


def end_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: the actor's death ends its ranks


@ray.remote(max_restarts=0)
class Node:
    def address(self):
        with socket.socket() as s:
            s.bind(("", 0))
            return ray.util.get_node_ip_address(), s.getsockname()[1]

    def start(self, flags, command, token, folder):
        self.launch = subprocess.Popen(["dsc-launch", *flags, *command], env={**os.environ, "DSC_JOB_TOKEN": token},
                                       cwd=folder, stdin=subprocess.DEVNULL, preexec_fn=end_with_parent)

    def wait(self, seconds):
        try:
            return self.launch.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def stop(self):
        self.launch.terminate()


def watch(nodes):
    """Until all ended well, or one did not."""
    waiting = {node.wait.remote(1): node for node in nodes}
    while waiting:
        done, _ = ray.wait(list(waiting))
        node = waiting.pop(done[0])
        try:
            code = ray.get(done[0])
        except ray.exceptions.RayError as e:
            print(f"dsc_ray: a node was lost: {type(e).__name__}", file=sys.stderr)
            return PEER_LOST
        if code is None:
            waiting[node.wait.remote(1)] = node
        elif code != 0:
            return code if code > 0 else 128 - code
    return 0


def stop(nodes):
    """All nodes at once; ranks have dsc-launch's grace time."""
    asked = [node.stop.remote() for node in nodes] + [node.wait.remote(60) for node in nodes]
    for answer in asked:
        try:
            ray.get(answer)
        except ray.exceptions.RayError:
            pass  # it is gone already, and its ranks with it


def main():
    parser = argparse.ArgumentParser(usage="%(prog)s --nodes N --ranks_per_node R [--gpus] -- PROGRAM [ARGS]")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--ranks_per_node", type=int, default=1)
    parser.add_argument("--gpus", action="store_true", help="a GPU for each rank")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    ray.init(ignore_reinit_error=True, log_to_driver=True)
    each = {"CPU": args.ranks_per_node}
    if args.gpus:
        each["GPU"] = args.ranks_per_node
    group = placement_group([each] * args.nodes, strategy="SPREAD")
    ray.get(group.ready())
    nodes = [Node.options(num_cpus=each["CPU"], num_gpus=each.get("GPU", 0),
                          scheduling_strategy=PlacementGroupSchedulingStrategy(group, i)).remote()
             for i in range(args.nodes)]
    address, port = ray.get(nodes[0].address.remote())
    hosts = ",".join(f"node-{i}:{args.ranks_per_node}" for i in range(args.nodes))  # names for messages only
    token = secrets.token_hex(16)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        ray.get([node.start.remote(["--no_ssh", "--node_rank", str(i), "-H", hosts, "--master_addr", address, "--master_port",
                                    str(port)] if args.nodes > 1 else ["-np", str(args.ranks_per_node)],
                                   args.command, token, os.getcwd()) for i, node in enumerate(nodes)])
        code = watch(nodes)
    finally:
        stop(nodes)
    return code


if __name__ == "__main__":
    sys.exit(main())
