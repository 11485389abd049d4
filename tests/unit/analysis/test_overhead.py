"""What share of a sweep was ours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.analysis.overhead import overhead, overhead_share, sweep_overhead, union
from tests.unit.results.builders import point_row, table

S = 10**9
SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=8)


def test_what_neither_start_up_nor_measurement_covers_is_overhead() -> None:
    found = overhead([(0, 100 * S)], [(10 * S, 30 * S), (20 * S, 40 * S)], [(40 * S, 90 * S), (50 * S, 60 * S)])
    assert (found.share, found.wall_s, found.startup_s, found.measuring_s, found.overhead_s) == (0.2, 100, 30, 50, 20)


def test_a_launch_that_measures_while_another_starts_counts_once() -> None:
    assert overhead([(0, 10)], [(0, 10)], [(0, 10)]).share == 0
    assert overhead_share([(0, 6), (4, 8)], (0, 10)) == pytest.approx(0.2)


def test_work_outside_the_sweep_does_not_count() -> None:
    found = overhead([(10, 20), (30, 40)], [(0, 15)], [(18, 32)])
    assert found.share == pytest.approx((20 - 5 - 2 - 2) / 20)


def test_a_sweep_of_no_length_has_no_share() -> None:
    assert overhead([], [(0, 5)], []).share is None
    assert overhead_share([], (5, 5)) == 0


@given(SPANS, SPANS, SPANS)
def test_it_is_what_counting_instants_gives(
    sweeps: list[tuple[int, int]], startups: list[tuple[int, int]], points: list[tuple[int, int]]
) -> None:
    def instants(spans: list[tuple[int, int]]) -> set[int]:
        return {at for start, end in spans for at in range(start, end)}

    found = overhead(sweeps, startups, points)
    wall, work = instants(sweeps), instants(startups) | instants(points)
    assert found.wall_s * S == pytest.approx(len(wall))
    assert found.overhead_s * S == pytest.approx(len(wall - work))


@given(SPANS)
def test_a_union_is_ordered_and_disjoint(spans: list[tuple[int, int]]) -> None:
    merged = union(spans)
    assert all(left[1] < right[0] for left, right in zip(merged, merged[1:], strict=False))


def launch(started_s: float, placed_s: float | None, ready_s: float | None, held_s: float | None) -> dict[str, object]:
    return {
        "launch_id": "L", "deployment_id": "d", "experiment": "e", "status": "ok", "placed_s": placed_s,
        "ready_s": ready_s, "held_s": held_s, "started_unix_ns": round(started_s * S), "emulated": False,
    }  # fmt: skip


def event(kind: str, at_s: float) -> dict[str, object]:
    return {"unix_ns": round(at_s * S), "kind": kind, "text": "."}


def points(*spans: tuple[float, float]) -> list[dict[str, object]]:
    return [
        point_row("m", f"a{index}", started_unix_ns=round(start * S), window_end_ns=round((end - start) * S))
        for index, (start, end) in enumerate(spans)
    ]


def test_it_is_computed_from_the_stored_rows() -> None:
    found = sweep_overhead(
        table("launches", [launch(2, placed_s=1, ready_s=20, held_s=90)]),
        table("points", points((25, 55), (60, 90))),
        table("events", [event("sweep", 0), event("retry", 50), event("stop", 100)]),
    )
    assert (found.wall_s, found.startup_s, found.measuring_s) == (100, 20, 60)
    assert found.share == pytest.approx(0.2)


def test_a_launch_that_never_was_ready_started_up_for_as_long_as_it_held() -> None:
    found = sweep_overhead(
        table("launches", [launch(0, 1, None, 9), launch(10, None, None, None)]),
        table("points", []),
        table("events", []),
    )
    assert (found.wall_s, found.startup_s) == (10, 9)


def test_the_time_between_a_killed_driver_and_the_next_run_is_no_part_of_the_sweep() -> None:
    found = sweep_overhead(
        table("launches", []),
        table("points", points((10, 20), (1010, 1030))),
        table("events", [event("sweep", 0), event("sweep", 1000), event("stop", 1040)]),
    )
    assert found.wall_s == 20 + 40
    assert found.share == pytest.approx(30 / 60)


def test_without_any_row_there_is_no_share() -> None:
    assert sweep_overhead(table("launches", []), table("points", []), table("events", [])).share is None
