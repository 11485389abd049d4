"""A Ray cluster in a process of its own, so that a test survives when it kills the GCS:
``python -m ... NODES CPUS``. With ``RAY_AUTH_MODE`` and ``RAY_AUTH_TOKEN`` set it requires a token.

It prints its address, then answers each line of stdin with a line of JSON: ``replace`` replaces
nodes that died, ``usage`` lists what Ray holds for anybody (actors, placement groups, CPUs).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any

from scripts.ray_on_this_machine import RayOnThisMachine


def replace_broken_nodes(ray: RayOnThisMachine, cpus: int) -> int:
    """Replaces every node of which a process has died; the number of those nodes."""
    broken = [node for node in ray.cluster.worker_nodes if not node.remaining_processes_alive()]
    for node in broken:
        ray.cluster.remove_node(node, allow_graceful=False)
        ray.add_node(cpus)
    return len(broken)


def usage(ray: RayOnThisMachine) -> dict[str, Any]:
    """Actors that are not dead, placement groups that are not removed, CPUs that are taken, and the
    number of nodes that are alive.
    """
    state = ray.cluster.global_state
    groups = state.placement_group_table().values()
    total = state.cluster_resources().get("CPU", 0)
    free = state.available_resources().get("CPU", 0)
    return {
        "actors": [
            actor["ActorClassName"]
            for actor in state.actor_table(None).values()
            if actor["State"] != "DEAD"
        ],
        "groups": [group["state"] for group in groups if group["state"] != "REMOVED"],
        "cpus": total - free,
        "nodes": len(state._live_node_ids()),
    }


def main(nodes: int, cpus: int) -> None:
    # Paths of Ray's sockets have at most 107 bytes, so they lie in /tmp; processes that Ray starts
    # still see TMPDIR.
    tempfile.tempdir = "/tmp"
    with RayOnThisMachine(nodes, cpus, token=os.environ.get("RAY_AUTH_TOKEN", "")) as ray:
        print(json.dumps(ray.address), flush=True)
        for line in sys.stdin:
            replaces = line.strip() == "replace"
            answer = replace_broken_nodes(ray, cpus) if replaces else usage(ray)
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
