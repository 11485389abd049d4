"""``orchestrator plan``: what an experiment would measure, what is left out and why. Starts nothing."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from orchestrator.plan.make import load_plan, write_plan
from orchestrator.plan.model import Deployment, Plan, notes, summary, totals

MOST_ROWS = 200
WIDTH = 140  # where no terminal says how wide it is
STYLES = {"planned": "green", "risky": "yellow", "excluded": "dim", "impossible": "red"}


@click.command()
@click.argument("experiment", type=click.Path(path_type=Path))
@click.option("--output", type=click.Path(path_type=Path), help="Also write the frozen plan here; 'run' takes it.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--nodes", type=click.IntRange(min=1), help="Nodes of the cluster: a replica over more is impossible.")
@click.option(
    "--check-with-vllm",
    "environment",
    type=click.Path(path_type=Path),
    metavar="VENV",
    help="Also ask this environment's vLLM about every vllm deployment; what it refuses is impossible.",
)
def plan(experiment: Path, output: Path | None, form: str, nodes: int | None, environment: Path | None) -> None:
    """Show every deployment of EXPERIMENT: planned, risky (run last), excluded by which rule, impossible and why.

    Nothing is started and no GPU is needed. EXPERIMENT may also be a plan written before.

    \b
    Examples:
      orchestrator plan experiments/quickstart.yaml
      orchestrator plan experiments/llama70b-parallelism.yaml --nodes 4 --output plan.json
      orchestrator plan experiments/quickstart.yaml --check-with-vllm .engines/vllm
      orchestrator plan experiments/quickstart.yaml --format json | jq -r '.deployments[] | .label + ": " + .status'

    Exit status: 0, or 2 when the file has problems; all of them are printed.
    """
    made = load_plan(experiment, cluster_nodes=nodes)
    if environment is not None:
        from orchestrator.engines.vllm_check import opinion_of_vllm

        opinion = opinion_of_vllm(environment, {one.id: (one.settings, one.hardware) for one in made.runnable()})
        made = made.refusing(opinion.refused, opinion.note)
    if output is not None:
        write_plan(made, output)
        click.echo(f"wrote {output}", err=True)
    if form == "json":
        click.echo(orjson.dumps(as_json(made), option=orjson.OPT_INDENT_2))
    else:
        show(made, Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH))


def as_json(made: Plan) -> dict[str, Any]:
    """The plan for other programs: all settings of every deployment, counts and estimates."""
    points = {one.id: made.point_count(one.id) for one in made.deployments}
    deployments = [one.model_dump(mode="json") | {"points": points[one.id]} for one in made.deployments]
    return {"name": made.name, "deployments": deployments, **asdict(totals(made)), "notes": notes(made)}


def show(made: Plan, console: Console) -> None:
    """The table, the sums below it, and what is worth knowing."""
    table = Table("deployment", "status", "footprint", "points", "why", box=None, header_style="bold", pad_edge=False)
    for one in made.deployments[:MOST_ROWS]:
        status = f"[{STYLES[one.status]}]{one.status}[/]"
        points = str(made.point_count(one.id) or "")
        table.add_row(escape(one.label), status, _footprint(one), points, escape("; ".join(one.reasons)))
    console.print(table)
    if len(made.deployments) > MOST_ROWS:
        console.print(f"… and {len(made.deployments) - MOST_ROWS:,} more; --format json shows all")
    console.print()
    console.print(summary(made), highlight=False, markup=False, soft_wrap=True)


def _footprint(one: Deployment) -> str:
    """Replicas x nodes x devices, without the ones."""
    settings = one.settings
    if settings.url:
        return "endpoint"
    unit = "core" if one.hardware.is_cpu else "GPU"
    each = settings.devices_per_node
    parts = [
        f"{settings.replicas} replicas" if settings.replicas > 1 else "",
        f"{settings.nnodes} nodes" if settings.nnodes > 1 else "",
        f"{each} {unit}{'s' if each > 1 else ''}",
    ]
    return " x ".join(part for part in parts if part)
