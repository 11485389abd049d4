"""What one launch takes of a cluster, which machines suit it, and which nodes an autoscaler is
asked for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.base.text import listed
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
from orchestrator.engines import ENGINES
from orchestrator.plan.model import Deployment
from orchestrator.spec.address import parse_address, parse_url
from orchestrator.spec.load import counted
from orchestrator.spec.settings import ROUTER
from orchestrator.spec.stages import PlannedSettings

# for nodes of a cluster that just starts to join, and for a lost node to come back
ROOM_S, RETURN_S = 5.0, 60.0
NO_TYPE_S = 5.0  # for an autoscaler to be given a node type that fits
# factor on --placement-timeout while nodes are being set up, which includes image and weights
SET_UP = 4.0


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """What one launch takes: the bundles of every replica. An endpoint has none, because it is not
    placed.
    """

    replicas: tuple[tuple[Bundle, ...], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    exclusive: bool = True  # no other launch on its hosts
    endpoint: str = ""  # two launches never load the same URL at once
    gpus_per_node: int = 0  # of its hardware; 0: unknown
    accelerator: str = ""  # that its nodes must not deny by their label; empty: any

    def accepts(self, machine: Machine) -> bool:
        """Whether a machine has the labels, and no label of another accelerator."""
        labels = machine.labels
        return all(labels.get(key) == value for key, value in self.labels) and not self._denied(
            machine
        )

    def _denied(self, machine: Machine) -> str:
        """The machine's label of another accelerator, or nothing."""
        label = machine.labels.get(ACCELERATOR_LABEL, "")
        return label if label and self.accelerator and not may_be(self.accelerator, label) else ""

    def footprints(self) -> list[Footprint]:
        """One footprint per replica."""
        return [Footprint(bundles, self.labels) for bundles in self.replicas]

    def by_size(self) -> list[int]:
        """Indices of the replicas, the hardest to place first."""
        return sorted(
            range(len(self.replicas)),
            key=lambda at: (-len(self.replicas[at]), -self.replicas[at][0].gpus),
        )

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
        sizes = " + ".join(
            one if times == 1 else f"{times} x {one}" for one, times in counted.items()
        )
        kind = ", ".join(
            filter(None, (self.accelerator, *(f"{key}={value}" for key, value in self.labels)))
        )
        return f"{sizes} ({kind})" if kind else sizes

    def nodes_worth_adding(
        self, machines: Sequence[Machine], types: Sequence[NodeType] = (), most: float = math.inf
    ) -> list[Footprint]:
        """The footprints to ask an autoscaler with these ``types`` for: whole nodes if it shares
        none, or several would go to one node. ``most``: see ``_whole_nodes``.

        Nodes with another accelerator must not hold them: none would be added.
        """
        asked = self._whole_nodes(machines, types, most) if self.exclusive else self.footprints()
        others = ",".join(sorted({label for one in machines if (label := self._denied(one))}))
        if not others or ACCELERATOR_LABEL in dict(self.labels):
            return asked
        labels = (*self.labels, (ACCELERATOR_LABEL, f"!in({others})"))
        return [Footprint(one.bundles, labels) for one in asked]

    def could_use_type(self, kind: NodeType) -> bool:
        """Whether an autoscaler may add nodes of this type for it: by size and labels, as far as
        they are known.

        Labels that Ray gives nodes itself when they start stand in no type.
        """
        asked = [bundle for one in self.nodes_worth_adding(()) for bundle in one.bundles]
        gpus, cpus = max(one.gpus for one in asked), max(one.cpus for one in asked)
        large = kind.gpus >= gpus and kind.cpus >= cpus
        if kind.labels is None or not large:
            return large
        said = [
            (key, value)
            for key, value in self.labels
            if key in kind.labels or not key.startswith("ray.io/")
        ]
        return all(kind.labels.get(key) == value for key, value in said)

    def may_come(
        self, machines: Sequence[Machine], types: Sequence[NodeType]
    ) -> tuple[tuple[str, ...], float]:
        """The types of node that may be added for it, and how many more of them: infinite where
        that is not known.
        """
        fitting = [one for one in types if one.most > 0 and self.could_use_type(one)]
        names = tuple(one.name for one in fitting)
        there = sum(one.labels.get(NODE_GROUP) in names for one in machines)
        return names, sum(one.most for one in fitting) - there if fitting else math.inf

    def ambiguous_types(self, types: Sequence[NodeType]) -> str:
        """Why an autoscaler may add nodes with other GPUs, again and again; empty if it will not,
        or nobody knows.

        It is asked by size and labels alone. What it adds in vain leaves when it is idle, and is
        added again.
        """
        fitting = [
            one for one in types if self.gpus and self.accelerator and self.could_use_type(one)
        ]
        named = {
            _accelerator_of(one) for one in fitting if one.labels is not None or not self.labels
        }
        if len(fitting) < 2 or not named or (len(named) == 1 and "" not in named):
            return ""
        kinds = listed([one.name for one in fitting], 5)
        label = "no label of the hardware tells them apart; give 'labels' one that only the right ones have"
        return f"for {self.accelerator} the autoscaler may add nodes of {kinds}: {label}"

    def least_nodes(
        self, machines: Sequence[Machine], types: Sequence[NodeType] = (), most: float = math.inf
    ) -> int:
        """How many otherwise empty nodes it takes, as far as their size is known. ``most``: see
        ``_whole_nodes``.
        """
        return len(self.as_machines(machines, "", types, most))

    def as_machines(
        self,
        machines: Sequence[Machine],
        name: str,
        types: Sequence[NodeType] = (),
        most: float = math.inf,
    ) -> list[Machine]:
        """The ``least_nodes`` that it takes, with all the cores that others may want who share
        them.
        """
        sizes = [
            one.bundles[0].gpus
            for one in self._whole_nodes(machines, types, most)
            for _ in one.bundles
        ]
        if not self.gpus:
            del sizes[max(map(len, self.replicas), default=0) :]
        labels = ({ACCELERATOR_LABEL: self.accelerator} if self.accelerator else {}) | dict(
            self.labels
        )
        names = (f"{name}.{at}" for at in range(len(sizes)))
        return [
            Machine(one, one, size, math.inf, labels)
            for one, size in zip(names, sizes, strict=True)
        ]

    def patience(
        self,
        machines: Sequence[Machine],
        growth: Growth,
        roomy: bool,
        most_nodes: float,
        timeout_s: float,
    ) -> tuple[float, str]:
        """How many seconds to wait for nodes that can hold it, and why there are none after that.

        ``roomy``: some nodes could hold it once. ``timeout_s``: how long an autoscaler gets.
        """
        if (nodes := self.least_nodes(machines, growth.types, most_nodes)) > most_nodes:
            return 0.0, f"it takes {counted(nodes, 'node')} where --max-nodes allows {most_nodes:g}"
        if not growth.may:
            return RETURN_S if roomy else ROOM_S, "it has no autoscaler"
        says = f" ({growth})" if str(growth) else ""
        if growth.impossible.intersection(
            self.nodes_worth_adding(machines, growth.types, most_nodes)
        ):
            return min(NO_TYPE_S, timeout_s), f"its autoscaler has no type of node that could{says}"
        limit_s = timeout_s * SET_UP if growth.coming else timeout_s
        return limit_s, f"none was added within {limit_s:g} s{says}"

    def _whole_nodes(
        self, machines: Sequence[Machine], types: Sequence[NodeType] = (), most: float = math.inf
    ) -> list[Footprint]:
        """Whole nodes that hold all replicas: of the size its hardware says, else of the smallest
        machine that fits and is no larger than all types that may be added, else of the smallest
        type. Where these are more than ``most``, of the next size of which it takes no more, or the
        fewest. Without GPUs, of the smallest type. Where none is known, as large as its bundles.
        """
        if self.gpus and self.gpus_per_node:
            return self._pack_onto_nodes(max(self.gpus, self.gpus_per_node), math.inf)
        added = sorted(
            {(one.gpus, one.cpus) for one in types if one.most > 0 and self.could_use_type(one)}
        )
        if not self.gpus:
            return self._pack_onto_nodes(0, min(added, default=(0, 0.0))[1])
        largest = max(added)[0] if added else math.inf
        seen = sorted(
            {one.gpus for one in machines if self.gpus <= one.gpus <= largest and self.accepts(one)}
        )
        sizes = [(gpus, math.inf) for gpus in seen] + added or [(self.gpus, math.inf)]
        ways = (self._pack_onto_nodes(*size) for size in (sizes[:1] if most == math.inf else sizes))
        return min(ways, key=lambda way: max(most, sum(len(one.bundles) for one in way)))

    def _pack_onto_nodes(self, gpus: int, cpus: float) -> list[Footprint]:
        """Whole nodes of this size that hold all replicas. Those without GPUs are asked for with
        all their cores.
        """
        # nodes side by side; GPUs left and CPUs taken on each of them
        shelves: list[tuple[int, int, float]] = []
        for bundles in (self.replicas[at] for at in self.by_size()):
            width, each = len(bundles), bundles[0]
            fitting = (
                at
                for at, (nodes, left, taken) in enumerate(shelves)
                if nodes >= width and left >= each.gpus and taken + each.cpus <= cpus
            )
            if (at := next(fitting, None)) is None:
                at = len(shelves)
                shelves.append((width, gpus, 0.0))
            nodes, left, taken = shelves[at]
            shelves[at] = nodes, left - each.gpus, taken + each.cpus
        least = 0.0 if gpus else cpus
        return [
            Footprint((Bundle(gpus, max(least, taken)),) * nodes, self.labels)
            for nodes, _, taken in shelves
        ]


def _accelerator_of(kind: NodeType) -> str:
    """What some label of a node type names; empty if none does."""
    named = (find(value) for value in (kind.labels or {}).values())
    return next((one.name for one in named if one), "")


def resources_of(deployment: Deployment, exclusive: bool) -> ResourceRequest:
    """What a deployment takes: nodes x devices of every replica. A router takes nothing, like
    clients.
    """
    settings, hardware = deployment.settings, deployment.hardware
    if not ENGINES[settings.engine].launches:
        return ResourceRequest(endpoint=_server_of(settings.url or ""))
    each = hardware.cpus_per_device if hardware.cpus_per_device is not None else 1.0
    replicas = []
    for role, part in replicas_to_start(settings):
        devices = part.devices_per_node
        bundle = (
            Bundle(0, 0.0)
            if role == ROUTER
            else Bundle(0 if hardware.is_cpu else devices, devices * each)
        )
        replicas.append((bundle,) * part.nnodes)
    labels = tuple(sorted(hardware.labels.items()))
    named = "" if hardware.is_cpu or find(hardware.accelerator) is None else hardware.accelerator
    return ResourceRequest(
        tuple(replicas),
        labels,
        exclusive,
        gpus_per_node=hardware.gpus_per_node or 0,
        accelerator=named,
    )


def _server_of(url: str) -> str:
    """What all addresses of one server have in common: ``http://h`` and ``http://H:80/v1``."""
    origin = parse_url(parse_address(url).base)
    return f"{origin.host}:{origin.port}{origin.prefix}"


def replicas_to_start(settings: PlannedSettings) -> list[tuple[str, PlannedSettings]]:
    """Role and settings of every replica and router of a launch, in the order in which they are
    started.
    """
    return [(role, part) for role, part in settings.parts.items() for _ in range(part.replicas)]
