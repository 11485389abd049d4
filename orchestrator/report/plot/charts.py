"""The two pictures of points: curves over load, and the frontier."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.base.errors import InputError
from orchestrator.base.text import listed
from orchestrator.report.columns import SIMULATED_BESIDE_MEASURED, SOURCES_MIXED, column_named
from orchestrator.report.plot import look
from orchestrator.report.plot.points import (
    MODEL_ERRORS,
    MOST_CURVES,
    PART,
    Frame,
    PlottedPoint,
    Series,
    all_points,
    column_names_of,
    frontier_points,
    points_of,
    series_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PER_USER = "per_user"
PER_DEVICE = "per_device"
LOGARITHMIC_FROM = 16  # the axis is logarithmic if the highest load is so many times the lowest
SHARES = ("attainment", "agreement")  # columns whose values are from 0 to 1


def curve(
    points: Frame | str,
    y: str = "output_token_throughput",
    x: str = "level",
    *,
    ax: Axes | None = None,
) -> Axes:
    """Draws a figure of each deployment over load, with its 95 % intervals as bands.

    Where points were simulated, the band is where nine in ten measurements lie by the model's known
    error. ``points``: the frame of ``orchestrator.points(uri)``, or some of its rows; or a URI; or
    rows of ``orchestrator.parts(uri)``, where each part of a mix has a curve of its own.
    ``y``, ``x``: names of columns (``ttft_ms.p99``, ``attainment``). A band is drawn where ``y``
    has an interval. At most eight deployments are drawn. The legend names the others, and points
    with all requests due at once, since such a load has no place on an axis. Hollow markers are
    points that are not valid. Raises InputError for an unknown or missing column, for levels
    without a common unit, and where matplotlib is missing.
    """
    look.check_matplotlib()
    plotted = points_of(points, needed_columns(y, x))
    series = series_of(plotted)
    axes = look.new_axes() if ax is None else ax
    draw_curves(axes, series, y, x)
    look.add_title(axes, look.title_of(plotted))
    if x == "level":
        note = look.curves_note(series)
    else:
        note = look.left_out_text([each.label for each in series])
    look.add_legend(axes, curve_handles(series), note, makes_room=ax is None)
    return axes


def needed_columns(y: str, x: str = "level") -> list[str]:
    """The columns that a picture of curves needs.

    These are ``x``, ``y``, the interval of ``y`` where it has one, and the error of the model.
    """
    names = [x, y]
    for bound in (f"{y}.lower", f"{y}.upper"):
        if column_named(bound) is not None:
            names.append(bound)
    return [*names, *MODEL_ERRORS]


def draw_curves(axes: Axes, series: Sequence[Series], y: str, x: str = "level") -> None:
    """Lines and bands of the first MOST_CURVES series, and the names of both axes."""
    x_text = _level_text(series) if x == "level" else look.axis_text(x)
    look.name_axes(axes, x_text, look.axis_text(y))
    for each in series[:MOST_CURVES]:
        drawn = [point for point in each.points if _has_numbers(point, x, y)]
        if drawn:
            _draw_curve(axes, each, drawn, y, x)
    _from_zero(axes)
    if x == "level":
        _spread_loads(axes, series)
    if y in SHARES:
        axes.set_ylim(0, look.TOP_OF_SHARES)


def _draw_curve(axes: Axes, series: Series, points: Sequence[PlottedPoint], y: str, x: str) -> None:
    xs = _numbers(points, x)
    ys = _numbers(points, y)
    is_valid = np.array([point.is_valid for point in points])
    colour = look.colour(series.rank)
    marker = look.marker(series.rank)
    label = look.written(series.label)
    axes.plot(
        xs, ys, color=colour, linestyle=look.line_style(series.rank), linewidth=1.5, label=label
    )
    axes.plot(xs[is_valid], ys[is_valid], color=colour, marker=marker, linestyle="none")
    axes.plot(
        xs[~is_valid],
        ys[~is_valid],
        color=colour,
        marker=marker,
        markerfacecolor="white",
        linestyle="none",
    )
    bounded: list[_Bounded] = []
    for point in points:
        with_band = _bounded(point, y)
        if with_band is not None:
            bounded.append(with_band)
    if bounded:
        axes.fill_between(
            np.array([each.point.numbers[x] for each in bounded]),
            np.array([each.lower for each in bounded]),
            np.array([each.upper for each in bounded]),
            color=colour,
            alpha=look.BAND_OPACITY,
            linewidth=0,
        )


@dataclass(frozen=True, slots=True)
class _Bounded:
    """A point with the band around one of its figures."""

    point: PlottedPoint
    lower: float
    upper: float


def _bounded(point: PlottedPoint, y: str) -> _Bounded | None:
    """The point with the band around a figure; None: it has no band.

    The band is the interval of the figure or, for a simulated latency, what the model's error
    allows.
    """
    if _has_numbers(point, f"{y}.lower", f"{y}.upper"):
        return _Bounded(point, point.numbers[f"{y}.lower"], point.numbers[f"{y}.upper"])
    column = column_named(y)
    error = "model_error.ttft" if "ttft" in y else "model_error.others"
    if column is None or column.unit != "ms" or not _has_numbers(point, error):
        return None
    value = point.numbers[y]
    factor = point.numbers[error]
    return _Bounded(point, value / factor, value * factor)


def curve_handles(series: Sequence[Series]) -> list[Any]:
    """The entries of the legend of curves."""
    shown = series[:MOST_CURVES]
    handles = [look.handle(each.label, each.rank, with_marker=True) for each in shown]
    if any(not point.is_valid for point in all_points(shown)):
        handles.append(look.hollow_handle())
    return handles


def _level_text(series: Sequence[Series]) -> str:
    """The name of the axis of levels. Raises InputError where levels have no common unit."""
    controls = {point.control for point in all_points(series)}
    if len(controls) > 1:
        raise InputError(
            f"levels of {listed(sorted(controls))} have no common axis: plot those of one control,"
            ' such as points[points["control"] == "concurrency"], or x="request_throughput"'
        )
    return look.CONTROL_TEXTS.get("".join(controls), "load")


def frontier(points: Frame | str, *, ax: Axes | None = None) -> Axes:
    """Draws tokens/s that a user sees against tokens/s per GPU or core, and the frontier.

    The frontier is the line of the points that no other point beats (see
    ``orchestrator.frontier``). Upright lines are 95 % intervals or, for simulated points, those of
    the model's error. ``points`` and ``ax``: as for ``curve``. Eight deployments have colours,
    those of the frontier first; the others are grey. Raises InputError for points of several
    workloads, and for simulated beside measured points, since they do not compare; and for rows of
    parts, which have no tokens/s per device.
    """
    look.check_matplotlib()
    if not isinstance(points, str) and PART in column_names_of(points):
        raise InputError(
            "parts of a mix have no tokens/s per device, which a frontier is drawn of: give rows of"
            " orchestrator.points(uri)"
        )
    plotted = points_of(points)
    workloads = sorted({point.workload for point in plotted})
    if len(workloads) > 1:
        raise InputError(
            f"points of the workloads {listed(workloads)} do not compare: plot those of one, such"
            f' as points[points["workload"] == {workloads[0]!r}]'
        )
    if len({point.simulated for point in plotted}) > 1:
        raise InputError(SIMULATED_BESIDE_MEASURED)
    if len({point.source for point in plotted}) > 1:
        raise InputError(SOURCES_MIXED)
    series = series_of(plotted)
    axes = look.new_axes() if ax is None else ax
    draw_frontier(axes, series)
    look.add_title(axes, look.title_of(plotted))
    look.add_legend(axes, frontier_handles(series), makes_room=ax is None)
    return axes


def draw_frontier(axes: Axes, series: Sequence[Series]) -> None:
    """All points, their intervals, the line of the frontier, and the names of both axes."""
    look.name_axes(axes, look.axis_text(PER_USER), look.axis_text(PER_DEVICE))
    edge = frontier_points(list(all_points(series)))
    # steps: what one point gives a user, it also gives a user who asks for less
    axes.plot(
        _numbers(edge, PER_USER),
        _numbers(edge, PER_DEVICE),
        color="black",
        linewidth=1.2,
        drawstyle="steps-pre",
        label="frontier",
        zorder=1.9,
    )
    for each in series:
        _draw_points(axes, each)
    axes.update_datalim([(0, 0)], updatey=False)
    _from_zero(axes)
    axes.set_xlim(left=0)


def _draw_points(axes: Axes, series: Series) -> None:
    is_named = series.rank < MOST_CURVES
    colour = look.colour(series.rank) if is_named else look.GREY
    marker = look.marker(series.rank) if is_named else "."
    drawn = [point for point in series.points if _has_numbers(point, PER_USER, PER_DEVICE)]
    for is_valid in (True, False):
        alike = [point for point in drawn if point.is_valid == is_valid]
        if not alike:
            continue
        axes.plot(
            _numbers(alike, PER_USER),
            _numbers(alike, PER_DEVICE),
            color=colour,
            marker=marker,
            markerfacecolor=colour if is_valid else "white",
            markersize=6 if is_named else 3,
            linestyle="none",
            label=look.written(series.label),
            zorder=2.5 if is_named else 1.5,
        )
    bounded = [point for point in drawn if _has_numbers(point, f"{PER_DEVICE}.lower")]
    if bounded:
        axes.vlines(
            _numbers(bounded, PER_USER),
            _numbers(bounded, f"{PER_DEVICE}.lower"),
            _numbers(bounded, f"{PER_DEVICE}.upper"),
            color=colour,
            linewidth=1.0,
            alpha=0.6,
            zorder=2.4 if is_named else 1.4,
        )


def _from_zero(axes: Axes) -> None:
    """Begins the axis of values at 0, so that a difference looks as large as it is."""
    axes.update_datalim([(0, 0)], updatex=False)
    axes.autoscale_view()
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,g}")


def _spread_loads(axes: Axes, series: Sequence[Series]) -> None:
    """Makes the axis of loads logarithmic if they span enough: each doubling is as wide."""
    levels = [point.numbers["level"] for point in all_points(series)]
    positive = [level for level in levels if 0 < level < math.inf]
    if positive and max(positive) >= LOGARITHMIC_FROM * min(positive):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:,g}")


def frontier_handles(series: Sequence[Series]) -> list[Any]:
    """The entries of the legend of a frontier."""
    from matplotlib.lines import Line2D

    handles = [
        look.handle(each.label, each.rank, with_marker=True, with_line=False)
        for each in series[:MOST_CURVES]
    ]
    if len(series) > MOST_CURVES:
        text = f"{len(series) - MOST_CURVES} other deployments"
        handles.append(Line2D([], [], color=look.GREY, marker=".", linestyle="none", label=text))
    if any(not point.is_valid for point in all_points(series)):
        handles.append(look.hollow_handle())
    handles.append(Line2D([], [], color="black", linewidth=1.2, label="frontier"))
    return handles


def _has_numbers(point: PlottedPoint, *names: str) -> bool:
    """Whether a point has these numbers, all of them finite.

    A load of all requests at once is infinite and has no place on an axis.
    """
    return all(math.isfinite(point.numbers.get(name, math.nan)) for name in names)


def _numbers(points: Sequence[PlottedPoint], name: str) -> Any:
    return np.array([point.numbers[name] for point in points], np.float64)
