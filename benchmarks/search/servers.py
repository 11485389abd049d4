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
    """A server in virtual time. ``answer``: how long each request takes and whether it meets the
    limits. ``levels``: one below and one above its capacity. ``exact``: its capacity, where theory
    says it. ``closed``: load is requests in flight, not a rate.
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
            count = max(1, int(level * seconds / self.request_s))
            due = np.sort(rng.uniform(0, seconds, count))
        else:
            gaps = rng.exponential(1 / level, int(level * seconds * 1.2) + 50)
            due = np.cumsum(gaps)
            due = due[due < seconds]
        stay, met = self.answer(level, due, rng)
        return Run(due, due + stay, met, self.limit)

    @property
    def request_s(self) -> float:
        """How long one of the clients of a closed loop takes for a request, in the mean."""
        return self.limit * 0.8

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
        if run.met[1000:].mean() >= TARGET:
            low = middle
        else:
            high = middle
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
        free_s = [0.0] * count  # when each place is free
        durations = rng.exponential(seconds, len(due)).tolist()
        ends: list[float] = []
        for due_s, takes_s in zip(due.tolist(), durations, strict=True):
            end_s = max(due_s, heapq.heappop(free_s)) + takes_s
            ends.append(end_s)
            heapq.heappush(free_s, end_s)
        stay_s = np.array(ends) - due
        return stay_s, stay_s <= limit

    return answer


def exponential_capacity(count: int, seconds: float, limit: float, low: float) -> float:
    """Capacity of ``exponential_slots``, above ``low``: the rate at which the share of requests that
    take longer than the limit is what the target allows, by the sojourn times of M/M/c.
    """

    def late(rate: float) -> float:
        """The share of requests that take longer than the limit."""
        busy = rate * seconds
        blocked = 1.0  # Erlang B
        for slot in range(1, count + 1):
            blocked = busy * blocked / (slot + busy * blocked)
        waits = blocked / (1 - busy / count * (1 - blocked))  # Erlang C
        idle = count - 1 - busy
        times = limit / seconds
        return math.exp(-times) * (1 - waits * math.expm1(-times * idle) / idle)

    return float(brentq(lambda rate: late(rate) - (1 - TARGET), low, count / seconds * (1 - 1e-9)))


def batches(
    most: int, base: float, each: float, limit: float
) -> Callable[..., tuple[Floats, Bools]]:
    """Requests that wait are taken together, at most ``most``; a batch takes ``base``, and ``each``
    for each of its requests.
    """

    def answer(level: float, due: Floats, rng: np.random.Generator) -> tuple[Floats, Bools]:
        done = np.empty(len(due))
        free_s = 0.0  # when the batch before is done
        begin = 0
        while begin < len(due):
            free_s = max(free_s, due[begin])
            waiting = int(np.searchsorted(due, free_s, "right"))
            end = min(begin + most, waiting)
            free_s += base + each * (end - begin)
            done[begin:end] = free_s
            begin = end
        return done - due, done - due <= limit

    return answer


def curve(
    capacity: float, steepness: float, runs: float, floor: float = 0.002
) -> Callable[..., tuple[Floats, Bools]]:
    """The odds of a miss rise with the load as (load/capacity)^steepness. Misses come in runs of
    this mean length; 1: they are independent.
    """

    def answer(level: float, due: Floats, rng: np.random.Generator) -> tuple[Floats, Bools]:
        odds = (1 - TARGET) / TARGET * (level / capacity) ** steepness
        share = min(max(odds / (1 + odds), floor), 0.999)
        if runs == 1:
            met = rng.random(len(due)) >= share
        else:
            met = _in_runs(len(due), share, runs, rng)
        return np.where(met, 0.3, 0.8), met

    return answer


def _in_runs(count: int, share: float, runs: float, rng: np.random.Generator) -> Bools:
    """Flags of requests of which this share misses, in runs of this mean length."""
    met_mean = runs * (1 - share) / share
    turns = int(count / runs) + 8
    met_lengths = rng.geometric(min(1.0, 1 / met_mean), turns)
    missed_lengths = rng.geometric(1 / runs, turns)
    lengths = np.stack([met_lengths, missed_lengths], 1)
    enough = int(np.searchsorted(np.cumsum(lengths.sum(1)), count)) + 1
    lengths = lengths[:enough].ravel()
    met = np.repeat(np.tile([True, False], len(lengths) // 2), lengths)
    start = rng.integers(0, max(1, len(met) - count), endpoint=True)
    return np.resize(met[start : start + count], count)


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
        "M/M/8: 8 slots, 400 ms exponential, 1.5 s",
        exponential_slots(8, 0.4, 1.5),
        1.5,
        (4.0, 20.0),
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
