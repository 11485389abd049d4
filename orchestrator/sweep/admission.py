"""Pure functions of the queue, the machines and the running launches: ``choose`` picks the next
launch and its nodes, ``worth_adding`` says for which launches nodes should be added, ``asked_for``
which.

Order: launches that are sure to fit, then risky ones, then those of a race that were probed already
(``plan/order.py: place``); within a class launches over several nodes first, then those predicted
best, then the longest. The head of the queue
gets a reservation, and others overtake it only where they do not delay it (EASY backfill). Ray's
own queue has no look-ahead: there, small groups would overtake a large one for ever.
``most_nodes``: how many nodes all launches together may hold.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from operator import attrgetter
from typing import NamedTuple

from orchestrator.cluster.base import MOST_GROUPS, Bundle, Footprint, Machine, NodeType
from orchestrator.plan.order import QueueClass, place
from orchestrator.sweep.resource_request import ResourceRequest

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
class Waiting:
    """A launch in the queue."""

    key: str
    resources: ResourceRequest
    estimate_s: float
    queue_class: QueueClass = QueueClass.NORMAL
    avoid: frozenset[str] = frozenset()  # nodes whose infrastructure failed it: taken last
    cost: Cost = Cost()  # expected
    # the load it is predicted to hold, as a share of the best prediction; of a deployment that was
    # probed already, how much it may still hold
    priority: float = 0.0

    @property
    def order(self) -> tuple[QueueClass, bool, float, float, str]:
        """Sort key of admission: the smallest first."""
        in_queue = place(self.queue_class, self.resources.gang, self.priority, self.estimate_s)
        return *in_queue, self.key


@dataclass(frozen=True, slots=True)
class Running:
    """A launch that holds nodes. ``end_s``: when it is expected to give them back, on the caller's
    clock.
    """

    resources: ResourceRequest
    nodes: Nodes
    end_s: float


class _Kind(NamedTuple):
    """What launches have in common that fit the same nodes and stand in the same class."""

    resources: ResourceRequest
    avoid: frozenset[str]
    queue_class: QueueClass

    @classmethod
    def of(cls, job: Waiting) -> _Kind:
        return cls(job.resources, job.avoid, job.queue_class)


class Pick(NamedTuple):
    """A launch to start, and its nodes. ``ahead``: key of the launch that it overtakes and does not
    delay.
    """

    job: Waiting
    nodes: Nodes
    ahead: str = ""


class Queue:
    """Waiting launches in the order of admission, grouped by kind.

    Launches of one kind fit the same nodes, so 10,000 launches take no longer to look at than their
    few kinds.
    """

    def __init__(self, jobs: Iterable[Waiting] = ()) -> None:
        self._kinds: dict[_Kind, list[Waiting]] = {}
        for job in jobs:
            self.add(job)

    def add(self, job: Waiting) -> None:
        kind = self._kinds.setdefault(_Kind.of(job), [])
        insort(kind, job, key=attrgetter("order"))

    def remove(self, job: Waiting) -> None:
        key = _Kind.of(job)
        kind = self._kinds[key]
        del kind[bisect_left(kind, job.order, key=attrgetter("order"))]
        if not kind:
            del self._kinds[key]

    def kinds(self) -> list[list[Waiting]]:
        """The launches of each kind in order; kinds in the order of their first launches."""
        return sorted(self._kinds.values(), key=lambda kind: kind[0].order)

    def __iter__(self) -> Iterator[Waiting]:
        return heapq.merge(*self._kinds.values(), key=attrgetter("order"))

    def in_turn(self, closed: Collection[ResourceRequest]) -> Iterator[Waiting]:
        """One launch of each resource request in turn, the first in the order of admission; those
        of a higher class last. Launches of requests that become ``closed`` meanwhile are passed
        over.
        """
        same: dict[tuple[ResourceRequest, QueueClass], list[list[Waiting]]] = {}
        for key, kind in self._kinds.items():
            same.setdefault((key.resources, key.queue_class), []).append(kind)

        def turns(kinds: list[list[Waiting]]) -> Iterator[tuple[tuple[int, int, object], Waiting]]:
            jobs = heapq.merge(*kinds, key=attrgetter("order"))
            open_jobs = takewhile(lambda job: job.resources not in closed, jobs)
            return (((job.queue_class, turn, job.order), job) for turn, job in enumerate(open_jobs))

        every = (job for _, job in heapq.merge(*map(turns, same.values())))
        return (job for job in every if job.resources not in closed)


def held(running: Iterable[Running]) -> set[str]:
    """Ids of the nodes that launches hold."""
    return {node for launch in running for replica in launch.nodes for node in replica}


def fit(
    resources: ResourceRequest,
    machines: Sequence[Machine],
    running: Sequence[Running],
    avoid: frozenset[str] = frozenset(),
    most_nodes: float = math.inf,
) -> Nodes | None:
    """Free nodes for every replica, best fit first and ``avoid`` last; None when it does not fit
    now.
    """
    if not resources.replicas:
        endpoints = {other.resources.endpoint for other in running if other.resources.endpoint}
        return None if resources.endpoint in endpoints else ()
    free = _free(resources, machines, running)
    chosen: dict[int, tuple[str, ...]] = {}
    for at in resources.by_size():
        bundles = resources.replicas[at]
        available = free
        own = {node for nodes in chosen.values() for node in nodes}
        is_router = not any(bundle.gpus or bundle.cpus for bundle in bundles)
        if own and is_router:  # on a node of its replicas
            available = {node: left for node, left in free.items() if node in own}
        nodes = _replica(bundles, available, avoid)
        if nodes is None:
            return None
        for node, bundle in zip(nodes, bundles, strict=True):
            free[node] = free[node].without(bundle)
        chosen[at] = nodes
    if most_nodes < math.inf and len(held(running).union(*chosen.values())) > most_nodes:
        return None
    return tuple(chosen[at] for at in range(len(chosen)))


class _Free(NamedTuple):
    """What is left of a node."""

    gpus: int
    cpus: float

    def without(self, bundle: Bundle) -> _Free:
        return _Free(self.gpus - bundle.gpus, self.cpus - bundle.cpus)

    def holds(self, bundle: Bundle) -> bool:
        return self.gpus >= bundle.gpus and self.cpus >= bundle.cpus


def _free(
    resources: ResourceRequest, machines: Sequence[Machine], running: Sequence[Running]
) -> dict[str, _Free]:
    """What is left of each node that this launch may use."""
    free = {machine.node_id: _Free(machine.gpus, machine.cpus) for machine in machines}
    address = {machine.node_id: machine.address for machine in machines}
    closed: set[str] = set()
    for launch in running:
        for replica, bundles in zip(launch.nodes, launch.resources.replicas, strict=True):
            for node, bundle in zip(replica, bundles, strict=True):
                if node not in free:
                    continue
                free[node] = free[node].without(bundle)
                if resources.exclusive or launch.resources.exclusive:
                    closed.add(address[node])
    return {
        machine.node_id: free[machine.node_id]
        for machine in machines
        if machine.address not in closed and resources.accepts(machine)
    }


def _replica(
    bundles: Sequence[Bundle], free: dict[str, _Free], avoid: frozenset[str]
) -> tuple[str, ...] | None:
    """Distinct nodes for the bundles of one replica, the fullest that still fit; None when there
    are too few.
    """
    left = dict(free)
    nodes = []
    for bundle in bundles:
        fitting = [node for node, rest in left.items() if rest.holds(bundle)]
        if not fitting:
            return None
        # fewest free GPUs first: a CPU bundle goes where no GPU is left idle beside it
        node = min(fitting, key=lambda name: (name in avoid, left[name], name))
        nodes.append(node)
        del left[node]
    return tuple(nodes)


def choose(
    queue: Queue,
    machines: Sequence[Machine],
    running: Sequence[Running],
    now_s: float,
    most_nodes: float = math.inf,
) -> Pick | None:
    """The next launch to start and its nodes; None when none fits before something ends."""
    reservation: _Reservation | None = None
    best: Pick | None = None
    ahead = ""
    for kind in queue.kinds():
        job = kind[0]
        nodes = fit(job.resources, machines, running, job.avoid, most_nodes)
        if nodes is None:
            if reservation is None:
                reservation = _reserve(job.resources, machines, running, most_nodes)
                ahead = job.key
            continue
        if reservation is None:
            return Pick(job, nodes)
        too_many = len(held(running).union(reservation.nodes, *nodes)) > most_nodes
        if too_many or not _clear_of(nodes, reservation.nodes, machines):
            in_time = (one for one in kind if now_s + one.estimate_s <= reservation.from_s)
            short = next(in_time, None)
            if short is None:
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
    types: Sequence[NodeType] = (),
) -> list[Waiting]:
    """The waiting launches that no node can take now and the budget ``left`` still pays for: one of
    each resource request in turn, because nodes may come for one and none for another.

    At most ``most_launches``, and none that would exceed ``most_nodes`` or, but for the first of
    each request, what may be added of the ``types`` that fit. Launches that fit beside what runs
    count as started: no node has to be added for them. Launches that share nodes share those that
    are added, too.
    """
    started = list(running)
    full: set[tuple[ResourceRequest, frozenset[str]]] = set()  # with the nodes to avoid
    wanted: list[Waiting] = []
    added: list[Machine] = []  # for what is wanted
    on_added: list[Running] = []
    types_of: dict[ResourceRequest, tuple[str, ...]] = {}
    may_come: dict[tuple[str, ...], float] = {}  # how many more nodes of these types
    closed: set[ResourceRequest] = set()  # get no more
    for job in queue.in_turn(closed):
        if left.gpu_s <= 0 or left.usd <= 0 or len(wanted) >= most_launches:
            break
        left -= job.cost
        resources = job.resources
        if not resources.replicas:
            continue
        if (resources, job.avoid) not in full:
            nodes = fit(resources, machines, started, job.avoid, most_nodes)
            if nodes is not None:
                started.append(Running(resources, nodes, math.inf))
                continue
            full.add((resources, job.avoid))
        nodes = None if resources.exclusive else fit(resources, added, on_added)
        if nodes is None:
            more = resources.as_machines(machines, f"added{len(added)}", types, most_nodes)
            is_first = resources not in types_of
            if is_first:
                types_of[resources], number = resources.may_come(machines, types)
                may_come.setdefault(types_of[resources], number)
            too_many = len(more) > may_come[types_of[resources]] and not is_first
            if too_many or len(held(started)) + len(added) + len(more) > most_nodes:
                closed.add(resources)
                continue
            may_come[types_of[resources]] -= len(more)
            added += more
            nodes = fit(resources, more, ())
        if nodes:
            on_added.append(Running(resources, nodes, math.inf))
        wanted.append(job)
    return wanted


def asked_for(
    jobs: Iterable[Waiting],
    machines: Sequence[Machine],
    types: Sequence[NodeType],
    most_nodes: float,
) -> tuple[list[Footprint], set[ResourceRequest]]:
    """What to ask an autoscaler for, and the resource requests that this is for. At most
    MOST_GROUPS footprints: those of the first launch as far as that allows, of the others all or
    none.
    """
    footprints: list[Footprint] = []
    served: set[ResourceRequest] = set()
    nodes_for: dict[ResourceRequest, list[Footprint]] = {}
    for job in jobs:
        resources = job.resources
        if resources not in nodes_for:
            nodes_for[resources] = resources.nodes_worth_adding(machines, types, most_nodes)
        more = nodes_for[resources]
        if not footprints or len(footprints) + len(more) <= MOST_GROUPS:
            footprints += more[:MOST_GROUPS]
            served.add(resources)
    return footprints, served


class _Reservation(NamedTuple):
    """From when on, and on which nodes, a launch will have room."""

    from_s: float
    nodes: set[str]


def _reserve(
    resources: ResourceRequest,
    machines: Sequence[Machine],
    running: Sequence[Running],
    most_nodes: float,
) -> _Reservation | None:
    """When and on which nodes it will fit if launches end as expected; None if it never will on
    these.
    """
    ends = sorted(running, key=lambda launch: launch.end_s)

    def after(ended: int) -> Nodes | None:
        return fit(resources, machines, ends[ended:], most_nodes=most_nodes)

    nodes = after(len(ends))
    if nodes is None or not ends:
        return None
    first = bisect_left(range(1, len(ends)), True, key=lambda ended: after(ended) is not None) + 1
    nodes = after(first) or nodes
    return _Reservation(ends[first - 1].end_s, {node for replica in nodes for node in replica})


def _clear_of(nodes: Nodes, kept: set[str], machines: Sequence[Machine]) -> bool:
    """Whether ``nodes`` are on other hosts than ``kept``."""
    address = {machine.node_id: machine.address for machine in machines}
    hosts = {address[node] for node in kept}
    return all(address[node] not in hosts for replica in nodes for node in replica)
