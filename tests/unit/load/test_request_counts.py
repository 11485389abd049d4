"""What is counted of a point's requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from orchestrator.load.request_counts import EndOfRun, RequestCounts
from orchestrator.spec.load import Level
from tests.unit.load.test_schedule import point
from tests.unit.results.builders import request, requests

MS = 1_000_000


def counted(*rows: dict[str, Any], from_ms: int = 0, **fields: Any) -> RequestCounts:
    table: pa.Table = requests(*rows)
    return RequestCounts(table, (), replace(point(), **fields), from_ms * MS)


def due_at(index: int, due_ms: float, took_ms: float = 10.0, **more: Any) -> dict[str, Any]:
    row = request(index, due_ms, first_ms=due_ms + took_ms / 2)
    return row | {"done_ns": round((due_ms + took_ms) * MS)} | more


def test_only_requests_of_the_window_are_counted() -> None:
    counts = counted(due_at(0, 1.0), due_at(1, 500.0), from_ms=100)
    assert len(counts) == 1


def test_a_share_of_no_requests_is_zero() -> None:
    assert counted().share("ok") == 0.0


def test_outcomes_are_counted_by_kind() -> None:
    counts = counted(
        due_at(0, 1.0),
        due_at(1, 2.0, status="lost", error_class="lost"),
        due_at(2, 3.0, status="error", error_class="http_429"),
        due_at(3, 4.0, status="error", error_class="client"),
    )
    assert counts.sums["ok"] == 1
    assert counts.sums["lost"] == 1
    assert counts.sums["refused"] == 1
    assert counts.sums["no_socket"] == 1


def test_the_time_of_a_request_counts_from_when_it_was_due() -> None:
    late = due_at(0, 100.0, took_ms=40.0) | {"sent_ns": 130 * MS}
    counts = counted(late)
    assert counts.send_delay_ms.values().tolist() == [pytest.approx(30.0)]
    assert counts.e2e_from_due_s.values().tolist() == [pytest.approx(0.04)]


def test_finish_reasons_that_are_no_good_end_are_counted_by_name() -> None:
    ends = ["stop", "content_filter", "content_filter", None]
    rows = [due_at(index, index, finish_reason=end) for index, end in enumerate(ends)]
    assert counted(*rows).odd_ends == {"content_filter": 2}


def test_open_requests_at_the_end_of_a_run_are_counted() -> None:
    rows = [due_at(index, 1_000.0 * index, took_ms=5_000.0) for index in range(9)]
    counts = counted(*rows, duration_s=None, requests=9)
    assert counts.due_until_s == 8.0  # the last one is due then, and no more before it
    assert counts.open.at_the_end() == EndOfRun(due_in_last_quarter=2, due=8, over=3)


def test_the_first_and_the_last_tenth_are_compared() -> None:
    rows = [due_at(index, 10.0 * index, took_ms=10.0 + index) for index in range(20)]
    first_s, last_s = counted(*rows).open.first_and_last_s()
    assert first_s == pytest.approx(0.0105)
    assert last_s == pytest.approx(0.0285)


def test_refused_requests_are_not_in_the_first_and_last_tenth() -> None:
    refused = due_at(0, 1.0, took_ms=0.1, status="error", error_class="http_4xx")
    assert counted(refused).open.first_and_last_s() == (0.0, 0.0)


def test_tokens_that_a_template_adds_to_every_prompt_are_no_error() -> None:
    rows = [due_at(index, index, input_tokens_asked=100, input_tokens=110) for index in range(3)]
    assert counted(*rows).prompt_lengths.relative_error([None]) == 0.0


def test_prompts_of_different_lengths_are_an_error() -> None:
    lengths = [100, 100, 130]
    rows = [
        due_at(index, index, input_tokens_asked=100, input_tokens=tokens)
        for index, tokens in enumerate(lengths)
    ]
    assert counted(*rows).prompt_lengths.relative_error([None]) == pytest.approx(0.1)


def test_idle_slots_at_the_end_of_a_closed_loop_cost_throughput() -> None:
    """Two slots; one is idle for the second that the other one takes after the last was due."""
    level = Level(control="concurrency", value=2.0)
    rows = [due_at(0, 0.0, took_ms=1_000.0), due_at(1, 1_000.0, took_ms=1_000.0)]
    counts = counted(*rows, duration_s=None, requests=2)
    assert counts.lost_at_the_end(level) == pytest.approx(0.25)


def test_constrained_answers_are_counted_by_part_and_without_a_part_by_none() -> None:
    kinds: list[tuple[str | None, bool | None]] = [
        ("forms", False),
        ("chat", True),
        (None, False),
        ("forms", True),
        ("forms", None),
    ]
    rows = [
        due_at(index, index, part=part, constraint="regex", constraint_met=met)
        for index, (part, met) in enumerate(kinds)
    ]
    free = due_at(9, 9.0, part="free")
    failed = due_at(10, 10.0, part="lost", constraint="regex", status="error")
    counts = counted(*rows, free, failed)
    assert counts.constraint_checked == {"forms": 2, "chat": 1, None: 1}
    assert counts.constraint_violated == {"forms": 1, None: 1}
