"""The requests of a point that still runs, as the values that limits are checked against."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orchestrator.analysis.requests import Bools, Floats
from orchestrator.analysis.slo import LimitValues, limit_values, tests
from orchestrator.spec.load import LIMITS, Slo

ALL_NS = (0, 2**62)  # a window without end
# of each open request: when it was due, ns; whether nothing of its answer has come
Open = Sequence[tuple[int, bool]]


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Measured requests, without warm-up. Instants are seconds since the point's start.

    ``ended``: the values of the requests that ended since the last call, due at ``due_s`` and over
    at ``done_s``. ``open``: for requests that were still open, due at ``open_due_s``, the least
    that their values can still become. ``now_s``: the instant up to which all clients have
    reported.
    """

    now_s: float
    due_s: Floats
    done_s: Floats
    ended: LimitValues
    open_due_s: Floats
    open: LimitValues

    def met(self, slos: Sequence[Slo]) -> Bools:
        """Which tests each ended request met. Shape [ended, tests of all SLOs]."""
        return _met(self.ended, slos)

    def open_missed(self, slos: Sequence[Slo]) -> Bools:
        """Which tests each open request is certain to miss. Shape [open, tests of all SLOs]."""
        return ~_met(self.open, slos)


def outcomes(
    told: Sequence[tuple[int, Open]], requests: pa.Table, token_events: pa.Table
) -> Outcomes:
    """From what clients reported while they run (``load.point.SoFar``).

    ``told``: of each client the instant of its report, ns, and its open requests; the tables: the
    rows of what ended.
    """
    measured = requests.filter(pc.equal(requests["phase"], "measure")).sort_by("scheduled_ns")
    due_ns, done_ns = (
        measured[name].to_numpy().astype(np.float64) for name in ("scheduled_ns", "done_ns")
    )
    ended = limit_values(requests, token_events, ALL_NS)
    still_open = [(due, nothing, now_ns - due) for now_ns, some in told for due, nothing in some]
    open_due_s, age_s = (
        np.array([one[at] for one in still_open], np.float64) / 1e9 for at in (0, 2)
    )
    silent = np.array([nothing for _, nothing, _ in still_open], np.bool_)
    least = {name: np.full(open_due_s.size, -np.inf) for name in ended.seconds}
    least |= {"e2e": age_s, "ttft": np.where(silent, age_s, -np.inf)}
    at_least = LimitValues(np.ones(open_due_s.size, np.bool_), least)
    now_s = min(now_ns for now_ns, _ in told) / 1e9
    return Outcomes(now_s, due_ns / 1e9, done_ns / 1e9, ended, open_due_s, at_least)


def targets(slos: Sequence[Slo]) -> list[list[float]]:
    """The targets of the tests of each SLO, in the order of ``Outcomes.met``."""
    nothing = LimitValues(np.zeros(0, np.bool_), dict.fromkeys(LIMITS, np.zeros(0)))
    return [[test.target for test in tests(nothing, slo)] for slo in slos]


def _met(values: LimitValues, slos: Sequence[Slo]) -> Bools:
    return np.stack([test.met for slo in slos for test in tests(values, slo)], axis=-1)
