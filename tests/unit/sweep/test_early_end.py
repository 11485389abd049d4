"""A probe is ended once its SLOs are decided, or once its search is over."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.capacity.strategy import ProbeWatch
from orchestrator.load.point import LoadPoint, OpenRequests, Progress, SoFar
from orchestrator.plan.model import Point
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.load import Slo
from orchestrator.sweep.early_end import LEAD_S, EarlyEnd, EarlyStop
from tests.unit.sweep.simulation import plan_of

FAST = Slo(name="fast", ttft=0.2)
SECOND = 10**9
ALL_SENT = Progress(scheduled=500, sent=500)


class Run:
    """A run whose clients report ``reports``."""

    def __init__(self, *reports: SoFar) -> None:
        self.reports = list(reports)

    def so_far(self) -> list[SoFar]:
        return self.reports


def early_end(**watch: Any) -> EarlyEnd:
    point: Point
    (point,) = plan_of().points
    dialect = Dialect("openai_completions", "/v1/completions")
    load = LoadPoint(targets=(), dialect=dialect, **point.load_rules())
    return EarlyEnd(load, ProbeWatch((FAST,), **watch))


def look(end: EarlyEnd, run: Run, elapsed_s: float) -> EarlyStop | None:
    return end.look(run, ALL_SENT, elapsed_s)


def test_a_probe_goes_on_while_its_clients_report_nothing() -> None:
    end = early_end()
    assert look(end, Run(), 1.0) is None
    assert end.end is None


def test_a_probe_ends_without_a_verdict_when_its_search_is_over() -> None:
    stop = look(early_end(over=lambda: True), Run(), 7.0)
    assert stop is not None
    assert (stop.outcome, stop.at_s) == ("undecided", 7.0 + LEAD_S)
    assert stop.sentence == "ended after 7.3 s: the search is over"
    assert stop.drain


def test_a_probe_that_was_ended_is_ended_once() -> None:
    end = early_end(over=lambda: True)
    first = look(end, Run(), 7.0)
    assert look(end, Run(), 8.0) is None
    assert end.end is first is not None


def test_a_level_fails_while_its_requests_are_still_waited_for() -> None:
    unanswered = tuple(second * SECOND // 10 for second in range(400))
    run = Run(SoFar(40 * SECOND, (), silent=OpenRequests(unanswered)))
    stop = look(early_end(), run, 40.0)
    assert stop is not None
    assert stop.outcome == "fails"
    assert stop.limits == "ttft<=200ms,attainment>=0.95"
    assert "fast fails" in stop.sentence
    assert stop.at_s == pytest.approx(40.0 + LEAD_S)


def test_requests_that_may_still_be_in_time_decide_nothing() -> None:
    just_sent = (40 * SECOND - 1,) * 400
    run = Run(SoFar(40 * SECOND, (), silent=OpenRequests(just_sent)))
    assert look(early_end(), run, 40.0) is None
