"""The life of one launch: which event leads from one state to the next, and the launch's record.

The states (``LaunchState``) are defined in ``results/phases.py``, because the live view shows them
too. ``PhaseName`` there says more finely what a launch is doing; each phase belongs to one state.

::

    queued ──> placing ──> starting ──> ready <──> loading
      │           └─> occupied ─┘
      └─> refused
    any of placing, occupied, starting, ready, loading ──> stopping ──> ended, or queued again
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from orchestrator.results.phases import LaunchState

if TYPE_CHECKING:
    from orchestrator.plan.model import Deployment
    from orchestrator.sweep.admission import Reservation


class LaunchEvent(StrEnum):
    """What changes the state of a launch."""

    ADMITTED = "admitted"  # its nodes are chosen
    # no node can hold it, the budget or max_deployments does not allow it, or others hold more load
    REFUSED = "refused"
    HOST_HELD = "host held"  # others hold one of its hosts
    HOSTS_TAKEN = "hosts taken"  # its hosts are leased; an endpoint needs none
    SERVING = "serving"
    LOAD_BEGAN = "load began"
    LOAD_ENDED = "load ended"
    STOP_BEGAN = "stop began"
    STOPPED = "stopped"  # its row is stored, and its engines are gone
    # it begins anew, and leaves no row: others kept its hosts, or a simulation was stopped
    REQUEUED = "requeued"


_STOPPABLE = (
    LaunchState.PLACING,
    LaunchState.OCCUPIED,
    LaunchState.STARTING,
    LaunchState.READY,
    LaunchState.LOADING,
)

TRANSITIONS: Mapping[tuple[LaunchState, LaunchEvent], LaunchState] = {
    (LaunchState.QUEUED, LaunchEvent.ADMITTED): LaunchState.PLACING,
    (LaunchState.QUEUED, LaunchEvent.REFUSED): LaunchState.REFUSED,
    (LaunchState.PLACING, LaunchEvent.HOST_HELD): LaunchState.OCCUPIED,
    (LaunchState.OCCUPIED, LaunchEvent.HOST_HELD): LaunchState.OCCUPIED,  # by somebody else now
    (LaunchState.PLACING, LaunchEvent.HOSTS_TAKEN): LaunchState.STARTING,
    (LaunchState.OCCUPIED, LaunchEvent.HOSTS_TAKEN): LaunchState.STARTING,
    (LaunchState.STARTING, LaunchEvent.SERVING): LaunchState.READY,
    (LaunchState.READY, LaunchEvent.LOAD_BEGAN): LaunchState.LOADING,
    (LaunchState.LOADING, LaunchEvent.LOAD_ENDED): LaunchState.READY,
    **{(state, LaunchEvent.STOP_BEGAN): LaunchState.STOPPING for state in _STOPPABLE},
    (LaunchState.STOPPING, LaunchEvent.STOPPED): LaunchState.ENDED,
    (LaunchState.STOPPING, LaunchEvent.REQUEUED): LaunchState.QUEUED,
}


class ImpossibleTransition(RuntimeError):
    """A launch was told of something that cannot happen in its state: an error of this program."""

    def __init__(self, label: str, state: LaunchState, event: LaunchEvent) -> None:
        super().__init__(f"launch of {label!r}: {event!s} cannot happen while it is {state}")


class Announced(StrEnum):
    """What the user was told last of a launch."""

    NOTHING = "nothing"
    LAUNCH = "launch"  # that it begins, or goes on after a wait
    OCCUPIED = "occupied"  # that it stands in line, because others hold one of its hosts
    QUEUED = "queued"  # that it is in the queue again, because others kept one of its hosts


class AdmissionReason(StrEnum):
    """Why a launch was the next."""

    FIRST = "first"  # it is the first of the queue
    RESERVED = "reserved"  # nodes were kept for it while others overtook it
    BACKFILL = "backfill"  # it overtakes another launch without delaying it


@dataclass(frozen=True, slots=True)
class Admission:
    """How a launch was admitted. ``ahead``: label of the deployment that it overtakes; empty if it
    overtakes none. ``avoided``: ids of the nodes whose infrastructure failed it before.
    """

    reason: AdmissionReason = AdmissionReason.FIRST
    ahead: str = ""
    avoided: frozenset[str] = frozenset()

    def data(self) -> dict[str, object]:
        """Its part of the event that tells of the launch."""
        data: dict[str, object] = {"why": str(self.reason)}
        if self.ahead:
            data["ahead"] = self.ahead
        if self.avoided:
            data["avoided"] = sorted(self.avoided)
        return data


@dataclass(slots=True, eq=False)
class LaunchRecord:
    """What is known of one launch while the sweep runs. ``advance`` alone changes its state.

    Fields other than ``state`` and ``announced`` belong to ``SweepState`` and its lock.
    """

    deployment: Deployment
    state: LaunchState = field(default=LaunchState.QUEUED, init=False)
    announced: Announced = field(default=Announced.NOTHING, init=False)
    is_overtaken: bool = False  # while it is in the queue: nodes are kept for it
    admission: Admission = Admission()
    reservation: Reservation | None = None  # its nodes and expected end, from PLACING on
    held_since_s: float | None = None  # since when its devices cost money
    held_host: str = ""  # address of the host that others hold, in the state OCCUPIED

    def admit(
        self, reservation: Reservation, avoid: frozenset[str], overtaken: LaunchRecord | None
    ) -> None:
        """Give it nodes. ``overtaken``: the launch that it overtakes without delaying it. Raises
        ImpossibleTransition if it is not in the queue.
        """
        self.advance(LaunchEvent.ADMITTED)
        self.reservation = reservation
        if overtaken is not None:
            label = overtaken.deployment.label
            self.admission = Admission(AdmissionReason.BACKFILL, label, avoid)
            overtaken.is_overtaken = True
        elif self.is_overtaken:
            self.admission = Admission(AdmissionReason.RESERVED, avoided=avoid)
        else:
            self.admission = Admission(AdmissionReason.FIRST, avoided=avoid)
        self.is_overtaken = False

    def advance(self, event: LaunchEvent) -> None:
        """Change the state. Raises ImpossibleTransition if the event cannot happen in this one."""
        following = TRANSITIONS.get((self.state, event))
        if following is None:
            raise ImpossibleTransition(self.deployment.label, self.state, event)
        self.state = following
