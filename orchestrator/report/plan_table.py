"""The table of ``orchestrator plan``: what an experiment would measure, for people."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from orchestrator.base.grouping import values_by_key
from orchestrator.base.text import counted, hours
from orchestrator.catalog.memory import memory_text
from orchestrator.plan.cost import PlanEstimate
from orchestrator.plan.model import Deployment, Plan
from orchestrator.report.documents.predicted_deployment import PredictedMemory, predicted_memory
from orchestrator.report.shortlist_words import shared_left_out_text
from orchestrator.report.text import wrapped
from orchestrator.spec.load import load_text
from orchestrator.spec.settings import EngineSettings

MOST_ROWS = 200
COLUMNS = (
    "deployment",
    "status",
    "footprint",
    "points",
    "weights",
    "KV tokens",
    "at once",
    "time",
)
NUMBERS = frozenset({"points", "weights", "KV tokens", "at once", "time"})
# Columns that are left out, one after the other, if a terminal has no room for them beside labels.
LEFT_OUT = ("at once", "KV tokens", "weights", "points")
SHOWN_BY = "a wider terminal or --format json"
LABEL_WIDTH = 24  # characters that labels get at least if they need them, whatever is left out
GAP = 2  # characters between two columns
MOST_LABELS = 8  # named with a reason; the others are counted
LEFT_OUT_STATUS = "left out"  # the status of what the shortlist leaves out
STYLES = {
    "planned": "green",
    "risky": "yellow",
    "excluded": "dim",
    "impossible": "red",
    LEFT_OUT_STATUS: "dim",
}


def show(estimate: PlanEstimate, console: Console) -> None:
    """Prints the table, below it why deployments are left out, and the sums."""
    deployments = estimate.plan.deployments
    rows = [_row(estimate, deployment) for deployment in deployments[:MOST_ROWS]]
    columns = _shown_columns(rows, console.width)
    console.print(_table(rows, columns))
    if left_out := _left_out_columns(rows, columns):
        text = f"not shown: {', '.join(left_out)} ({SHOWN_BY} shows them)"
        console.print(wrapped(text, console.width), style="dim", highlight=False, soft_wrap=True)
    if len(deployments) > MOST_ROWS:
        console.print(f"… and {len(deployments) - MOST_ROWS:,} more; --format json shows all")
    for reason, labels in _labels_by_reason(estimate.plan).items():
        console.print()
        for line in (reason, f"  {_some(labels)}"):
            text = wrapped(line, console.width)
            console.print(text, highlight=False, markup=False, soft_wrap=True)
    console.print()
    for line in estimate.summary().splitlines():
        text = wrapped(line, console.width) if console.is_terminal else line
        console.print(text, highlight=False, markup=False, soft_wrap=True)


@dataclass(frozen=True, slots=True)
class _PlannedRow:
    """One deployment; ``cells``: by column."""

    label: str
    status: str
    cells: dict[str, str]


def _row(estimate: PlanEstimate, deployment: Deployment) -> _PlannedRow:
    status = LEFT_OUT_STATUS if deployment.left_out else deployment.status
    cells = {
        "deployment": deployment.label,
        "status": status,
        "footprint": footprint_text(deployment),
        "points": str(len(estimate.plan.known_levels(deployment.id)) or ""),
        "weights": "",
        "KV tokens": "",
        "at once": "",
        "time": "",
    }
    if deployment.runs:
        cells |= memory_cells(predicted_memory(deployment))
        cells["time"] = hours(estimate.cost(deployment).seconds)
    return _PlannedRow(deployment.label, status, cells)


def memory_cells(memory: PredictedMemory) -> dict[str, str]:
    """The cells on predicted memory, by column; empty where unknown."""
    weights = ""
    tokens = ""
    at_once = ""
    if memory.weight_bytes is not None:
        weights = memory_text(memory.weight_bytes)
    if memory.kv_cache_tokens is not None:
        tokens = f"{memory.kv_cache_tokens:,}"
    if memory.sequences_at_once is not None:
        at_once = f"{memory.sequences_at_once:,.1f}"
    return {"weights": weights, "KV tokens": tokens, "at once": at_once}


def _table(rows: Sequence[_PlannedRow], columns: Sequence[str]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, GAP, 0, 0))
    for name in columns:
        table.add_column(
            name,
            justify="right" if name in NUMBERS else "left",
            overflow="fold",
            no_wrap=name != "deployment",
        )
    for row in rows:
        marked_up = row.cells | {
            "deployment": escape(row.label),
            "status": f"[{STYLES[row.status]}]{row.status}[/]",
        }
        table.add_row(*(marked_up[name] for name in columns))
    return table


def _shown_columns(rows: Sequence[_PlannedRow], width: int) -> list[str]:
    """The columns for which there is room, such that labels break only between words."""
    shown = list(COLUMNS)
    widths = {}
    for name in COLUMNS:
        widths[name] = max([len(name), *(len(row.cells[name]) for row in rows)])
    longest_word = 0
    for row in rows:
        longest_word = max([longest_word, *map(len, row.label.split())])
    label_width = min(widths["deployment"], max(longest_word, LABEL_WIDTH))
    for name in LEFT_OUT:
        others = sum(widths[column] + GAP for column in shown if column != "deployment")
        if label_width + others <= width:
            break
        shown.remove(name)
    return shown


def _left_out_columns(rows: Sequence[_PlannedRow], shown: Sequence[str]) -> list[str]:
    """The columns that have something to say and for which there was no room."""
    left_out = [name for name in COLUMNS if name not in shown]
    return [name for name in left_out if any(row.cells[name] for row in rows)]


def _labels_by_reason(plan: Plan) -> dict[str, list[str]]:
    """Each sentence about deployments once, with the labels of these deployments.

    The sentences are reasons for a status, remarks, and lists of levels of a deployment's own.
    """
    pairs = []
    for deployment in plan.deployments:
        texts = [f"{deployment.status}: {reason}" for reason in deployment.reasons]
        texts += [f"note: {remark}" for remark in deployment.remarks]
        if plan.shortlist is not None and deployment.left_out is not None:
            reason = shared_left_out_text(deployment.left_out, plan.shortlist)
            texts.append(f"{LEFT_OUT_STATUS}: {reason}")
        if deployment.levels:
            levels = [load_text(level.control, level.value) for level in deployment.levels]
            texts.append(f"levels: {', '.join(levels)}")
        pairs += [(text, deployment.label) for text in texts]
    return values_by_key(pairs)


def risk_lines(plan: Plan) -> Iterator[str]:
    """Why deployments that run are risky: each reason once, with the labels of its deployments."""
    reasons: list[tuple[str, str]] = []
    for deployment in plan.runnable():
        if deployment.status == "risky":
            reasons += [(reason, deployment.label) for reason in deployment.reasons]
    for reason, labels in values_by_key(reasons).items():
        yield f"risky: {reason} ({_some(labels)})"


def _some(labels: Sequence[str]) -> str:
    if len(labels) <= MOST_LABELS:
        return ", ".join(labels)
    return ", ".join([*labels[:MOST_LABELS], f"{len(labels) - MOST_LABELS} more"])


def footprint_text(deployment: Deployment) -> str:
    """``2 replicas x 8 GPUs``: replicas, nodes and devices, without those of one.

    Where replicas have roles, each role has its part.
    """
    settings = deployment.settings
    if settings.url:
        if not settings.endpoint_gpus:
            return "endpoint"
        return f"endpoint of {counted(settings.endpoint_gpus, 'GPU')}"
    unit = "core" if deployment.on_cpus else "GPU"
    parts = [f"{role} {_replicas(part, unit)}".strip() for role, part in settings.engines.items()]
    if settings.router:
        parts.append(settings.router.engine)
    return " + ".join(parts)


def _replicas(settings: EngineSettings, unit: str) -> str:
    parts = []
    if settings.replicas > 1:
        parts.append(f"{settings.replicas} replicas")
    if settings.nnodes > 1:
        parts.append(f"{settings.nnodes} nodes")
    parts.append(counted(settings.devices_per_node, unit))
    return " x ".join(parts)
