"""``orchestrator stop``: asks the active run to end in order, wherever its driver is, and waits for
it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from orchestrator.base.redaction import redact
from orchestrator.cli.results_uri import no_file

if TYPE_CHECKING:
    from orchestrator.results.runs import Runs

LOOK_S = 1.0
LEFTOVERS = frozenset({"left_over", "gpu_dirty", "stop_failed"})  # kinds of events

EXAMPLES = """
\b
Examples:
  orchestrator stop results/
  orchestrator stop s3://bucket/sweeps --experiment quickstart --timeout 5m

\b
Works like Ctrl-C: engines are stopped, complete measurements are kept, and running the same command again continues.
The run sees the request within 10 s.
Exit status: 0 nothing runs any more; 3 a run does not answer, has not ended within --timeout, or left something behind.
"""


@click.command(epilog=EXAMPLES)
@click.argument("uri", callback=no_file)
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
    asked: list[tuple[Runs, str]] = []
    for runs in runs_at(uri, experiment):
        for record, _ in runs.all():
            if record.lives() is not False:
                runs.ask_to_stop(record.run_id)
                click.echo(f"{runs.experiment}: asked {record.name} to stop")
                asked.append((runs, record.run_id))
    if not asked:
        click.echo(f"no run is active at {uri}")
    outcomes = [_wait(runs, run_id, end_s) for runs, run_id in asked]
    return 3 if any(outcomes) else 0


def _wait(runs: Runs, run_id: str, end_s: float) -> str:
    """Until the run ended. Says how, and returns what is wrong with that."""
    from orchestrator.results.runs import SILENT_S, Liveness

    watch, wrong = Liveness(), ""
    while (found := runs.read(run_id)) is not None:
        record, text = found
        if record.state == "ended":
            wrong = "; ".join(event.text for event in record.events if event.kind in LEFTOVERS)
            break
        if record.lives() is False:
            wrong = (
                "its process is gone; the engines' guards end them, and 'orchestrator doctor' "
                "finds what is left"
            )
        elif watch.silent_s(record, text) >= SILENT_S:
            wrong = f"it does not answer: look at {record.name}"
        elif time.monotonic() >= end_s:
            wrong = "it has not ended yet"
        if wrong:
            break
        time.sleep(LOOK_S)
    counts = (
        f": {found[0].measured} of {found[0].total} measured"
        if found
        else " before it measured anything"
    )
    click.echo(f"{runs.experiment}: {redact(wrong) if wrong else 'ended'}{counts}")
    return wrong
