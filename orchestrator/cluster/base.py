"""What crosses between the sweep and a cluster: machines, footprints, allocations, reports, and how
a host or client is lost. Plain records; what a cluster can do stands in protocol.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from orchestrator.base.errors import Occupied, PlacementError
from orchestrator.base.text import counted
from orchestrator.load.point import ClientStats, Reply

if TYPE_CHECKING:
    from orchestrator.results.row_writer import RowFile
    from orchestrator.results.store import FilePart

# the label that Ray gives to every node whose GPUs it knows
ACCELERATOR_LABEL = "ray.io/accelerator-type"
# the label of nodes in an autoscaling cluster: the name of their type
NODE_GROUP = "ray.io/node-group"
# The most footprints that are desired at once, because Ray's scheduler and autoscaler look at each
# of them again and again.
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


class Avoidance(IntEnum):
    """Why clients should keep off a node. Nodes with the strongest reason are taken last."""

    NONE = 0
    OWN_ENGINE = 1  # it has an engine of the same launch
    OTHER_ENGINE = 2  # it has an engine of another launch of this sweep
    UNFIT = 3  # another sweep has its host for itself, it has no room for rows, or it is going away
    NO_START = 4  # a client did not start there


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
        devices = counted(bundle.gpus, "GPU") if bundle.gpus else counted(bundle.cpus, "CPU")
        if len(self.bundles) > 1:
            return f"{len(self.bundles)} nodes with {devices} each"
        return f"one node with {devices}" if bundle != Bundle(0, 0.0) else "one node for a router"


@dataclass(frozen=True, slots=True)
class Allocation:
    """What one agent was given. ``devices``: sorted GPU ids. ``cores``: the CPU cores that its
    process may use.
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
    """A rank that was stopped. ``left_over``: how many of its processes outlived SIGKILL. That was
    never seen; if it happens, an event says so.
    """

    left_over: int
    log: bytes
    dirty_gpus: tuple[str, ...] = ()  # UUIDs of GPUs whose memory was not freed in time


class DeadLog(NamedTuple):
    """The log of an engine whose agent died before it returned it. ``folder``: the work folder that
    it lies in; ``name``: what the log is called in the store.
    """

    folder: str
    name: str
    log: bytes


class ClientProcess(NamedTuple):
    """Where the process of a client runs: the name of its host, and its pid there."""

    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class ClientReport:
    """One client's share of a point: its rows, and the files in the store that hold them.
    ``stored`` is empty where the client could store none.
    """

    stats: ClientStats
    stored: tuple[FilePart, ...]
    requests: RowFile
    token_events: RowFile | None = None  # None: they are stored, and too many to be read here
    replies: tuple[Reply, ...] = ()  # only where the point asks to keep them


@dataclass(frozen=True, slots=True)
class NodeType:
    """A type of node that an autoscaler may add, at most ``most`` of it. ``labels``: None if they
    are not known.
    """

    name: str
    gpus: int = 0
    cpus: float = 0.0
    most: float = 0
    labels: Mapping[str, str] | None = None


class RefusedNodes(NamedTuple):
    """How many nodes of a type failed to launch, and the last reason; empty if none was given."""

    number: int
    why: str


@dataclass(frozen=True, slots=True)
class Growth:
    """What is known of a cluster's autoscaler.

    ``may_grow``: whether nodes may be added; True as well where that is not known.
    ``silent``: why a configured autoscaler does not report. ``coming``: node type -> nodes being
    set up. ``refused``: node type -> nodes that failed to launch since the first look.
    ``impossible``: desired footprints for which it has no node type. ``types``: the node types that
    it has, empty if unknown. ``reports``: how many new reports it has made since the first look;
    None if it is not known whether there is an autoscaler.
    """

    may_grow: bool = True
    silent: str = ""
    coming: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, RefusedNodes] = field(default_factory=dict)
    impossible: frozenset[Footprint] = frozenset()
    types: tuple[NodeType, ...] = ()
    reports: int | None = None

    @property
    def may_be_dead(self) -> bool:
        """Whether an autoscaler is configured and has made at most one new report since the first
        look: an autoscaler that is dead may have left that one.
        """
        return self.reports in (0, 1)

    def why_no_nodes(self) -> str:
        """Why nodes do not come; empty when nothing is known."""
        reasons = [self.silent] if self.silent else []
        failed = []
        for node_type, refused in self.refused.items():
            because = f" ({refused.why})" if refused.why else ""
            failed.append(f"{refused.number} x {node_type}{because}")
        if failed:
            reasons.append(f"launches of nodes were refused: {', '.join(failed)}")
        return "; ".join(reasons)


class HostLost(Exception):
    """The process or node of an agent or client is gone or does not answer: a failure of the
    infrastructure, not of the configuration.
    """


class ClientLost(Exception):
    """Load clients whose process or node is gone. ``clients``: their indices among the clients of
    the point.
    """

    def __init__(self, clients: Sequence[int], why: str = "it did not report") -> None:
        self.clients = tuple(clients)
        super().__init__(f"client {', '.join(map(str, self.clients))}: {why}")


@dataclass(frozen=True, slots=True)
class PlacementDeadline:
    """How long to wait until a footprint is placed: ``timeout_s``, but no longer than until
    ``stopped`` says that the sweep is over.
    """

    timeout_s: float
    stopped: Callable[[], bool] = lambda: False

    def check(
        self, waited_s: float, footprint: Footprint, held: Callable[[], Collection[str]] = tuple
    ) -> None:
        """Raises Occupied when the time is up, with the nodes that others use (``held``), and
        PlacementError if the sweep was stopped. ``waited_s``: how long the footprint has waited.
        """
        if self.stopped():
            raise PlacementError("the sweep was stopped")
        if waited_s >= self.timeout_s:
            raise Occupied(
                f"{footprint} did not become free within {self.timeout_s:g} s: others hold it",
                held(),
            )


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Why a node gave no answer. ``cannot_run``: it cannot run this program. Otherwise it may be able
    to, and is busy or gone.
    """

    why: str
    cannot_run: bool = False

    @classmethod
    def of(cls, error: BaseException) -> NoAnswer:
        """The answer that stands for a check which raised this error."""
        return cls(f"cannot run this program: {type(error).__name__}: {error}", cannot_run=True)
