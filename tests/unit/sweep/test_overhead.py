"""The share of a sweep that was neither an engine starting nor a load point."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.sweep.state import overhead_share

SPAN = st.tuples(st.integers(-20, 120), st.integers(0, 60)).map(
    lambda made: (made[0], made[0] + made[1])
)


def test_work_that_overlaps_counts_once_and_outside_the_sweep_not_at_all() -> None:
    assert overhead_share([(0, 40), (20, 50), (90, 200), (-50, -10)], (0, 100)) == pytest.approx(
        0.4
    )
    assert overhead_share([], (0, 100)) == 1
    assert overhead_share([(0, 10)], (5, 5)) == 0


@given(st.lists(SPAN, max_size=8))
def test_it_is_the_share_of_instants_in_no_span(work: list[tuple[int, int]]) -> None:
    covered = np.zeros(100, bool)
    for start, end in work:
        covered[max(start, 0) : max(end, 0)] = True
    assert overhead_share(work, (0, 100)) == pytest.approx(1 - covered.mean())
