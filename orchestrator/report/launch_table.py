"""Starts of engines: the table of ``orchestrator results --launches``, and the text of ``logs``."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from orchestrator.analysis.launches import StoredLaunch, load_launches
from orchestrator.report.documents.launch import LaunchDocument
from orchestrator.report.origin import badge_of
from orchestrator.report.spending_words import SpendingRow, spending_text
from orchestrator.report.text import Column, FilledColumn, plain, rows_of, size_text, styled
from orchestrator.report.words import failure_text
from orchestrator.report.written_form import Form
from orchestrator.results.store import Store
from orchestrator.spec.settings import is_version

_EMULATED = (
    "emulated: an emulator computes its figures by the plan's own rules; that they agree "
    "proves nothing"
)
_SIMULATED = "simulated: no engine was started"


@dataclass(frozen=True, slots=True)
class _FigureColumn:
    """A figure of ``analysis.launches.FIGURES``. ``drop_rank``: that of its reported column."""

    title: str
    figure: str
    format: Callable[[float], str]
    drop_rank: int


@dataclass(frozen=True, slots=True)
class _ReportedColumn:
    """A value that is never predicted. ``text_of``: returns None where it was not reported."""

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
    """The network between ranks; NCCL calls plain TCP ``Socket``."""
    return "TCP" if document.network == "Socket" else document.network


def _kv_transport_text(document: LaunchDocument) -> str | None:
    return document.kv_transport


_FIGURES = (
    _FigureColumn("weights", "weight_bytes", size_text, 5),
    _FigureColumn("KV cache", "kv_cache_bytes", size_text, 8),
    _FigureColumn("KV tokens", "kv_cache_tokens", _tokens_text, 0),
    _FigureColumn("concurrency", "max_concurrency", _concurrency_text, 11),
)
_REPORTED = (
    _ReportedColumn("checkpoint\nread", _checkpoint_text),
    _ReportedColumn("kernel of\nweights", _kernel_text),
    _ReportedColumn("network", _network_text),
    _ReportedColumn("KV caches\nover", _kv_transport_text),
)


def launches_text(
    documents: Sequence[LaunchDocument], form: Form, spendings: Sequence[SpendingRow] = ()
) -> Iterator[str]:
    """A table of the launches that served, and below it the failed ones, with their logs.

    ``spendings``: what each experiment cost.
    """
    served = [document for document in documents if document.has_served]
    failed = [document for document in documents if not document.has_served]
    if served:
        columns = list(_columns(served))
        yield from form.table([each.column for each in columns], rows_of(columns))
        yield from form.gap()
    rows = [document.row for document in documents]
    if any(row.simulated for row in rows):
        yield from form.note(_SIMULATED, "yellow")
    if any(row.emulated and not row.simulated for row in rows):
        yield from form.note(_EMULATED, "yellow")
    for document in failed:
        text = f"failed: {document.label}: {failure_text(document.row)}"
        yield from form.short_note(text, "red")
        if document.row.log_uri:
            yield from form.note(f"  log: {document.row.log_uri}")
    yield from form.closing()
    for spent in spendings:
        yield from form.note(f"{spent.experiment}: {spending_text(spent.spending)}", "dim")
    yield from form.note(f"launches: {len(served)} served, {len(failed)} failed", "dim")


def _columns(served: Sequence[LaunchDocument]) -> Iterator[FilledColumn]:
    """The columns of the table. What is never predicted has one only where it was reported."""
    is_mixed = len({badge_of(document.row) for document in served}) > 1
    labels = []
    for document in served:
        badge = badge_of(document.row) if is_mixed else ""
        labels.append(f"{document.label}{badge}")
    yield FilledColumn(Column("deployment", fold=True), labels)
    versions = [_version_cell(document) for document in served]
    yield FilledColumn(Column("engine version", fold=True), versions)
    ready = [document.row.ready_s for document in served]
    texts = ["-" if ready_s is None else f"{ready_s:.1f}" for ready_s in ready]
    yield FilledColumn(Column("ready\nafter s"), texts)
    for of_figure in _FIGURES:
        yield from _figure_columns(served, of_figure)
    for reported in _REPORTED:
        texts = [reported.text_of(document) or "-" for document in served]
        if any(reported.text_of(document) for document in served):
            yield FilledColumn(Column(reported.title, drop_rank=3), texts)


def _figure_columns(
    served: Sequence[LaunchDocument], of_figure: _FigureColumn
) -> Iterator[FilledColumn]:
    """Predicted, reported, and the error of the prediction: each only if a launch has it."""
    figures = [document.figures[of_figure.figure] for document in served]
    predicted = [_value_text(each.predicted, of_figure.format) for each in figures]
    reported = [_value_text(each.reported, of_figure.format) for each in figures]
    errors = [_value_text(each.difference_percent, _percent_text) for each in figures]
    rank = of_figure.drop_rank
    parts = (
        ("predicted", "predicted", rank + 2, predicted),
        ("reported", "reported", rank, reported),
        ("error", "difference_percent", rank + 1, errors),
    )
    for title, name, drop_rank, texts in parts:
        if any(text != "-" for text in texts):
            column = Column(
                title=f"{of_figure.title}\n{title}",
                drop_rank=drop_rank,
                name=f"figures.{of_figure.figure}.{name}",
            )
            yield FilledColumn(column, texts)


def _percent_text(percent: float) -> str:
    return f"{percent:+.1f} %"


def _value_text(value: float | None, format_value: Callable[[float], str]) -> str:
    return "-" if value is None else format_value(value)


def _version_cell(document: LaunchDocument) -> str:
    """The version that was reported, and the one that was asked for if they differ."""
    reported = document.row.engine_version or "not said"
    configured = document.asked_version
    parts = [reported]
    if document.flags_known_as_of:
        parts.append(f"(flags as of {document.flags_known_as_of})")
    if configured is not None and not is_version(configured, reported):
        parts.append(f"(asked {configured})")
    return " ".join(parts)


def log_text(store: Store, deployment: str | None, lines: int) -> Iterator[str]:
    """The last lines of the logs of launches.

    ``deployment``: part of a label, or the beginning of an id: all its launches; None: all launches
    that failed. ``lines``: of each log; 0: all of them.
    """
    for launch in load_launches(store):
        if _is_wanted(launch, deployment):
            yield from _log_lines(store, launch, lines)


def _is_wanted(launch: StoredLaunch, deployment: str | None) -> bool:
    """Whether the log of a launch is wanted; see ``log_text``."""
    row = launch.row
    if deployment is None:
        return row.status != "ok"
    ids = (row.deployment_id, row.launch_id)
    return deployment in launch.label or any(each.startswith(deployment) for each in ids)


def _log_lines(store: Store, launch: StoredLaunch, lines: int) -> Iterator[str]:
    row = launch.row
    state = "served" if row.status == "ok" else f"failed: {failure_text(row)}"
    yield styled(f"{launch.label}, launch {row.launch_id}: {state}", "bold")
    stored = store.read_log(row.log_uri) if row.log_uri else None
    if stored is None:
        text = row.log_tail or "no log was stored"
    else:
        text = stored.decode(errors="replace")
    for line in text.splitlines()[-lines:]:
        yield plain(line)
    yield styled(f"  log: {row.log_uri}" if row.log_uri else "", "dim")
