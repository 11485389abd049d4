"""What a sweep reports while it runs, for the live view and the ``events`` table."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from orchestrator.results.records import EventRow

# Every kind of event and what it means, as in the table of docs/data-format.md; a test checks that the
# program uses no others
KINDS = {
    "sweep": "the sweep begins: `total` measurements, of which `skipped` are already done",
    "shortlist": (
        "deployments that are left out by their predictions (`run --shortlist`): why, by label"
    ),
    "node_silent": "a node did not answer the check before the start",
    "refused": (
        "measurements are left out: their configuration failed before, or they killed a "
        "searched engine"
    ),
    "launch": (
        "a launch was admitted, or has its hosts after `occupied`: `nodes`, what is `left`, "
        "and `why` (below)"
    ),
    "waiting": (
        "a deployment waits because no present nodes can hold it: what it needs, and for how long"
    ),
    "nodes_wanted": "the cluster is asked for a new set of nodes: footprints, and how many of each",
    "nodes_changed": "nodes `joined` or `left` the cluster",
    "autoscaler": "what the autoscaler says of nodes that do not come",
    "occupied": (
        "a launch waits for a host, cores or GPUs, in line (`state` occupied) or in the queue "
        "again (`state` queued): who holds them, or comes first"
    ),
    "network": (
        "the nodes of a replica or its roles use TCP, or a network that the engine's log "
        "does not name"
    ),
    "endpoint": "what an endpoint cannot do, as its trial requests showed",
    "other_version": (
        "an engine has another version than its flags were recorded from "
        "(`reported.flags_known_as_of`)"
    ),
    "node_rests": (
        "nothing is started on a `node` for `wait_s`: launches failed there, or its GPU "
        "memory is not free"
    ),
    "paused": "nothing is started for `wait_s`: launches failed the same way on several `nodes`",
    "goes_on": "a pause is over",
    "cluster_silent": "the cluster's head does not answer, or does again",
    "storage": "the storage does not answer, or does again",
    "measured": (
        "a measurement is committed; `left` of its deployment, estimated `left_s` of the sweep"
    ),
    "failed": "a measurement failed and is stored as a failed row: why",
    "search": (
        "what a search knows after a probe: per SLO `claim`, `low`, `high` (null: no level "
        "fails), `status`"
    ),
    "gives_way": (
        "a launch ends so that others may run: others of its race, or all until it is known what "
        "they leave of the budget"
    ),
    "open_again": "measurements that were spoilt are measured again (`run --again`)",
    "kept": "measurements were spoilt as often as they are measured again, and stay as they are",
    "outraced": "a waiting deployment is not probed any more: others hold more",
    "retry": "an attempt or a launch failed and is tried again: why",
    "gave_up": "a deployment is given up: why",
    "engine_died": "an engine died or stalled under load",
    "preempted": "a point was ended because its node is being taken back",
    "taken_back": "all nodes are being taken back, and the sweep ends in order",
    "not_started": "deployments are left out because no more may be started (`max_deployments`)",
    "budget": "the budget is used up: what was left out",
    "stop_failed": "something could not be stopped cleanly",
    "gpu_dirty": "GPU memory was not free after a launch had ended",
    "left_over": "processes outlived their launch",
    "log_lost": "an engine's log could not be stored",
    "row_lost": "a launch's row could not be stored",
    "stop_asked": "the run was asked to stop, or another run took its place",
    "stopping": "the sweep stops: engines are ended, complete measurements are kept",
}


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
    # it gets no nodes: none can hold it, no budget is left for it, or others hold more load
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
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened or was decided. ``kind`` is one of KINDS, ``text`` a sentence."""

    kind: str
    text: str
    deployment: str = ""  # its label
    launch_id: str = ""
    measurement_id: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    unix_ns: int = field(default_factory=time.time_ns)

    def row(self) -> EventRow:
        """Its row in the ``events`` table."""
        return EventRow(
            unix_ns=self.unix_ns,
            kind=self.kind,
            launch_id=self.launch_id or None,
            measurement_id=self.measurement_id or None,
            text=self.text,
            data_json=json.dumps(dict(self.data)) if self.data else None,
        )


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


Listener = Callable[[Event | Phase], None]  # called from several threads
