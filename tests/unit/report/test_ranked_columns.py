"""The columns of a ranking; their values: tests/unit/report/test_frames.py."""

from __future__ import annotations

from orchestrator.report.columns import point_columns
from orchestrator.report.ranked_columns import USUAL_OF_RANKED, ranked_columns


def test_some_thirty_are_usual_and_each_is_described() -> None:
    columns = ranked_columns()
    assert tuple(name for name, column in columns.items() if column.is_usual) == USUAL_OF_RANKED
    assert 20 <= len(USUAL_OF_RANKED) <= 36
    assert all(column.description for column in columns.values())
    assert all(name == column.name for name, column in columns.items())


def test_what_a_point_has_too_has_its_name() -> None:
    own = ranked_columns().keys() - point_columns().keys()
    assert {"rank", "value", "value.lower", "certain", "capacity.claim"} <= own
    assert point_columns().keys() - ranked_columns().keys() == {"knee", "current"}
