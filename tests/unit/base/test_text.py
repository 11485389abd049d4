"""Lists of names, numbers of things and times in a sentence."""

from __future__ import annotations

import pytest

from orchestrator.base.text import counted, hours, listed, listed_within


def test_a_long_list_ends_with_how_many_more_there_are() -> None:
    assert listed(["a", "b", "c"]) == "a, b, c"
    assert listed(["a", "b", "c", "d"], most=2) == "a, b and 2 more"


def test_as_many_names_are_listed_as_there_is_room_for() -> None:
    names = ["alpha", "beta", "gamma"]
    assert listed_within(names, 18) == "alpha, beta, gamma"
    assert listed_within(names, 17) == "alpha and 2 more"
    assert listed_within(names, 3) == "alpha and 2 more"
    assert listed_within(["a", "b", "c", "d"], 99, most=2) == "a, b and 2 more"


@pytest.mark.parametrize(
    ("seconds", "text"), [(90, "90 s"), (300, "5 min"), (9000, "2.5 h"), (7199, "120 min")]
)
def test_estimates_are_rounded(seconds: float, text: str) -> None:
    assert hours(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"), [(1, "1 point"), (2000, "2,000 points"), (0.5, "0.5 points")]
)
def test_one_thing_has_no_plural(number: float, text: str) -> None:
    assert counted(number, "point") == text
