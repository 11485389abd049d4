"""The share of a sweep that was neither an engine starting nor a load point."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base.clock import UnixSpan
from orchestrator.sweep.state import overhead_share

SWEEP = UnixSpan(0, 100)
SPAN = st.builds(
    lambda start_ns, length_ns: UnixSpan(start_ns, start_ns + length_ns),
    st.integers(-20, 120),
    st.integers(0, 60),
)


def test_work_that_overlaps_counts_once_and_outside_the_sweep_not_at_all() -> None:
    work = [UnixSpan(0, 40), UnixSpan(20, 50), UnixSpan(90, 200), UnixSpan(-50, -10)]
    assert overhead_share(work, SWEEP) == pytest.approx(0.4)
    assert overhead_share([], SWEEP) == 1
    assert overhead_share([UnixSpan(0, 10)], UnixSpan(5, 5)) == 0


@given(st.lists(SPAN, max_size=8))
def test_it_is_the_share_of_instants_in_no_span(work: list[UnixSpan]) -> None:
    covered = np.zeros(100, bool)
    for start, end in work:
        covered[max(start, 0) : max(end, 0)] = True
    assert overhead_share(work, SWEEP) == pytest.approx(1 - covered.mean())
