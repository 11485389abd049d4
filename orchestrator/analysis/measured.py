"""Stored measurements with their metrics: load points, each with its repeats, for tables and for ``best``."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from orchestrator.analysis.engine_side import summarize
from orchestrator.analysis.intervals import Interval, rate_interval, share_interval
from orchestrator.analysis.metrics import Observed, describe, merge, observe
from orchestrator.analysis.slo import Verdicts, format_slo, judge
from orchestrator.results.root import Results
from orchestrator.results.schemas import TABLES
from orchestrator.results.store import Manifest, Store
from orchestrator.spec.load import Slo

_log = logging.getLogger(__name__)
Row = dict[str, Any]
_REPEAT_FIELDS = (
    *("measurement_id", "attempt_id", "launch_id", "repeat", "seed", "status", "reason", "failure_class"),
    *("validity", "validity_reasons", "clients", "window_start_ns", "window_end_ns", "started_unix_ns"),
)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One repeat of a point: its ``points`` row, what was observed, and the verdicts where limits were asked."""

    row: Row
    attempts: int
    observed: Observed
    verdicts: Verdicts | None
    engine_side: dict[str, float | None] | None = None  # what the engines said of themselves

    @property
    def ok(self) -> bool:
        return bool(self.row["status"] == "ok")

    @property
    def valid(self) -> bool:
        return self.ok and self.row["validity"] == "valid"


@dataclass(frozen=True, slots=True)
class Point:
    """One load level of one workload on one deployment, over all its repeats."""

    deployment: Row
    repeats: tuple[Measurement, ...]

    @property
    def row(self) -> Row:
        """What all repeats have in common stands in the first one's row."""
        return self.repeats[0].row

    @property
    def used(self) -> tuple[Measurement, ...]:
        """The repeats its figures come from: the valid ones; without any, those that ran at all."""
        valid = tuple(one for one in self.repeats if one.valid)
        return valid or tuple(one for one in self.repeats if one.ok)

    @property
    def validity(self) -> str:
        return str((self.used or self.repeats)[0].row["validity"])

    @property
    def emulated(self) -> bool:
        return any(one.row["emulated"] for one in self.repeats)

    def observed(self) -> Observed | None:
        """The used repeats pooled; None when every repeat failed."""
        return merge(one.observed for one in self.used) if self.used else None

    def attainment(self) -> Interval | None:
        """Share of requests that met the limits, with its interval; None without limits or requests."""
        return share_interval([one.verdicts.met for one in self.used if one.verdicts is not None])

    def output_token_throughput(self) -> Interval | None:
        """Output tokens per second, with its interval."""
        return rate_interval([batches for one in self.used for batches in one.observed.token_batches])


def load_points(results: Results, slo: Slo | None = None) -> list[Point]:
    """Every point, sorted by experiment, deployment, workload and level.

    A measurement is its winning attempt; one that never got an ok attempt is its latest failed one.
    """
    points = [point for name in results.experiments for point in _points_of(results.store(name), slo)]
    return sorted(points, key=_order)


def _order(point: Point) -> tuple[Any, ...]:
    row = point.row
    return row["experiment"], point.deployment["label"], row["workload"], row["control"], row["level"]


def _points_of(store: Store, slo: Slo | None) -> list[Point]:
    attempts: dict[str, list[Manifest]] = {}
    for manifest in store.manifests():
        if manifest.kind == "point":
            attempts.setdefault(manifest.measurement_id, []).append(manifest)
    chosen = [_that_counts(found) for found in attempts.values()]
    rows = {
        (row["measurement_id"], row["attempt_id"]): row for row in store.read_manifests("points", chosen).to_pylist()
    }
    described = [manifest for manifest in chosen if _key(manifest) in rows]
    for manifest in chosen:
        if _key(manifest) not in rows:
            _log.warning("measurement %s is left out: its commit holds no row of points", manifest.measurement_id)
    deployments = {row["deployment_id"]: row for row in store.read("deployments").to_pylist()}

    def measure(manifest: Manifest) -> Measurement:
        return _measurement(store, manifest, rows[_key(manifest)], len(attempts[manifest.measurement_id]), slo)

    with ThreadPoolExecutor(4) as pool:  # most of the time goes into reading
        found = list(pool.map(measure, described))
    return _by_point(found, deployments)


def _key(manifest: Manifest) -> tuple[str, str]:
    return manifest.measurement_id, manifest.attempt_id


def _that_counts(manifests: Sequence[Manifest]) -> Manifest:
    """Of one measurement's attempts, oldest first: the first ok one, else the latest."""
    return next((manifest for manifest in manifests if manifest.status == "ok"), manifests[-1])


def _by_point(measurements: list[Measurement], deployments: dict[str, Row]) -> list[Point]:
    groups: dict[str, list[Measurement]] = {}
    for one in measurements:
        groups.setdefault(one.row["point_id"], []).append(one)
    points = []
    for group in groups.values():
        row = group[0].row
        unknown = {field.name: None for field in TABLES["deployments"]} | {"label": row["deployment_id"]}
        deployment = deployments.get(row["deployment_id"], unknown | {"deployment_id": row["deployment_id"]})
        points.append(Point(deployment, tuple(sorted(group, key=lambda one: one.row["repeat"]))))
    return points


def _measurement(store: Store, manifest: Manifest, row: Row, attempts: int, slo: Slo | None) -> Measurement:
    requests = store.read_manifests("requests", [manifest])
    events: pa.Table | None = store.read_manifests("token_events", [manifest])
    if events is not None and not events.num_rows:
        events = None
    window = (row["window_start_ns"], row["window_end_ns"])
    return Measurement(
        row=row,
        attempts=attempts,
        observed=observe(requests, events, window),
        verdicts=judge(requests, events, slo, window) if slo is not None and row["status"] == "ok" else None,
        engine_side=summarize(store.read_manifests("engine_metrics", [manifest])),
    )


def point_object(point: Point, slo: Slo | None = None) -> Row:
    """One point as JSON: deployment, load, status, validity, the metrics over its repeats, and each repeat alone."""
    row, deployment = point.row, point.deployment
    failed = [one for one in point.repeats if not one.ok]
    worst = failed[0].row if failed else row
    return {
        "experiment": row["experiment"],
        "point_id": row["point_id"],
        "deployment_id": row["deployment_id"],
        "label": deployment["label"],
        "engine": deployment["engine"],
        "model": deployment["model"],
        "hardware": deployment["hardware"],
        "devices": deployment["devices"],
        "usd_per_hour": deployment["usd_per_hour"],
        "settings": json.loads(deployment["settings_json"] or "{}"),
        "workload": row["workload"],
        "control": row["control"],
        "level": row["level"],
        "arrivals": row["arrivals"],
        "emulated": point.emulated,
        "status": "ok" if point.used else "failed",
        "reason": worst["reason"],
        "failure_class": worst["failure_class"],
        "validity": point.validity,
        "validity_reasons": [text for one in point.used or point.repeats for text in one.row["validity_reasons"]],
        "merged": {"of": len(point.repeats), "used": len(point.used), "failed": len(failed)},
        **_metrics(point, slo),
        "repeats": [_repeat_object(one, slo) for one in point.repeats],
    }


def _metrics(point: Point, slo: Slo | None) -> Row:
    """Pooled over the used repeats; when all failed, what is known of the failed ones (counts, null latencies)."""
    observed = point.observed() or merge(one.observed for one in point.repeats)
    figures = describe(observed)
    rate = point.output_token_throughput()
    figures["output_token_throughput_interval"] = rate.to_dict() if rate else None
    if slo is not None:
        share = point.attainment()
        figures["slo"] = _slo_object(slo, [one for one in point.used if one.verdicts], share)
    return figures


def _repeat_object(one: Measurement, slo: Slo | None) -> Row:
    found = {name: one.row[name] for name in _REPEAT_FIELDS} | {"attempts": one.attempts} | describe(one.observed)
    found["engine_side"] = one.engine_side
    if slo is not None:
        verdicts = [one.verdicts.met] if one.verdicts else []
        found["slo"] = _slo_object(slo, [one] if one.verdicts else [], share_interval(verdicts))
    return found


def _slo_object(slo: Slo, used: Sequence[Measurement], share: Interval | None) -> Row:
    verdicts = [one.verdicts for one in used if one.verdicts]
    met = sum(int(one.met.sum()) for one in verdicts)
    window_s = sum(one.observed.window_s for one in used)
    names = verdicts[0].by_limit if verdicts and share else {}
    shares = {name: float(np.concatenate([one.by_limit[name] for one in verdicts]).mean()) for name in names}
    return {
        "text": format_slo(slo),
        "attainment": share.to_dict() if share else None,
        "met": None if share is None else share.estimate >= slo.attainment,
        "by_limit": shares,
        "goodput": met / window_s if window_s > 0 else None,
    }
