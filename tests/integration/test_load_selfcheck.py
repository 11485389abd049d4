"""``selfcheck`` and its server of known timing."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.load.known_server import serve
from orchestrator.spec.dialect import Dialect
from orchestrator.sweep import selfcheck
from orchestrator.sweep.selfcheck import Trial
from tests.harness import AGAINST_THE_CLOCK
from tests.integration.test_load_hostile import point, run

pytestmark = AGAINST_THE_CLOCK


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selfcheck, "RATES", (500.0, 1000.0))
    monkeypatch.setattr(selfcheck, "STREAMS", 16)
    monkeypatch.setattr(selfcheck, "EXACT_RATE", 500.0)
    monkeypatch.setattr(selfcheck, "LEVEL_S", 0.4)
    monkeypatch.setattr(selfcheck, "PACE", 100.0)


def loaded() -> tuple[list[dict[str, Any]], dict[str, float]]:
    """What the client saw of a server that answers after 40 ms, 5 ms a token, and what that server
    says itself.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, None), daemon=True)
    process.start()
    theirs.close()
    try:
        dialect = Dialect(
            "openai_completions", "/", True, extra_body={"ttft_ms": 40.0, "itl_ms": 5.0}
        )
        result = run(point(ours.recv(), 8, concurrency=4, tokens=20, dialect=dialect))
        ours.send("stats")
        stats = ours.recv()
    finally:
        ours.close()
        process.join(10)
    assert process.exitcode == 0
    return result.requests.to_pylist(), stats


def test_the_server_keeps_its_timing_and_knows_what_it_did() -> None:
    rows, stats = loaded()
    assert {(row["status"], row["output_tokens"], row["token_count_source"]) for row in rows} == {
        ("ok", 20, "token_ids")
    }
    assert stats["events"] == 160
    seen_ms = sum(row["first_token_ns"] - row["sent_ns"] for row in rows) / len(rows) / 1e6
    assert stats["ttft_mean_ms"] == pytest.approx(40.0, abs=4.0)
    assert stats["itl_mean_ms"] == pytest.approx(5.0, abs=0.5)
    assert seen_ms == pytest.approx(stats["ttft_mean_ms"], abs=3.0)


@pytest.mark.usefixtures("quick")
def test_it_reports_rates_errors_and_what_ended_the_search() -> None:
    before = os.sched_getaffinity(0)
    found = selfcheck.selfcheck(clients=1)
    assert found["events_per_s"] in (500.0, 1000.0)
    assert found["limited_by"] in ("client", "server", "nothing")
    assert abs(found["ttft_error_ms"]["mean"]) < 20
    assert found["cpu_us_per_event"] > 0
    assert found["took_s"] < 25
    assert os.sched_getaffinity(0) == before
    json.dumps(found)


GOOD = Trial(
    events_per_s=1000.0, achieved_per_s=1000.0, ttft_error_ms={"mean": 0.1, "p99": 0.2},
    itl_error_ms={"mean": 0.0, "p99": 0.1}, cpu_us_per_event=5.0, server_late_p99_ms=0.1, evidence={"ok_share": 1.0},
)  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"achieved_per_s": 900.0},
        {"ttft_error_ms": {"mean": 3.0}},
        {"ttft_error_ms": {"mean": -3.0}},
        {"evidence": {"ok_share": 0.9}},
    ],
)
def test_a_rate_is_sustained_only_when_it_was_reached_exactly(change: dict[str, Any]) -> None:
    assert GOOD.sustained
    assert not replace(GOOD, **change).sustained


def test_a_late_server_is_not_held_against_the_client() -> None:
    assert replace(GOOD, server_late_p99_ms=30.0).servers_fault
    assert not GOOD.servers_fault


def test_the_command_explains_itself() -> None:
    command = [sys.executable, "-m", "orchestrator", "selfcheck", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "--clients" in done.stdout
    assert "server of known timing" in done.stdout
