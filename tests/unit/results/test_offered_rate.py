"""How far the number of requests that were due is from the one asked for."""

import pytest

from orchestrator.results.offered_rate import is_as_asked, pooled_rate, share_beyond


@pytest.mark.parametrize(
    ("due", "asked", "share"),
    [(60, 100, -0.4), (140, 100, 0.4), (80, 100, 0.0), (120, 100, 0.0), (3, 0, 0.0)],
)
def test_only_what_is_beyond_chance_differs(due: float, asked: float, share: float) -> None:
    assert share_beyond(due, asked) == pytest.approx(share)


def test_a_short_window_counts_for_its_length() -> None:
    # 100 s at 20 requests/s and 10 s at 31
    assert pooled_rate([20.0, 31.0], [2000, 310]) == pytest.approx(2310 / 110)
    assert pooled_rate([0.0, 20.0], [0, 40]) == 20.0
    assert pooled_rate([9.0], [100]) == 9.0


@pytest.mark.parametrize("rates", [[], [20.0, None]])
def test_the_rate_of_unknown_windows_is_unknown(rates: list[float | None]) -> None:
    assert pooled_rate(rates, [40] * len(rates)) is None


@pytest.mark.parametrize(
    ("offered", "is_same"), [(10.0, True), (9.6, True), (7.0, False), (14.0, False), (None, True)]
)
def test_a_rate_is_as_asked_within_a_few_percent(offered: float | None, is_same: bool) -> None:
    assert is_as_asked(offered, asked=10.0, due=10_000) is is_same
