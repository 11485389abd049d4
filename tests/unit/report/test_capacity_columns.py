"""The columns of a searched capacity; their values: tests/unit/report/test_frames.py."""

from __future__ import annotations

from orchestrator.report.capacity_columns import USUAL_OF_CAPACITIES, capacity_columns


def test_some_thirty_are_usual_and_each_is_described() -> None:
    columns = capacity_columns()
    assert tuple(name for name, column in columns.items() if column.is_usual) == USUAL_OF_CAPACITIES
    assert 20 <= len(USUAL_OF_CAPACITIES) <= 36
    assert all(column.description for column in columns.values())
    assert all(name == column.name for name, column in columns.items())


def test_bounds_come_per_gpu_and_per_dollar() -> None:
    columns = capacity_columns()
    assert {"claim", "low", "high", "claim_per_gpu", "high_per_usd"} <= columns.keys()
    assert columns["high"].description == "lowest load shown to fail"
