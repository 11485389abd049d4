"""Which rows of a recorded trace are sent, as a file writes it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from orchestrator.spec.traces import Filter, Filters, Keep, Window

FILTERS: TypeAdapter[tuple[Filter, ...]] = TypeAdapter(Filters)


def test_a_filter_is_a_column_with_one_value_or_several() -> None:
    filters = FILTERS.validate_python({"Model": "GPT-4", "Log Type": ["a", 2]})
    assert filters == (
        Filter(column="Model", values=("GPT-4",)),
        Filter(column="Log Type", values=("a", "2")),
    )


def test_yes_and_no_are_compared_as_json_writes_them() -> None:
    (only,) = FILTERS.validate_python({"cached": [True, False]})
    assert only.values == ("true", "false")


def test_a_value_of_a_filter_is_no_mapping() -> None:
    with pytest.raises(ValidationError, match="'Model': give a value or a list of values"):
        FILTERS.validate_python({"Model": {"name": "GPT-4"}})


@pytest.mark.parametrize("bounds", [[9, 8], [0, 8], [1]])
def test_bounds_of_lengths_ascend_from_one_token(bounds: list[int]) -> None:
    assert Keep.model_validate({"input_tokens": [8, 8]}).input_tokens == (8, 8)
    with pytest.raises(ValidationError):
        Keep.model_validate({"input_tokens": bounds})


def test_a_window_is_two_durations() -> None:
    window = Window.model_validate(["10m", "20m"])
    assert (window.start, window.end) == (600, 1200)


@pytest.mark.parametrize(
    ("window", "reason"),
    [
        (["10m"], "give two durations"),
        (["20m", "10m"], "ends at 600 s, not after its start at 1200 s"),
    ],
)
def test_a_window_ends_after_its_start(window: Any, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        Window.model_validate(window)
