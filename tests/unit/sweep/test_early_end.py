"""A probe is ended once its SLOs are decided, or once its search is over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from orchestrator.capacity.strategy import ProbeWatch
from orchestrator.load.point import LoadPoint, OpenRequests, Progress, SoFar
from orchestrator.plan.model import Point
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.load import Slo
from orchestrator.sweep.early_end import LEAD_S, EarlyEnd
from tests.unit.sweep.simulation import plan_of

FAST = Slo(name="fast", ttft=0.2)
SECOND = 10**9
ALL_SENT = Progress(scheduled=500, sent=500)


@dataclass
class Run:
    """A client's run that reports ``reports`` once, and notes how it was ended."""

    reports: list[SoFar] = field(default_factory=list)
    ends: list[tuple[float, bool]] = field(default_factory=list)  # at_s, drain

    def so_far(self) -> list[SoFar]:
        return self.reports

    def finish(self, at_s: float, drain: bool) -> None:
        self.ends.append((at_s, drain))


def early_end(**watch: Any) -> EarlyEnd:
    point: Point
    (point,) = plan_of().points
    dialect = Dialect("openai_completions", "/v1/completions")
    load = LoadPoint(targets=(), dialect=dialect, **point.load_rules())
    return EarlyEnd(load, ProbeWatch((FAST,), **watch))


def look(end: EarlyEnd, run: Run, elapsed_s: float, progress: Progress = ALL_SENT) -> Any:
    return end.look(cast("Any", run), progress, elapsed_s)


def test_a_probe_goes_on_while_its_clients_report_nothing() -> None:
    end, run = early_end(), Run()
    assert look(end, run, 1.0) is None
    assert run.ends == []


def test_a_probe_ends_without_a_verdict_when_its_search_is_over() -> None:
    end, run = early_end(over=lambda: True), Run()
    stop = look(end, run, 7.0)
    assert (stop.outcome, stop.at_s) == ("undecided", 7.0 + LEAD_S)
    assert stop.sentence == "ended after 7.3 s: the search is over"
    assert run.ends == [(stop.at_s, True)]


def test_a_probe_that_was_ended_is_ended_once() -> None:
    end, run = early_end(over=lambda: True), Run()
    first = look(end, run, 7.0)
    assert look(end, run, 8.0) is first
    assert len(run.ends) == 1


def test_a_level_fails_while_its_requests_are_still_waited_for() -> None:
    unanswered = tuple(second * SECOND // 10 for second in range(400))
    end, run = early_end(), Run([SoFar(40 * SECOND, (), silent=OpenRequests(unanswered))])
    stop = look(end, run, 40.0)
    assert stop.outcome == "fails"
    assert stop.limits == "ttft<=200ms,attainment>=0.95"
    assert "fast fails" in stop.sentence
    (ended,) = run.ends
    assert ended[0] == pytest.approx(40.0 + LEAD_S)


def test_requests_that_may_still_be_in_time_decide_nothing() -> None:
    just_sent = (40 * SECOND - 1,) * 400
    end, run = early_end(), Run([SoFar(40 * SECOND, (), silent=OpenRequests(just_sent))])
    assert look(end, run, 40.0) is None
