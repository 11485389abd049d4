"""``orchestrator simulate``: computes a whole sweep in virtual time. Nothing is started.

It goes from an experiment file, or a frozen plan, to Parquet.
"""

from __future__ import annotations

import shlex
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.command import CliCommand

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.plan.model import Plan
    from orchestrator.results.events import Event
    from orchestrator.results.phases import Phase
    from orchestrator.results.store import Store
    from orchestrator.simulation.sweep import SimulationReport
    from orchestrator.spec.assumptions import Assumptions

EXAMPLES = """
\b
Examples:
  orchestrator simulate experiments/llama70b-parallelism.yaml \\
      --results simulated/
  orchestrator simulate plan.json --results simulated/ --no-report
  orchestrator best simulated/
"""
DETAILS = """
No Ray, no engine and no GPU are used: the emulator's step model says how long each step of each engine takes, or
tables of kernels do, where the file asks for them (predictions: {tables: true}). All results are marked simulated.

A deployment of which the model knows too little is stored as failed, with the reason; where that is every one, nothing
is simulated or stored. The same plan always gives the same results. If a simulation is killed, the same command goes on.

Exit status: as of run.
"""
LINE_S = 0.2  # between two states of the progress line on a terminal
LOG_S = 10.0  # between two lines where there is no terminal


class ProgressLine:
    """Shows how far the simulation is: on a terminal in a line that changes, else in a log."""

    def __init__(self) -> None:
        self._total = 0
        self._done = 0
        self._failed = 0
        self._began_s = time.monotonic()
        self._shown_s = self._began_s
        self._is_terminal = sys.stderr.isatty()

    def __call__(self, item: Event | Phase) -> None:
        from orchestrator.results.events import Event
        from orchestrator.results.phases import SweepStep

        if not isinstance(item, Event):
            if item.name is SweepStep.STORE_FIGURES:
                self.print_line("storing what answers need")
            return
        if item.kind == "sweep":
            self._total = int(item.data.get("total", 0))
        elif item.kind == "measured":
            self._done += 1
        elif item.kind == "failed":
            self._failed += 1
        elif item.kind in ("gave_up", "budget", "not_started"):
            self.print_line(f"{item.deployment}: {item.text}" if item.deployment else item.text)
        self._total = max(self._total, self._done + self._failed)
        now_s = time.monotonic()
        if now_s - self._shown_s >= (LINE_S if self._is_terminal else LOG_S):
            self._shown_s = now_s
            self._show(now_s)

    @property
    def seconds(self) -> float:
        """Seconds since the simulation began."""
        return time.monotonic() - self._began_s

    def print_line(self, text: str) -> None:
        """Prints a line of its own."""
        self.clear()
        click.echo(text, err=True)

    def clear(self) -> None:
        """Removes the progress line from a terminal."""
        if self._is_terminal:
            click.echo("\r\x1b[K", nl=False, err=True)

    def _show(self, now_s: float) -> None:
        over = self._done + self._failed
        took_s = now_s - self._began_s
        text = f"simulated {over:,} of {self._total:,} points in {took_s:.0f} s"
        if 0 < over < self._total:
            left_s = took_s / over * (self._total - over)
            text = f"{text}, about {max(left_s, 1.0):.0f} s left"
        if self._is_terminal:
            click.echo(f"\r\x1b[K{text}", nl=False, err=True)
        else:
            click.echo(text, err=True)


@click.command(
    cls=CliCommand,
    examples=EXAMPLES,
    details=DETAILS,
    short_help="Answer EXPERIMENT in virtual time, without engines.",
)
@click.argument("experiment", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--results",
    "results_uri",
    required=True,
    metavar="URI",
    help="A folder, s3://bucket/prefix or gs://bucket/prefix, without measurements of EXPERIMENT.",
)
@click.option(
    "--no-report", is_flag=True, help="Write no page (report.html) beside the results at the end."
)
@click.option(
    "--allow-impossible", is_flag=True, help="Also simulate deployments judged impossible."
)
@click.option(
    "--assume",
    "assumed",
    multiple=True,
    metavar="NAME=VALUE",
    help="Take as given what only an engine knows: drafts_accepted=SHARE, "
    "constrained_answers=asked, adapters=free or image_patch=PIXELS. Repeatable.",
)
def simulate(
    experiment: Path,
    results_uri: str,
    no_report: bool,
    allow_impossible: bool,
    assumed: tuple[str, ...],
) -> int:
    """Answer EXPERIMENT in virtual time, from a model of the engines, and store the results.

    EXPERIMENT is an experiment file, or a plan written with `orchestrator plan --output`.
    """
    from orchestrator.results.pandas_hook import leave_pandas_out

    leave_pandas_out()
    from orchestrator.cli.run import NOTHING_RUNS, is_whole, planned, print_end
    from orchestrator.cli.signals import INTERRUPTED, stops
    from orchestrator.plan.predictions import with_predictions
    from orchestrator.results.location import check_answers
    from orchestrator.results.runs import ActiveRun, Runs
    from orchestrator.results.store import Store
    from orchestrator.simulation.refusals import check, reasons_against_all
    from orchestrator.simulation.sweep import SimulatedSweep
    from orchestrator.spec.assumptions import parse_assumptions

    assumptions = parse_assumptions(assumed)
    plan = planned(experiment, allow_impossible)
    if assumed:
        plan = plan.assuming(assumptions)
    plan = with_predictions(plan)
    if not plan.runnable():
        click.echo(NOTHING_RUNS.format(file=shlex.quote(str(experiment))), err=True)
        return 3
    check_answers(results_uri)
    progress = ProgressLine()
    # nothing is synced to disk: what a power loss takes away is simulated again
    store = Store.open(results_uri, plan.name, tell=progress.print_line, survives_power_loss=False)
    check(plan, store)
    reasons = reasons_against_all(plan)
    if reasons:
        for reason in reasons:
            click.echo(reason, err=True)
        file = shlex.quote(str(experiment))
        click.echo(f"nothing of it can be simulated; measure it: orchestrator run {file}", err=True)
        return 3
    store.check_writable()
    for line in _notes(plan, experiment, assumptions):
        progress.print_line(line)
    stop = threading.Event()
    # the run's record is removed at its end, so that a simulation leaves the same files each time
    with ActiveRun(Runs(store.uri, plan.name), stop, progress, keeps=False) as active, stops(stop):
        active.begin()
        report = SimulatedSweep(plan, store, active, stop).run()
    progress.clear()
    progress.print_line(_summary(report, store, progress.seconds))
    is_complete = print_end(store, with_page=not no_report, tell_step=progress.print_line)
    if report.interrupted:
        return INTERRUPTED
    return 0 if is_complete and is_whole(report.counts) else 3


def _notes(plan: Plan, experiment: Path, given: Assumptions) -> Iterator[str]:
    """What a user should know of a simulation before it begins. ``given``: by --assume."""
    from orchestrator.base.text import hours
    from orchestrator.report.origin import assumption_texts
    from orchestrator.report.plan_table import risk_lines
    from orchestrator.report.shortlist_words import shortlist_lines
    from orchestrator.spec.assumptions import with_option

    impossible = sum(deployment.status == "impossible" for deployment in plan.deployments)
    if impossible:
        file = shlex.quote(str(experiment))
        yield f"note: {impossible} impossible, left out; why: orchestrator plan {file}"
    for line in risk_lines(plan):
        yield f"note: {line}"
    for load in plan.loads:
        unknown = load.workload.known_to_engines_only(plan.assumptions)
        if unknown is not None:
            reason = with_option(f"only the engine knows {unknown.text}", unknown)
            yield f"note: workload {load.workload.name!r} is not simulated: {reason}"
    for text in assumption_texts(plan.assumptions):
        yield f"note: assumed: {text}"
    hardware = {deployment.hardware.name: deployment.hardware for deployment in plan.runnable()}
    for name, of_class in hardware.items():
        if of_class.weights_gb_s is not None:
            rate = f"{of_class.weights_gb_s:g} GB/s (weights_gb_s)"
            yield f"note: assumed: nodes of {name} read weights at {rate}"
    needed = plan.assumptions.stated()
    for name, value in given.stated().items():
        if name not in needed:
            yield f"note: nothing in the plan needs --assume {name}={value}"
    if plan.shortlist is not None:  # frozen in a plan.json
        yield from shortlist_lines(plan, plan.shortlist)
    if plan.budget is not None and plan.budget.wall is not None:
        yield (
            f"note: budget.wall ({hours(plan.budget.wall)}) is not applied: how long a run takes "
            "depends on how many nodes it has"
        )


def _summary(report: SimulationReport, store: Store, seconds: float) -> str:
    """What became of the measurements, how long it took, and where the results are."""
    from orchestrator.base.text import hours

    counts = report.counts
    parts = [f"{counts.measured} simulated", f"{counts.skipped} already done"]
    parts.append(f"{counts.failed + counts.refused} failed")
    if counts.over_budget:
        parts.append(f"{counts.over_budget} left out by the budget")
    if report.left_by_stop:
        left = report.left_by_stop
        parts.append(f"interrupted with {left} left: run the same command again to continue")
    virtual = f"{hours(report.virtual_s)} of virtual time in {seconds:.1f} s"
    return f"{', '.join(parts)}\n{virtual}\nresults: {store.uri}"
