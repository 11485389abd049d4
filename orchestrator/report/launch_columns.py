"""The columns of an engine start, as ``orchestrator.launches`` has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from operator import attrgetter

from orchestrator.analysis.launches import FIGURES
from orchestrator.report.column import ReportColumn, field_of
from orchestrator.report.columns import by_name
from orchestrator.report.documents.launch import LaunchDocument
from orchestrator.report.shared_columns import (
    deployment_columns,
)
from orchestrator.results.records import LaunchRow

LaunchColumn = ReportColumn[LaunchDocument]
USUAL_OF_LAUNCHES = (
    *("experiment", "deployment", "deployment_id", "launch_id", "engine", "model", "hardware"),
    *("engine_version.reported", "status", "reason", "failure_class", "failure_kind", "log_uri"),
    *("started_unix_ns", "placed_s", "ready_s", "emulated", "simulated"),
    "figures.weight_bytes.predicted",
    *("figures.weight_bytes.reported", "figures.kv_cache_tokens.predicted"),
    *("figures.kv_cache_tokens.reported", "figures.max_concurrency.predicted"),
    *("figures.max_concurrency.reported",),
)
_UNITS_OF_FIGURES = {"weight_bytes": "bytes", "kv_cache_bytes": "bytes"}
_PARTS_OF_FIGURES = {
    "predicted": "as predicted",
    "reported": "as the engine reports it",
    "difference_percent": "predicted minus reported, in per cent",
}


@cache
def launch_columns() -> dict[str, LaunchColumn]:
    """All columns of an engine start. Its command line is left out, since it may hold secrets."""
    columns = [*_launch_head(), *_launch_outcome(), *_launch_figures()]
    return by_name(columns, USUAL_OF_LAUNCHES)


def _launch_row(document: LaunchDocument) -> LaunchRow:
    return document.row


def _of_launch(name: str) -> Callable[[LaunchDocument], object]:
    return field_of(_launch_row, name)


def _launch_head() -> Iterator[LaunchColumn]:
    experiment = _of_launch("experiment")
    deployment_id = _of_launch("deployment_id")
    yield ReportColumn("experiment", "", "name of the experiment", experiment, str)
    yield ReportColumn("deployment", "", "label of the deployment", attrgetter("label"), str)
    yield ReportColumn("deployment_id", "", "id of the deployment", deployment_id, str)
    yield ReportColumn("launch_id", "", "id of the start", _of_launch("launch_id"), str)
    yield from deployment_columns(attrgetter("deployment"))
    description = "version that the file asks for"
    yield ReportColumn("engine_version.asked", "", description, attrgetter("asked_version"), str)
    description = "version that the engine reports"
    reported = _of_launch("engine_version")
    yield ReportColumn("engine_version.reported", "", description, reported, str)


def _launch_outcome() -> Iterator[LaunchColumn]:
    for name, description in (
        ("status", "ok, or failed"),
        ("reason", "why it failed"),
        ("failure_class", "who failed: docs/reference/failures.md"),
        ("failure_kind", "what failed: docs/reference/failures.md"),
        ("log_uri", "log of the engine"),
        ("log_tail", "its last lines"),
    ):
        yield ReportColumn(name, "", description, _of_launch(name), str)
    for name, description in (
        ("placed_s", "from request to placement"),
        ("ready_s", "from process start to ready"),
        ("stopped_s", "that the stop took"),
        ("held_s", "that the devices were held"),
    ):
        yield ReportColumn(name, "s", f"seconds {description}", _of_launch(name))
    started = "when placement was requested, by the driver's wall clock"
    yield ReportColumn("started_unix_ns", "ns", started, _of_launch("started_unix_ns"), int)
    emulated = "whether an emulator was started"
    yield ReportColumn("emulated", "", emulated, _of_launch("emulated"), bool)
    simulated = "whether nothing was started: a model computed its points"
    yield ReportColumn("simulated", "", simulated, _of_launch("simulated"), bool)


def _launch_figures() -> Iterator[LaunchColumn]:
    for name in FIGURES:
        for part, description in _PARTS_OF_FIGURES.items():
            unit = "%" if part == "difference_percent" else _UNITS_OF_FIGURES.get(name, "")
            yield ReportColumn(
                name=f"figures.{name}.{part}",
                unit=unit,
                description=f"{name}: {description}",
                value=_launch_figure(name, part),
            )
    description = "what the engine reported at its start"
    yield ReportColumn("reported", "", description, attrgetter("reported"), Mapping)


def _launch_figure(name: str, part: str) -> Callable[[LaunchDocument], float | None]:
    def value(document: LaunchDocument) -> float | None:
        figure = document.figures.get(name)
        number: float | None = None if figure is None else getattr(figure, part)
        return number

    return value
