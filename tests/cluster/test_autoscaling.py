"""A cluster that grows for what is desired and shrinks afterwards: Ray's own autoscaler, with fake
nodes.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cluster.base import (
    ACCELERATOR_LABEL,
    Bundle,
    Footprint,
    Growth,
    Machine,
    PlacementDeadline,
)
from orchestrator.cluster.ray.cluster import RayCluster
from orchestrator.results.store import Store
from tests.cluster.autoscaling import another_node, autoscaling_ray
from tests.cluster.refusing_provider import REFUSED_TYPE
from tests.harness import MODEL, environment, orchestrator, rows, wait_for, write_experiment

pytestmark = pytest.mark.cluster

NODE = Footprint((Bundle(8, 1.0),), (("pool", "grown"),))
# as ``Need`` asks for it
NOT_A100 = Footprint(NODE.bundles, (*NODE.labels, (ACCELERATOR_LABEL, "!in(A100)")))
LARGER = Footprint((Bundle(16, 1.0),))  # than any node can be
REFUSED = Footprint((Bundle(8, 1.0),), (("pool", "refused"),))
MOST = 3
GROW_S = 60.0
SHRINK_S = 60.0


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with autoscaling_ray(MOST) as address:
        yield address


@pytest.fixture
def cluster(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RayCluster]:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    made = RayCluster(Store.open(str(tmp_path), "x"), address)
    yield made
    made.close()


def grown(cluster: RayCluster) -> list[Machine]:
    return [machine for machine in cluster.machines() if machine.gpus]


def refusals(growth: Growth) -> int:
    return growth.refused.get(REFUSED_TYPE, (0, ""))[0]


def test_nodes_come_for_what_is_desired_are_not_taken_from_launches_and_leave(
    cluster: RayCluster,
) -> None:
    assert cluster.growth().may_grow
    assert grown(cluster) == []

    cluster.desire([LARGER])
    wait_for(
        lambda: LARGER in cluster.growth().impossible,
        GROW_S,
        "the autoscaler has no such type of node",
    )

    cluster.desire([REFUSED, NODE, NOT_A100])
    wait_for(lambda: len(grown(cluster)) == 2, GROW_S, "two nodes have come")
    first = wait_for(
        lambda: refusals(says := cluster.growth()) and says, GROW_S, "a launch was refused"
    )
    said = f"launches of nodes were refused: {{}} x {REFUSED_TYPE} (the autoscaler's log says why)"
    assert first.why_no_nodes() == said.format(refusals(first))
    more = wait_for(
        lambda: refusals(says := cluster.growth()) > refusals(first) and says,
        GROW_S,
        "it is tried again",
    )
    assert more.why_no_nodes() == said.format(refusals(more))

    # One launch takes a node that a desire holds; what is still desired is then not on it.
    first = grown(cluster)[0].node_id
    placement = cluster.place("grown", NODE, [first], PlacementDeadline(20.0))
    assert placement.agents[0].allocation.node_id == first
    assert len(placement.agents[0].allocation.devices) == 8
    cluster.desire([NODE, NODE])
    wait_for(
        lambda: len(grown(cluster)) == 3,
        GROW_S,
        "a third node has come beside the one that is held",
    )

    cluster.desire([])
    wait_for(
        lambda: [one.node_id for one in grown(cluster)] == [first],
        SHRINK_S,
        "only the held node is left",
    )
    placement.release()
    wait_for(lambda: not grown(cluster), SHRINK_S, "all nodes have left")


SWEEP = f"""
version: 1
name: grows
model: {{id: {MODEL}}}
hardware: {{h100: {{accelerator: H100-80GB, gpus_per_node: 8, labels: {{pool: grown}}, cpus_per_device: 0.1}}}}
isolation: shared            # all these nodes are one host, which launches would have to themselves one by one
deployments:
  engine: emulator
  hardware: h100
  tensor_parallel_size: 8
  vary: [{{cases: [{{pipeline_parallel_size: 2}}, {{max_num_seqs: 8}}, {{max_num_seqs: 16}}, {{max_num_seqs: 32}}]}}]
workloads: [{{name: short, input_tokens: 32, output_tokens: 16}}]
load: {{levels: {{concurrency: [2]}}, duration: 2s, warmup: 500ms}}
"""


def test_a_sweep_grows_to_the_most_nodes_measures_side_by_side_and_lets_go(
    address: str, cluster: RayCluster, tmp_path: Path
) -> None:
    wait_for(lambda: not grown(cluster), SHRINK_S, "it begins without nodes")
    experiment, results = write_experiment(tmp_path, SWEEP), tmp_path / "results"
    done = orchestrator(
        "run",
        str(experiment),
        "--results",
        str(results),
        "--address",
        address,
        RAY_AUTH_MODE="disabled",
    )
    assert done.returncode == 0, done.stderr
    launches = rows(results, "launches")
    nodes = [{rank["node_id"] for rank in json.loads(row["placement_json"])} for row in launches]
    assert len(set.union(*nodes)) == MOST
    assert sorted(map(len, nodes)) == [1, 1, 1, 2]  # the one that is larger than a node
    began = sorted(
        (row["started_unix_ns"] + 1e9 * row["placed_s"], row["held_s"]) for row in launches
    )
    assert any(
        next_ns < began_ns + 1e9 * held_s
        for (began_ns, held_s), (next_ns, _) in itertools.pairwise(began)
    )
    wait_for(lambda: not grown(cluster), SHRINK_S, "all nodes have left")


ELSEWHERE = "127.0.0.2"
# a driver on a node that is not the head's
FROM_ELSEWHERE = f"""
import json, sys, time
import ray
from orchestrator.cluster.base import Bundle, Footprint
from orchestrator.cluster.ray.cluster import RayCluster
from orchestrator.cluster.ray.private import head_node

end_s = time.monotonic() + 150.0  # nodes of a busy machine come late
while True:
    try:
        ray.init(address=sys.argv[1], _node_ip_address="{ELSEWHERE}", log_to_driver=False, namespace="orchestrator")
        break
    except Exception:
        ray.shutdown()
        if time.monotonic() > end_s:
            raise
        time.sleep(1.0)
is_on_the_head = ray.get_runtime_context().get_node_id() == head_node()
cluster = RayCluster(None, sys.argv[1])
may, gpus = [cluster.growth().may_grow], 0
cluster.desire([Footprint((Bundle(8, 1.0),))] * (sys.argv[2] == "desire"))
while time.monotonic() < end_s and not gpus and may[-1]:
    time.sleep(1.0)
    may.append(cluster.growth().may_grow)
    gpus = sum(machine.gpus for machine in cluster.machines())
cluster.close()
print(json.dumps({{"on_the_head": is_on_the_head, "may": may, "gpus": gpus}}))
"""


def seen_from_elsewhere(address: str, *, desire: bool) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", FROM_ELSEWHERE, address, "desire" if desire else "nothing"],
        env=environment(RAY_AUTH_MODE="disabled"),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert not seen["on_the_head"]
    return seen


@pytest.mark.long
def test_the_autoscaler_of_a_head_started_by_hand_is_known_on_every_node() -> None:
    with autoscaling_ray(1, by_hand=True) as address, another_node(address, ELSEWHERE):
        seen = seen_from_elsewhere(address, desire=True)
    assert all(seen["may"])
    assert seen["gpus"] == 8


@pytest.mark.long
def test_a_cluster_without_an_autoscaler_is_known_on_every_node() -> None:
    with (
        autoscaling_ray(1, by_hand=True, configured=False) as address,
        another_node(address, ELSEWHERE),
    ):
        seen = seen_from_elsewhere(address, desire=False)
    assert seen["may"][-1] is False
