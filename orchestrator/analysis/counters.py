"""Counters and gauges that were read now and then, over a window of time."""

import math
from dataclasses import dataclass

import numpy as np

from orchestrator.base.arrays import Floats

# seconds at either end of a window that no reading needs to cover: two clocks differ by less
SLACK_S = 1.0


class CounterFell(Exception):
    """A counter fell within a window, so that its growth there is not known."""


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """A window of time in Unix seconds of the driver's clock."""

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Readings:
    """Readings in order of time, without those that have no value. ``at_s``: as in ``TimeWindow``."""

    at_s: Floats
    values: Floats

    def covered(self, window: TimeWindow) -> TimeWindow | None:
        """The part of a window that lies between readings; None where more than SLACK_S at an end
        is missing.
        """
        if self.at_s.size < 2:
            return None
        start_s = max(window.start_s, float(self.at_s[0]))
        end_s = min(window.end_s, float(self.at_s[-1]))
        if start_s > window.start_s + SLACK_S or end_s < window.end_s - SLACK_S:
            return None
        return TimeWindow(start_s, end_s) if end_s > start_s else None

    def rate(self, window: TimeWindow) -> float:
        """The growth of a counter per second in a window, interpolated between readings. NaN where
        they do not cover it. Raises CounterFell; a fall before or after the window is none of it.
        """
        covered = self.covered(window)
        if covered is None:
            return math.nan
        if (np.diff(self._values_around(covered)) < 0).any():
            raise CounterFell
        at_start, at_end = np.interp([covered.start_s, covered.end_s], self.at_s, self.values)
        return float(at_end - at_start) / covered.length_s

    def _values_around(self, covered: TimeWindow) -> Floats:
        """The values from the last reading at or before a covered window's start to the first at or
        after its end.
        """
        first = int(np.searchsorted(self.at_s, covered.start_s, side="right")) - 1
        last = int(np.searchsorted(self.at_s, covered.end_s, side="left"))
        return self.values[first : last + 1]

    def mean(self, window: TimeWindow) -> float:
        """The mean of a gauge in a window, by the trapezoids between readings. NaN where they do
        not cover it.
        """
        covered = self.covered(window)
        if covered is None:
            return math.nan
        ends_s = [covered.start_s, covered.end_s]
        at_start, at_end = np.interp(ends_s, self.at_s, self.values)
        is_inside = (self.at_s > covered.start_s) & (self.at_s < covered.end_s)
        at_s = np.concatenate([ends_s[:1], self.at_s[is_inside], ends_s[1:]])
        heights = np.concatenate([[at_start], self.values[is_inside], [at_end]])
        area = np.trapezoid(heights, at_s)
        return float(area) / covered.length_s


def readings(at_s: Floats, values: Floats) -> Readings:
    """Readings from values that may be NaN. ``at_s``: ascending."""
    has_value = ~np.isnan(values)
    return Readings(at_s[has_value], values[has_value])
