"""Decides which launch of the queue starts next, and for which launches nodes should be added.

Pure functions of the queue, the machines, and the nodes that other launches have reserved:
``choose`` picks the next launch and its nodes, ``worth_adding`` lists the launches for which nodes
should be added, and ``nodes_to_ask_for`` says which nodes those are.

The order of the queue is one function, ``plan/order.py: queue_position``. Where the head of the
queue does not fit yet, nodes are kept for it, and other launches overtake it only where they do not
delay it (EASY backfill). Ray's own queue has no look-ahead: in Ray, small groups would overtake a
large one for ever.

In all these functions, ``most_nodes`` limits how many nodes all launches may hold together.
"""

from __future__ import annotations

import heapq
import itertools
import math
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from orchestrator.cluster.base import MOST_GROUPS, Bundle, Footprint, Machine, NodeType
from orchestrator.plan.order import QueueClass, QueuePosition, queue_position
from orchestrator.sweep.resource_request import ResourceRequest

Nodes = tuple[tuple[str, ...], ...]  # node ids of every replica, rank 0 first


@dataclass(frozen=True, slots=True)
class Spending:
    """GPU time in seconds, and money in US dollars."""

    gpu_s: float = 0.0
    usd: float = 0.0

    def __add__(self, other: Spending) -> Spending:
        return Spending(self.gpu_s + other.gpu_s, self.usd + other.usd)

    def __sub__(self, other: Spending) -> Spending:
        return Spending(self.gpu_s - other.gpu_s, self.usd - other.usd)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A launch in the queue."""

    key: str
    resources: ResourceRequest
    estimate_s: float
    queue_class: QueueClass = QueueClass.NORMAL
    avoid: frozenset[str] = frozenset()  # nodes whose infrastructure failed it: taken last
    cost: Spending = Spending()  # expected
    # the load that it is predicted to hold, as a share of the best prediction; once the deployment
    # has been probed, the load that it may still hold, as a share of what the best holds
    priority: float = 0.0

    @property
    def order(self) -> tuple[QueuePosition, str]:
        """Sort key of the queue: the smallest is admitted first; the launch's key breaks ties."""
        position = queue_position(
            self.queue_class, self.resources.is_gang, self.priority, self.estimate_s
        )
        return position, self.key


@dataclass(frozen=True, slots=True)
class Reservation:
    """The nodes that a launch holds from its admission on. ``end_s``: when it is expected to give
    them back, in seconds of the caller's clock.
    """

    resources: ResourceRequest
    nodes: Nodes
    end_s: float


class _Kind(NamedTuple):
    """The kind of a launch: all launches of a kind fit the same nodes and belong to the same class."""

    resources: ResourceRequest
    avoid: frozenset[str]
    queue_class: QueueClass

    @classmethod
    def of(cls, job: Waiting) -> _Kind:
        return cls(job.resources, job.avoid, job.queue_class)


class Pick(NamedTuple):
    """A launch to start, and its nodes. ``overtaken``: key of the launch that it overtakes without
    delaying it; empty if it overtakes none.
    """

    job: Waiting
    nodes: Nodes
    overtaken: str = ""


class Queue:
    """Waiting launches in the order of admission, grouped by kind.

    Launches of one kind fit the same nodes, so looking at 10,000 launches takes no longer than
    looking at their few kinds.
    """

    def __init__(self, jobs: Iterable[Waiting] = ()) -> None:
        self._jobs_of: dict[_Kind, list[Waiting]] = {}  # in order
        for job in jobs:
            self.add(job)

    def add(self, job: Waiting) -> None:
        jobs = self._jobs_of.setdefault(_Kind.of(job), [])
        insort(jobs, job, key=attrgetter("order"))

    def remove(self, job: Waiting) -> None:
        kind = _Kind.of(job)
        jobs = self._jobs_of[kind]
        del jobs[bisect_left(jobs, job.order, key=attrgetter("order"))]
        if not jobs:
            del self._jobs_of[kind]

    def by_kind(self) -> list[list[Waiting]]:
        """The launches of each kind in order; kinds in the order of their first launches."""
        return sorted(self._jobs_of.values(), key=lambda jobs: jobs[0].order)

    def __iter__(self) -> Iterator[Waiting]:
        return heapq.merge(*self._jobs_of.values(), key=attrgetter("order"))

    def in_turn(self, closed: Collection[ResourceRequest]) -> Iterator[Waiting]:
        """The launches class by class, and within a class one of each resource request in turn: the
        first launch of every request in the order of admission, then the second launch of every
        request, and so on. This is the order in which nodes are asked for, not that of admission.

        ``closed``: requests whose launches are passed over. The caller may add to it between two
        launches.
        """
        alike: dict[tuple[ResourceRequest, QueueClass], list[list[Waiting]]] = {}
        for kind, jobs in self._jobs_of.items():
            alike.setdefault((kind.resources, kind.queue_class), []).append(jobs)

        def turns(jobs_of_kinds: list[list[Waiting]]) -> Iterator[_Turn]:
            """The launches of one request and class, until that request is closed."""
            jobs = heapq.merge(*jobs_of_kinds, key=attrgetter("order"))
            for number, job in enumerate(jobs):
                if job.resources in closed:
                    return
                yield _Turn(job.queue_class, number, job.order, job)

        for turn in heapq.merge(*map(turns, alike.values())):
            # merge holds one launch of each request ahead: its request may be closed by now
            if turn.job.resources not in closed:
                yield turn.job


class _Turn(NamedTuple):
    """A launch in ``Queue.in_turn``; sorted by its class, then by its number among its equals."""

    queue_class: QueueClass
    number: int
    order: tuple[QueuePosition, str]
    job: Waiting


def held(reservations: Iterable[Reservation]) -> set[str]:
    """Ids of the nodes that are reserved."""
    nodes: set[str] = set()
    for reservation in reservations:
        nodes.update(*reservation.nodes)
    return nodes


def fit(
    resources: ResourceRequest,
    machines: Sequence[Machine],
    reservations: Sequence[Reservation],
    avoid: frozenset[str] = frozenset(),
    most_nodes: float = math.inf,
) -> Nodes | None:
    """Free nodes for every replica, best fit first and nodes to ``avoid`` last; None when the
    replicas do not fit now. An endpoint needs no nodes, but only one launch at a time may load it.
    """
    if not resources.replicas:
        endpoints = {other.resources.endpoint for other in reservations if other.resources.endpoint}
        return None if resources.endpoint in endpoints else ()
    free = _free(resources, machines, reservations)
    chosen: dict[int, tuple[str, ...]] = {}  # by index of the replica
    own: set[str] = set()
    for index in resources.by_size():
        bundles = resources.replicas[index]
        available = free
        is_router = not any(bundle.gpus or bundle.cpus for bundle in bundles)
        if own and is_router:  # a router runs on a node of its replicas
            available = {node: left for node, left in free.items() if node in own}
        nodes = _replica(bundles, available, avoid)
        if nodes is None:
            return None
        for node, bundle in zip(nodes, bundles, strict=True):
            free[node] = free[node].without(bundle)
        chosen[index] = nodes
        own.update(nodes)
    if most_nodes < math.inf and len(held(reservations) | own) > most_nodes:
        return None
    return tuple(chosen[index] for index in range(len(chosen)))


class _Free(NamedTuple):
    """The GPUs and CPU cores that are left on a node."""

    gpus: int
    cpus: float

    def without(self, bundle: Bundle) -> _Free:
        return _Free(self.gpus - bundle.gpus, self.cpus - bundle.cpus)

    def holds(self, bundle: Bundle) -> bool:
        return self.gpus >= bundle.gpus and self.cpus >= bundle.cpus


def _free(
    resources: ResourceRequest, machines: Sequence[Machine], reservations: Sequence[Reservation]
) -> dict[str, _Free]:
    """What is left of each node that a launch may use; by node id."""
    free = {machine.node_id: _Free(machine.gpus, machine.cpus) for machine in machines}
    address = {machine.node_id: machine.address for machine in machines}
    # addresses of hosts that the launch cannot share: it or another one there wants its host alone
    closed_hosts: set[str] = set()
    for reservation in reservations:
        for node, bundle in _bundles_by_node(reservation):
            if node not in free:
                continue
            free[node] = free[node].without(bundle)
            if resources.exclusive or reservation.resources.exclusive:
                closed_hosts.add(address[node])
    for machine in machines:
        if machine.address in closed_hosts or not resources.accepts(machine):
            del free[machine.node_id]
    return free


def _bundles_by_node(reservation: Reservation) -> Iterator[tuple[str, Bundle]]:
    """Every node id of a reservation, with the bundle that it holds there."""
    replicas = zip(reservation.nodes, reservation.resources.replicas, strict=True)
    for nodes, bundles in replicas:
        yield from zip(nodes, bundles, strict=True)


def _replica(
    bundles: Sequence[Bundle], free: dict[str, _Free], avoid: frozenset[str]
) -> tuple[str, ...] | None:
    """Distinct nodes for the bundles of one replica, the fullest that still fit; None when there
    are too few.
    """
    unused = dict(free)
    nodes = []
    for bundle in bundles:
        fitting = [node for node, capacity in unused.items() if capacity.holds(bundle)]
        if not fitting:
            return None
        # fewest free GPUs first: a CPU bundle goes where no GPU is left idle beside it
        node = min(fitting, key=lambda name: (name in avoid, unused[name], name))
        nodes.append(node)
        del unused[node]
    return tuple(nodes)


def choose(
    queue: Queue,
    machines: Sequence[Machine],
    reservations: Sequence[Reservation],
    now_s: float,
    most_nodes: float = math.inf,
) -> Pick | None:
    """The next launch to start and its nodes; None when none fits before something ends.

    The head of the queue is the first launch that does not fit now but will once others have ended.
    Another launch overtakes it only on hosts that the head will not need, or if it is expected to
    end before the head can start.
    """
    head: _HeadStart | None = None
    head_key = ""
    best: Pick | None = None
    for jobs in queue.by_kind():
        job = jobs[0]
        nodes = fit(job.resources, machines, reservations, job.avoid, most_nodes)
        if nodes is None:
            if head is None:
                head = _head_start(job.resources, machines, reservations, most_nodes)
                head_key = job.key
            continue
        if head is None:
            return Pick(job, nodes)
        too_many = len(held(reservations).union(head.nodes, *nodes)) > most_nodes
        if too_many or not _clear_of(nodes, head.nodes, machines):
            ends_in_time = _first_to_end_by(head.from_s, jobs, now_s)
            if ends_in_time is None:
                continue
            job = ends_in_time
        if best is None or job.order < best.job.order:
            best = Pick(job, nodes, head_key)
    return best


def _first_to_end_by(limit_s: float, jobs: Sequence[Waiting], now_s: float) -> Waiting | None:
    """The first of these launches that is over by ``limit_s`` if it starts now."""
    for job in jobs:
        if now_s + job.estimate_s <= limit_s:
            return job
    return None


def worth_adding(
    queue: Queue,
    machines: Sequence[Machine],
    reservations: Sequence[Reservation],
    budget_left: Spending,
    most_nodes: float = math.inf,
    most_launches: float = math.inf,
    types: Sequence[NodeType] = (),
) -> list[Waiting]:
    """The waiting launches that no node can take now and that ``budget_left`` still pays for:
    one of each resource request in turn, because nodes may come for one request and none for
    another.

    At most ``most_launches`` are listed. Their nodes stay within ``most_nodes`` and within what may
    be added of the ``types`` that fit. The first launch of each request is an exception: it is
    listed even if no more nodes of its types may be added. Launches that fit beside those that hold
    nodes count as started: no node has to be added for them. Launches that share nodes also share
    the nodes that are added.
    """
    present = _PresentNodes(machines, list(reservations), most_nodes)
    added = _AddedNodes(machines, types, most_nodes)
    wanted: list[Waiting] = []
    closed: set[ResourceRequest] = set()  # requests for which no more nodes may be added
    for job in queue.in_turn(closed):
        is_spent = budget_left.gpu_s <= 0 or budget_left.usd <= 0
        if is_spent or len(wanted) >= most_launches:
            break
        budget_left -= job.cost
        if not job.resources.replicas or present.take(job):
            continue
        if added.take(job.resources, len(held(present.started))):
            wanted.append(job)
        else:
            closed.add(job.resources)
    return wanted


@dataclass(slots=True)
class _PresentNodes:
    """The nodes of the cluster. ``started``: what launches hold or will hold of them."""

    machines: Sequence[Machine]
    started: list[Reservation]
    most_nodes: float
    # requests, each with the nodes to avoid, for which there is no more room
    full: set[tuple[ResourceRequest, frozenset[str]]] = field(default_factory=set)

    def take(self, job: Waiting) -> bool:
        """Whether the launch fits; if so, it counts as started from now on."""
        if (job.resources, job.avoid) in self.full:
            return False
        nodes = fit(job.resources, self.machines, self.started, job.avoid, self.most_nodes)
        if nodes is None:
            self.full.add((job.resources, job.avoid))
            return False
        self.started.append(Reservation(job.resources, nodes, math.inf))
        return True


@dataclass(slots=True)
class _AddedNodes:
    """The nodes that an autoscaler with these ``types`` is asked to add to ``machines``.

    ``nodes``: added so far; ``reservations``: what launches will hold of them.
    """

    machines: Sequence[Machine]
    types: Sequence[NodeType]
    most_nodes: float
    nodes: list[Machine] = field(default_factory=list)
    reservations: list[Reservation] = field(default_factory=list)
    types_for: dict[ResourceRequest, tuple[str, ...]] = field(default_factory=dict)
    # by names of types: how many more nodes of these types may be added
    left_of_types: dict[tuple[str, ...], float] = field(default_factory=dict)

    def take(self, resources: ResourceRequest, held_nodes: int) -> bool:
        """Add the nodes that a launch takes, unless it fits on those that were added for others.

        Returns False if no more nodes may be added for such a launch. ``held_nodes``: how many of
        the present nodes launches hold.
        """
        nodes = None if resources.exclusive else fit(resources, self.nodes, self.reservations)
        if nodes is None:
            more = self._more_for(resources, held_nodes)
            if more is None:
                return False
            self.nodes += more
            nodes = fit(resources, more, ())
        if nodes:
            self.reservations.append(Reservation(resources, nodes, math.inf))
        return True

    def _more_for(self, resources: ResourceRequest, held_nodes: int) -> list[Machine] | None:
        """The nodes to add for a launch of this request; None if they would be too many."""
        name = f"added{len(self.nodes)}"
        more = resources.as_machines(self.machines, name, self.types, self.most_nodes)
        is_first = resources not in self.types_for
        if is_first:
            to_come = resources.nodes_to_come(self.machines, self.types)
            self.types_for[resources] = to_come.types
            # requests that fit the same types share what may be added of these
            self.left_of_types.setdefault(to_come.types, to_come.most)
        types = self.types_for[resources]
        exceeds_types = len(more) > self.left_of_types[types]
        if exceeds_types and not is_first:
            return None
        nodes_in_all = held_nodes + len(self.nodes) + len(more)
        if nodes_in_all > self.most_nodes:
            return None
        self.left_of_types[types] -= len(more)
        return more


@dataclass(frozen=True, slots=True)
class NodesToAskFor:
    """The footprints to ask an autoscaler for, and the resource requests that they are for."""

    footprints: list[Footprint]
    requests: set[ResourceRequest]


def nodes_to_ask_for(
    jobs: Iterable[Waiting],
    machines: Sequence[Machine],
    types: Sequence[NodeType],
    most_nodes: float,
) -> NodesToAskFor:
    """What to ask an autoscaler for, so that it adds nodes for these launches.

    There are at most MOST_GROUPS footprints. The first launch gets as many of its footprints as
    that allows; every other launch gets all of its footprints or none.
    """
    footprints: list[Footprint] = []
    requests: set[ResourceRequest] = set()
    nodes_for: dict[ResourceRequest, list[Footprint]] = {}
    for job in jobs:
        resources = job.resources
        if resources not in nodes_for:
            nodes_for[resources] = resources.nodes_worth_adding(machines, types, most_nodes)
        more = nodes_for[resources]
        if not footprints or len(footprints) + len(more) <= MOST_GROUPS:
            footprints += more[:MOST_GROUPS]
            requests.add(resources)
    return NodesToAskFor(footprints, requests)


class _HeadStart(NamedTuple):
    """From when on, and on which nodes, the head of the queue will have room."""

    from_s: float
    nodes: set[str]


def _head_start(
    resources: ResourceRequest,
    machines: Sequence[Machine],
    reservations: Sequence[Reservation],
    most_nodes: float,
) -> _HeadStart | None:
    """When and on which nodes a launch will fit if others end as expected; None if it never will
    on these machines.
    """
    by_end = sorted(reservations, key=lambda reservation: reservation.end_s)

    def nodes_after(ended: int) -> Nodes | None:
        """The launch's nodes once the first ``ended`` of the others have ended."""
        return fit(resources, machines, by_end[ended:], most_nodes=most_nodes)

    def fits_after(ended: int) -> bool:
        return nodes_after(ended) is not None

    nodes_after_all = nodes_after(len(by_end))
    if nodes_after_all is None or not by_end:
        return None
    # The more of the others have ended, the more room there is. So bisection finds the fewest that
    # must end: all of them, if no smaller number in this range is enough.
    fewer_than_all = range(1, len(by_end))
    fewest = 1 + bisect_left(fewer_than_all, True, key=fits_after)
    nodes = nodes_after(fewest) or nodes_after_all
    return _HeadStart(by_end[fewest - 1].end_s, set(itertools.chain(*nodes)))


def _clear_of(nodes: Nodes, kept: set[str], machines: Sequence[Machine]) -> bool:
    """Whether ``nodes`` are on other hosts than ``kept``."""
    address = {machine.node_id: machine.address for machine in machines}
    kept_hosts = {address[node] for node in kept}
    return all(address[node] not in kept_hosts for node in itertools.chain(*nodes))
