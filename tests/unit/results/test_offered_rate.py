"""How far the number of requests that were due is from the one asked for."""

import pytest

from orchestrator.results.offered_rate import share_beyond


@pytest.mark.parametrize(
    ("due", "asked", "share"),
    [(60, 100, -0.4), (140, 100, 0.4), (80, 100, 0.0), (120, 100, 0.0), (3, 0, 0.0)],
)
def test_only_what_is_beyond_chance_differs(due: float, asked: float, share: float) -> None:
    assert share_beyond(due, asked) == pytest.approx(share)
