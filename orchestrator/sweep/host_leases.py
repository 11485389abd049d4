"""Leases the hosts of a launch, and waits in line for those that others hold."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.base.clock import UnixSpan
from orchestrator.base.errors import Occupied
from orchestrator.cluster.clients import owner_of
from orchestrator.cluster.protocol import Placement
from orchestrator.node.leases import Wish
from orchestrator.results.phases import PhaseName
from orchestrator.sweep.replicas import agents_of
from orchestrator.sweep.resource_request import ReplicaToStart
from orchestrator.sweep.start_request import StartRequest

if TYPE_CHECKING:
    from orchestrator.cluster.protocol import Agent

# While a launch waits in line for a host: seconds between two checks of whether the host is free,
# and between two checks of whether other nodes would do.
ASK_S = 1.0
ELSEWHERE_S = 10.0


@dataclass(frozen=True, slots=True)
class HeldHost:
    """A host that others hold, or that others get first. ``text``: who they are."""

    address: str
    text: str


@dataclass(frozen=True, slots=True)
class Leases:
    """All hosts of a launch, or none of them because of one that is ``held``.

    ``cores``: the cores of each agent, by ``id(agent)``.
    """

    cores: Mapping[int, tuple[int, ...]]
    held: HeldHost | None = None


class HostLeases:
    """The hosts of a launch whose agents run already, one placement for each replica."""

    def __init__(
        self,
        request: StartRequest,
        replicas: Sequence[ReplicaToStart],
        placements: Sequence[Placement],
    ) -> None:
        self._request = request
        self._replicas = replicas
        self._placements = placements

    def take(self) -> list[list[tuple[int, ...]]]:
        """Lease the hosts, and on `cpu` hardware cores for every rank; wait in line while others
        hold them. Returns the cores of each rank of each replica.

        Raises Occupied when the launch should be queued again instead, and PlacementError when a
        host cannot be leased for another reason.
        """
        agents = sorted(agents_of(self._placements), key=lambda agent: agent.allocation.address)
        wishes = self._wishes()
        context = self._request.context
        leases = lease_all(agents, wishes)
        if leases.held is not None:
            leases = self._wait_in_line(agents, wishes, leases.held)
            context.state.placed(self._request.deployment, context.clock.now_s())
        for agent in agents:
            context.state.wake(agent.allocation.address)
        cores_of_replicas = []
        for placement in self._placements:
            cores_of_replicas.append([leases.cores[id(agent)] for agent in placement.agents])
        return cores_of_replicas

    def _wishes(self) -> dict[int, Wish]:
        """What the launch wants of each agent's host, by ``id(agent)``."""
        context = self._request.context
        hardware = self._request.deployment.hardware
        cores_per_device = max(1, int(hardware.cpus_per_device or 1)) if hardware.is_cpu else 0
        exclusive = context.plan.isolation == "exclusive_node"
        owner = owner_of(context.store)
        wishes: dict[int, Wish] = {}
        for placement, replica in zip(self._placements, self._replicas, strict=True):
            cores = cores_per_device * replica.settings.devices_per_node
            if replica.is_router:
                cores = 0
            for agent in placement.agents:
                wishes[id(agent)] = Wish(owner, exclusive, cores)
        return wishes

    def _wait_in_line(
        self, agents: Sequence[Agent], wishes: Mapping[int, Wish], held: HeldHost
    ) -> Leases:
        """Wait until the hosts are its own. ``held``: the host that could not be leased at first.

        Raises Occupied when the launch should queue again instead: see ``_should_queue_again``.
        """
        context = self._request.context
        state = context.state
        clock = context.clock
        began_s = clock.now_s()
        began_ns = clock.unix_ns()
        addresses = {agent.allocation.address for agent in agents}
        since_ns = stand_in_line(agents, wishes, state.place_in_line(addresses))
        next_look_s = began_s  # when to look next whether other nodes would do
        try:
            while True:
                state.waits_for(self._request.deployment, held.address)
                self._request.hooks.on_wait(held.text)
                waited_s = clock.now_s() - began_s
                self._request.notes.announcer.phase(
                    PhaseName.WAIT_FOR_HOST, elapsed_s=waited_s, says=held.text
                )
                looks_elsewhere = clock.now_s() >= next_look_s
                if looks_elsewhere:
                    next_look_s += ELSEWHERE_S
                if self._should_queue_again(looks_elsewhere):
                    raise Occupied(held.text)
                clock.wait(context.stop, ASK_S)
                leases = lease_all(agents, wishes)
                if leases.held is None:
                    return leases
                held = leases.held
        except Occupied:
            state.keep_place(addresses, since_ns)
            # longer each time: other hosts may be held, too, and a launch that keeps changing hosts
            # waits in no line
            state.rest(held.address, clock.now_s(), longer=True)
            raise
        finally:
            state.add_span(UnixSpan(began_ns, clock.unix_ns()))

    def _should_queue_again(self, looks_elsewhere: bool) -> bool:
        """Whether to wait no longer on these nodes. ``looks_elsewhere``: also check the budget, and
        whether other nodes would do.
        """
        context = self._request.context
        if context.stop.is_set():
            return True
        if context.taken_back(itertools.chain(*self._request.nodes), math.inf) is not None:
            return True
        if not looks_elsewhere:
            return False
        over_budget = context.budget.over(self._request.deployment, 0.0) is not None
        return over_budget or self._request.hooks.is_better_off_elsewhere()


def lease_all(agents: Sequence[Agent], wishes: Mapping[int, Wish]) -> Leases:
    """Lease all hosts of a launch or none, so that a launch that waits for one host keeps no other
    host from others. ``wishes``: by ``id(agent)``.
    """
    cores: dict[int, tuple[int, ...]] = {}
    for agent in agents:
        try:
            cores[id(agent)] = agent.lease(wishes[id(agent)])
        except Occupied as error:
            for other in agents:
                if id(other) in cores:
                    other.put_back()
            return Leases({}, HeldHost(agent.allocation.address, str(error)))
    return Leases(cores)


def stand_in_line(agents: Sequence[Agent], wishes: Mapping[int, Wish], since_ns: int = 0) -> int:
    """Leave a ticket on all hosts of a launch. Returns since when the launch counts as waiting, in
    nanoseconds of the first host's clock. ``since_ns``: since when it has waited already; 0 if it
    has not.

    The clock of the first host counts on all hosts. So each host serves its launches in the same
    order, and no two launches wait for each other.
    """
    for agent in agents:
        since_ns = agent.queue(wishes[id(agent)], since_ns)
    return since_ns
