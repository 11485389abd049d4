"""The columns of a repeat; their values: tests/unit/report/test_frames.py."""

from __future__ import annotations

from orchestrator.report.columns import point_columns
from orchestrator.report.repeat_columns import USUAL_OF_REPEATS, repeat_columns


def test_some_thirty_are_usual_and_each_is_described() -> None:
    columns = repeat_columns()
    assert tuple(name for name, column in columns.items() if column.is_usual) == USUAL_OF_REPEATS
    assert 20 <= len(USUAL_OF_REPEATS) <= 36
    assert all(column.description for column in columns.values())
    assert all(name == column.name for name, column in columns.items())


def test_what_a_point_has_too_has_its_name() -> None:
    own = repeat_columns().keys() - point_columns().keys()
    assert {"measurement_id", "launch_id", "engine_side.kv_usage_max"} <= own
    # they are about several repeats
    absent = {"repeats", "starts", "knee", "per_device", "output_token_throughput.lower"}
    assert absent <= point_columns().keys() - repeat_columns().keys()
