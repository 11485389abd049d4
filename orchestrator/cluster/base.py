"""What the runner needs of a cluster: machines, places, agents that run engines, clients that load them.

Ray implements it (ray_cluster.py); everything here is plain data and two small protocols, so that the runner is tested
without a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from orchestrator.engines.base import Node
from orchestrator.errors import Failure
from orchestrator.load.point import ClientStats, LoadPoint, Progress
from orchestrator.results.store import FilePart
from orchestrator.spec.settings import EngineSettings, Hardware
from orchestrator.telemetry.engine_metrics import Sample

ACCELERATOR_LABEL = "ray.io/accelerator-type"  # which Ray gives every node with GPUs it knows


@dataclass(frozen=True, slots=True)
class Machine:
    """One node of the cluster. Nodes that share an ``address`` are one host (tests, several raylets on one machine)."""

    node_id: str
    address: str
    gpus: int = 0
    cpus: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bundle:
    """What one rank of a replica takes on one node."""

    gpus: int
    cpus: float


def describe(bundles: Sequence[Bundle]) -> str:
    """What one replica asks for, in words."""
    one = f"{bundles[0].gpus} GPUs" if bundles[0].gpus else f"{bundles[0].cpus:g} CPUs"
    return f"{len(bundles)} nodes with {one} each" if len(bundles) > 1 else f"one node with {one}"


@dataclass(frozen=True, slots=True)
class Seat:
    """Where one agent sits, as it found itself: ``devices`` sorted GPU ids, ``cores`` this process may use."""

    node_id: str
    address: str
    hostname: str
    devices: tuple[str, ...]
    cores: tuple[int, ...]
    pid: int
    gpus: tuple[str, ...] = ()  # name and UUID of each device
    log_path: str = ""  # of its engine on this node; stays there when the agent is lost


@dataclass(frozen=True, slots=True)
class Ready:
    """A replica that serves: what it said of itself."""

    seconds: float  # from process start
    reported: Mapping[str, float | int | str]
    version: str | None


@dataclass(frozen=True, slots=True)
class Stopped:
    """A rank that is gone. ``left_over``: processes that outlived SIGKILL (never seen; an event if it happens)."""

    seconds: float
    left_over: int
    log: bytes
    dirty_gpus: tuple[str, ...] = ()  # UUIDs whose memory was not back in time


@dataclass(frozen=True, slots=True)
class ClientReport:
    """One client's share of a point: rows are already in the store, ``requests`` is a copy for the verdict."""

    stats: ClientStats
    parts: tuple[FilePart, ...]
    requests: object  # pyarrow.Table in the schema REQUESTS


class AgentLost(Exception):
    """The agent's process or node is gone: infrastructure, not the configuration."""


class ClientLost(Exception):
    """A client's process or node is gone. ``clients``: their indices within the call."""

    def __init__(self, clients: Sequence[int], why: str = "it did not report") -> None:
        self.clients = tuple(clients)
        super().__init__(f"client {', '.join(map(str, self.clients))}: {why}")


class Agent(Protocol):
    """Runs one rank's process on its node. Every call raises AgentLost when the agent is gone."""

    seat: Seat

    def reserve_ports(self, count: int) -> list[int]: ...
    def start(self, settings: EngineSettings, hardware: Hardware, node: Node, api_key: str) -> tuple[str, ...]:
        """Start the process; returns its argv."""
        ...

    def begin_ready(self, timeout_s: float) -> None:
        """Begin waiting for rank 0 to serve; ``poll_ready`` tells."""
        ...

    def poll_ready(self, wait_s: float) -> Ready | Failure | None: ...
    def failure(self) -> Failure | None:
        """None while the process lives; else why it ended."""
        ...

    def between_points(self) -> None:
        """Empty the prefix cache where the engine can."""
        ...

    def begin_metrics(self) -> None:
        """Read the engine's /metrics from now on, where it has them."""
        ...

    def end_metrics(self) -> list[Sample]:
        """What was read since ``begin_metrics``, in order of time."""
        ...

    def stop(self) -> Stopped: ...


class ClientRun(Protocol):
    """A point under way on some clients."""

    def wait(self, wait_s: float) -> bool:
        """True once every client has reported. Raises ClientLost."""
        ...

    def progress(self) -> Progress: ...
    def abort(self) -> None: ...
    def settle(self, limit_s: float) -> None:
        """Wait for those that can still report, lost ones aside."""
        ...

    def reports(self) -> dict[int, ClientReport]:
        """By client index; those that were lost are missing."""
        ...


class Placement(Protocol):
    """The agents of one replica, rank 0 first, and the resources they hold."""

    agents: Sequence[Agent]

    def release(self) -> None: ...


class Clients(Protocol):
    """Client processes borrowed from the pool for one launch."""

    addresses: Sequence[str]

    def prepare(self, point: LoadPoint, avoid_cores: Mapping[str, frozenset[int]]) -> int:
        """Build the schedule and the bodies on every client: the ready barrier. Returns entries known.

        Raises InputError when the point cannot be run (no tokenizer, no such file, …), ClientLost.
        """
        ...

    def selfcheck(self, members: Sequence[int], limit_s: float) -> list[dict[str, Any]]:
        """What load/selfcheck.py finds on the hosts of these clients, all at once; ``{"error": …}`` where it failed."""
        ...

    def start(self, lead_s: float, write: bool = True) -> ClientRun:
        """Start all at one instant, ``lead_s`` from now. ``write=False``: rows come back but are not stored."""
        ...

    def release(self) -> None: ...


class Cluster(Protocol):
    """A cluster that can place replicas and clients. Every wait has a limit."""

    def machines(self) -> list[Machine]: ...
    def grows(self) -> bool:
        """Whether an autoscaler may add nodes."""
        ...

    def check_nodes(self) -> list[str]:
        """See that the nodes can run this program and write results, before anything starts.

        Returns what the user should know. Raises InputError with everything that is wrong.
        """
        ...

    def place(
        self,
        launch_id: str,
        bundles: Sequence[Bundle],
        nodes: Sequence[str] | None,
        labels: Mapping[str, str],
        timeout_s: float,
        stopped: Callable[[], bool],
    ) -> Placement:
        """One agent per bundle, each on its own node when there are several. ``nodes``: node ids, None = anywhere.

        Raises PlacementError when the time is over or ``stopped`` says so, NoRoom when no node can ever hold it and
        none is being added.
        """
        ...

    def clients(self, count: int, avoid: Mapping[str, int]) -> Clients:
        """``count`` client processes. ``avoid``: node ids with engines; the higher the number, the later it is taken.

        Raises PlacementError, also when a client's node cannot reach the results.
        """
        ...

    def most_clients(self) -> int: ...
    def close(self) -> None: ...
