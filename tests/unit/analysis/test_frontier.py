import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.analysis.frontier import on_frontier

figures = st.integers(0, 6).map(float)  # few values: many ties


def beaten(points, index):
    """By the definition, one pair after the other."""
    first, second = points[index]
    return any(
        other_first >= first
        and other_second >= second
        and (other_first, other_second) != (first, second)
        for other_first, other_second in points
    )


@given(st.lists(st.tuples(figures, figures), max_size=30))
def test_it_is_what_the_definition_says(points):
    first, second = np.array(points, np.float64).reshape(-1, 2).T
    expected = [not beaten(points, index) for index in range(len(points))]
    assert on_frontier(first, second).tolist() == expected


@pytest.mark.parametrize("unknown", [(np.nan, 9.0), (9.0, np.nan)])
def test_a_point_with_an_unknown_figure_neither_stays_nor_beats(unknown):
    first, second = np.array([unknown, (1.0, 1.0)]).T
    assert on_frontier(first, second).tolist() == [False, True]
