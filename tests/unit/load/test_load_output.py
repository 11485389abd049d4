"""What ``load`` prints and stores, without a server."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.cli.load_output import Watch, document, print_document, window_ns
from orchestrator.load.point import Progress, Target
from orchestrator.load.validity import judge
from orchestrator.results.schemas import TOKEN_EVENTS
from tests.unit.load.test_schedule import point
from tests.unit.load.test_validity import CALM, table

SECRET = "sk-not-for-anybody"
POINT = replace(point(value=20.0, duration_s=20.0), targets=(Target("http://h:1", "m", api_key=SECRET),), warmup_s=0.0)


def shown(capsys: pytest.CaptureFixture[str], form: str, **columns: Any) -> tuple[dict[str, Any], str]:
    first = [int(row / 20 * 1e9) + 50_000_000 for row in range(400)]
    last = [at + 90_000_000 for at in first]
    requests = table(first_token_ns=first, last_token_ns=last, **columns)
    verdict = judge(requests, [CALM], POINT)
    found = document(POINT, 1, requests, TOKEN_EVENTS.empty_table(), [CALM], verdict, ["a note"])
    print_document(found, form)
    return found, capsys.readouterr().out


def test_the_document_is_json_without_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    found, out = shown(capsys, "json")
    assert json.loads(out) == found
    assert found["ttft_ms"]["p50"] == pytest.approx(50.0)
    assert found["tpot_ms"]["p50"] == pytest.approx(10.0)
    assert found["requests"] == {"scheduled": 400, "ok": 400, "failed": 0}
    assert (found["validity"], found["notes"]) == ("valid", ["a note"])
    assert SECRET not in out


def test_the_table_names_failures_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    failed = {"status": ["error"] * 40 + ["ok"] * 360, "error_class": ["http_5xx"] * 40 + [None] * 360}
    _, out = shown(capsys, "table", **failed)
    assert "360 ok, 40 failed" in out
    assert "http_5xx: 40" in out
    assert "validity: valid" in out
    assert "50.00" in out
    assert SECRET not in out


def test_a_point_where_nothing_answered_still_prints(capsys: pytest.CaptureFixture[str]) -> None:
    dead = {"status": ["error"] * 400, "error_class": ["connect"] * 400, "output_tokens": [None] * 400}
    found, out = shown(capsys, "table", **dead)
    assert found["requests_all_phases"] == {"scheduled": 400, "ok": 0, "failed": 400}
    assert "connect: 400" in out
    assert "invalid" in out


def test_the_window_ends_with_the_duration_or_with_the_last_request() -> None:
    requests = table()
    assert window_ns(replace(POINT, warmup_s=2.0, duration_s=5.0), requests) == (2_000_000_000, 7_000_000_000)
    by_number = replace(POINT, duration_s=None, requests=400)
    assert window_ns(by_number, requests) == (0, int(399 / 20 * 1e9) + 1_000_000_000 + 1)


def test_progress_is_one_line_that_is_renewed_and_cleared(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with Watch(POINT) as watch:
        assert watch.on_progress is not None
        watch.on_progress(Progress(scheduled=9, sent=8, done=5, failed=1, in_flight=3))
    err = capsys.readouterr().err
    assert "sent 8" in err
    assert "1 failed" in err
    assert "\n" not in err
    assert err.endswith("\x1b[K")


def test_without_a_terminal_nobody_disturbs_the_client() -> None:
    assert Watch(POINT).on_progress is None
