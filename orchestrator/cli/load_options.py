"""The options of ``orchestrator load`` as an experiment: names are mapped here, what they mean is
the experiment's.
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
from typing import TYPE_CHECKING, Any

import orjson

from orchestrator.base.errors import InputError, Problem, ProblemsError
from orchestrator.base.registry import did_you_mean
from orchestrator.spec.load import ARRIVALS, MOST_IN_FLIGHT, MOST_TOKENS

if TYPE_CHECKING:
    from orchestrator.load.point import Target
    from orchestrator.plan.model import Plan
    from orchestrator.spec.address import ServerAddress
    from orchestrator.spec.dialect import Dialect

_VARIABLE = re.compile(r"\$\{(\w+)\}")
_LENGTHS = re.compile(r"\s*(\d{1,10})(?:(:|\+-|±)(\d{1,10}))?\s*", re.ASCII)
# of --find-capacity, where somebody waits for the answer
SEARCH_BUDGET, SEARCH_PRECISION = "1h", 0.15
_NO_SEARCH = ("rate", "concurrency", "trace", "warmup_requests", "max_errors")
# what the experiment does not say of requests
_SENT = ("model", "endpoint", "headers", "extra_body", "natural_lengths")
_IN_FILES_ONLY = ("ramp", "steps")  # arrivals with settings for which there is no option
_NEEDS = {  # what an option is for
    **dict.fromkeys(("prefix_tokens", "turns"), "input_tokens"),
    "prefix_count": "prefix_tokens",
    "think_time": "turns",
    "speed_up": "trace",
    **dict.fromkeys(("control", "budget", "precision"), "find_capacity"),
    "name": "results",
}.items()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """The options of ``orchestrator load`` that say what is sent, and where to. None: not given.

    Times, lengths, levels and limits are text as the user wrote it; what they hold wrongly is told
    with everything else (``experiment_of``, ``target_of``, ``dialects_of``).
    """

    model: str | None
    api: str
    endpoint: str | None
    api_key_env: str | None
    headers: tuple[str, ...]
    extra_body: str | None
    insecure: bool
    timeout: str
    rate: str | None
    concurrency: str | None
    find_capacity: bool
    control: str | None
    budget: str | None
    precision: float | None
    trace: str | None
    speed_up: float | None
    arrivals: str | None
    burstiness: float | None
    max_in_flight: int | None
    requests: int | None
    duration: str | None
    warmup: str | None
    warmup_requests: int | None
    max_errors: int | None
    input_tokens: str | None
    prefix_tokens: int | None
    prefix_count: int | None
    turns: int | None
    think_time: str | None
    prompt_file: str | None
    output_tokens: str | None
    natural_lengths: bool
    tokenizer: str | None
    seed: int | None
    slo_text: str | None
    results: str | None
    name: str | None

    def is_given(self, name: str) -> bool:
        """Whether the user gave an option, by the name of its field."""
        return getattr(self, name) is not None and getattr(self, name) is not False


def experiment_of(base: str, options: LoadOptions, problems: list[Problem]) -> dict[str, Any]:
    """The options as an experiment. What they lack or say wrongly is left out of it and is a
    problem.
    """
    load: dict[str, Any] = _given(
        duration=_duration("duration", options.duration, problems),
        warmup=_duration("warmup", options.warmup, problems),
        request_timeout=_duration("timeout", options.timeout, problems),
    )
    lengths = [name for name in ("requests", "duration") if options.is_given(name)]
    if len(lengths) > 1 or not (lengths or options.trace or options.find_capacity):
        problems.append(Problem("give either --requests or --duration"))
    elif options.requests is not None:
        load["requests"] = options.requests
    endpoint = {"engine": "endpoint", "url": base} | _given(api_key_env=options.api_key_env)
    tokenizer = _tokenizer(options.tokenizer, problems)
    workloads = _workloads(options, problems)
    if tokenizer is None:  # already a problem where recorded answers are to be counted
        workloads = [_with_countable_answers(workload) for workload in workloads]
    found = {
        "version": 1,
        "name": _run_name(options.name, problems),
        "model": _given(tokenizer=tokenizer),
        "deployments": endpoint,
        "workloads": workloads,
        "load": load | _levels(options, problems),
        "slos": _slos(options.slo_text, problems),
        "seed": secrets.randbits(32) if options.seed is None else options.seed,
    }
    if options.find_capacity:
        found["budget"] = _given(
            wall=_duration("budget", options.budget or SEARCH_BUDGET, problems)
        )
    if options.results is None or problems:
        return found
    if options.name is None and options.find_capacity:
        found["name"] = f"capacity-{options_digest(found, options)[:12]}"
    if options.seed is None and (stored := stored_plan(options.results, str(found["name"]))):
        found["seed"] = stored.seed  # with another one it would be another run
    return found


def _run_name(name: str | None, problems: list[Problem]) -> str:
    """The name of a run: the one that was given, or the time with three letters that keep runs
    of the same minute apart.
    """
    from orchestrator.results.ids import is_name

    if name is None:
        # no longer than a folding column is wide: a table breaks no such name
        letters = (secrets.choice(string.ascii_lowercase) for _ in range(3))
        return time.strftime("%m%d-%H%M") + "".join(letters)
    if not is_name(name):
        text = f"--name {name!r}: give letters, digits, '.', '_' and '-', like before or run-2"
        problems.append(Problem(text))
        return "unnamed"
    return name


def options_digest(experiment: dict[str, Any], options: LoadOptions) -> str:
    """The same for the same options: for how long a search goes on, and how near to what fails, is
    no other search. Whatever is sent otherwise is another run.
    """
    from orchestrator.results.ids import digest

    load = {name: value for name, value in experiment["load"].items() if name != "precision"}
    same = {name: value for name, value in experiment.items() if name != "budget"}
    seed = options.seed
    same |= {"load": load, "name": "", "seed": 0 if seed is None else str(seed)}
    same["model"] = {name: value for name, value in same["model"].items() if name != "id"}
    # headers without what variables hold
    same["sent"] = {name: getattr(options, name) for name in _SENT if getattr(options, name)}
    return digest(same)


def stored_plan(results: str, name: str) -> Plan | None:
    """The plan of a run that is stored under this name; None where this version can read none.

    Raises ResultsError when the storage does not answer: with another seed stored probes would
    count no more.
    """
    from orchestrator.plan.model import Plan
    from orchestrator.results.store import Store

    with suppress(InputError):  # no URI, or no plan of this version
        if stored := Store.open(results, name).plan():
            return Plan.from_json(stored, to_run=False)
    return None


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _levels(options: LoadOptions, problems: list[Problem]) -> dict[str, Any]:
    """Levels, and what an open loop needs besides."""
    if options.find_capacity:
        return _search(options, problems)
    ways = [name for name in ("rate", "concurrency", "trace") if options.is_given(name)]
    if len(ways) != 1:
        said = (
            "give one of --rate (open loop), --concurrency (closed loop) or --trace (recorded "
            "times)"
        )
        problems.append(Problem(said))
        return {}
    if options.concurrency is not None:
        if options.max_in_flight is not None:
            problems.append(
                Problem(
                    "--max-in-flight is for --rate; --concurrency is itself the number in flight"
                )
            )
        numbers = _numbers("concurrency", options.concurrency, problems)
        if any(number % 1 or number > MOST_IN_FLIGHT for number in numbers):
            said = (
                f"--concurrency {options.concurrency!r}: whole numbers of at most "
                f"{MOST_IN_FLIGHT:,}"
            )
            problems.append(Problem(said))
            return {}
        return {"levels": {"concurrency": [int(number) for number in numbers]}} if numbers else {}
    given = _given(max_in_flight=options.max_in_flight)
    if options.trace is not None:
        return given | _recorded(options, options.trace, problems)
    assert options.rate is not None
    rates = _numbers("rate", options.rate, problems)
    if math.inf in rates and options.requests is None:
        problems.append(
            Problem("--rate inf sends all requests at once: say how many with --requests")
        )
        return {}
    arrivals = _given(process=_process(options), burstiness=options.burstiness)
    words = ["inf" if rate == math.inf else rate for rate in rates]  # JSON has no infinity
    return given | {"levels": {"request_rate": words}, "arrivals": arrivals} if rates else {}


def _process(options: LoadOptions) -> str | None:
    """The arrival process that is asked for. None: the default, or one that is refused."""
    process: str | None = options.arrivals
    return process if process in _drawn_arrivals() else None


def _drawn_arrivals() -> list[str]:
    """Names of arrival processes that need no more than a rate."""
    return [name for name in ARRIVALS.names() if name not in ("trace", *_IN_FILES_ONLY)]


def _search(options: LoadOptions, problems: list[Problem]) -> dict[str, Any]:
    given = [_flag(name) for name in _NO_SEARCH if options.is_given(name)]
    problems += [
        Problem(f"--find-capacity looks for the level itself: leave out {name}") for name in given
    ]
    if options.slo_text is None:
        problems.append(
            Problem('--find-capacity needs limits: --slo "ttft<=500ms,attainment>=0.95"')
        )
    control = options.control or "request_rate"
    if options.arrivals and control == "concurrency":
        problems.append(Problem("--arrivals is for --control request_rate"))
    arrivals = {"arrivals": _given(process=_process(options), burstiness=options.burstiness)}
    rules = _given(
        max_in_flight=options.max_in_flight, precision=options.precision or SEARCH_PRECISION
    )
    return (
        {"search": "capacity", "control": control}
        | rules
        | (arrivals if control == "request_rate" else {})
    )


def _recorded(options: LoadOptions, trace: str, problems: list[Problem]) -> dict[str, Any]:
    """At the times of a trace: its own mean rate is the level. What is wrong in the file the plan
    says.
    """
    from orchestrator.load.arrivals import mean_rate, recorded
    from orchestrator.spec.load import Arrivals

    arrivals = {"process": "trace", "trace": _path(trace)}
    arrivals |= _given(speed_up=options.speed_up)
    ends_s = _end_s(options) or None
    sessions, turns = options.requests, options.turns or 1
    if sessions is not None:
        sessions = -(-sessions // turns)
    try:
        offsets = recorded(Arrivals.model_validate(arrivals))
    except (ProblemsError, ValueError):
        return {"levels": {"request_rate": [1.0]}, "arrivals": arrivals}
    if (sessions or 0) > len(offsets):
        problems.append(Problem(f"--requests {options.requests}: the trace has {len(offsets)}"))
    rate = mean_rate(offsets, ends_s, sessions) * turns
    level = "inf" if rate == math.inf else rate  # JSON has no infinity
    due = offsets[:sessions] if ends_s is None else offsets[offsets < ends_s][:sessions]
    requests = len(due) * turns
    if options.requests is not None:
        requests = min(requests, options.requests)
    count = {} if options.duration else {"requests": requests}
    return {"levels": {"request_rate": [level]}, "arrivals": arrivals} | count


def _numbers(option: str, text: str, problems: list[Problem]) -> list[float]:
    """``1,2,4``: numbers above 0, each once; a rate may be ``inf``."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [math.nan]
    infinite = option == "rate" and {part.strip() for part in text.split(",")} >= {"inf"}
    if not all(number > 0 and (number < math.inf or infinite) for number in found):
        problems.append(
            Problem(f"--{option} {text!r}: give a number above 0, or several like 1,2,4")
        )
        return []
    return list(dict.fromkeys(found))


def _end_s(options: LoadOptions) -> float:
    """When requests are no longer due; 0: their number says when."""
    if options.duration is None:
        return 0.0
    duration_s = _seconds("duration", options.duration, []) or 0.0
    warmup_s = _seconds("warmup", options.warmup, []) or 0.0
    return duration_s + warmup_s


def _slos(text: str | None, problems: list[Problem]) -> dict[str, Any]:
    from orchestrator.analysis.slo import is_joint, parse_slo

    if text is None:
        return {}
    try:
        slo = parse_slo(text)
    except ProblemsError as error:
        problems += error.problems
        return {}
    if slo.agreement is not None:
        text = "--slo: agreement is known of sweeps alone: load asks no fixed prompts; leave it out"
        problems.append(Problem(text))
    limits = {one.name: f"{one.seconds!r}s" for one in slo.limits}
    return {"slo": limits | ({"attainment": slo.attainment} if is_joint(slo) else {})}


def _workloads(options: LoadOptions, problems: list[Problem]) -> list[dict[str, Any]]:
    asked = _lengths("input_tokens", options.input_tokens, problems)
    answered = _answer_lengths(options, problems)
    if options.arrivals is not None and options.rate is None and not options.find_capacity:
        problems.append(Problem("--arrivals is for --rate"))
    if options.arrivals == "trace":
        problems.append(Problem("--arrivals trace: give the file of times as --trace FILE"))
    elif options.arrivals in _IN_FILES_ONLY:
        problems.append(
            Problem(f"--arrivals {options.arrivals} is only for experiment files (`plan`, `run`)")
        )
    elif options.arrivals is not None and options.arrivals not in _drawn_arrivals():
        hint = did_you_mean(options.arrivals, _drawn_arrivals())
        known = hint or f"it is one of {', '.join(_drawn_arrivals())}"
        problems.append(
            Problem(f"--arrivals {options.arrivals}: there is no such process; {known}")
        )
    for name, needed in _NEEDS:
        if options.is_given(name) and not getattr(options, needed):
            problems.append(Problem(f"{_flag(name)} is for {_flag(needed)}"))
    if options.burstiness is not None and options.arrivals != "gamma":
        problems.append(Problem("--burstiness is for --arrivals gamma"))
    api = options.api
    content: dict[str, Any] = {
        "name": "load",
        "api": api if api in ("completions", "chat", "tgi") else "native",
    }
    drawn, file = options.input_tokens is not None, options.prompt_file
    if not drawn and file is None:
        file = _trace_of_requests(options.trace)
    if drawn == (file is not None):
        times = " (a trace of times alone has no prompts)" if options.trace else ""
        problems.append(
            Problem(f"give either --input-tokens (random prompts) or --prompt-file{times}")
        )
    elif file is not None:
        content |= {"kind": "file", "prompts": _path(file)}
    elif options.output_tokens is None:
        problems.append(Problem("give --output-tokens: how long answers are to be"))
    else:
        content |= {
            "kind": "conversations" if options.turns else "random",
            "input_tokens": asked,
        } | _given(
            shared_prefix_tokens=options.prefix_tokens,
            shared_prefix_count=options.prefix_count,
            turns=options.turns,
            # without turns it is refused by _NEEDS
            think_time=_duration("think_time", options.think_time, problems)
            if options.turns
            else None,
        )
    bad = (
        "kind" not in content
        or (drawn and asked is None)
        or (options.output_tokens and answered is None)
    )
    return [] if bad else [content | _given(output_tokens=answered)]


def _trace_of_requests(path: str | None) -> str | None:
    """A trace whose lines say what is sent, too; what cannot be read is one until the plan says
    why.
    """
    from orchestrator.workloads.files import first_line

    try:
        times = path is None or math.isfinite(float(first_line("trace", path)))
    except (ProblemsError, ValueError):
        times = False
    return None if times else path


def _answer_lengths(
    options: LoadOptions, problems: list[Problem]
) -> int | str | dict[str, Any] | None:
    """As ``_lengths``, or ``file``: as the recorded answers of a prompt file."""
    from orchestrator.workloads.file import RECORDED

    if options.output_tokens != RECORDED:
        return _lengths("output_tokens", options.output_tokens, problems)
    if options.input_tokens is not None:
        problems.append(Problem("--output-tokens file is for --prompt-file"))
    elif options.tokenizer is None:
        problems.append(
            Problem("--output-tokens file counts the file's answers: give the model's --tokenizer")
        )
    return RECORDED


def _with_countable_answers(workload: dict[str, Any]) -> dict[str, Any]:
    """The workload with some length in place of the recorded ones, so that the plan looks for what
    else is wrong.
    """
    from orchestrator.workloads.file import RECORDED

    if workload.get("output_tokens") != RECORDED:
        return workload
    return workload | {"output_tokens": 1}


def _lengths(option: str, text: str | None, problems: list[Problem]) -> int | dict[str, Any] | None:
    """``200``; ``100:300``, uniform with both ends; ``200+-50``, log-normal by its mean and
    standard deviation.
    """
    from orchestrator.spec.load import Lengths

    if text is None:
        return None
    match = _LENGTHS.fullmatch(text)
    try:
        first, sign, second = match.groups() if match else ("", None, "")
        value: int | dict[str, Any] = int(first)
        if sign == ":":
            value = {"uniform": {"min": int(first), "max": int(second)}}
        elif sign is not None:
            sigma = math.sqrt(math.log1p((int(second) / int(first)) ** 2))
            value = {"lognormal": {"mean": float(first), "sigma": sigma}}
        Lengths.model_validate(value)
    except (ValueError, ArithmeticError):
        what = (
            "give 200, 100:300 (uniform) or 200+-50 (log-normal: mean and standard "
            f"deviation), up to {MOST_TOKENS}"
        )
        problems.append(Problem(f"{_flag(option)} {text!r}: {what}"))
        return None
    return value


def target_of(url: str, options: LoadOptions, problems: list[Problem]) -> Target:
    """Where requests go, with what they carry. Its model is empty where none is named."""
    from orchestrator.load.point import Target

    base, endpoint = address_of(url, options, problems).base, options.endpoint
    if endpoint is not None and not re.fullmatch(r"/[!-~]*", endpoint):
        problems.append(
            Problem(f"--endpoint {endpoint!r}: give the path of the API, like /v2/completions")
        )
    if options.insecure and not base.startswith("https://"):
        problems.append(Problem("--insecure is for https"))
    key, headers = (
        _api_key(options.api_key_env, problems),
        _headers(options.headers, problems),
    )
    return Target(
        base,
        options.model or "",
        api_key=key,
        headers=headers,
        verify_tls=not options.insecure,
    )


def dialects_of(options: LoadOptions, problems: list[Problem]) -> list[Dialect]:
    """How requests may be written, best first, with what the options change of it."""
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


def _duration(option: str, text: str | None, problems: list[Problem]) -> str | None:
    """As an experiment file says it."""
    seconds = _seconds(option, text, problems)
    return None if seconds is None else f"{seconds!r}s"


def _seconds(option: str, text: str | None, problems: list[Problem]) -> float | None:
    from orchestrator.spec.load import parse_duration

    try:
        return None if text is None else parse_duration(text)
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
    """``NAME: VALUE`` each, with ``${VARIABLE}`` filled in from the environment. No value is ever
    said.
    """
    from orchestrator.load.requests import header_problem

    found = []
    for text in texts:
        name, value = (part.strip() for part in text.split(":", 1)) if ":" in text else ("", "")
        missing = [one for one in _VARIABLE.findall(value) if one not in os.environ]
        filled = _VARIABLE.sub(lambda one: os.environ.get(one[1], ""), value)
        if problem := header_problem(name, filled):
            problems.append(Problem(f"--header: {problem}"))
        elif missing:
            problems.append(
                Problem(f"--header {name}: the environment variable {missing[0]!r} is not set")
            )
        found.append((name, filled))
    return tuple(found)


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
