"""``orchestrator load``: measures any endpoint in one line, without a cluster."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from orchestrator.base.errors import InputError, OrchestratorError, Problem, ProblemsError
from orchestrator.cli.command import CliCommand
from orchestrator.cli.numbers import Number, WholeNumber
from orchestrator.spec.load import MOST_CLIENTS, PRESETS

if TYPE_CHECKING:
    from orchestrator.cli.load_options import LoadOptions, ParsedLoad
    from orchestrator.load.point import Target
    from orchestrator.plan.model import Plan
    from orchestrator.report.documents.level import LevelDocument
    from orchestrator.results.store import Store
    from orchestrator.spec.address import ServerAddress
    from orchestrator.spec.dialect import Dialect
    from orchestrator.sweep.attempt import Attempt
    from orchestrator.sweep.detect_dialect import EndpointDialect, ModelListing
    from orchestrator.sweep.endpoint import EndpointRun

_CLIENTS = WholeNumber(1, MOST_CLIENTS)
_COUNT = WholeNumber(min=1)
_SEED = WholeNumber(0, 2**63 - 1)
_FACTOR = Number(1e-9, 1e9)
SLOW_S = 10.0  # after so long without a first answer, the user is told
EXAMPLES = """
\b
Examples:
  orchestrator load http://127.0.0.1:8000 --rate 4 --duration 60s \\
      --input-tokens 512 --output-tokens 128
  orchestrator load http://127.0.0.1:8000 --find-capacity \\
      --slo "ttft<=500ms,attainment>=95%" \\
      --input-tokens 512 --output-tokens 128
"""
DETAILS = """
\b
More examples:
  orchestrator load http://127.0.0.1:8000 --concurrency 8,32,128 \\
      --requests 500 --input-tokens 512 --output-tokens 128 \\
      --slo "ttft<=500ms,tpot<=50ms"
  orchestrator load https://host/v1 --model M --api chat --api-key-env MY_KEY \\
      --rate 2 --requests 100 --input-tokens 200 --output-tokens 200 \\
      --tokenizer ./tokenizer.json --format json
  orchestrator load http://127.0.0.1:8000 --concurrency 8 --requests 500 \\
      --prompts prompts.jsonl --output-tokens 256
  orchestrator load http://127.0.0.1:8000 --rate 2 --duration 5m --turns 4 \\
      --think-time 2s --shared-prefix 500x8 --input-tokens 100+-60 \\
      --output-tokens 50:300
  orchestrator load http://127.0.0.1:8000 --trace mooncake.jsonl --speed-up 2

\b
Before and after a change, in one table:
  orchestrator load http://127.0.0.1:8000 --concurrency 8,32 --duration 60s \\
      --input-tokens 512 --output-tokens 128 --results runs/ --name before
  (the same again with --name after)
  orchestrator results runs/

LENGTH is a number of tokens, 100:300 (uniform) or 200+-50 (log-normal: mean and standard deviation).

--find-capacity searches requests per second, or with --concurrency requests in flight. --rate R and --concurrency N
then say where the search begins.

\b
A prompt file holds one prompt per line as text, JSON (one object per line, or
all in one array), or is a table (CSV, Parquet) with a row per prompt; it may be
gzipped. An object or row has one of
  "prompt"          the text
  "messages"        OpenAI's; sent up to the user's last message
  "conversations"   ShareGPT's; the user's first message is sent
  "input_length"    a trace's; random tokens, with "hash_ids" for equal blocks
                    of 512 or 16

and may have "output_tokens" or "max_tokens", and sampling: "temperature", "top_p", "stop", "seed" ... Other keys that
would change a request are refused. A trace also has "timestamp". It is also the prompt file if you give neither
--prompts nor --input-tokens. With --output-tokens file an answer gets the length of the recorded one.

A published trace of lengths (Azure, BurstGPT, Mooncake, Bailian, WEKA) as --trace is sent with its sessions and random
tokens, at its recorded times. With --rate or --find-capacity these are stretched to the rate, as --arrivals trace does
with those of a --workload.

Latencies count from when a request was due, even if it was sent late. Failed requests are counted.

Exit status: 0 all requests ok and all levels valid; 3 some failed, a level has no valid measurement, or
--find-capacity could neither confirm nor estimate one; 2 bad input, 1 internal error, 130 interrupted.
"""
SECTIONS = {  # of the help: by the first option of a section, its title
    "model": "Endpoint",
    "rate": "Load",
    "workload": "Workload",
    "slo_text": "Limits and output",
}
COMMON = (  # what the short help shows; --help-all shows all
    *("model", "api", "api_key_env", "rate", "concurrency", "find_capacity", "requests"),
    *("duration", "workload", "input_tokens", "output_tokens", "prompts", "slo_text"),
    *("results", "name", "form"),
)
OTHER_NAMES = {
    "--base-url": "the address as the argument, like orchestrator load http://127.0.0.1:8000",
    "--url": "the address as the argument, like orchestrator load http://127.0.0.1:8000",
    "--goodput": '--slo "ttft<=500ms"',
    "--qps": "--rate",
    "--max-concurrency": "--concurrency",
    "--num-prompts": "--requests",
    "--num-requests": "--requests",
    "--slos": "--slo",
    "--search": "--find-capacity",
    "--levels": "--rate or --concurrency, like --rate 1,2,4",
    "--timeout": "--request-timeout",
    "--prompt-file": "--prompts",
    "--dataset-path": "--prompts",
    "--dataset-name": "--dataset ID, or --preset NAME",
    "--offline": "--rate inf, with --requests: all at once",
    "--burstiness": "--arrivals gamma:SHAPE, like --arrivals gamma:0.5",
    "--control": "--rate R or --concurrency N beside --find-capacity: where the search begins",
    "--prefix-tokens": "--shared-prefix TOKENS, like --shared-prefix 500",
    "--prefix-count": "--shared-prefix TOKENSxCOUNT, like --shared-prefix 500x8",
    "--shared-prefix-tokens": "--shared-prefix TOKENS, like --shared-prefix 500",
    "--shared-prefix-count": "--shared-prefix TOKENSxCOUNT, like --shared-prefix 500x8",
    "--output": "--format json > FILE; --results URI keeps every request",
    "--warmup-requests": "--warmup COUNTreq, like --warmup 100req",
}


@click.command(
    cls=CliCommand,
    common=COMMON,
    sections=SECTIONS,
    examples=EXAMPLES,
    details=DETAILS,
    other_names=OTHER_NAMES,
)
@click.argument("url")
@click.option("--model", metavar="NAME", help="Default: the only model that it lists.")
@click.option(
    "--api",
    type=click.Choice(["completions", "chat", "tgi", "sglang"]),
    default="completions",
    help="Default: completions, or that of URL's path.",
)
# URL says the usual paths itself. Of http://host/v2/complete it cannot be told whether this is an
# API's path or precedes /v1/completions, and where the models are listed.
@click.option(
    "--endpoint",
    metavar="PATH",
    help="Path of the API on URL's server, if it is an unusual one, like /v2/complete.",
)
@click.option("--api-key-env", metavar="NAME", help="Environment variable that holds the key.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME:VALUE",
    help="Also send this header; ${VARIABLE} is filled in.",
)
@click.option(
    "--extra-body",
    metavar="JSON",
    help="Add these fields to every request body; null removes a field.",
)
@click.option("--insecure", is_flag=True, help="Do not check the TLS certificate.")
@click.option(
    "--request-timeout",
    metavar="TIME",
    default="600s",
    show_default=True,
    help="Time limit of one request.",
)
@click.option(
    "--rate",
    "--request-rate",
    "rate",
    metavar="R[,R…]",
    help="Open loop: requests/s; inf: all --requests at once.",
)
@click.option(
    "--concurrency",
    metavar="N[,N…]",
    help="Closed loop: requests kept in flight.",
)
@click.option("--find-capacity", is_flag=True, help="Search for the highest load that holds --slo.")
@click.option(
    "--budget",
    metavar="TIME",
    help=(
        "How long --find-capacity may search; docs/explained/capacity-search.md says what comes of "
        "it. Default: 10m."
    ),
)
@click.option(
    "--precision",
    type=Number(0.01, 1),
    metavar="SHARE",
    help=(
        "--find-capacity ends when the lowest level that fails is at most so much above the "
        "claim. Default: 0.15."
    ),
)
@click.option(
    "--trace",
    metavar="FILE",
    help="Open loop: send at the times of this file.",
)
@click.option(
    "--spread",
    metavar="TIME",
    help="Of --trace: how far its time stamps are apart, as 1s; requests of one are spread over it.",
)
@click.option(
    "--speed-up",
    type=_FACTOR,
    metavar="FACTOR",
    help="Of --trace: how many times as fast; 1000 for prompts whose times are milliseconds.",
)
@click.option(
    "--arrivals",
    metavar="NAME",
    help="Of --rate: constant, poisson, gamma:SHAPE (1 is Poisson, less comes in bursts) or trace "
    "(the recorded times of --trace, or of --workload, also without --rate). Default: trace for "
    "--trace, else poisson.",
)
@click.option(
    "--max-in-flight",
    type=_COUNT,
    metavar="N",
    help="Cap for --rate: due requests wait, and latency counts it.",
)
@click.option("--requests", type=_COUNT, metavar="N", help="Send this many requests.")
@click.option(
    "--duration",
    metavar="TIME",
    help="Send for this long, like 30s; of a search: the longest probe.",
)
@click.option(
    "--warmup",
    metavar="TIME|COUNTreq",
    help="10s: requests due in this time do not count. 100req: send so many before each level, not "
    "measured. Default: until the run is steady.",
)
# No key of a file: a level that ends so is `interrupted`, which no sweep wants. It is for somebody who
# waits for a server that refuses everything (docs/explained/architecture.md).
@click.option(
    "--max-errors",
    type=_COUNT,
    metavar="N",
    help="Stop when this many requests of a level failed; with several clients, about so many.",
)
@click.option(
    "--clients",
    type=_CLIENTS,
    metavar="N",
    default=1,
    show_default=True,
    help="Client processes on this machine.",
)
@click.option(
    "--workload",
    metavar="FILE[:NAME]",
    help="A workload of an experiment file, with its API.",
)
@click.option(
    "--preset",
    type=click.Choice(PRESETS.names()),
    help="A usual workload, with its API: `orchestrator workload show` says what it holds.",
)
@click.option(
    "--input-tokens",
    metavar="LENGTH",
    help="Of random prompts: 200, 100:300 or 200+-50.",
)
@click.option(
    "--shared-prefix",
    metavar="TOKENS[xCOUNT]",
    help="Begin prompts with one prefix, or 500x8: with one of 8 prefixes of 500 tokens.",
)
@click.option("--turns", type=_COUNT, metavar="N", help="Hold conversations of this many requests.")
@click.option("--think-time", metavar="TIME", help="Pause between an answer and the next turn.")
@click.option("--prompts", metavar="FILE", help="Take prompts from this file.")
@click.option(
    "--dataset",
    metavar="ID[@REV][:SPLIT]",
    help="Take prompts from this dataset of the Hugging Face hub.",
)
@click.option(
    "--output-tokens",
    metavar="LENGTH",
    help="Of answers, written like --input-tokens. file: as recorded in --prompts.",
)
@click.option(
    "--natural-lengths",
    is_flag=True,
    help="Let the model end its answers, at --output-tokens at most.",
)
@click.option(
    "--images",
    metavar="N@WxH[,WxH…]",
    help="Put so many pictures of these sizes (pixels) before each random prompt; for --api chat.",
)
@click.option(
    "--adapter",
    multiple=True,
    metavar="NAME",
    help="Ask for this LoRA adapter of the endpoint. Several: sessions choose among them.",
)
@click.option(
    "--json-schema",
    metavar="FILE",
    help="Constrain answers to instances of this JSON schema, and check them.",
)
@click.option("--regex", metavar="PATTERN", help="Constrain answers to matches of PATTERN.")
@click.option(
    "--choice", multiple=True, metavar="TEXT", help="Constrain answers to one of these texts."
)
@click.option(
    "--tokenizer", metavar="PATH", help="Folder or tokenizer.json: text prompts of exact length."
)
@click.option(
    "--seed",
    type=_SEED,
    metavar="N",
    help=(
        "Seed of prompts and arrivals. Default: random and printed, or that of a stored search "
        "that goes on."
    ),
)
@click.option("--slo", "slo_text", metavar="SLO", help="Report how many requests met these limits.")
@click.option("--results", metavar="URI", help="Store Parquet here, for `results`, `best`.")
@click.option(
    "--name",
    metavar="NAME",
    help="Of this run in --results, like before. Default: the time.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    show_default=True,
)
def load(url: str, results: str | None, form: str, clients: int, **given: Any) -> int:
    """Measure the running server at URL."""
    from orchestrator.cli.load_options import LoadOptions
    from orchestrator.results.pandas_hook import leave_pandas_out
    from orchestrator.spec.address import with_scheme

    leave_pandas_out()
    url = with_scheme(url)
    if results is not None:
        from orchestrator.results.location import check_answers

        check_answers(results)
    if given["workload"] is not None:
        given["api"] = _api_of_workload(given["workload"], given["api"])
    elif given["preset"] is not None:
        given["api"] = api_of_preset(given["preset"], given["api"])
    given["api"] = api_of_url(url, given["api"])
    options = LoadOptions(results=results, **given)
    planned = _planned(url, options)
    plan = planned.plan
    target = planned.target
    detected = planned.detected
    notes = [*detected.notes, *_notes_on(plan, target)]
    if options.find_capacity:
        from orchestrator.cli.find_capacity import show_capacity

        return show_capacity(plan, target, detected, notes, results, form, clients)
    from orchestrator.report.text import echo
    from orchestrator.results.store import Store
    from orchestrator.sweep.endpoint import runs_of

    with ExitStack() as at_end:
        uri = results
        if uri is None and form == "csv":  # CSV is made from stored points
            uri = at_end.enter_context(tempfile.TemporaryDirectory(prefix="load-"))
        store = None if uri is None else Store.open(uri, plan.name)
        runs = runs_of(plan, target, detected, store)
        repeat = max(run.measurement.repeat for run in runs)
        if repeat > 0:
            notes.append(
                f"{plan.name} is stored with the same options: this adds repeat {repeat + 1}"
            )
        for note in notes:
            echo(f"note: {note}", err=True)
        return _measure_levels(runs, notes, _Output(form, results, store), clients, options)


def _api_of_workload(place: str, api: str) -> str:
    """The API of the workload ``FILE[:NAME]``, unless ``--api`` is given."""
    from orchestrator.cli.workload_file import workload_at

    source = click.get_current_context().get_parameter_source("api")
    if source is not ParameterSource.DEFAULT:
        return api
    named = workload_at(place).api
    return "sglang" if named == "native" else named


def api_of_preset(name: str, api: str) -> str:
    """The API of a preset, unless ``--api`` is given."""
    source = click.get_current_context().get_parameter_source("api")
    if source is not ParameterSource.DEFAULT:
        return api
    return str(PRESETS[name].keys.get("api", api))


def api_of_url(url: str, api: str) -> str:
    """The API: that of ``--api``, or the one whose path was pasted as the address.

    Raises InputError where both are given and differ.
    """
    from orchestrator.spec.address import parse_address

    try:
        address = parse_address(url)
    except ValueError:  # reported with the other problems
        return api
    if address.api is None or address.api == api:
        return api
    source = click.get_current_context().get_parameter_source("api")
    if source is ParameterSource.DEFAULT:
        return address.api
    raise InputError(
        f"{url} is the path of --api {address.api}: leave out --api {api}, or give the server's"
        f" address, {address.base}"
    )


@dataclass(frozen=True, slots=True)
class _Output:
    """Where measured levels go: they are printed in ``form``, and stored if there is a ``store``.

    ``results``: the place that the user named for them; None: none was named.
    """

    form: str
    results: str | None
    store: Store | None


@dataclass(slots=True)
class Outcome:
    """What came of the levels so far."""

    failed_requests: int = 0
    has_invalid_level: bool = False
    interrupted: bool = False
    storing_error: OrchestratorError | None = None  # the latest that kept a level unstored

    def add(self, level: _MeasuredLevel, is_stopped: bool) -> None:
        """Adds a level. ``is_stopped``: whether the user has ended the command by now."""
        from orchestrator.results.validity import MEASURED

        self.failed_requests += level.failed_requests
        if level.attempt.verdict.validity not in MEASURED:
            self.has_invalid_level = True
        self.interrupted = level.attempt.interrupted and is_stopped

    def exit_status(self) -> int:
        """The exit status of the command. Raises the error that prevented storing a level."""
        from orchestrator.cli.signals import INTERRUPTED

        if self.storing_error is not None:
            raise self.storing_error
        if self.interrupted:
            return INTERRUPTED
        return 3 if self.failed_requests or self.has_invalid_level else 0


def _measure_levels(
    runs: Sequence[EndpointRun],
    notes: Sequence[str],
    output: _Output,
    clients: int,
    options: LoadOptions,
) -> int:
    """Measures one level after the other; figures are shown, and stored, as they come.

    Returns the exit status.
    """
    from orchestrator.cli.load_options import warm_up_requests
    from orchestrator.cli.signals import stops
    from orchestrator.workloads.repeats import PromptRepeats

    if output.store is not None:
        output.store.check_writable()
        output.store.check_not_simulated()
    # read now, because a prompt file may be gone afterwards
    repeats = PromptRepeats(runs[0].point.workload, runs[0].load.dialect.cache_salt)
    documents: list[LevelDocument] = []
    is_table = output.form == "table"
    # stderr has the notes already: if both go to one place, the table does not repeat them
    kept_notes = [] if is_table and outputs_are_one() else notes
    stop = threading.Event()
    outcome = Outcome()
    warm_up_count = warm_up_requests(options.warmup)

    with ExitStack() as at_end, stops(stop):
        # even when a level fails: the levels before it must not be lost
        at_end.callback(_show_all, runs, documents, output)
        for run in runs:
            if warm_up_count and not stop.is_set():
                repeats.add_warm_up(run.warm_up(warm_up_count, clients, stop.is_set))
            if stop.is_set():
                outcome.interrupted = True
                number = len(documents) + 1
                _echo_note(f"interrupted before level {number} of {len(runs)}")
                break
            level = _measured(run, clients, stop, options.max_errors)
            outcome.add(level, stop.is_set())
            level_notes = repeats.add_level(level.sent_requests)
            if outcome.interrupted:
                level_notes = [*level_notes, "interrupted: run again for all of it"]
            if not is_table:  # a table has these notes itself
                for note in level_notes:
                    _echo_note(note)
            all_notes = [*kept_notes, *level_notes]
            documents.append(
                document_of_level(run, clients, level.attempt, all_notes, output.results)
            )
            # shown before it is stored: storing may take long, and a full disk must not cost it
            if len(runs) == 1:
                _show_one(documents[0], output.form)
            error = _store(run, level.attempt, output.store)
            if error is not None:
                outcome.storing_error = error
            if options.max_errors is not None and level.failed_requests >= options.max_errors:
                remaining = len(runs) - len(documents)
                if remaining:
                    _echo_note(f"{remaining} more levels are not measured (--max-errors)")
                break
    return outcome.exit_status()


def _echo_note(text: str) -> None:
    click.echo(f"note: {text}", err=True)


def _show_one(document: LevelDocument, form: str) -> None:
    """Prints the only level of a command, as soon as it is measured."""
    from orchestrator.report.as_json import level_json
    from orchestrator.report.formats import json_text
    from orchestrator.report.load_summary import run_text
    from orchestrator.report.text import echo

    if form == "json":
        click.echo(json_text(level_json(document)))
    elif form == "table":
        echo("\n".join(run_text(document)))


def _show_all(
    runs: Sequence[EndpointRun], documents: Sequence[LevelDocument], output: _Output
) -> None:
    """Prints all measured levels together, unless ``_show_one`` printed the only one."""
    from orchestrator.report.as_json import level_json
    from orchestrator.report.formats import json_text
    from orchestrator.report.load_runs import stored_csv
    from orchestrator.report.load_summary import runs_text
    from orchestrator.report.text import echo

    if not documents:
        return
    if output.form == "csv":
        assert output.store is not None
        measured = {run.measurement.measurement_id for run in runs[: len(documents)]}
        click.echo(stored_csv(output.store, measured), nl=False)
    elif len(runs) > 1 and output.form == "json":
        click.echo(json_text([level_json(document) for document in documents]))
    elif len(runs) > 1:
        echo("\n".join(runs_text(documents)))


def _store(run: EndpointRun, attempt: Attempt, store: Store | None) -> OrchestratorError | None:
    """Stores a level if there is a store. Returns the error that prevented it, if any."""
    if store is None:
        return None
    try:
        run.commit(store, attempt)
    except OrchestratorError as error:
        return error
    return None


def outputs_are_one() -> bool:
    """Whether stdout and stderr are one terminal, file or pipe."""
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (OSError, ValueError):  # a stream is closed, or is no file, as in tests
        return False


@dataclass(frozen=True, slots=True)
class _MeasuredLevel:
    attempt: Attempt
    sent_requests: int
    failed_requests: int


def _measured(
    run: EndpointRun, clients: int, stop: threading.Event, max_errors: int | None
) -> _MeasuredLevel:
    """Measures a level. It ends early if ``max_errors`` requests failed or the user stops it."""
    from orchestrator.report.live import live_load
    from orchestrator.sweep.endpoint import measure_here

    point = replace(run.load, max_errors=max_errors)
    with live_load() as progress:
        attempt = measure_here(point, clients, progress, stop.is_set, progress.drawn)
    assert attempt.loaded
    requests = attempt.loaded.requests
    statuses = requests["status"].value_counts().to_pylist()
    failed = sum(status["counts"] for status in statuses if status["values"] != "ok")
    if attempt.interrupted and max_errors is not None and failed >= max_errors:
        reason = f"{failed} requests failed: the rest was not sent (--max-errors {max_errors})"
        verdict = replace(attempt.verdict, reasons=[reason, *attempt.verdict.reasons])
        attempt = replace(attempt, verdict=verdict)
    return _MeasuredLevel(attempt, requests.num_rows, failed)


def document_of_level(
    run: EndpointRun, clients: int, attempt: Attempt, notes: Sequence[str], results: str | None
) -> LevelDocument:
    """What was measured at one level, with the seed that repeats it."""
    from orchestrator.report.documents.level import LevelSource, MeasuredLevel, level_document

    loaded = attempt.loaded
    assert loaded
    measured = MeasuredLevel(
        point=loaded.cut(run.load),
        clients=clients,
        requests=loaded.requests,
        token_events=loaded.token_events,
        stats=loaded.stats,
        verdict=attempt.verdict,
    )
    source = LevelSource(
        seed=run.plan.seed,
        repeat=run.measurement.repeat,
        emulated=run.emulated,
        cache_state=loaded.cache,
        notes=tuple(notes),
        results=results,
        name=None if results is None else run.plan.name,
    )
    return level_document(measured, source, run.plan.slos)


@dataclass(frozen=True, slots=True)
class _Planned:
    """What is measured, at which endpoint, and how to talk to it."""

    plan: Plan
    target: Target
    detected: EndpointDialect


def _planned(url: str, options: LoadOptions) -> _Planned:
    """What these options ask for, and how to talk to the endpoint.

    Raises ProblemsError with everything that is wrong, before anything is sent.
    """
    from orchestrator.cli.load_options import (
        dialects_of,
        options_digest,
        parse_load,
        target_of,
    )
    from orchestrator.spec.address import parse_address
    from orchestrator.sweep.detect_dialect import (
        constraining,
        list_models,
        only_model,
        salted_first,
    )

    problems: list[Problem] = []
    target = target_of(url, options, problems)
    candidates = dialects_of(options, problems)
    parsed = parse_load(target.url, options, problems)
    prompts_option = "--trace" if options.prompts is None else "--prompts"
    plan = plan_of_options(parsed, target.model or "unknown", problems, prompts_option)
    if problems:
        raise ProblemsError(problems)
    address = parse_address(url, options.endpoint)
    listing = list_models(target, address)
    if not target.model:
        bases = listing if plan is None else listing.without(plan.loads[0].workload.adapter_names())
        target = replace(target, model=only_model(target, bases, options.api_key_env))
        plan = plan_of_options(parsed, target.model, problems, prompts_option)
    if plan is None:  # what the server calls its model is no name of a model
        raise ProblemsError(problems)
    plan = _of_this_run(plan, options_digest(parsed, options), options)
    owner = (listing.owners or {}).get(target.model, "")
    settings = plan.deployments[0].settings
    candidates = salted_first(constraining(candidates, owner, settings), owner, settings)
    detected = _detected(plan, target, candidates, address, listing, options.api_key_env)
    note = listing.note_on(target.model)
    if note:
        detected = replace(detected, notes=(*detected.notes, note))
    return _Planned(plan, target, detected)


def _detected(
    plan: Plan,
    target: Target,
    candidates: Sequence[Dialect],
    address: ServerAddress,
    listing: ModelListing,
    key_name: str | None,
) -> EndpointDialect:
    """Finds out how to talk to the endpoint. The user is told if its first answer takes long."""
    from orchestrator.sweep.detect_dialect import TrialFailed, detect_dialect

    tokenizer = plan.deployments[0].settings.tokenizer
    timeout_s = plan.loads[0].request_timeout_s
    waiting = (
        "its first answer takes long; it may be loading its model (--request-timeout limits this)"
    )
    slow = threading.Timer(SLOW_S, _echo_note, [waiting])
    slow.daemon = True
    slow.start()
    try:
        return detect_dialect(target, candidates, tokenizer, timeout_s, address, key_name)
    except TrialFailed as error:
        if listing.owners is None or target.model in listing.owners:
            raise
        unknown = f"it lists {listing.names}, not {target.model!r}"
        raise TrialFailed(f"{error}; {unknown}", error.status) from None
    finally:
        slow.cancel()


def _of_this_run(plan: Plan, digest: str, options: LoadOptions) -> Plan:
    """The plan with the digest of its options.

    Raises InputError where ``--name`` is that of a stored run which asked for something else.
    """
    from orchestrator.cli.load_options import stored_plan
    from orchestrator.results.store import Store

    plan = plan.model_copy(update={"load_options": digest})
    if options.name is None or options.results is None:
        return plan
    if Store.open(options.results, options.name).plan() is None:
        return plan
    stored = stored_plan(options.results, options.name)
    if stored is not None and plan.asks_the_same(stored):
        return plan
    raise InputError(
        f"--name {options.name}: {options.results} holds another run of this name (other"
        " options, files, model or version): give another --name, or the same options to add a "
        "repeat"
    )


def _notes_on(plan: Plan, target: Target) -> Iterator[str]:
    """Notes on consequences of the options that the user may not expect."""
    from orchestrator.plan.loads import note_on_rounds

    (load,) = plan.loads
    yield from load.workload.notes(timed=load.arrivals.process == "trace")
    on_rounds = note_on_rounds(load)
    if on_rounds is not None:
        yield on_rounds
    if not target.verify_tls:
        yield (
            f"nobody checked the certificate of {target.url} (--insecure): anyone could have "
            "answered"
        )
    if load.arrivals.process == "trace" and load.requests and load.levels:
        yield (
            f"{load.requests:,} requests of the trace, due within "
            f"{(load.requests - 1) / load.levels[0].value:,.1f} s"
        )


def plan_of_options(
    parsed: ParsedLoad, model: str, problems: list[Problem], prompts_option: str
) -> Plan | None:
    """The plan of these options; None, and problems, where they allow none.

    ``prompts_option``: the option that named the file of prompts.
    """
    from orchestrator.cli.option_words import in_options
    from orchestrator.plan.make import make_plan

    if not parsed.can_be_planned:
        return None
    try:
        return make_plan(parsed.experiment(model))
    except ProblemsError as error:
        # dict.fromkeys: a file with both times and prompts would be reported twice
        problems += dict.fromkeys(in_options(problem, prompts_option) for problem in error.problems)
        return None
