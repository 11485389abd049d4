"""The picture of ``orchestrator results --plot``: frontier and curves of every group of points.

Each part of a mix has a group of its own, with curves alone: parts share their devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.base.errors import InputError
from orchestrator.base.grouping import values_by_key
from orchestrator.base.text import listed
from orchestrator.capacity.best import group_of
from orchestrator.report.documents.part import PartDocument, part_documents
from orchestrator.report.documents.point import PointDocument
from orchestrator.report.plot import look
from orchestrator.report.plot.charts import (
    curve_handles,
    draw_curves,
    draw_frontier,
    frontier_handles,
    needed_columns,
)
from orchestrator.report.plot.points import (
    MOST_CURVES,
    PlottedPoint,
    Series,
    all_points,
    points_of_documents,
    points_of_parts,
    series_like,
    series_of,
)
from orchestrator.report.results_text import ShownResults

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".svg", ".png")
CURVES = ("output_token_throughput", "ttft_ms.p99", "tpot_ms.p99", "attainment")
MOST_GROUPS = 6  # in one picture: more would not fit on a page
PANEL_COLUMNS = 3
LEGEND_COLUMNS = 3
PANEL_WIDTH = 4.6  # inches
PANEL_HEIGHT = 3.4  # inches
PNG_DOTS = 120  # per inch


@dataclass(frozen=True, slots=True)
class Picture:
    """What a picture shows.

    ``points``: how many points it shows, whole or by part. ``parts``: the names of the parts of
    mixes that it shows. ``left_out``: titles of groups for which there was no room, names of parts
    and deployments without a curve, and points that no curve shows.
    """

    points: int
    parts: tuple[str, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Panel:
    """One pair of axes. ``y``: the column whose curves it shows; None: it shows the frontier."""

    series: Sequence[Series]
    y: str | None = None

    def draw(self, axes: Axes) -> None:
        if self.y is None:
            draw_frontier(axes, self.series)
        else:
            draw_curves(axes, self.series, self.y)


@dataclass(frozen=True, slots=True)
class _Group:
    """Points that compare: those of one workload, model and hardware.

    ``panels``: none where a part has nothing to draw over load. ``part``: the part of a mix that
    the points are of; None: they are whole points.
    """

    title: str
    series: Sequence[Series]
    panels: Sequence[_Panel]
    part: str | None = None

    def handles(self) -> list[Any]:
        """The entries of the legend."""
        return frontier_handles(self.series) if self.part is None else curve_handles(self.series)

    def shown_points(self) -> Iterator[PlottedPoint]:
        """The points that some panel shows: a frontier shows all, curves those with a place on the
        axis of load.
        """
        if self.part is None:
            yield from all_points(self.series)
            return
        for point in all_points(self.series[:MOST_CURVES]):
            if math.isfinite(point.numbers["level"]):
                yield point

    def reason_not_drawn(self) -> str:
        """Why it has no panels."""
        if all(math.isinf(point.numbers["level"]) for point in all_points(self.series)):
            return look.AT_ONCE
        return "no figures over load"

    @property
    def rows(self) -> int:
        return math.ceil(len(self.panels) / PANEL_COLUMNS)

    @property
    def height(self) -> float:
        """The height in inches, with the title and the legend."""
        legend_lines = math.ceil(len(self.handles()) / LEGEND_COLUMNS) + 1
        return self.rows * PANEL_HEIGHT + 0.5 + legend_lines * look.LEGEND_LINE_HEIGHT


def check_picture_path(path: Path) -> None:
    """Raises InputError for a file that is neither SVG nor PNG, and where matplotlib is missing."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"--plot {path}: write a file that ends in {' or '.join(FORMATS)}")
    look.check_matplotlib()


def write_picture(path: Path, shown: ShownResults, part: str | None = None) -> Picture:
    """Writes the frontier and the curves of each group; the same points give the same bytes.

    ``part``: the only part of mixes to be drawn; None: whole points, and below them all parts.
    Raises InputError where nothing was measured, for a part that is unknown or has nothing to draw,
    where the file cannot be written, and as ``check_picture_path`` does.
    """
    check_picture_path(path)
    groups: list[_Group] = []
    for documents in _documents_of_groups(shown):
        groups += _groups(documents)
    if not groups:
        raise InputError(f"--plot {path}: no point there has figures to draw")
    if part is not None:
        groups = _of_part(groups, part)
    drawable = [group for group in groups if group.panels]
    drawn = _with_room(drawable)
    partial = path.with_name(f".{path.name}.partial")
    figure = _figure(drawn)
    try:
        _save(figure, partial, path.suffix.lower().removeprefix("."))
        partial.replace(path)  # a picture that was there stays until this one is whole
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise InputError(f"--plot {path}: {error.strerror or error}") from error
    left_out = [group.title for group in drawable if group not in drawn]
    points = set()
    for group in drawn:
        left_out += [each.label for each in group.series[MOST_CURVES:]]
        at_once = look.at_once_text(group.series)
        if at_once:
            left_out.append(f"over load {at_once}")
        points |= {(point.experiment, point.point_id) for point in group.shown_points()}
    for group in groups:
        if not group.panels:
            left_out.append(f"{group.part}: {group.reason_not_drawn()}")
    parts = dict.fromkeys(group.part for group in drawn if group.part is not None)
    return Picture(len(points), tuple(parts), tuple(dict.fromkeys(left_out)))


def _of_part(groups: Sequence[_Group], part: str) -> list[_Group]:
    """The groups of this part of a mix. Raises InputError where no mix has it, and where none of
    its groups has anything to draw.
    """
    of_part = [group for group in groups if group.part == part]
    if not of_part:
        names = sorted({group.part for group in groups if group.part is not None})
        those = f"the parts there are {listed(names)}" if names else "no point there is of a mix"
        raise InputError(f"--part {part!r}: {those}")
    if not any(group.panels for group in of_part):
        raise InputError(f"--part {part!r} has no curves: {of_part[0].reason_not_drawn()}")
    return of_part


def _with_room(groups: Sequence[_Group]) -> list[_Group]:
    """As many groups as one picture has room for, in their order; whole points before parts."""
    by_rank = sorted(groups, key=lambda group: group.part is not None)
    chosen = by_rank[:MOST_GROUPS]
    return [group for group in groups if group in chosen]


def _documents_of_groups(shown: ShownResults) -> Iterator[list[PointDocument]]:
    """The points that have figures, by group; runs of ``load`` are one group together."""
    for section in shown.sections:
        measured = [document for document in section.documents if document.point.used_repeats]
        yield from values_by_key((group_of(each.point), each) for each in measured).values()
    of_load_runs = [
        document for document in shown.points_of_load_runs if document.point.used_repeats
    ]
    if of_load_runs:
        yield of_load_runs


def _groups(documents: Sequence[PointDocument]) -> list[_Group]:
    """The group of these points and, of a mix, a group of each part."""
    names: list[str] = []
    for y in CURVES:
        names += needed_columns(y)
    columns = dict.fromkeys(names)
    points = points_of_documents(documents, columns)
    series = series_of(points)
    groups = [_Group(look.title_of(points), series, [_Panel(series), *_curve_panels(series)])]
    parts: list[PartDocument] = []
    for document in documents:
        parts += part_documents(document)
    for part, of_part in values_by_key((each.part, each) for each in parts).items():
        points = points_of_parts(of_part, columns)
        alike = series_like(series, points)
        groups.append(_Group(look.title_of(points), alike, _curve_panels(alike), part))
    return groups


def _curve_panels(series: Sequence[Series]) -> list[_Panel]:
    """The curves over load; levels of requests/s and of requests in flight have their own axes."""
    panels: list[_Panel] = []
    for control in dict.fromkeys(point.control for point in all_points(series)):
        of_control = [each.of_control(control) for each in series]
        panels += [_Panel(of_control, y) for y in CURVES if _has_values(of_control, y)]
    return panels


def _has_values(series: Sequence[Series], y: str) -> bool:
    """Whether there is anything to draw over load."""
    for each in series:
        for point in each.points:
            if math.isfinite(point.numbers[y]) and math.isfinite(point.numbers["level"]):
                return True
    return False


def _figure(groups: Sequence[_Group]) -> Figure:
    heights = [group.height for group in groups]
    figure = look.new_figure(PANEL_COLUMNS * PANEL_WIDTH, sum(heights))
    parts = figure.subfigures(len(groups), 1, height_ratios=heights, squeeze=False)
    for group, part in zip(groups, parts[:, 0], strict=True):
        _draw_group(group, part)
    return figure


def _draw_group(group: _Group, part: Any) -> None:
    """Draws a group. ``part``: the subfigure into which it is drawn."""
    part.suptitle(look.written(group.title), fontsize="medium", fontweight="bold")
    every = part.subplots(group.rows, PANEL_COLUMNS, squeeze=False).ravel()
    for panel, axes in zip(group.panels, every, strict=False):
        panel.draw(axes)
    for axes in every[len(group.panels) :]:
        axes.set_axis_off()
    handles = group.handles()
    note = look.curves_note(group.series, "without curves")
    part.legend(
        handles=[*handles, *look.note_handles(note)],
        loc="outside lower center",
        ncols=LEGEND_COLUMNS,
        fontsize="small",
        frameon=False,
    )


def _save(figure: Figure, path: Path, form: str) -> None:
    """Writes a figure without a date, and with names that do not change.

    So a picture that is kept in git changes only with its points.
    """
    from matplotlib import rc_context

    metadata = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
    with rc_context(look.SVG_SETTINGS):
        figure.savefig(path, format=form, dpi=PNG_DOTS, metadata=metadata)
