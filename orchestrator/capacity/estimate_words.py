"""Puts an estimate into words, for the live view, events and reports."""

import math

from orchestrator.capacity.estimate import Estimate
from orchestrator.spec.load import UNITS

OVERLOADED = "overloaded, ended early"  # of a probe: see probe_outcome.was_overloaded
DIGITS = 3  # of an estimated level


def estimate_words(control: str, estimate: Estimate) -> str:
    """The estimate in words: ``estimate 16.2 req/s (15.1 to 17.0), safe so far 13.1``."""
    level, lower, upper = (
        rounded_text(value, control, estimate)
        for value in (estimate.level, estimate.lower, estimate.upper)
    )
    words = f"estimate {level} {UNITS[control]} ({lower} to {upper})"
    if estimate.safe is None:
        return words
    return f"{words}, safe so far {rounded_text(estimate.safe, control, estimate)}"


def rounded_text(value: float, control: str, estimate: Estimate) -> str:
    """A level with as many decimals as the estimate needs for three digits.

    ``17.0`` stands beside ``16.2``. Requests in flight have no decimals.
    """
    if control == "concurrency" or estimate.level <= 0:
        return f"{value:.0f}"
    decimals = DIGITS - 1 - math.floor(math.log10(estimate.level))
    return f"{value:.{max(decimals, 0)}f}"
