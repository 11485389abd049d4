"""Starts of engines, predicted beside reported: ``orchestrator results --launches``; their logs:
``logs``.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from orchestrator.analysis.launches import PredictedFigure, StoredLaunch, load_launches
from orchestrator.report.documents.launch import LaunchDocument
from orchestrator.report.text import Column, plain, say, size_text, table
from orchestrator.report.words import failure_text
from orchestrator.results.store import Store
from orchestrator.spec.settings import is_version

_EMULATED = (
    "emulated: an emulator computes its figures by the plan's own rules; that they agree "
    "proves nothing"
)


@dataclass(frozen=True, slots=True)
class _FigureColumn:
    """A figure of ``analysis.launches.FIGURES``, predicted above reported."""

    title: str
    figure: str
    format: Callable[[float], str]


@dataclass(frozen=True, slots=True)
class _ReportedColumn:
    """What is never predicted. ``text_of`` returns None where the engine did not report it."""

    title: str
    text_of: Callable[[LaunchDocument], str | None]


def _tokens_text(tokens: float) -> str:
    return f"{tokens:,.0f}"


def _concurrency_text(sequences: float) -> str:
    return f"{sequences:,.1f}"


def _checkpoint_text(document: LaunchDocument) -> str | None:
    size = document.checkpoint_bytes
    return size_text(size) if size else None


def _kernel_text(document: LaunchDocument) -> str | None:
    kernel = document.quantization_kernel
    return kernel.removesuffix("Kernel").removesuffix("Linear") if kernel else None


def _network_text(document: LaunchDocument) -> str | None:
    """NCCL calls plain TCP ``Socket``."""
    return "TCP" if document.network == "Socket" else document.network


def _kv_transport_text(document: LaunchDocument) -> str | None:
    return document.kv_transport


_FIGURES = (
    _FigureColumn("weights", "weight_bytes", size_text),
    _FigureColumn("KV cache", "kv_cache_bytes", size_text),
    _FigureColumn("KV tokens", "kv_cache_tokens", _tokens_text),
    _FigureColumn("concurrency", "max_concurrency", _concurrency_text),
)
_REPORTED = (
    _ReportedColumn("checkpoint\nread", _checkpoint_text),
    _ReportedColumn("kernel of\nweights", _kernel_text),
    _ReportedColumn("network", _network_text),
    _ReportedColumn("KV caches\nover", _kv_transport_text),
)


def launches_text(documents: Sequence[LaunchDocument]) -> Iterator[str]:
    """A table of the launches that served; below it the failed ones, and where their logs are."""
    served = [document for document in documents if document.has_served]
    failed = [document for document in documents if not document.has_served]
    if served:
        yield from _table(served)
        yield ""
    if any(document.row.emulated for document in documents):
        yield say(_EMULATED, "yellow")
    for document in failed:
        yield say(f"failed: {document.label}: {failure_text(document.row)}", "red")
        if document.row.log_uri:
            yield say(f"  log: {document.row.log_uri}")
    yield say(f"launches: {len(served)} served, {len(failed)} failed", "dim")


def _table(served: Sequence[LaunchDocument]) -> Iterator[str]:
    """What is never predicted has a column where an engine reported it."""
    reported = [
        column for column in _REPORTED if any(column.text_of(document) for document in served)
    ]
    columns = [
        Column("deployment", fold=True),
        Column("engine version", fold=True),
        Column("ready\nafter s"),
        *(Column(f"{column.title}\npredicted\nreported") for column in _FIGURES),
        *(Column(column.title) for column in reported),
    ]
    yield from table(columns, [_cells(document, reported) for document in served])


def _cells(document: LaunchDocument, reported: Sequence[_ReportedColumn]) -> list[str]:
    badge = "\nemulated" if document.row.emulated else ""
    ready_s = document.row.ready_s
    return [
        document.label + badge,
        _version_cell(document),
        "-" if ready_s is None else f"{ready_s:.1f}",
        *(_figure_cell(document.figures[column.figure], column.format) for column in _FIGURES),
        *(column.text_of(document) or "-" for column in reported),
    ]


def _version_cell(document: LaunchDocument) -> str:
    """The version that was reported; also the one that was asked for, where they differ."""
    reported = document.row.engine_version or "not said"
    asked = document.asked_version
    lines = [reported]
    if document.flags_known_as_of:
        lines.append(f"(flags as of {document.flags_known_as_of})")
    if asked is not None and not is_version(asked, reported):
        lines.append(f"(asked {asked})")
    return "\n".join(lines)


def _figure_cell(figure: PredictedFigure, format_figure: Callable[[float], str]) -> str:
    """Predicted, reported, and how far off the prediction was."""
    predicted, reported = figure.predicted, figure.reported
    if predicted is None and reported is None:
        return "-"
    lines = ["-" if value is None else format_figure(value) for value in (predicted, reported)]
    if figure.difference_percent is not None:
        lines.append(f"{figure.difference_percent:+.1f} %")
    return "\n".join(lines)


def log_text(store: Store, deployment: str | None, lines: int) -> Iterator[str]:
    """The last lines of the logs of failed launches, or of all launches of one deployment.
    ``lines`` 0: whole logs.
    """
    for launch in load_launches(store):
        if _is_wanted(launch, deployment):
            yield from _log_lines(store, launch, lines)


def _is_wanted(launch: StoredLaunch, deployment: str | None) -> bool:
    """``deployment``: part of a label, or the beginning of an id; None: what failed is wanted."""
    row = launch.row
    if deployment is None:
        return row.status != "ok"
    ids = (row.deployment_id, row.launch_id)
    return deployment in launch.label or any(each.startswith(deployment) for each in ids)


def _log_lines(store: Store, launch: StoredLaunch, lines: int) -> Iterator[str]:
    row = launch.row
    state = "served" if row.status == "ok" else f"failed: {failure_text(row)}"
    yield say(f"{launch.label}, launch {row.launch_id}: {state}", "bold")
    stored = store.read_log(row.log_uri) if row.log_uri else None
    if stored is None:
        text = row.log_tail or "no log was stored"
    else:
        text = stored.decode(errors="replace")
    for line in text.splitlines()[-lines:]:
        yield plain(line)
    yield say(f"  log: {row.log_uri}" if row.log_uri else "", "dim")
