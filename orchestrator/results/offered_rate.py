"""Whether requests came due at the rate that a level asks for."""

from collections.abc import Sequence
from math import sqrt

MAX_DIFFERENCE = 0.05  # share of the rate asked for; a larger difference is shown
BEYOND_CHANCE = 2.33  # standard deviations: 1 % of a normal distribution lies above


def pooled_rate(rates: Sequence[float | None], due: Sequence[int]) -> float | None:
    """The rate at which requests were due in several windows together, requests/s.

    ``rates``: that of each window. ``due``: how many requests were due in each. None where a rate is
    not known, and without windows.
    """
    known = [rate for rate in rates if rate is not None]
    if not known or len(known) < len(rates):
        return None
    if min(known) == max(known):
        return known[0]
    seconds = 0.0
    for rate, count in zip(known, due, strict=True):
        if rate > 0:
            seconds += count / rate
    return sum(due) / seconds if seconds > 0 else 0.0


def share_beyond(due: float, asked: float) -> float:
    """How many more requests were due than asked for, as a share of these; below 0 for fewer; 0
    where chance may explain it: arrivals of a Poisson process differ by their square root.
    """
    more = due - asked
    if asked <= 0 or abs(more) <= BEYOND_CHANCE * sqrt(asked):
        return 0.0
    return more / asked


def is_as_asked(offered: float | None, asked: float, due: int) -> bool:
    """Whether requests were due at the rate asked for, apart from chance and a few percent.

    ``offered``: the rate at which they were due, requests/s; None: not known. ``due``: how many.
    """
    if not offered:
        return True
    return abs(share_beyond(due, due * asked / offered)) <= MAX_DIFFERENCE
