"""What constraints came to in an attempt, and what they cost beside its free requests."""

from __future__ import annotations

import pyarrow as pa
import pytest

from orchestrator.analysis.guidance import guidance_of
from orchestrator.results.schemas import REQUESTS
from orchestrator.results.window import MeasuredWindow
from tests.unit.load.test_validity import table

WINDOW = MeasuredWindow(0, 10_000_000_000)


def requests(
    met: list[bool | None], free: int, reasons: list[str | None] | None = None
) -> pa.Table:
    """Constrained requests with TTFT 30 ms and TPOT 12 ms, then free ones with 20 ms and 10 ms.
    ``reasons``: why answers ended; None: all by themselves.
    """
    constrained = len(met)
    rows = table(
        constrained + free,
        rate=20.0,
        constraint=["regex"] * constrained + [None] * free,
        constraint_met=[*met, *[None] * free],
        finish_reason=reasons or ["stop"] * (constrained + free),
    )
    due_ns = rows["scheduled_ns"].to_pylist()
    ttft_ns = [30_000_000] * constrained + [20_000_000] * free
    tpot_ns = [12_000_000] * constrained + [10_000_000] * free
    first_ns = [due + ttft for due, ttft in zip(due_ns, ttft_ns, strict=True)]
    last_ns = [first + 9 * tpot for first, tpot in zip(first_ns, tpot_ns, strict=True)]
    for name, values in (("first_token_ns", first_ns), ("last_token_ns", last_ns)):
        at = REQUESTS.get_field_index(name)
        rows = rows.set_column(at, REQUESTS.field(name), pa.array(values, pa.int64()))
    return rows


def test_without_constraints_there_is_nothing_to_say() -> None:
    assert guidance_of(requests([], 20), WINDOW) is None
    assert guidance_of(REQUESTS.empty_table(), WINDOW) is None


def test_latencies_of_constrained_and_free_requests_stand_side_by_side() -> None:
    met = [True] * 6 + [False] * 2 + [None] * 2
    reasons = ["stop"] * 8 + ["LENGTH", None] + ["stop"] * 30
    guidance = guidance_of(requests(met, 30, reasons), WINDOW)
    assert guidance is not None
    assert guidance.constrained_share == 0.25
    assert guidance.constraint_violations == 2
    assert guidance.constraint_cut_share == pytest.approx(0.1)
    assert guidance.constraint_unchecked_share == pytest.approx(0.1)
    assert (guidance.constrained_ttft_ms, guidance.free_ttft_ms) == (30.0, 20.0)
    assert (guidance.constrained_tpot_ms, guidance.free_tpot_ms) == (12.0, 10.0)


def test_a_few_requests_give_no_median() -> None:
    guidance = guidance_of(requests([True] * 8, 4), WINDOW)
    assert guidance is not None
    assert guidance.constrained_tpot_ms == 12.0
    assert guidance.free_ttft_ms is None and guidance.free_tpot_ms is None


def test_requests_outside_the_window_do_not_count() -> None:
    rows = requests([True] * 10, 10)
    half = guidance_of(rows, MeasuredWindow(250_000_000, 10_000_000_000))
    assert half is not None and half.constrained_share == pytest.approx(5 / 15)
    assert guidance_of(rows, MeasuredWindow(500_000_000, 10_000_000_000)) is None


def test_in_a_mix_only_requests_of_the_same_part_are_compared() -> None:
    rows = requests([True] * 10, 10)
    place = REQUESTS.get_field_index("part")
    parts = pa.array(["extract"] * 10 + ["chat"] * 10)
    guidance = guidance_of(rows.set_column(place, REQUESTS.field(place), parts), WINDOW)
    assert guidance is not None and guidance.constrained_share == 0.5
    assert (guidance.constrained_ttft_ms, guidance.free_ttft_ms) == (None, None)
    both = pa.array(["extract", "chat"] * 10)
    guidance = guidance_of(rows.set_column(place, REQUESTS.field(place), both), WINDOW)
    assert guidance is not None
    assert (guidance.constrained_ttft_ms, guidance.free_ttft_ms) == (30.0, 20.0)
