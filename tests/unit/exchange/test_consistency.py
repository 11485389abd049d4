"""What requests say of the figures that their file states."""

from __future__ import annotations

import pytest

from orchestrator.exchange.consistency import Values


@pytest.mark.parametrize(
    ("share", "lowest", "highest"),
    [(0.0, 10, 10), (0.5, 40, 60), (0.9, 80, 100), (0.99, 90, 100), (1.0, 100, 100)],
)
def test_a_percentile_lies_between_the_neighbours_of_its_rank(
    share: float, lowest: float, highest: float
) -> None:
    values = Values(range(100, 0, -10))
    assert values.around(share) == (lowest, highest)


def test_weights_are_how_often_a_value_counts() -> None:
    weighted = Values([1.0, 2.0, 9.0, 10.0], [1, 1, 1, 7])
    mean = weighted.mean()
    assert mean is not None and mean.mean == 8.2
    assert weighted.around(0.5) == (9, 10)


def test_values_that_are_unknown_do_not_count() -> None:
    assert Values([None]).mean() is None
    assert Values([None, 3.0]).around(0.5) == (3, 3)
