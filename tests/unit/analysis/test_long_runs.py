"""Runs of more requests than are in memory at once: the same answers, and memory for a few columns
only.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from orchestrator.analysis.metrics import figures, observe, steady_window
from orchestrator.analysis.slo import limit_values
from orchestrator.load.validity import judge
from orchestrator.results.lazy_rows import LazyRows, Rows
from orchestrator.results.window import MeasuredWindow
from tests.unit.load.test_validity import CALM, OPEN, table
from tests.unit.results.builders import events, part_of

COUNT = 500


def one_run(count: int = COUNT) -> tuple[pa.Table, pa.Table]:
    """Every third request failed; of the others every second has gaps. In the order in which they
    ended.
    """
    rng = np.random.default_rng(3)
    took_s = rng.lognormal(0, 0.5, count)
    numbers = np.arange(count)
    ok = numbers % 3 > 0
    due_ns = (numbers // 2 / 10 * 1e9).astype(np.int64)  # two at a time
    first_ns = due_ns + (took_s * 3e8).astype(np.int64)
    rows = table(
        count,
        service_s=took_s,
        scheduled_ns=due_ns,
        sent_ns=due_ns + rng.integers(0, 10**7, count),
        status=np.where(ok, "ok", "error"),
        error_class=pa.array(np.where(numbers % 2, "http_5xx", "timeout"), mask=ok),
        first_token_ns=pa.array(first_ns, mask=~ok),
        last_token_ns=pa.array(first_ns + 9 * 10**7, mask=~ok),
        hidden_tokens=numbers % 2,
        cached_tokens=numbers % 5,
        turn=numbers % 4,
        input_tokens=100 + numbers % 7,
        itl_kind=["token"] * count,
    )
    order = rng.permutation(count)
    gaps = {int(at): rng.integers(1, 30, 9).tolist() for at in order if ok[at] and at % 2}
    return rows.take(pa.array(order)), events(gaps)


def lazy(name: str, rows: pa.Table) -> LazyRows:
    """As two clients wrote them."""
    half = rows.num_rows // 2
    return LazyRows.of(name, [part_of(name, rows.slice(0, half)), part_of(name, rows.slice(half))])


@dataclass(frozen=True)
class Answers:
    """What is computed from the rows of a run. ``values``: those of its limits, as text."""

    window: MeasuredWindow
    figures: dict[str, Any]
    values: str
    verdict: dict[str, Any]


def answers(requests: Rows, token_events: Rows) -> Answers:
    window = steady_window(None, OPEN.duration_s, requests)
    values = limit_values(requests, token_events, window)
    verdict = judge(requests, (CALM,), OPEN, window.start_ns)
    arrays = {"ok": values.ok, **values.seconds}
    return Answers(
        window,
        asdict(figures(observe(requests, token_events, window))),
        repr([(name, array.tolist()) for name, array in arrays.items()]),
        asdict(verdict),
    )


def few_at_once(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    for module in ("analysis.requests", "results.columns", "results.lazy_rows"):
        monkeypatch.setattr(f"orchestrator.{module}.AT_ONCE", most)


@pytest.mark.parametrize("reordered", [False, True])
def test_requests_in_parts_give_what_all_of_them_give(
    monkeypatch: pytest.MonkeyPatch, reordered: bool
) -> None:
    requests, token_events = one_run()
    if reordered:  # not as clients write them
        token_events = token_events.sort_by("request_index")
    whole = answers(requests, token_events)
    assert whole.figures["requests"]["ok"] > 100
    assert whole.figures["throughput_basis"] == "mixed"
    assert whole.verdict["reasons"]
    few_at_once(monkeypatch, 7)
    for rows in (
        (requests, token_events),
        (lazy("requests", requests), lazy("token_events", token_events)),
    ):
        in_parts = answers(*rows)
        assert in_parts.window == whole.window
        assert in_parts.values == whole.values
        assert flat(in_parts.figures) == pytest.approx(flat(whole.figures), rel=1e-12)
        evidence = flat(in_parts.verdict["evidence"])
        assert evidence == pytest.approx(flat(whole.verdict["evidence"]), rel=1e-9)
        assert in_parts.verdict["reasons"] == whole.verdict["reasons"]


def test_figures_are_the_same_to_the_digit_in_any_order_of_requests() -> None:
    requests, token_events = one_run()
    again = requests.take(pa.array(np.random.default_rng(4).permutation(COUNT)))
    first, second = (
        figures(observe(rows, token_events, MeasuredWindow(0, 2**62))) for rows in (requests, again)
    )
    assert asdict(first) == asdict(second)


@pytest.mark.parametrize(
    ("call", "most"),
    [
        (lambda rows, gaps: figures(observe(rows, gaps, MeasuredWindow(0, 2**62))), 80),
        (lambda rows, gaps: limit_values(rows, gaps, MeasuredWindow(0, 2**62)), 128),
        (lambda rows, gaps: judge(rows, (CALM,), OPEN, 0), 48),
    ],
    ids=["figures", "limits", "verdict"],
)
def test_memory_grows_with_few_columns_of_the_requests(
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[[Rows, Rows], object],
    most: int,  # bytes a request
) -> None:
    few_at_once(monkeypatch, 1_000)
    peaks = []
    for count in (10_000, 30_000):
        requests, token_events = one_run(count)
        rows, gaps = lazy("requests", requests), lazy("token_events", token_events)
        tracemalloc.start()
        call(rows, gaps)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert (peaks[1] - peaks[0]) / 20_000 < most, peaks


def flat(value: Any, path: str = "") -> dict[str, float]:
    """Nested figures by their path; a text is a part of its path."""
    if isinstance(value, int | float):
        return {path: value}
    if not isinstance(value, dict):
        return {f"{path}={value}": 0.0}
    figures_by_path: dict[str, float] = {}
    for name, nested in value.items():
        figures_by_path |= flat(nested, f"{path}.{name}")
    return figures_by_path
