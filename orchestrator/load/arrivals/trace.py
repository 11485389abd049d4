"""Arrivals as they were recorded: one number of seconds per line, or JSON lines with ``timestamp``.

The first arrival becomes 0. ``speed_up`` divides the time; a file in milliseconds is played in real time with 1000.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson

from orchestrator.errors import InputError
from orchestrator.load.arrivals import Offsets
from orchestrator.spec.load import Arrivals


def trace(
    arrivals: Arrivals, rate: float, horizon_s: float | None, count: int | None, rng: np.random.Generator
) -> Offsets:
    """The recorded offsets, sorted. The level's rate has no effect: a trace has its own.

    Raises InputError when the file cannot be read.
    """
    found = trace_problems(arrivals)
    if found:
        raise InputError(found[0])
    assert arrivals.trace is not None
    stamps = np.sort(np.array(_stamps(Path(arrivals.trace)), dtype=np.float64))
    offsets: Offsets = (stamps - stamps[0]) / arrivals.speed_up
    end = len(offsets) if horizon_s is None else int(np.searchsorted(offsets, horizon_s, side="left"))
    return offsets[:end][:count]


def trace_problems(arrivals: Arrivals) -> list[str]:
    """Why the trace cannot be played: missing, empty, or the first line that holds no time."""
    path = Path(arrivals.trace or "")
    if not path.is_file():
        return [f"trace {str(path)!r} is not a file"]
    try:
        stamps = _stamps(path)
    except ValueError as error:
        return [str(error)]
    return [] if stamps else [f"trace {str(path)!r} is empty"]


def _stamps(path: Path) -> list[float]:
    stamps = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            stamp = float(orjson.loads(line)["timestamp"] if line.lstrip().startswith("{") else line)
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"trace {str(path)!r}, line {number}: no time in {line[:60]!r}") from None
        if not np.isfinite(stamp):
            raise ValueError(f"trace {str(path)!r}, line {number}: {line[:60]!r} is not a finite time")
        stamps.append(stamp)
    return stamps
