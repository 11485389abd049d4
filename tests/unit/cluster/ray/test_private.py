"""What is taken of Ray's inside, and what happens where the next Ray has it no more. No cluster is
started.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray.autoscaler._private.autoscaler import AutoscalerSummary
from ray.autoscaler._private.kuberay.node_provider import node_data_from_pod
from ray.autoscaler._private.node_provider_availability_tracker import (
    NodeProviderAvailabilityTracker,
)
from ray.autoscaler._private.node_tracker import NodeTracker
from ray.autoscaler.batching_node_provider import NodeData
from ray.autoscaler.node_launch_exception import NodeLaunchException
from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply
from ray.exceptions import RpcError

from orchestrator.cluster.base import NodeType
from orchestrator.cluster.ray import private as ray_private
from orchestrator.cluster.ray.growth import Autoscaler


def gone(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    """As if this Ray had no such modules."""
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)


@pytest.mark.parametrize(
    ("given", "variable", "expected"),
    [("h:1", None, "h:1"), ("h:1", "other:2", "h:1"), (None, "other:2", "other:2"), ("auto", "other:2", "other:2"),
     (None, None, None)],
)  # fmt: skip
def test_without_rays_look_up_only_what_is_named_is_found(
    monkeypatch: pytest.MonkeyPatch, given: str | None, variable: str | None, expected: str | None
) -> None:
    gone(monkeypatch, "ray._private.services")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if variable:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    assert ray_private.bootstrap_address(given) == expected


def test_without_rays_look_up_auto_needs_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    gone(monkeypatch, "ray._private.services")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ConnectionError):
        ray_private.bootstrap_address("auto")


def test_without_rays_question_a_head_is_whatever_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    gone(monkeypatch, "ray._private.grpc_utils")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert ray_private.head_answers(f"127.0.0.1:{port}", 1.0)
    assert not ray_private.head_answers(f"127.0.0.1:{port}", 1.0)
    assert not ray_private.head_answers("no port", 1.0)


def test_with_rays_question_what_listens_and_is_no_head_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not ray_private.head_answers(f"127.0.0.1:{server.getsockname()[1]}", 1.0)


def test_without_rays_upload_nodes_get_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    gone(monkeypatch, "ray._private.runtime_env.py_modules")
    assert ray_private.uploaded("/package") is None


def version1(monkeypatch: pytest.MonkeyPatch, status: object, error: bytes = b"") -> None:
    monkeypatch.setattr("ray.autoscaler.v2.utils.is_autoscaler_v2", lambda fetch_from_server: False)
    raw = None if status is None else json.dumps(status).encode()
    monkeypatch.setattr(
        "ray.experimental.internal_kv._internal_kv_get",
        {"__autoscaling_status": raw, "__autoscaling_error": error}.get,
    )


@pytest.mark.parametrize(
    ("status", "grows"),
    [(None, False), ({}, False), ({"autoscaler_report": None}, False),
     ({"autoscaler_report": {"active_nodes": {"node_ab12": 1, "node_cd34": 1}}}, False),
     ({"autoscaler_report": {"active_nodes": {"ray.head.default": 1}}}, True)],
)  # fmt: skip
def test_the_first_autoscaler_is_known_by_the_types_it_reports(
    monkeypatch: pytest.MonkeyPatch, status: object, grows: bool
) -> None:
    version1(monkeypatch, status)
    report = ray_private.autoscaler_report("h:1", lambda: False)
    assert report is not None
    assert report.configured is grows


def test_version_1_reports_coming_and_failed_nodes_or_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # of Ray, as what follows: the report is in its own shapes
    tried = NodeProviderAvailabilityTracker()
    tried.update_node_availability("h8", int(time.time()), None)
    refusal = NodeLaunchException("InsufficientInstanceCapacity", "no capacity in this zone", None)
    tried.update_node_availability("spot", int(time.time()), refusal)
    tracked = NodeTracker()
    for at, kind in enumerate(("h8", "h8", "head")):
        tracked.track(f"i-{at}", f"1.2.3.{at}", kind)
    report = AutoscalerSummary(
        active_nodes={"head": 1},
        idle_nodes=None,
        pending_nodes=[("1.2.3.4", "h8", "setting-up")],
        pending_launches={"a100": 2},
        failed_nodes=tracked.get_all_failed_node_info({"i-2"}),
        node_availability_summary=tried.summary(),
        legacy=True,
    )
    version1(monkeypatch, {"time": 7.0, "autoscaler_report": asdict(report)})
    report = ray_private.autoscaler_report("h:1", lambda: False)
    assert report is not None
    # what was only asked for is not on its way
    assert (report.stamp, report.coming) == (7.0, {"h8": 1})
    assert set(report.types) == {"head", "h8", "a100"}
    assert report.refused == {"h8": (2, "the node failed")}
    assert {kind: why for kind, (_, why) in report.last_refused.items()} == {
        "spot": "no capacity in this zone"
    }
    version1(
        monkeypatch, None, b"The autoscaler failed with the following error:\nKeyError: 'head'"
    )
    ended = ray_private.autoscaler_report("h:1", lambda: False)
    assert ended is not None
    assert (ended.configured, ended.error) == (True, "KeyError: 'head'")


def test_a_launch_that_is_refused_again_within_half_an_hour_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 1000.0
    tried = NodeProviderAvailabilityTracker(timer=lambda: now_s)
    autoscaler = Autoscaler(
        lambda: ray_private.autoscaler_report("h:1", lambda: False), lambda: now_s
    )

    def refusals(of: int | None) -> str:
        """After another report, and a launch that ended so many seconds ago."""
        nonlocal now_s
        now_s += 60.0
        if of is not None:
            tried.update_node_availability(
                "spot", int(now_s) - of, NodeLaunchException("X", "no capacity", None)
            )
        report = AutoscalerSummary(
            {"head": 1}, None, [], {}, [], node_availability_summary=tried.summary(), legacy=True
        )
        version1(monkeypatch, {"time": now_s, "autoscaler_report": asdict(report)})
        return autoscaler.growth(dict).why_no_nodes()

    assert refusals(5) == ""  # another sweep's
    assert refusals(None) == ""
    assert refusals(5) == "launches of nodes were refused: 1 x spot (no capacity)"
    assert refusals(None) == "launches of nodes were refused: 1 x spot (no capacity)"


def test_kuberays_first_autoscaler_reports_the_groups_of_its_pods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def pod(kind: str, group: str, ip: str | None, state: str) -> NodeData:
        labels = {"ray.io/node-type": kind, "ray.io/group": group}
        status = {"podIP": ip, "containerStatuses": [{"state": {state: {}}}]}
        return node_data_from_pod({"metadata": {"name": "p", "labels": labels}, "status": status})

    head, worker = (
        pod("head", "headgroup", "10.0.0.1", "running"),
        pod("worker", "h100-spot", None, "waiting"),
    )
    pending = [(worker.ip, worker.type, worker.status)]
    report = AutoscalerSummary({head.type: 1}, None, pending, {}, [], legacy=True)
    version1(monkeypatch, {"time": 7.0, "autoscaler_report": asdict(report)})
    report = ray_private.autoscaler_report("h:1", lambda: False)
    assert report is not None
    assert (report.configured, report.types, report.coming) == (
        True,
        ("headgroup", "h100-spot"),
        {"h100-spot": 1},
    )


def version2(
    monkeypatch: pytest.MonkeyPatch, reply: GetClusterStatusReply, by_hand: bool | None = False
) -> ray_private.AutoscalerReport:
    """What is made of a reply of the GCS. ``by_hand``: what the head's node says of its monitor."""
    gcs_client = SimpleNamespace(get_cluster_status=lambda timeout_s: reply.SerializeToString())
    monkeypatch.setattr("ray.autoscaler.v2.utils.is_autoscaler_v2", lambda fetch_from_server: True)
    monkeypatch.setattr("ray.autoscaler.v2.sdk.GcsClient", lambda address: gcs_client)
    report = ray_private.autoscaler_report("h:1", lambda: by_hand)
    assert report is not None
    return report


@pytest.mark.parametrize(("name", "grows"), [("", False), ("head", True)])
def test_the_second_autoscaler_is_known_by_the_types_of_nodes(
    monkeypatch: pytest.MonkeyPatch, name: str, grows: bool
) -> None:
    reply = GetClusterStatusReply()
    reply.cluster_resource_state.node_states.add(ray_node_type_name=name)
    assert version2(monkeypatch, reply).configured is grows


def test_version_2_reports_coming_refused_and_infeasible_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reply = GetClusterStatusReply()
    state = reply.autoscaling_state
    state.last_seen_cluster_resource_state_version = 12
    state.pending_instances.add(ray_node_type_name="h8")
    state.pending_instance_requests.add(ray_node_type_name="h8", count=3)
    state.failed_instance_requests.add(ray_node_type_name="spot", count=1, reason="no capacity")
    state.failed_instance_requests.add(ray_node_type_name="spot", count=2, reason="quota")
    # as Ray 2.60 words it, with what KubeRay's provider says
    for name, why in (("h8", "it is full"), ("h16", "")):
        reason = (
            f"launch failed with Failed to launch 1 nodes of type {name} with request id "
            f"3f-{name}: {why}"
        )
        state.failed_instance_requests.add(ray_node_type_name=name, count=1, reason=reason)
    state.infeasible_gang_resource_requests.add(details="ab12:STRICT_PACK|PENDING")
    report = version2(monkeypatch, reply)
    assert (report.stamp, report.coming) == (12, {"h8": 1})
    unsaid = "the autoscaler's log says why"
    assert report.refused == {"spot": (3, "quota"), "h8": (1, "it is full"), "h16": (1, unsaid)}
    assert report.infeasible == {"ab12"}


def test_an_autoscaler_that_cannot_be_asked_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    gone(monkeypatch, "ray.autoscaler.v2.utils")
    assert ray_private.autoscaler_report("h:1", lambda: False) is None


@pytest.mark.parametrize(
    ("ray_drains", "head"), [(True, "n0"), (False, "n0"), (None, "n0"), (True, "n1")]
)
def test_a_node_that_ray_does_not_drain_is_marked(
    monkeypatch: pytest.MonkeyPatch, ray_drains: bool | None, head: str
) -> None:
    import ray
    from ray._private.state import state
    from ray.experimental import internal_kv

    drained, marks = dict[str, int](), dict[bytes, bytes]()

    class Client:
        def __init__(self, address: str) -> None: ...

        def drain_node(
            self, node_id: str, reason: int, why: str, deadline_ms: int
        ) -> tuple[bool | None, str]:
            if ray_drains is None:
                raise RpcError("unimplemented")
            drained.update({node_id: deadline_ms} if ray_drains else {})
            return ray_drains, "not in this Ray"

    monkeypatch.setattr("ray._raylet.GcsClient", Client)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address="head:1"))
    nodes = [{"NodeID": f"n{at}", "Resources": {"CPU": 1.0}} for at in range(2)]
    nodes[int(head[1:])]["Resources"] = {"node:__internal_head__": 1.0}
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(type(state), "get_draining_nodes", lambda self: drained)
    monkeypatch.setattr(internal_kv, "_internal_kv_put", marks.__setitem__)
    monkeypatch.setattr(internal_kv, "_internal_kv_get", marks.get)
    monkeypatch.setattr(
        internal_kv,
        "_internal_kv_list",
        lambda prefix: [key for key in marks if key.startswith(prefix)],
    )
    ray_private.drain("n1", 60.0, "spot")
    assert list(ray_private.draining()) == ["n1"]
    assert bool(marks) == (head == "n1" or not ray_drains)
    assert 55e3 < ray_private.draining()["n1"] - time.time() * 1e3 <= 60e3


def test_node_types_are_read_from_what_ray_up_left(tmp_path: Path) -> None:
    assert ray_private.node_types(str(tmp_path / "none.yaml")) == []
    file = tmp_path / "ray_bootstrap_config.yaml"
    file.write_text(
        "available_node_types: {h100: {resources: {CPU: 96, GPU: 8}, max_workers: 4, node_config: "
        "{}}}"
    )
    assert ray_private.node_types(str(file)) == [NodeType("h100", 8, 96, 4, {})]
    file.write_text(
        "available_node_types: {a: {resources: {CPU: 2}, max_workers: 4, labels: {market: spot}}}"
    )
    assert ray_private.node_types(str(file)) == [NodeType("a", 0, 2, 4, {"market": "spot"})]
    file.write_text("available_node_types: 3")
    assert ray_private.node_types(str(file)) == []


@pytest.mark.parametrize(
    ("arguments", "grows"),
    [(["--autoscaling-config=/c.yaml", "--gcs-address=h:1"], True), (["--gcs-address=h:1"], False),
     (["--autoscaling-config=/c.yaml", "--gcs-address=h:2"], False)],
)  # fmt: skip
def test_an_autoscaler_started_by_hand_is_known_by_its_monitor(
    arguments: list[str], grows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monitor = SimpleNamespace(
        cmdline=lambda: ["python", "/ray/autoscaler/v2/monitor.py", *arguments]
    )
    other = SimpleNamespace(cmdline=lambda: ["vi", "cluster.yaml"])
    monkeypatch.setattr(ray_private.psutil, "process_iter", lambda: [other, monitor])
    assert ray_private.monitor_has_configuration("h:1") is grows


@pytest.mark.parametrize("by_hand", [True, False, None])
def test_where_no_node_has_a_type_the_heads_answer_counts(
    by_hand: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = GetClusterStatusReply()
    reply.cluster_resource_state.node_states.add(ray_node_type_name="")
    assert version2(monkeypatch, reply, by_hand).configured is by_hand
    reply.cluster_resource_state.node_states.add(ray_node_type_name="gpus")
    assert version2(monkeypatch, reply, by_hand).configured
