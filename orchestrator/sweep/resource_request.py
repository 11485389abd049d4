"""What one launch takes of a cluster, which machines suit it, and which nodes an autoscaler is
asked for.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from orchestrator.base.text import counted, listed
from orchestrator.catalog.accelerators import find, may_be
from orchestrator.cluster.base import (
    ACCELERATOR_LABEL,
    NODE_GROUP,
    Bundle,
    Footprint,
    Growth,
    Machine,
    NodeType,
)
from orchestrator.engines.registry import ENGINES
from orchestrator.plan.model import Deployment
from orchestrator.spec.address import parse_address, parse_url
from orchestrator.spec.settings import ROUTER
from orchestrator.spec.stages import PlannedSettings

ROOM_S = 5.0  # seconds that nodes of a starting cluster get to join it
RETURN_S = 60.0  # seconds that a lost node gets to come back
NO_TYPE_S = 5.0  # seconds in which an autoscaler without a fitting node type may be given one
# The placement timeout is this much longer while nodes are being set up: image and weights take
# time, too.
SET_UP_FACTOR = 4.0


@dataclass(frozen=True, slots=True)
class NodesToCome:
    """Nodes that an autoscaler may still add for a request.

    ``types``: the names of their types; empty where no type is known that fits. ``most``: how many
    nodes of these types; infinite where no type is known that fits.
    """

    types: tuple[str, ...]
    most: float


@dataclass(frozen=True, slots=True)
class WaitLimit:
    """How many seconds a request waits for nodes that can hold it. ``reason``: why there are none
    when they are over.
    """

    seconds: float
    reason: str


@dataclass(frozen=True, slots=True, order=True)
class AmbiguousTypes:
    """Why an autoscaler may add nodes with other GPUs than those asked for, and what to do."""

    problem: str
    remedy: str


@dataclass(frozen=True, slots=True, order=True)
class _NodeSize:
    """GPUs and CPU cores of one node. Sizes are ordered by GPUs, then by cores."""

    gpus: int
    cpus: float = math.inf


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """What one launch takes: the bundles of every replica. An endpoint has none, because it is not
    placed.
    """

    replicas: tuple[tuple[Bundle, ...], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    exclusive: bool = True  # no other launch on its hosts
    endpoint: str = ""  # two launches never load the same URL at once
    gpus_per_node: int = 0  # as the hardware says; 0: unknown
    accelerator: str = ""  # its nodes must have no label of another accelerator; empty: any will do

    def accepts(self, machine: Machine) -> bool:
        """Whether a machine has the labels, and no label of another accelerator."""
        has_labels = all(machine.labels.get(key) == value for key, value in self.labels)
        return has_labels and not self._other_accelerator(machine)

    def _other_accelerator(self, machine: Machine) -> str:
        """The machine's label of another accelerator; empty if it has none."""
        label = machine.labels.get(ACCELERATOR_LABEL, "")
        if label and self.accelerator and not may_be(self.accelerator, label):
            return label
        return ""

    def footprints(self) -> list[Footprint]:
        """One footprint per replica."""
        return [Footprint(bundles, self.labels) for bundles in self.replicas]

    def by_size(self) -> list[int]:
        """Indices of the replicas, the hardest to place first."""

        def largest_first(index: int) -> tuple[int, int]:
            bundles = self.replicas[index]
            return -len(bundles), -bundles[0].gpus

        return sorted(range(len(self.replicas)), key=largest_first)

    @property
    def _bundles(self) -> Iterator[Bundle]:
        """The bundles of all replicas."""
        return itertools.chain.from_iterable(self.replicas)

    @property
    def is_gang(self) -> bool:
        """Whether some replica spans several nodes."""
        return any(len(bundles) > 1 for bundles in self.replicas)

    @property
    def gpus_on_a_node(self) -> int:
        """The most GPUs that a replica takes of one node."""
        return max((bundle.gpus for bundle in self._bundles), default=0)

    @property
    def cpus_on_a_node(self) -> float:
        """The most CPU cores that a replica takes of one node."""
        return max((bundle.cpus for bundle in self._bundles), default=0.0)

    def __str__(self) -> str:
        """The request in words; equal replicas are counted."""
        sizes = []
        for footprint, number in Counter(map(str, self.footprints())).items():
            sizes.append(footprint if number == 1 else f"{number} x {footprint}")
        kinds = [self.accelerator] if self.accelerator else []
        kinds += [f"{key}={value}" for key, value in self.labels]
        text = " + ".join(sizes)
        return f"{text} ({', '.join(kinds)})" if kinds else text

    def nodes_worth_adding(
        self,
        machines: Sequence[Machine],
        types: Sequence[NodeType] = (),
        most_nodes: float = math.inf,
    ) -> list[Footprint]:
        """The footprints to ask an autoscaler with these ``types`` for.

        An exclusive launch asks for whole nodes, because an autoscaler would put several smaller
        footprints on one node. ``most_nodes``: see ``_whole_nodes``.

        An autoscaler adds no node for a footprint that a present node can hold, and it does not
        compare accelerators. So the footprints exclude the accelerators of the present machines
        that this launch does not accept.
        """
        footprints = self.footprints()
        if self.exclusive:
            footprints = self._whole_nodes(machines, types, most_nodes)
        others = {self._other_accelerator(machine) for machine in machines} - {""}
        if not others or ACCELERATOR_LABEL in dict(self.labels):
            return footprints
        labels = (*self.labels, (ACCELERATOR_LABEL, f"!in({','.join(sorted(others))})"))
        return [Footprint(footprint.bundles, labels) for footprint in footprints]

    def could_use_type(self, kind: NodeType) -> bool:
        """Whether an autoscaler may add nodes of this type for the request, by their size and
        labels, as far as these are known.

        Labels that Ray itself gives nodes when they start are not listed in any type.
        """
        bundles: list[Bundle] = []
        for footprint in self.nodes_worth_adding(machines=()):
            bundles += footprint.bundles
        if kind.gpus < max(bundle.gpus for bundle in bundles):
            return False
        if kind.cpus < max(bundle.cpus for bundle in bundles):
            return False
        if kind.labels is None:
            return True
        for key, value in self.labels:
            is_given_by_ray = key.startswith("ray.io/") and key not in kind.labels
            if not is_given_by_ray and kind.labels.get(key) != value:
                return False
        return True

    def nodes_to_come(self, machines: Sequence[Machine], types: Sequence[NodeType]) -> NodesToCome:
        """The nodes that an autoscaler with these ``types`` may still add for it."""
        addable = self._addable(types)
        if not addable:
            return NodesToCome((), math.inf)
        names = tuple(kind.name for kind in addable)
        present = [machine for machine in machines if machine.labels.get(NODE_GROUP) in names]
        return NodesToCome(names, sum(kind.most for kind in addable) - len(present))

    def _addable(self, types: Sequence[NodeType]) -> list[NodeType]:
        """The types of which an autoscaler may add nodes for it."""
        return [kind for kind in types if kind.most > 0 and self.could_use_type(kind)]

    def ambiguous_types(self, types: Sequence[NodeType]) -> AmbiguousTypes | None:
        """Why an autoscaler may add nodes with other GPUs, again and again; None if it will not,
        or if that is unknown.

        An autoscaler is asked by size and labels alone, so that it may choose any of the types that
        fit. Nodes that it adds in vain leave once they have been idle, and are added again.
        """
        if not (self.gpus_on_a_node and self.accelerator):
            return None
        fitting = [kind for kind in types if self.could_use_type(kind)]
        if len(fitting) < 2:
            return None
        # The labels of the request may tell types apart whose own labels are not known.
        compared = [kind for kind in fitting if kind.labels is not None or not self.labels]
        if not compared:
            return None
        accelerators = {_accelerator_of(kind) for kind in compared}
        are_all_the_same = len(accelerators) == 1 and "" not in accelerators
        if are_all_the_same:
            return None
        kinds = listed([kind.name for kind in fitting], 5)
        return AmbiguousTypes(
            f"for {self.accelerator} the autoscaler may add nodes of {kinds}: no label of the "
            "hardware tells them apart",
            "give 'labels' one that only the right ones have",
        )

    def least_nodes(
        self,
        machines: Sequence[Machine],
        types: Sequence[NodeType] = (),
        most_nodes: float = math.inf,
    ) -> int:
        """How many nodes the launch takes if nothing else runs on them, as far as their size is
        known. ``most_nodes``: see ``_whole_nodes``.
        """
        return len(self._gpus_of_nodes(machines, types, most_nodes))

    def as_machines(
        self,
        machines: Sequence[Machine],
        name: str,
        types: Sequence[NodeType] = (),
        most_nodes: float = math.inf,
    ) -> list[Machine]:
        """The ``least_nodes`` that it takes, as machines ``<name>.0``, ``<name>.1`` and so on. They
        have endless cores, so that other launches may share them.
        """
        labels = {ACCELERATOR_LABEL: self.accelerator} if self.accelerator else {}
        labels |= dict(self.labels)
        nodes = []
        for index, gpus in enumerate(self._gpus_of_nodes(machines, types, most_nodes)):
            node = f"{name}.{index}"
            nodes.append(Machine(node, node, gpus, math.inf, labels))
        return nodes

    def _gpus_of_nodes(
        self, machines: Sequence[Machine], types: Sequence[NodeType], most_nodes: float
    ) -> list[int]:
        """The GPUs of each of the ``least_nodes``."""
        gpus: list[int] = []
        for footprint in self._whole_nodes(machines, types, most_nodes):
            gpus += [bundle.gpus for bundle in footprint.bundles]
        if self.gpus_on_a_node:
            return gpus
        # without GPUs, replicas may share nodes: that over most nodes decides how many
        most_ranks = max(map(len, self.replicas), default=0)
        return gpus[:most_ranks]

    def patience(
        self,
        machines: Sequence[Machine],
        growth: Growth,
        was_placeable: bool,
        most_nodes: float,
        timeout_s: float,
    ) -> WaitLimit:
        """How long to wait for nodes that can hold it.

        ``was_placeable``: some nodes could hold it once. ``timeout_s``: seconds that an autoscaler
        gets.
        """
        nodes = self.least_nodes(machines, growth.types, most_nodes)
        if nodes > most_nodes:
            reason = f"it takes {counted(nodes, 'node')} where --max-nodes allows {most_nodes:g}"
            return WaitLimit(0.0, reason)
        if not growth.may_grow:
            return WaitLimit(RETURN_S if was_placeable else ROOM_S, "it has no autoscaler")
        reason = growth.why_no_nodes()
        says = f" ({reason})" if reason else ""
        wanted = self.nodes_worth_adding(machines, growth.types, most_nodes)
        if growth.impossible.intersection(wanted):
            reason = f"its autoscaler has no type of node that could{says}"
            return WaitLimit(min(NO_TYPE_S, timeout_s), reason)
        limit_s = timeout_s * SET_UP_FACTOR if growth.coming else timeout_s
        return WaitLimit(limit_s, f"none was added within {limit_s:g} s{says}")

    def _whole_nodes(
        self, machines: Sequence[Machine], types: Sequence[NodeType], most_nodes: float
    ) -> list[Footprint]:
        """Whole nodes of one size that hold all replicas.

        The size is the first of ``_node_sizes`` of which at most ``most_nodes`` nodes are needed, or
        else the one of which the fewest are needed.
        """
        sizes = self._node_sizes(machines, types)
        if most_nodes == math.inf:
            return self._pack_onto_nodes(sizes[0])

        def count_above_most(footprints: list[Footprint]) -> float:
            """The number of nodes, but at least ``most_nodes``: all allowed numbers are equal."""
            return max(most_nodes, sum(len(footprint.bundles) for footprint in footprints))

        return min((self._pack_onto_nodes(size) for size in sizes), key=count_above_most)

    def _node_sizes(
        self, machines: Sequence[Machine], types: Sequence[NodeType]
    ) -> list[_NodeSize]:
        """The sizes that nodes for this request may have, the preferred one first; at least one.

        The hardware's ``gpus_per_node`` decides. A request without GPUs takes the smallest type that
        may be added. Otherwise the sizes are those of present machines that fit and are no larger
        than the largest type that may be added, the smallest first; then those of the types that
        may be added, the smallest first. Where no size is known, nodes are as large as the bundles.
        """
        if self.gpus_on_a_node and self.gpus_per_node:
            return [_NodeSize(max(self.gpus_on_a_node, self.gpus_per_node))]
        addable = sorted({_NodeSize(kind.gpus, kind.cpus) for kind in self._addable(types)})
        if not self.gpus_on_a_node:
            smallest = min(addable, default=_NodeSize(0, 0.0))
            return [_NodeSize(0, smallest.cpus)]
        largest = addable[-1].gpus if addable else math.inf
        present = {
            _NodeSize(machine.gpus)
            for machine in machines
            if self.gpus_on_a_node <= machine.gpus <= largest and self.accepts(machine)
        }
        sizes = sorted(present) + addable
        return sizes or [_NodeSize(self.gpus_on_a_node)]

    def _pack_onto_nodes(self, size: _NodeSize) -> list[Footprint]:
        """Whole nodes of this size that hold all replicas. Nodes without GPUs are asked for with
        all their cores.
        """
        groups: list[_NodeGroup] = []
        for index in self.by_size():
            bundles = self.replicas[index]
            fitting = [group for group in groups if group.has_room(bundles, size.cpus)]
            if fitting:
                group = fitting[0]
            else:
                group = _NodeGroup(len(bundles), size.gpus)
                groups.append(group)
            group.take(bundles[0])
        least_cpus = 0.0 if size.gpus else size.cpus
        footprints = []
        for group in groups:
            bundle = Bundle(size.gpus, max(least_cpus, group.cpus_taken))
            footprints.append(Footprint((bundle,) * group.nodes, self.labels))
        return footprints


@dataclass(slots=True)
class _NodeGroup:
    """Equal nodes, one for each rank of their first replica, onto which replicas are packed.

    ``nodes``: how many they are. ``gpus_left`` and ``cpus_taken``: of each node.
    """

    nodes: int
    gpus_left: int
    cpus_taken: float = 0.0

    def has_room(self, bundles: Sequence[Bundle], cpus: float) -> bool:
        """Whether a replica fits if each node has ``cpus`` cores. Its bundles are equal."""
        bundle = bundles[0]
        if self.nodes < len(bundles) or self.gpus_left < bundle.gpus:
            return False
        return self.cpus_taken + bundle.cpus <= cpus

    def take(self, bundle: Bundle) -> None:
        """Put a bundle on each of the nodes."""
        self.gpus_left -= bundle.gpus
        self.cpus_taken += bundle.cpus


def _accelerator_of(kind: NodeType) -> str:
    """The accelerator that a label of a node type names; empty if no label names one."""
    for value in (kind.labels or {}).values():
        accelerator = find(value)
        if accelerator is not None:
            return accelerator.name
    return ""


def resources_of(deployment: Deployment, exclusive: bool) -> ResourceRequest:
    """What a deployment takes: nodes x devices of every replica. Routers, like load clients, take
    nothing.
    """
    settings = deployment.settings
    hardware = deployment.hardware
    if not ENGINES[settings.engine].launches:
        return ResourceRequest(endpoint=_server_of(settings.url or ""))
    cpus_per_device = 1.0 if hardware.cpus_per_device is None else hardware.cpus_per_device
    replicas = []
    for replica in replicas_to_start(settings):
        if replica.is_router:
            bundle = Bundle(0, 0.0)
        else:
            devices = replica.settings.devices_per_node
            bundle = Bundle(0 if hardware.is_cpu else devices, devices * cpus_per_device)
        replicas.append((bundle,) * replica.settings.nnodes)
    is_known = not hardware.is_cpu and find(hardware.accelerator) is not None
    return ResourceRequest(
        tuple(replicas),
        tuple(sorted(hardware.labels.items())),
        exclusive,
        gpus_per_node=hardware.gpus_per_node or 0,
        accelerator=hardware.accelerator if is_known else "",
    )


def _server_of(url: str) -> str:
    """What all addresses of one server have in common: ``http://h`` and ``http://H:80/v1``."""
    origin = parse_url(parse_address(url).base)
    return f"{origin.host}:{origin.port}{origin.prefix}"


@dataclass(frozen=True, slots=True)
class ReplicaToStart:
    """A replica or a router of a launch. ``role``: empty where all replicas do the same."""

    role: str
    settings: PlannedSettings

    @property
    def is_router(self) -> bool:
        return self.role == ROUTER


def replicas_to_start(settings: PlannedSettings) -> list[ReplicaToStart]:
    """Every replica and router of a launch, in the order in which they are started."""
    replicas: list[ReplicaToStart] = []
    for role, part in settings.parts.items():
        replicas += [ReplicaToStart(role, part)] * part.replicas
    return replicas
