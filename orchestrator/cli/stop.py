"""``orchestrator stop``: asks the active run to end in order, and waits until it has.

The driver of the run may be on another host.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from orchestrator.base.redaction import redact
from orchestrator.cli.command import CliCommand
from orchestrator.cli.results_uri import checked_uri

if TYPE_CHECKING:
    from orchestrator.results.runs import RunRecord, Runs

LOOK_S = 1.0  # between two looks at a run
LEFTOVERS = frozenset({"left_over", "gpu_dirty", "stop_failed"})  # kinds of events: what is left

EXAMPLES = """
\b
Examples:
  orchestrator stop results/
  orchestrator stop s3://bucket/sweeps --experiment quickstart --timeout 5m
"""
DETAILS = """
Works like Ctrl-C: engines are stopped, complete measurements are kept, and running the same command again continues.
The run sees the request within 10 s.

Exit status: 0 nothing runs any more; 3 a run does not answer, has not ended within --timeout, or left something behind.
"""


@click.command(cls=CliCommand, examples=EXAMPLES, details=DETAILS)
@click.argument("uri", callback=checked_uri)
@click.option("--experiment", metavar="NAME", help="Only this experiment at URI.")
@click.option("--timeout", default="10m", show_default=True, help="How long to wait for the end.")
def stop(uri: str, experiment: str | None, timeout: str) -> int:
    """Stop the active run at URI and wait for its end."""
    from orchestrator.results.runs import runs_at
    from orchestrator.spec.load import parse_duration

    try:
        end_s = time.monotonic() + parse_duration(timeout)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--timeout") from error
    stopping: list[_StoppingRun] = []
    for runs in runs_at(uri, experiment):
        for record in runs.records():
            if record.lives() is not False:
                runs.ask_to_stop(record.run_id)
                click.echo(f"{runs.experiment}: asked {record.name} to stop")
                stopping.append(_StoppingRun(runs, record.run_id))
    if not stopping:
        click.echo(f"no run is active at {uri}")
    problems = [_wait(run, end_s) for run in stopping]
    return 3 if any(problems) else 0


@dataclass(frozen=True, slots=True)
class _StoppingRun:
    """A run that was asked to stop, and the runs of its experiment."""

    runs: Runs
    run_id: str


def _wait(run: _StoppingRun, end_s: float) -> str:
    """Waits until the run has ended, and prints how it ended.

    Returns what is wrong with its end; empty: nothing.
    """
    from orchestrator.results.runs import Liveness, RunState

    watch = Liveness()
    problem = ""
    record: RunRecord | None = None
    while True:
        stored = run.runs.read(run.run_id)
        if stored is None:  # a run that never began removes its record
            record = None
            break
        record = stored.record
        problem = _problem(record, watch.silent_s(record, stored.text), end_s)
        if problem or record.state is RunState.ENDED:
            break
        time.sleep(LOOK_S)
    outcome = redact(problem) if problem else "ended"
    click.echo(f"{run.runs.experiment}: {outcome}{_counts(record)}")
    return problem


def _problem(record: RunRecord, silent_s: float, end_s: float) -> str:
    """What is wrong with a run that was asked to stop; empty: nothing so far."""
    from orchestrator.results.runs import SILENT_S, RunState

    if record.state is RunState.ENDED:
        return "; ".join(event.text for event in record.events if event.kind in LEFTOVERS)
    if record.lives() is False:
        return (
            "its process is gone; the engines' guards end them, and 'orchestrator doctor' finds"
            " what is left"
        )
    if silent_s >= SILENT_S:
        return f"it does not answer: look at {record.name}"
    if time.monotonic() >= end_s:
        return "it has not ended yet"
    return ""


def _counts(record: RunRecord | None) -> str:
    if record is None:
        return " before it measured anything"
    return f": {record.measured} of {record.total} measured"
