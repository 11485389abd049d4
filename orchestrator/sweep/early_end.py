"""Ends a search's probe as soon as it is known whether the level holds its limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from orchestrator.analysis.slo import format_limits
from orchestrator.capacity.outcomes import ClientReport, outcomes, targets
from orchestrator.capacity.probe_outcome import SEPARATOR
from orchestrator.capacity.sequential_test import Probe, next_look_s
from orchestrator.capacity.strategy import ProbeWatch
from orchestrator.load.point import LoadPoint, Progress
from orchestrator.load.rows import tables

if TYPE_CHECKING:
    from orchestrator.cluster.clients import ClientRun

Outcome = Literal["holds", "fails", "mixed", "undecided"]
LEAD_S = 0.3  # for the message to reach all clients


@dataclass(frozen=True, slots=True)
class Early:
    """When and why a probe ended early. ``at_s``: since its start; ``outcome``: of all its SLOs;
    ``undecided``: at least one has no verdict. ``limits``: of these SLOs, as a row holds them.
    """

    at_s: float
    outcome: Outcome
    says: str
    limits: str


class EarlyEnd:
    """Watches one probe."""

    def __init__(self, point: LoadPoint, watch: ProbeWatch) -> None:
        self._point = point
        self._slos = watch.slos
        self._is_search_over = watch.over
        self._probe = Probe(targets(watch.slos), watch.before, watch.expected)
        self._next_s = 0.0
        self._is_capped = False  # max_in_flight keeps the load below the level
        self.end: Early | None = None

    def look(self, run: ClientRun, progress: Progress, elapsed_s: float) -> Early | None:
        """End the run once every SLO has its verdict, a verdict would take too long, or the search
        is over; returns that end.

        Open requests are waited for, unless requests come in faster than they are answered: then
        they are aborted.
        """
        if self.end is not None:
            return self.end
        if self._is_search_over():
            return self._end(run, elapsed_s, "undecided", "the search is over")
        if elapsed_s < self._next_s:
            return None
        parts = run.so_far()
        if not parts:
            return None
        self._next_s = next_look_s(elapsed_s)
        over = [table for part in parts for table in part.ended]
        requests, token_events = tables(self._point, over)
        reports = [ClientReport(part.now_ns, part.open) for part in parts]
        found = outcomes(reports, requests, token_events)
        self._probe.tell(found.due_s, found.done_s, found.met(self._slos))
        self._is_capped = self._is_capped or progress.sent < progress.scheduled
        verdicts = self._probe.look(
            found.now_s, found.open_due_s, found.open_missed(self._slos), self._is_capped
        )
        now_s = max(part.now_ns for part in parts) / 1e9
        if None in verdicts:
            if self._probe.takes_longer:
                return self._end(run, now_s, "undecided", "a verdict would take too long")
            return None
        outcome = verdicts[0] if len(set(verdicts)) == 1 else "mixed"
        pairs = zip(self._slos, verdicts, strict=True)
        why = ", ".join(f"{slo.name} {verdict}" for slo, verdict in pairs)
        if self._probe.diverging:
            why = f"{why} (requests come in faster than they are answered)"
        return self._end(run, now_s, outcome or "mixed", why)

    def _end(self, run: ClientRun, now_s: float, outcome: Outcome, why: str) -> Early:
        at_s = now_s + LEAD_S
        limits = SEPARATOR.join(map(format_limits, self._slos))
        self.end = Early(at_s, outcome, f"ended after {at_s:.1f} s: {why}", limits)
        run.finish(at_s, drain=not self._probe.diverging)
        return self.end
