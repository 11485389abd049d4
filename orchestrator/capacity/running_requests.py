"""The requests of a point that still runs, as values that limits are checked against."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orchestrator.analysis.requests import RequestParts
from orchestrator.analysis.slo import (
    LimitValues,
    limit_values,
    parts_of,
    tests_over_all_requests,
)
from orchestrator.base.arrays import Bools, Floats
from orchestrator.load.point import SoFar
from orchestrator.results.window import MeasuredWindow
from orchestrator.spec.load import LIMITS, Slo

WHOLE_POINT = MeasuredWindow(0, 2**62)  # it has no end yet


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Measured requests, without warm-up. Instants are seconds since the point's start.

    ``now_s``: the instant up to which all clients have reported. ``ended``: the values of the
    requests that ended since the last call; they were due at ``due_s`` and over at ``done_s``.
    ``open``: lower bounds on the final values of requests that have not ended yet; these were due
    at ``open_due_s``.
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

    def tested(self, slos: Sequence[Slo]) -> Bools:
        """Which tests are about each ended request: not those of other parts of a mix. Shape
        [ended, tests of all SLOs].
        """
        return _tested(self.ended, slos)

    def open_tested(self, slos: Sequence[Slo]) -> Bools:
        """Which tests are about each open request. Shape [open, tests of all SLOs]."""
        return _tested(self.open, slos)


def outcomes(reports: Sequence[SoFar], requests: pa.Table, token_events: pa.Table) -> Outcomes:
    """The requests of a running point.

    ``reports``: the last report of each client, which gives the open requests. ``requests``,
    ``token_events``: the rows of the requests that ended.
    """
    # the requests of ``ended`` in its order: ``limit_values`` leaves out warm-up and sorts likewise
    measured = requests.filter(pc.equal(requests["phase"], "measure")).sort_by("scheduled_ns")
    still_open = _open_values(reports)
    return Outcomes(
        now_s=min(report.now_ns for report in reports) / 1e9,
        due_s=_seconds(measured["scheduled_ns"]),
        done_s=_seconds(measured["done_ns"]),
        ended=limit_values(requests, token_events, WHOLE_POINT),
        open_due_s=still_open.due_s,
        open=still_open.values,
    )


def _seconds(column_ns: pa.ChunkedArray) -> Floats:
    seconds: Floats = column_ns.to_numpy().astype(np.float64) / 1e9
    return seconds


@dataclass(frozen=True, slots=True)
class _OpenValues:
    """Lower bounds on the final values of open requests, and when these were due."""

    due_s: Floats
    values: LimitValues


def _open_values(reports: Sequence[SoFar]) -> _OpenValues:
    """The open requests of these reports.

    The end-to-end time of a request is at least the time since it was due. So is its TTFT, while
    nothing of its answer has come.
    """
    due_ns: list[int] = []
    ages_ns: list[int] = []
    are_silent: list[bool] = []
    parts: list[str] = []
    for report in reports:
        open_due_ns = (*report.silent.due_ns, *report.answering.due_ns)
        due_ns += open_due_ns
        ages_ns += [report.now_ns - request_due_ns for request_due_ns in open_due_ns]
        are_silent += [True] * len(report.silent.due_ns)
        are_silent += [False] * len(report.answering.due_ns)
        parts += (*report.silent.parts, *report.answering.parts)
    age_s = np.array(ages_ns, np.float64) / 1e9
    no_bound = np.full(age_s.size, -np.inf)
    least = dict.fromkeys(LIMITS, no_bound)
    least["e2e"] = age_s
    least["ttft"] = np.where(np.array(are_silent, np.bool_), age_s, no_bound)
    of_mix: RequestParts | None = None
    if parts:
        codes: dict[str, int] = {}
        coded = [codes.setdefault(part, len(codes)) for part in parts]
        of_mix = RequestParts(tuple(codes), np.array(coded))
    values = LimitValues(ok=np.ones(age_s.size, np.bool_), seconds=least, parts=of_mix)
    return _OpenValues(np.array(due_ns, np.float64) / 1e9, values)


def _met(values: LimitValues, slos: Sequence[Slo]) -> Bools:
    columns: list[Bools] = []
    for slo in slos:
        columns += [test.met for test in tests_over_all_requests(values, slo)]
    return np.stack(columns, axis=-1)


def _tested(values: LimitValues, slos: Sequence[Slo]) -> Bools:
    parts = [part for slo in slos for part in parts_of(slo)]
    return np.stack([values.of_part(part) for part in parts], axis=-1)
