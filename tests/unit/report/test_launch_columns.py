"""The columns of a engine start; their values: tests/unit/report/test_frames.py."""

from __future__ import annotations

from orchestrator.report.launch_columns import USUAL_OF_LAUNCHES, launch_columns


def test_some_thirty_are_usual_and_each_is_described() -> None:
    columns = launch_columns()
    assert tuple(name for name, column in columns.items() if column.is_usual) == USUAL_OF_LAUNCHES
    assert 20 <= len(USUAL_OF_LAUNCHES) <= 36
    assert all(column.description for column in columns.values())
    assert all(name == column.name for name, column in columns.items())


def test_the_command_line_is_no_column() -> None:
    assert not [name for name in launch_columns() if "argv" in name]


def test_figures_come_predicted_beside_reported() -> None:
    columns = launch_columns()
    assert columns["figures.weight_bytes.predicted"].unit == "bytes"
    assert columns["figures.weight_bytes.difference_percent"].unit == "%"
