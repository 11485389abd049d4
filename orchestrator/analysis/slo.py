"""Latency limits: which requests met them, for any limit, from stored requests."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from orchestrator.analysis.columns import (
    Block,
    Bools,
    Floats,
    RequestColumns,
    WindowNs,
    blocks,
    positions,
    request_columns,
)
from orchestrator.analysis.gaps import token_gaps
from orchestrator.errors import InputError, Problem, ProblemsError
from orchestrator.registry import unknown_name
from orchestrator.spec.load import Slo
from orchestrator.spec.units import format_duration, parse_duration

LIMITS = ("ttft", "tpot", "e2e", "itl_p99")
_TERM = re.compile(r"\s*([A-Za-z0-9_]+)\s*(<=|>=|<|>|==|=)\s*(.*?)\s*")


@dataclass(frozen=True, slots=True)
class Verdicts:
    """One entry per request that was due in the window, in order of schedule; errors are in it as not met."""

    met: Bools  # every limit
    by_limit: dict[str, Bools]  # each limit alone

    @property
    def attainment(self) -> float | None:
        """Share of all requests, errors included, that met every limit; None of nothing."""
        return float(self.met.mean()) if self.met.size else None

    def shares(self) -> dict[str, float | None]:
        """Attainment of each limit alone."""
        return {name: float(met.mean()) if met.size else None for name, met in self.by_limit.items()}


def parse_slo(text: str) -> Slo:
    """``ttft<=500ms,tpot<=50ms,attainment>=0.95`` (also ``e2e``, ``itl_p99``, ``attainment>=95%``).

    Raises ProblemsError with everything that is wrong at once.
    """
    values: dict[str, Any] = {}
    problems: list[str] = []
    for term in text.split(","):
        name, value, problem = _term(term)
        if problem is None and name in values:
            problem = f"{name} is given twice"
        if problem is not None:
            problems.append(problem)
        else:
            values[name] = value
    if not problems and not set(values) & set(LIMITS):
        problems.append(f"no latency limit; give at least one of {', '.join(LIMITS)}, like ttft<=500ms")
    if problems:
        raise ProblemsError([Problem(f"--slo: {problem}") for problem in problems])
    return Slo(**values)


def _term(term: str) -> tuple[str, float, str | None]:
    """(name, value in seconds or as a share, problem)."""
    match = _TERM.fullmatch(term)
    if match is None:
        return "", 0.0, f"{term.strip()!r} is no limit; write it like ttft<=500ms"
    name, operator, value = match.group(1).lower(), match.group(2), match.group(3)
    if name != "attainment" and name not in LIMITS:
        return name, 0.0, unknown_name("limit", name, (*LIMITS, "attainment"))
    wanted = ">=" if name == "attainment" else "<="
    if operator != wanted:
        return name, 0.0, f"{name}{operator}{value}: write {name}{wanted}{value}"
    try:
        return name, _share(value) if name == "attainment" else parse_duration(value), None
    except ValueError as error:
        return name, 0.0, f"{name}: {error}"


def _share(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise ValueError(f"{text!r} is not a share like 0.95 or 95%") from None
    if not 0 < share <= 1:
        raise ValueError(f"{text!r} is not above 0 and at most 1")
    return share


def format_slo(slo: Slo) -> str:
    """As ``parse_slo`` reads it."""
    limits = [(name, getattr(slo, name)) for name in LIMITS]
    terms = [f"{name}<={format_duration(limit)}" for name, limit in limits if limit is not None]
    return ",".join([*terms, f"attainment>={slo.attainment:g}"])


def judge(requests: pa.Table, token_events: pa.Table | None, slo: Slo, window_ns: WindowNs | None = None) -> Verdicts:
    """Every measured request that was due in the window against every limit.

    TTFT and E2E count from scheduled; a request with one token has no TPOT and one chunk no ITL: nothing to violate.
    ``itl_p99`` is the 99th percentile of the request's own gaps. Raises InputError when a limit needs token_events and
    there are none, ValueError when rows of several attempts are mixed.
    """
    columns = request_columns(requests)
    due = np.flatnonzero(columns.scheduled_in(window_ns))
    order = due[np.argsort(columns.scheduled_ns[due], kind="stable")]
    values = {name: _values(name, columns, token_events) for name in LIMITS if getattr(slo, name) is not None}
    by_limit = {name: (columns.ok & (seconds <= getattr(slo, name)))[order] for name, seconds in values.items()}
    met = columns.ok[order]
    for verdict in by_limit.values():
        met = met & verdict
    return Verdicts(met, by_limit)


def attainment(
    requests: pa.Table, token_events: pa.Table | None, slo: Slo, window_ns: WindowNs | None = None
) -> float | None:
    """Share of all measured requests due in the window, errors included, that met every limit."""
    return judge(requests, token_events, slo, window_ns).attainment


def goodput(requests: pa.Table, token_events: pa.Table | None, slo: Slo, window_ns: WindowNs) -> float | None:
    """Requests per second that were due in the window and met every limit."""
    window_s = (window_ns[1] - window_ns[0]) / 1e9
    return float(judge(requests, token_events, slo, window_ns).met.sum()) / window_s if window_s > 0 else None


def _values(name: str, columns: RequestColumns, token_events: pa.Table | None) -> Floats:
    """Seconds per request; -inf where a request cannot violate the limit, NaN (never met) where nobody knows."""
    if name == "ttft":
        return (columns.first_ns - columns.scheduled_ns) / 1e9
    if name == "e2e":
        return (columns.last_ns - columns.scheduled_ns) / 1e9
    if name == "tpot":
        intervals = columns.output_tokens - 1
        mean = (columns.last_ns - columns.first_ns) / np.where(intervals > 0, intervals, np.nan) / 1e9
        return np.where(intervals <= 0, -np.inf, mean)
    if token_events is None:
        raise InputError("a limit on itl_p99 needs the table token_events, which these results do not hold")
    return _itl_p99(columns, token_events)


def _itl_p99(columns: RequestColumns, token_events: pa.Table) -> Floats:
    found = np.full(columns.index.size, np.nan)
    for block in blocks(columns, token_events, positions(columns, token_events)):
        found[block.request] = _p99_of_rows(block) / 1e6
    return found


def _p99_of_rows(block: Block) -> Floats:
    """99th percentile (linear) of each row's own gaps in us; -inf for a row without any."""
    gaps, row = token_gaps(block)
    ordered = np.sort((row << 32) | gaps) & 0xFFFFFFFF  # gaps sorted within their row
    lengths = np.bincount(row, minlength=block.request.size)
    some = lengths > 0
    rank = 0.99 * (lengths[some] - 1)
    low = np.floor(rank).astype(np.int64)
    start = (np.cumsum(lengths) - lengths)[some]
    below, above = ordered[start + low], ordered[start + np.ceil(rank).astype(np.int64)]
    result = np.full(block.request.size, -np.inf)
    result[some] = below + (above - below) * (rank - low)
    return result
