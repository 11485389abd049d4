"""``orchestrator run``: runs a sweep on a Ray cluster or on this machine.

It goes from an experiment file, or a frozen plan, to Parquet.
"""

from __future__ import annotations

import math
import shlex
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from orchestrator.base.errors import InputError, Problem, ProblemsError
from orchestrator.base.text import counted
from orchestrator.cli.command import CliCommand
from orchestrator.cli.numbers import WholeNumber, parse_share
from orchestrator.cli.shortlist import ShortlistRequest, limited, shortlist_options
from orchestrator.results.validity import MOST_AGAIN

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.plan.model import Plan
    from orchestrator.report.selection import Answers, JudgedExperiment, RankedExperiments
    from orchestrator.results.store import Store
    from orchestrator.sweep.state import MeasurementCounts, SweepReport

WITHIN = 0.05  # the default of --within
NOTHING_RUNS = (
    "nothing can run: every deployment is impossible or excluded; why: orchestrator plan {file}"
)
EXAMPLES = """
\b
Examples:
  orchestrator run experiments/quickstart.yaml --results results/
  orchestrator run experiments/quickstart.yaml --results results/ \\
      --address local
  orchestrator run plan.json --results s3://bucket/sweeps --address auto

Run the same command again to continue; nothing is measured twice. Ctrl-C and SIGTERM stop the engines and keep what
was measured; a second one ends the program at once.
"""
DETAILS = """
\b
More examples:
  orchestrator run experiments/quickstart.yaml --results results/ \\
      --until decided --within 10%
  orchestrator run experiments/llama70b-parallelism.yaml \\
      --results s3://bucket/sweeps --shortlist 8
  ray job submit --working-dir . -- python -m orchestrator run \\
      experiments/x.yaml --results s3://bucket/sweeps

An experiment can have one active run per results URI; a second one is refused. `orchestrator status URI` shows it, and
`orchestrator stop URI` ends it.

--until decided ends the sweep as soon as nothing that is left to measure can change which deployment is best by more
than --within, under every SLO of the file and for every workload. What decides is what was measured: no level above one
that was shown to fail, no search above it, nothing about a deployment that was not measured. The same command without
--until goes on.

What was disturbed, or slowed down by the network or the clients, is measured again by the next run (--again).

--shortlist N runs the N deployments that may be the best within the error of their predictions (`plan --predict`, or a
simulation: --simulated URI), and says what it leaves out and why. The same command later continues with the same list.

How long to wait for nodes and for a storage that fails, and how many load clients there may be, stands in the
experiment file: placement_timeout, storage_timeout, clients and max_clients.

Exit status: 0 all measured; 3 something asked for has no valid measurement (it failed, was disturbed or invalid, was
left out, or nothing can run); 2 bad input, 1 internal error, 130 interrupted.
"""
COMMON = (
    "results_uri",
    "address",
    "max_nodes",
    "retry_failed",
    "until",
    "within",
    "shortlist_size",
)
OTHER_NAMES = {
    "--clients": "max_clients: N in the experiment file",
    "--max-clients": "max_clients: N in the experiment file",
    "--placement-timeout": "placement_timeout: 15m in the experiment file",
    "--storage-timeout": "storage_timeout: 15m in the experiment file",
}


def _within(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    """The share that an option gives, if it is given. Raises BadParameter as ``parse_share``."""
    return None if text is None else parse_share(text)


@click.command(
    cls=CliCommand,
    common=COMMON,
    examples=EXAMPLES,
    details=DETAILS,
    other_names=OTHER_NAMES,
)
@click.argument("experiment", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--results",
    "results_uri",
    required=True,
    metavar="URI",
    help="A folder, s3://bucket/prefix or gs://bucket/prefix.",
)
@click.option(
    "--address",
    help=(
        "Ray cluster, or local: this machine without Ray. Default: the running cluster, or a new "
        "one here."
    ),
)
@click.option(
    "--max-nodes",
    type=WholeNumber(min=1),
    help="Most nodes for engines, also asked of an autoscaler.",
)
@click.option(
    "--retry-failed",
    is_flag=True,
    help="Also try again what failed because its configuration is wrong.",
)
@click.option(
    "--again",
    "most_again",
    type=WholeNumber(min=0),
    default=MOST_AGAIN,
    show_default=True,
    metavar="N",
    help=(
        "How often, once a run, to measure again what was disturbed, network_bound, client_bound "
        "or interrupted."
    ),
)
@click.option(
    "--until",
    type=click.Choice(["decided"]),
    help="decided: end once nothing left to measure can change which deployment is best.",
)
@click.option(
    "--within",
    callback=_within,
    metavar="SHARE",
    help=f"With --until decided: by more than this share. Default: {100 * WITHIN:g}%.",
)
@click.option(
    "--no-report", is_flag=True, help="Write no page (report.html) beside the results at the end."
)
@shortlist_options
@click.option(
    "--allow-impossible", is_flag=True, help="Also run deployments judged impossible, last."
)
def run(
    experiment: Path,
    results_uri: str,
    address: str | None,
    max_nodes: int | None,
    retry_failed: bool,
    most_again: int,
    until: str | None,
    within: float | None,
    no_report: bool,
    shortlist_size: int | None,
    simulated: str | None,
    allow_impossible: bool,
) -> int:
    """Measure EXPERIMENT and store the results.

    EXPERIMENT is an experiment file, or a plan written with `orchestrator plan --output`.
    """
    from orchestrator.results.pandas_hook import leave_pandas_out
    from orchestrator.sweep.driver_heap import share_one_heap

    leave_pandas_out()
    share_one_heap()  # must come before any thread starts
    from orchestrator.cluster.open_cluster import LOCAL
    from orchestrator.plan.cost import PlanEstimate
    from orchestrator.plan.verdict import models_left_behind
    from orchestrator.results.location import check_answers, uri_inside
    from orchestrator.results.store import Store

    plan = planned(experiment, allow_impossible)
    if not plan.runnable():
        click.echo(NOTHING_RUNS.format(file=shlex.quote(str(experiment))), err=True)
        return 3
    check_answers(results_uri)
    if address == LOCAL:
        _check_models(plan)
    decided_within = _decided_within(plan, until, within)

    from orchestrator.cli.signals import INTERRUPTED, stops
    from orchestrator.cluster.open_cluster import open_cluster
    from orchestrator.plan.current import StoredExperiment
    from orchestrator.report.live import LiveSweep
    from orchestrator.report.shortlist_words import left_out_event
    from orchestrator.results.phases import SWEEP, Phase, SweepStep
    from orchestrator.results.runs import ActiveRun, Runs
    from orchestrator.sweep.context import SweepContext, SweepSettings
    from orchestrator.sweep.sweep import Sweep

    stop = threading.Event()
    with LiveSweep(Console(stderr=True)) as live:
        store = Store.open(results_uri, plan.name, tell=live.print_line)
        limited_plan = limited(
            plan, ShortlistRequest(shortlist_size, simulated), StoredExperiment(store).plan
        )
        plan = limited_plan.plan
        live(Phase(SWEEP, SweepStep.CHECK_STORAGE, store.uri))
        store.check_writable()
        store.check_not_simulated()
        live.print_line(PlanEstimate(plan).summary())
        settings = [deployment.settings for deployment in plan.deployments]
        for sentence in models_left_behind(settings):
            live.print_line(f"note: {sentence}")
        for line in limited_plan.lines:
            live.print_line(line)
        if any(deployment.status == "impossible" for deployment in plan.deployments):
            live.print_line(
                f"note: why they are impossible: orchestrator plan {shlex.quote(str(experiment))}"
            )
        live(Phase(SWEEP, SweepStep.CHECK_RUNS, uri_inside(store.uri, plan.name)))
        options = _where_options(address, max_nodes)
        with ActiveRun(Runs(store.uri, plan.name), stop, live, options=options) as active:
            active(Phase(SWEEP, SweepStep.JOIN_CLUSTER, address or "that runs, or a new one here"))
            # opening may import ray, so the input is checked before
            cluster = open_cluster(store, address, plan.max_clients)
            if cluster.note:
                live.print_line(f"note: {cluster.note}")
            context = SweepContext(
                plan=plan,
                joined=cluster,
                store=store,
                listener=active,
                settings=SweepSettings(
                    placement_timeout_s=plan.placement_timeout,
                    storage_timeout_s=plan.storage_timeout,
                    retry_failed=retry_failed,
                    most_nodes=max_nodes or math.inf,
                    most_again=most_again,
                    decided_within=decided_within,
                ),
                stop=stop,
            )
            active.tell = context.tell
            if plan.shortlist is not None:
                context.tell(left_out_event(plan))
            with stops(stop):  # not earlier: Ray installs its own handlers when it starts
                try:
                    active.begin()
                    report = Sweep(context).run()
                finally:
                    cluster.close()
        live.print_line(sweep_summary(report, store))
    is_complete = print_end(store, with_page=not no_report)
    if report.interrupted:
        return INTERRUPTED
    return 0 if is_complete and is_whole(report.counts) else 3


def _where_options(address: str | None, max_nodes: int | None) -> list[str]:
    """The given options that say where the sweep runs, for commands that go on with it."""
    options: list[str] = []
    if address is not None:
        options += ["--address", address]
    if max_nodes is not None:
        options += ["--max-nodes", str(max_nodes)]
    return options


def _check_models(plan: Plan) -> None:
    """Raises ProblemsError for models that engines on this machine would not find."""
    from orchestrator.plan.verdict import models_missing_here

    settings = [deployment.settings for deployment in plan.runnable()]
    problems = [Problem(sentence) for sentence in models_missing_here(settings)]
    if problems:
        raise ProblemsError(problems)


def _decided_within(plan: Plan, until: str | None, within: float | None) -> float | None:
    """The precision at which the sweep may end early; None: it measures everything.

    Raises UsageError where nothing can be decided.
    """
    if until is None:
        if within is not None:
            raise click.UsageError("--within says how precisely --until decided decides: give both")
        return None
    if not plan.slos:
        raise click.UsageError(
            "--until decided needs limits to rank by: slos: {interactive: {ttft: 500ms}}"
        )
    if any(slo.agreement is not None for slo in plan.slos):
        raise click.UsageError(
            "--until decided cannot decide under limits on agreement, which all deployments' "
            "answers are needed for"
        )
    return WITHIN if within is None else within


def is_whole(counts: MeasurementCounts) -> bool:
    """Whether something was measured, and nothing failed, was left out or stays spoilt."""
    failed = counts.failed + counts.without_row + counts.refused
    missing = failed + counts.over_budget + counts.kept
    measured = counts.measured + counts.skipped
    return measured > 0 and missing == 0


def planned(experiment: Path, allow_impossible: bool) -> Plan:
    """The plan of an experiment file, or the frozen plan itself.

    Raises InputError where a variable that ``api_key_env`` names is not set.
    """
    from orchestrator.plan.make import load_plan

    plan = load_plan(experiment)
    unset = plan.unset_keys()
    if unset:
        raise InputError(
            f"set the environment variables that api_key_env names: {', '.join(unset)}"
        )
    return plan.allowing() if allow_impossible else plan


def print_end(
    store: Store, with_page: bool, tell_step: Callable[[str], None] | None = None
) -> bool:
    """Prints the answer, where the page is, and what to type next. The points are read once for all
    of these. ``tell_step``: hears what is done before it is begun, as it may take minutes.

    Returns whether the answer is complete: everything that was asked for has a valid measurement.
    True too where the results cannot be read now: the sweep is over, so that is no failure of it.
    """
    from orchestrator.plan.current import StoredExperiment
    from orchestrator.report.selection import answers, ranked_by_files, ranking_limits
    from orchestrator.report.text import echo

    if tell_step is not None:
        tell_step("computing the answer")
    try:
        experiment = StoredExperiment(store)
        ranked = ranked_by_files([experiment])
        rankings = ranked.answers
        if not experiment.slos:  # those of requests that were due at once have no limits
            rankings = answers(ranking_limits(None, [experiment]), read=ranked.judged)
    except Exception as error:
        echo(f"note: no answer yet: {error}", err=True)
        return True
    is_complete = _print_answer(ranked.judged[0], rankings)
    if with_page:
        if tell_step is not None:
            tell_step("writing the page")
        _write_page(store, ranked)
    _print_next_commands(ranked.judged[0], rankings)
    return is_complete


def _print_answer(judged: JudgedExperiment, rankings: Answers) -> bool:
    """Prints the answer. Returns whether it is complete: see ``print_end``."""
    from orchestrator.report.answer_table import MOST_ROWS, AnswerView, answer_text
    from orchestrator.report.text import echo, output_width
    from orchestrator.report.unmeasured import unmeasured
    from orchestrator.report.written_form import TextForm

    width = output_width(err=True)
    form = TextForm("orchestrator best", width, "orchestrator best --format json")
    view = AnswerView(form, width, MOST_ROWS)
    try:
        echo("\n".join(answer_text(rankings, view)), err=True)
        missing = unmeasured(judged.experiment, judged.points)
    except Exception as error:
        # the sweep is over: that its results cannot be read now is no failure of the sweep
        echo(f"note: no answer yet: {error}", err=True)
        return True
    if missing:
        echo(f"no valid measurement: {', '.join(missing)}", err=True)
    return not missing


def _write_page(store: Store, ranked: RankedExperiments) -> None:
    """Writes the page beside the results, and prints where it is.

    Without a request there is nothing to look at, and no page is written.
    """
    from orchestrator.report.page.html import page_of
    from orchestrator.report.text import echo

    try:
        page = page_of(store.uri, ranked)
        if page.requests:
            echo(f"page: {store.write_page(page.html)}", err=True)
    except Exception as error:
        # the sweep is over: a page can be written later
        echo(f"note: no page (orchestrator report writes it): {error}", err=True)


def _print_next_commands(judged: JudgedExperiment, rankings: Answers) -> None:
    from orchestrator.report.answer_table import next_commands
    from orchestrator.report.text import echo

    try:
        echo("\n".join(next_commands(judged.experiment, judged.points, rankings)), err=True)
    except Exception as error:
        # the sweep is over: a note above says already what cannot be read
        echo(f"note: {error}", err=True)


def sweep_summary(report: SweepReport, store: Store) -> str:
    """What became of the measurements, how long it took, and where the results are."""
    counts = report.counts
    verdicts = ", ".join(f"{number} {verdict}" for verdict, number in counts.spoilt.items())
    spoilt = f" (of them {verdicts})" if verdicts else ""
    parts = [
        f"{counts.measured} measured{spoilt}",
        f"{counts.skipped} already done",
        f"{counts.failed} failed",
    ]
    if counts.without_row:
        parts.append(f"{counts.without_row} failed without a row that says why")
    if counts.over_budget:
        parts.append(f"{counts.over_budget} left out by the budget")
    if counts.refused:
        parts.append(f"{counts.refused} failed before (--retry-failed tries them again)")
    if counts.kept:
        parts.append(f"{counts.kept} stay spoilt (--again N)")
    if report.left_unmeasured is not None:
        deployments = counted(report.left_unmeasured.deployments, "deployment")
        parts.append(f"{deployments} not measured to the end, which cannot be best")
    if report.left_by_stop:
        left = report.left_by_stop
        parts.append(f"interrupted with {left} left: run the same command again to continue")
    time_text = f"{report.wall_s:.0f} s in all"
    if counts.measured or counts.failed:
        time_text += f"; {report.overhead:.1%} of it was the program's own overhead"
        time_text += " (neither engine start-up nor warm-up nor measurement nor waiting)"
    return f"{', '.join(parts)}\n{time_text}\nresults: {store.uri}"
