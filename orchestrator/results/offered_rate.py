"""Whether requests came due at the rate that a level asks for."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

MAX_DIFFERENCE = 0.05  # share of the rate asked for; a larger difference is shown
BEYOND_CHANCE = 2.33  # standard deviations: 1 % of a normal distribution lies above


@dataclass(frozen=True, slots=True)
class WindowOffer:
    """The requests that were due in one window.

    ``rate``: requests/s; None: not known; 0: none were due, or all at once. ``window_s``: the
    length of the window.
    """

    due: int
    rate: float | None
    window_s: float

    def due_for_s(self, rate: float) -> float:
        """For how many seconds requests were due at ``rate``, the window's own.

        That is shorter than the window where it ends with the last answer.
        """
        if rate > 0:
            return self.due / rate
        return 0.0 if self.due else self.window_s


def pooled_rate(windows: Sequence[WindowOffer]) -> float | None:
    """The rate at which requests were due in several windows together, requests/s. None where the
    rate of one is not known, and without windows.
    """
    rates: list[float] = []
    seconds = 0.0
    for window in windows:
        if window.rate is None:
            return None
        rates.append(window.rate)
        seconds += window.due_for_s(window.rate)
    if not rates:
        return None
    if min(rates) == max(rates):
        return rates[0]
    due = sum(window.due for window in windows)
    return due / seconds if seconds > 0 else 0.0


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
