"""The picture of one point over time: what its engines reported of themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.base.arrays import Floats
from orchestrator.base.errors import InputError
from orchestrator.base.grouping import values_by_key
from orchestrator.report.frames import series
from orchestrator.report.plot import look
from orchestrator.report.plot.points import (
    MOST_CURVES,
    Frame,
    column_names_of,
    number_of,
    points_of_documents,
    stored_documents,
    values_of,
)
from orchestrator.spec.load import load_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = ("point_id", "repeat", "replica", "seconds", "running", "waiting", "kv_usage")
KV_TEXT = "KV cache in use (share, right)"


@dataclass(frozen=True, slots=True)
class ReplicaReadings:
    """What one replica reported, in order of time; NaN where it did not report a value.

    ``seconds``: since the steady window began.
    """

    replica: int
    seconds: Floats
    running: Floats
    waiting: Floats
    kv_usage: Floats


@dataclass(frozen=True, slots=True)
class _Ranks:
    """Which colours (``look.colour``) the lines of one replica have."""

    running: int
    waiting: int
    kv_usage: int


def timeline(
    readings: Frame | str,
    point: str | None = None,
    *,
    repeat: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draws what the engines of one point reported while it ran.

    Requests running and waiting have the left axis, the share of the KV cache in use the right one.
    The warm-up is shaded. ``readings``: the frame of ``orchestrator.series(uri, point)``; or a URI,
    with the ``point_id`` as ``point``. ``repeat``: its number; None: the first that has readings.
    Several replicas have a colour each; at most eight are drawn, and the legend names the others.
    Raises InputError where no engine reported anything, and where matplotlib is missing.
    """
    look.check_matplotlib()
    title = None
    frame = readings
    if isinstance(readings, str):
        if point is None:
            raise InputError("timeline: give a point_id too; orchestrator.points(uri) has them")
        frame = series(readings, point)
        title = _title_of_stored(readings, point)
    replicas = readings_of_frame(frame, repeat)
    axes = look.new_axes() if ax is None else ax
    look.name_axes(axes, "time since the steady window began (s)", "requests")
    kv_axes = axes.twinx()
    kv_axes.set_ylabel("KV cache in use (share)", fontsize="small")
    kv_axes.set_ylim(0, look.TOP_OF_SHARES)
    handles: list[Any] = []
    if len(replicas) == 1:
        handles += _draw(axes, kv_axes, replicas[0], _Ranks(running=0, waiting=1, kv_usage=2))
    else:
        for rank, shown in enumerate(replicas[:MOST_CURVES]):
            colours = _Ranks(running=rank, waiting=rank, kv_usage=rank)
            handles += _draw(axes, kv_axes, shown, colours, f"replica {shown.replica}: ")
    axes.set_ylim(bottom=0)
    _shade_warm_up(axes)
    look.add_title(axes, title or _title_of_frame(frame))
    names = [f"replica {shown.replica}" for shown in replicas]
    look.add_legend(axes, handles, look.left_out_text(names), makes_room=ax is None)
    return axes


def readings_of_frame(frame: Frame, repeat: int | None = None) -> list[ReplicaReadings]:
    """The readings of one repeat, one record per replica.

    ``repeat``: its number; None: the first that has readings. Raises InputError for a frame that
    has several points or lacks a column, and where there are no readings.
    """
    columns = {}
    for name in COLUMNS:
        if name not in column_names_of(frame):
            raise InputError(f"this frame has no column {name!r}; take orchestrator.series(...)")
        columns[name] = values_of(frame, name)
    if len(set(columns["point_id"])) > 1:
        raise InputError("this frame has several points: a time line shows one")
    repeats = sorted(set(columns["repeat"]))
    if not repeats:
        raise InputError("the engines reported nothing of themselves while this point ran")
    if repeat is None:
        repeat = repeats[0]
    elif repeat not in repeats:
        raise InputError(
            f"there are no readings of repeat {repeat}, only of {', '.join(map(str, repeats))}"
        )
    rows = [row for row, number in enumerate(columns["repeat"]) if number == repeat]
    rows.sort(key=lambda row: columns["seconds"][row])
    rows_by_replica = values_by_key((columns["replica"][row], row) for row in rows)
    return [
        ReplicaReadings(
            replica=replica,
            seconds=_numbers(columns["seconds"], rows_of_replica),
            running=_numbers(columns["running"], rows_of_replica),
            waiting=_numbers(columns["waiting"], rows_of_replica),
            kv_usage=_numbers(columns["kv_usage"], rows_of_replica),
        )
        for replica, rows_of_replica in sorted(rows_by_replica.items())
    ]


def _numbers(values: Sequence[object], rows: Sequence[int]) -> Floats:
    return np.array([number_of(values[row]) for row in rows], np.float64)


def _draw(
    axes: Axes,
    kv_axes: Axes,
    readings: ReplicaReadings,
    ranks: _Ranks,
    prefix: str = "",
) -> list[Any]:
    """Draws the lines of one replica and returns them. Their names begin with ``prefix``."""
    seconds = readings.seconds
    lines = _draw_line(axes, seconds, readings.running, f"{prefix}running", "-", ranks.running)
    lines += _draw_line(axes, seconds, readings.waiting, f"{prefix}waiting", "--", ranks.waiting)
    lines += _draw_line(
        kv_axes, seconds, readings.kv_usage, f"{prefix}{KV_TEXT}", ":", ranks.kv_usage
    )
    return lines


def _draw_line(
    axes: Axes, seconds: Floats, values: Floats, name: str, style: str, rank: int
) -> list[Any]:
    """Draws the values that were reported, if any, and returns the line."""
    is_reported = ~np.isnan(values)
    if not is_reported.any():
        return []
    return axes.plot(
        seconds[is_reported],
        values[is_reported],
        color=look.colour(rank),
        linestyle=style,
        marker=".",
        label=name,
    )


def _shade_warm_up(axes: Axes) -> None:
    """Shades the time before the steady window, which begins at 0."""
    left_edge = axes.get_xlim()[0]
    if left_edge < 0:
        axes.axvspan(left_edge, 0, color=look.GREY, alpha=look.BAND_OPACITY, linewidth=0)
        axes.set_xlim(left=left_edge)  # the shade moved it


def _title_of_frame(frame: Frame) -> str:
    point_id = values_of(frame, "point_id")[0]
    return f"point {point_id}"


def _title_of_stored(uri: str, point_id: str) -> str | None:
    """``chat of sweep: m on h100, tp=1 at 8 in flight``; None: the plan no longer asks for it."""
    for document in stored_documents(uri):
        if document.point.head.point_id == point_id:
            (plotted,) = points_of_documents([document])
            load = load_text(plotted.control, plotted.numbers["level"])
            return f"{look.title_of([plotted])}, {plotted.deployment} at {load}"
    return None
