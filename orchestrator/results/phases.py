"""What a sweep and its launches are doing now: the states of a launch, and the finer phases that
the live view shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SWEEP = "sweep"  # in phases of the sweep itself, in place of a deployment's label


class LaunchState(StrEnum):
    """The stage of one launch of a deployment. ``sweep/launch_state.py`` says what changes it."""

    QUEUED = "queued"
    PLACING = "placing"  # its nodes are chosen; it takes them and leases their hosts
    OCCUPIED = "occupied"  # others hold one of its hosts, and it stands in line
    STARTING = "starting"  # its engines start
    READY = "ready"  # its engines serve, and nothing is asked of them
    LOADING = "loading"  # requests are sent, or what came of them is stored
    STOPPING = "stopping"
    ENDED = "ended"
    # the launch gets no nodes: none can hold it, no budget is left for it, or others hold more load
    REFUSED = "refused"


class PhaseName(StrEnum):
    """What a launch is shown to do: finer than ``LaunchState``."""

    QUEUED = "queued"  # again, because others kept one of its hosts
    WAIT_FOR_NODES = "wait for nodes"
    PLACE = "place"
    WAIT_FOR_HOST = "wait for host"
    START = "start"
    ANSWERS = "answers"
    WRITE_REQUESTS = "write requests"
    WARM_UP = "warm-up"
    MEASURE = "measure"
    WAIT_FOR_ANSWERS = "wait for answers"
    STORE = "store"
    STOP = "stop"
    STORE_LAUNCH = "store the launch"
    ENDED = "ended"
    REFUSED = "refused"

    @property
    def state(self) -> LaunchState:
        """The state of a launch that is shown to do this."""
        return _STATE_OF[self]


_STATE_OF = {
    PhaseName.QUEUED: LaunchState.QUEUED,
    PhaseName.WAIT_FOR_NODES: LaunchState.QUEUED,
    PhaseName.PLACE: LaunchState.PLACING,
    PhaseName.WAIT_FOR_HOST: LaunchState.OCCUPIED,
    PhaseName.START: LaunchState.STARTING,
    PhaseName.ANSWERS: LaunchState.LOADING,
    PhaseName.WRITE_REQUESTS: LaunchState.LOADING,
    PhaseName.WARM_UP: LaunchState.LOADING,
    PhaseName.MEASURE: LaunchState.LOADING,
    PhaseName.WAIT_FOR_ANSWERS: LaunchState.LOADING,
    PhaseName.STORE: LaunchState.LOADING,
    PhaseName.STOP: LaunchState.STOPPING,
    PhaseName.STORE_LAUNCH: LaunchState.STOPPING,
    PhaseName.ENDED: LaunchState.ENDED,
    PhaseName.REFUSED: LaunchState.REFUSED,
}


class SweepStep(StrEnum):
    """What a sweep itself is shown to do, under the label SWEEP."""

    CHECK_STORAGE = "see that results can be written"
    CHECK_RUNS = "see that no other run is active"
    JOIN_CLUSTER = "join the cluster"
    READ_RESULTS = "read what is measured already"
    STORE_PLAN = "store the plan"
    CHECK_NODES = "check the nodes"
    JOIN_REPEATS = "take repeats together"
    STORE_FIGURES = "store what answers need"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class RequestProgress:
    """Requests of a running point that are over, in flight and failed; ``total``: all it will send,
    0 if unknown.
    """

    done: int
    in_flight: int
    failed: int
    total: int = 0


@dataclass(frozen=True, slots=True)
class Phase:
    """What a launch is doing now, for display only. ``total_s``: 0 if unknown; ``says``: the
    engine's last log line.
    """

    deployment: str  # its label; empty for `load`, SWEEP for the sweep itself
    name: PhaseName | SweepStep
    detail: str = ""
    elapsed_s: float = 0.0
    total_s: float = 0.0
    requests: RequestProgress | None = None
    says: str = ""

    @property
    def state(self) -> LaunchState | None:
        """The state of the launch; None for a step of the sweep itself."""
        return self.name.state if isinstance(self.name, PhaseName) else None

    @property
    def is_over(self) -> bool:
        """Whether nothing is done under this label any more."""
        return self.name in (PhaseName.ENDED, PhaseName.REFUSED, SweepStep.ENDED)
