"""Requests that no node can hold: since when, and how long a sweep waits for other nodes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from orchestrator.cluster.base import Growth, Machine
from orchestrator.results.events import Event
from orchestrator.sweep.admission import fit
from orchestrator.sweep.context import SweepContext
from orchestrator.sweep.resource_request import ResourceRequest


@dataclass(frozen=True, slots=True)
class WaitForNodes:
    """A request that waits for nodes which could hold it. ``reason``: why it waits for ``limit_s``
    seconds and no longer.
    """

    resources: ResourceRequest
    waited_s: float
    limit_s: float
    reason: str

    @property
    def is_over(self) -> bool:
        return self.waited_s >= self.limit_s


class NodeShortage:
    """The requests that the present nodes could not hold even if nothing ran there.

    ``asked_for``: the requests for which the autoscaler was asked for nodes, at the last admission.
    """

    def __init__(self, context: SweepContext) -> None:
        self._context = context
        # requests that some nodes could hold once: a lost node may come back
        self._once_placeable: set[ResourceRequest] = set()
        self._unplaceable_since: dict[ResourceRequest, float] = {}
        # what the autoscaler said, without the numbers in it
        self._autoscaler_messages: set[str] = set()
        self.asked_for: set[ResourceRequest] = set()

    @property
    def exists(self) -> bool:
        """Whether some request waits for nodes."""
        return bool(self._unplaceable_since)

    def note_placed(self, resources: ResourceRequest) -> None:
        """Note that nodes could hold a request."""
        self._once_placeable.add(resources)

    def update(
        self, requests: Iterable[ResourceRequest], growth: Growth, machines: list[Machine]
    ) -> None:
        """Note which of these requests wait for nodes from now on, still wait, or wait no longer.
        A request waits if the present nodes could not hold it even if nothing ran there. Its wait
        begins once other nodes were asked for, or at once if none can come.
        """
        now_s = self._context.clock.now_s()
        unplaceable_before = self._unplaceable_since
        self._unplaceable_since = {}
        for resources in requests:
            if self._could_hold(resources, machines):
                self._once_placeable.add(resources)
            elif self._waits(resources, growth, machines, unplaceable_before):
                since_s = unplaceable_before.get(resources, now_s)
                self._unplaceable_since[resources] = since_s

    def _could_hold(self, resources: ResourceRequest, machines: list[Machine]) -> bool:
        """Whether the machines could hold the request if nothing ran there."""
        most_nodes = self._context.settings.most_nodes
        return fit(resources, machines, (), most_nodes=most_nodes) is not None

    def _waits(
        self,
        resources: ResourceRequest,
        growth: Growth,
        machines: list[Machine],
        unplaceable_before: Collection[ResourceRequest],
    ) -> bool:
        """Whether a request that the machines cannot hold has begun to wait: nodes for it were asked
        for, or none can come. ``unplaceable_before``: the requests that waited the last time.
        """
        if not growth.may_grow or resources in self.asked_for:
            return True
        # A request that has begun to wait goes on. Only a pause of the sweep, in which no nodes are
        # asked for, ends its wait, which begins anew after the pause.
        if resources in unplaceable_before and not self._context.breakers.paused():
            return True
        most_nodes = self._context.settings.most_nodes
        return resources.least_nodes(machines, growth.types, most_nodes) > most_nodes

    def waits(self, machines: Sequence[Machine], growth: Growth) -> list[WaitForNodes]:
        """The requests that wait for nodes, in the order of admission."""
        settings = self._context.settings
        now_s = self._context.clock.now_s()
        waits: list[WaitForNodes] = []
        for resources, since_s in self._unplaceable_since.items():
            was_placeable = resources in self._once_placeable
            limit = resources.patience(
                machines, growth, was_placeable, settings.most_nodes, settings.placement_timeout_s
            )
            waits.append(WaitForNodes(resources, now_s - since_s, limit.seconds, limit.reason))
        return waits

    def give_up(self, resources: ResourceRequest) -> None:
        """Wait no longer for nodes for this request."""
        del self._unplaceable_since[resources]

    def tell_autoscaler(self, text: str) -> None:
        """Tell what the autoscaler says, unless the text is empty or only its numbers are new."""
        without_numbers = re.sub(r"\d+ x ", "", text)
        if not text or without_numbers in self._autoscaler_messages:
            return
        self._autoscaler_messages.add(without_numbers)
        self._context.tell(Event("autoscaler", text))
