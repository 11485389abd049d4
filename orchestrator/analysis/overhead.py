"""The program's own share of a sweep: wall time that is neither engine start-up nor warm-up nor measurement.

What counts as work: an engine starting (from placement to ready) and a load point (from its common start, warm-up
included, to the end of its steady window). Everything else is overhead: planning, waiting for placement, draining and
committing between points, stopping engines, retries' pauses. Work that overlaps counts once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

Span = tuple[int, int]  # [start, end) in wall-clock ns


@dataclass(frozen=True, slots=True)
class Overhead:
    """``share`` = overhead_s / wall_s, None for a sweep of no length. ``startup_s`` and ``measuring_s`` may overlap."""

    share: float | None
    wall_s: float
    startup_s: float
    measuring_s: float
    overhead_s: float


def overhead(sweeps: Iterable[Span], startups: Iterable[Span], points: Iterable[Span]) -> Overhead:
    """From explicit intervals. ``sweeps``: one per run of the driver; work outside all of them does not count."""
    runs, starting, measuring = union(sweeps), union(startups), union(points)
    wall = _length(runs)
    idle = wall - _length(intersection(runs, union([*starting, *measuring])))
    return Overhead(
        share=idle / wall if wall else None,
        wall_s=wall / 1e9,
        startup_s=_length(intersection(runs, starting)) / 1e9,
        measuring_s=_length(intersection(runs, measuring)) / 1e9,
        overhead_s=idle / 1e9,
    )


def overhead_share(work: Iterable[Span], sweep: Span) -> float:
    """Share of one sweep that no span of work covers; 0 for a sweep of no length."""
    return overhead([sweep], (), work).share or 0.0


def sweep_overhead(launches: pa.Table, points: pa.Table, events: pa.Table) -> Overhead:
    """From the stored rows (schemas LAUNCHES, POINTS, EVENTS; all attempts, failed ones too).

    Each event of kind ``sweep`` opens a run of the driver, which lasts to the last instant known of anything before the
    next one (a killed driver writes no end). Without such events the sweep is from the first to the last instant of
    all rows.
    """
    startups, held = _startup_spans(launches.to_pylist())
    measured = [_point_span(row) for row in points.to_pylist()]
    kinds, instants = events["kind"].to_pylist(), events["unix_ns"].to_pylist()
    starts = sorted(at for kind, at in zip(kinds, instants, strict=True) if kind == "sweep")
    known = [*instants, *(at for span in [*held, *measured] for at in span)]
    return overhead(_runs(starts, known), startups, measured)


def union(spans: Iterable[Span]) -> list[Span]:
    """Disjoint spans in order that cover the same instants."""
    merged: list[Span] = []
    for start, end in sorted(span for span in spans if span[1] > span[0]):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def intersection(left: list[Span], right: list[Span]) -> list[Span]:
    """What two disjoint ordered lists have in common."""
    found = [(max(a[0], b[0]), min(a[1], b[1])) for a in left for b in right]
    return [span for span in found if span[1] > span[0]]


def _length(spans: list[Span]) -> int:
    return sum(end - start for start, end in spans)


def _startup_spans(launches: list[dict[str, Any]]) -> tuple[list[Span], list[Span]]:
    """(placement to ready, asked to released). A launch that never became ready started up for as long as it held."""
    startups, held = [], []
    for row in launches:
        asked = row["started_unix_ns"]
        placed = asked + _ns(row["placed_s"])
        released = placed + _ns(row["held_s"])
        startups.append((placed, placed + _ns(row["ready_s"]) if row["ready_s"] is not None else released))
        held.append((asked, released))
    return startups, held


def _point_span(row: dict[str, Any]) -> Span:
    return row["started_unix_ns"], row["started_unix_ns"] + row["window_end_ns"]


def _runs(starts: list[int], known: list[int]) -> list[Span]:
    if not known:
        return []
    if not starts:
        return [(min(known), max(known))]
    limits = [*starts[1:], max(known) + 1]
    return [(start, max(at for at in known if at < limit)) for start, limit in zip(starts, limits, strict=True)]


def _ns(seconds: float | None) -> int:
    return round((seconds or 0.0) * 1e9)
