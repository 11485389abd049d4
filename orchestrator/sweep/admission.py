"""Pure functions of the queue, the machines and the running launches: ``choose`` picks the next
launch and its nodes, ``worth_adding`` says for which launches nodes should be added, ``asked_for``
which.

Order: multi-node launches first, then those predicted best, then the longest. The head of the queue
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
from orchestrator.plan.order import place
from orchestrator.sweep.need import Need

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
    """A launch that holds nodes. ``end_s``: when it is expected to give them back, on the caller's
    clock.
    """

    need: Need
    nodes: Nodes
    end_s: float


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
        self._kinds: dict[tuple[Need, frozenset[str], int], list[Waiting]] = {}
        for job in jobs:
            self.add(job)

    def add(self, job: Waiting) -> None:
        insort(
            self._kinds.setdefault((job.need, job.avoid, job.late), []),
            job,
            key=attrgetter("order"),
        )

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

    def in_turn(self, closed: Collection[Need]) -> Iterator[Waiting]:
        """One launch of each need in turn, the first in the order of admission; ``late`` ones last.
        Launches of needs that become ``closed`` meanwhile are passed over.
        """
        same: dict[tuple[Need, int], list[list[Waiting]]] = {}
        for (need, _, late), kind in self._kinds.items():
            same.setdefault((need, late), []).append(kind)

        def turns(kinds: list[list[Waiting]]) -> Iterator[tuple[tuple[int, int, object], Waiting]]:
            jobs = takewhile(
                lambda job: job.need not in closed, heapq.merge(*kinds, key=attrgetter("order"))
            )
            return (((job.late, turn, job.order), job) for turn, job in enumerate(jobs))

        every = (job for _, job in heapq.merge(*map(turns, same.values())))
        return (job for job in every if job.need not in closed)


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
    """Free nodes for every replica, best fit first and ``avoid`` last; None when it does not fit
    now.
    """
    if not need.replicas:
        return (
            None
            if any(other.need.endpoint == need.endpoint and need.endpoint for other in running)
            else ()
        )
    free = _free(need, machines, running)
    chosen: dict[int, tuple[str, ...]] = {}
    for at in need.by_size():
        bundles, own = need.replicas[at], {node for nodes in chosen.values() for node in nodes}
        # a router, on a node of its replicas
        guest = own and not any(bundle.gpus or bundle.cpus for bundle in bundles)
        nodes = _replica(
            bundles, {node: free[node] for node in free if node in own} if guest else free, avoid
        )
        if nodes is None:
            return None
        for node, bundle in zip(nodes, bundles, strict=True):
            gpus, cpus = free[node]
            free[node] = (gpus - bundle.gpus, cpus - bundle.cpus)
        chosen[at] = nodes
    if most_nodes < math.inf and len(held(running).union(*chosen.values())) > most_nodes:
        return None
    return tuple(chosen[at] for at in range(len(chosen)))


def _free(
    need: Need, machines: Sequence[Machine], running: Sequence[Running]
) -> dict[str, tuple[int, float]]:
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
    """Distinct nodes for the bundles of one replica, the fullest that still fit; None when there
    are too few.
    """
    left = dict(free)
    nodes = []
    for bundle in bundles:
        fitting = [
            node
            for node, (gpus, cpus) in left.items()
            if gpus >= bundle.gpus and cpus >= bundle.cpus
        ]
        if not fitting:
            return None
        # fewest free GPUs first: a CPU bundle goes where no GPU is left idle beside it
        node = min(fitting, key=lambda name: (name in avoid, left[name][0], left[name][1], name))
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
        if (
            not _clear_of(nodes, kept, machines)
            or len(held(running).union(kept, *nodes)) > most_nodes
        ):
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
    types: Sequence[NodeType] = (),
) -> list[Waiting]:
    """The waiting launches that no node can take now and the budget ``left`` still pays for: one of
    each need in turn, because nodes may come for one and none for another.

    At most ``most_launches``, and none that would exceed ``most_nodes`` or, but for the first of
    each need, what may be added of the ``types`` that fit. Launches that fit beside what runs count
    as started: no node has to be added for them. Launches that share nodes share those that are
    added, too.
    """
    started, wanted, full = list(running), list[Waiting](), set[tuple[Need, frozenset[str]]]()
    # nodes for what is wanted, and what would run there
    added, there = list[Machine](), list[Running]()
    # and how many more of these
    types_of, may_come = dict[Need, tuple[str, ...]](), dict[tuple[str, ...], float]()
    closed = set[Need]()  # get no more
    for job in queue.in_turn(closed):
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
        if (nodes := None if job.need.exclusive else fit(job.need, added, there)) is None:
            more = job.need.as_machines(machines, f"added{len(added)}", types, most_nodes)
            if first := job.need not in types_of:
                types_of[job.need], number = job.need.may_come(machines, types)
                may_come.setdefault(types_of[job.need], number)
            too_many = len(more) > may_come[types_of[job.need]] and not first
            if too_many or len(held(started)) + len(added) + len(more) > most_nodes:
                closed.add(job.need)
                continue
            may_come[types_of[job.need]] -= len(more)
            added += more
            nodes = fit(job.need, more, ())
        there += [Running(job.need, nodes, math.inf)] if nodes else []
        wanted.append(job)
    return wanted


def asked_for(
    jobs: Iterable[Waiting],
    machines: Sequence[Machine],
    types: Sequence[NodeType],
    most_nodes: float,
) -> tuple[list[Footprint], set[Need]]:
    """What to ask an autoscaler for, and the needs that this is for. At most MOST_GROUPS
    footprints: those of the first launch as far as that allows, of the others all or none.
    """
    asked, needs, each = list[Footprint](), set[Need](), dict[Need, list[Footprint]]()
    for need in (job.need for job in jobs):
        if need not in each:
            each[need] = need.nodes_worth_adding(machines, types, most_nodes)
        if not asked or len(asked) + len(each[need]) <= MOST_GROUPS:
            asked += each[need][:MOST_GROUPS]
            needs.add(need)
    return asked, needs


def _reserve(
    need: Need, machines: Sequence[Machine], running: Sequence[Running], most_nodes: float
) -> tuple[float, set[str]] | None:
    """When and on which nodes the need will fit if launches end as expected; None if it never will
    on these.
    """
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
