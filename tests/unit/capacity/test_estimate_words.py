"""An estimate in words."""

from __future__ import annotations

import pytest

from orchestrator.capacity.estimate import Estimate
from orchestrator.capacity.estimate_words import estimate_words


@pytest.mark.parametrize(
    ("control", "estimate", "words"),
    [
        (
            "request_rate",
            Estimate(16.21, 15.08, 17.0, 13.07),
            "estimate 16.2 req/s (15.1 to 17.0), safe so far 13.1",
        ),
        ("request_rate", Estimate(0.5, 0.45, 0.612, None), "estimate 0.500 req/s (0.450 to 0.612)"),
        (
            "request_rate",
            Estimate(1234.5, 990.0, 1300.0, None),
            "estimate 1234 req/s (990 to 1300)",
        ),
        (
            "concurrency",
            Estimate(9.0, 8.0, 11.0, 8.0),
            "estimate 9 in flight (8 to 11), safe so far 8",
        ),
        ("concurrency", Estimate(0.0, 0.0, 1.0, None), "estimate 0 in flight (0 to 1)"),
    ],
)
def test_all_levels_have_the_decimals_that_give_the_estimate_three_digits(
    control: str, estimate: Estimate, words: str
) -> None:
    assert estimate_words(control, estimate) == words
