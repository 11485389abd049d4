"""Draws lengths, pauses and choices by popularity from a random generator."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from orchestrator.base.arrays import Floats, Ints
from orchestrator.spec.load import MOST_TOKENS, Lengths
from orchestrator.spec.popularity import Popularity
from orchestrator.spec.sessions import Pauses
from orchestrator.workloads.kind import stream

MEAN_SAMPLE = 1 << 18  # draws from which the mean of clipped and rounded numbers is estimated
_MEAN_SEED = 1  # of these draws, so that a mean is the same everywhere
DRAWS_PER_MEMBER = 20  # for which different members are drawn, before the others fill up


def draw(lengths: Lengths, size: tuple[int, ...], rng: np.random.Generator) -> Ints:
    """Token counts, at least 1, in an array of this size."""
    if lengths.fixed is not None:
        return np.full(size, lengths.fixed, np.int64)
    if lengths.uniform is not None:
        return rng.integers(lengths.uniform.min, lengths.uniform.max, size, endpoint=True)
    if lengths.histogram is not None:
        return _draw_histogram(lengths, size, rng)
    if lengths.normal is not None:
        values = rng.normal(lengths.normal.mean, lengths.normal.sigma, size)
        return _clipped(values, lengths.normal.min, lengths.normal.max)
    shape = lengths.lognormal
    assert shape is not None
    values = rng.lognormal(_log_mean(shape.mean, shape.sigma), shape.sigma, size)
    return _clipped(values, shape.min, shape.max)


def _log_mean(mean: float, sigma: float) -> float:
    """The mean of the logarithm of a log-normal number: E[X] = exp(mu + sigma^2 / 2)."""
    return float(np.log(mean) - sigma**2 / 2)


def _clipped(values: Floats, least: int, most: int | None) -> Ints:
    return np.clip(np.round(values), least, most or MOST_TOKENS).astype(np.int64)


def _draw_histogram(lengths: Lengths, size: tuple[int, ...], rng: np.random.Generator) -> Ints:
    bins = lengths.histogram
    assert bins is not None
    chosen = choose(np.array([part.weight for part in bins]), size, rng)
    least = np.array([part.min for part in bins])[chosen]
    most = np.array([part.max for part in bins])[chosen]
    return np.asarray(rng.integers(least, most, size, endpoint=True), np.int64)


def choose(weights: Floats, size: tuple[int, ...], rng: np.random.Generator) -> Ints:
    """Indices of ``weights``, each with a probability proportional to its weight."""
    cumulative = np.cumsum(weights)
    units = rng.random(size) * cumulative[-1]
    indices = np.searchsorted(cumulative, units, side="right")
    return np.asarray(np.minimum(indices, len(weights) - 1), np.int64)


@lru_cache(maxsize=256)
def mean(lengths: Lengths) -> float:
    """The mean of what is drawn: exact where it is simple, else from MEAN_SAMPLE draws (an error of
    about 0.2 % of the standard deviation).
    """
    if lengths.fixed is not None:
        return float(lengths.fixed)
    if lengths.uniform is not None:
        return (lengths.uniform.min + lengths.uniform.max) / 2
    return float(draw(lengths, (MEAN_SAMPLE,), stream(_MEAN_SEED)).mean())


def draw_pauses_s(pauses: Pauses, size: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Pauses in seconds, at least 0, in an array of this size."""
    if pauses.fixed is not None:
        return np.full(size, pauses.fixed)
    if pauses.uniform is not None:
        return rng.uniform(pauses.uniform.min, pauses.uniform.max, size)
    if pauses.exponential is not None:
        values = rng.exponential(pauses.exponential.mean, size)
        return np.clip(values, 0.0, pauses.exponential.max)
    if pauses.normal is not None:
        values = rng.normal(pauses.normal.mean, pauses.normal.sigma, size)
        return np.clip(values, pauses.normal.min, pauses.normal.max)
    if pauses.histogram is not None:
        chosen = choose(np.array([part.weight for part in pauses.histogram]), size, rng)
        least_s = np.array([part.min for part in pauses.histogram])[chosen]
        most_s = np.array([part.max for part in pauses.histogram])[chosen]
        return np.asarray(rng.uniform(least_s, most_s))
    shape = pauses.lognormal
    assert shape is not None
    values = rng.lognormal(_log_mean(shape.mean, shape.sigma), shape.sigma, size)
    return np.clip(values, shape.min, shape.max)


class Choices:
    """Draws members of a pool: all as often, or few of them often (Zipf)."""

    def __init__(self, pool: int, popularity: Popularity | None) -> None:
        self._pool = pool
        self._cumulative: Floats | None = None
        if popularity is not None:
            ranks = np.arange(1, pool + 1, dtype=np.float64)
            shares = ranks**-popularity.zipf
            self._cumulative = np.cumsum(shares) / shares.sum()

    def one(self, rng: np.random.Generator) -> int:
        """The number of one member; 0 is the most popular."""
        if self._cumulative is None:
            return int(rng.integers(self._pool))
        index = int(np.searchsorted(self._cumulative, rng.random(), side="right"))
        return min(index, self._pool - 1)

    def several(self, count: int, rng: np.random.Generator) -> list[int]:
        """Different members, in the order in which they are drawn. ``count``: at most the pool.

        Each is drawn among all, and again where it was drawn before. If popularity makes that take
        too long, the most popular of the others fill up.
        """
        chosen: dict[int, None] = {}
        for _ in range(DRAWS_PER_MEMBER * count):
            if len(chosen) == count:
                return list(chosen)
            chosen[self.one(rng)] = None
        others = (member for member in range(self._pool) if member not in chosen)
        while len(chosen) < count:
            chosen[next(others)] = None
        return list(chosen)
