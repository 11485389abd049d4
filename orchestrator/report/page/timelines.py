"""Time lines: what single points did while they ran, in at most STEPS steps, for ``timeline.js``.

A page has those of at most MOST_TIMELINES points. Points of the deployments that its curves show
come first.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from orchestrator.analysis.attempt_summary import CommittedAttempt, attempt_of_rows
from orchestrator.analysis.driver_clock import driver_unix_ns
from orchestrator.analysis.points import Repeat, StoredPoint
from orchestrator.analysis.requests import RequestArrays, request_arrays
from orchestrator.analysis.throughput import basis, output_tokens_by
from orchestrator.base.arrays import Floats, Ints
from orchestrator.base.errors import DamagedError
from orchestrator.base.grouping import values_by_key
from orchestrator.capacity.best import Comparison, group_of
from orchestrator.report.page.packing import json_line, packed
from orchestrator.report.selection import JudgedExperiment
from orchestrator.results.store import Store

STEPS = 100
MOST_TIMELINES = 200  # points; they take about 150 kB of page
MOST_GAPS = 5_000_000  # token gaps that are read in all, which takes half a second
SHOWN_DEPLOYMENTS = 8  # of each ranking; as many as have curves in the page


@dataclass(frozen=True, slots=True)
class EngineReadings:
    """What the engines reported of themselves, summed over replicas.

    ``seconds``: since the point's start, by the driver's clock. ``kv_usage``: that of the fullest
    replica. A list is empty where a value is missing.
    """

    seconds: list[float]
    running: list[float]
    waiting: list[float]
    kv_usage: list[float]


@dataclass(frozen=True, slots=True)
class GpuReadings:
    """What the GPUs of all replicas reported. ``seconds``: since the point's start, by the driver's
    clock. ``power_w``: of all together. ``temperature_c``: of the hottest. A list is empty where a
    value is missing.
    """

    seconds: list[float]
    power_w: list[float]
    temperature_c: list[float]


@dataclass(frozen=True, slots=True)
class Timeline:
    """One repeat of a point over time.

    ``repeat``: its number, from 0. ``repeats``: how many the point has. ``step_s``: the length of a
    step; the first begins at 0, the point's start. ``throughput``: output tokens/s in each step.
    ``in_flight``: requests under way in the middle of each step, as the client saw it.
    ``is_interpolated``: times between tokens were not read, so the tokens of an answer count as
    evenly spread.
    """

    experiment: str  # needed because runs of ``load`` with the same options share point ids
    point_id: str
    repeat: int
    repeats: int
    window_s: tuple[float, float]
    step_s: float
    throughput: list[float]
    in_flight: list[float]
    is_interpolated: bool
    readings: EngineReadings | None
    gpus: GpuReadings | None


@dataclass(frozen=True, slots=True)
class Timelines:
    """The time lines of a page. ``left_out``: how many more points with requests had no room."""

    timelines: list[Timeline]
    left_out: int

    def lines(self) -> Iterator[str]:
        """Everything, one JSON record per line."""
        yield json_line({"kept": len(self.timelines), "left_out": self.left_out})
        for timeline in self.timelines:
            yield json_line({"timeline": timeline})

    def encoded(self) -> dict[str, str | int]:
        """Everything as values that may stand in a page."""
        return {
            "timelines": packed(orjson.dumps(self.timelines)),
            "kept": len(self.timelines),
            "left_out": self.left_out,
        }


@dataclass(frozen=True, slots=True)
class _Source:
    """A point that may have a time line, and where its requests are stored."""

    store: Store
    point: StoredPoint


def timelines_of(
    experiments: Sequence[JudgedExperiment], comparisons: Iterable[Comparison]
) -> Timelines:
    """The time lines of as many points as a page has room for. Damaged attempts have none."""
    sources = [
        source
        for source in _in_order(experiments, comparisons)
        if source.point.figures.requests.scheduled
    ]
    timelines: list[Timeline] = []
    gaps_left = float(MOST_GAPS)
    for source in sources[:MOST_TIMELINES]:
        repeat = (source.point.used_repeats or source.point.repeats)[0]
        attempt = _read(source.store, repeat)
        if attempt is None or not attempt.requests.num_rows:
            continue
        gaps = _expected_gaps(attempt, repeat)
        with_gaps = gaps <= gaps_left
        if with_gaps:
            gaps_left -= gaps
        timeline = _timeline(attempt, source.point, repeat, with_gaps=with_gaps)
        telemetry = source.store.read_manifests("telemetry", [attempt.manifest], skip_damaged=True)
        gpus = gpu_readings_of(telemetry, repeat.head.started_unix_ns)
        timelines.append(replace(timeline, gpus=gpus))
    return Timelines(timelines, max(len(sources) - MOST_TIMELINES, 0))


def _in_order(
    experiments: Sequence[JudgedExperiment], comparisons: Iterable[Comparison]
) -> Iterator[_Source]:
    """The points of all groups, taken in turn; points of a group's best deployments come first."""
    place: dict[str, int] = {}
    for comparison in comparisons:
        for ranked in comparison.ranking:
            place.setdefault(ranked.point.head.deployment_id, len(place))
    of_groups: list[list[_Source]] = []
    for judged in experiments:
        groups = values_by_key((group_of(point), point) for point in judged.points.current)
        for points in groups.values():
            ordered = _best_first(points, place)
            of_groups.append([_Source(judged.experiment.store, point) for point in ordered])
    for in_turn in zip_longest(*of_groups):
        yield from (source for source in in_turn if source is not None)


def _best_first(points: Sequence[StoredPoint], place: dict[str, int]) -> list[StoredPoint]:
    """All points of the SHOWN_DEPLOYMENTS best deployments, then all others."""
    ids = list(dict.fromkeys(point.head.deployment_id for point in points))
    shown = set(sorted(ids, key=lambda each: place.get(each, len(place)))[:SHOWN_DEPLOYMENTS])
    return sorted(points, key=lambda point: point.head.deployment_id not in shown)


def _read(store: Store, repeat: Repeat) -> CommittedAttempt | None:
    manifest = store.manifest(*repeat.head.ids)
    if manifest is None:
        return None
    try:
        return attempt_of_rows(
            store,
            manifest,
            point=repeat.head,
            deployment=None,  # a time line does not need it
            requests=store.lazy_rows("requests", manifest),
            engine_metrics=store.read_manifests("engine_metrics", [manifest]),
        )
    except DamagedError as error:
        store.leave_out(repeat.head.ids, str(error))
        return None


def _expected_gaps(attempt: CommittedAttempt, repeat: Repeat) -> float:
    """About how many token gaps an attempt has: those of a mean answer for each of its rows."""
    tokens = repeat.figures.output_tokens
    gaps_per_row = tokens.mean if tokens is not None else 0.0
    files = [part for part in attempt.manifest.files if part.table == "token_events"]
    return sum(part.rows * gaps_per_row for part in files)


def _timeline(
    attempt: CommittedAttempt, point: StoredPoint, repeat: Repeat, *, with_gaps: bool
) -> Timeline:
    """The time line of a repeat, without its GPUs. ``with_gaps``: times between tokens are read."""
    blocks = list(request_arrays(attempt.requests, attempt.token_events if with_gaps else None))
    end_ns = max(float(block.done_ns.max()) for block in blocks) + 1  # the last token too
    edges = np.linspace(0.0, end_ns, STEPS + 1)
    tokens = np.zeros(edges.size)
    for block in blocks:
        tokens += output_tokens_by(block, edges.tolist())
    middles = (edges[:-1] + edges[1:]) / 2
    step_s = float(edges[1]) / 1e9
    window = repeat.head.window
    return Timeline(
        experiment=point.head.experiment,
        point_id=point.head.point_id,
        repeat=repeat.head.repeat,
        repeats=len(point.repeats),
        window_s=(window.start_ns / 1e9, window.end_ns / 1e9),
        step_s=step_s,
        throughput=_short(np.diff(tokens) / step_s),
        in_flight=_short(_in_flight(blocks, middles)),
        is_interpolated=any("interpolated" in basis(block) for block in blocks),
        readings=readings_of(attempt.engine_metrics, repeat.head.started_unix_ns),
        gpus=None,
    )


def _in_flight(blocks: Sequence[RequestArrays], at_ns: Floats) -> Floats:
    """How many requests are under way at each of these instants."""
    was_sent = [~np.isnan(block.sent_ns) for block in blocks]
    sent_ns = [block.sent_ns[sent] for block, sent in zip(blocks, was_sent, strict=True)]
    done_ns = [block.done_ns[sent] for block, sent in zip(blocks, was_sent, strict=True)]
    begun = np.searchsorted(np.sort(np.concatenate(sent_ns)), at_ns, "right")
    ended = np.searchsorted(np.sort(np.concatenate(done_ns)), at_ns, "right")
    return (begun - ended).astype(np.float64)


def readings_of(samples: pa.Table, started_unix_ns: int) -> EngineReadings | None:
    """The readings of all replicas at the instants when one of them was read; None without any.

    At each instant, a replica counts with its latest reading. The readings begin when every replica
    has one.
    """
    if not samples.num_rows:
        return None
    latest = _latest_readings(samples, samples["replica"].to_numpy())
    return EngineReadings(
        seconds=_short((latest.unix_ns - started_unix_ns) / 1e9, digits=4),
        running=_known(latest.values("running").sum(axis=0)),
        waiting=_known(latest.values("waiting").sum(axis=0)),
        kv_usage=_known(latest.values("kv_usage").max(axis=0)),
    )


def gpu_readings_of(samples: pa.Table, started_unix_ns: int) -> GpuReadings | None:
    """The readings of all GPUs, as ``readings_of`` takes those of replicas; None without any."""
    if not samples.num_rows:
        return None
    gpus = samples["gpu_uuid"].combine_chunks().dictionary_encode().indices.to_numpy()
    latest = _latest_readings(samples, gpus)
    return GpuReadings(
        seconds=_short((latest.unix_ns - started_unix_ns) / 1e9, digits=4),
        power_w=_known(latest.values("power_w").sum(axis=0)),
        temperature_c=_known(latest.values("temperature_c").max(axis=0)),
    )


@dataclass(frozen=True, slots=True)
class _LatestReadings:
    """At each instant the latest reading of each source.

    ``unix_ns``: the instants. ``rows``: for each source, the row of ``samples`` at each instant.
    """

    samples: pa.Table
    unix_ns: Ints
    rows: list[Ints]

    def values(self, name: str) -> Floats:
        """The values of a column, one row for each source."""
        values = np.asarray(self.samples[name].to_numpy(), np.float64)
        return np.array([values[rows] for rows in self.rows])


def _latest_readings(samples: pa.Table, source_of_row: Ints) -> _LatestReadings:
    """The latest readings at the instants when some source was read, at most STEPS of them, from
    when all have been read.

    ``source_of_row``: a number for the source of each sample.
    """
    unix_ns = driver_unix_ns(samples)
    rows_of_sources: list[Ints] = []
    for source in np.unique(source_of_row):
        rows = np.flatnonzero(source_of_row == source)
        rows_of_sources.append(rows[np.argsort(unix_ns[rows])])
    begin_ns = max(unix_ns[rows[0]] for rows in rows_of_sources)
    instants = np.unique(unix_ns[unix_ns >= begin_ns])
    if instants.size > STEPS:
        instants = instants[np.linspace(0, instants.size - 1, STEPS).astype(int)]
    latest = [
        rows[np.searchsorted(unix_ns[rows], instants, "right") - 1] for rows in rows_of_sources
    ]
    return _LatestReadings(samples, instants, latest)


def _known(values: Floats) -> list[float]:
    """The values; empty if one is missing, since a part of a sum would be taken for the whole."""
    return [] if np.isnan(values).any() else _short(values)


def _short(values: npt.NDArray[np.float64], digits: int = 3) -> list[float]:
    """The values with ``digits`` digits, from 1000 on as whole numbers: a chart shows no more."""
    rounded = [float(f"{value:.{digits}g}") if value < 1000 else round(value) for value in values]
    return [int(value) if value == int(value) else value for value in rounded]
