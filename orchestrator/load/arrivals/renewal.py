"""Processes whose gaps are independent and alike: constant, Poisson, gamma."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from orchestrator.load.arrivals import Offsets
from orchestrator.spec.load import Arrivals


def constant(
    arrivals: Arrivals, rate: float, horizon_s: float | None, count: int | None, rng: np.random.Generator
) -> Offsets:
    """One arrival every 1/rate seconds, the first at 0."""
    fits = np.inf if horizon_s is None else np.ceil(horizon_s * rate - 1e-9)
    return np.arange(int(min(fits, np.inf if count is None else count)), dtype=np.float64) / rate


def poisson(
    arrivals: Arrivals, rate: float, horizon_s: float | None, count: int | None, rng: np.random.Generator
) -> Offsets:
    """Exponential gaps: arrivals of many independent users. Dispersion index 1."""
    return renewal(lambda n: rng.exponential(1.0 / rate, n), rate, horizon_s, count)


def gamma(
    arrivals: Arrivals, rate: float, horizon_s: float | None, count: int | None, rng: np.random.Generator
) -> Offsets:
    """Gamma gaps with shape ``burstiness`` (as vLLM defines it): 1 is Poisson, below 1 burstier, above 1 steadier.

    The dispersion index of the counts tends to 1/burstiness.
    """
    shape = arrivals.burstiness
    return renewal(lambda n: rng.gamma(shape, 1.0 / (rate * shape), n), rate, horizon_s, count)


def renewal(gaps: Callable[[int], Offsets], rate: float, horizon_s: float | None, count: int | None) -> Offsets:
    """Sums of gaps up to the horizon or the count. ``gaps`` draws n of them."""
    if horizon_s is None:
        assert count is not None
        return np.cumsum(gaps(count))
    block = max(64, int(rate * horizon_s * 1.2) + 64)
    offsets = np.cumsum(gaps(block))
    while offsets[-1] < horizon_s:
        offsets = np.concatenate([offsets, offsets[-1] + np.cumsum(gaps(block))])
    return offsets[: int(np.searchsorted(offsets, horizon_s, side="left"))][:count]
