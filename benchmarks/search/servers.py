"""Servers in virtual time whose capacity is known: what a probe of so many seconds would see of
them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.optimize import brentq

from orchestrator.base.arrays import Bools, Floats

TARGET = 0.95
LONG = 200_000  # requests of the simulation that says what the truth is


@dataclass(frozen=True)
class Run:
    """Instants in seconds since the start of a probe, in order of ``due``; whether each request met
    the limits; the age at which an open one is a certain miss.
    """

    due: Floats
    done: Floats
    met: Bools
    limit: float


@dataclass(frozen=True)
class Server:
    """``probe(level, seconds, rng)``. ``levels``: below and above its capacity; ``exact``: it,
    where theory says it.
    """

    name: str
    answer: Callable[[float, Floats, np.random.Generator], tuple[Floats, Bools]]
    limit: float
    levels: tuple[float, float]
    closed: bool = False
    exact: float | None = None

    def probe(self, level: float, seconds: float, rng: np.random.Generator) -> Run:
        """A run whose requests are due in so many seconds; they all end."""
        if self.closed:
            each = self.limit * 0.8  # what one of so many clients takes for a request, in the mean
            count = max(1, int(level * seconds / each))
            due = np.sort(rng.uniform(0, seconds, count))
        else:
            gaps = rng.exponential(1 / level, int(level * seconds * 1.2) + 50)
            due = np.cumsum(gaps)
            due = due[due < seconds]
        stay, met = self.answer(level, due, rng)
        return Run(due, due + stay, met, self.limit)

    @property
    def capacity(self) -> float:
        """The highest level at which the target is met, by theory or of a long simulation."""
        return self.exact or _capacity(self)


@cache
def _capacity(server: Server) -> float:
    low, high = server.levels
    while high / low > 1.002:
        middle = (low * high) ** 0.5
        run = server.probe(middle, LONG / middle, np.random.default_rng(7))
        low, high = (middle, high) if run.met[1000:].mean() >= TARGET else (low, middle)
    return low


def slots(count: int, seconds: float, limit: float) -> Callable[..., tuple[Floats, Bools]]:
    """First come, first served by ``count`` places; each request takes the same time (M/D/c)."""

    def answer(level: float, due: Floats, rng: np.random.Generator) -> tuple[Floats, Bools]:
        done = np.empty(len(due))
        # the place of every count-th request: it is free when that one is done
        for first in range(count):
            mine = due[first::count]
            turns = seconds * np.arange(1, len(mine) + 1)
            done[first::count] = np.maximum.accumulate(mine - turns + seconds) + turns
        return done - due, done - due <= limit

    return answer


def exponential_slots(
    count: int, seconds: float, limit: float
) -> Callable[..., tuple[Floats, Bools]]:
    """As ``slots``, with times that are exponential (M/M/c)."""

    def answer(level: float, due: Floats, rng: np.random.Generator) -> tuple[Floats, Bools]:
        free, done = [0.0] * count, np.empty(len(due))
        for at, (one, takes) in enumerate(
            zip(due.tolist(), rng.exponential(seconds, len(due)).tolist(), strict=True)
        ):
            start = heapq.heappop(free)
            done[at] = max(one, start) + takes
            heapq.heappush(free, max(one, start) + takes)
        return done - due, done - due <= limit

    return answer


def exponential_capacity(count: int, seconds: float, limit: float, low: float) -> float:
    """Of ``exponential_slots``, above ``low``: where as many as may take longer, by the sojourn
    times of M/M/c.
    """

    def late(rate: float) -> float:
        busy, blocked = rate * seconds, 1.0  # Erlang B, then C
        for slot in range(1, count + 1):
            blocked = busy * blocked / (slot + busy * blocked)
        waits, idle = blocked / (1 - busy / count * (1 - blocked)), count - 1 - busy
        return math.exp(-limit / seconds) * (1 - waits * math.expm1(-limit / seconds * idle) / idle)

    return float(brentq(lambda rate: late(rate) - (1 - TARGET), low, count / seconds * (1 - 1e-9)))


def batches(
    most: int, base: float, each: float, limit: float
) -> Callable[..., tuple[Floats, Bools]]:
    """Whoever waits is taken together, at most so many; a batch takes ``base`` and ``each`` for
    each of it.
    """

    def answer(level: float, due: Floats, rng: np.random.Generator) -> tuple[Floats, Bools]:
        done, free, at = np.empty(len(due)), 0.0, 0
        while at < len(due):
            free = max(free, due[at])
            end = min(at + most, int(np.searchsorted(due, free, "right")))
            free += base + each * (end - at)
            done[at:end], at = free, end
        return done - due, done - due <= limit

    return answer


def curve(
    capacity: float, steepness: float, runs: float, floor: float = 0.002
) -> Callable[..., tuple[Floats, Bools]]:
    """Misses rise with the load, (load/capacity)^steepness; they come in runs of this mean length,
    1: independent.
    """

    def answer(level: float, due: Floats, rng: np.random.Generator) -> tuple[Floats, Bools]:
        odds = (1 - TARGET) / TARGET * (level / capacity) ** steepness
        share = min(max(odds / (1 + odds), floor), 0.999)
        if runs == 1:
            met = rng.random(len(due)) >= share
        else:  # lengths of what is met and what is missed, in turns
            met_mean, turns = runs * (1 - share) / share, int(len(due) / runs) + 8
            lengths = np.stack(
                [rng.geometric(min(1.0, 1 / met_mean), turns), rng.geometric(1 / runs, turns)], 1
            )
            lengths = lengths[
                : int(np.searchsorted(np.cumsum(lengths.sum(1)), len(due))) + 1
            ].ravel()
            met = np.repeat(np.tile([True, False], len(lengths) // 2), lengths)
            start = rng.integers(0, max(1, len(met) - len(due)), endpoint=True)
            met = np.resize(met[start : start + len(due)], len(due))
        return np.where(met, 0.3, 0.8), met

    return answer


def cliff(capacity: float) -> Callable[..., tuple[Floats, Bools]]:
    """All is well up to the capacity, and three in five miss above it: a cache that no longer holds
    the working set.
    """

    def answer(level: float, due: Floats, rng: np.random.Generator) -> tuple[Floats, Bools]:
        met = rng.random(len(due)) >= (0.004 if level <= capacity else 0.6)
        return np.where(met, 0.3, 0.8), met

    return answer


SERVERS = [
    Server("M/D/8: 8 slots x 400 ms, 500 ms", slots(8, 0.4, 0.5), 0.5, (4.0, 20.0)),
    Server(
        *(
            "M/M/8: 8 slots, 400 ms exponential, 1.5 s",
            exponential_slots(8, 0.4, 1.5),
            1.5,
            (4.0, 20.0),
        ),
        exact=exponential_capacity(8, 0.4, 1.5, 4.0),
    ),
    Server("batches of up to 16, 1 s", batches(16, 0.2, 0.02, 1.0), 1.0, (5.0, 40.0)),
    Server("smooth curve, independent misses", curve(30.0, 8.0, 1), 0.5, (10.0, 90.0)),
    Server("smooth curve, misses in runs of 20", curve(30.0, 8.0, 20), 0.5, (10.0, 90.0)),
    Server("flat curve, independent misses", curve(17.0, 3.0, 1), 0.5, (5.0, 50.0)),
    Server("cliff", cliff(23.0), 0.5, (5.0, 90.0)),
    Server(
        "closed loop, misses in runs of 5", curve(40.0, 6.0, 5), 0.5, (10.0, 120.0), closed=True
    ),
]
