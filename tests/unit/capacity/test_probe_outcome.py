"""What one ended probe shows under any limits."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.search.servers import TARGET
from orchestrator.analysis.slo import format_slo
from orchestrator.capacity.probe_outcome import (
    Shows,
    no_load_changes,
    outcome_of_attempt,
    outcome_of_point,
    was_overloaded,
)
from orchestrator.results.records import RequestTotals
from orchestrator.spec.load import Slo
from tests.unit.capacity.builders import LOOSE, SLO, attempt


@pytest.mark.parametrize(
    ("validity", "shows"),
    [("engine_bound_backlog", Shows.DIVERGED), ("valid", Shows.FAILURE_ONLY)],
)
def test_a_probe_that_failed_early_shows_nothing_of_other_limits(
    validity: str, shows: Shows
) -> None:
    early = {"ended_early": "fails", "ended_for": f"e2e<=9s; {format_slo(SLO)}"}
    stored = attempt(4.0, [0.6, math.nan], validity, **early)  # the second was aborted
    assert outcome_of_attempt(stored, 4.0, SLO).shows is shows
    assert outcome_of_attempt(stored, 4.0, LOOSE).shows is Shows.NOTHING


@pytest.mark.parametrize(("slo", "requests"), [(SLO, 1), (LOOSE, 2)])
def test_stored_attempts_are_judged_by_any_limits(slo: Slo, requests: int) -> None:
    stored = attempt(4.0, [0.1, 0.6, 6.0, math.nan])
    (met,) = outcome_of_attempt(stored, 4.0, slo).met
    assert met.sum() == requests


@pytest.mark.parametrize(
    ("validity", "shows"),
    [("engine_bound_backlog", Shows.FAILURE_ONLY), ("client_bound", Shows.CLIENT_BOUND)],
)
def test_a_saturated_probe_does_not_show_that_its_level_holds(validity: str, shows: Shows) -> None:
    assert outcome_of_attempt(attempt(4.0, [0.1], validity), 4.0, SLO).shows is shows


@pytest.mark.parametrize(
    ("failure_class", "shows"), [("engine_crash", Shows.ENGINE_DIED), ("infra", Shows.NOTHING)]
)
def test_only_a_failure_of_the_engine_fails_its_level(failure_class: str, shows: Shows) -> None:
    failed = attempt(4.0, [], status="failed", failure_class=failure_class)
    assert outcome_of_attempt(failed, 4.0, SLO).shows is shows


def test_an_endpoint_that_died_does_not_fail_its_level() -> None:
    died = attempt(4.0, [], status="failed", failure_class="engine_crash")
    assert outcome_of_point(died.point, 4.0, (), SLO, launched=False).shows is Shows.NOTHING


def test_a_buffered_stream_tells_when_the_first_token_came() -> None:
    assert (
        outcome_of_attempt(attempt(4.0, [0.1], "stream_buffered"), 4.0, SLO).shows
        is Shows.ANY_VERDICT
    )


def test_a_buffered_stream_makes_limits_on_tokens_pointless() -> None:
    between = Slo.model_validate({"ttft": 0.5, "tpot": 0.5, "attainment": TARGET})
    buffered = attempt(4.0, [0.1], "stream_buffered")
    assert outcome_of_attempt(buffered, 4.0, between).shows is Shows.POINTLESS


@pytest.mark.parametrize(
    ("capped_share", "shows"), [(0.005, Shows.ANY_VERDICT), (0.5, Shows.FAILURE_ONLY)]
)
def test_a_probe_whose_requests_waited_under_a_cap_shows_only_misses(
    capped_share: float, shows: Shows
) -> None:
    stored = attempt(4.0, [0.1], capped_share=capped_share)
    assert outcome_of_attempt(stored, 4.0, SLO).shows is shows


def test_a_verdict_of_another_version_ends_no_search() -> None:
    assert not no_load_changes("bewitched", SLO)


@pytest.mark.parametrize(("clients", "shows"), [(0, Shows.NOTHING), (1, Shows.ENGINE_DIED)])
def test_an_engine_that_died_fails_its_level_only_under_load(clients: int, shows: Shows) -> None:
    died = attempt(4.0, [], status="failed", failure_class="engine_crash")
    point = replace(died.point, clients=clients)
    assert outcome_of_point(point, 4.0, (), SLO).shows is shows


def test_probes_belong_to_no_start_where_the_file_asks_for_one() -> None:
    stored = attempt(4.0, [0.1], start=1)
    assert outcome_of_attempt(stored, 4.0, SLO, starts=1).start == 0
    assert outcome_of_attempt(stored, 4.0, SLO, starts=2).start == 1


@pytest.mark.parametrize(
    ("ended_early", "ok", "errors", "overloaded"),
    [
        ("fails", 0, {"aborted": 454}, True),
        ("fails", 0, {"aborted": 400, "connect": 54}, False),
        ("fails", 0, {"connect": 454}, False),
        ("fails", 1, {"aborted": 453}, False),
        (None, 0, {"aborted": 454}, False),
    ],
)
def test_a_probe_was_overloaded_if_the_search_itself_ended_all_of_its_requests(
    ended_early: str | None, ok: int, errors: dict[str, int], overloaded: bool
) -> None:
    figures: Any = SimpleNamespace(
        requests=RequestTotals(scheduled=454, ok=ok, failed=454 - ok), errors=errors
    )
    probe = attempt(64.0, [math.inf] * 454, "invalid", ended_early=ended_early)
    assert was_overloaded(replace(probe, figures=figures)) is overloaded
