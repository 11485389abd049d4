"""Columns of numbers and their quantiles."""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.results.columns import NumberColumn, or_zero, quantiles


def test_a_column_without_rows_is_empty() -> None:
    assert NumberColumn(np.int64).values().tolist() == []


def test_a_column_keeps_the_order_in_which_slices_were_added() -> None:
    column = NumberColumn(np.int64)
    column.add(np.array([3, 1]))
    column.add(np.array([2]))
    assert column.values().tolist() == [3, 1, 2]


def test_a_column_is_read_in_another_order() -> None:
    column = NumberColumn(np.int64)
    column.add(np.array([3, 1]))
    column.add(np.array([2]))
    assert column.taken(np.array([2, 0, 1])).tolist() == [2, 3, 1]


def test_a_change_of_values_does_not_change_the_column() -> None:
    column = NumberColumn()
    column.add(np.array([1.0, 2.0]))
    column.values()[0] = 9.0
    assert column.values().tolist() == [1.0, 2.0]


def test_a_column_has_one_type() -> None:
    column = NumberColumn(np.int32)
    column.add(np.array([1.0, 2.0]))
    assert column.values().dtype == np.int32


@pytest.mark.parametrize("size", [1, 2, 3, 10, 101])
def test_quantiles_are_those_of_numpy(size: int) -> None:
    values = np.random.default_rng(size).normal(size=size)
    probabilities = [0.0, 0.25, 0.5, 0.9, 0.99, 1.0]
    expected = np.quantile(values, probabilities)
    assert quantiles(values.copy(), probabilities).tolist() == expected.tolist()


def test_unknown_values_count_as_zero() -> None:
    assert or_zero(np.array([1.0, np.nan])).tolist() == [1.0, 0.0]
