"""Poisson processes whose rate changes: ramp and steps.

A unit-rate Poisson process is drawn in operational time (expected arrivals so far) and mapped back through the inverse
of the cumulative rate, which is exact for any rate function.
"""

from __future__ import annotations

import numpy as np

from orchestrator.load.arrivals import Offsets
from orchestrator.load.arrivals.renewal import renewal
from orchestrator.spec.load import Arrivals


def ramp(
    arrivals: Arrivals, rate: float, horizon_s: float | None, count: int | None, rng: np.random.Generator
) -> Offsets:
    """The rate goes in a straight line from the level's rate to ``to`` at the horizon.

    Without a horizon the ramp is as long as ``count`` arrivals take on average; what is left then comes at ``to``.
    """
    end_rate = arrivals.to
    assert end_rate is not None
    mean_rate = (rate + end_rate) / 2.0
    if horizon_s is None:
        assert count is not None
        ramp_s, expected = count / mean_rate, None
    else:
        ramp_s, expected = horizon_s, horizon_s * mean_rate
    units = renewal(lambda n: rng.exponential(1.0, n), 1.0, expected, count)
    slope = (end_rate - rate) / ramp_s
    inside = np.minimum(units, ramp_s * mean_rate)
    # the root of rate * t + slope * t^2 / 2 = units, written so that slope 0 is no special case
    offsets = 2.0 * inside / (rate + np.sqrt(np.maximum(rate * rate + 2.0 * slope * inside, 0.0)))
    return offsets + (units - inside) / end_rate


def steps(
    arrivals: Arrivals, rate: float, horizon_s: float | None, count: int | None, rng: np.random.Generator
) -> Offsets:
    """Stretches of constant rate, (factor of the level's rate, seconds) each, repeated until the end."""
    assert arrivals.steps is not None
    factors = np.array([factor for factor, _ in arrivals.steps], dtype=np.float64)
    lengths = np.array([seconds for _, seconds in arrivals.steps], dtype=np.float64)
    per_cycle = float(np.sum(factors * lengths)) * rate
    if per_cycle <= 0.0:
        return np.empty(0)
    expected = None
    if horizon_s is not None:
        expected = _arrivals_until(horizon_s, factors * rate, lengths)
    units = renewal(lambda n: rng.exponential(1.0, n), 1.0, expected, count)
    cycles = int(units[-1] // per_cycle) + 1 if len(units) else 1
    times = np.concatenate([[0.0], np.cumsum(np.tile(lengths, cycles))])
    counts = np.concatenate([[0.0], np.cumsum(np.tile(factors * lengths * rate, cycles))])
    offsets: Offsets = np.interp(units, counts, times)
    return offsets


def _arrivals_until(horizon_s: float, rates: Offsets, lengths: Offsets) -> float:
    whole, rest = divmod(horizon_s, float(lengths.sum()))
    ends = np.minimum(np.cumsum(lengths), rest)
    inside = np.diff(np.concatenate([[0.0], ends]))
    return float(whole * np.sum(rates * lengths) + np.sum(rates * inside))
