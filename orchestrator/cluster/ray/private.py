"""Everything that this program uses of Ray's private API, with a fallback for each part that a
future Ray may drop.
"""

import json
import math
import os
import re
import signal
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import yaml

from orchestrator.cluster.base import NodeType, RefusedNodes

# prefix of the keys with which we mark nodes as draining, where Ray itself cannot or must not drain
# them
LEAVING = b"orchestrator/leaving/"
HEAD = "node:__internal_head__"  # a resource that only the head has
STATUS_KEY = "__autoscaling_status"
ERROR_KEY = "__autoscaling_error"
UNNAMED = "node_"  # prefix of the type names that Ray makes up for nodes without one
FAILED = "failed"  # in place of a node type, when the autoscaler has ended and reports none


def bootstrap_address(address: str | None) -> str | None:
    """The cluster that Ray would join: the given one, RAY_ADDRESS, or the last one started on this
    machine; None without any.

    Raises ConnectionError or ValueError for a named address that cannot be used. Fallback: the file
    that the last started cluster left is not read.
    """
    try:
        from ray._private.services import canonicalize_bootstrap_address
    except ImportError:
        named = address if address not in (None, "auto") else os.environ.get("RAY_ADDRESS")
        if named is None and address == "auto":
            raise ConnectionError("RAY_ADDRESS is not set") from None
        return named
    cluster_address: str | None = canonicalize_bootstrap_address(address)
    return cluster_address


def head_answers(address: str, limit_s: float) -> bool:
    """Whether a Ray head answers at the address. That something listens is not enough: a proxy
    accepts every connection.

    Fallback: whether anything listens.
    """
    return cluster_id(address, limit_s) is not None


def cluster_id(address: str, limit_s: float) -> bytes | None:
    """The id of the cluster whose head answers at the address; each start of a head has another id.
    None if no head answers, empty if the head does not say.

    Fallback: empty where anything listens.
    """
    try:
        import grpc
        from ray._private.grpc_utils import init_grpc_channel
        from ray.core.generated.gcs_service_pb2 import GetClusterIdRequest
        from ray.core.generated.gcs_service_pb2_grpc import NodeInfoGcsServiceStub
    except ImportError:
        return b"" if _listens(address, limit_s) else None
    no_head = (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    )
    channel = init_grpc_channel(address)
    try:
        reply = NodeInfoGcsServiceStub(channel).GetClusterId(GetClusterIdRequest(), timeout=limit_s)
        identity: bytes = reply.cluster_id
        return identity
    except grpc.RpcError as error:
        return None if error.code() in no_head else b""
    finally:
        channel.close()


def _listens(address: str, limit_s: float) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), limit_s).close()
    except (OSError, ValueError):
        return False
    return True


def uploaded(folder: str) -> dict[str, Any] | None:
    """Uploads a package's folder. Returns the runtime_env that gives the package to an actor.

    Ray itself uploads packages only in ``ray.init``, and forgets an upload that was not used for
    ten minutes. So this is called before each use; an upload that is still there is not repeated.
    Fallback: None, and the nodes must have the package (``check_nodes`` finds out).
    """
    try:
        from ray._private.runtime_env.py_modules import upload_py_modules_if_needed
    except ImportError:
        return None
    modules = {"py_modules": [folder], "excludes": ["__pycache__"]}
    with tempfile.TemporaryDirectory() as scratch:
        environment = upload_py_modules_if_needed(
            modules, include_gitignore=True, scratch_dir=scratch
        )
    return {"py_modules": environment["py_modules"]}


@contextmanager
def own_signals() -> Iterator[None]:
    """Undoes the SIGTERM handler that ``ray.init`` installs, which exits with a status of its own.

    Inside the block that exit becomes a KeyboardInterrupt. After it the old handler is back.
    """
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as ended:
        raise KeyboardInterrupt from ended
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@contextmanager
def on_loopback() -> Iterator[None]:
    """Makes everything that ``ray.init`` starts inside the block listen on loopback only, as Ray
    does where it supports no clusters (macOS). Fallback: it listens on all addresses.
    """
    try:
        from ray._private import ray_constants as switches
    except ImportError:
        switches = None
    before = getattr(switches, "ENABLE_RAY_CLUSTER", None)
    if before is None:
        yield
        return
    switches.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        switches.ENABLE_RAY_CLUSTER = before


def drain(node_id: str, left_s: float, why: str) -> None:
    """Makes Ray drain a node: nothing new starts there, and ``draining`` says when it will be gone.

    May be called on any node. Fallback, also where Ray refuses: a mark in Ray's key-value store
    that only we read. The head's node gets only that mark: Ray ends the raylet of a draining node
    once it is idle, and the whole cluster would end with the head's.
    """
    import ray
    from ray.exceptions import RayError

    deadline_ms = int((time.time() + left_s) * 1e3)
    try:
        from ray._raylet import GcsClient  # type: ignore[attr-defined]
        from ray.core.generated.autoscaler_pb2 import DrainNodeReason

        client = GcsClient(address=ray.get_runtime_context().gcs_address)
        reason = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        is_head = any(
            node["NodeID"] == node_id and HEAD in node["Resources"] for node in ray.nodes()
        )
        accepted = False
        if not is_head:
            accepted = client.drain_node(node_id, reason, why, deadline_ms)[0]
    except (ImportError, AttributeError, TypeError, ValueError, RuntimeError, RayError):
        accepted = False
    if not accepted:
        from ray.experimental.internal_kv import _internal_kv_put

        _internal_kv_put(LEAVING + node_id.encode(), str(deadline_ms).encode())


def draining() -> dict[str, int]:
    """The draining nodes: node id -> when the node will be gone, in Unix milliseconds; 0 if
    unknown. Fallback: our own marks.
    """
    gone_ms: dict[str, int] = {}
    with suppress(Exception):
        from ray._private.state import state

        gone_ms = dict(state.get_draining_nodes())
    with suppress(Exception):
        from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_list

        for key in _internal_kv_list(LEAVING):
            node_id = key.removeprefix(LEAVING).decode()
            gone_ms.setdefault(node_id, int(_internal_kv_get(key) or 0))
    return gone_ms


def head_node() -> str | None:
    """The id of the head's node; None where no living node says it is the head."""
    import ray

    for node in ray.nodes():
        if node["Alive"] and HEAD in node["Resources"]:
            return str(node["NodeID"])
    return None


def free_resources() -> dict[str, dict[str, float]]:
    """Node id -> its resources that are free; empty where Ray does not say."""
    with suppress(Exception):
        from ray._private.state import available_resources_per_node

        return dict(available_resources_per_node())
    return {}


class LastRefusal(NamedTuple):
    """When the last launch of a node type failed, in Unix seconds on the head, and why."""

    at_s: float
    why: str


@dataclass(frozen=True, slots=True)
class AutoscalerReport:
    """The autoscaler's last report. ``types``: of all nodes that are up or coming. ``stamp``:
    another one in each report; None if there was no report.

    ``refused``: node type -> failed launches. ``last_refused``: node type -> the last failed
    launch; only version 1 reports it, in place of a count. ``infeasible``: ids of placement groups
    for which the autoscaler can add no nodes.
    """

    types: tuple[str, ...] = ()
    stamp: object = None
    error: str = ""
    coming: Counter[str] = field(default_factory=Counter)
    refused: Mapping[str, RefusedNodes] = field(default_factory=dict)
    last_refused: Mapping[str, LastRefusal] = field(default_factory=dict)
    infeasible: frozenset[str] = frozenset()
    # Whether the head's monitor was started with a configuration. It is False, too, where the node
    # types decide without it; None while the head has not answered.
    monitor_configured: bool | None = False

    @property
    def configured(self) -> bool | None:
        """Whether there is an autoscaler with node types. None: not known yet.

        Such an autoscaler names the type of every node, even of the head unless that was started by
        hand. The monitor that ``ray start`` always runs names none.
        """
        if any(not name.startswith(UNNAMED) for name in self.types):
            return True
        return self.monitor_configured


def autoscaler_report(
    gcs_address: str, monitor_configured: Callable[[], bool | None]
) -> AutoscalerReport | None:
    """The last report of this cluster's autoscaler; None where it cannot be read.

    ``monitor_configured``: tells whether the head's monitor was started with a configuration; None
    while that is not known. It is called only where the cluster's status does not show it.
    """
    try:
        from ray.autoscaler.v2.utils import is_autoscaler_v2

        if is_autoscaler_v2(fetch_from_server=True):
            return _report_v2(gcs_address, monitor_configured)
        return _report_v1()
    except Exception:
        return None


def _report_v2(gcs_address: str, monitor_configured: Callable[[], bool | None]) -> AutoscalerReport:
    from ray.autoscaler.v2.sdk import GcsClient
    from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply, NodeStatus

    reply = GetClusterStatusReply()
    reply.ParseFromString(GcsClient(gcs_address).get_cluster_status(timeout_s=10))
    autoscaler = reply.autoscaling_state
    living_nodes = [
        node for node in reply.cluster_resource_state.node_states if node.status != NodeStatus.DEAD
    ]
    instances = (
        *living_nodes,
        *autoscaler.pending_instances,
        *autoscaler.pending_instance_requests,
    )
    types = tuple(instance.ray_node_type_name or UNNAMED for instance in instances)
    is_named = any(name != UNNAMED for name in types)
    infeasible = [
        request.details.partition(":")[0]
        for request in autoscaler.infeasible_gang_resource_requests
    ]
    return AutoscalerReport(
        types=types,
        stamp=autoscaler.last_seen_cluster_resource_state_version or None,
        coming=Counter(instance.ray_node_type_name for instance in autoscaler.pending_instances),
        refused=_refused_v2(autoscaler.failed_instance_requests),
        infeasible=frozenset(infeasible),
        monitor_configured=False if is_named else monitor_configured(),
    )


def _refused_v2(failed_requests: Iterable[Any]) -> dict[str, RefusedNodes]:
    """Node type -> its failed launches, with the reason of the last request."""
    refused: dict[str, RefusedNodes] = {}
    for failed in failed_requests:
        node_type = failed.ray_node_type_name
        before = refused[node_type].number if node_type in refused else 0
        # the reason begins with the request's id; what the provider raised follows only with
        # KubeRay
        why = re.sub(r"^.* with request id [^:]*: ?", "", failed.reason)
        refused[node_type] = RefusedNodes(
            before + failed.count, why or "the autoscaler's log says why"
        )
    return refused


def monitor_has_configuration(gcs_address: str) -> bool:
    """Whether the head of this cluster runs on this machine and was started with
    ``--autoscaling-config``.

    Version 2 publishes no configuration, and a head that was started by hand has no node type. So
    the command line on the head's machine is examined (``HeadMonitor`` asks there).
    """
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            is_monitor = any(word.endswith("monitor.py") for word in words)
            if not is_monitor or f"--gcs-address={gcs_address}" not in words:
                continue
            return any(word.startswith("--autoscaling-config=") for word in words)
    return False


def _report_v1() -> AutoscalerReport:
    """The report of version 1; empty where no monitor runs, as in a cluster that ``ray.init``
    started.
    """
    from ray.experimental.internal_kv import _internal_kv_get

    status = json.loads(_internal_kv_get(STATUS_KEY) or "{}")
    report = status.get("autoscaler_report") or {}
    error = (_internal_kv_get(ERROR_KEY) or b"").decode().strip()
    pending = [node_type for _, node_type, _ in report.get("pending_nodes") or ()]
    types = [
        *(report.get("active_nodes") or ()),
        *pending,
        *(report.get("pending_launches") or ()),
    ]
    if error:
        types.append(FAILED)
    failed = Counter(node_type for _, node_type in report.get("failed_nodes") or ())
    return AutoscalerReport(
        types=tuple(types),
        stamp=status.get("time"),
        error=error.rpartition("\n")[2],
        coming=Counter(pending),
        refused={
            node_type: RefusedNodes(number, "the node failed")
            for node_type, number in failed.items()
        },
        last_refused=_last_refused_v1(report),
    )


def _last_refused_v1(report: Mapping[str, Any]) -> dict[str, LastRefusal]:
    """Node type -> its last launch, for types whose last launch failed. Version 1 keeps the last
    launch of each type for half an hour.
    """
    summary = report.get("node_availability_summary") or {}
    last_refused: dict[str, LastRefusal] = {}
    for node_type, last in (summary.get("node_availabilities") or {}).items():
        problem = last["unavailable_node_information"]
        if problem:
            at_s = float(last["last_checked_timestamp"])
            last_refused[node_type] = LastRefusal(at_s, str(problem["description"]))
    return last_refused


def node_types(file: str = "~/ray_bootstrap_config.yaml") -> list[NodeType]:
    """The node types of which the autoscaler may add nodes; empty where they are not known.

    ``file``: the configuration that ``ray up`` leaves on the head. It is read where the autoscaler
    does not publish its types, and only it has their labels.
    """
    with suppress(Exception):
        from ray._private.state import state

        return [
            NodeType(
                group.name,
                int(group.resources.get("GPU", 0)),
                group.resources.get("CPU", 0),
                _most(group.max_count),
            )
            for group in state.get_cluster_config().node_group_configs
        ]
    with suppress(Exception):
        types = yaml.safe_load(Path(file).expanduser().read_text())["available_node_types"]
        return [
            NodeType(
                name,
                int(group["resources"].get("GPU", 0)),
                group["resources"].get("CPU", 0),
                _most(group["max_workers"]),
                {key: str(value) for key, value in (group.get("labels") or {}).items()},
            )
            for name, group in types.items()
        ]
    return []


def _most(number: int) -> float:
    return math.inf if number < 0 else number
