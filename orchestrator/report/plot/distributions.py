"""The picture of single requests: what share of them was how fast."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np

from orchestrator.analysis.intervals import Interval, interval_of_model, share_interval
from orchestrator.analysis.points import StoredPoint
from orchestrator.analysis.request_values import stored_limit_values
from orchestrator.analysis.slo import LimitValues
from orchestrator.base.arrays import Floats
from orchestrator.base.errors import InputError
from orchestrator.base.registry import unknown_name
from orchestrator.report.documents.point import PointDocument, point_document
from orchestrator.report.plot import look
from orchestrator.report.plot.points import (
    MOST_CURVES,
    Frame,
    PlottedPoint,
    Series,
    points_of_documents,
    series_of,
    values_of,
)
from orchestrator.report.selection import JudgedExperiment, experiments, with_limits
from orchestrator.results.root import open_results
from orchestrator.results.store import Store
from orchestrator.spec.load import load_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STEPS = 100  # vertices of a line: more would not be seen
LATENCIES = {"ttft_ms": "ttft", "tpot_ms": "tpot", "e2e_ms": "e2e", "itl_p99_ms": "itl_p99"}
_AXIS_TEXTS = {
    "ttft_ms": "time to first token, from when a request was due (ms)",
    "tpot_ms": "time per output token after the first (ms)",
    "e2e_ms": "time of a whole request, from when it was due (ms)",
    "itl_p99_ms": "99th percentile of a request's times between tokens (ms)",
}


@dataclass(frozen=True, slots=True)
class Line:
    """For each of some latencies, the share of requests up to it, with its 95 % interval."""

    label: str
    latency_ms: Floats
    shares: Sequence[Interval]


@dataclass(frozen=True, slots=True)
class _PointRequests:
    """A point whose requests are drawn, and where they are stored."""

    point: StoredPoint
    store: Store
    label: str


def ecdf(
    uri: str,
    latency: str = "ttft_ms",
    *,
    points: Frame | None = None,
    part: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draws the share of requests up to each latency: the attainment of every possible limit.

    Bands are 95 % intervals. ``latency``: ``ttft_ms``, ``tpot_ms``, ``e2e_ms`` or ``itl_p99_ms``.
    Requests that failed count and are never fast enough, so a line with some ends below 1.
    ``points``: rows of ``orchestrator.points(uri)``; None: all, beginning with the highest loads of
    the best deployments. ``part``: only the requests of this part of a mix. At most eight points are
    drawn, and the legend names the others. Raises InputError for an unknown latency, where no point
    has requests of the part, where nothing is stored at ``uri``, and where matplotlib is missing.
    """
    look.check_matplotlib()
    if latency not in LATENCIES:
        raise InputError(unknown_name("latency", latency, LATENCIES))
    judged = list(with_limits(None, experiments(open_results(uri), None)))
    sources = _sources(judged, points)
    axes = look.new_axes() if ax is None else ax
    requests = "requests" if part is None else f"requests of {look.written(part)}"
    look.name_axes(axes, _AXIS_TEXTS[latency], f"share of {requests}, failed ones included")
    handles = []
    for rank, source in enumerate(sources[:MOST_CURVES]):
        line = line_of(source.store, source.point, source.label, latency, part)
        if line is not None:
            _draw(axes, line, rank)
            handles.append(look.handle(line.label, rank))
    if part is not None and not handles:
        raise InputError(f"no point that would be drawn has requests of a part {part!r}")
    axes.set_ylim(0, look.TOP_OF_SHARES)
    look.add_title(axes, look.title_of(_plotted(source.point for source in sources)))
    note = look.left_out_text([source.label for source in sources])
    look.add_legend(axes, handles, note, makes_room=ax is None)
    return axes


def _plotted(points: Iterable[StoredPoint]) -> list[PlottedPoint]:
    return points_of_documents([point_document(point) for point in points])


def _sources(judged: Sequence[JudgedExperiment], frame: Frame | None) -> list[_PointRequests]:
    """The points that have requests, in the order of the frame's rows, or else the best first."""
    documents: list[PointDocument] = []
    stores: dict[str, Store] = {}
    for judged_experiment in judged:
        for point in judged_experiment.points.current:
            if point.used_repeats:
                documents.append(point_document(point))
                stores[point.head.point_id] = judged_experiment.experiment.store
    by_id = {document.point.head.point_id: document.point for document in documents}
    all_series = series_of(points_of_documents(documents))
    labels = {}
    for series in all_series:
        for plotted in series.points:
            load = load_text(plotted.control, plotted.numbers["level"])
            labels[plotted.point_id] = f"{series.label} at {load}"
    if frame is None:
        ids = _best_first(all_series)
    else:
        ids = [point_id for point_id in values_of(frame, "point_id") if point_id in by_id]
    return [_PointRequests(by_id[point_id], stores[point_id], labels[point_id]) for point_id in ids]


def _best_first(all_series: Sequence[Series]) -> list[str]:
    """Ids of points: the highest load of each deployment, then the next lower ones, and so on."""
    highest_first = [reversed(series.points) for series in all_series]
    ids: list[str] = []
    for points_of_round in zip_longest(*highest_first):
        ids += [point.point_id for point in points_of_round if point is not None]
    return ids


def line_of(
    store: Store, point: StoredPoint, label: str, latency: str, part: str | None = None
) -> Line | None:
    """The distribution of a latency over the repeats of a point; None without requests.

    ``part``: only the requests of this part of a mix.
    """
    limit = LATENCIES[latency]
    attempts = [repeat.head.ids for repeat in point.used_repeats]
    values_by_attempt = stored_limit_values(store, attempts, [limit])
    repeats: list[LimitValues] = []
    starts: list[int] = []
    for repeat in point.used_repeats:
        values = values_by_attempt.get(repeat.head.ids)
        if values is not None:
            of_part = values.of_part(part)
            seconds = {name: each[of_part] for name, each in values.seconds.items()}
            repeats.append(LimitValues(values.ok[of_part], seconds))
            starts.append(repeat.head.start)
    latencies_s = _vertices([values.seconds[limit][values.ok] for values in repeats])
    shares = []
    for latency_s in latencies_s:
        met = [values.ok & (values.seconds[limit] <= latency_s) for values in repeats]
        interval = share_interval(met, starts)
        if interval is None:
            return None
        if point.simulated:
            interval = _within_model_error(interval.estimate, repeats, limit, latency_s, point)
        shares.append(interval)
    return Line(label, latencies_s * 1e3, shares) if shares else None


def _within_model_error(
    estimate: float,
    repeats: Sequence[LimitValues],
    limit: str,
    latency_s: float,
    point: StoredPoint,
) -> Interval:
    """A simulated share with an interval from the model's error.

    The bounds are the shares if all latencies were longer, or shorter, by the factor within which
    nine in ten measurements lie.
    """
    error = point.model_error
    if error is None:
        return interval_of_model(estimate, math.nan, math.nan)
    factor = error.ttft if limit == "ttft" else error.tpot
    lower = _share_within(repeats, limit, latency_s / factor)
    upper = _share_within(repeats, limit, latency_s * factor)
    return interval_of_model(estimate, lower, upper)


def _share_within(repeats: Sequence[LimitValues], limit: str, latency_s: float) -> float:
    """The share of all requests that succeeded within this time."""
    met = [values.ok & (values.seconds[limit] <= latency_s) for values in repeats]
    return float(np.concatenate(met).mean())


def _vertices(seconds_of_repeats: Sequence[Floats]) -> Floats:
    """At most STEPS of the measured latencies, at equal distances by rank."""
    if not seconds_of_repeats:
        return np.zeros(0)
    every = np.concatenate(seconds_of_repeats)
    every = np.sort(every[np.isfinite(every)])
    if every.size > STEPS:
        every = every[np.linspace(0, every.size - 1, STEPS).astype(int)]
    return np.unique(every)


def _draw(axes: Axes, line: Line, rank: int) -> None:
    axes.plot(
        line.latency_ms,
        [share.estimate for share in line.shares],
        color=look.colour(rank),
        linestyle=look.line_style(rank),
        linewidth=1.5,
        drawstyle="steps-post",
        label=look.written(line.label),
    )
    axes.fill_between(
        line.latency_ms,
        [share.lower for share in line.shares],
        [share.upper for share in line.shares],
        step="post",
        color=look.colour(rank),
        alpha=look.BAND_OPACITY,
        linewidth=0,
    )
