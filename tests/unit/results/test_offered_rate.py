"""How far the number of requests that were due is from the one asked for."""

import pytest

from orchestrator.results.offered_rate import WindowOffer, is_as_asked, pooled_rate, share_beyond


@pytest.mark.parametrize(
    ("due", "asked", "share"),
    [(60, 100, -0.4), (140, 100, 0.4), (80, 100, 0.0), (120, 100, 0.0), (3, 0, 0.0)],
)
def test_only_what_is_beyond_chance_differs(due: float, asked: float, share: float) -> None:
    assert share_beyond(due, asked) == pytest.approx(share)


def test_a_short_window_counts_for_its_length() -> None:
    long = WindowOffer(due=2000, rate=20.0, window_s=100.0)
    short = WindowOffer(due=310, rate=31.0, window_s=10.0)
    assert pooled_rate([long, short]) == pytest.approx(2310 / 110)
    assert pooled_rate([short]) == 31.0


def test_a_window_in_which_nothing_was_due_lowers_the_rate() -> None:
    empty = WindowOffer(due=0, rate=0.0, window_s=30.0)
    assert pooled_rate([empty, WindowOffer(due=3, rate=0.1, window_s=30.0)]) == pytest.approx(0.05)
    assert pooled_rate([empty, empty]) == 0.0


def test_answers_that_take_long_do_not_lower_the_rate() -> None:
    slow = WindowOffer(due=40, rate=20.0, window_s=500.0)
    assert pooled_rate([slow, WindowOffer(due=60, rate=30.0, window_s=2.0)]) == 25.0


@pytest.mark.parametrize("rates", [[], [20.0, None]])
def test_the_rate_of_unknown_windows_is_unknown(rates: list[float | None]) -> None:
    assert pooled_rate([WindowOffer(due=40, rate=rate, window_s=2.0) for rate in rates]) is None


@pytest.mark.parametrize(
    ("offered", "is_same"), [(10.0, True), (9.6, True), (7.0, False), (14.0, False), (None, True)]
)
def test_a_rate_is_as_asked_within_a_few_percent(offered: float | None, is_same: bool) -> None:
    assert is_as_asked(offered, asked=10.0, due=10_000) is is_same
