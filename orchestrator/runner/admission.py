"""Two pure functions of the queue, the machines and the running launches: ``choose`` picks the next launch and its
nodes, ``worth_adding`` says for which launches nodes should be added.

Order: multi-node launches first, then those predicted best, then the longest. The head of the queue gets a reservation,
and others overtake it only where they do not delay it (EASY backfill). Ray's own queue has no look-ahead: there, small
groups would overtake a large one for ever. ``most_nodes``: how many nodes all launches together may hold.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from orchestrator.catalog.accelerators import find, may_be
from orchestrator.cluster.base import ACCELERATOR_LABEL, Bundle, Footprint, Growth, Machine, NodeType
from orchestrator.plan.order import place
from orchestrator.several import listed
from orchestrator.spec.load import counted

ROOM_S, RETURN_S = 5.0, 60.0  # for nodes of a cluster that just starts to join, and for a lost node to come back
NO_TYPE_S = 5.0  # for an autoscaler to be given a node type that fits
SET_UP = 4.0  # factor on --placement-timeout while nodes are being set up, which includes image and weights

Nodes = tuple[tuple[str, ...], ...]  # node ids of every replica, rank 0 first


@dataclass(frozen=True, slots=True)
class Cost:
    """GPU seconds and US dollars."""

    gpu_s: float = 0.0
    usd: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.gpu_s + other.gpu_s, self.usd + other.usd)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.gpu_s - other.gpu_s, self.usd - other.usd)


@dataclass(frozen=True, slots=True)
class Need:
    """What one launch takes: the bundles of every replica. An endpoint has none, because it is not placed."""

    replicas: tuple[tuple[Bundle, ...], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    exclusive: bool = True  # no other launch on its hosts
    endpoint: str = ""  # two launches never load the same URL at once
    gpus_per_node: int = 0  # of its hardware; 0: unknown
    accelerator: str = ""  # that its nodes must not deny by their label; empty: any

    def suits(self, machine: Machine) -> bool:
        """Whether a machine has the labels, and no label of another accelerator."""
        labels = machine.labels
        return all(labels.get(key) == value for key, value in self.labels) and not self._denied(machine)

    def _denied(self, machine: Machine) -> str:
        """The machine's label of another accelerator, or nothing."""
        label = machine.labels.get(ACCELERATOR_LABEL, "")
        return label if label and self.accelerator and not may_be(self.accelerator, label) else ""

    def footprints(self) -> list[Footprint]:
        """One footprint per replica."""
        return [Footprint(bundles, self.labels) for bundles in self.replicas]

    def by_size(self) -> list[int]:
        """Indices of the replicas, the hardest to place first."""
        return sorted(range(len(self.replicas)), key=lambda at: (-len(self.replicas[at]), -self.replicas[at][0].gpus))

    @property
    def gang(self) -> bool:
        """Whether some replica spans several nodes."""
        return any(len(bundles) > 1 for bundles in self.replicas)

    @property
    def gpus(self) -> int:
        """The most that a replica takes of one node."""
        return max((bundle.gpus for bundles in self.replicas for bundle in bundles), default=0)

    @property
    def cpus(self) -> float:
        """The most that a replica takes of one node."""
        return max((bundle.cpus for bundles in self.replicas for bundle in bundles), default=0.0)

    def __str__(self) -> str:
        """In words, equal replicas counted."""
        counted = Counter(map(str, self.footprints()))
        sizes = " + ".join(one if times == 1 else f"{times} x {one}" for one, times in counted.items())
        kind = ", ".join(filter(None, (self.accelerator, *(f"{key}={value}" for key, value in self.labels))))
        return f"{sizes} ({kind})" if kind else sizes

    def nodes_worth_adding(self, machines: Sequence[Machine]) -> list[Footprint]:
        """The footprints to ask an autoscaler for: whole nodes if it shares none, or several would go to one node.

        Nodes with another accelerator must not hold them: none would be added.
        """
        asked = self._whole_nodes(machines) if self.exclusive and self.gpus else self.footprints()
        others = ",".join(sorted({label for one in machines if (label := self._denied(one))}))
        if not others or ACCELERATOR_LABEL in dict(self.labels):
            return asked
        labels = (*self.labels, (ACCELERATOR_LABEL, f"!in({others})"))
        return [Footprint(one.bundles, labels) for one in asked]

    def may_be_on(self, kind: NodeType) -> bool:
        """Whether an autoscaler may add nodes of this type for it: by size and labels, as far as they are known.

        Labels that Ray gives nodes itself when they start stand in no type.
        """
        asked = [bundle for one in self.nodes_worth_adding(()) for bundle in one.bundles]
        gpus, cpus = max(one.gpus for one in asked), max(one.cpus for one in asked)
        large = kind.gpus >= gpus and kind.cpus >= cpus
        if kind.labels is None or not large:
            return large
        said = [(key, value) for key, value in self.labels if key in kind.labels or not key.startswith("ray.io/")]
        return all(kind.labels.get(key) == value for key, value in said)

    def unclear(self, types: Sequence[NodeType]) -> str:
        """Why an autoscaler may add nodes with other GPUs, again and again; empty if it will not, or nobody knows.

        It is asked by size and labels alone. What it adds in vain leaves when it is idle, and is added again.
        """
        fitting = [one for one in types if self.gpus and self.accelerator and self.may_be_on(one)]
        named = {_accelerator_of(one) for one in fitting if one.labels is not None or not self.labels}
        if len(fitting) < 2 or not named or (len(named) == 1 and "" not in named):
            return ""
        kinds = listed([one.name for one in fitting], 5)
        label = "no label of the hardware tells them apart; give 'labels' one that only the right ones have"
        return f"for {self.accelerator} the autoscaler may add nodes of {kinds}: {label}"

    def least_nodes(self, machines: Sequence[Machine]) -> int:
        """How many otherwise empty nodes it takes, as far as their size is known."""
        if not self.gpus:
            return max(map(len, self.replicas), default=0)
        return sum(len(one.bundles) for one in self._whole_nodes(machines))

    def patience(
        self, machines: Sequence[Machine], growth: Growth, roomy: bool, most_nodes: float, timeout_s: float
    ) -> tuple[float, str]:
        """How many seconds to wait for nodes that can hold it, and why there are none after that.

        ``roomy``: some nodes could hold it once. ``timeout_s``: how long an autoscaler gets.
        """
        if (nodes := self.least_nodes(machines)) > most_nodes:
            return 0.0, f"it takes {counted(nodes, 'node')} where --max-nodes allows {most_nodes:g}"
        if not growth.may:
            return RETURN_S if roomy else ROOM_S, "it has no autoscaler"
        says = f" ({growth})" if str(growth) else ""
        if growth.impossible.intersection(self.nodes_worth_adding(machines)):
            return min(NO_TYPE_S, timeout_s), f"its autoscaler has no type of node that could{says}"
        limit_s = timeout_s * SET_UP if growth.coming else timeout_s
        return limit_s, f"none was added within {limit_s:g} s{says}"

    def _whole_nodes(self, machines: Sequence[Machine]) -> list[Footprint]:
        """Whole nodes that hold all replicas: of the size its hardware says, else of the smallest machine that fits."""
        seen = [one.gpus for one in machines if one.gpus >= self.gpus and self.suits(one)]
        gpus = max(self.gpus, self.gpus_per_node or min(seen, default=0))
        shelves: list[tuple[int, int, float]] = []  # nodes side by side; GPUs left and CPUs taken on each of them
        for bundles in (self.replicas[at] for at in self.by_size()):
            width, each = len(bundles), bundles[0]
            fitting = (at for at, (nodes, left, _) in enumerate(shelves) if nodes >= width and left >= each.gpus)
            if (at := next(fitting, None)) is None:
                at = len(shelves)
                shelves.append((width, gpus, 0.0))
            nodes, left, cpus = shelves[at]
            shelves[at] = nodes, left - each.gpus, cpus + each.cpus
        return [Footprint((Bundle(gpus, cpus),) * nodes, self.labels) for nodes, _, cpus in shelves]


def _accelerator_of(kind: NodeType) -> str:
    """What some label of a node type names; empty if none does."""
    named = (find(value) for value in (kind.labels or {}).values())
    return next((one.name for one in named if one), "")


@dataclass(frozen=True, slots=True)
class Waiting:
    """A launch in the queue."""

    key: str
    need: Need
    estimate_s: float
    late: int = 0  # see ``place``
    avoid: frozenset[str] = frozenset()  # nodes whose infrastructure failed it: taken last
    cost: Cost = Cost()  # expected
    promise: float = 0.0  # the load it is predicted to hold, as a share of the best prediction

    @property
    def order(self) -> tuple[int, bool, float, float, str]:
        """Sort key of admission: the smallest first."""
        return *place(self.late, self.need.gang, self.promise, self.estimate_s), self.key


@dataclass(frozen=True, slots=True)
class Running:
    """A launch that holds nodes. ``end_s``: when it is expected to give them back, on the caller's clock."""

    need: Need
    nodes: Nodes
    end_s: float


class Pick(NamedTuple):
    """A launch to start, and its nodes. ``ahead``: key of the launch that it overtakes and does not delay."""

    job: Waiting
    nodes: Nodes
    ahead: str = ""


class Queue:
    """Waiting launches in the order of admission, grouped by kind.

    Launches of one kind fit the same nodes, so 10,000 launches take no longer to look at than their few kinds.
    """

    def __init__(self, jobs: Iterable[Waiting] = ()) -> None:
        self._kinds: dict[tuple[Need, frozenset[str], int], list[Waiting]] = {}
        for job in jobs:
            self.add(job)

    def add(self, job: Waiting) -> None:
        insort(self._kinds.setdefault((job.need, job.avoid, job.late), []), job, key=attrgetter("order"))

    def remove(self, job: Waiting) -> None:
        kind = self._kinds[job.need, job.avoid, job.late]
        del kind[bisect_left(kind, job.order, key=attrgetter("order"))]
        if not kind:
            del self._kinds[job.need, job.avoid, job.late]

    def kinds(self) -> list[list[Waiting]]:
        """The launches of each kind in order; kinds in the order of their first launches."""
        return sorted(self._kinds.values(), key=lambda kind: kind[0].order)

    def __iter__(self) -> Iterator[Waiting]:
        return heapq.merge(*self._kinds.values(), key=attrgetter("order"))


def held(running: Iterable[Running]) -> set[str]:
    """Ids of the nodes that launches hold."""
    return {node for launch in running for replica in launch.nodes for node in replica}


def fit(
    need: Need,
    machines: Sequence[Machine],
    running: Sequence[Running],
    avoid: frozenset[str] = frozenset(),
    most_nodes: float = math.inf,
) -> Nodes | None:
    """Free nodes for every replica, best fit first and ``avoid`` last; None when it does not fit now."""
    if not need.replicas:
        return None if any(other.need.endpoint == need.endpoint and need.endpoint for other in running) else ()
    free = _free(need, machines, running)
    chosen: dict[int, tuple[str, ...]] = {}
    for at in need.by_size():
        bundles, own = need.replicas[at], {node for nodes in chosen.values() for node in nodes}
        guest = own and not any(bundle.gpus or bundle.cpus for bundle in bundles)  # a router, on a node of its replicas
        nodes = _replica(bundles, {node: free[node] for node in free if node in own} if guest else free, avoid)
        if nodes is None:
            return None
        for node, bundle in zip(nodes, bundles, strict=True):
            gpus, cpus = free[node]
            free[node] = (gpus - bundle.gpus, cpus - bundle.cpus)
        chosen[at] = nodes
    if most_nodes < math.inf and len(held(running).union(*chosen.values())) > most_nodes:
        return None
    return tuple(chosen[at] for at in range(len(chosen)))


def _free(need: Need, machines: Sequence[Machine], running: Sequence[Running]) -> dict[str, tuple[int, float]]:
    """GPUs and CPUs left on each node that this need may use."""
    free = {one.node_id: (one.gpus, one.cpus) for one in machines}
    address = {one.node_id: one.address for one in machines}
    closed: set[str] = set()
    for launch in running:
        for replica, bundles in zip(launch.nodes, launch.need.replicas, strict=True):
            for node, bundle in zip(replica, bundles, strict=True):
                if node not in free:
                    continue
                free[node] = free[node][0] - bundle.gpus, free[node][1] - bundle.cpus
                if need.exclusive or launch.need.exclusive:
                    closed.add(address[node])
    usable = (one for one in machines if one.address not in closed and need.suits(one))
    return {one.node_id: free[one.node_id] for one in usable}


def _replica(
    bundles: Sequence[Bundle], free: dict[str, tuple[int, float]], avoid: frozenset[str]
) -> tuple[str, ...] | None:
    """Distinct nodes for the bundles of one replica, the fullest that still fit; None when there are too few."""
    left = dict(free)
    nodes = []
    for bundle in bundles:
        fitting = [node for node, (gpus, cpus) in left.items() if gpus >= bundle.gpus and cpus >= bundle.cpus]
        if not fitting:
            return None
        # fewest free GPUs first: a CPU bundle goes where no GPU is left idle beside it
        node = min(fitting, key=lambda name: (name in avoid, left[name][0], left[name][1], name))
        nodes.append(node)
        del left[node]
    return tuple(nodes)


def choose(
    queue: Queue, machines: Sequence[Machine], running: Sequence[Running], now_s: float, most_nodes: float = math.inf
) -> Pick | None:
    """The next launch to start and its nodes; None when none fits before something ends."""
    reservation: tuple[float, set[str]] | None = None
    best: Pick | None = None
    ahead = ""
    for kind in queue.kinds():
        job = kind[0]
        nodes = fit(job.need, machines, running, job.avoid, most_nodes)
        if nodes is None:
            if reservation is None:
                reservation, ahead = _reserve(job.need, machines, running, most_nodes), job.key
            continue
        if reservation is None:
            return Pick(job, nodes)
        until_s, kept = reservation
        if not _clear_of(nodes, kept, machines) or len(held(running).union(kept, *nodes)) > most_nodes:
            in_time = (one for one in kind if now_s + one.estimate_s <= until_s)
            if (short := next(in_time, None)) is None:
                continue
            job = short
        if best is None or job.order < best.job.order:
            best = Pick(job, nodes, ahead)
    return best


def worth_adding(
    queue: Queue,
    machines: Sequence[Machine],
    running: Sequence[Running],
    left: Cost,
    most_nodes: float = math.inf,
    most_launches: float = math.inf,
) -> list[Waiting]:
    """The waiting launches that no node can take now and the budget ``left`` still pays for, in the order of admission.

    At most ``most_launches``, and none that would exceed ``most_nodes``. Launches that fit beside what runs count as
    started: no node has to be added for them.
    """
    started, wanted, full = list(running), list[Waiting](), set[tuple[Need, frozenset[str]]]()
    added = 0
    for job in queue:
        if left.gpu_s <= 0 or left.usd <= 0 or len(wanted) >= most_launches:
            break
        left -= job.cost
        if not job.need.replicas:
            continue
        if (job.need, job.avoid) not in full:
            nodes = fit(job.need, machines, started, job.avoid, most_nodes)
            if nodes is not None:
                started.append(Running(job.need, nodes, math.inf))
                continue
            full.add((job.need, job.avoid))
        more = job.need.least_nodes(machines)
        if len(held(started)) + added + more <= most_nodes:
            added += more
            wanted.append(job)
    return wanted


def _reserve(
    need: Need, machines: Sequence[Machine], running: Sequence[Running], most_nodes: float
) -> tuple[float, set[str]] | None:
    """When and on which nodes the need will fit if launches end as expected; None if it never will on these."""
    ends = sorted(running, key=lambda launch: launch.end_s)

    def after(ended: int) -> Nodes | None:
        return fit(need, machines, ends[ended:], most_nodes=most_nodes)

    if (nodes := after(len(ends))) is None or not ends:
        return None
    first = bisect_left(range(1, len(ends)), True, key=lambda ended: after(ended) is not None) + 1
    nodes = after(first) or nodes
    return ends[first - 1].end_s, {node for replica in nodes for node in replica}


def _clear_of(nodes: Nodes, kept: set[str], machines: Sequence[Machine]) -> bool:
    """Whether ``nodes`` are on other hosts than ``kept``."""
    address = {machine.node_id: machine.address for machine in machines}
    hosts = {address[node] for node in kept}
    return all(address[node] not in hosts for replica in nodes for node in replica)
