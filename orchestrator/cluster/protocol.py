"""What the sweep needs from a cluster: machines, placements, agents that run engines, and clients
that send load to them.

Two classes implement it: this machine without Ray (local.py), and Ray (ray/cluster.py). Everything
here is a protocol, so the sweep is tested without either. Any call to an agent may raise HostLost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Any, Protocol

from orchestrator.cluster.base import (
    Allocation,
    Avoidance,
    DeadLog,
    Footprint,
    Growth,
    Machine,
    PlacementDeadline,
    Stopped,
)

if TYPE_CHECKING:
    from orchestrator.base.errors import Failure
    from orchestrator.cluster.clients import BorrowedClients
    from orchestrator.engines.command import Node
    from orchestrator.load.point import HostLoad
    from orchestrator.node.leases import Wish
    from orchestrator.node.readiness import Ready
    from orchestrator.spec.settings import Hardware
    from orchestrator.spec.stages import PlannedSettings
    from orchestrator.telemetry.engine_metrics import Sample
    from orchestrator.telemetry.node_sampler import NodeTelemetry

ASK_LIMIT_S = 60.0  # for a node to answer a check; a busy node takes 30 s to start a worker


class Agent(Protocol):
    """Runs one rank of a replica on its node. ``EngineHost`` implements it, and its docstrings say
    what each method does; on another node a proxy calls an ``EngineHost`` there.
    """

    @property
    def allocation(self) -> Allocation: ...

    def lease(self, wish: Wish) -> tuple[int, ...]: ...
    def queue(self, wish: Wish, since_ns: int = 0) -> int: ...
    def put_back(self) -> None: ...
    def dead_logs(self) -> list[DeadLog]: ...
    def drop_dead(self, folder: str) -> None: ...
    def reserve_ports(self, count: int) -> list[int]: ...
    def start(
        self, settings: PlannedSettings, hardware: Hardware, node: Node, api_key: str
    ) -> tuple[str, ...]: ...
    def begin_ready(self, timeout_s: float) -> None: ...
    def poll_ready(self, wait_s: float) -> Ready | Failure | None: ...
    def downloaded(self) -> int: ...
    def hear_downloaded(self, elsewhere: int) -> None: ...
    def saying(self) -> str: ...
    def kv_transport(self) -> str: ...
    def failure(self) -> Failure | None: ...
    def empty_cache(self) -> bool: ...
    def metrics_url(self) -> str | None: ...
    def begin_metrics(self, urls_of_other_ranks: Sequence[str] = ()) -> None: ...
    def has_work(self) -> bool: ...
    def end_metrics(self) -> list[Sample]: ...
    def begin_host(self) -> None: ...
    def end_host(self, ours: Collection[int]) -> HostLoad: ...
    def environment(self) -> dict[str, Any]: ...
    def host_facts(self) -> dict[str, Any]: ...
    def wall_ns(self) -> int: ...
    def begin_telemetry(self, ours: Collection[int], watches_host: bool) -> None: ...
    def end_telemetry(self) -> NodeTelemetry: ...
    def stop(self) -> Stopped: ...


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """The agents of one replica, rank 0 first, and the resources they hold.

    ``release`` ends their engines and gives the resources back; calling it again does nothing.
    """

    agents: Sequence[Agent]
    release: Callable[[], None]


class Probes(Protocol):
    """Runs checks on every node of a cluster in parallel."""

    machines: Sequence[Machine]

    def ask(
        self,
        function: Any,
        *arguments: Any,
        limit_s: float = ASK_LIMIT_S,
        nodes: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Calls ``function(*arguments)`` on all nodes, or only on ``nodes``. Returns node id -> its
        result, or NoAnswer.
        """
        ...

    def close(self) -> None: ...


class Cluster(Protocol):
    """A cluster that can place replicas and clients. Every wait has a limit.

    ``note``: what the user should know about how it was found.
    """

    note: str | None

    def machines(self) -> list[Machine]:
        """Nodes that can take new work: all but those in ``leaving``."""
        ...

    def leaving(self) -> Mapping[str, float]:
        """Nodes that drain because they will be taken back: node id -> seconds until then, infinite
        if unknown.
        """
        ...

    def watch(self, tell: Callable[[str], None], stop: Event) -> None:
        """From now on calls ``tell`` when the cluster stops answering and when it answers again.

        When the cluster is lost for good, says so, sets ``stop`` and ends this process.
        """
        ...

    def growth(self) -> Growth:
        """What its autoscaler reports now."""
        ...

    def desire(self, footprints: Sequence[Footprint], taken: Collection[str] = ()) -> None:
        """Asks the cluster for nodes for these footprints, at most MOST_GROUPS of them, in addition
        to the nodes that launches hold. A call replaces what the last one asked for.

        Nothing is placed by this: the nodes show up in ``machines``, or they do not. Without
        footprints only the launches keep nodes up. ``taken``: ids of nodes that were given to
        launches, including launches that are not placed yet.
        """
        ...

    def probes(self) -> Probes:
        """A way to run checks on every node."""
        ...

    def check_nodes(self) -> list[str]:
        """Checks, before anything starts, that the nodes can run this program and write results.

        Returns warnings for the user. Raises InputError with everything that is wrong.
        """
        ...

    def place(
        self,
        launch_id: str,
        footprint: Footprint,
        nodes: Sequence[str],
        deadline: PlacementDeadline,
    ) -> Placement:
        """Starts one agent per bundle: the first on the first of ``nodes``, and so on. All nodes
        are different.

        Waits while others hold the resources. Raises Occupied when ``deadline`` is over,
        PlacementError when these nodes are gone or could not hold the footprint even when idle.
        """
        ...

    def clients(self, count: int, avoid: Mapping[str, Avoidance]) -> BorrowedClients:
        """Borrows ``count`` client processes. ``avoid``: by node id; nodes that are missing are
        taken first. Raises NoClient when a node cannot reach the results, or PlacementError.
        """
        ...

    def most_clients(self) -> int: ...
    def close(self) -> None: ...
