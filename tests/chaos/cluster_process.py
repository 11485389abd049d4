"""A Ray cluster of a process of its own, so that whoever kills its GCS survives that: ``python -m
... NODES CPUS``. It asks for a token if ``RAY_AUTH_MODE`` and ``RAY_AUTH_TOKEN`` say so.

Prints the address, then answers each line of stdin with a line of JSON: ``mend`` (nodes that died
are replaced), ``used`` (what Ray holds for anybody: actors, placement groups, CPUs).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any

from scripts.ray_on_this_machine import RayOnThisMachine


def mend(made: RayOnThisMachine, cpus: int) -> int:
    """Replaces every node that is not whole; how many those were."""
    broken = [node for node in made.cluster.worker_nodes if not node.remaining_processes_alive()]
    for node in broken:
        made.cluster.remove_node(node, allow_graceful=False)
        made.add_node(cpus)
    return len(broken)


def used(made: RayOnThisMachine) -> dict[str, Any]:
    """Actors that are not dead, groups that are not removed, CPUs taken. ``nodes``: how many are
    alive.
    """
    state = made.cluster.global_state
    groups = state.placement_group_table().values()
    total, free = state.cluster_resources().get("CPU", 0), state.available_resources().get("CPU", 0)
    return {
        "actors": [
            one["ActorClassName"]
            for one in state.actor_table(None).values()
            if one["State"] != "DEAD"
        ],
        "groups": [one["state"] for one in groups if one["state"] != "REMOVED"],
        "cpus": total - free,
        "nodes": len(state._live_node_ids()),
    }


def main(nodes: int, cpus: int) -> None:
    # socket paths below it are limited to 107 bytes; what it starts sees TMPDIR
    tempfile.tempdir = "/tmp"
    with RayOnThisMachine(nodes, cpus, token=os.environ.get("RAY_AUTH_TOKEN", "")) as made:
        print(json.dumps(made.address), flush=True)
        for line in sys.stdin:
            answer = mend(made, cpus) if line.strip() == "mend" else used(made)
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
