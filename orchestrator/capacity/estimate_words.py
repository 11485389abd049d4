"""Puts an estimate, and a level that missed, into words, for the live view, events and reports."""

import math

from orchestrator.base.text import counted
from orchestrator.capacity.estimate import Estimate
from orchestrator.capacity.levels import LevelEvidence
from orchestrator.spec.load import UNITS, load_text

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


def missed_words(control: str, missed: LevelEvidence) -> str:
    """``missed 8 req/s, not yet shown to fail (48 requests)``."""
    level = load_text(control, missed.level)
    return f"missed {level}, not yet shown to fail ({counted(missed.requests, 'request')})"
