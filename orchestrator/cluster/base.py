"""What the runner needs from a cluster: machines, placements, agents that run engines, and clients
that load them.

Two classes implement it: this machine without Ray (local.py), and Ray (ray_cluster.py). Everything
here is plain data and protocols, so the runner is tested without either. An agent is an
``EngineHost`` (engine_host.py) on this or another node; any call to it may raise HostLost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING, Any, Protocol

from orchestrator.base.errors import Occupied, PlacementError
from orchestrator.load.point import ClientStats, Reply
from orchestrator.spec.load import counted

if TYPE_CHECKING:
    from orchestrator.cluster.clients import Clients
    from orchestrator.cluster.engine_host import EngineHost
    from orchestrator.results.row_writer import RowFile
    from orchestrator.results.store import FilePart

ASK_LIMIT_S = 60.0  # for a node to answer a check; a busy one takes 30 s to start a worker
ACCELERATOR_LABEL = "ray.io/accelerator-type"  # Ray gives it to every node whose GPUs it knows
# label of the nodes of an autoscaling cluster: the name of their type
NODE_GROUP = "ray.io/node-group"
# footprints to desire at once: Ray's scheduler and autoscaler look at each again and again
MOST_GROUPS = 64


@dataclass(frozen=True, slots=True)
class Machine:
    """One node of the cluster. Nodes with the same ``address`` are one host (several raylets on one
    machine).
    """

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


@dataclass(frozen=True, slots=True)
class Footprint:
    """What one replica takes: one bundle per node, all alike, and the labels that each of these
    nodes must have.
    """

    bundles: tuple[Bundle, ...]
    labels: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        """In words, for messages."""
        bundle = self.bundles[0]
        each = counted(bundle.gpus, "GPU") if bundle.gpus else counted(bundle.cpus, "CPU")
        if len(self.bundles) > 1:
            return f"{len(self.bundles)} nodes with {each} each"
        return f"one node with {each}" if bundle != Bundle(0, 0.0) else "one node for a router"


@dataclass(frozen=True, slots=True)
class Allocation:
    """What one agent was given: ``devices`` are sorted GPU ids, ``cores`` the CPU cores its process
    may use.
    """

    node_id: str
    address: str
    hostname: str
    devices: tuple[str, ...]
    cores: tuple[int, ...]
    pid: int
    gpus: tuple[str, ...] = ()  # name and UUID of each device
    log_path: str = ""  # of its engine on this node; the file stays there when the agent is lost


@dataclass(frozen=True, slots=True)
class Stopped:
    """A rank that was stopped. ``left_over``: processes that outlived SIGKILL (never seen; an event
    if it happens).
    """

    left_over: int
    log: bytes
    dirty_gpus: tuple[str, ...] = ()  # UUIDs of GPUs whose memory was not freed in time


@dataclass(frozen=True, slots=True)
class ClientReport:
    """One client's share of a point: its rows, and the files in the store that hold them (empty: it
    stored none).
    """

    stats: ClientStats
    stored: tuple[FilePart, ...]
    requests: RowFile
    token_events: RowFile | None = None  # None: they are stored, and too many to be read here
    replies: tuple[Reply, ...] = ()  # only where the point asks to keep them


@dataclass(frozen=True, slots=True)
class NodeType:
    """A type of node that an autoscaler may add, at most ``most`` of it. ``labels``: None if nobody
    tells them.
    """

    name: str
    gpus: int = 0
    cpus: float = 0.0
    most: float = 0
    labels: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Growth:
    """What is known of a cluster's autoscaler. ``may``: nodes may be added, or nobody can tell.

    ``silent``: why a configured autoscaler does not report. ``coming``: node type -> nodes being
    set up. ``refused``: node type -> how many nodes failed to launch since the first look, and the
    last reason. ``impossible``: desired footprints for which it has no node type. ``types``: those
    it has, empty if unknown. ``reports``: how many were new since the first look; None: nobody
    knows whether there is one.
    """

    may: bool = True
    silent: str = ""
    coming: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    impossible: frozenset[Footprint] = frozenset()
    types: tuple[NodeType, ...] = ()
    reports: int | None = None

    def __str__(self) -> str:
        """Why nodes do not come; empty when nothing is known."""
        failed = [
            f"{number} x {kind}" + f" ({why})" * bool(why)
            for kind, (number, why) in self.refused.items()
        ]
        refused = f"launches of nodes were refused: {', '.join(failed)}" if failed else ""
        return "; ".join(filter(None, (self.silent, refused)))


class HostLost(Exception):
    """The process or node of an agent or client is gone or does not answer: infrastructure, not the
    configuration.
    """


class ClientLost(Exception):
    """Load clients whose process or node is gone. ``clients``: their indices among the clients of
    the point.
    """

    def __init__(self, clients: Sequence[int], why: str = "it did not report") -> None:
        self.clients = tuple(clients)
        super().__init__(f"client {', '.join(map(str, self.clients))}: {why}")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for a place: ``timeout_s``, or until ``stopped`` says that the sweep is
    over.
    """

    timeout_s: float
    stopped: Callable[[], bool] = lambda: False

    def check(
        self, waited_s: float, footprint: Footprint, held: Callable[[], Collection[str]] = tuple
    ) -> None:
        """Raises Occupied when the wait is over (nodes that could hold it are ``held``),
        PlacementError if stopped.
        """
        if self.stopped():
            raise PlacementError("the sweep was stopped")
        if waited_s >= self.timeout_s:
            raise Occupied(
                f"{footprint} was not to be had within {self.timeout_s:g} s: others hold it", held()
            )


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """The agents of one replica, rank 0 first, and the resources they hold.

    ``release`` ends their engines and gives the resources back; calling it again does nothing.
    """

    agents: Sequence[EngineHost]
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
        """Call ``function(*arguments)`` on all nodes, or only on ``nodes``; node id -> its result,
        or NoAnswer.
        """
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Why a node gave no answer. ``wrong``: it cannot run this program; otherwise the cause is
    unknown.
    """

    why: str
    wrong: bool = False

    @classmethod
    def of(cls, error: BaseException) -> NoAnswer:
        """That of a check which raised."""
        return cls(f"cannot run this program: {type(error).__name__}: {error}", wrong=True)


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
        """From now on report when the cluster stops answering and when it answers again.

        When it is lost for good: say so, set ``stop`` and end this process.
        """
        ...

    def growth(self) -> Growth:
        """What its autoscaler reports now."""
        ...

    def desire(self, footprints: Sequence[Footprint], taken: Collection[str] = ()) -> None:
        """Ask the cluster to add nodes for these footprints, at most MOST_GROUPS, beside those that
        launches hold; replaces the last wish.

        ``taken``: ids of nodes given to launches, those not placed yet included. Nothing is placed
        by this: the nodes show up in ``machines`` or they do not. Without footprints only the
        launches keep nodes up.
        """
        ...

    def probes(self) -> Probes:
        """A way to run checks on every node."""
        ...

    def check_nodes(self) -> list[str]:
        """Check, before anything starts, that the nodes can run this program and write results.

        Returns warnings for the user. Raises InputError with everything that is wrong.
        """
        ...

    def place(
        self, launch_id: str, footprint: Footprint, nodes: Sequence[str], patience: Patience
    ) -> Placement:
        """Start one agent per bundle, the first on the first of ``nodes`` and so on; all nodes are
        different.

        Waits while others hold the resources. Raises Occupied when ``patience`` is over,
        PlacementError when these nodes are gone or could not hold the footprint even when idle.
        """
        ...

    def clients(self, count: int, avoid: Mapping[str, int]) -> Clients:
        """Borrow ``count`` client processes. ``avoid``: node id -> number; nodes with higher
        numbers are taken last.

        Raises PlacementError, also when a client's node cannot reach the results.
        """
        ...

    def most_clients(self) -> int: ...
    def close(self) -> None: ...
