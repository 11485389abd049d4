"""When requests are due in an open loop: one pure function per arrival process.

A process takes what was asked for and a random generator. It returns ascending float64 offsets in
seconds from the point's start, up to ``horizon_s`` or ``count`` arrivals, whichever comes first.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import orjson
from numpy.typing import NDArray

from orchestrator.spec.load import Arrivals, hours

Offsets = NDArray[np.float64]
MOST_MEAN_GAP_S = 30.0  # between whole times of a trace, until somebody says that they are seconds


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
        limits.append(int(np.ceil(request.horizon_s * request.rate - 1e-9)))
    if request.count is not None:
        limits.append(request.count)
    return np.arange(min(limits), dtype=np.float64) / request.rate


def poisson(request: ArrivalRequest, rng: np.random.Generator) -> Offsets:
    """Exponential gaps, as many independent users make them. Dispersion index 1."""
    return renewal(
        lambda n: rng.exponential(1.0 / request.rate, n),
        request.rate,
        request.horizon_s,
        request.count,
    )


def gamma(request: ArrivalRequest, rng: np.random.Generator) -> Offsets:
    """Gamma gaps of shape ``burstiness``, as vLLM defines it: 1 is Poisson, below 1 burstier, above
    1 steadier.

    The dispersion index of the counts tends to 1/burstiness.
    """
    shape = request.arrivals.burstiness
    return renewal(
        lambda n: rng.gamma(shape, 1.0 / (request.rate * shape), n),
        request.rate,
        request.horizon_s,
        request.count,
    )


def renewal(
    gaps: Callable[[int], Offsets], rate: float, horizon_s: float | None, count: int | None
) -> Offsets:
    """Cumulative sums of gaps up to the horizon or the count. ``gaps`` draws n gaps."""
    if horizon_s is None:
        assert count is not None
        return np.cumsum(gaps(count))
    block = max(64, int(rate * horizon_s * 1.2) + 64)
    offsets = np.cumsum(gaps(block))
    while offsets[-1] < horizon_s:
        offsets = np.concatenate([offsets, offsets[-1] + np.cumsum(gaps(block))])
    return offsets[: int(np.searchsorted(offsets, horizon_s, side="left"))][:count]


# -- Poisson processes whose rate changes. A process of rate 1 is drawn in operational time (the
# expected arrivals so far) and mapped to seconds through the inverse of the cumulative rate, which
# is exact for any rate function.


def ramp(request: ArrivalRequest, rng: np.random.Generator) -> Offsets:
    """The rate changes linearly from the level's rate to ``to`` at the horizon.

    Without a horizon the ramp takes as long as ``count`` arrivals do on average; arrivals after it
    come at rate ``to``.
    """
    rate, end_rate = request.rate, request.arrivals.to
    assert end_rate is not None
    mean_rate = (rate + end_rate) / 2.0
    if request.horizon_s is None:
        assert request.count is not None
        ramp_s = request.count / mean_rate
        expected = None
    else:
        ramp_s = request.horizon_s
        expected = ramp_s * mean_rate
    units = renewal(lambda n: rng.exponential(1.0, n), 1.0, expected, request.count)
    slope = (end_rate - rate) / ramp_s
    inside = np.minimum(units, ramp_s * mean_rate)
    # t solves rate * t + slope * t^2 / 2 = units; in this form slope 0 is no special case
    offsets = 2.0 * inside / (rate + np.sqrt(np.maximum(rate * rate + 2.0 * slope * inside, 0.0)))
    return offsets + (units - inside) / end_rate


def steps(request: ArrivalRequest, rng: np.random.Generator) -> Offsets:
    """Stretches of constant rate, each (factor of the level's rate, seconds), repeated until the
    end.
    """
    assert request.arrivals.steps is not None
    factors, lengths = np.array(request.arrivals.steps, dtype=np.float64).T
    per_cycle = float(np.sum(factors * lengths)) * request.rate
    if per_cycle <= 0.0:
        return np.empty(0)

    def cycles(number: int) -> tuple[Offsets, Offsets]:
        """The instants between the steps of ``number`` cycles, and the arrivals expected until
        each.
        """
        times = np.cumsum(np.tile(lengths, number))
        arrivals = np.cumsum(np.tile(factors * lengths * request.rate, number))
        return np.concatenate([[0.0], times]), np.concatenate([[0.0], arrivals])

    expected = None
    if request.horizon_s is not None:
        cycles_begun = int(request.horizon_s // lengths.sum()) + 1
        expected = float(np.interp(request.horizon_s, *cycles(cycles_begun)))
    units = renewal(lambda n: rng.exponential(1.0, n), 1.0, expected, request.count)
    cycles_needed = int(units[-1] // per_cycle) + 1 if len(units) else 1
    times, counts = cycles(cycles_needed)
    offsets: Offsets = np.interp(units, counts, times)
    return offsets


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
    """Arrivals per second between the first and the last of a trace that are sent: those before
    ``ends_s``, at most ``requests``. Infinite where all are at one instant and nothing else ends.
    """
    if ends_s is not None:
        offsets = offsets[offsets < ends_s]
    offsets = offsets[:requests]
    if offsets[-1] > 0:
        return float((len(offsets) - 1) / offsets[-1])
    return float("inf") if ends_s is None else len(offsets) / ends_s


def unit_problem(arrivals: Arrivals) -> str | None:
    """Why the times of a trace are probably milliseconds, where nobody said what they are.

    The times of Mooncake's traces are. Of others those look like it that are whole numbers more
    than half a minute apart on average.
    """
    if "speed_up" in arrivals.model_fields_set:
        return None
    path, offsets = arrivals.trace or "", recorded(arrivals)
    ask = "give 'speed_up' 1000 for milliseconds, 1 for seconds"
    if _is_mooncake(path):
        return f"trace {path!r} looks like Mooncake's, whose times are milliseconds: {ask}"
    whole = bool(np.all(offsets == np.floor(offsets)))
    if whole and len(offsets) > 1 and offsets[-1] / (len(offsets) - 1) > MOST_MEAN_GAP_S:
        text = f"trace {path!r} would last {hours(float(offsets[-1]))}"
        return (
            f"{text} for {len(offsets):,} requests; are its times milliseconds? "
            f"{ask[0].upper()}{ask[1:]}"
        )
    return None


def _is_mooncake(path: str) -> bool:
    """Whether the first line has blocks of 512 tokens and a whole number as its time. Bailian's
    traces, whose times are seconds, have smaller blocks and name a chat.
    """
    from orchestrator.workloads.entries import block_sizes
    from orchestrator.workloads.files import first_line

    try:
        row = orjson.loads(first_line("trace", path))
    except orjson.JSONDecodeError:
        return False
    if not isinstance(row, dict) or "chat_id" in row or type(row.get("timestamp")) is not int:
        return False
    tokens, blocks = row.get("input_length"), row.get("hash_ids")
    if type(tokens) is not int or not isinstance(blocks, list) or not blocks:
        return False
    return 512 in block_sizes(tokens, len(blocks))


def recorded(arrivals: Arrivals) -> Offsets:
    """All offsets of a trace. Raises ProblemsError with every line that has no time, or one before
    the line above.

    Times must ascend, since a trace may also hold the prompts that are sent at its times. The file
    is read again only where it has changed.
    """
    from orchestrator.workloads.files import status_of  # only a trace needs it

    path = arrivals.trace or ""
    found = status_of("trace", path)
    stamps = _stamps(path, found.st_mtime_ns, found.st_size)
    offsets: Offsets = (stamps - stamps[0]) / arrivals.speed_up
    return offsets


@lru_cache(maxsize=1)
def _stamps(path: str, mtime_ns: int, size: int) -> Offsets:
    from orchestrator.workloads.files import (
        lines_of,
        read_each,
        read_file,
        refuse_other_formats,
    )

    last = -np.inf

    def stamp(line: bytes) -> float:
        nonlocal last
        try:
            value = float(
                orjson.loads(line)["timestamp"] if line.lstrip().startswith(b"{") else line
            )
        except (ValueError, KeyError, TypeError):
            value = np.nan
        if not np.isfinite(value):
            raise ValueError(f"no finite time in {line[:60].decode(errors='replace')!r}")
        before, last = last, value
        if value < before:
            raise ValueError(
                f"{value:g} is before the {before:g} of the line above it: sort the file by time"
            )
        return value

    data = read_file("trace", path)
    refuse_other_formats("trace", path, data)
    lines = ((f"line {number}", line) for number, line in lines_of(data, "trace", path))
    return np.array(read_each("trace", path, lines, stamp), dtype=np.float64)
