"""Who may start next and on which nodes, and which nodes are worth adding: two pure functions.

Both look at the queue, the machines and what runs. Order: multi-node gangs first, then the longest estimated; the head
of the queue gets a reservation and others overtake it only where they do not delay it (EASY backfill). Ray's own queue
has no look-ahead: small groups would overtake a large one for ever.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.cluster.base import Bundle, Footprint, Machine

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
    """What one launch takes: ``bundles`` of a replica, times ``replicas``. No bundles: an endpoint, not placed."""

    bundles: tuple[Bundle, ...]
    replicas: int = 1
    labels: tuple[tuple[str, str], ...] = ()
    exclusive: bool = True  # no other launch on its hosts
    endpoint: str = ""  # two launches never load the same URL at once
    gpus_per_node: int = 0  # of its hardware; 0: not known

    def footprints(self) -> list[Footprint]:
        """What it takes, replica by replica."""
        return [Footprint(self.bundles, self.labels)] * self.replicas

    def nodes_worth_adding(self, machines: Sequence[Machine]) -> list[Footprint]:
        """The same as whole nodes for a launch that shares none: an autoscaler would put several on one.

        Nodes are as large as its hardware says, else as the smallest of ``machines`` that could hold it.
        """
        bundle = self.bundles[0]
        if not self.exclusive or not bundle.gpus:
            return self.footprints()
        seen = [one.gpus for one in machines if one.gpus >= bundle.gpus and _labelled(one, self)]
        gpus = max(bundle.gpus, self.gpus_per_node or min(seen, default=0))
        return [Footprint((Bundle(gpus, bundle.cpus),) * len(self.bundles), self.labels)] * self.replicas


@dataclass(frozen=True, slots=True)
class Waiting:
    """A launch in the queue."""

    key: str
    need: Need
    estimate_s: float
    last: bool = False  # risky ones wait until the others are through
    avoid: frozenset[str] = frozenset()  # nodes on which it failed through no fault of its own: taken last
    cost: Cost = Cost()  # expected


@dataclass(frozen=True, slots=True)
class Running:
    """A launch that holds nodes. ``end_s``: when it is expected to give them back, on the caller's clock."""

    need: Need
    nodes: Nodes
    end_s: float


def ordered(queue: Sequence[Waiting]) -> list[Waiting]:
    """The queue in the order of admission."""
    return sorted(queue, key=lambda job: (job.last, len(job.need.bundles) <= 1, -job.estimate_s, job.key))


def fit(
    need: Need, machines: Sequence[Machine], running: Sequence[Running], avoid: frozenset[str] = frozenset()
) -> Nodes | None:
    """Nodes for every replica on what is free, best fit first, ``avoid`` last; None when it does not fit now."""
    if not need.bundles:
        return None if any(other.need.endpoint == need.endpoint and need.endpoint for other in running) else ()
    free = _free(need, machines, running)
    chosen: list[tuple[str, ...]] = []
    for _ in range(need.replicas):
        nodes = _replica(need.bundles, free, avoid)
        if nodes is None:
            return None
        for node, bundle in zip(nodes, need.bundles, strict=True):
            gpus, cpus = free[node]
            free[node] = (gpus - bundle.gpus, cpus - bundle.cpus)
        chosen.append(nodes)
    return tuple(chosen)


def _free(need: Need, machines: Sequence[Machine], running: Sequence[Running]) -> dict[str, tuple[int, float]]:
    """GPUs and CPUs left on the nodes this need may use."""
    address = {machine.node_id: machine.address for machine in machines}
    used: dict[str, tuple[int, float]] = {}
    closed: set[str] = set()
    for launch in running:
        for replica in launch.nodes:
            for node, bundle in zip(replica, launch.need.bundles, strict=True):
                gpus, cpus = used.get(node, (0, 0.0))
                used[node] = (gpus + bundle.gpus, cpus + bundle.cpus)
                if need.exclusive or launch.need.exclusive:
                    closed.add(address.get(node, node))
    return {
        machine.node_id: (
            machine.gpus - used.get(machine.node_id, (0, 0.0))[0],
            machine.cpus - used.get(machine.node_id, (0, 0.0))[1],
        )
        for machine in machines
        if machine.address not in closed and _labelled(machine, need)
    }


def _labelled(machine: Machine, need: Need) -> bool:
    return all(machine.labels.get(key) == value for key, value in need.labels)


def _replica(
    bundles: Sequence[Bundle], free: dict[str, tuple[int, float]], avoid: frozenset[str]
) -> tuple[str, ...] | None:
    """Distinct nodes for the bundles of one replica, the fullest that still fit."""
    left = dict(free)
    nodes = []
    for bundle in bundles:
        fitting = [node for node, (gpus, cpus) in left.items() if gpus >= bundle.gpus and cpus >= bundle.cpus]
        if not fitting:
            return None
        # GPUs decide on GPU bundles; a CPU bundle goes where no GPU is idle beside it
        node = min(fitting, key=lambda name: (name in avoid, left[name][0], left[name][1], name))
        nodes.append(node)
        del left[node]
    return tuple(nodes)


def choose(
    queue: Sequence[Waiting], machines: Sequence[Machine], running: Sequence[Running], now_s: float
) -> tuple[Waiting, Nodes] | None:
    """The next launch to start and its nodes, or None: wait until something ends."""
    reservation: tuple[float, set[str]] | None = None
    for job in ordered(queue):
        nodes = fit(job.need, machines, running, job.avoid)
        if nodes is None:
            if reservation is None and fit(job.need, machines, ()) is not None:
                reservation = _reserve(job.need, machines, running)
            continue
        if (
            reservation is None
            or now_s + job.estimate_s <= reservation[0]
            or _clear_of(nodes, reservation[1], machines)
        ):
            return job, nodes
    return None


def worth_adding(
    queue: Sequence[Waiting], machines: Sequence[Machine], running: Sequence[Running], left: Cost
) -> list[Waiting]:
    """What of the queue no node of now can take at present, as long as something is ``left`` of the budget for it.

    In the order of admission. What fits beside what runs is counted as started: nothing has to be added for it.
    """
    started, wanted = list(running), []
    for job in ordered(queue):
        if left.gpu_s <= 0 or left.usd <= 0:
            break  # as no launch begins on a budget that is used up
        left -= job.cost
        nodes = fit(job.need, machines, started, job.avoid)
        if nodes is not None:
            started.append(Running(job.need, nodes, math.inf))
        elif job.need.bundles:
            wanted.append(job)
    return wanted


def _reserve(need: Need, machines: Sequence[Machine], running: Sequence[Running]) -> tuple[float, set[str]]:
    """When the need will fit if launches end as expected, and on which hosts."""
    address = {machine.node_id: machine.address for machine in machines}
    left = sorted(running, key=lambda launch: launch.end_s)
    while left:
        ended = left.pop(0)
        nodes = fit(need, machines, left)
        if nodes is not None:
            return ended.end_s, {address[node] for replica in nodes for node in replica}
    return float("inf"), set()


def _clear_of(nodes: Nodes, hosts: set[str], machines: Sequence[Machine]) -> bool:
    address = {machine.node_id: machine.address for machine in machines}
    return all(address[node] not in hosts for replica in nodes for node in replica)
