"""``orchestrator run``: a sweep on a Ray cluster or on this machine, from an experiment or a frozen plan to Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from orchestrator.errors import OrchestratorError

if TYPE_CHECKING:
    from orchestrator.results.store import Store
    from orchestrator.runner.sweep import SweepReport

EXAMPLES = """
\b
Examples:
  orchestrator run experiments/quickstart.yaml --results results/
  orchestrator run experiments/quickstart.yaml --results results/ --address local
  orchestrator run plan.json --results s3://bucket/sweeps --address auto
  ray job submit --working-dir . -- python -m orchestrator run experiments/x.yaml --results s3://bucket/sweeps

Run the same command again to continue: what is measured is not measured twice.
Exit status: 0 all measured, 3 some points failed (they are rows), 2 bad input, 1 our own error, 130 interrupted.
"""


@click.command(epilog=EXAMPLES)
@click.argument("experiment", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--results", "results_uri", required=True, metavar="URI", help="Local folder or s3://bucket/prefix.")
@click.option(
    "--address", help="Ray cluster, or local: this machine without Ray. Default: the running one, or a new one here."
)
@click.option("--clients", type=click.IntRange(min=1), help="Most load clients per launch. Default: half the cores.")
@click.option("--placement-timeout", default="15m", show_default=True, help="How long to wait for nodes (autoscaling).")
def run(experiment: Path, results_uri: str, address: str | None, clients: int | None, placement_timeout: str) -> int:
    """Measure EXPERIMENT (an experiment file or a plan written by ``plan --output``) on a cluster."""
    from orchestrator.plan.make import load_plan
    from orchestrator.plan.model import summary
    from orchestrator.results.store import Store
    from orchestrator.spec.load import parse_duration

    try:
        timeout_s = parse_duration(placement_timeout)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--placement-timeout") from error
    plan = load_plan(experiment)
    store = Store.open(results_uri, plan.name)
    store.check_writable()

    console = Console(stderr=True)
    from orchestrator.cluster import open_cluster
    from orchestrator.report.best import answer_text
    from orchestrator.report.live import LiveSweep
    from orchestrator.report.stored import Experiment
    from orchestrator.runner.context import SweepContext
    from orchestrator.runner.sweep import Sweep

    console.print(summary(plan), highlight=False)
    cluster = open_cluster(store, address, clients)  # may import ray: after the input is known to be good
    if cluster.note:
        console.print(f"note: {cluster.note}", highlight=False, soft_wrap=True)
    try:
        with LiveSweep(console) as live:
            report = Sweep(SweepContext(plan, cluster, store, live, timeout_s)).run()
    finally:
        cluster.close()
    _print(report, store, console)
    try:
        click.echo("\n".join(answer_text(Experiment(store))), err=True)
    except OrchestratorError as error:  # all is measured: that nothing can be read now is no failure of the sweep
        click.echo(f"note: no answer yet: {error}", err=True)
    if report.interrupted:
        raise KeyboardInterrupt
    return 3 if report.counts.failed or report.counts.left_out else 0


def _print(report: SweepReport, store: Store, console: Console) -> None:
    counts = report.counts
    parts = [f"{counts.measured} measured", f"{counts.skipped} already done", f"{counts.failed} failed"]
    if counts.left_out:
        parts.append(f"{counts.left_out} left out by the budget")
    console.print(", ".join(parts), highlight=False)
    console.print(
        f"{report.wall_s:.0f} s in all; {report.overhead:.1%} of it was the program's own overhead"
        " (neither engine start-up nor warm-up nor measurement)",
        highlight=False,
    )
    console.print(f"results: {store.uri}", highlight=False)
