"""Latency limits: which requests met them, for any limit, from stored requests."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from orchestrator.analysis.gaps import token_gaps
from orchestrator.analysis.requests import Block, Bools, Floats, RequestArrays, WindowNs, request_arrays
from orchestrator.errors import InputError, Problem, ProblemsError
from orchestrator.registry import unknown_name
from orchestrator.spec.load import Slo, format_duration, parse_duration

LIMITS = ("ttft", "tpot", "e2e", "itl_p99")
_TERM = re.compile(r"\s*([A-Za-z0-9_]+)\s*(<=|>=|<|>|==|=)\s*(.*?)\s*")


@dataclass(frozen=True, slots=True)
class Verdicts:
    """One entry per request that was due in the window, in order of schedule; errors are in it as not met."""

    met: Bools  # every limit
    by_limit: dict[str, Bools]  # each limit alone


@dataclass(frozen=True, slots=True)
class LimitValues:
    """What limits are held against: one entry per measured request that was due in the window, in order of schedule.

    ``seconds``: by limit; -inf where a request cannot violate it, NaN (never met) where its value is unknown. It lacks
    ``itl_p99`` where there are no token_events.
    """

    ok: Bools
    seconds: dict[str, Floats]


def parse_slo(text: str) -> Slo:
    """``ttft<=500ms,tpot<=50ms,attainment>=0.95`` (also ``e2e``, ``itl_p99``, ``attainment>=95%``).

    Raises ProblemsError with everything that is wrong at once.
    """
    values: dict[str, Any] = {}
    problems: list[str] = []
    for term in text.split(","):
        match = _TERM.fullmatch(term)
        name, operator, value = (match[1].lower(), match[2], match[3]) if match else ("", "", "")
        wanted = ">=" if name == "attainment" else "<="
        if match is None:
            problems.append(f"{term.strip()!r} is no limit; write it like ttft<=500ms")
        elif name not in (*LIMITS, "attainment"):
            problems.append(unknown_name("limit", name, (*LIMITS, "attainment")))
        elif operator != wanted:
            problems.append(f"{name}{operator}{value}: write {name}{wanted}{value}")
        elif name in values:
            problems.append(f"{name} is given twice")
        else:
            try:
                values[name] = _share(value) if name == "attainment" else parse_duration(value)
            except ValueError as error:
                problems.append(f"{name}: {error}")
    if not problems and not set(values) & set(LIMITS):
        problems.append(f"no latency limit; give at least one of {', '.join(LIMITS)}, like ttft<=500ms")
    if problems:
        raise ProblemsError([Problem(f"--slo: {problem}") for problem in problems])
    return Slo(**values)


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


def limit_values(requests: pa.Table, token_events: pa.Table | None, window_ns: WindowNs) -> LimitValues:
    """What any limit can be checked with. Raises ValueError when rows of several attempts are mixed.

    TTFT and E2E count from scheduled; a request with one token has no TPOT and one chunk no ITL: nothing to violate.
    ``itl_p99`` is the 99th percentile of the request's own gaps. Both are unknown of a stream that came in lumps.
    """
    arrays = request_arrays(requests, token_events)
    due = np.flatnonzero(arrays.scheduled_in(window_ns))
    order = due[np.argsort(arrays.scheduled_ns[due], kind="stable")]
    intervals = arrays.intervals
    tpot_s = (arrays.last_ns - arrays.first_ns) / np.where(intervals > 0, intervals, np.nan) / 1e9
    seconds = {
        "ttft": (arrays.first_ns - arrays.scheduled_ns) / 1e9,
        "tpot": np.where(intervals <= 0, -np.inf, tpot_s),
        "e2e": (arrays.last_ns - arrays.scheduled_ns) / 1e9,
    }
    if token_events is not None:
        seconds["itl_p99"] = _itl_p99(arrays)
    return LimitValues(arrays.ok[order], {name: values[order] for name, values in seconds.items()})


def limits_of(slo: Slo) -> dict[str, float]:
    """The limits that are set, in seconds."""
    return {name: limit for name in LIMITS if (limit := getattr(slo, name)) is not None}


def judge(values: LimitValues, slo: Slo) -> Verdicts:
    """Every request against every limit. Raises InputError when a limit needs token_events and there were none."""
    by_limit = {}
    for name, limit_s in limits_of(slo).items():
        if name not in values.seconds:
            raise InputError(f"a limit on {name} needs the table token_events, which these results do not hold")
        by_limit[name] = values.ok & (values.seconds[name] <= limit_s)
    return Verdicts(np.logical_and.reduce([values.ok, *by_limit.values()]), by_limit)


def _itl_p99(arrays: RequestArrays) -> Floats:
    found = np.full(arrays.ok.size, np.nan)
    for block in () if arrays.buffered else arrays.blocks():
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
