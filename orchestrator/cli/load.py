"""``orchestrator load``: measure any endpoint in one line, without a cluster."""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.errors import InputError, OrchestratorError, Problem, ProblemsError
from orchestrator.spec.load import MOST_TOKENS

if TYPE_CHECKING:
    from orchestrator.plan.model import Plan
    from orchestrator.runner.endpoint import EndpointRun
    from orchestrator.runner.measure import Attempt

_VARIABLE = re.compile(r"\$\{(\w+)\}")
MOST_REQUESTS = 5_000_000
MOST_IN_FLIGHT = 100_000
_API_PATHS = ("/chat/completions", "/completions", "/generate_stream", "/generate", "/models")

EXAMPLES = """
\b
Examples:
  orchestrator load http://127.0.0.1:8000 --model M --rate 4 --duration 60s --input-tokens 512 --output-tokens 128
  orchestrator load http://127.0.0.1:8000 --concurrency 8,32,128 --requests 500 --input-tokens 512 --output-tokens 128
      --slo "ttft<=500ms,tpot<=50ms"
  orchestrator load https://host/v1 --model M --api chat --api-key-env MY_KEY --rate 2 --requests 100 --input-tokens 200
      --output-tokens 200 --tokenizer ./tokenizer.json --format json
  orchestrator load http://127.0.0.1:8000 --concurrency 8 --requests 500 --prompt-file prompts.jsonl --output-tokens 256

\b
Latencies count from when a request was due; a request that was late in being sent is not forgiven. Failed requests are
counted. Exit status: 0 all requests ok, 3 some failed, 2 bad input, 1 our own error, 130 interrupted.
"""


@click.command(epilog=EXAMPLES)
@click.argument("url")
@click.option("--model", help="Name requests carry. Default: the one model the endpoint lists.")
@click.option(
    "--concurrency", metavar="N[,N…]", help="Closed loop: requests kept in flight. A list: one after another."
)
@click.option("--rate", metavar="R[,R…]", help="Open loop: requests per second, or inf: all --requests at once.")
@click.option("--arrivals", default="poisson", show_default=True, help="constant, poisson or gamma (open loop).")
@click.option(
    "--burstiness", type=click.FloatRange(min=0, min_open=True), default=1.0, help="Gamma shape; 1 = Poisson."
)
@click.option("--requests", type=click.IntRange(min=1), help="Stop after so many requests.")
@click.option("--duration", help="Stop after so long, like 30s.")
@click.option("--warmup", default="0s", show_default=True, help="Requests due in it are rows but no figures.")
@click.option("--warmup-requests", type=click.IntRange(min=1), help="Sent and waited for before each level: no rows.")
@click.option("--input-tokens", type=click.IntRange(1, MOST_TOKENS), help="Of random prompts.")
@click.option("--prompt-file", metavar="FILE", help="A prompt per line, or JSONL: prompt, perhaps output_tokens.")
@click.option("--output-tokens", type=click.IntRange(1, MOST_TOKENS), required=True)
@click.option("--api", type=click.Choice(["completions", "chat", "tgi", "sglang"]), default="completions")
@click.option("--tokenizer", type=click.Path(), help="Folder or tokenizer.json: text prompts of exact length.")
@click.option("--clients", type=click.IntRange(min=1), default=1, show_default=True, help="Local client processes.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Of prompts and arrivals. Default: drawn and printed.")
@click.option("--slo", "slo_text", metavar="SLO", help="Also say how many requests met these limits.")
@click.option("--max-in-flight", type=click.IntRange(min=1), help="Due requests wait beyond it; latency says so.")
@click.option("--timeout", default="600s", show_default=True, help="Of one request.")
@click.option("--api-key-env", metavar="NAME", help="Environment variable that holds the key.")
@click.option("--header", "headers", multiple=True, metavar="NAME:VALUE", help="Also sent. ${VARIABLE}: a secret's.")
@click.option("--extra-body", metavar="JSON", help="Fields added to every request; null takes one out.")
@click.option("--natural-lengths", is_flag=True, help="Answers end as the model ends them: --output-tokens at most.")
@click.option("--results", metavar="URI", help="Also store Parquet there, for results, best and report.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
def load(url: str, results: str | None, form: str, clients: int, **options: Any) -> int:
    """Load the endpoint at URL and print what its users would have felt."""
    from orchestrator.load.rows import leave_pandas_out

    leave_pandas_out()
    from orchestrator.cli.signals import INTERRUPTED, stops
    from orchestrator.report.documents import json_text
    from orchestrator.report.live import live_load
    from orchestrator.report.run import run_text, runs_text
    from orchestrator.results.store import Store
    from orchestrator.runner.endpoint import measure_here

    runs, notes = _runs(url, options)
    store = None
    if results is not None:
        store = Store.open(results, runs[0].plan.name)
        store.check_writable()
    for note in notes:
        click.echo(f"note: {note}", err=True)
    distinct = runs[0].point.workload.distinct_requests()  # now: a file may be gone afterwards
    documents: list[dict[str, object]] = []
    stop, status, interrupted = threading.Event(), 0, False
    unsaved: OrchestratorError | None = None

    def show_all() -> None:
        if len(runs) > 1 and documents:
            click.echo(json_text(documents) if form == "json" else "\n".join(runs_text(documents)))

    with ExitStack() as at_end, stops(stop):
        at_end.callback(show_all)  # also when a level fails: that must not cost what those before it gave
        for run in runs:
            if options["warmup_requests"] and not stop.is_set():
                run.warm_up(options["warmup_requests"], clients, stop.is_set)
            if interrupted := stop.is_set():
                click.echo(f"note: interrupted before level {len(documents) + 1} of {len(runs)}", err=True)
                break
            with live_load() as listener:
                attempt = measure_here(run.load, clients, listener, stop.is_set)
            assert attempt.loaded
            after = [*_repeated(distinct, attempt.loaded.requests.num_rows), *_interrupted(attempt)]
            for note in after:
                click.echo(f"note: {note}", err=True)
            found = _document(run, clients, attempt)
            documents.append(found | {"notes": [*notes, *after], "results": results})
            status = 3 if set(attempt.loaded.requests["status"].to_pylist()) - {"ok"} else status
            if len(runs) == 1:  # before storing: that may take long, and a full disk must not cost the answer
                click.echo(json_text(documents[0]) if form == "json" else "\n".join(run_text(documents[0])))
            try:
                if store is not None:
                    run.commit(store, attempt)
            except OrchestratorError as error:
                unsaved = error
            interrupted = attempt.loaded.interrupted
    if unsaved is not None:
        raise unsaved
    return INTERRUPTED if interrupted else status


def _document(run: EndpointRun, clients: int, attempt: Attempt) -> dict[str, object]:
    """What was measured at one level. The seed is the one to give again."""
    from orchestrator.report.run import limits_document, run_document

    loaded = attempt.loaded
    assert loaded
    point = loaded.cut(run.load)
    found = run_document(point, clients, loaded.requests, loaded.token_events, loaded.stats, attempt.verdict)
    found |= limits_document(point, loaded.requests, loaded.token_events, run.plan.slos)
    return found | {"seed": run.plan.seed}


def _runs(url: str, options: dict[str, Any]) -> tuple[list[EndpointRun], list[str]]:
    """What these options ask for, level by level, and what the user should know of the endpoint.

    Raises ProblemsError with everything that is wrong, before anything is sent.
    """
    from orchestrator.load.point import Target
    from orchestrator.runner.endpoint import runs_of
    from orchestrator.runner.probe import dialects, list_models, probe

    problems: list[Problem] = []
    base = _url(url, problems)
    experiment = _experiment(base, options, problems)
    key, headers = _api_key(options["api_key_env"], problems), _headers(options["headers"], problems)
    target = Target(base, options["model"] or "", api_key=key, headers=headers)
    extra = _extra_body(options["extra_body"], problems)
    plan = _plan(experiment, target.model or "unknown", problems)
    if problems:
        raise ProblemsError(problems)
    models = list_models(target)
    if not target.model:
        target = replace(target, model=_only_model(url, models))
        plan = _plan(experiment, target.model, problems)
    elif models is not None and target.model not in models:
        raise InputError(f"{url} does not serve {target.model!r}; it lists: {', '.join(models) or 'nothing'}")
    assert plan
    candidates = [replace(dialect, extra_body=extra) for dialect in dialects(options["api"])]
    if options["natural_lengths"]:
        candidates = [replace(one, length_control="natural", min_tokens_field=None) for one in candidates]
    probed = probe(target, candidates, plan.deployments[0].settings.tokenizer)
    return runs_of(plan, target, probed), list(probed.notes)


def _only_model(url: str, models: list[str] | None) -> str:
    if models is None or len(models) != 1:
        raise InputError(f"{url} lists {', '.join(models or []) or 'no models'}: name one with --model")
    return models[0]


def _repeated(distinct: int | None, requests: int) -> list[str]:
    """What a user should know who sent the same prompts several times."""
    if distinct is None or requests <= distinct:
        return []
    times = -(-requests // distinct)
    return [f"{requests} requests of {distinct} prompts: each sent up to {times} times; a prefix cache answers faster"]


def _interrupted(attempt: Attempt) -> list[str]:
    return [f"{attempt.verdict.reasons[0]}; run again for all"] if attempt.interrupted else []


def _plan(experiment: dict[str, Any], model: str, problems: list[Problem]) -> Plan | None:
    """The plan of one point, where the options are good enough for one."""
    from orchestrator.runner.endpoint import plan_of

    if "levels" not in experiment["load"] or not experiment["workloads"]:
        return None
    experiment["model"]["id"] = model
    try:
        return plan_of(experiment)
    except ProblemsError as error:
        problems += [replace(problem, file=None, line=None) for problem in error.problems]
        return None


def _experiment(base: str, options: dict[str, Any], problems: list[Problem]) -> dict[str, Any]:
    """The options as an experiment. What they lack or say wrongly is left out of it and is a problem."""
    from orchestrator.results.ids import new_ulid

    load = {
        name: f"{value:g}s"
        for name, option in (("duration", "duration"), ("warmup", "warmup"), ("request_timeout", "timeout"))
        if (value := _seconds(option, options[option], problems)) is not None
    }
    if (options["requests"] is None) == (options["duration"] is None):
        problems.append(Problem("give one of --requests and --duration"))
    elif options["requests"] is not None:
        load["requests"] = options["requests"]
    endpoint = {"engine": "endpoint", "url": base} | _given(api_key_env=options["api_key_env"])
    return {
        "version": 1,
        "name": f"load-{new_ulid()}",
        "model": _given(tokenizer=_tokenizer(options["tokenizer"], problems)),
        "deployments": endpoint,
        "workloads": _workloads(options, problems),
        "load": load | _levels(options, problems),
        "slos": _slos(options["slo_text"], problems),
        "seed": secrets.randbits(32) if options["seed"] is None else options["seed"],
    }


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _levels(options: dict[str, Any], problems: list[Problem]) -> dict[str, Any]:
    rate, concurrency = options["rate"], options["concurrency"]
    if (rate is None) == (concurrency is None):
        problems.append(Problem("give one of --rate (open loop) and --concurrency (closed loop)"))
        return {}
    if rate == "inf" and options["requests"] is None:
        problems.append(Problem("--rate inf sends all requests at once: say how many with --requests"))
        return {}
    if rate is not None and rate != "inf":
        rates = _numbers("rate", rate, problems)
        _at_most(max(rates, default=0.0), options, problems)
        burstiness = options["burstiness"]
        if not math.isfinite(burstiness):
            problems.append(Problem(f"--burstiness: {burstiness} is no number that a schedule could have"))
            burstiness = 1.0
        arrivals = {"process": options["arrivals"], "burstiness": burstiness}
        given = _given(max_in_flight=options["max_in_flight"])
        return {"levels": {"request_rate": rates}, "arrivals": arrivals} | given if rates else {}
    if options["max_in_flight"] is not None:
        instead = "use --concurrency" if rate else "--concurrency is itself the number in flight"
        problems.append(Problem(f"--max-in-flight is for --rate with a number; {instead}"))
    if rate is not None:  # all are due now: as many in flight as there are requests
        return {"levels": {"concurrency": [options["requests"]]}}
    numbers = _numbers("concurrency", concurrency, problems)
    if any(number % 1 or number > MOST_IN_FLIGHT for number in numbers):
        problems.append(Problem(f"--concurrency {concurrency!r}: whole numbers of at most {MOST_IN_FLIGHT:,}"))
        return {}
    return {"levels": {"concurrency": [int(number) for number in numbers]}} if numbers else {}


def _numbers(option: str, text: str, problems: list[Problem]) -> list[float]:
    """``1,2,4``: numbers above 0, each once."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [math.nan]
    if not all(0 < number < math.inf for number in found):
        problems.append(Problem(f"--{option} {text!r}: give a number above 0, or several like 1,2,4"))
        return []
    return list(dict.fromkeys(found))


def _at_most(rate: float, options: dict[str, Any], problems: list[Problem]) -> None:
    """A schedule is written before the start: it has to fit into memory."""
    seconds = sum(_seconds(name, options[name], []) or 0.0 for name in ("duration", "warmup"))
    count = options["requests"] or rate * seconds
    if count > MOST_REQUESTS:
        problems.append(Problem(f"these are {count:,.0f} requests; one run sends at most {MOST_REQUESTS:,}"))


def _slos(text: str | None, problems: list[Problem]) -> dict[str, Any]:
    from orchestrator.analysis.slo import limits_of, parse_slo

    if text is None:
        return {}
    try:
        slo = parse_slo(text)
    except ProblemsError as error:
        problems += error.problems
        return {}
    limits = {name: f"{seconds!r}s" for name, seconds in limits_of(slo).items()}
    return {"slo": limits | {"attainment": slo.attainment}}


def _workloads(options: dict[str, Any], problems: list[Problem]) -> list[dict[str, Any]]:
    length, file, api = options["input_tokens"], options["prompt_file"], options["api"]
    if (length is None) == (file is None):
        problems.append(Problem("give one of --input-tokens (random prompts) and --prompt-file"))
        return []
    content = {"kind": "random", "input_tokens": length}
    if file is not None:
        content = {"kind": "file", "prompts": str(Path(file).absolute())}
    named = {"name": "load", "api": api if api in ("completions", "chat", "tgi") else "native"}
    return [named | content | {"output_tokens": options["output_tokens"]}]


def _url(url: str, problems: list[Problem]) -> str:
    """Without the /v1 that people paste: paths of the APIs hold it already."""
    from orchestrator.load.requests import parse_url

    base = url.rstrip("/")
    if path := next((path for path in _API_PATHS if base.endswith(path)), None):
        base = base.removesuffix(path).removesuffix("/v1")
        problems.append(
            Problem(f"{url} is the path of one API: give the server's address, {base}, and choose by --api")
        )
    base = base.removesuffix("/v1")
    try:
        parse_url(base)
    except InputError as error:
        problems.append(Problem(str(error)))
    return base


def _seconds(option: str, text: str | None, problems: list[Problem]) -> float | None:
    from orchestrator.spec.load import parse_duration

    try:
        seconds = None if text is None else parse_duration(text)
        if seconds is None or math.isfinite(seconds):
            return seconds
        raise ValueError(f"{text!r} never ends")
    except ValueError as error:
        problems.append(Problem(f"--{option}: {error}"))
        return None


def _api_key(name: str | None, problems: list[Problem]) -> str | None:
    if name is None:
        return None
    key = os.environ.get(name)
    if not key:
        problems.append(Problem(f"--api-key-env: the environment variable {name!r} is not set"))
    elif not key.isascii() or any(char.isspace() for char in key):
        problems.append(Problem(f"--api-key-env: the value of {name!r} holds characters that no HTTP header may hold"))
    return key


def _headers(texts: Sequence[str], problems: list[Problem]) -> tuple[tuple[str, str], ...]:
    """``NAME: VALUE`` each, with ``${VARIABLE}`` filled in from the environment. No value is ever said."""
    from orchestrator.load.requests import header_problem

    found = []
    for text in texts:
        name, _, value = (part.strip() for part in text.partition(":"))
        missing = [one for one in _VARIABLE.findall(value) if one not in os.environ]
        filled = _VARIABLE.sub(lambda one: os.environ.get(one[1], ""), value)
        if missing:
            problems.append(Problem(f"--header {name}: the environment variable {missing[0]!r} is not set"))
        elif problem := header_problem(name, filled):
            problems.append(Problem(f"--header: {problem}"))
        found.append((name, filled))
    return tuple(found)


def _extra_body(text: str | None, problems: list[Problem]) -> dict[str, Any]:
    try:
        extra = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        problems.append(Problem(f"--extra-body is no JSON: {error}"))
        return {}
    if not isinstance(extra, dict):
        problems.append(Problem("--extra-body must be a JSON object"))
        return {}
    return extra


def _tokenizer(path: str | None, problems: list[Problem]) -> str | None:
    from orchestrator.load.workloads.content import load_tokenizer

    if path is None:
        return None
    try:
        load_tokenizer(path)
    except InputError as error:
        problems.append(Problem(f"--tokenizer: {error}"))
        return None
    return str(Path(path).absolute())
