"""``orchestrator plan``: what an experiment would measure, what is left out and why. Starts
nothing.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from orchestrator.catalog.memory import memory_text
from orchestrator.cli.numbers import WholeNumber
from orchestrator.plan.cost import Estimate
from orchestrator.plan.make import load_plan, write_plan
from orchestrator.plan.model import Deployment, Plan
from orchestrator.spec.load import counted, hours, load_text
from orchestrator.spec.settings import EngineSettings

NOTHING_RUNS = (
    "nothing in this file can run: every deployment is impossible or excluded (why: below)"
)
MOST_ROWS = 200
WIDTH = 140  # where no terminal says how wide it is
FIGURES = ("points", "weights", "KV tokens", "at once", "time")
# Left out, one after the other, where a terminal has no room for them beside the labels.
LEFT_OUT = ("at once", "KV tokens", "weights", "points")
LABEL_WIDTH = 24  # that labels have at least, whatever is left out for it, if they need as much
GAP = 2  # columns between two of the table
MOST_LABELS = 8  # named with a reason; the others are counted
STYLES = {"planned": "green", "risky": "yellow", "excluded": "dim", "impossible": "red"}


@click.command()
@click.argument("experiment", type=click.Path(path_type=Path))
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Also write the frozen plan here; 'run' accepts it.",
)
@click.option(
    "--predict", is_flag=True, help="Also predict what each deployment will hold, best first."
)
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
    form: str,
    nodes: int | None,
    uri: str | None,
    environment: Path | None,
    allow_impossible: bool,
) -> int:
    """Check EXPERIMENT and show what it would measure. Starts nothing and needs no GPU.

    Each deployment is planned, risky (runs last), excluded (by which rule) or impossible (and why).
    The table shows predicted weights and KV cache of one device and how many full-length sequences
    fit at once; below it stand time, GPU hours and cost, and how many deployments are started if
    that is limited. EXPERIMENT is an experiment file or a plan written with --output.

    \b
    Examples:
      orchestrator plan experiments/quickstart.yaml orchestrator plan
      experiments/llama70b-parallelism.yaml --nodes 4 --output plan.json orchestrator plan
      experiments/llama70b-parallelism.yaml --predict orchestrator plan
      experiments/llama70b-parallelism.yaml --nodes 4 --results s3://bucket/sweeps orchestrator plan
      experiments/quickstart.yaml --check-with-vllm .engines/vllm orchestrator plan
      experiments/quickstart.yaml --format json | jq -r '.deployments[] | .label + ": " + .status'

    Exit status: 0; 3 if nothing in the file can run; 2 if the file has problems, all of which are
    printed.
    """
    made = load_plan(experiment, cluster_nodes=nodes)
    if environment is not None:
        from orchestrator.engines.vllm_check import opinion_of_vllm

        opinion = opinion_of_vllm(
            environment, {one.id: (one.settings, one.hardware) for one in made.runnable()}
        )
        made = made.refusing(opinion.refused, opinion.note)
    if allow_impossible:
        made = made.allowing()
    if predict:
        from orchestrator.plan.order import by_predicted_share
        from orchestrator.plan.predictions import with_predictions

        made = by_predicted_share(with_predictions(made))
    if output is not None:
        write_plan(made, output)
        click.echo(f"wrote {output}", err=True)
    nothing_runs = not made.runnable()
    if nothing_runs:
        # with JSON on stdout, the sentence is for whoever watches
        click.echo(NOTHING_RUNS, err=form == "json")
    estimate = Estimate(made, nodes, _known_starts(uri, made) if uri else {})
    if form == "json":
        for text in as_json(estimate):
            click.echo(text, nl=False)
    else:
        if predict:
            from orchestrator.report.predictions import predictions_text
            from orchestrator.report.text import echo

            echo("\n".join(predictions_text(made)))
        show(
            estimate,
            Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH),
        )
        if uri:
            click.echo(_already_measured(uri, made))
    return 3 if nothing_runs else 0


def _already_measured(uri: str, made: Plan) -> str:
    """How many of the plan's measurements are stored at ``uri``, and what of them is open again."""
    from orchestrator.results.store import Store
    from orchestrator.results.validity import MOST_AGAIN
    from orchestrator.sweep.earlier_attempts import spoilt_of

    store = Store.open(uri, made.name)
    commits = store.commits()
    spoilt = spoilt_of(store, commits, MOST_AGAIN)
    planned = {
        made.measurement(point, repeat).measurement_id
        for point in made.points
        for repeat in range(made.repeats)
    }
    ok = {one.measurement_id for one in commits if one.status == "ok"}
    done = planned & ok - spoilt.open.keys()
    again = [attempt for name, attempt in spoilt.open.items() if name in planned]
    text = f"{counted(len(done), 'measurement')} already there at {store.uri}"
    if any(load.searches for load in made.loads):
        ours = {deployment.id for deployment in made.deployments}
        probes = {one.measurement_id for one in commits if one.deployment_id in ours}
        text = f"{counted(len(probes & ok), 'probe')} of its searches already there at {store.uri}"
    if again:
        text += f"; open again: {spoilt.words(again)}"
    return text


def _known_starts(uri: str, made: Plan) -> dict[str, float]:
    """Seconds until ready of the latest start of every deployment that earlier runs of this
    experiment started.
    """
    from orchestrator.results.store import Store

    rows = (
        Store.open(uri, made.name)
        .read("launches", ["deployment_id", "started_unix_ns", "ready_s"])
        .to_pylist()
    )
    latest = sorted(rows, key=lambda row: int(row["started_unix_ns"]))
    return {row["deployment_id"]: row["ready_s"] for row in latest if row["ready_s"] is not None}


def as_json(estimate: Estimate) -> Iterator[bytes]:
    """The plan for other programs: all settings of every deployment, counts and estimates. A
    deployment at a time: all of a large plan at once would take twice the memory that planning
    does.
    """
    made = estimate.plan
    yield b'{\n  "name": ' + orjson.dumps(made.name) + b',\n  "deployments": ['
    for at, one in enumerate(made.deployments):
        content = one.model_dump(mode="json") | {
            "points": len(made.known_levels(one.id)),
            "cost": asdict(estimate.cost(one)) if one.runs else None,
        }
        text = orjson.dumps(content, option=orjson.OPT_INDENT_2).replace(b"\n", b"\n    ")
        yield (b",\n    " if at else b"\n    ") + text
    sums = {**asdict(estimate.totals()), "notes": estimate.notes()}
    yield b"\n  ]," + orjson.dumps(
        sums, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    ).removeprefix(b"{")


def show(estimate: Estimate, console: Console) -> None:
    """The table, the sums below it, and what is worth knowing."""
    made = estimate.plan
    rows = [_row(estimate, one) for one in made.deployments[:MOST_ROWS]]
    shown = _shown(rows, console.width)
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, GAP, 0, 0))
    for name in shown:
        table.add_column(
            name,
            justify="right" if name in FIGURES else "left",
            overflow="fold",
            no_wrap=name != "deployment",
        )
    for row in rows:
        cells = row | {
            "deployment": escape(row["deployment"]),
            "status": f"[{STYLES[row['status']]}]{row['status']}[/]",
        }
        table.add_row(*(cells[name] for name in shown))
    console.print(table)
    if len(made.deployments) > MOST_ROWS:
        console.print(f"… and {len(made.deployments) - MOST_ROWS:,} more; --format json shows all")
    for reason, labels in _reasons(made.deployments).items():
        console.print(f"\n{reason}\n  {', '.join(labels)}", highlight=False, markup=False)
    console.print()
    console.print(
        estimate.summary(), highlight=False, markup=False, soft_wrap=not console.is_terminal
    )


def _row(estimate: Estimate, one: Deployment) -> dict[str, str]:
    """The table's cells of one deployment, by column."""
    predicted = _predicted(one.predicted or {}) if one.runs else ("", "", "")
    weights, tokens, at_once = predicted
    return {
        "deployment": one.label,
        "status": one.status,
        "footprint": _footprint(one),
        "points": str(len(estimate.plan.known_levels(one.id)) or ""),
        "weights": weights,
        "KV tokens": tokens,
        "at once": at_once,
        "time": hours(estimate.cost(one).seconds) if one.runs else "",
    }


def _shown(rows: Sequence[dict[str, str]], width: int) -> list[str]:
    """The columns for which ``width`` has room, so that labels break between words."""
    shown = ["deployment", "status", "footprint", *FIGURES]
    widths = {name: max([len(name), *(len(row[name]) for row in rows)]) for name in shown}
    words = [word for row in rows for word in row["deployment"].split()]
    longest = max(map(len, words), default=0)
    needed = min(widths["deployment"], max(longest, LABEL_WIDTH))
    for name in LEFT_OUT:
        others = sum(widths[one] + GAP for one in shown if one != "deployment")
        if needed + others <= width:
            break
        shown.remove(name)
    return shown


def _reasons(deployments: Sequence[Deployment]) -> dict[str, list[str]]:
    """What is said of deployments, levels of their own too, each sentence once: sentence -> whom it
    is said of.
    """
    out: dict[str, list[str]] = {}
    for one in deployments:
        levels = ", ".join(load_text(level.control, level.value) for level in one.levels)
        said = [f"{one.status}: {reason}" for reason in one.reasons]
        for text in [*said, f"levels: {levels}"] if levels else said:
            out.setdefault(text, []).append(one.label)
    return {
        reason: labels
        if len(labels) <= MOST_LABELS
        else [*labels[:MOST_LABELS], f"{len(labels) - MOST_LABELS} more"]
        for reason, labels in out.items()
    }


def _predicted(figures: dict[str, Any]) -> tuple[str, str, str]:
    """Weights of a device, tokens of KV cache, sequences of max_model_len that run at once; empty:
    not known.
    """
    # of replicas with roles those are shown that hold the KV cache of all that is answered
    figures = figures | {name.removeprefix("decode."): value for name, value in figures.items()}
    weights, tokens, at_once = (
        figures.get(name) for name in ("weight_bytes", "kv_cache_tokens", "max_concurrency")
    )
    at_once = at_once and min(at_once, figures["max_num_seqs"])
    return (
        "" if weights is None else memory_text(weights),
        "" if tokens is None else f"{tokens:,}",
        "" if at_once is None else f"{at_once:,.1f}",
    )


def _footprint(one: Deployment) -> str:
    """Replicas x nodes x devices, without the ones."""
    settings = one.settings
    if settings.url:
        return (
            f"endpoint of {counted(settings.endpoint_gpus, 'GPU')}"
            if settings.endpoint_gpus
            else "endpoint"
        )
    unit = "core" if one.on_cpus else "GPU"
    said = [f"{role} {_replicas(part, unit)}".strip() for role, part in settings.engines.items()]
    return " + ".join(said + ([settings.router.engine] if settings.router else []))


def _replicas(settings: EngineSettings, unit: str) -> str:
    each = settings.devices_per_node
    parts = [
        f"{settings.replicas} replicas" if settings.replicas > 1 else "",
        f"{settings.nnodes} nodes" if settings.nnodes > 1 else "",
        counted(each, unit),
    ]
    return " x ".join(part for part in parts if part)
