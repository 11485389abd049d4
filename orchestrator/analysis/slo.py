"""Latency limits: which stored requests met them. Any limit can be checked after a run."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from pydantic import ValidationError

from orchestrator.analysis.gaps import token_gaps
from orchestrator.analysis.requests import RequestArrays, TokenEventBlock, WindowNs, request_arrays
from orchestrator.base.arrays import Bools, Floats
from orchestrator.base.errors import InputError, Problem, ProblemsError
from orchestrator.base.registry import unknown_name
from orchestrator.results.columns import NumberColumn
from orchestrator.results.lazy_rows import Rows
from orchestrator.results.records import AttemptData
from orchestrator.spec.load import (
    LIMITS,
    READERS,
    Slo,
    format_duration,
    parse_duration,
    percentile_limit,
)

JOINT = "attainment"  # name of the test whether a request met all its limits together
_TERM = re.compile(r"\s*([A-Za-z0-9_.]+)\s*(<=|>=|<|>|==|=)\s*(.*?)\s*")


@dataclass(frozen=True, slots=True)
class Test:
    """What a share ``target`` of all requests must meet. ``met``: one entry per request; errors are
    misses.
    """

    __test__: ClassVar[bool] = False  # keeps pytest from collecting it

    name: str  # JOINT, or the name of a limit on a percentile
    met: Bools
    target: float


@dataclass(frozen=True, slots=True)
class Verdicts:
    """One entry per request that was due in the window, in order of schedule; an error met nothing.

    An SLO holds where all its ``tests`` hold: that of the limits on each request together, then one
    per percentile.
    """

    tests: tuple[Test, ...]
    by_limit: dict[str, int]  # how many met each limit alone

    @property
    def met(self) -> Bools:
        """Who met the first test: attainment is the share of these."""
        return self.tests[0].met


@dataclass(frozen=True, slots=True)
class LimitValues:
    """What limits are checked against: one entry per measured request that was due in the window,
    in order of schedule.

    ``seconds``: by the names of LIMITS; -inf where a request cannot violate the limit, NaN (never
    met) where its value is unknown. ``itl_p99`` is missing where there are no token_events.
    """

    ok: Bools
    seconds: dict[str, Floats]


def parse_slo(text: str) -> Slo:
    """Reads ``ttft<=500ms,tpot<=50ms,attainment>=0.95`` (also ``ttft_p95<=500ms``,
    ``reader=visual``, ``agreement>=0.9``, ``95%``).

    Raises ProblemsError with everything that is wrong at once.
    """
    values: dict[str, Any] = {}
    problems: list[str] = []
    for term in text.split(","):
        match = _TERM.fullmatch(term)
        name, operator, value = (match[1].lower(), match[2], match[3]) if match else ("", "", "")
        wanted = {"attainment": ">=", "agreement": ">=", "reader": "="}.get(name, "<=")
        if match is None:
            problems.append(f"{term.strip()!r} is not a limit; write it like ttft<=500ms")
        elif name not in _WORDS and percentile_limit(name) is None:
            percentile, _, latency = name.partition("_")
            turned = f"{latency}_{percentile}"
            if latency and percentile_limit(turned) is not None:
                problems.append(f"unknown limit {name!r}; did you mean {turned!r}?")
            else:
                known = (*_WORDS, *(f"{one}_p95" for one in LIMITS))
                problems.append(unknown_name("limit", name, known))
        elif operator != wanted:
            problems.append(f"{name}{operator}{value}: write {name}{wanted}{value}")
        elif name in values:
            problems.append(f"{name} is given twice")
        else:
            try:
                values[name] = _WORDS.get(name, parse_duration)(value)
            except ValueError as error:
                problems.append(f"{name}: {error}")
    if not problems:
        problems += _unfit(values)
    if problems:
        raise ProblemsError([Problem(f"--slo: {problem}") for problem in problems])
    return Slo.model_validate(values).resolved()


def _unfit(values: dict[str, Any]) -> list[str]:
    """What is wrong with terms that are each right by themselves."""
    if not values.keys() - {"attainment", "agreement"}:
        return [f"no latency limit; give at least one of {', '.join(LIMITS)}, like ttft<=500ms"]
    try:
        Slo.model_validate(values)
    except ValidationError as error:
        return [str(one["ctx"]["text"]) for one in error.errors()]
    return []


def _reader(text: str) -> str:
    if text not in READERS:
        raise ValueError(f"{text!r} is none of {', '.join(READERS)}")
    return text


def _share(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise ValueError(f"{text!r} is not a share like 0.95 or 95%") from None
    if not 0 < share <= 1:
        raise ValueError(f"{text!r} is not above 0 and at most 1")
    return share


_WORDS: dict[str, Any] = {
    **dict.fromkeys(LIMITS, parse_duration),
    "reader": _reader,
    "attainment": _share,
    "agreement": _share,
}


def format_slo(slo: Slo) -> str:
    """The text that ``parse_slo`` reads."""
    agreement = [f"agreement>={slo.agreement:g}"] if slo.agreement is not None else []
    return ",".join([format_limits(slo), *agreement])


def format_limits(slo: Slo) -> str:
    """``format_slo`` without what limits no request: by that a running probe is judged."""
    terms = [f"{one.name}<={format_duration(one.seconds)}" for one in slo.limits]
    return ",".join([*terms, *([f"attainment>={slo.attainment:g}"] if is_joint(slo) else [])])


def is_joint(slo: Slo) -> bool:
    """Whether it has limits on single requests, not only on percentiles."""
    return any(one.share is None for one in slo.limits)


class LimitColumns:
    """Gathers LimitValues from the requests of one attempt that were due in a window, some at a
    time.
    """

    def __init__(self, window_ns: WindowNs) -> None:
        self._window_ns = window_ns
        self._found = defaultdict[str, NumberColumn](NumberColumn)
        self._index, self._ok = NumberColumn(np.int32), NumberColumn(np.bool_)

    def add(self, columns: RequestArrays) -> None:
        due = columns.scheduled_in(self._window_ns)
        self._index.add(columns.index[due])
        self._ok.add(columns.ok[due])
        for name, values in _values(columns):
            self._found[name].add(values[due])

    def values(self) -> LimitValues:
        order = np.lexsort((self._index.values(), self._found["scheduled"].values()))
        found = {
            name: column.taken(order) for name, column in self._found.items() if name != "scheduled"
        }
        return LimitValues(self._ok.taken(order), found)


def limit_values(requests: Rows, token_events: Rows | None, window_ns: WindowNs) -> LimitValues:
    """The values that any limit can be checked against. Raises ValueError where rows of several
    attempts are mixed.

    TTFT and E2E count from scheduled. A request of one token has no TPOT and no ITL to violate.
    ``itl_p99`` is the 99th percentile of the request's own gaps. Both are unknown for a stream that
    came in lumps, and for an answer of several tokens that came in one event; ``normalized_ttft``
    (per prompt token) is unknown where nobody counted the prompt.
    """
    found = LimitColumns(window_ns)
    for columns in request_arrays(requests, token_events):
        found.add(columns)
    return found.values()


def _values(arrays: RequestArrays) -> Iterator[tuple[str, Floats]]:
    """Also ``scheduled``, ns, by which they are ordered."""
    intervals, prompt = arrays.intervals, arrays.input_tokens
    ttft_ns = arrays.first_ns - arrays.scheduled_ns
    tpot_s = (arrays.last_ns - arrays.first_ns) / np.where(intervals > 0, intervals, np.nan) / 1e9
    yield "scheduled", arrays.scheduled_ns
    yield "ttft", ttft_ns / 1e9
    yield "tpot", np.where(intervals <= 0, -np.inf, tpot_s)
    yield "e2e", (arrays.last_ns - arrays.scheduled_ns) / 1e9
    yield "normalized_ttft", ttft_ns / np.where(prompt > 0, prompt, np.nan) / 1e9
    if arrays.token_events is not None:
        yield "itl_p99", _itl_p99(arrays)


def stored_values(data: AttemptData) -> LimitValues:
    """The values of a stored attempt."""
    known = {
        name: values
        for name in LIMITS
        if (values := getattr(data, f"request_{name}_s")) is not None
    }
    # stored as tuples
    seconds = {name: np.asarray(values, np.float64) for name, values in known.items()}
    return LimitValues(np.asarray(data.request_ok, np.bool_), seconds)


def judge(values: LimitValues, slo: Slo) -> Verdicts:
    """Judges every request by every limit. Raises InputError where a limit needs token_events that
    are not there.
    """
    return next(judge_each(values, slo, [values.ok.size]))


def judge_each(values: LimitValues, slo: Slo, ends: Iterable[int]) -> Iterator[Verdicts]:
    """As ``judge``, attempts whose requests come one attempt after the other. ``ends``: where those
    of each end.
    """
    by_limit, begin = _met(values, slo), 0
    every = _tests(by_limit, slo)
    for end in ends:
        counted = {name: int(np.count_nonzero(met[begin:end])) for name, met in by_limit.items()}
        yield Verdicts(
            tuple(Test(one.name, one.met[begin:end], one.target) for one in every), counted
        )
        begin = end


def _met(values: LimitValues, slo: Slo) -> dict[str, Bools]:
    """Who met each limit alone."""
    by_limit = {}
    for one in slo.limits:
        if one.of not in values.seconds:
            raise InputError(
                f"a limit on {one.of} needs the table token_events, which these results do not hold"
            )
        by_limit[one.name] = values.ok & (values.seconds[one.of] <= one.seconds)
    return by_limit


def _tests(by_limit: Mapping[str, Bools], slo: Slo) -> tuple[Test, ...]:
    together = [by_limit[one.name] for one in slo.limits if one.share is None]
    joint = [Test(JOINT, np.logical_and.reduce(together), slo.attainment)] if together else []
    return (
        *joint,
        *(
            Test(one.name, by_limit[one.name], one.share)
            for one in slo.limits
            if one.share is not None
        ),
    )


def shares(verdicts: Sequence[Verdicts]) -> dict[str, float]:
    """The share of the requests of some attempts that met each limit alone."""
    of = sum(one.met.size for one in verdicts)
    return {name: sum(one.by_limit[name] for one in verdicts) / of for name in verdicts[0].by_limit}


def tests(values: LimitValues, slo: Slo) -> tuple[Test, ...]:
    """The tests that must all hold for an SLO to hold, the joint one first. Raises as ``judge``
    does.
    """
    return _tests(_met(values, slo), slo)


def _itl_p99(arrays: RequestArrays) -> Floats:
    found = np.full(arrays.ok.size, np.nan)
    for block in () if arrays.buffered else arrays.blocks():
        found[block.request] = _p99_of_rows(block) / 1e6
    found[~arrays.has_token_times] = np.nan
    return found


def _p99_of_rows(block: TokenEventBlock) -> Floats:
    """99th percentile (linear) of each row's own gaps in us; -inf for a row without gaps."""
    gaps = token_gaps(block)
    sorted_us = np.sort((gaps.row << 32) | gaps.us) & 0xFFFFFFFF  # sorted within their row
    lengths = np.bincount(gaps.row, minlength=block.request.size)
    has_gaps = lengths > 0
    rank = 0.99 * (lengths[has_gaps] - 1)
    low = np.floor(rank).astype(np.int64)
    high = np.ceil(rank).astype(np.int64)
    start = (np.cumsum(lengths) - lengths)[has_gaps]
    below, above = sorted_us[start + low], sorted_us[start + high]
    p99_us = np.full(block.request.size, -np.inf)
    p99_us[has_gaps] = below + (above - below) * (rank - low)
    return p99_us
