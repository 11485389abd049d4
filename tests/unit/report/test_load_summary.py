"""What ``load`` prints, without a server."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import click
import pytest

from orchestrator.analysis.metrics import steady_window_ns
from orchestrator.analysis.slo import parse_slo
from orchestrator.load.point import Target
from orchestrator.load.validity import judge
from orchestrator.report.formats import json_text
from orchestrator.report.load_summary import limits_document, run_document, run_text, runs_text
from orchestrator.results.schemas import TOKEN_EVENTS
from tests.unit.load.test_schedule import point
from tests.unit.load.test_validity import CALM, table

SECRET = "sk-not-for-anybody"
POINT = replace(
    point(value=20.0, duration_s=20.0),
    targets=(Target("http://h:1", "m", api_key=SECRET),),
    warmup_s=0.0,
)


def shown(form: str, **columns: Any) -> tuple[dict[str, Any], str]:
    first = [int(row / 20 * 1e9) + 50_000_000 for row in range(400)]
    last = [at + 90_000_000 for at in first]
    requests = table(first_token_ns=first, last_token_ns=last, **columns)
    verdict = judge(requests, [CALM], POINT, 0)
    found = run_document(POINT, 1, requests, TOKEN_EVENTS.empty_table(), [CALM], verdict)
    return found, json_text(found) if form == "json" else "\n".join(run_text(found))


def test_the_document_is_json_without_secrets() -> None:
    _, out = shown("json")
    found = json.loads(out)
    assert found["ttft_ms"]["p50"] == pytest.approx(50.0)
    assert found["tpot_ms"]["p50"] == pytest.approx(10.0)
    assert found["requests"] == {"scheduled": 400, "ok": 400, "failed": 0}
    assert found["validity"] == "valid"
    assert SECRET not in out


def test_the_table_names_failures_and_reasons() -> None:
    failed = {
        "status": ["error"] * 40 + ["ok"] * 360,
        "error_class": ["http_5xx"] * 40 + [None] * 360,
    }
    _, out = shown("table", **failed)
    assert "360 ok, 40 failed" in out
    assert "http_5xx: 40" in out
    assert "validity: failing" in out
    assert "50.00" in out
    assert SECRET not in out


def test_a_point_where_nothing_answered_still_prints() -> None:
    dead = {
        "status": ["error"] * 400,
        "error_class": ["connect"] * 400,
        "output_tokens": [None] * 400,
    }
    found, out = shown("table", **dead)
    assert found["requests_all_phases"] == {"scheduled": 400, "ok": 0, "failed": 400}
    assert "connect: 400" in out
    assert "invalid" in out


def test_the_first_token_of_the_answer_is_shown_where_some_thought_aloud() -> None:
    found, out = shown("table")
    assert found["ttfo_ms"] is None
    assert "ttfo" not in out
    found, out = shown("table", first_answer_ns=[None] * 399 + [int(399 / 20 * 1e9) + 80_000_000])
    assert found["ttfo_ms"].mean == pytest.approx(80.0)
    assert "ttfo" in out


def test_each_of_several_levels_is_shown_with_its_window_lengths_count_source_and_cached_tokens() -> (
    None
):
    found, _ = shown("table", cached_tokens=[3] * 400)
    more = found | {"level": 40.0, "token_count_sources": ["chunks"], "cached_tokens": None}
    lines = list(runs_text([found | {"level": 20.0}, more]))
    told = "window: from 0.0 s, 20.0 s long; tokens a request: 100 in, 10 out"
    assert (
        f"20 req/s: {told} (counted by: token_ids), 1,200 prompt tokens came from the prefix cache"
        in lines
    )
    assert f"40 req/s: {told} (counted by: chunks)" in lines


def test_a_window_that_was_found_is_said_to_be() -> None:
    pipe = table(600, 20.0, 3.0)
    unasked = replace(POINT, warmup_s=None, duration_s=30.0)
    start_ns, end_ns = steady_window_ns(None, 30.0, pipe)
    verdict = judge(pipe, [CALM], unasked, start_ns)
    found = run_document(unasked, 1, pipe, TOKEN_EVENTS.empty_table(), [CALM], verdict)
    assert (found["warmup_s"], found["window_start_s"]) == (None, start_ns / 1e9)
    assert (
        f"window: from {start_ns / 1e9:.1f} s (in flight steady), {(end_ns - start_ns) / 1e9:.1f} "
        "s long"
    ) in "\n".join(run_text(found))
    assert (verdict.validity, verdict.reasons) == ("valid", [])


def test_the_window_ends_with_the_duration_or_with_the_last_request() -> None:
    requests = table()
    assert steady_window_ns(2.0, 5.0, requests) == (2_000_000_000, 7_000_000_000)
    assert steady_window_ns(0.0, None, requests) == (0, int(399 / 20 * 1e9) + 1_000_000_000 + 1)


def test_no_line_of_one_level_is_wider_than_a_terminal() -> None:
    slo = parse_slo("ttft<=500ms,tpot<=50ms,attainment>=0.95")
    requests, token_events = table(), TOKEN_EVENTS.empty_table()
    verdict = judge(requests, [CALM], POINT, 0)
    found = run_document(POINT, 1, requests, token_events, [CALM], verdict)
    found |= limits_document(POINT, requests, token_events, [slo])
    lines = list(run_text(found))
    first_of_table = next(at for at, line in enumerate(lines) if "p50" in line)
    assert max(map(len, map(click.unstyle, lines[first_of_table:]))) <= 80
    assert any(line.startswith("  attainment ") for line in map(click.unstyle, lines))
    assert any(line.startswith("  goodput ") for line in map(click.unstyle, lines))
