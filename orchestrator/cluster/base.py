"""What the runner needs of a cluster: machines, places, agents that run engines, clients that load them.

Two implement it: this machine without Ray (local.py) and Ray (ray_cluster.py). Everything here is plain data and one
protocol, so that the runner is tested without either. An agent is an ``EngineHost`` (engine_host.py), here or on
another node; any of its calls may raise HostLost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING, Any, Protocol

from orchestrator.errors import PlacementError
from orchestrator.load.point import ClientStats, Reply

if TYPE_CHECKING:
    from orchestrator.cluster.clients import Clients
    from orchestrator.cluster.engine_host import EngineHost
    from orchestrator.results.spool import Part
    from orchestrator.results.store import FilePart

ASK_LIMIT_S = 60.0  # of a node that is asked what it is; a busy one starts a worker in 30
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


@dataclass(frozen=True, slots=True)
class Footprint:
    """What one replica takes: a bundle per node, and the labels that each of these nodes must have."""

    bundles: tuple[Bundle, ...]
    labels: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        """In words; all bundles of a replica are alike."""
        bundle = self.bundles[0]
        each = f"{bundle.gpus} GPUs" if bundle.gpus else f"{bundle.cpus:g} CPUs"
        if len(self.bundles) > 1:
            return f"{len(self.bundles)} nodes with {each} each"
        return f"one node with {each}" if bundle != Bundle(0, 0.0) else "one node for a router"


@dataclass(frozen=True, slots=True)
class Allocation:
    """What one agent was given, as it found it: ``devices`` sorted GPU ids, ``cores`` its process may use."""

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
    """One client's share of a point: its rows, and where in the store they are (nowhere: ``stored`` is empty)."""

    stats: ClientStats
    stored: tuple[FilePart, ...]
    requests: Part
    token_events: Part | None = None  # of a client that stored nothing
    replies: tuple[Reply, ...] = ()  # where the point keeps them


@dataclass(frozen=True, slots=True)
class Growth:
    """What is known of a cluster's autoscaler. ``may``: nodes may come, or nobody can tell.

    ``silent``: how one that is configured does not report. ``coming``: nodes that are being set up, by type.
    ``refused``: launches of nodes that failed since it was first asked, by type, and the last reason.
    ``impossible``: of what is desired, that for which it has no type of node.
    """

    may: bool = True
    silent: str = ""
    coming: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    impossible: frozenset[Footprint] = frozenset()

    def __str__(self) -> str:
        """Why nodes do not come, as far as it says; empty when it says nothing."""
        failed = [f"{number} x {kind}" + f" ({why})" * bool(why) for kind, (number, why) in self.refused.items()]
        refused = f"launches of nodes were refused: {', '.join(failed)}" if failed else ""
        return "; ".join(filter(None, (self.silent, refused)))


class HostLost(Exception):
    """The process or the node of an agent or a client is gone, or silent: infrastructure, not the configuration."""


class ClientLost(Exception):
    """A client's process or node is gone. ``clients``: their indices within the call."""

    def __init__(self, clients: Sequence[int], why: str = "it did not report") -> None:
        self.clients = tuple(clients)
        super().__init__(f"client {', '.join(map(str, self.clients))}: {why}")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long somebody waits for a place: so many seconds, and not once ``stopped`` says that the sweep is over."""

    timeout_s: float
    stopped: Callable[[], bool] = lambda: False

    def check(self, waited_s: float, footprint: Footprint) -> None:
        """Raises PlacementError when it is over."""
        if self.stopped():
            raise PlacementError("the sweep was stopped")
        if waited_s >= self.timeout_s:
            raise PlacementError(f"no place for {footprint} within {self.timeout_s:g} s")


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """The agents of one replica, rank 0 first, and the resources they hold.

    ``release``: ends their engines and gives back what they hold; again, it changes nothing.
    """

    agents: Sequence[EngineHost]
    release: Callable[[], None]


class Probes(Protocol):
    """Every node of a cluster, to be asked in parallel.

    ``node_types``: resources of the kinds of nodes that an autoscaler may add, and how many, as far as it tells.
    """

    machines: Sequence[Machine]
    node_types: Sequence[tuple[dict[str, float], int]]

    def ask(
        self, function: Any, *arguments: Any, limit_s: float = ASK_LIMIT_S, nodes: Sequence[str] = ()
    ) -> dict[str, Any]:
        """What a function returned on each node, by node id; NoAnswer where there was none in time.

        ``nodes``: only these.
        """
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Why a node said nothing. ``wrong``: it cannot run this program; else nobody knows."""

    why: str
    wrong: bool = False


class Cluster(Protocol):
    """A cluster that can place replicas and clients. Every wait has a limit.

    ``note``: what the user should know of how it was found.
    """

    note: str | None

    def machines(self) -> list[Machine]:
        """Nodes that take something new: not those in ``leaving``."""
        ...

    def leaving(self) -> Mapping[str, float]:
        """Nodes that will be taken back (they drain): node id -> seconds until then, infinite where nobody knows."""
        ...

    def watch(self, tell: Callable[[str], None], stop: Event) -> None:
        """From now on tell when the cluster does not answer, and again; set ``stop`` and end this process, in words,
        when nothing more can come of it.
        """
        ...

    def growth(self) -> Growth:
        """What its autoscaler says; asked again and again."""
        ...

    def desire(self, footprints: Sequence[Footprint], taken: Collection[str] = ()) -> None:
        """The cluster should come to have nodes for these, beside those that launches hold; replaces the last desire.

        ``taken``: ids of nodes that launches were given, those that are not placed yet too.

        A wish, and nothing is placed by it: the nodes show up in ``machines`` or they do not. With none, nothing of
        this program keeps a node up but what launches hold.
        """
        ...

    def probes(self) -> Probes:
        """Every node, to be asked what it is."""
        ...

    def check_nodes(self) -> list[str]:
        """See that the nodes can run this program and write results, before anything starts.

        Returns what the user should know. Raises InputError with everything that is wrong.
        """
        ...

    def place(self, launch_id: str, footprint: Footprint, nodes: Sequence[str], patience: Patience) -> Placement:
        """One agent per bundle, on the node of ``nodes`` that stands in its place; all of them are different.

        Waits while others hold what it takes. Raises PlacementError when patience is over, or these nodes are gone or
        could not even hold it when idle.
        """
        ...

    def clients(self, count: int, avoid: Mapping[str, int]) -> Clients:
        """``count`` client processes. ``avoid``: node ids with engines; the higher the number, the later it is taken.

        Raises PlacementError, also when a client's node cannot reach the results.
        """
        ...

    def most_clients(self) -> int: ...
    def close(self) -> None: ...
