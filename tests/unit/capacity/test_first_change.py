"""What to change first where a search ended without an answer."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.analysis.points import Repeat, repeat_of
from orchestrator.analysis.slo import parse_slo
from orchestrator.capacity.claim import Claim, ClaimStatus
from orchestrator.capacity.first_change import (
    FirstChange,
    LongerProbes,
    WiderPrecision,
    WidestMiss,
    first_change,
)
from orchestrator.capacity.levels import LevelEvidence
from orchestrator.results.records import RequestTotals
from tests.unit.capacity.builders import at, attempt

SLO = parse_slo("ttft<=500ms,e2e<=2s,attainment>=0.95")
EASY_E2E = replace(at(8.0), share=0.99)


def figures_of(requests: int, seconds: float) -> Any:
    """Figures of a probe whose requests were all answered."""
    totals = RequestTotals(scheduled=requests, ok=requests, failed=0)
    return SimpleNamespace(window_s=seconds, requests=totals, errors={})


def probe(level: float, ttft_s: list[float], e2e_s: float = 1.0, seconds: float = 10) -> Repeat:
    data = attempt(level, ttft_s)
    figures = figures_of(len(ttft_s), seconds)
    return repeat_of(replace(data, request_e2e_s=[e2e_s] * len(ttft_s), figures=figures), SLO)


def change(
    status: ClaimStatus,
    probes: list[Repeat],
    *levels: LevelEvidence,
    claim: float | None = None,
    high: float = math.inf,
) -> FirstChange | None:
    found = Claim(claim, claim or 0.0, high, status, levels)
    return first_change(found, probes, SLO)


def test_where_nothing_holds_the_limit_is_named_that_most_requests_miss() -> None:
    lowest = probe(0.5, [0.3] * 60 + [0.8] * 40)
    miss = change("nothing_holds", [probe(4.0, [2.0] * 100), lowest])
    assert isinstance(miss, WidestMiss)
    assert (miss.level, miss.limit.name, miss.met) == (0.5, "ttft", 0.6)
    assert (miss.needed, miss.value_s) == (0.95, 0.8)


def test_a_lower_level_that_met_every_limit_is_passed_over() -> None:
    few = probe(0.25, [0.3] * 20)
    miss = change("nothing_holds", [few, probe(0.5, [0.3] * 60 + [0.8] * 40)])
    assert isinstance(miss, WidestMiss)
    assert miss.level == 0.5


def test_the_limit_that_is_missed_by_more_requests_comes_first() -> None:
    miss = change("nothing_holds", [probe(0.5, [0.3] * 60 + [0.8] * 40, e2e_s=3.0)])
    assert isinstance(miss, WidestMiss)
    assert (miss.limit.name, miss.value_s) == ("e2e", 3.0)


def test_limits_that_are_missed_only_together_name_none() -> None:
    data = attempt(0.5, [0.3] * 96 + [0.8] * 4)
    figures = figures_of(100, seconds=10)
    late = [3.0] * 4 + [1.0] * 96  # other requests than those with a late first token
    both = repeat_of(replace(data, request_e2e_s=late, figures=figures), SLO)
    assert change("nothing_holds", [both]) is None


def test_requests_without_an_answer_are_within_no_limit() -> None:
    miss = change("nothing_holds", [probe(0.5, [0.3] * 60 + [math.nan] * 40)])
    assert isinstance(miss, WidestMiss)
    assert math.isinf(miss.value_s)


def test_a_claim_near_what_fails_is_an_answer_at_a_wider_precision() -> None:
    assert change("unresolved", [], claim=10.0, high=11.75) == WiderPrecision(0.18)


def test_a_level_that_is_open_takes_longer_probes() -> None:
    open_level = replace(at(8.0), share=0.97, requests=2000)
    found = change("unresolved", [probe(8.0, [0.1] * 100, seconds=12.5)], open_level, high=16.0)
    assert isinstance(found, LongerProbes)
    assert found.level == 8.0
    assert found.seconds > 2000 / 8 / 8  # eight probes of these had not been enough


@pytest.mark.parametrize("status", ["converged", "budget", "cliff", "client_bound"])
def test_other_ends_need_no_change(status: ClaimStatus) -> None:
    assert change(status, [probe(0.5, [0.8] * 40)], claim=10.0, high=11.0) is None


def test_without_requests_nothing_is_known_to_change() -> None:
    assert change("nothing_holds", [probe(0.5, [])]) is None
    assert change("unresolved", []) is None
