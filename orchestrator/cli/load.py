"""``orchestrator load``: measure any endpoint in one line, without a cluster."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.errors import InputError, Problem, ProblemsError
from orchestrator.spec.units import MOST_TOKENS

if TYPE_CHECKING:
    from orchestrator.load.point import LoadPoint
    from orchestrator.load.probe import Probed
    from orchestrator.spec.load import Workload

EXAMPLES = """
\b
Examples:
  orchestrator load http://127.0.0.1:8000 --model M --rate 4 --duration 60s --input-tokens 512 --output-tokens 128
  orchestrator load http://127.0.0.1:8000 --concurrency 32 --requests 500 --input-tokens 512 --output-tokens 128
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
@click.option("--concurrency", type=click.IntRange(min=1), help="Closed loop: requests kept in flight.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Open loop: requests per second.")
@click.option("--arrivals", default="poisson", show_default=True, help="constant, poisson or gamma (open loop).")
@click.option(
    "--burstiness", type=click.FloatRange(min=0, min_open=True), default=1.0, help="Gamma shape; 1 = Poisson."
)
@click.option("--requests", type=click.IntRange(min=1), help="Stop after so many requests.")
@click.option("--duration", help="Stop after so long, like 30s.")
@click.option("--warmup", default="0s", show_default=True, help="Requests due in it are rows but no figures.")
@click.option("--input-tokens", type=click.IntRange(1, MOST_TOKENS), help="Of random prompts.")
@click.option("--prompt-file", metavar="FILE", help="A prompt per line, or JSONL: prompt, perhaps output_tokens.")
@click.option("--output-tokens", type=click.IntRange(1, MOST_TOKENS), required=True)
@click.option("--api", type=click.Choice(["completions", "chat", "tgi", "llama_cpp", "sglang"]), default="completions")
@click.option("--tokenizer", type=click.Path(), help="Folder or tokenizer.json: text prompts of exact length.")
@click.option("--clients", type=click.IntRange(min=1), default=1, show_default=True, help="Local client processes.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--max-in-flight", type=click.IntRange(min=1), help="Due requests wait beyond it; latency says so.")
@click.option("--timeout", default="600s", show_default=True, help="Of one request.")
@click.option("--api-key-env", metavar="NAME", help="Environment variable that holds the key.")
@click.option("--extra-body", metavar="JSON", help="Fields added to every request.")
@click.option("--results", metavar="URI", help="Also store Parquet there, for results, best and report.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
def load(url: str, results: str | None, form: str, clients: int, **options: Any) -> int:
    """Load the endpoint at URL and print what its users would have felt."""
    from orchestrator.cli.load_output import Watch, document, print_document
    from orchestrator.load.light import leave_pandas_out
    from orchestrator.load.local import run_local

    leave_pandas_out()
    point, probed = _point(url, options)
    store = None
    if results is not None:
        from orchestrator.cli.load_results import open_store

        store = open_store(results)
    for note in probed.notes:
        click.echo(f"note: {note}", err=True)
    prompts = _prompts(point)
    with Watch(point) as watch:
        requests, token_events, stats, verdict = run_local(point, clients, watch.on_progress)
    notes = [*probed.notes, *_repeats(prompts, len(requests))]
    for note in notes[len(probed.notes) :]:
        click.echo(f"note: {note}", err=True)
    found = document(point, clients, requests, token_events, stats, verdict, notes)
    print_document(found | {"results": results}, form)  # before storing: a full disk must not cost the answer
    if store is not None:
        from orchestrator.cli.load_results import write

        write(store, point, options["api_key_env"], requests, token_events, stats, verdict)
    return 3 if found["requests_all_phases"]["failed"] else 0


def _point(url: str, options: dict[str, Any]) -> tuple[LoadPoint, Probed]:
    """The point of these options. Raises ProblemsError with everything that is wrong, before anything is sent."""
    problems: list[str] = []
    point = _checked(url, options, problems)
    if point is None:
        raise ProblemsError([Problem(problem) for problem in problems])
    from orchestrator.load.probe import dialects, list_models, probe

    target = point.targets[0]
    models = list_models(target)
    if not target.model:
        target = replace(target, model=_only_model(url, models))
    elif models is not None and target.model not in models:
        raise InputError(f"{url} does not serve {target.model!r}; it lists: {', '.join(models) or 'nothing'}")
    extra = point.dialect.extra_body
    candidates = [replace(dialect, extra_body=extra) for dialect in dialects(options["api"])]
    probed = probe(target, candidates, point.tokenizer)
    point = replace(point, targets=(target,), dialect=probed.dialect, vocabulary=probed.vocabulary)
    return replace(point, count_text=not probed.counts and point.tokenizer is not None), probed


def _prompts(point: LoadPoint) -> int | None:
    """How many the file has, before anything is measured: it may be gone afterwards. None without a file."""
    if point.workload.prompts is None:
        return None
    from orchestrator.load.workloads.file import summary

    return summary(point.workload.prompts).prompts


def _repeats(prompts: int | None, requests: int) -> list[str]:
    """What a user should know who sent the same prompts several times."""
    if prompts is None or requests <= prompts:
        return []
    times = -(-requests // prompts)
    return [f"{requests} requests of {prompts} prompts: each sent up to {times} times; a prefix cache answers faster"]


def _only_model(url: str, models: list[str] | None) -> str:
    if models is None or len(models) != 1:
        raise InputError(f"{url} lists {', '.join(models or []) or 'no models'}: name one with --model")
    return models[0]


def _checked(url: str, options: dict[str, Any], problems: list[str]) -> LoadPoint | None:
    """The point as far as it is known without asking the endpoint; None when there are problems."""
    from orchestrator.load.point import LoadPoint, Target
    from orchestrator.load.probe import dialects
    from orchestrator.results.ids import digest, new_ulid

    base = _url(url, problems)
    duration_s = _seconds("--duration", options["duration"], problems)
    warmup_s = _seconds("--warmup", options["warmup"], problems) or 0.0
    timeout_s = _seconds("--timeout", options["timeout"], problems) or 600.0
    if (options["requests"] is None) == (options["duration"] is None):
        problems.append("give one of --requests and --duration")
    level, arrivals = _level(options, problems)
    api_key = _api_key(options["api_key_env"], problems)
    extra = _extra_body(options["extra_body"], problems)
    tokenizer = _tokenizer(options["tokenizer"], problems)
    workload = _workload(options, problems)
    if problems:
        return None
    assert level is not None
    assert arrivals is not None
    assert workload is not None
    point = LoadPoint(
        targets=(Target(base, options["model"] or "", api_key=api_key),),
        dialect=replace(dialects(options["api"])[0], extra_body=extra),
        workload=workload,
        level=level,
        arrivals=arrivals,
        warmup_s=warmup_s,
        duration_s=duration_s,
        requests=options["requests"],
        seed=options["seed"],
        max_in_flight=options["max_in_flight"],
        request_timeout_s=timeout_s,
        tokenizer=tokenizer,
        attempt_id=new_ulid(),
    )
    return replace(point, measurement_id=digest([base, options["model"], workload, level, point.attempt_id]))


def _url(url: str, problems: list[str]) -> str:
    """Without the /v1 that people paste: paths of the APIs hold it already."""
    from orchestrator.load.http import parse_url

    base = url.rstrip("/").removesuffix("/v1")
    try:
        parse_url(base)
    except InputError as error:
        problems.append(str(error))
    return base


def _seconds(option: str, text: str | None, problems: list[str]) -> float | None:
    from orchestrator.spec.units import parse_duration

    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        problems.append(f"{option}: {error}")
        return None


def _level(options: dict[str, Any], problems: list[str]) -> tuple[Any, Any]:
    from orchestrator.load.arrivals import problems as arrivals_problems
    from orchestrator.spec.load import Arrivals, Level

    rate, concurrency = options["rate"], options["concurrency"]
    if (rate is None) == (concurrency is None):
        problems.append("give one of --rate (open loop) and --concurrency (closed loop)")
        return None, None
    arrivals = Arrivals(process=options["arrivals"], burstiness=options["burstiness"])
    if rate is not None:
        problems += [f"--arrivals: {problem}" for problem in arrivals_problems(arrivals)]
        return Level(control="request_rate", value=rate), arrivals
    if options["max_in_flight"] is not None:
        problems.append("--max-in-flight is for --rate; --concurrency is itself the number in flight")
    return Level(control="concurrency", value=concurrency), arrivals


def _workload(options: dict[str, Any], problems: list[str]) -> Workload | None:
    from orchestrator.load.workloads import pinned
    from orchestrator.load.workloads import problems as workload_problems
    from orchestrator.spec.load import Lengths, Workload

    length, file = options["input_tokens"], options["prompt_file"]
    if (length is None) == (file is None):
        problems.append("give one of --input-tokens (random prompts) and --prompt-file")
        return None
    workload = Workload(
        name="load",
        kind="random" if file is None else "file",
        input_tokens=None if length is None else Lengths(fixed=length),
        prompts=None if file is None else str(Path(file).absolute()),
        output_tokens=Lengths(fixed=options["output_tokens"]),
        api=options["api"] if options["api"] in ("completions", "chat", "tgi") else "native",
    )
    wrong = workload_problems(workload)
    problems += [f"--prompt-file: {problem}" for problem in wrong]
    return None if wrong else pinned(workload)


def _api_key(name: str | None, problems: list[str]) -> str | None:
    if name is None:
        return None
    key = os.environ.get(name)
    if not key:
        problems.append(f"--api-key-env: the environment variable {name!r} is not set")
    elif not key.isascii() or any(char.isspace() for char in key):
        problems.append(f"--api-key-env: the value of {name!r} holds characters that no HTTP header may hold")
    return key


def _extra_body(text: str | None, problems: list[str]) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        extra = json.loads(text)
    except json.JSONDecodeError as error:
        problems.append(f"--extra-body is no JSON: {error}")
        return {}
    if not isinstance(extra, dict):
        problems.append("--extra-body must be a JSON object")
        return {}
    return extra


def _tokenizer(path: str | None, problems: list[str]) -> str | None:
    from orchestrator.load.tokens import load_tokenizer

    if path is None:
        return None
    try:
        load_tokenizer(path)
    except InputError as error:
        problems.append(f"--tokenizer: {error}")
    return str(Path(path).absolute())
