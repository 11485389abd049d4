"""Results for notebooks: ``import orchestrator``, then ``orchestrator.points("results/")``.

Frames are pandas frames, Polars frames with ``library="polars"``, or Arrow tables with
``library="arrow"``. The JSON of ``orchestrator results`` has the same names, nested values with
dots. There are two exceptions: ``repeats`` is a number here and a list in JSON, where
``merged.used`` is the number; ``slo`` is a text here and an object in JSON, where ``slo.text`` is
the text. The unit and the description of each column are metadata of the Arrow fields. A pandas
frame has them as ``attrs["units"]`` and ``attrs["descriptions"]``; a Polars frame has none.

``columns``: None: the usual ones; ``"all"``; or a list of names. An empty frame has its columns
too. Each function raises InputError for a name that is no column, for an unknown experiment, and
where nothing is stored at ``uri``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.analysis.launches import load_launches
from orchestrator.analysis.spending import spending_of
from orchestrator.base.errors import InputError
from orchestrator.report.arrow_frames import Frame, Library, arrow_table, as_frame, with_units
from orchestrator.report.capacity_columns import capacity_columns
from orchestrator.report.column import chosen_columns
from orchestrator.report.columns import (
    SIMULATED_BESIDE_MEASURED,
    SOURCES_MIXED,
    named_slo_columns,
    point_columns,
)
from orchestrator.report.documents.answer import AnswerDocument, answer_document
from orchestrator.report.documents.capacity import CapacityDocument, capacity_documents
from orchestrator.report.documents.launch import LaunchDocument, launch_documents
from orchestrator.report.documents.part import PartDocument, part_documents
from orchestrator.report.documents.point import PointDocument, point_document
from orchestrator.report.flat_frames import metrics, read
from orchestrator.report.launch_columns import launch_columns
from orchestrator.report.part_columns import named_slo_columns_of_parts, part_columns
from orchestrator.report.ranked_columns import RankedRow, ranked_columns
from orchestrator.report.repeat_columns import RepeatRow, repeat_columns
from orchestrator.report.results_text import point_rows
from orchestrator.report.selection import (
    answers,
    experiments,
    ranking_limits,
    with_limits,
)
from orchestrator.report.series import ReadingsTable, series_table
from orchestrator.report.spending_words import SpendingRow, spending_columns
from orchestrator.results.root import open_results
from orchestrator.spec.load import Per

if TYPE_CHECKING:
    import pyarrow as pa

    from orchestrator.results.store import Store

__all__ = [
    "best",
    "capacities",
    "costs",
    "frontier",
    "launches",
    "metrics",
    "parts",
    "points",
    "read",
    "repeats",
    "requests",
    "series",
]

Columns = str | Sequence[str] | None
# the reason that ``best`` gives where nothing is ranked
NOTHING_TO_RANK = "no experiment there names limits, or has anything that could be ranked"
_OF_FRONTIER = ("per_user", "per_device")


def points(
    uri: str,
    *,
    slo: str | None = None,
    experiment: str | None = None,
    columns: Columns = None,
    superseded: bool = False,
    library: Library = "pandas",
) -> Frame:
    """One row per point that the plan asks for, as ``orchestrator results`` shows it.

    ``slo``: limits, or the name of an SLO of the file, which ``attainment``, ``met`` and
    ``goodput`` are about. None: they are about the file's first SLO, and ``columns="all"`` has
    every SLO as ``slos.<name>.attainment`` and so on. ``superseded``: also the points of earlier
    versions of the file.
    """
    documents = _documents(uri, slo, experiment, superseded)
    slo_names: dict[str, None] = {}
    for document in documents:
        slo_names.update((result.slo.name, None) for result in document.slo_results)
    named = {column.name: column for column in named_slo_columns(slo_names)}
    chosen = chosen_columns(point_columns() | named, columns)
    return as_frame(arrow_table(chosen, documents), library)


def parts(
    uri: str,
    *,
    slo: str | None = None,
    experiment: str | None = None,
    columns: Columns = None,
    superseded: bool = False,
    library: Library = "pandas",
) -> Frame:
    """One row per point and part of its mix; points of other workloads have none.

    Figures are those of the part's requests alone; throughputs of all parts add up to that of the
    point. ``attainment``, ``met`` and ``goodput`` are about the limits on the part. The arguments
    are those of ``points``.
    """
    rows: list[PartDocument] = []
    slo_names: dict[str, None] = {}
    for document in _documents(uri, slo, experiment, superseded):
        rows += part_documents(document)
        slo_names.update((result.slo.name, None) for result in document.slo_results)
    named = {column.name: column for column in named_slo_columns_of_parts(slo_names)}
    chosen = chosen_columns(part_columns() | named, columns)
    return as_frame(arrow_table(chosen, rows), library)


def best(
    uri: str,
    slo: str | None = None,
    *,
    per: Per | None = None,
    prices: Mapping[str, float] | None = None,
    experiment: str | None = None,
    columns: Columns = None,
    library: Library = "pandas",
) -> Frame:
    """One row per deployment that meets the limits, the best of each comparison first.

    The ranking is that of ``orchestrator best``. ``per``: None: per GPU, or per deployment where
    the GPUs of one are not known. ``prices``: USD per GPU hour by hardware; they replace those of
    the file. A pandas frame's ``attrs["why"]`` says how certain each ranking is, or why there is
    none.
    """
    stored = experiments(open_results(uri), experiment, prices)
    answer = answer_document(answers(ranking_limits(slo, stored), per).comparisons)
    rows: list[RankedRow] = []
    for document in answer.comparisons:
        for place, ranked in enumerate(document.ranking, 1):
            point = point_document(ranked.deployment.point, [document.comparison.slo])
            rows.append(RankedRow(place, document, ranked, point))
    chosen = chosen_columns(ranked_columns(), columns)
    return as_frame(arrow_table(chosen, rows, {"why": _why(answer)}), library)


def _why(answer: AnswerDocument) -> str:
    reasons = [
        f"{document.comparison.workload} of {document.comparison.experiment}: {document.verdict}"
        for document in answer.comparisons
    ]
    return "; ".join(reasons) or NOTHING_TO_RANK


def repeats(
    uri: str,
    *,
    slo: str | None = None,
    experiment: str | None = None,
    columns: Columns = None,
    superseded: bool = False,
    library: Library = "pandas",
) -> Frame:
    """One row per repeat of each point, failed ones too; it shows the attempt that counts.

    The arguments are those of ``points``.
    """
    rows: list[RepeatRow] = []
    for document in _documents(uri, slo, experiment, superseded):
        rows += [RepeatRow(document, repeat) for repeat in document.repeats]
    return as_frame(arrow_table(chosen_columns(repeat_columns(), columns), rows), library)


def capacities(
    uri: str,
    *,
    slo: str | None = None,
    experiment: str | None = None,
    columns: Columns = None,
    library: Library = "pandas",
) -> Frame:
    """One row per SLO and deployment whose capacity was searched: what the search claims.

    Loads are in requests/s or requests in flight (``control``). ``high`` is empty where no level
    was shown to fail.
    """
    rows: list[CapacityDocument] = []
    for judged in with_limits(slo, experiments(open_results(uri), experiment)):
        rows += capacity_documents(judged.experiment, judged.points.current, judged.slos)
    return as_frame(arrow_table(chosen_columns(capacity_columns(), columns), rows), library)


def launches(
    uri: str,
    *,
    experiment: str | None = None,
    columns: Columns = None,
    library: Library = "pandas",
) -> Frame:
    """One row per engine start, failed ones too, with predicted and reported figures."""
    rows: list[LaunchDocument] = []
    for stored in experiments(open_results(uri), experiment):
        rows += launch_documents(load_launches(stored.store))
    return as_frame(arrow_table(chosen_columns(launch_columns(), columns), rows), library)


def costs(
    uri: str,
    *,
    experiment: str | None = None,
    columns: Columns = None,
    library: Library = "pandas",
) -> Frame:
    """One row per experiment whose hardware has a price: what its devices cost while they were held.

    Starts of engines, failed starts, points that count and points that do not are apart.
    """
    rows: list[SpendingRow] = []
    for stored in experiments(open_results(uri), experiment):
        spending = spending_of(stored.store, stored.points().current)
        if spending is not None:
            rows.append(SpendingRow(stored.name, spending))
    return as_frame(arrow_table(chosen_columns(spending_columns(), columns), rows), library)


def series(
    results: str | Store,
    point: str,
    *,
    table: ReadingsTable = "engine_metrics",
    library: Library = "pandas",
) -> Frame:
    """One row per reading while a point ran: of the engines' own metrics, or of the ``table``
    ``telemetry`` (GPUs) or ``hosts``.

    There are readings of each repeat; the frame is empty where nothing was reported. ``results``:
    a URI, or a ``Store``. ``point``: its ``point_id``. ``seconds`` count from the beginning of the
    steady window (below 0: warm-up) by the driver's clock, so readings of several hosts and of all
    three tables lie on one axis; ``clock_error_ns`` bounds how far they are off. Columns whose
    names end in ``_total``, ``_sum`` and ``_count`` are counters that only grow. Raises InputError
    for a point that is not stored.
    """
    return as_frame(series_table(results, point, table), library)


def requests(
    uri: str, *, experiment: str | None = None, point: str | None = None
) -> Iterator[pa.Table]:
    """Yields the requests of every measurement that counts, one Arrow table each.

    docs/reference/stored-columns.md has the columns; units and descriptions are metadata of the
    fields. ``table.to_pandas()`` and ``polars.from_arrow(table)`` make frames. ``point``: only the
    requests of the point with this id. Raises InputError where no measurement of that point counts.
    """
    is_found = point is None
    for stored in experiments(open_results(uri), experiment):
        store = stored.store
        for attempt in store.winners().values():
            manifest = store.manifest(*attempt.ids)
            if manifest is None:
                continue
            if point is None or manifest.point_id == point:
                is_found = True
                yield with_units(store.read_manifests("requests", [manifest], skip_damaged=True))
    if not is_found:
        raise InputError(f"no requests of a point {point!r} are stored; points(uri) has the ids")


def frontier(points: Frame) -> Frame:
    """The rows of ``points`` (or of ``metrics``) that no other row beats.

    Only rows that are valid or unchecked (other tools) count. A row beats another if it is better
    in tokens/s that a user sees (``per_user``) or in tokens/s per device (``per_device``), and not
    worse in either. Equal rows all stay. Points of different workloads or models should not be
    compared: filter them first. Raises InputError for a frame without these columns, for a frame
    with both simulated and measured points, and for a frame with points of several tools.
    """
    import numpy as np

    from orchestrator.analysis.frontier import on_frontier

    columns = _frontier_columns(points)
    names = getattr(points, "column_names", None) or list(points.columns)
    if "simulated" in names and len(set(points["simulated"].to_numpy().tolist())) > 1:
        raise InputError(SIMULATED_BESIDE_MEASURED)
    if "source" in names and len(_sources(points)) > 1:
        raise InputError(SOURCES_MIXED)
    is_eligible = np.isin(points["validity"].to_numpy().tolist(), ("valid", "unchecked"))
    per_user = np.where(is_eligible, columns["per_user"], np.nan)
    stays = on_frontier(per_user, columns["per_device"])
    is_pandas = hasattr(points, "iloc")
    return points[stays] if is_pandas else points.filter(stays)


def _sources(points: Frame) -> set[str | None]:
    """The tools that measured these points; None: this program."""
    values = points["source"].to_numpy().tolist()
    return {value if isinstance(value, str) else None for value in values}


def _frontier_columns(points: Frame) -> dict[str, Any]:
    """Tokens/s per user and per device; NaN where unknown."""
    import numpy as np

    names = getattr(points, "column_names", None) or list(points.columns)
    if not {"validity", *_OF_FRONTIER} <= set(names):
        raise InputError("a frontier needs the columns validity, per_user and per_device")

    def numbers(name: str) -> Any:
        values = points[name].to_numpy().tolist()
        # where a value is missing, pandas' nullable columns have NA
        known = [value if isinstance(value, int | float) else np.nan for value in values]
        return np.array(known, np.float64)

    return {name: numbers(name) for name in _OF_FRONTIER}


def _documents(
    uri: str, slo: str | None, experiment: str | None, superseded: bool
) -> list[PointDocument]:
    documents: list[PointDocument] = []
    for judged in with_limits(slo, experiments(open_results(uri), experiment)):
        documents += point_rows(judged, superseded)
    return documents
