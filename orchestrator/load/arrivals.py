"""When requests are due in an open loop: one pure function per arrival process. Their registry is
``spec/load.py: ARRIVALS``, because an experiment file names them.

A process takes an ``ArrivalRequest`` and a random generator. It returns ascending float64 offsets
in seconds from the point's start, up to ``horizon_s`` or ``count`` arrivals, whichever comes first.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import orjson

from orchestrator.base.arrays import Floats
from orchestrator.base.text import hours
from orchestrator.spec.load import Arrivals

Offsets = Floats  # seconds since the point's start, ascending
# If the times of a trace are whole numbers and further apart than this on average, they may be
# milliseconds.
MOST_MEAN_GAP_S = 30.0


@dataclass(frozen=True, slots=True)
class ArrivalRequest:
    """Arrivals as the file has them, at a mean rate in requests/s. ``horizon_s``, ``count`` or both
    are given.
    """

    arrivals: Arrivals
    rate: float
    horizon_s: float | None
    count: int | None

    @property
    def expected(self) -> float:
        """Roughly how many arrivals there will be at most."""
        limits = [np.inf]
        if self.horizon_s is not None:
            limits.append(self.horizon_s * max(self.rate, self.arrivals.to or 0.0))
        if self.count is not None:
            limits.append(self.count)
        return min(limits)


Process = Callable[[ArrivalRequest, np.random.Generator], Offsets]


# -- processes with independent gaps of one distribution


def constant(request: ArrivalRequest, rng: np.random.Generator) -> Offsets:
    """One arrival every 1/rate seconds, the first at 0."""
    limits = []
    if request.horizon_s is not None:
        # an arrival that is due at the horizon itself does not belong to the point, even if the
        # product is a little too large
        limits.append(int(np.ceil(request.horizon_s * request.rate - 1e-9)))
    if request.count is not None:
        limits.append(request.count)
    return np.arange(min(limits), dtype=np.float64) / request.rate


def poisson(request: ArrivalRequest, rng: np.random.Generator) -> Offsets:
    """Exponential gaps, as many independent users make them. Dispersion index 1."""

    def gaps(number: int) -> Offsets:
        return rng.exponential(1.0 / request.rate, number)

    return renewal(gaps, request.rate, request.horizon_s, request.count)


def gamma(request: ArrivalRequest, rng: np.random.Generator) -> Offsets:
    """Gamma gaps of shape ``burstiness``, as vLLM defines it: 1 is Poisson, below 1 burstier, above
    1 steadier.

    The dispersion index of the counts tends to 1/burstiness.
    """
    shape = request.arrivals.burstiness

    def gaps(number: int) -> Offsets:
        return rng.gamma(shape, 1.0 / (request.rate * shape), number)

    return renewal(gaps, request.rate, request.horizon_s, request.count)


def renewal(
    gaps: Callable[[int], Offsets], rate: float, horizon_s: float | None, count: int | None
) -> Offsets:
    """Cumulative sums of gaps up to the horizon or the count. ``gaps`` draws a number of them."""
    if horizon_s is None:
        assert count is not None
        return np.cumsum(gaps(count))
    block = max(64, int(rate * horizon_s * 1.2) + 64)
    offsets = np.cumsum(gaps(block))
    while offsets[-1] < horizon_s:
        more_offsets = offsets[-1] + np.cumsum(gaps(block))
        offsets = np.concatenate([offsets, more_offsets])
    within_horizon = int(np.searchsorted(offsets, horizon_s, side="left"))
    return offsets[:within_horizon][:count]


# -- Poisson processes whose rate changes. The operational time of an instant is the number of
# arrivals that are expected until then. In operational time every such process is a Poisson process
# of rate 1. So that is drawn, and its times are mapped back to seconds, which is exact for any rate
# function.


def _operational_times(
    rng: np.random.Generator, horizon: float | None, count: int | None
) -> Floats:
    """Arrivals of a Poisson process of rate 1, in operational time: those before ``horizon``, or
    ``count`` of them, whichever are fewer.
    """

    def gaps(number: int) -> Offsets:
        return rng.exponential(1.0, number)

    return renewal(gaps, 1.0, horizon, count)


def ramp(request: ArrivalRequest, rng: np.random.Generator) -> Offsets:
    """The rate changes linearly from the level's rate to ``to`` at the horizon.

    Without a horizon the ramp takes as long as ``count`` arrivals do on average; arrivals after it
    come at rate ``to``.
    """
    rate = request.rate
    end_rate = request.arrivals.to
    assert end_rate is not None
    rate_on_average = (rate + end_rate) / 2.0
    horizon: float | None = None
    if request.horizon_s is None:
        assert request.count is not None
        ramp_s = request.count / rate_on_average
    else:
        ramp_s = request.horizon_s
        horizon = ramp_s * rate_on_average
    times = _operational_times(rng, horizon, request.count)
    times_in_ramp = np.minimum(times, ramp_s * rate_on_average)
    times_after_ramp = times - times_in_ramp
    slope = (end_rate - rate) / ramp_s
    # offset solves rate * offset + slope * offset^2 / 2 = time; in this form slope 0 is no special
    # case
    rates_then = np.sqrt(np.maximum(rate * rate + 2.0 * slope * times_in_ramp, 0.0))
    offsets_in_ramp = 2.0 * times_in_ramp / (rate + rates_then)
    return offsets_in_ramp + times_after_ramp / end_rate


def steps(request: ArrivalRequest, rng: np.random.Generator) -> Offsets:
    """Stretches of constant rate, each (factor of the level's rate, seconds), repeated until the
    end.
    """
    assert request.arrivals.steps is not None
    factors, lengths_s = np.array(request.arrivals.steps, dtype=np.float64).T
    cycle = _Cycle(lengths_s, factors * lengths_s * request.rate)
    if cycle.arrivals <= 0.0:
        return np.empty(0)
    horizon: float | None = None
    if request.horizon_s is not None:
        horizon = cycle.operational_time(request.horizon_s)
    times = _operational_times(rng, horizon, request.count)
    if not len(times):
        return times
    return cycle.offsets(times)


@dataclass(frozen=True, slots=True)
class _Cycle:
    """Steps of constant rate that are repeated. ``lengths_s``: seconds of each; ``expected``: the
    arrivals that are expected in each.
    """

    lengths_s: Floats
    expected: Floats

    @property
    def arrivals(self) -> float:
        """The arrivals that are expected in a whole cycle."""
        return float(self.expected.sum())

    def operational_time(self, offset_s: float) -> float:
        """The operational time of an instant."""
        cycles = int(offset_s // self.lengths_s.sum()) + 1
        return float(
            np.interp(offset_s, _bounds(self.lengths_s, cycles), _bounds(self.expected, cycles))
        )

    def offsets(self, times: Floats) -> Offsets:
        """The offsets in seconds of operational times, the last of which is the largest."""
        cycles = int(times[-1] // self.arrivals) + 1
        offsets: Offsets = np.interp(
            times, _bounds(self.expected, cycles), _bounds(self.lengths_s, cycles)
        )
        return offsets


def _bounds(steps: Floats, cycles: int) -> Floats:
    """Where the steps of so many cycles begin, and where the last one ends."""
    return np.concatenate([[0.0], np.cumsum(np.tile(steps, cycles))])


# -- recorded arrivals: one number of seconds per line, or JSON lines with ``timestamp``


def trace(request: ArrivalRequest, rng: np.random.Generator) -> Offsets:
    """The recorded offsets, whatever the level's rate is. Raises ProblemsError as ``recorded``
    does.
    """
    offsets = recorded(request.arrivals)
    if request.horizon_s is not None:
        offsets = offsets[offsets < request.horizon_s]
    return offsets[: request.count]


def mean_rate(offsets: Offsets, ends_s: float | None, requests: int | None) -> float:
    """Arrivals per second of the requests of a trace that are sent: those before ``ends_s``, at most
    ``requests`` of them. The rate is that between the first and the last of these. If all of them
    are at one instant, it is their number over ``ends_s``, and infinite without ``ends_s``.
    """
    if ends_s is not None:
        offsets = offsets[offsets < ends_s]
    offsets = offsets[:requests]
    if offsets[-1] > 0:
        return float((len(offsets) - 1) / offsets[-1])
    return float("inf") if ends_s is None else len(offsets) / ends_s


def unit_problem(arrivals: Arrivals) -> str | None:
    """Why the times of a trace are probably milliseconds, where the file does not say what they
    are.

    The times of Mooncake's traces are milliseconds. Times of other traces look like milliseconds if
    they are whole numbers more than half a minute apart on average.
    """
    if "speed_up" in arrivals.model_fields_set:
        return None
    path = arrivals.trace or ""
    offsets = recorded(arrivals)
    if _is_mooncake(path):
        return (
            f"trace {path!r} looks like Mooncake's, whose times are milliseconds: "
            "give 'speed_up' 1000 for milliseconds, 1 for seconds"
        )
    is_whole = bool(np.all(offsets == np.floor(offsets)))
    mean_gap_s = offsets[-1] / max(len(offsets) - 1, 1)
    if is_whole and mean_gap_s > MOST_MEAN_GAP_S:
        return (
            f"trace {path!r} would last {hours(float(offsets[-1]))} for {len(offsets):,} requests; "
            "are its times milliseconds? Give 'speed_up' 1000 for milliseconds, 1 for seconds"
        )
    return None


def _is_mooncake(path: str) -> bool:
    """Whether the first line of a trace has blocks of 512 tokens and a whole number as its time.
    Bailian's traces, whose times are seconds, have smaller blocks and name a chat.
    """
    from orchestrator.workloads.entries import block_sizes
    from orchestrator.workloads.file_reading import first_line

    try:
        row = orjson.loads(first_line("trace", path))
    except orjson.JSONDecodeError:
        return False
    if not isinstance(row, dict) or "chat_id" in row or type(row.get("timestamp")) is not int:
        return False
    tokens = row.get("input_length")
    blocks = row.get("hash_ids")
    if type(tokens) is not int or not isinstance(blocks, list) or not blocks:
        return False
    return 512 in block_sizes(tokens, len(blocks))


def recorded(arrivals: Arrivals) -> Offsets:
    """All offsets of a trace. Raises ProblemsError with every line that has no time, or one before
    the line above.

    Times must ascend, since a trace may also hold the prompts that are sent at its times. The file
    is read again only where it has changed.
    """
    from orchestrator.workloads.file_reading import status_of  # only a trace needs it

    path = arrivals.trace or ""
    status = status_of("trace", path)
    times = _times(path, status.st_mtime_ns, status.st_size)
    offsets: Offsets = (times - times[0]) / arrivals.speed_up
    return offsets


@lru_cache(maxsize=1)
def _times(path: str, mtime_ns: int, size: int) -> Floats:
    """The times of a trace as they stand in its file. ``mtime_ns``, ``size``: of the file, so that
    it is read again where it has changed.
    """
    from orchestrator.workloads.file_reading import (
        lines_of,
        read_each,
        read_file,
        refuse_other_formats,
    )

    time_above = -np.inf

    def ascending_time(line: bytes) -> float:
        nonlocal time_above
        time = _time_of(line)
        earliest = time_above
        time_above = time
        if time < earliest:
            raise ValueError(
                f"{time:g} is before the {earliest:g} of the line above it: sort the file by time"
            )
        return time

    data = read_file("trace", path)
    refuse_other_formats("trace", path, data)
    lines = ((f"line {number}", line) for number, line in lines_of(data, "trace", path))
    return np.array(read_each("trace", path, lines, ascending_time), dtype=np.float64)


def _time_of(line: bytes) -> float:
    """The time of a line: a number, or the ``timestamp`` of a JSON object. Raises ValueError."""
    try:
        if line.lstrip().startswith(b"{"):
            time = float(orjson.loads(line)["timestamp"])
        else:
            time = float(line)
    except (ValueError, KeyError, TypeError):
        time = np.nan
    if not np.isfinite(time):
        raise ValueError(f"no finite time in {line[:60].decode(errors='replace')!r}")
    return time
