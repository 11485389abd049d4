"""What happens in a sweep and what it decides, for the live view and the ``events`` table."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.results.phases import Phase
from orchestrator.results.records import EventRow

# Every kind of event and what it means, as in the table of docs/reference/events.md; a test checks
# that the program uses no others
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
    "host_facts": "a host that a run uses for the first time: the facts of it that `doctor` judges, "
    "but for those of engines and models, its clock and whom it reaches",
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
        "a measurement is committed: its figures, of a mix also those of each part; `left` of its "
        "deployment, estimated `left_s` of the sweep"
    ),
    "failed": "a measurement failed and is stored as a failed row: why",
    "search": (
        "what a search knows after a probe: per SLO `claim`, `low`, `high` (null: no level "
        "fails), `status`, and the `estimate` with `estimate.lower`, `estimate.upper` and `safe` "
        "(null: none yet)"
    ),
    "standing": (
        "what is known of the answer after a point, per workload and SLO: the `leader` with its "
        "figures, and how many of the `deployments` can still beat it (`rivals`)"
    ),
    "set_aside": "a deployment is not measured further: it can no longer be best (`--until decided`)",
    "decided": "the ranking is decided (`--until decided`): how much was not measured to the end",
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
    "gpu_lost": "a GPU stopped answering while a point ran: its `host` and `gpu_uuid`",
    "left_over": "processes outlived their launch",
    "log_lost": "an engine's log could not be stored",
    "row_lost": (
        "a launch's row, or the rows that say why measurements were given up, could not be stored"
    ),
    "stop_asked": "the run was asked to stop, or another run took its place",
    "stopping": "the sweep stops: engines are ended, complete measurements are kept",
}


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


def standing_key(event: Event) -> str:
    """What an event of kind ``standing`` is about: a later one with the same key replaces it."""
    parts = [str(event.data.get(name, "")) for name in ("workload", "slo", "model", "hardware")]
    return " ".join(parts)


def measurements_left(event: Event) -> int | None:
    """How many measurements are left of the event's deployment; None: it does not say.

    Events without a deployment may have other things in ``left``: ``nodes_changed`` has the nodes.
    """
    left = event.data.get("left")
    return left if event.deployment and isinstance(left, int) else None


def total_after(event: Event, total: int, ended: int, left_before: int | None) -> int:
    """How many measurements a sweep makes in all, as far as is known after an event.

    A search may ask for more or fewer measurements than were expected, and for none once its
    deployment is given up or beaten. ``ended``: measurements that ended, that of the event
    included. ``left_before``: what was left of the deployment before; None: not known.
    """
    left = measurements_left(event)
    if left is None:
        return max(total, ended)
    if left_before is not None:
        ended_now = 1 if event.kind in ("measured", "failed") else 0
        total += left + ended_now - left_before
    return max(total, ended + left)


Listener = Callable[[Event | Phase], None]  # called from several threads
