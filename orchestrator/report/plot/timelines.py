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
    look.name_axes(axes, "time since the begin of the steady window (s)", "requests")
    kv_axes = axes.twinx()
    kv_axes.set_ylabel("KV cache in use (share)", fontsize="small")
    kv_axes.set_ylim(0, look.TOP_OF_SHARES)
    handles: list[Any] = []
    for rank, of_replica in enumerate(replicas[:MOST_CURVES]):
        if len(replicas) > 1:
            prefix = f"replica {of_replica.replica}: "
            handles += _draw(axes, kv_axes, of_replica, (rank, rank, rank), prefix)
        else:
            handles += _draw(axes, kv_axes, of_replica, (0, 1, 2))
    axes.set_ylim(bottom=0)
    _shade_warm_up(axes)
    look.add_title(axes, title or _title_of_frame(frame))
    names = [f"replica {of_replica.replica}" for of_replica in replicas]
    look.add_legend(axes, handles, look.left_out_text(names), makes_room=ax is None)
    return axes


def readings_of_frame(frame: Frame, repeat: int | None = None) -> list[ReplicaReadings]:
    """The readings of one repeat, one record per replica.

    Raises InputError for a frame that has several points or lacks a column, and where there are no
    readings.
    """
    columns = {}
    for name in COLUMNS:
        if name not in column_names_of(frame):
            raise InputError(f"this frame has no column {name!r}; take orchestrator.series(...)")
        columns[name] = values_of(frame, name)
    if len(set(columns["point_id"])) > 1:
        raise InputError("this frame has several points: a time line shows one")
    repeats = sorted(set(columns["repeat"]))
    if not repeats or repeat not in (None, *repeats):
        raise InputError("the engines reported nothing of themselves while this point ran")
    shown = repeats[0] if repeat is None else repeat
    rows = [row for row, number in enumerate(columns["repeat"]) if number == shown]
    rows.sort(key=lambda row: columns["seconds"][row])
    of_replicas = values_by_key((columns["replica"][row], row) for row in rows)
    return [
        ReplicaReadings(
            replica=replica,
            seconds=_numbers(columns["seconds"], of_replicas[replica]),
            running=_numbers(columns["running"], of_replicas[replica]),
            waiting=_numbers(columns["waiting"], of_replicas[replica]),
            kv_usage=_numbers(columns["kv_usage"], of_replicas[replica]),
        )
        for replica in sorted(of_replicas)
    ]


def _numbers(values: Sequence[object], rows: Sequence[int]) -> Floats:
    return np.array([number_of(values[row]) for row in rows], np.float64)


def _draw(
    axes: Axes,
    kv_axes: Axes,
    readings: ReplicaReadings,
    ranks: tuple[int, int, int],
    prefix: str = "",
) -> list[Any]:
    """Draws the lines of one replica, whose names begin with ``prefix``.

    ``ranks``: of the colours of requests running, requests waiting and the KV cache.
    """
    lines = []
    for owner, values, name, style, rank in (
        (axes, readings.running, "running", "-", ranks[0]),
        (axes, readings.waiting, "waiting", "--", ranks[1]),
        (kv_axes, readings.kv_usage, KV_TEXT, ":", ranks[2]),
    ):
        is_reported = ~np.isnan(values)
        if is_reported.any():
            lines += owner.plot(
                readings.seconds[is_reported],
                values[is_reported],
                color=look.colour(rank),
                linestyle=style,
                marker=".",
                label=f"{prefix}{name}",
            )
    return lines


def _shade_warm_up(axes: Axes) -> None:
    begin = axes.get_xlim()[0]
    if begin < 0:
        axes.axvspan(begin, 0, color=look.GREY, alpha=look.BAND_OPACITY, linewidth=0)
        axes.set_xlim(left=begin)


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
