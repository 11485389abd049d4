"""The points that a picture shows, from a frame or from stored results."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from orchestrator.analysis.frontier import on_frontier
from orchestrator.analysis.knee import knees
from orchestrator.base.errors import InputError
from orchestrator.base.grouping import values_by_key
from orchestrator.base.registry import did_you_mean
from orchestrator.report.columns import column_named, column_names
from orchestrator.report.documents.part import PartDocument
from orchestrator.report.documents.point import PointDocument, point_document
from orchestrator.report.origin import badge_of
from orchestrator.report.part_columns import part_columns
from orchestrator.report.selection import experiments, with_limits
from orchestrator.report.text import plain
from orchestrator.results.root import open_results

MOST_CURVES = 8  # as many as there are colours that everybody can tell apart
VALID = "valid"
UNCHECKED = "unchecked"
_NAMES = (
    *("experiment", "workload", "deployment", "deployment_id", "point_id", "model", "hardware"),
    *("control", "validity", "source"),
)
_NUMBERS = ("level", "per_user", "per_device", "per_device.lower", "per_device.upper")
_FLAGS = ("emulated", "simulated")
_PER_DEVICE = ("per_device", "per_device.lower", "per_device.upper")  # which parts do not have
PART = "part"  # a column of frames of parts alone
# columns with the factors of the model's error; a frame has them only if they were asked for
MODEL_ERRORS = ("model_error.ttft", "model_error.others")
# columns that every picture of points needs
COLUMNS = (*_NAMES, *_FLAGS, *_NUMBERS)
Frame = Any  # pandas.DataFrame, polars.DataFrame or pyarrow.Table


@dataclass(frozen=True, slots=True)
class SeriesKey:
    """What the points of one curve have in common."""

    experiment: str
    workload: str
    deployment_id: str
    simulated: bool
    source: str | None


@dataclass(frozen=True, slots=True)
class PlottedPoint:
    """A point to be drawn. ``numbers``: by name of column; NaN where the point has none."""

    experiment: str
    workload: str
    deployment: str
    deployment_id: str
    point_id: str
    model: str
    hardware: str
    control: str
    validity: str
    emulated: bool
    simulated: bool
    source: str | None  # the other tool that measured it; None: this program did
    numbers: Mapping[str, float]

    @property
    def may_have_band(self) -> bool:
        """Whether an interval of any of its figures is known, or the error of the model."""
        return any(
            not math.isnan(value)
            for name, value in self.numbers.items()
            if name in MODEL_ERRORS or name.endswith(".lower")
        )

    @property
    def key(self) -> SeriesKey:
        return SeriesKey(
            self.experiment, self.workload, self.deployment_id, self.simulated, self.source
        )

    @property
    def is_valid(self) -> bool:
        return self.validity in (VALID, UNCHECKED)


@dataclass(frozen=True, slots=True)
class Series:
    """The points of one deployment in one workload, by ascending level.

    ``rank``: its place among all series, from 0, which decides its colour and its marker.
    """

    label: str
    rank: int
    points: tuple[PlottedPoint, ...]

    @property
    def has_all_at_once(self) -> bool:
        """Whether some point has all requests due at once."""
        return any(math.isinf(point.numbers["level"]) for point in self.points)

    def of_control(self, control: str) -> Series:
        """The points whose levels are of this kind."""
        points = tuple(point for point in self.points if point.control == control)
        return replace(self, points=points)


def all_points(series: Iterable[Series]) -> Iterator[PlottedPoint]:
    """The points of several series, one series after the other."""
    for each in series:
        yield from each.points


def points_of(source: Frame | str, more_columns: Iterable[str] = ()) -> list[PlottedPoint]:
    """The points of a frame, or the current ones of all experiments at a URI.

    ``more_columns``: numbers that are needed beside COLUMNS. Raises InputError for a column that
    the frame does not have, or that is no column at all.
    """
    if isinstance(source, str):
        return points_of_documents(stored_documents(source), more_columns)
    return _points_of_frame(source, more_columns)


def stored_documents(uri: str) -> list[PointDocument]:
    """The current points of all experiments at ``uri``, under the limits of their files."""
    documents: list[PointDocument] = []
    for judged in with_limits(None, experiments(open_results(uri), None)):
        at_knees = knees(judged.points.current)
        for point in judged.points.current:
            documents.append(point_document(point, judged.slos, knees=at_knees))
    return documents


def points_of_documents(
    documents: Sequence[PointDocument], more_columns: Iterable[str] = ()
) -> list[PlottedPoint]:
    """The points of documents that were read already; see ``points_of``."""
    columns = {}
    for name in (*COLUMNS, *more_columns):
        column = column_named(name)
        if column is None:
            raise InputError(f"unknown column {name!r}; {did_you_mean(name, column_names())}")
        columns[name] = [column.value(document) for document in documents]
    return _points(columns)


def points_of_parts(
    parts: Sequence[PartDocument], more_columns: Iterable[str] = ()
) -> list[PlottedPoint]:
    """The parts of mixes as points, each of the workload ``MIX: PART``.

    ``more_columns``: numbers that are needed beside COLUMNS; NaN where parts have none.
    """
    columns: dict[str, list[object]] = {}
    for name in (*COLUMNS, *more_columns):
        column = part_columns().get(name)
        columns[name] = [None if column is None else column.value(part) for part in parts]
    mixes = columns["workload"]
    columns["workload"] = [
        _part_workload(mix, part.part) for mix, part in zip(mixes, parts, strict=True)
    ]
    return _points(columns)


def _part_workload(mix: object, part: object) -> str:
    return f"{mix}: {part}"


def _points_of_frame(frame: Frame, more_columns: Iterable[str]) -> list[PlottedPoint]:
    names = column_names_of(frame)
    is_of_parts = PART in names
    columns: dict[str, list[Any]] = {}
    for name in (*COLUMNS, *more_columns):
        if name in names:
            columns[name] = values_of(frame, name)
        elif is_of_parts and (name in _PER_DEVICE or name.endswith((".lower", ".upper"))):
            columns[name] = [None] * len(frame)
        elif name not in MODEL_ERRORS:
            raise InputError(
                f"this frame has no column {name!r}; orchestrator.points(uri) has those that"
                " pictures need"
            )
    if is_of_parts:
        parts = zip(columns["workload"], values_of(frame, PART), strict=True)
        columns["workload"] = [_part_workload(mix, part) for mix, part in parts]
    return _points(columns)


def column_names_of(frame: Frame) -> list[str]:
    """The names of the columns of a pandas or Polars frame, or of an Arrow table."""
    return list(frame.column_names if isinstance(frame, pa.Table) else frame.columns)


def values_of(frame: Frame, name: str) -> list[Any]:
    """The values of a column of such a frame."""
    column = frame[name]
    values: list[Any] = column.to_pylist() if isinstance(frame, pa.Table) else column.to_list()
    return values


def _points(columns: Mapping[str, Sequence[object]]) -> list[PlottedPoint]:
    numeric = [name for name in columns if name not in (*_NAMES, *_FLAGS)]
    points = []
    for row in range(len(columns["point_id"])):
        names = {name: _text(columns[name][row]) for name in _NAMES if name != "source"}
        numbers = {name: number_of(columns[name][row]) for name in numeric}
        points.append(
            PlottedPoint(
                **names,
                emulated=columns["emulated"][row] is True,
                simulated=columns["simulated"][row] is True,
                source=_text(columns["source"][row]) or None,
                numbers=numbers,
            )
        )
    return points


def _text(value: object) -> str:
    return plain(value) if isinstance(value, str) else ""


def number_of(value: object) -> float:
    """The value as a number; NaN for None and for pandas' NA; True is 1."""
    return float(value) if isinstance(value, int | float | np.number) else math.nan


class _Precedence(NamedTuple):
    """Which deployment is drawn first: the highest, by the first field in which two differ."""

    is_on_frontier: bool
    most_per_device: float


def series_of(points: Sequence[PlottedPoint]) -> list[Series]:
    """The points by deployment, the best deployment first.

    First come the deployments on the frontier, then those with the most tokens/s per device. So the
    first MOST_CURVES are the same in every picture of the same points.
    """
    groups = values_by_key((point.key, point) for point in points)
    frontier_ids = {id(point) for point in frontier_points(points)}

    def precedence(group: Sequence[PlottedPoint]) -> _Precedence:
        is_on_frontier = any(id(point) in frontier_ids for point in group)
        return _Precedence(is_on_frontier, _most_per_device(group))

    ordered = sorted(groups.values(), key=precedence, reverse=True)
    labels = _labels(ordered)
    series = []
    for rank, (label, group) in enumerate(zip(labels, ordered, strict=True)):
        by_level = sorted(group, key=lambda point: point.numbers["level"])
        series.append(Series(label, rank, tuple(by_level)))
    return series


def series_like(series: Sequence[Series], points: Iterable[PlottedPoint]) -> list[Series]:
    """The points in place of those of ``series`` that have the same ids.

    A deployment so keeps its name and its colour. Deployments without a point are left out.
    """
    by_id = {(point.experiment, point.point_id): point for point in points}
    alike = []
    for each in series:
        ids = [(point.experiment, point.point_id) for point in each.points]
        own = tuple(by_id[point_id] for point_id in ids if point_id in by_id)
        if own:
            alike.append(replace(each, points=own))
    return alike


def _most_per_device(points: Iterable[PlottedPoint]) -> float:
    """The most tokens/s per device of any valid point; -inf where no point is valid."""
    values = [point.numbers["per_device"] for point in points if point.is_valid]
    return max((value for value in values if not math.isnan(value)), default=-math.inf)


def frontier_points(points: Sequence[PlottedPoint]) -> list[PlottedPoint]:
    """The points that ``orchestrator.frontier`` keeps, by ascending tokens/s that a user sees."""
    per_user = [point.numbers["per_user"] if point.is_valid else math.nan for point in points]
    per_device = [point.numbers["per_device"] for point in points]
    stays = on_frontier(np.array(per_user, np.float64), np.array(per_device, np.float64))
    kept = [point for point, is_kept in zip(points, stays, strict=True) if is_kept]
    return sorted(kept, key=lambda point: point.numbers["per_user"])


def _labels(groups: Sequence[Sequence[PlottedPoint]]) -> list[str]:
    """The names of the deployments; where two have the same name, with what tells them apart."""
    firsts = [group[0] for group in groups]
    same_name: dict[str, list[PlottedPoint]] = defaultdict(list)
    for point in firsts:
        same_name[point.deployment].append(point)
    labels = []
    for point in firsts:
        label = point.deployment
        for name in ("experiment", "workload", "model", "hardware"):
            values = {getattr(namesake, name) for namesake in same_name[point.deployment]}
            if len(values) > 1:
                label += f", {getattr(point, name)}"
        if len({badge_of(namesake) for namesake in same_name[point.deployment]}) > 1:
            label += badge_of(point)
        labels.append(label)
    return labels
