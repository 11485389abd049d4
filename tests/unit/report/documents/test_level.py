"""What ``load`` knows of one level: its window, all its requests, its limits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.analysis.metrics import steady_window
from orchestrator.analysis.slo import parse_slo
from orchestrator.load.point import LoadPoint, Target
from orchestrator.load.validity import judge
from orchestrator.report.as_json import level_json
from orchestrator.report.documents.level import (
    LevelDocument,
    LevelSource,
    MeasuredLevel,
    level_document,
)
from orchestrator.report.formats import json_text
from orchestrator.results.records import RequestTotals
from orchestrator.results.schemas import TOKEN_EVENTS
from orchestrator.spec.load import Slo
from tests.unit.load.test_schedule import point
from tests.unit.load.test_validity import CALM, table

SECRET = "sk-not-for-anybody"
POINT = replace(
    point(value=20.0, duration_s=20.0),
    targets=(Target("http://h:1", "m", api_key=SECRET),),
    warmup_s=0.0,
)
SOURCE = LevelSource(seed=7, repeat=0, emulated=False, cache_state="unknown")


def document_of(
    requests: Any,
    slos: Sequence[Slo] = (),
    source: LevelSource = SOURCE,
    load: LoadPoint = POINT,
) -> LevelDocument:
    """The document of a level with these requests."""
    start_ns, _ = steady_window(load.warmup_s, load.duration_s, requests)
    measured = MeasuredLevel(
        point=load,
        clients=1,
        requests=requests,
        token_events=TOKEN_EVENTS.empty_table(),
        stats=[CALM],
        verdict=judge(requests, [CALM], load, start_ns),
    )
    return level_document(measured, source, slos)


def answered(**columns: Any) -> Any:
    """400 requests in 20 s: first tokens after 50 ms, the last ones 90 ms later."""
    first_ns = [int(row / 20 * 1e9) + 50_000_000 for row in range(400)]
    last_ns = [first + 90_000_000 for first in first_ns]
    return table(first_token_ns=first_ns, last_token_ns=last_ns, **columns)


def failed(errors: int, **columns: Any) -> Any:
    """The first requests failed with HTTP errors."""
    statuses = ["error"] * errors + ["ok"] * (400 - errors)
    classes = ["http_5xx"] * errors + [None] * (400 - errors)
    return answered(status=statuses, error_class=classes, **columns)


def test_the_document_as_json_has_the_figures_and_no_secret() -> None:
    text = json_text(level_json(document_of(answered())))
    found = json.loads(text)
    assert found["ttft_ms"]["p50"] == pytest.approx(50.0)
    assert found["tpot_ms"]["p50"] == pytest.approx(10.0)
    assert found["requests"] == {"scheduled": 400, "ok": 400, "failed": 0}
    assert found["validity"] == "valid"
    assert SECRET not in text


def test_json_has_the_seed_of_the_run_and_limits_only_where_some_were_given() -> None:
    without_limits = level_json(document_of(answered()))
    assert without_limits["seed"] == 7
    assert "slo" not in without_limits
    with_limits = level_json(document_of(answered(), [parse_slo("ttft<=60ms,attainment>=0.9")]))
    last_names = ["slo", "repeat", "emulated", "cache_state", "notes", "results", "name"]
    assert list(with_limits)[-7:] == last_names


def test_requests_of_the_warm_up_are_counted_with_all_others() -> None:
    load = replace(POINT, warmup_s=5.0, duration_s=15.0)
    document = document_of(failed(40, phase=["warmup"] * 100 + ["measure"] * 300), load=load)
    assert document.figures.requests.scheduled == 300
    assert document.all_requests.totals == RequestTotals(scheduled=400, ok=360, failed=40)


def test_in_flight_is_the_mean_over_the_window() -> None:
    # 20 requests a second that take a second each
    document = document_of(table(service_s=1.0))
    assert document.all_requests.in_flight_mean == pytest.approx(20.0, rel=0.03)


def test_cached_tokens_are_unknown_unless_the_engine_reports_some() -> None:
    assert document_of(answered()).all_requests.cached_tokens is None
    reported = [3] * 100 + [None] * 300
    assert document_of(answered(cached_tokens=reported)).all_requests.cached_tokens == 300


def test_each_class_of_error_has_its_commonest_message() -> None:
    messages = ["rare"] * 10 + ["common"] * 30 + [None] * 360
    document = document_of(failed(40, error=messages))
    assert document.all_requests.error_texts == {"http_5xx": "common"}


def test_a_window_without_a_given_warm_up_begins_where_the_run_became_steady() -> None:
    load = replace(POINT, warmup_s=None, duration_s=30.0)
    requests = table(600, 20.0, 3.0)
    start_ns, end_ns = steady_window(None, 30.0, requests)
    document = document_of(requests, load=load)
    assert document.window_was_found
    assert document.window_start_s == start_ns / 1e9
    assert document.figures.window_s == (end_ns - start_ns) / 1e9
    assert (document.validity, document.validity_reasons) == ("valid", ())


def test_the_window_ends_with_the_duration_or_with_the_last_request() -> None:
    requests = table()
    assert steady_window(2.0, 5.0, requests) == (2_000_000_000, 7_000_000_000)
    assert steady_window(0.0, None, requests) == (0, int(399 / 20 * 1e9) + 1_000_000_000 + 1)


def test_a_level_whose_requests_failed_is_failing_whatever_the_client_did() -> None:
    assert document_of(failed(40)).validity == "failing"


def test_a_level_whose_requests_were_cut_off_is_not_failing() -> None:
    statuses = ["aborted"] * 40 + ["ok"] * 360
    classes = ["aborted"] * 40 + [None] * 360
    document = document_of(answered(status=statuses, error_class=classes))
    assert document.figures.errors == {"aborted": 40}
    assert document.validity == "valid"


def test_limits_are_judged_over_the_requests_of_the_window() -> None:
    result = document_of(answered(), [parse_slo("ttft<=40ms,attainment>=0.9")]).slo_result
    assert result is not None
    assert result.attainment is not None
    assert (result.attainment.estimate, result.is_met, result.goodput) == (0.0, False, 0.0)


def test_parts_of_a_mix_have_their_facts() -> None:
    requests = answered(
        part=["chat", "forms"] * 200,
        cached_tokens=[50, None] * 200,
        constraint=[None, "regex"] * 200,
        constraint_met=[None, False] * 2 + [None, True] * 198,
    )
    level: Any = level_json(document_of(requests))
    chat, forms = level["parts"]
    assert (chat["cached_share"], forms["cached_share"]) == (0.5, 0.0)
    assert (chat["constraint_violations"], forms["constraint_violations"]) == (None, 2)
