"""Latency limits: which stored requests met them. Any limit can be checked after a run."""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from pydantic import ValidationError

from orchestrator.analysis.gaps import token_gaps
from orchestrator.analysis.requests import (
    RequestArrays,
    RequestParts,
    TokenEventBlock,
    request_arrays,
)
from orchestrator.base.arrays import Bools, Floats
from orchestrator.base.errors import InputError, Problem, ProblemsError
from orchestrator.base.registry import unknown_name
from orchestrator.results.columns import NumberColumn
from orchestrator.results.lazy_rows import Rows
from orchestrator.results.records import AttemptData
from orchestrator.results.window import MeasuredWindow
from orchestrator.spec.load import (
    LIMITS,
    READERS,
    Slo,
    format_duration,
    parse_duration,
    percentile_limit,
)

# No limit on latencies: enough requests must be answered, however long they take. It is for loads
# that are due at once, where only throughput counts.
ANSWERED = Slo(name="throughput")
JOINT = "attainment"  # name of the test whether a request met all its limits together
# what a latency without its unit is taken for: at least so many are milliseconds, fewer are seconds
_LEAST_MILLISECONDS = 10
_BARE_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_TERM = re.compile(
    r"\s*(?:([A-Za-z0-9_][A-Za-z0-9_.-]*):)?([A-Za-z0-9_.]+)\s*(<=|>=|<|>|==|=)\s*(.*?)\s*"
)


@dataclass(frozen=True, slots=True)
class Test:
    """A condition that the share ``target`` of all requests must meet.

    ``name``: JOINT, or the name of a limit on a percentile; before it the part of a mix, as in
    ``chat:attainment``. ``met``: whether each request that the test is about met it; an error is a
    miss. ``part``: the test is about the requests of this part of a mix; None: about all.
    """

    __test__: ClassVar[bool] = False  # keeps pytest from collecting it

    name: str
    met: Bools
    target: float
    part: str | None = None


@dataclass(frozen=True, slots=True)
class LimitCount:
    """How many requests met a limit alone, of those that it is about.

    ``needed_s``: the least limit, in seconds, that enough of them would have met; infinite where
    the value of too few is known.
    """

    met: int
    requests: int
    needed_s: float


@dataclass(frozen=True, slots=True)
class Verdicts:
    """How the requests of one attempt did under one SLO.

    The SLO holds where all of its ``tests`` hold. First comes the test of all limits on single
    requests together, then one test per limit on a percentile. Where an SLO limits parts of a mix,
    it limits nothing else, and each part has such tests of its own, one part after the other.

    A test has one entry per request that it is about and that was due in the window, in order of
    schedule. A request that ended with an error met nothing.
    """

    tests: tuple[Test, ...]
    by_limit: dict[str, LimitCount]

    @property
    def met(self) -> Bools:
        """Which of the requests that the first test is about met it."""
        return self.tests[0].met

    @property
    def requests_in_limits(self) -> int:
        """How many requests met all limits on single requests that are about them."""
        joint_tests = [test for test in self.tests if is_joint_test(test.name)]
        return sum(int(np.count_nonzero(test.met)) for test in joint_tests)

    @property
    def attainment(self) -> float | None:
        """The share of requests that met the first test. Where limits are on parts of a mix, the
        share that met the test whose share is lowest beside its target. None without requests.
        """
        if self.tests[0].part is None:
            return float(self.met.mean()) if self.met.size else None
        if not all(test.met.size for test in self.tests):
            return None
        worst = min(self.tests, key=lambda test: float(test.met.mean()) - test.target)
        return float(worst.met.mean())


@dataclass(frozen=True, slots=True)
class LimitValues:
    """The values that limits are checked against.

    There is one entry per measured request that was due in the window, in order of schedule.
    ``seconds``: by the names of LIMITS; -inf where a request cannot violate the limit, NaN (never
    met) where its value is unknown. ``itl_p99`` is missing where there are no token_events.
    ``parts``: None where the workload is no mix, or nobody needs its parts.
    """

    ok: Bools
    seconds: dict[str, Floats]
    parts: RequestParts | None = None

    def of_part(self, part: str | None) -> Bools:
        """Which requests are of a part of a mix; all of them if it is None."""
        if part is None:
            return np.ones(self.ok.size, np.bool_)
        return self.parts.of(part) if self.parts is not None else np.zeros(self.ok.size, np.bool_)


def parse_slo(text: str) -> Slo:
    """Reads an SLO such as ``ttft<=500ms,tpot<=50ms,attainment>=0.95``.

    It may also have ``ttft_p95<=500ms``, ``reader=visual``, ``agreement>=0.9`` and shares like
    ``95%``. ``chat:ttft<=500ms`` is a limit on the requests of one part of a mix. Raises
    ProblemsError with everything that is wrong at once.
    """
    values: dict[str, str | float] = {}
    values_by_part: dict[str, dict[str, str | float]] = {}
    problems: list[str] = []
    for text_of_term in text.split(","):
        term = _term(text_of_term)
        if term is None:
            problems.append(f"{text_of_term.strip()!r} is not a limit; write it like ttft<=500ms")
            continue
        values_here = values if term.part is None else values_by_part.setdefault(term.part, {})
        problem = _problem_of_term(term)
        if problem is None and term.name in values_here:
            problem = f"{term.name} is given twice"
        if problem is not None:
            problems.append(problem)
            continue
        parse_value = _PARSERS.get(term.name, _latency)
        try:
            values_here[term.name] = parse_value(term.value)
        except ValueError as error:
            problems.append(f"{term.name}: {error}")
    if not problems:
        problems += _problems_together(values, values_by_part)
    if problems:
        raise ProblemsError([Problem(f"--slo: {problem}") for problem in problems])
    return Slo.model_validate(_with_parts(values, values_by_part)).resolved()


@dataclass(frozen=True, slots=True)
class _Term:
    """One condition in the text of an SLO, like ``chat:ttft<=500ms``. ``part``: the part of a mix
    that it is about; None: all requests.
    """

    part: str | None
    name: str
    operator: str
    value: str


def _term(text: str) -> _Term | None:
    """The condition that a text says; None if it says none."""
    match = _TERM.fullmatch(text)
    if match is None:
        return None
    part, name, operator, value = match.groups()
    return _Term(part, name.lower(), operator, value)


def _with_parts(
    values: Mapping[str, str | float], values_by_part: Mapping[str, Mapping[str, str | float]]
) -> dict[str, object]:
    """The keys of an SLO, those of the parts of a mix under ``parts``."""
    return {**values, "parts": values_by_part} if values_by_part else dict(values)


def _problem_of_term(term: _Term) -> str | None:
    """Why a condition cannot be one of an SLO, whatever its value; None if it can."""
    problem = _problem_of_name(term.name) or _problem_of_operator(term)
    if problem is None and term.part is not None and term.name == "agreement":
        return f"{term.part}:agreement: a part has no agreement of its own; leave {term.part}: out"
    return problem


def _problem_of_name(name: str) -> str | None:
    if name in _PARSERS or percentile_limit(name) is not None:
        return None
    percentile, _, latency = name.partition("_")
    turned = f"{latency}_{percentile}"
    if latency and percentile_limit(turned) is not None:
        return f"unknown limit {name!r}; did you mean {turned!r}?"
    percentile_names = [f"{limit}_p95" for limit in LIMITS]
    return unknown_name("limit", name, (*_PARSERS, *percentile_names))


def _problem_of_operator(term: _Term) -> str | None:
    expected = {"attainment": ">=", "agreement": ">=", "reader": "="}.get(term.name, "<=")
    if term.operator == expected:
        return None
    suggested = term.value if term.name in _WITHOUT_UNIT else _with_likely_unit(term.value)
    return f"{term.name}{term.operator}{term.value}: write {term.name}{expected}{suggested}"


def _problems_together(
    values: Mapping[str, str | float], values_by_part: Mapping[str, Mapping[str, str | float]]
) -> list[str]:
    """Why limits that are each right by themselves do not fit together."""
    if not values_by_part and not values.keys() - {"attainment", "agreement"}:
        return [f"no latency limit; give at least one of {', '.join(LIMITS)}, like ttft<=500ms"]
    try:
        Slo.model_validate(_with_parts(values, values_by_part))
    except ValidationError as error:
        return [str(details["ctx"]["text"]) for details in error.errors()]
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
        hint = f"; it is a share: {share / 100:g} for {share:g} %" if 1 < share <= 100 else ""
        raise ValueError(f"{text!r} is not above 0 and at most 1{hint}")
    return share


def _latency(text: str) -> float:
    """Seconds. Raises ValueError; for a number without a unit, with the unit that is likely."""
    try:
        return parse_duration(text)
    except ValueError as error:
        likely = _with_likely_unit(text)
        if likely == text:
            raise
        raise ValueError(f"{error}; did you mean {likely}?") from None


def _with_likely_unit(text: str) -> str:
    """A number above 0 without a unit, with the one that is likely; any other text as it is."""
    if not _BARE_NUMBER.fullmatch(text) or float(text) == 0:
        return text
    unit = "ms" if float(text) >= _LEAST_MILLISECONDS else "s"
    return text + unit


# by name of a term: what reads its value
_PARSERS: dict[str, Callable[[str], str | float]] = {
    **dict.fromkeys(LIMITS, _latency),
    "reader": _reader,
    "attainment": _share,
    "agreement": _share,
}
_WITHOUT_UNIT = ("reader", "attainment", "agreement")


def have_same_limits(first: Slo, second: Slo) -> bool:
    """Whether two SLOs limit the same, whatever they are called and in whatever order and units
    they are written.
    """
    bounds = _bounds(first)
    other_bounds = _bounds(second)
    if bounds.keys() != other_bounds.keys():
        return False
    return all(math.isclose(bound, other_bounds[name]) for name, bound in bounds.items())


def _bounds(slo: Slo) -> dict[str, float]:
    """What an SLO limits, by the names with which ``--slo`` writes it."""
    bounds: dict[str, float] = {}
    for group in slo.groups:
        for limit in group.limits:
            bounds[limit.name] = limit.seconds
        if group.is_joint:
            bounds[joint_name(group.part)] = group.attainment
    if slo.agreement is not None:
        bounds["agreement"] = slo.agreement
    return bounds


def format_slo(slo: Slo) -> str:
    """The text that ``parse_slo`` reads."""
    limits = format_limits(slo)
    if slo.agreement is None:
        return limits
    return f"{limits},agreement>={slo.agreement:g}"


def format_limits(slo: Slo) -> str:
    """The limits of an SLO, by which a running probe is judged.

    This is ``format_slo`` without the agreement, which limits no request.
    """
    terms: list[str] = []
    names_attainment = False
    for group in slo.groups:
        terms += [f"{limit.name}<={format_duration(limit.seconds)}" for limit in group.limits]
        if not group.is_joint:
            continue
        if group.attainment == slo.attainment:
            names_attainment = True
        else:  # only a part can have another attainment than the SLO
            terms.append(f"{group.part}:attainment>={group.attainment:g}")
    if names_attainment:
        terms.append(f"attainment>={slo.attainment:g}")
    return ",".join(terms)


def is_joint(slo: Slo) -> bool:
    """Whether an SLO has limits on single requests, not only on percentiles.

    An SLO without any limit has one on single requests too: that they are answered.
    """
    return any(group.is_joint for group in slo.groups)


def joint_name(part: str | None) -> str:
    """The name of the test whether requests, those of a part, met all their limits together."""
    return JOINT if part is None else f"{part}:{JOINT}"


def is_joint_test(name: str) -> bool:
    """Whether a test of this name is about all limits on single requests together."""
    return name == JOINT or name.endswith(f":{JOINT}")


def targets_of(slo: Slo) -> list[float]:
    """The share of requests that must meet each test, in the order of ``tests``."""
    targets: list[float] = []
    for group in slo.groups:
        if group.is_joint:
            targets.append(group.attainment)
        targets += [limit.share for limit in group.limits if limit.share is not None]
    return targets


def parts_of(slo: Slo) -> list[str | None]:
    """The part that each test is about, in the order of ``tests``."""
    parts: list[str | None] = []
    for group in slo.groups:
        if group.is_joint:
            parts.append(group.part)
        parts += [group.part for limit in group.limits if limit.share is not None]
    return parts


def first_target(slo: Slo) -> float:
    """The target of the first test: the joint one, where the SLO has one."""
    return targets_of(slo)[0]


class LimitColumns:
    """Gathers LimitValues from requests of one attempt, some at a time.

    Only requests that were due in the window are taken.
    """

    def __init__(self, window: MeasuredWindow) -> None:
        self._window = window
        self._index = NumberColumn(np.int32)
        self._scheduled_ns = NumberColumn()
        self._ok = NumberColumn(np.bool_)
        self._part_names: dict[str, int] = {}  # name of a part -> its code
        self._part_codes = NumberColumn(np.int16)
        self._seconds = defaultdict[str, NumberColumn](NumberColumn)

    def add(self, columns: RequestArrays) -> None:
        """Adds further requests, in any order."""
        due = columns.scheduled_in(self._window)
        self._index.add(columns.index[due])
        self._scheduled_ns.add(columns.scheduled_ns[due])
        self._ok.add(columns.ok[due])
        self._part_codes.add(columns.part.recoded(self._part_names)[due])
        for name, seconds in _values_by_limit(columns):
            self._seconds[name].add(seconds[due])

    def values(self) -> LimitValues:
        """The values of all requests that were added, in order of schedule."""
        order = np.lexsort((self._index.values(), self._scheduled_ns.values()))
        seconds = {name: column.taken(order) for name, column in self._seconds.items()}
        parts = None
        if self._part_names:
            parts = RequestParts(tuple(self._part_names), self._part_codes.taken(order))
        return LimitValues(self._ok.taken(order), seconds, parts)


def limit_values(requests: Rows, token_events: Rows | None, window: MeasuredWindow) -> LimitValues:
    """The values that any limit can be checked against.

    TTFT and E2E count from scheduled. A request of one token has no TPOT and no ITL to violate.
    ``itl_p99`` is the 99th percentile of the request's own gaps. TPOT and ``itl_p99`` are unknown
    for a stream that came in lumps, and for an answer of several tokens that came in one event.
    ``normalized_ttft`` (per prompt token) is unknown where the tokens of the prompt are. Raises
    ValueError where rows of several attempts are mixed.
    """
    limit_columns = LimitColumns(window)
    for columns in request_arrays(requests, token_events):
        limit_columns.add(columns)
    return limit_columns.values()


def _values_by_limit(arrays: RequestArrays) -> Iterator[tuple[str, Floats]]:
    """Yields one value per request for each of LIMITS; see ``limit_values``."""
    intervals = arrays.intervals
    positive_intervals = np.where(intervals > 0, intervals, np.nan)
    prompt_tokens = np.where(arrays.input_tokens > 0, arrays.input_tokens, np.nan)
    ttft_ns = arrays.first_ns - arrays.scheduled_ns
    tpot_s = (arrays.last_ns - arrays.first_ns) / positive_intervals / 1e9
    yield "ttft", ttft_ns / 1e9
    yield "tpot", np.where(intervals <= 0, -np.inf, tpot_s)  # 0 intervals: nothing to violate
    yield "e2e", (arrays.last_ns - arrays.scheduled_ns) / 1e9
    yield "normalized_ttft", ttft_ns / prompt_tokens / 1e9
    if arrays.token_events is not None:
        yield "itl_p99", _itl_p99(arrays)


def stored_values(data: AttemptData) -> LimitValues:
    """The values of a stored attempt."""
    stored = {
        "ttft": data.request_ttft_s,
        "tpot": data.request_tpot_s,
        "e2e": data.request_e2e_s,
        "normalized_ttft": data.request_normalized_ttft_s,
        "itl_p99": data.request_itl_p99_s,
    }
    seconds = {}
    for name, values in stored.items():
        if values is not None:
            seconds[name] = np.asarray(values, np.float64)  # stored as tuples
    parts = None
    if data.request_part is not None:
        parts = RequestParts(data.part_names, np.asarray(data.request_part, np.int64))
    return LimitValues(np.asarray(data.request_ok, np.bool_), seconds, parts)


def judge(values: LimitValues, slo: Slo) -> Verdicts:
    """Judges every request by every limit.

    Raises InputError where a limit needs token_events that are not there.
    """
    return next(judge_each(values, slo, [values.ok.size]))


def judge_each(values: LimitValues, slo: Slo, ends: Iterable[int]) -> Iterator[Verdicts]:
    """Judges several attempts at once, as ``judge`` does one.

    ``values``: of the requests of all attempts, one attempt after the other. ``ends``: where the
    requests of each attempt end.
    """
    limits = slo.limits
    share_to_meet = {limit.name: slo.to_meet(limit) for limit in limits}
    met_by_limit = _met(values, slo)
    known_seconds = {limit.of: _known_seconds(values, limit.of) for limit in limits}
    is_of_part = {group.part: values.of_part(group.part) for group in slo.groups}
    tests_of_all_attempts = _tests(met_by_limit, values.ok, slo)
    begin = 0
    for end in ends:
        attempt = slice(begin, end)
        counts: dict[str, LimitCount] = {}
        for limit in limits:
            met = int(np.count_nonzero(met_by_limit[limit.name][attempt]))
            seconds = known_seconds[limit.of][attempt][is_of_part[limit.part][attempt]]
            needed_s = _value_of_share(seconds, share_to_meet[limit.name])
            counts[limit.name] = LimitCount(met, seconds.size, needed_s)
        tests_of_attempt: list[Test] = []
        for test in tests_of_all_attempts:
            met_in_attempt = test.met[attempt]
            if test.part is not None:
                met_in_attempt = met_in_attempt[is_of_part[test.part][attempt]]
            tests_of_attempt.append(Test(test.name, met_in_attempt, test.target, test.part))
        yield Verdicts(tuple(tests_of_attempt), counts)
        begin = end


def _known_seconds(values: LimitValues, latency: str) -> Floats:
    """The values of a latency; infinite for requests without an answer or without a value."""
    seconds = values.seconds[latency]
    return np.where(values.ok & ~np.isnan(seconds), seconds, np.inf)


def _value_of_share(seconds: Floats, share: float) -> float:
    """The least value, 0 or more, within which this share of requests stayed. Reorders ``seconds``,
    so it takes a copy of its own.
    """
    if not seconds.size:
        return math.inf
    place = max(math.ceil(share * seconds.size) - 1, 0)
    seconds.partition(place)
    return max(float(seconds[place]), 0.0)


def _met(values: LimitValues, slo: Slo) -> dict[str, Bools]:
    """Which requests met each limit alone, by the limit's name. Requests of other parts did not."""
    by_limit = {}
    for limit in slo.limits:
        if limit.of not in values.seconds:
            raise InputError(
                f"a limit on {limit.of} needs the table token_events, which these results do not"
                " hold"
            )
        met = values.ok & (values.seconds[limit.of] <= limit.seconds)
        if limit.part is not None:
            met &= values.of_part(limit.part)
        by_limit[limit.name] = met
    return by_limit


def _tests(met_by_limit: Mapping[str, Bools], ok: Bools, slo: Slo) -> tuple[Test, ...]:
    """The tests of an SLO, each with an entry for every request, also of parts that it is not about.

    ``ok``: which requests were answered. Under an SLO without any limit, these have met it.
    """
    tests_of_slo: list[Test] = []
    for group in slo.groups:
        on_single_requests = [
            met_by_limit[limit.name] for limit in group.limits if limit.share is None
        ]
        if group.is_joint:
            met = np.logical_and.reduce(on_single_requests) if on_single_requests else ok
            tests_of_slo.append(Test(joint_name(group.part), met, group.attainment, group.part))
        for limit in group.limits:
            if limit.share is not None:
                met = met_by_limit[limit.name]
                tests_of_slo.append(Test(limit.name, met, limit.share, group.part))
    return tuple(tests_of_slo)


def shares(verdicts: Sequence[Verdicts]) -> dict[str, float]:
    """The share of the requests of some attempts that met each limit alone. Limits on parts that no
    request is of are left out.
    """
    met_by_limit = {}
    for name in verdicts[0].by_limit:
        counts = [attempt.by_limit[name] for attempt in verdicts]
        requests = sum(count.requests for count in counts)
        if requests:
            met_by_limit[name] = sum(count.met for count in counts) / requests
    return met_by_limit


def tests(values: LimitValues, slo: Slo) -> tuple[Test, ...]:
    """The tests that must all hold for an SLO to hold, the joint one first.

    Raises InputError as ``judge`` does.
    """
    tests_of_slo: list[Test] = []
    for test in tests_over_all_requests(values, slo):
        if test.part is None:
            tests_of_slo.append(test)
        else:
            met_in_part = test.met[values.of_part(test.part)]
            tests_of_slo.append(replace(test, met=met_in_part))
    return tuple(tests_of_slo)


def tests_over_all_requests(values: LimitValues, slo: Slo) -> tuple[Test, ...]:
    """As ``tests``, but each test has an entry for every request. Requests that a test is not about
    did not meet it.
    """
    return _tests(_met(values, slo), values.ok, slo)


def _itl_p99(arrays: RequestArrays) -> Floats:
    """99th percentile of each request's own gaps in seconds; -inf for a request without gaps."""
    p99_s = np.full(arrays.ok.size, np.nan)
    if arrays.buffered:
        return p99_s
    for block in arrays.blocks():
        p99_s[block.request] = _p99_of_rows(block) / 1e6
    p99_s[~arrays.has_token_times] = np.nan
    return p99_s


def _p99_of_rows(block: TokenEventBlock) -> Floats:
    """99th percentile (linear) of each row's own gaps in us; -inf for a row without gaps."""
    gaps = token_gaps(block)
    # Sorted by row, then by gap: both are packed into one number, row above gap, because one sort
    # of numbers is faster than a sort by two keys.
    packed = np.sort((gaps.row << 32) | gaps.us)
    sorted_us = packed & 0xFFFFFFFF
    lengths = np.bincount(gaps.row, minlength=block.request.size)
    has_gaps = lengths > 0
    rank = 0.99 * (lengths[has_gaps] - 1)
    low = np.floor(rank).astype(np.int64)
    high = np.ceil(rank).astype(np.int64)
    start = (np.cumsum(lengths) - lengths)[has_gaps]  # of each row's gaps
    below = sorted_us[start + low]
    above = sorted_us[start + high]
    p99_us = np.full(block.request.size, -np.inf)
    p99_us[has_gaps] = below + (above - below) * (rank - low)
    return p99_us
