"""``orchestrator plan``: shows what an experiment would measure, what is left out, and why.

It starts nothing.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.base.text import counted
from orchestrator.cli.command import CliCommand
from orchestrator.cli.numbers import WholeNumber
from orchestrator.cli.shortlist import ShortlistRequest, limited, shortlist_options

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orchestrator.plan.model import Plan
    from orchestrator.results.records import Committed

NOTHING_RUNS = (
    "nothing in this file can run: every deployment is impossible or excluded (why: below)"
)
WIDTH = 140  # characters, where stdout is no terminal and COLUMNS is not set


EXAMPLES = """
\b
Examples:
  orchestrator plan experiments/quickstart.yaml
  orchestrator plan experiments/llama70b-parallelism.yaml --predict
  orchestrator plan experiments/llama70b-parallelism.yaml --nodes 4 \\
      --output plan.json
"""
DETAILS = """
\b
More examples:
  orchestrator plan experiments/llama70b-parallelism.yaml --shortlist 8 \\
      --output plan.json
  orchestrator plan experiments/llama70b-parallelism.yaml --nodes 4 \\
      --results s3://bucket/sweeps
  orchestrator plan experiments/quickstart.yaml --check-with-vllm .engines/vllm
  orchestrator plan experiments/quickstart.yaml --format json |
      jq -r '.deployments[] | .label + ": " + .status'

Each deployment is planned, risky (runs last), excluded (by which rule) or impossible (and why). The table shows
predicted weights and KV cache of one device and how many full-length sequences fit at once; below it stand time, GPU
hours and cost, and how many deployments are started if that is limited.

Exit status: 0; 3 if nothing in the file can run; 2 if the file has problems, all of which are printed.
"""


@click.command(cls=CliCommand, examples=EXAMPLES, details=DETAILS)
@click.argument("experiment", type=click.Path(path_type=Path))
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Also write the frozen plan here; 'run' accepts it.",
)
@click.option(
    "--predict", is_flag=True, help="Also predict what each deployment will hold, best first."
)
@shortlist_options
@click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True
)
@click.option(
    "--nodes",
    type=WholeNumber(1, 10_000),
    help="Size of the cluster: estimates the time on it; what needs more nodes is impossible.",
)
@click.option(
    "--results",
    "uri",
    metavar="URI",
    help="Say what is already measured there, and use the engine start times of earlier runs.",
)
@click.option(
    "--check-with-vllm",
    "environment",
    type=click.Path(path_type=Path),
    metavar="VENV",
    help=(
        "Also let the vLLM in this environment check every vllm deployment; what it refuses is "
        "impossible."
    ),
)
@click.option(
    "--allow-impossible",
    is_flag=True,
    help="Also plan deployments judged impossible; they run last.",
)
def plan(
    experiment: Path,
    output: Path | None,
    predict: bool,
    shortlist_size: int | None,
    simulated: str | None,
    form: str,
    nodes: int | None,
    uri: str | None,
    environment: Path | None,
    allow_impossible: bool,
) -> int:
    """Check EXPERIMENT and show what it would measure. Starts nothing and needs no GPU.

    EXPERIMENT is an experiment file or a plan written with --output.
    """
    # imported here, because the help of all commands loads this file
    from rich.console import Console

    from orchestrator.plan.cost import PlanEstimate
    from orchestrator.plan.make import load_plan, write_plan
    from orchestrator.report.plan_json import plan_json
    from orchestrator.report.plan_table import show

    plan = load_plan(experiment, cluster_nodes=nodes)
    if environment is not None:
        plan = _checked_with_vllm(plan, environment)
    if allow_impossible:
        plan = plan.allowing()
    request = ShortlistRequest(shortlist_size, simulated)
    shortlist_lines: tuple[str, ...] = ()
    if predict or request.is_made:
        from orchestrator.plan.order import by_predicted_share

        limited_plan = limited(plan, request, _last_plan(uri, plan) if uri else None)
        plan = by_predicted_share(limited_plan.plan)
        shortlist_lines = limited_plan.lines
    if output is not None:
        write_plan(plan, output)
        click.echo(f"wrote {output}", err=True)
    nothing_runs = not plan.runnable()
    if nothing_runs:
        # with JSON on stdout, the sentence goes to stderr
        click.echo(NOTHING_RUNS, err=form == "json")
    estimate = PlanEstimate(plan, nodes, _known_starts(uri, plan) if uri else {})
    if form == "json":
        for text in plan_json(estimate):
            click.echo(text, nl=False)
        return 3 if nothing_runs else 0
    if predict:
        from orchestrator.report.predictions import predictions_text
        from orchestrator.report.text import echo

        echo("\n".join(predictions_text(plan)))
    has_width = sys.stdout.isatty() or "COLUMNS" in os.environ
    show(estimate, Console(width=None if has_width else WIDTH))
    for line in shortlist_lines:
        click.echo(line)
    if uri:
        click.echo(_already_measured(uri, plan))
    return 3 if nothing_runs else 0


def _last_plan(uri: str, plan: Plan) -> Plan | None:
    """The plan of the last run with these results; None: there is none."""
    from orchestrator.plan.current import StoredExperiment
    from orchestrator.results.store import Store

    return StoredExperiment(Store.open(uri, plan.name)).plan


def _checked_with_vllm(plan: Plan, environment: Path) -> Plan:
    """The plan, in which deployments that the vLLM of this environment refuses are impossible."""
    from orchestrator.engines.vllm_check import opinion_of_vllm

    configurations = {
        deployment.id: (deployment.settings, deployment.hardware) for deployment in plan.runnable()
    }
    opinion = opinion_of_vllm(environment, configurations)
    return plan.refusing(opinion.refused, opinion.note)


def _already_measured(uri: str, plan: Plan) -> str:
    """Says how many of the plan's measurements are stored at ``uri``, and which are open again."""
    from orchestrator.results.store import Store
    from orchestrator.results.validity import MOST_AGAIN
    from orchestrator.sweep.earlier_attempts import spoilt_of

    store = Store.open(uri, plan.name)
    commits = store.commits()
    spoilt = spoilt_of(store, commits, MOST_AGAIN)
    is_searched = any(load.searches for load in plan.loads)
    asked = _probes(plan, commits) if is_searched else _measurements(plan)
    succeeded = {commit.measurement_id for commit in commits if commit.status == "ok"}
    there = len((succeeded & asked) - spoilt.open.keys())
    if is_searched:
        number = f"{counted(there, 'probe')} of its searches"
    else:
        number = counted(there, "measurement")
    text = f"{number} already there at {store.uri}"
    open_again = [attempt for key, attempt in spoilt.open.items() if key in asked]
    if open_again:
        text += f"; open again: {spoilt.words(open_again)}"
    return text


def _measurements(plan: Plan) -> set[str]:
    """Ids of the measurements of a plan that searches nothing."""
    ids: set[str] = set()
    for point in plan.points:
        for repeat in range(plan.repeats):
            ids.add(plan.measurement(point, repeat).measurement_id)
    return ids


def _probes(plan: Plan, commits: Iterable[Committed]) -> set[str]:
    """Ids of the measurements that are probes of the plan's searches. A plan does not say which
    levels a search asks for, so whatever was measured of its deployments is one.
    """
    deployment_ids = {deployment.id for deployment in plan.deployments}
    return {commit.measurement_id for commit in commits if commit.deployment_id in deployment_ids}


def _known_starts(uri: str, plan: Plan) -> dict[str, float]:
    """By deployment id, the seconds until its latest start was ready.

    Only deployments that earlier runs of this experiment started are there.
    """
    from orchestrator.results.store import Store

    store = Store.open(uri, plan.name)
    columns = ["deployment_id", "started_unix_ns", "ready_s"]
    ready_s_by_id: dict[str, float] = {}
    launches = store.read("launches", columns).to_pylist()
    for launch in sorted(launches, key=lambda row: int(row["started_unix_ns"])):
        if launch["ready_s"] is not None:
            ready_s_by_id[launch["deployment_id"]] = launch["ready_s"]
    return ready_s_by_id
