"""Turns the options of ``orchestrator load`` into the records of an experiment.

Only names are mapped here; the experiment defines what they mean.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import string
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from pydantic import ValidationError

from orchestrator.base.errors import InputError, Problem, ProblemsError
from orchestrator.base.registry import did_you_mean
from orchestrator.spec.constraint import ConstraintKind
from orchestrator.spec.document import Problems, add_errors, problems_without_file
from orchestrator.spec.experiment import Budget, Experiment, Levels, Load
from orchestrator.spec.images import MOST_IMAGES, Images, ImageSize
from orchestrator.spec.load import (
    ARRIVALS,
    MOST_IN_FLIGHT,
    MOST_REQUESTS,
    MOST_TOKENS,
    Arrivals,
    Lengths,
    LogNormal,
    Scale,
    Slo,
    Uniform,
    Workload,
)
from orchestrator.spec.request_options import Adapters, Constrain
from orchestrator.spec.settings import EngineSettings, Strict

if TYPE_CHECKING:
    from orchestrator.load.arrivals import Offsets
    from orchestrator.load.point import Target
    from orchestrator.plan.model import Plan
    from orchestrator.spec.address import ServerAddress
    from orchestrator.spec.dialect import Dialect

Record = TypeVar("Record", bound=Strict)

_VARIABLE = re.compile(r"\$\{(\w+)\}")
_WARM_UP_REQUESTS = re.compile(r"\s*(\d{1,10})\s*req\s*", re.ASCII)
_SHARED_PREFIX = re.compile(r"\s*(\d{1,10})(?:\s*x\s*(\d{1,10}))?\s*", re.ASCII)
_DATASET = re.compile(r"(?P<id>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^:\s]+))?(?::(?P<split>[^:\s]+))?")
_LENGTHS = re.compile(r"\s*(\d{1,10})(?:(:|\+-|±)(\d{1,10}))?\s*", re.ASCII)
WORKLOAD_NAME = "load"
# defaults of --find-capacity, where somebody waits for the answer
SEARCH_BUDGET = "10m"
SEARCH_PRECISION = 0.15
_SAME_SEARCH = ("precision", "first_level")  # keys of a search that may change while it goes on
# options that a search refuses; a trace of lengths is no schedule but says what is sent
_NO_SEARCH = ("trace", "max_errors")
_NO_SEARCH_OF_LENGTHS = ("speed_up", "max_errors")
# options that say what is sent, which --workload and --preset say, too
_WHAT_IS_SENT = (
    *("input_tokens", "shared_prefix", "turns", "think_time", "prompts", "dataset"),
    *("output_tokens", "trace", "spread", "adapter", "images", "json_schema", "regex", "choice"),
)
# options that change requests and have no place in an experiment
_SENT = ("model", "endpoint", "headers", "extra_body", "natural_lengths")
_IN_FILES_ONLY = ("ramp", "steps")  # arrivals with settings for which there is no option
_NEEDS = {  # option -> the option without which it changes nothing
    "shared_prefix": "input_tokens",
    "turns": "input_tokens",
    "images": "input_tokens",
    "think_time": "turns",
    "speed_up": "trace",
    "spread": "trace",
    "budget": "find_capacity",
    "precision": "find_capacity",
    "name": "results",
}
# Keys of an experiment file that are times or lengths, for which the file has its own notation.
_TIMES = ("duration", "warmup", "request_timeout", "think_time")
_LENGTH_KEYS = ("input_tokens", "output_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """The options of ``orchestrator load`` that say what is sent, and where to. None: not given.

    Times, lengths, levels and limits are texts as the user wrote them. What is wrong with them is
    reported together with everything else (``parse_load``, ``target_of``, ``dialects_of``).
    """

    model: str | None
    api: str
    endpoint: str | None
    api_key_env: str | None
    headers: tuple[str, ...]
    extra_body: str | None
    insecure: bool
    request_timeout: str
    rate: str | None
    concurrency: str | None
    find_capacity: bool
    budget: str | None
    precision: float | None
    trace: str | None
    spread: str | None
    speed_up: float | None
    arrivals: str | None
    max_in_flight: int | None
    requests: int | None
    duration: str | None
    warmup: str | None
    max_errors: int | None
    workload: str | None
    preset: str | None
    input_tokens: str | None
    shared_prefix: str | None
    turns: int | None
    think_time: str | None
    prompts: str | None
    dataset: str | None
    output_tokens: str | None
    natural_lengths: bool
    images: str | None
    adapter: tuple[str, ...]
    json_schema: str | None
    regex: str | None
    choice: tuple[str, ...]
    tokenizer: str | None
    seed: int | None
    slo_text: str | None
    results: str | None
    name: str | None

    def is_given(self, name: str) -> bool:
        """Whether the user gave an option. ``name``: that of its field."""
        value = getattr(self, name)
        return value is not None and value is not False and value != ()


@dataclass(frozen=True, slots=True)
class ParsedLoad:
    """What the options ask for, as records of an experiment with one endpoint.

    ``workload``, ``load``: None: the options give none that is valid. ``refused``: what the records
    refused, in the words of an experiment.
    """

    name: str
    seed: int
    url: str
    api_key_env: str | None
    tokenizer: str | None
    workload: Workload | None
    load: Load | None
    slo: Slo | None
    budget: Budget | None
    refused: Problems

    @property
    def can_be_planned(self) -> bool:
        """Whether planning would tell more than the problems of the options do.

        It would if all parts are there, or if records refused some of them.
        """
        is_complete = self.workload is not None and self.load is not None
        return is_complete or self.refused.has_any

    def experiment(self, model: str) -> Experiment:
        """The experiment of these records for a model of the endpoint."""
        settings = _record(
            EngineSettings,
            self.refused,
            engine="endpoint",
            url=self.url,
            api_key_env=self.api_key_env,
            model=model,
            tokenizer=self.tokenizer,
        )
        parts: dict[str, Any] = {"version": 1, "name": self.name, "seed": self.seed}
        if self.workload is not None:
            parts["workloads"] = [self.workload]
        if self.load is not None:
            parts["load"] = self.load
        if self.slo is not None:
            parts["slos"] = {self.slo.name: self.slo}
        if self.budget is not None:
            parts["budget"] = self.budget
        return Experiment.of_records(parts, settings, self.refused)


def parse_load(url: str, options: LoadOptions, problems: list[Problem]) -> ParsedLoad:
    """The options as records. What is missing or wrong is left out, and added to ``problems``."""
    refused = problems_without_file()
    size = _LevelSize(
        duration_s=_seconds("duration", options.duration, problems),
        warmup_s=_warm_up_s(options, problems),
        request_timeout_s=_seconds("request_timeout", options.request_timeout, problems),
        requests=_request_count(options, problems),
    )
    tokenizer = _tokenizer(options.tokenizer, problems)
    workload = _workload(options, problems, refused)
    if tokenizer is None and workload is not None:
        workload = _with_countable_answers(workload)
    name = _run_name(options.name, problems)
    load = _load(options, size, problems, refused)
    slo = _slo(options.slo_text, problems)
    if options.find_capacity and slo is None:
        load = None  # a search without limits cannot be planned
    parsed = ParsedLoad(
        name=name,
        seed=secrets.randbits(32) if options.seed is None else options.seed,
        url=url,
        api_key_env=options.api_key_env,
        tokenizer=tokenizer,
        workload=workload,
        load=load,
        slo=slo,
        budget=_budget(options, problems, refused),
        refused=refused,
    )
    if options.results is None or problems or refused.has_any:
        return parsed
    return _as_stored(parsed, options, options.results)


def _as_stored(parsed: ParsedLoad, options: LoadOptions, results: str) -> ParsedLoad:
    """The load under the name of the stored run that it continues, and with its seed.

    A search without a name gets one from its options.
    """
    if options.name is None and options.find_capacity:
        parsed = replace(parsed, name=f"capacity-{options_digest(parsed, options)[:12]}")
    if options.seed is not None:
        return parsed
    stored = stored_plan(results, parsed.name)
    if stored is None:
        return parsed
    return replace(parsed, seed=stored.seed)  # with another seed it would be another run


def _record(model: type[Record], refused: Problems, /, **fields: Any) -> Record | None:
    """The record of the fields that are not None; None, and entries in ``refused``, if it fails."""
    given = {name: value for name, value in fields.items() if value is not None}
    try:
        return model.model_validate(given, strict=True)
    except ValidationError as error:
        add_errors(error, model, refused)
        return None


@dataclass(frozen=True, slots=True)
class _LevelSize:
    """How long a level takes, in seconds, and how many requests it has.

    None: not given, or not readable.
    """

    duration_s: float | None
    warmup_s: float | None
    request_timeout_s: float | None
    requests: int | None


def _request_count(options: LoadOptions, problems: list[Problem]) -> int | None:
    """The number of requests that ends a level; None where a time ends it."""
    ends = [name for name in ("requests", "duration") if options.is_given(name)]
    ends_by_itself = options.trace or options.find_capacity or _replays_a_workload(options)
    if len(ends) > 1 or not (ends or ends_by_itself):
        problems.append(Problem("give either --requests or --duration"))
        return None
    return options.requests


def _replays_a_workload(options: LoadOptions) -> bool:
    """Whether the recorded times of ``--workload`` are the load: no option says how often."""
    has_rate = options.is_given("rate") or options.is_given("concurrency")
    return options.workload is not None and options.arrivals == "trace" and not has_rate


def warm_up_requests(warmup: str | None) -> int:
    """Requests to be sent before each level: those of ``--warmup 100req``; 0 for a time."""
    match = _WARM_UP_REQUESTS.fullmatch(warmup or "")
    return 0 if match is None else int(match[1])


def _warm_up_s(options: LoadOptions, problems: list[Problem]) -> float | None:
    """Seconds of ``--warmup 10s``; None where it is not given, not readable, or requests."""
    if options.warmup is None:
        return None
    requests = warm_up_requests(options.warmup)
    if requests == 0:
        if options.warmup.strip().isdecimal():
            text = f"--warmup {options.warmup!r}: give a time, like 10s, or requests, like 100req"
            problems.append(Problem(text))
            return None
        return _seconds("warmup", options.warmup, problems)
    if requests > MOST_REQUESTS:
        problems.append(Problem(f"--warmup {options.warmup!r}: at most {MOST_REQUESTS:,} requests"))
    if options.find_capacity:
        problems.append(Problem("--find-capacity: give --warmup as a time, like 10s"))
    return None


def _budget(options: LoadOptions, problems: list[Problem], refused: Problems) -> Budget | None:
    """How long a search may take; None for other loads."""
    if not options.find_capacity:
        return None
    wall_s = _seconds("budget", options.budget or SEARCH_BUDGET, problems)
    return _record(Budget, refused, wall=wall_s)


def _run_name(name: str | None, problems: list[Problem]) -> str:
    """The name of a run: the one that was given, or the time with three random letters.

    The letters keep runs of the same minute apart.
    """
    from orchestrator.results.ids import is_name

    if name is None:
        # no longer than the least width of a folding column, so a table never breaks such a name
        letters = (secrets.choice(string.ascii_lowercase) for _ in range(3))
        return time.strftime("%m%d-%H%M") + "".join(letters)
    if not is_name(name):
        text = f"--name {name!r}: give letters, digits, '.', '_' and '-', like before or run-2"
        problems.append(Problem(text))
        return "unnamed"
    return name


# -- which run it is


def options_digest(parsed: ParsedLoad, options: LoadOptions) -> str:
    """A digest that is the same for the same options, in every version of this program.

    A search with another budget or precision is the same search. A run that sends anything else is
    another run.
    """
    from orchestrator.results.ids import digest

    endpoint = _given(engine="endpoint", url=parsed.url, api_key_env=parsed.api_key_env)
    workloads = [] if parsed.workload is None else [_as_in_a_file(parsed.workload)]
    load = {} if parsed.load is None else _as_in_a_file(parsed.load)
    for key in _SAME_SEARCH:
        load.pop(key, None)
    identity = {
        "version": 1,
        "name": "",
        "model": _given(tokenizer=parsed.tokenizer),
        "deployments": endpoint,
        "workloads": workloads,
        "load": load,
        "slos": {} if parsed.slo is None else {parsed.slo.name: _slo_in_a_file(parsed.slo)},
        "seed": 0 if options.seed is None else str(options.seed),
        # headers are as typed, without the values of variables
        "sent": {name: getattr(options, name) for name in _SENT if getattr(options, name)},
    }
    return digest(identity)


def _as_in_a_file(record: Strict) -> dict[str, Any]:
    """The keys that were given, in the notation of an experiment file.

    The digests of stored runs are made from these.
    """
    words = record.model_dump(mode="json", by_alias=True, exclude_unset=True)
    for key in _TIMES:
        if key in words:
            words[key] = _time_in_a_file(words[key])
    for key in _LENGTH_KEYS:
        if key in words:
            words[key] = _length_in_a_file(words[key])
    return words


def _time_in_a_file(seconds: float) -> str:
    return f"{seconds!r}s"


def _length_in_a_file(lengths: dict[str, Any]) -> Any:
    from orchestrator.workloads.file import RECORDED

    if "recorded" in lengths:
        return RECORDED
    return lengths.get("fixed", lengths)


def _slo_in_a_file(slo: Slo) -> dict[str, Any]:
    from orchestrator.analysis.slo import is_joint, joint_name

    words: dict[str, Any] = {limit.name: _time_in_a_file(limit.seconds) for limit in slo.limits}
    if is_joint(slo):
        words["attainment"] = slo.attainment
    for group in slo.groups:
        if group.is_joint and group.attainment != slo.attainment:
            words[joint_name(group.part)] = group.attainment
    return words


def stored_plan(results: str, name: str) -> Plan | None:
    """The plan of a run that is stored under this name; None: this version can read none.

    Raises ResultsError where the storage does not answer. To go on without the stored seed would
    make stored probes worthless.
    """
    from orchestrator.plan.model import Plan
    from orchestrator.results.store import Store

    with suppress(InputError):  # no URI, or no plan of this version
        if stored := Store.open(results, name).plan():
            return Plan.from_json(stored, to_run=False)
    return None


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


# -- how much, how long


def _load(
    options: LoadOptions, size: _LevelSize, problems: list[Problem], refused: Problems
) -> Load | None:
    """The load: levels or a search, with arrivals where it is an open loop."""
    if options.find_capacity:
        return _search(options, size, problems, refused)
    is_of_lengths = _is_trace_of_lengths(options.trace)
    ways = [name for name in ("rate", "concurrency", "trace") if options.is_given(name)]
    if is_of_lengths and len(ways) == 2:
        ways.remove("trace")  # it says what is sent, and the other one how often
        if options.speed_up is not None:
            remedy = f"leave out --{ways[0]} or --speed-up"
            problems.append(Problem(f"--speed-up is for --trace at its recorded times: {remedy}"))
    if _replays_a_workload(options) and not ways:
        assert options.workload is not None
        return _replayed_workload(options, options.workload, size, problems, refused)
    if len(ways) != 1:
        text = (
            "give one of --rate (open loop), --concurrency (closed loop) or --trace (recorded "
            "times)"
        )
        problems.append(Problem(text))
        return None
    if is_of_lengths and ways != ["trace"]:
        size = _whole_trace(options, size, refused)
    if options.concurrency is not None:
        levels = _closed_levels(options, options.concurrency, problems, refused)
        return None if levels is None else _load_record(size, refused, levels=levels)
    if options.rate is None:
        assert options.trace is not None
        return _replayed(options, options.trace, size, problems, refused)
    rates = _numbers("rate", options.rate, problems)
    if math.inf in rates and options.requests is None:
        problems.append(
            Problem("--rate inf sends all requests at once: say how many with --requests")
        )
        return None
    if not rates:
        return None
    return _load_record(
        size,
        refused,
        levels=_record(Levels, refused, request_rate=rates),
        arrivals=_drawn_arrivals(options, refused),
        max_in_flight=options.max_in_flight,
    )


def _load_record(size: _LevelSize, refused: Problems, **fields: Any) -> Load | None:
    """The load with levels of this size and these further fields."""
    return _record(
        Load,
        refused,
        duration=size.duration_s,
        warmup=size.warmup_s,
        request_timeout=size.request_timeout_s,
        requests=size.requests,
        **fields,
    )


def _closed_levels(
    options: LoadOptions, concurrency: str, problems: list[Problem], refused: Problems
) -> Levels | None:
    """The levels of ``--concurrency``."""
    if options.max_in_flight is not None:
        problems.append(
            Problem("--max-in-flight is for --rate; --concurrency is itself the number in flight")
        )
    numbers = _numbers("concurrency", concurrency, problems)
    if any(number % 1 or number > MOST_IN_FLIGHT for number in numbers):
        text = f"--concurrency {concurrency!r}: whole numbers of at most {MOST_IN_FLIGHT:,}"
        problems.append(Problem(text))
        return None
    if not numbers:
        return None
    return _record(Levels, refused, concurrency=[int(number) for number in numbers])


def _drawn_arrivals(options: LoadOptions, refused: Problems) -> Arrivals | None:
    """Arrivals that are drawn at the rate of a level.

    An unknown process is left out, since ``_check_arrivals`` reports it.
    """
    if _has_recorded_arrivals(options, refused):
        return _record(Arrivals, refused, process="trace", scale=Scale.STRETCH.value)
    arrivals = _arrivals_option(options.arrivals)
    process = arrivals.process if arrivals.process in _drawn_processes() else None
    return _record(Arrivals, refused, process=process, burstiness=arrivals.burstiness)


def _has_recorded_arrivals(options: LoadOptions, refused: Problems) -> bool:
    """Whether the recorded times of what is sent are stretched to the rate of a level.

    What a trace has is sent at the recorded times unless ``--arrivals`` says otherwise; what a
    workload has only if ``--arrivals trace`` says so.
    """
    if options.workload is not None:
        return options.arrivals == "trace"
    if not _is_trace_of_lengths(options.trace):
        return False
    if options.arrivals is not None:
        return options.arrivals == "trace"
    return _recorded_rate(options, refused) is not None


def _recorded_rate(options: LoadOptions, refused: Problems) -> float | None:
    """Mean requests/s of a trace of lengths; None where it has no times, or cannot be read."""
    assert options.trace is not None
    workload = _trace_workload(options, options.trace, refused)
    if workload is None:
        return None
    try:
        return workload.recorded_rate()
    except ProblemsError:
        return None


def _whole_trace(options: LoadOptions, size: _LevelSize, refused: Problems) -> _LevelSize:
    """The size of a level: all requests of the trace, unless options say how many or how long."""
    assert options.trace is not None
    workload = _trace_workload(options, options.trace, refused)
    if workload is None or size.requests is not None or options.duration is not None:
        return size
    try:
        return replace(size, requests=workload.most_requests())
    except ProblemsError:  # planning says what is wrong with it
        return replace(size, requests=1)


@dataclass(frozen=True, slots=True)
class _ArrivalsOption:
    """What ``--arrivals`` says, like ``gamma:0.5``. ``shape``: what follows the colon, as text."""

    process: str | None
    shape: str | None

    @property
    def burstiness(self) -> float | None:
        """The number after the colon; None where there is none."""
        if self.shape is None:
            return None
        try:
            number = float(self.shape)
        except ValueError:
            return None
        return number if math.isfinite(number) else None


def _arrivals_option(text: str | None) -> _ArrivalsOption:
    if text is None:
        return _ArrivalsOption(None, None)
    process, colon, shape = text.partition(":")
    return _ArrivalsOption(process, shape if colon else None)


def _drawn_processes() -> list[str]:
    """Names of arrival processes that need no more than a rate."""
    return [name for name in ARRIVALS.names() if name not in ("trace", *_IN_FILES_ONLY)]


def _search(
    options: LoadOptions, size: _LevelSize, problems: list[Problem], refused: Problems
) -> Load | None:
    """The search of ``--find-capacity``."""
    refused_options = _NO_SEARCH
    if _is_trace_of_lengths(options.trace):
        refused_options = _NO_SEARCH_OF_LENGTHS
    for name in refused_options:
        if options.is_given(name):
            text = f"--find-capacity looks for the level itself: leave out {_flag(name)}"
            problems.append(Problem(text))
    if options.slo_text is None:
        problems.append(
            Problem('--find-capacity needs limits: --slo "ttft<=500ms,attainment>=0.95"')
        )
    is_open_loop = options.concurrency is None
    if options.arrivals and not is_open_loop:
        problems.append(Problem("--arrivals is for --rate"))
    return _load_record(
        size,
        refused,
        search="capacity",
        control="request_rate" if is_open_loop else "concurrency",
        first_level=_first_level(options, problems),
        arrivals=_drawn_arrivals(options, refused) if is_open_loop else None,
        max_in_flight=options.max_in_flight,
        precision=options.precision or SEARCH_PRECISION,
    )


def _first_level(options: LoadOptions, problems: list[Problem]) -> float | None:
    """Where a search begins: the level of ``--rate`` or ``--concurrency``; None: it chooses."""
    if options.rate is not None and options.concurrency is not None:
        text = "--find-capacity searches --rate or --concurrency: give one of them"
        problems.append(Problem(text))
    option = "rate" if options.concurrency is None else "concurrency"
    written = options.rate if options.concurrency is None else options.concurrency
    if written is None:
        return None
    levels = _numbers(option, written, problems)
    if len(levels) > 1 or math.inf in levels:
        text = f"--find-capacity begins at one level and finds the others: give --{option} 8"
        problems.append(Problem(text))
    return levels[0] if levels else None


def _replayed(
    options: LoadOptions,
    trace: str,
    size: _LevelSize,
    problems: list[Problem],
    refused: Problems,
) -> Load | None:
    """The load at the times of a trace; its only level is the trace's own mean rate.

    An unreadable trace is no problem here, because planning says what is wrong with it.
    """
    from orchestrator.load.arrivals import mean_rate

    if _is_trace_of_lengths(trace):
        return _replayed_rows(options, trace, size, problems, refused)
    arrivals = _record(
        Arrivals, refused, process="trace", trace=_path(trace), speed_up=options.speed_up
    )
    if arrivals is None:
        return None
    rate = 1.0
    offsets_s = _recorded_offsets(arrivals)
    if offsets_s is not None:  # of sessions, each of which has all its turns
        turns = options.turns or 1
        recorded_requests = len(offsets_s) * turns
        requests = options.requests or recorded_requests
        if requests > recorded_requests:
            problems.append(Problem(f"--requests {requests}: the trace has {recorded_requests}"))
            requests = recorded_requests
        sessions = math.ceil(requests / turns)
        rate = mean_rate(offsets_s, _end_s(options), sessions) * turns
        if options.duration is None:
            size = replace(size, requests=requests)
    return _load_record(
        size,
        refused,
        levels=_record(Levels, refused, request_rate=[rate]),
        arrivals=arrivals,
        max_in_flight=options.max_in_flight,
    )


def _recorded_offsets(arrivals: Arrivals) -> Offsets | None:
    """The recorded times, from the first one on; None for a trace that cannot be read."""
    from orchestrator.load.arrivals import recorded

    try:
        return recorded(arrivals)
    except (ProblemsError, ValueError):
        return None


def _is_trace_of_lengths(path: str | None) -> bool:
    """Whether a file has the columns of a published trace, which is a workload of its own."""
    from orchestrator.workloads.trace_formats import format_of, header_of

    if path is None:
        return False
    try:
        header = header_of(_path(path))
    except ProblemsError:
        return False
    return format_of(header) is not None


def _columns_of_table(path: str | None) -> tuple[str, ...]:
    """The columns of a file that is a table of several; empty for other files."""
    from orchestrator.workloads.trace_formats import header_of

    if path is None:
        return ()
    try:
        header = header_of(_path(path))
    except ProblemsError:
        return ()
    is_table = header.kind != "jsonl" and len(header.names) > 1
    return header.names if is_table else ()


def _trace_workload(options: LoadOptions, trace: str, refused: Problems) -> Workload | None:
    from orchestrator.workloads.trace import TraceWorkload

    return _record(
        TraceWorkload,
        refused,
        name=WORKLOAD_NAME,
        api=_api_of_workload(options),
        kind="trace",
        trace=_path(trace),
        spread=options.spread,
    )


def _replayed_rows(
    options: LoadOptions,
    trace: str,
    size: _LevelSize,
    problems: list[Problem],
    refused: Problems,
) -> Load | None:
    """The load at the times of a trace of lengths, all of it unless options say how much.

    Rows that cannot be read are no problem here, because planning says what is wrong with them.
    """
    workload = _trace_workload(options, trace, refused)
    if workload is None:
        return None
    return _at_recorded_times(options, workload, f"--trace {trace!r}", size, problems, refused)


def _replayed_workload(
    options: LoadOptions,
    place: str,
    size: _LevelSize,
    problems: list[Problem],
    refused: Problems,
) -> Load | None:
    """The load at the times of ``--workload``, as ``_replayed_rows`` has it of ``--trace``.

    What is wrong with the workload is no problem here: ``_named_workload`` says it.
    """
    from orchestrator.cli.workload_file import workload_at

    try:
        workload = workload_at(place)
        if workload.recorded_rate() is None:
            return None
    except (ProblemsError, InputError):
        return None
    return _at_recorded_times(options, workload, f"--workload {place}", size, problems, refused)


def _at_recorded_times(
    options: LoadOptions,
    workload: Workload,
    source: str,
    size: _LevelSize,
    problems: list[Problem],
    refused: Problems,
) -> Load | None:
    """The load at the times that a workload recorded. ``source``: the option that names it."""
    rate: float | None = 1.0
    requests = 1
    try:
        rate = workload.recorded_rate()
        requests = workload.most_requests() or requests
    except ProblemsError:
        pass
    if rate is None:
        text = f"{source} has no different times: give a --rate or a --concurrency"
        problems.append(Problem(text))
        return None
    if options.duration is None:
        size = replace(size, requests=size.requests or requests)
    arrivals = _record(Arrivals, refused, process="trace", scale=Scale.STRETCH.value)
    levels = _record(Levels, refused, request_rate=[rate * (options.speed_up or 1.0)])
    return _load_record(
        size, refused, levels=levels, arrivals=arrivals, max_in_flight=options.max_in_flight
    )


def _numbers(option: str, text: str, problems: list[Problem]) -> list[float]:
    """Reads ``1,2,4``: numbers above 0, each once; a rate may be ``inf``."""
    words = [word.strip() for word in text.split(",")]
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        numbers = [math.nan]
    may_be_infinite = option == "rate" and "inf" in words
    for number in numbers:
        if number > 0 and (number < math.inf or may_be_infinite):
            continue
        message = f"--{option} {text!r}: give a number above 0, or several like 1,2,4"
        problems.append(Problem(message))
        return []
    return list(dict.fromkeys(numbers))


def _end_s(options: LoadOptions) -> float | None:
    """Seconds after which no more requests are due; None where their number ends the load."""
    if options.duration is None:
        return None
    already_reported: list[Problem] = []
    duration_s = _seconds("duration", options.duration, already_reported) or 0.0
    warmup_s = _warm_up_s(options, already_reported) or 0.0
    return duration_s + warmup_s or None


def _slo(text: str | None, problems: list[Problem]) -> Slo | None:
    from orchestrator.analysis.slo import parse_slo

    if text is None:
        return None
    try:
        slo = parse_slo(text)
    except ProblemsError as error:
        problems += error.problems
        return None
    if slo.agreement is None:
        return slo
    text = "--slo: agreement is known of sweeps alone: load asks no fixed prompts; leave it out"
    problems.append(Problem(text))
    return slo.model_copy(update={"agreement": None})


# -- what requests hold


def _workload(options: LoadOptions, problems: list[Problem], refused: Problems) -> Workload | None:
    """What requests contain."""
    workload = _workload_of_prompts(options, problems, refused)
    adapters = _adapters(options, problems)
    constrain = _constrain(options, problems)
    asked = {"adapters": adapters, "constrain": constrain}
    updates = {key: value for key, value in asked.items() if value is not None}
    if workload is None or not updates:
        return workload
    return workload.model_copy(update=updates)


def _constrain(options: LoadOptions, problems: list[Problem]) -> Constrain | None:
    """The constraint of ``--json-schema``, ``--regex`` or ``--choice``, on every answer."""
    if options.workload is not None:
        return None
    names = [str(kind) for kind in ConstraintKind if options.is_given(kind)]
    given = {name: getattr(options, name) for name in names}
    if not given:
        return None
    if options.json_schema is not None:
        given["json_schema"] = _path(options.json_schema)
    try:
        return Constrain.model_validate(given)
    except ValidationError as error:
        for detail in error.errors():
            if not detail["loc"]:  # of the whole: nothing else can be wrong here
                options_given = " and ".join(map(_flag, names))
                problems.append(Problem(f"{options_given}: an answer has one constraint"))
                continue
            reason = detail["msg"].removeprefix("Value error, ")
            if detail["type"] == "string_too_short":
                reason = "the text is empty"
            problems.append(Problem(f"{_flag(str(detail['loc'][0]))}: {reason}"))
        return None


def _adapters(options: LoadOptions, problems: list[Problem]) -> Adapters | None:
    """The adapters of ``--adapter``, all asked for as often."""
    if not options.adapter or options.workload is not None or options.preset is not None:
        return None
    try:
        return Adapters.model_validate({"names": options.adapter})
    except ValidationError:
        named = ", ".join(map(repr, options.adapter))
        remedy = "give different names of letters, digits, '_', '.', '-' and '/'"
        problems.append(Problem(f"--adapter {named}: {remedy}"))
        return None


def _workload_of_prompts(
    options: LoadOptions, problems: list[Problem], refused: Problems
) -> Workload | None:
    """The workload without adapters and constraints. Checks the options that belong to it, too."""
    input_lengths = _lengths("input_tokens", options.input_tokens, problems)
    answer_lengths = _answer_lengths(options, problems)
    _check_arrivals(options, problems)
    _check_needs(options, problems)
    if options.preset is not None:
        return _preset_workload(options, options.preset, problems)
    if options.workload is not None:
        return _named_workload(options, options.workload, problems)
    if options.trace is not None and _is_trace_of_lengths(options.trace):
        return _workload_of_trace(options, options.trace, problems, refused)
    if options.rate is None and options.concurrency is None:
        columns = _columns_of_table(options.trace)
        if columns:
            problems.append(_unknown_columns(options.trace, columns))
            return None
    if options.dataset is not None:
        return _dataset_workload(options, options.dataset, answer_lengths, problems, refused)
    are_drawn = options.input_tokens is not None
    file = options.prompts
    if not are_drawn and file is None:
        file = _trace_of_requests(options.trace)
    says_neither = not are_drawn and file is None
    says_both = are_drawn and file is not None
    if says_neither or says_both:
        remark = " (a trace of times alone has no prompts)" if options.trace else ""
        text = (
            "say what is sent, by one of --input-tokens (random prompts), --prompts, --workload, "
            f"--preset, --dataset and --trace{remark}"
        )
        problems.append(Problem(text))
        return None
    if file is not None:
        if options.output_tokens is not None and answer_lengths is None:
            return None
        return _file_workload(options, file, answer_lengths, refused)
    if options.output_tokens is None:
        problems.append(Problem("give --output-tokens: how long answers are to be"))
        return None
    return _drawn_workload(options, input_lengths, answer_lengths, problems, refused)


def _check_needs(options: LoadOptions, problems: list[Problem]) -> None:
    """Reports options without the one to which they belong."""
    if options.trace and options.spread and not _is_trace_of_lengths(options.trace):
        problems.append(Problem("--spread is for published traces of lengths: leave it out"))
    for name, needed in _NEEDS.items():
        if options.is_given(name) and not getattr(options, needed):
            problems.append(Problem(f"{_flag(name)} is for {_flag(needed)}"))


def _unknown_columns(trace: str | None, columns: Sequence[str]) -> Problem:
    """The problem of a trace that is a table with other columns than published traces have."""
    return Problem(
        f"--trace {trace!r} has the columns {', '.join(columns)[:80]}, not those of a published "
        "trace: say what they are in an experiment file (columns: {time: ..., input_tokens: ..., "
        "output_tokens: ...}), and give --workload FILE:NAME --arrivals trace (docs/guides/trace.md)"
    )


def _workload_of_trace(
    options: LoadOptions, trace: str, problems: list[Problem], refused: Problems
) -> Workload | None:
    """The workload of ``--trace`` where the file is a published trace, which says all lengths."""
    others = [name for name in ("input_tokens", "prompts", "dataset") if options.is_given(name)]
    if others:
        remedy = f"leave out {_flag(others[0])}"
        problems.append(Problem(f"--trace {trace!r} says how long prompts are: {remedy}"))
        return None
    if options.output_tokens is not None:
        text = "--output-tokens: the trace says how long answers are; leave it out"
        problems.append(Problem(text))
    workload = _trace_workload(options, trace, refused)
    if workload is not None and options.arrivals == "trace" and _has_no_times(workload):
        problems.append(Problem(f"--arrivals trace: {trace!r} has no recorded times"))
    return workload


def _has_no_times(workload: Workload) -> bool:
    """Whether a workload can be read and has no recorded rate."""
    try:
        return workload.recorded_rate() is None
    except ProblemsError:
        return False


def _named_workload(options: LoadOptions, place: str, problems: list[Problem]) -> Workload | None:
    """The workload that ``--workload`` names, which says everything of what is sent."""
    from orchestrator.cli.workload_file import workload_at

    _refuse_what_is_sent("--workload", options, _WHAT_IS_SENT, problems)
    try:
        named = workload_at(place)
    except ProblemsError as error:
        problems += error.problems
        return None
    except InputError as error:
        problems.append(Problem(f"--workload: {error}"))
        return None
    if options.arrivals == "trace" and named.recorded_rate() is None:
        problems.append(Problem(f"--arrivals trace: {named.name!r} has no recorded times"))
    return named.model_copy(update={"name": WORKLOAD_NAME, "api": _api_of_workload(options)})


def _preset_workload(options: LoadOptions, name: str, problems: list[Problem]) -> Workload:
    """The workload of ``--preset``, which says everything of what is sent."""
    _refuse_what_is_sent("--preset", options, ("workload", *_WHAT_IS_SENT), problems)
    keys = {"name": WORKLOAD_NAME, "preset": name, "api": _api_of_workload(options)}
    return Workload.model_validate(keys)


def _refuse_what_is_sent(
    option: str, options: LoadOptions, others: Sequence[str], problems: list[Problem]
) -> None:
    """Reports other options that say what is sent, beside one that says all of it."""
    for name in others:
        if options.is_given(name):
            problems.append(Problem(f"{option} says what is sent: leave out {_flag(name)}"))


def _dataset_workload(
    options: LoadOptions,
    text: str,
    answer_lengths: Lengths | None,
    problems: list[Problem],
    refused: Problems,
) -> Workload | None:
    """The prompts of ``--dataset ID[@REVISION][:SPLIT]``, of the hub."""
    from orchestrator.workloads.file import FileWorkload
    from orchestrator.workloads.hub import HubDataset

    for name in ("input_tokens", "prompts"):
        if options.is_given(name):
            problems.append(Problem(f"--dataset has the prompts: leave out {_flag(name)}"))
    match = _DATASET.fullmatch(text)
    if match is None:
        remedy = "give its name on the hub, like philschmid/mt-bench@main:train"
        problems.append(Problem(f"--dataset {text!r}: {remedy}"))
        return None
    if options.output_tokens is not None and answer_lengths is None:
        return None
    given = {name: value for name, value in match.groupdict().items() if value is not None}
    dataset = _record(HubDataset, refused, **given)
    if dataset is None:
        return None
    return _record(
        FileWorkload,
        refused,
        name=WORKLOAD_NAME,
        api=_api_of_workload(options),
        kind="file",
        dataset=dataset,
        output_tokens=answer_lengths,
    )


def _check_arrivals(options: LoadOptions, problems: list[Problem]) -> None:
    """Reports ``--arrivals`` where no rate needs them, a shape that the process does not have, and
    a process for which there is no option.
    """
    arrivals = _arrivals_option(options.arrivals)
    process = arrivals.process
    if process is None:
        return
    is_open_loop = options.rate is not None or options.find_capacity
    has_times = options.trace is not None or options.workload is not None
    is_replayed = process == "trace" and has_times and options.concurrency is None
    if not is_open_loop and not is_replayed:
        problems.append(Problem("--arrivals is for --rate"))
    if arrivals.shape is not None:
        _check_shape(arrivals, problems)
    if process == "trace":
        if options.workload is None and options.trace is None:
            problems.append(Problem("--arrivals trace: give the file of times as --trace FILE"))
    else:
        _check_process(process, problems)


def _check_shape(arrivals: _ArrivalsOption, problems: list[Problem]) -> None:
    """Reports a shape of anything but gamma, and one that is no number."""
    option = f"--arrivals {arrivals.process}:{arrivals.shape}"
    if arrivals.process != "gamma":
        problems.append(Problem(f"{option}: only gamma has a shape"))
    elif arrivals.burstiness is None:
        problems.append(Problem(f"{option}: give the shape as a number, like gamma:0.5"))


def _check_process(process: str, problems: list[Problem]) -> None:
    """Reports a process that is unknown, or has settings for which there is no option."""
    if process in _IN_FILES_ONLY:
        text = f"--arrivals {process} is only for experiment files (`plan`, `run`)"
        problems.append(Problem(text))
        return
    processes = _drawn_processes()
    if process not in processes:
        remedy = did_you_mean(process, processes) or f"it is one of {', '.join(processes)}"
        problems.append(Problem(f"--arrivals {process}: there is no such process; {remedy}"))


def _api_of_workload(options: LoadOptions) -> str:
    """The name that an experiment file has for the API."""
    return options.api if options.api in ("completions", "chat", "tgi") else "native"


def _file_workload(
    options: LoadOptions, file: str, answer_lengths: Lengths | None, refused: Problems
) -> Workload | None:
    from orchestrator.workloads.file import FileWorkload

    return _record(
        FileWorkload,
        refused,
        name=WORKLOAD_NAME,
        api=_api_of_workload(options),
        kind="file",
        prompts=_path(file),
        output_tokens=answer_lengths,
    )


def _drawn_workload(
    options: LoadOptions,
    input_lengths: Lengths | None,
    answer_lengths: Lengths | None,
    problems: list[Problem],
    refused: Problems,
) -> Workload | None:
    """Random prompts: single requests, or conversations where ``--turns`` is given."""
    from orchestrator.workloads.drawn import ConversationsWorkload, RandomWorkload

    prefix = _shared_prefix(options.shared_prefix, problems)
    think_time_s = None
    if options.turns:  # without turns, --think-time is refused by _NEEDS
        think_time_s = _seconds("think_time", options.think_time, problems)
    images = _images(options.images, problems)
    if input_lengths is None or answer_lengths is None:
        return None
    return _record(
        ConversationsWorkload if options.turns else RandomWorkload,
        refused,
        name=WORKLOAD_NAME,
        api=_api_of_workload(options),
        kind="conversations" if options.turns else "random",
        input_tokens=input_lengths,
        output_tokens=answer_lengths,
        shared_prefix_tokens=prefix.tokens,
        shared_prefix_count=prefix.count,
        turns=options.turns,
        think_time=think_time_s,
        images=images,
    )


def _images(text: str | None, problems: list[Problem]) -> Images | None:
    """The pictures of ``--images N@WxH[,WxH…]``."""
    if text is None:
        return None
    try:
        return _parsed_images(text)
    except ValueError as error:
        problems.append(Problem(f"--images {text}: {error}"))
        return None


def _parsed_images(text: str) -> Images:
    """The pictures of a text. Raises ValueError with what is wrong with it."""
    digits, at, sizes_text = text.partition("@")
    if not at or not digits.isdecimal():
        raise ValueError("write their number and size like 1@1120x700")
    count = int(digits)
    if not 1 <= count <= MOST_IMAGES:
        raise ValueError(f"a request has 1 to {MOST_IMAGES} images")
    sizes = tuple(sizes_text.split(","))
    for size in sizes:
        ImageSize.of(size)
    try:
        return Images(sizes=sizes, count=Lengths(fixed=count))
    except ValidationError as error:
        raise ValueError(error.errors()[0]["msg"]) from None


@dataclass(frozen=True, slots=True)
class _SharedPrefix:
    """Length and number of prefixes that prompts share; None: not given."""

    tokens: int | None = None
    count: int | None = None


def _shared_prefix(text: str | None, problems: list[Problem]) -> _SharedPrefix:
    """Reads ``500`` or ``500x8``: prefixes of 500 tokens, of which there are 8."""
    if text is None:
        return _SharedPrefix()
    match = _SHARED_PREFIX.fullmatch(text)
    numbers: list[int] = []
    if match is not None:
        numbers = [int(digits) for digits in match.groups() if digits is not None]
    if not numbers or 0 in numbers:
        remedy = "give its tokens, like 500, or 500x8 for 8 different prefixes"
        problems.append(Problem(f"--shared-prefix {text!r}: {remedy}"))
        return _SharedPrefix()
    return _SharedPrefix(*numbers)


def _trace_of_requests(path: str | None) -> str | None:
    """The path of a trace, if its lines also say what is sent; else None.

    A trace that cannot be read is taken for such a trace: planning says what is wrong with it.
    """
    from orchestrator.workloads.file_reading import first_line

    if path is None:
        return None
    try:
        has_times_alone = math.isfinite(float(first_line("trace", path)))
    except (ProblemsError, ValueError):
        has_times_alone = False
    return None if has_times_alone else path


def _answer_lengths(options: LoadOptions, problems: list[Problem]) -> Lengths | None:
    """Reads ``--output-tokens``: ``file``, for the lengths of recorded answers, or ``_lengths``."""
    from orchestrator.workloads.file import RECORDED, AnswerLengths

    if options.output_tokens != RECORDED:
        # requests from a file have their own type of lengths
        model = Lengths if options.input_tokens is not None else AnswerLengths
        return _lengths("output_tokens", options.output_tokens, problems, model)
    if options.input_tokens is not None:
        problems.append(Problem("--output-tokens file is for --prompts"))
    elif options.tokenizer is None:
        problems.append(
            Problem("--output-tokens file counts the file's answers: give the model's --tokenizer")
        )
    return AnswerLengths(recorded=True)


def _with_countable_answers(workload: Workload) -> Workload:
    """The workload with a fixed length in place of recorded ones, which need a tokenizer.

    So planning can find what else is wrong.
    """
    from orchestrator.workloads.file import AnswerLengths, FileWorkload

    if not isinstance(workload, FileWorkload) or not workload.counts_answers:
        return workload
    return workload.model_copy(update={"output_tokens": AnswerLengths(fixed=1)})


def _lengths(
    option: str, text: str | None, problems: list[Problem], model: type[Lengths] = Lengths
) -> Lengths | None:
    """Reads lengths: ``200``, ``100:300`` or ``200+-50``.

    ``100:300`` is uniform, with both ends; ``200+-50`` is log-normal, by its mean and standard
    deviation.
    """
    if text is None:
        return None
    try:
        return _parsed_lengths(text, model)
    except (ValueError, ArithmeticError):
        remedy = (
            "give 200, 100:300 (uniform) or 200+-50 (log-normal: mean and standard "
            f"deviation), up to {MOST_TOKENS}"
        )
        problems.append(Problem(f"{_flag(option)} {text!r}: {remedy}"))
        return None


def _parsed_lengths(text: str, model: type[Lengths]) -> Lengths:
    """The lengths of a text. Raises ValueError or ArithmeticError for a text that gives none."""
    match = _LENGTHS.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} says no lengths")
    first, sign, second = match.groups()
    if sign is None:
        return model(fixed=int(first))
    if sign == ":":
        return model(uniform=Uniform(min=int(first), max=int(second)))
    # sigma of the log-normal distribution with this mean and standard deviation
    sigma = math.sqrt(math.log1p((int(second) / int(first)) ** 2))
    return model(lognormal=LogNormal(mean=float(first), sigma=sigma))


# -- where requests go


def target_of(url: str, options: LoadOptions, problems: list[Problem]) -> Target:
    """Where requests go, with their headers and key. Its model is empty where none is named."""
    from orchestrator.load.point import Target

    base = address_of(url, options, problems).base
    endpoint = options.endpoint
    if endpoint is not None and not re.fullmatch(r"/[!-~]*", endpoint):
        problems.append(
            Problem(f"--endpoint {endpoint!r}: give the path of the API, like /v2/completions")
        )
    if options.insecure and not base.startswith("https://"):
        problems.append(Problem("--insecure is for https"))
    return Target(
        base,
        options.model or "",
        api_key=_api_key(options.api_key_env, problems),
        headers=_headers(options.headers, problems),
        verify_tls=not options.insecure,
    )


def dialects_of(options: LoadOptions, problems: list[Problem]) -> list[Dialect]:
    """The dialects in which requests may be written, best first, as the options change them."""
    from orchestrator.sweep.detect_dialect import dialects

    changes: dict[str, Any] = {"extra_body": _extra_body(options.extra_body, problems)}
    if options.endpoint is not None:
        changes["path"] = options.endpoint
    if options.natural_lengths:
        changes |= {"length_control": "natural", "min_tokens_field": None}
    return [replace(dialect, **changes) for dialect in dialects(options.api)]


def address_of(url: str, options: LoadOptions, problems: list[Problem]) -> ServerAddress:
    """Where the server is, and where its APIs are, however its address was pasted."""
    from orchestrator.spec.address import ServerAddress, parse_address, parse_url

    try:
        address = parse_address(url, options.endpoint)
        parse_url(address.base)
    except (InputError, ValueError) as error:
        problems.append(Problem(str(error)))
        return ServerAddress(url)
    return address


def _path(path: str) -> str:
    return str(Path(path).absolute())


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def _seconds(option: str, text: str | None, problems: list[Problem]) -> float | None:
    from orchestrator.spec.load import parse_duration

    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        problems.append(Problem(f"{_flag(option)}: {error}"))
        return None


def _api_key(name: str | None, problems: list[Problem]) -> str | None:
    if name is None:
        return None
    key = os.environ.get(name)
    if not key:
        problems.append(Problem(f"--api-key-env: the environment variable {name!r} is not set"))
    elif not key.isascii() or any(char.isspace() for char in key):
        problems.append(
            Problem(
                f"--api-key-env: the value of {name!r} holds characters that no HTTP header may "
                "hold"
            )
        )
    return key


def _headers(texts: Sequence[str], problems: list[Problem]) -> tuple[tuple[str, str], ...]:
    """Reads headers like ``NAME: VALUE``, with ``${VARIABLE}`` filled in from the environment.

    A problem never shows a value.
    """
    from orchestrator.load.requests import header_problem

    headers = []
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon:
            name = ""  # all of it may be a secret
        name = name.strip()
        value = value.strip()
        missing = [variable for variable in _VARIABLE.findall(value) if variable not in os.environ]
        filled = _VARIABLE.sub(lambda match: os.environ.get(match[1], ""), value)
        problem = header_problem(name, filled)
        if problem:
            problems.append(Problem(f"--header: {problem}"))
        elif missing:
            problems.append(
                Problem(f"--header {name}: the environment variable {missing[0]!r} is not set")
            )
        headers.append((name, filled))
    return tuple(headers)


def _extra_body(text: str | None, problems: list[Problem]) -> dict[str, Any]:
    try:
        extra = orjson.loads(text or "{}")
        orjson.dumps(extra)
    except (orjson.JSONDecodeError, TypeError) as error:
        problems.append(Problem(f"--extra-body is not JSON that can be sent: {error}"))
        return {}
    if not isinstance(extra, dict):
        problems.append(Problem("--extra-body must be a JSON object"))
        return {}
    return extra


def _tokenizer(path: str | None, problems: list[Problem]) -> str | None:
    from orchestrator.workloads.content import load_tokenizer

    if path is None:
        return None
    try:
        load_tokenizer(path)
    except InputError as error:
        problems.append(Problem(f"--tokenizer: {error}"))
        return None
    return _path(path)
