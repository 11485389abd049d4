"""Rows for the requests of a client that died: the schedule says what it had to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.load.outcome import Outcome
from orchestrator.load.point import LoadPoint
from orchestrator.load.rows import Rows
from orchestrator.load.schedule import Schedule
from orchestrator.load.tokens import prompter
from orchestrator.load.workloads import WORKLOADS

if TYPE_CHECKING:
    import pyarrow as pa


def lost_requests(point: LoadPoint, index: int, count: int, why: str) -> pa.Table:
    """The ``requests`` rows of client ``index`` of ``count``, all with status ``lost``.

    A closed loop by time has no fixed number of requests: then one row for each slot the client held.
    """
    kind = WORKLOADS[point.workload.kind](point.workload, prompter(point), point.seed)
    schedule = Schedule(point, kind.turns)
    rows = Rows(point, index, 0, kind.sessions)
    starts = schedule.slot_starts(index, count)
    outcome = Outcome("lost", "client", why[:500])
    for at, session in enumerate(schedule.stripe(index, count)):
        if schedule.sessions is None and at == len(starts):
            break
        due_ns = int(schedule.due_ns[session]) if schedule.open_loop else starts[at] if at < len(starts) else 0
        turns = 1 if schedule.sessions is None else schedule.length(session)
        for turn in range(turns):
            entry = schedule.entry(session, turn, due_ns)
            if entry is None:
                continue
            lengths = (kind.input_tokens(session, turn), kind.output_tokens(session, turn))
            target = session % len(point.targets)
            rows.add_unsent(entry, target, schedule.phase(entry.due_ns), entry.due_ns, lengths, outcome)
    return rows.tables()[0]
