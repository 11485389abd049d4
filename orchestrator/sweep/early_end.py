"""Says when a search's probe may end, because it is known whether the level holds its limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, Protocol

from orchestrator.analysis.slo import format_limits, targets_of
from orchestrator.capacity.probe_outcome import SEPARATOR
from orchestrator.capacity.running_requests import outcomes
from orchestrator.capacity.sequential_test import Probe, next_look_s
from orchestrator.capacity.strategy import ProbeWatch
from orchestrator.load.point import LoadPoint, Progress, SoFar
from orchestrator.load.rows import tables

# the outcome of all SLOs of a probe together; undecided: at least one of them has no verdict
EarlyOutcome = Literal["holds", "fails", "mixed", "undecided"]
LEAD_S = 0.3  # seconds in which the message to end a run reaches all clients


class WatchedRun(Protocol):
    """A probe that runs, on clients or in a simulation."""

    def so_far(self) -> list[SoFar]:
        """What each client reports since the last call."""
        ...


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """When and why a probe ends early. ``at_s``: in seconds since its start, from when on no request
    is due. ``limits``: its SLOs' limits, as the column ``ended_for`` holds them. ``drain``: requests
    that are open then are waited for; otherwise they are aborted, because requests come in faster
    than they are answered.
    """

    at_s: float
    outcome: EarlyOutcome
    sentence: str
    limits: str
    drain: bool = True


class EarlyEnd:
    """Watches one probe until its SLOs are decided. ``end``: when and why the probe ends; None until
    that is known.
    """

    def __init__(self, point: LoadPoint, watch: ProbeWatch) -> None:
        self._point = point
        self._slos = watch.slos
        self._is_search_over = watch.over
        targets = [targets_of(slo) for slo in watch.slos]
        self._probe = Probe(targets, watch.before, watch.size)
        self._next_look_s = 0.0  # since the start of the probe
        self._is_capped = False  # max_in_flight keeps the load below the level
        self.end: EarlyStop | None = None

    def look(self, run: WatchedRun, progress: Progress, elapsed_s: float) -> EarlyStop | None:
        """Returns, once, when and why the run ends: every SLO has its verdict, a verdict would take
        too long, or the search is over. None before and after that.
        """
        if self.end is not None:
            return None
        if self._is_search_over():
            return self._stop_after(elapsed_s, "undecided", "the search is over")
        if elapsed_s < self._next_look_s:
            return None
        reports = run.so_far()
        if not reports:
            return None
        self._next_look_s = next_look_s(elapsed_s)
        verdicts = self._update_probe(reports, progress)
        now_s = max(report.now_ns for report in reports) / 1e9
        decided = [verdict for verdict in verdicts if verdict is not None]
        if len(decided) < len(verdicts):
            if self._probe.takes_longer:
                return self._stop_after(now_s, "undecided", "a verdict would take too long")
            return None
        outcome: EarlyOutcome = decided[0] if len(set(decided)) == 1 else "mixed"
        pairs = zip(self._slos, decided, strict=True)
        why = ", ".join(f"{slo.name} {verdict}" for slo, verdict in pairs)
        if self._probe.diverging:
            why = f"{why} (requests come in faster than they are answered)"
        return self._stop_after(now_s, outcome, why)

    def _update_probe(
        self, reports: Sequence[SoFar], progress: Progress
    ) -> Sequence[Literal["holds", "fails"] | None]:
        """Tell the probe what the clients reported since the last look. Returns the verdict on each
        SLO, None where it is open.
        """
        ended_requests = list(chain.from_iterable(report.ended for report in reports))
        requests, token_events = tables(self._point, ended_requests)
        new = outcomes(reports, requests, token_events)
        slos = self._slos
        self._probe.tell(new.due_s, new.done_s, new.met(slos), new.tested(slos))
        self._is_capped = self._is_capped or progress.sent < progress.scheduled
        return self._probe.look(
            new.now_s,
            new.open_due_s,
            new.open_missed(slos),
            self._is_capped,
            new.open_tested(slos),
        )

    def _stop_after(self, now_s: float, outcome: EarlyOutcome, why: str) -> EarlyStop:
        """Note that the run ends LEAD_S seconds after ``now_s``, and why."""
        at_s = now_s + LEAD_S
        limits = SEPARATOR.join(map(format_limits, self._slos))
        sentence = f"ended after {at_s:.1f} s: {why}"
        self.end = EarlyStop(at_s, outcome, sentence, limits, drain=not self._probe.diverging)
        return self.end
