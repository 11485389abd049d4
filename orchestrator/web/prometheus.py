"""The metrics of a watched folder of results, for Prometheus.

Their names and labels are a promise to dashboards, such as docs/grafana-dashboard.json.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from orchestrator.analysis.points import StoredPoint
from orchestrator.capacity.best import Comparison
from orchestrator.report.documents.answer import ComparisonDocument
from orchestrator.report.documents.part import part_documents
from orchestrator.report.documents.point import PointDocument, SloResult
from orchestrator.report.page.html import PageDocument
from orchestrator.results.records import Distribution, Figures
from orchestrator.results.runs import RunState
from orchestrator.spec.load import load_text
from orchestrator.web.watched import Watched

POINT_LABELS = ("experiment", "workload", "deployment", "load", "source")
PART_LABELS = (*POINT_LABELS, "part")


def exposition(watched: Watched) -> bytes:
    """All metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    _add_runs(registry, watched)
    document = watched.content.document
    _add_points(registry, document)
    _add_answers(registry, document.answer.comparisons)
    return generate_latest(registry)


def _add_runs(registry: CollectorRegistry, watched: Watched) -> None:
    """Adds metrics of the latest run of each experiment."""
    latest = {run.experiment: run for run in watched.runs}
    state = Gauge(
        "orchestrator_run_state",
        "1 for the state that the latest run is in",
        ("experiment", "state"),
        registry=registry,
    )
    measurements = Gauge(
        "orchestrator_run_measurements",
        "Measurements of the latest run: asked, measured, failed, done by earlier runs (skipped)",
        ("experiment", "kind"),
        registry=registry,
    )
    left = Gauge(
        "orchestrator_run_left_seconds",
        "Seconds that the latest run is expected to take still",
        ("experiment",),
        registry=registry,
    )
    heartbeat = Gauge(
        "orchestrator_run_last_heartbeat_timestamp_seconds",
        "Unix time at which the latest run last said that it is alive",
        ("experiment",),
        registry=registry,
    )
    for experiment, run in latest.items():
        record = run.record
        state.labels(experiment, run.state).set(1)
        measurements.labels(experiment, "asked").set(record.total)
        measurements.labels(experiment, "measured").set(record.measured)
        measurements.labels(experiment, "failed").set(record.failed)
        measurements.labels(experiment, "skipped").set(record.skipped)
        heartbeat.labels(experiment).set(watched.seen_unix_s - run.age_s)
        if record.left_s is not None and run.state is RunState.RUNNING:
            left.labels(experiment).set(record.left_s)


def _add_points(registry: CollectorRegistry, document: PageDocument) -> None:
    points = Gauge(
        "orchestrator_points",
        "Points by how honestly they were measured: valid, another verdict, or failed",
        ("experiment", "validity", "source"),
        registry=registry,
    )
    for section in document.experiments:
        for point in section.points:
            points.labels(section.name, _validity(point), _source(point.point)).inc()
    of_points = _figure_gauges(registry, "orchestrator_point", POINT_LABELS)
    of_parts = _figure_gauges(registry, "orchestrator_part", PART_LABELS, ", of a part of a mix")
    for section in document.experiments:
        for point in section.points:
            if not point.point.used_repeats:
                continue
            labels = _labels(point)
            of_points.set(labels, point.point.figures, point.slo_results)
            for part in part_documents(point):
                of_parts.set((*labels, part.part), part.figures, part.slo_results)


def _validity(point: PointDocument) -> str:
    return point.point.validity if point.point.used_repeats else "failed"


@dataclass(frozen=True, slots=True)
class _FigureGauges:
    """The gauges of points, or of parts of a mix at points."""

    throughput: Gauge
    latency: Gauge
    requests: Gauge
    attainment: Gauge

    def set(
        self, labels: tuple[str, ...], figures: Figures, slo_results: Iterable[SloResult]
    ) -> None:
        if figures.output_token_throughput is not None:
            self.throughput.labels(*labels).set(figures.output_token_throughput)
        self.requests.labels(*labels, "scheduled").set(figures.requests.scheduled)
        self.requests.labels(*labels, "ok").set(figures.requests.ok)
        _set_percentiles(self.latency, (*labels, "ttft"), figures.ttft_ms)
        _set_percentiles(self.latency, (*labels, "tpot"), figures.tpot_ms)
        _set_percentiles(self.latency, (*labels, "e2e"), figures.e2e_ms)
        for result in slo_results:
            if result.attainment is not None:
                self.attainment.labels(*labels, result.slo.name).set(result.attainment.estimate)


def _figure_gauges(
    registry: CollectorRegistry, prefix: str, labels: Sequence[str], of: str = ""
) -> _FigureGauges:
    """Gauges whose names begin with ``prefix``. ``of``: ends their descriptions."""
    return _FigureGauges(
        throughput=Gauge(
            f"{prefix}_output_tokens_per_second",
            f"Output tokens per second of the steady window{of}",
            labels,
            registry=registry,
        ),
        latency=Gauge(
            f"{prefix}_latency_seconds",
            f"Latency from when a request was due, by percentile{of}",
            (*labels, "of", "percentile"),
            registry=registry,
        ),
        requests=Gauge(
            f"{prefix}_requests",
            f"Requests that were due in the window: scheduled, and those answered well (ok){of}",
            (*labels, "outcome"),
            registry=registry,
        ),
        attainment=Gauge(
            f"{prefix}_attainment_ratio",
            f"Share of all requests, failed ones included, that met the limits{of}",
            (*labels, "slo"),
            registry=registry,
        ),
    )


def _set_percentiles(
    gauge: Gauge, labels: tuple[str, ...], distribution: Distribution | None
) -> None:
    if distribution is None:
        return
    for name, milliseconds in (("50", distribution.p50), ("99", distribution.p99)):
        if milliseconds is not None:
            gauge.labels(*labels, name).set(milliseconds / 1000)


def _labels(point: PointDocument) -> tuple[str, ...]:
    """The labels of a point, in the order of POINT_LABELS."""
    head = point.point.head
    load = load_text(head.control, head.level)
    return head.experiment, head.workload, point.label, load, _source(point.point)


def _source(figures: StoredPoint | Comparison) -> str:
    """Where the figures come from: ``simulated``, ``emulated`` or ``measured``; if another tool
    measured them, its name and version.
    """
    if figures.source:
        return figures.source
    if figures.simulated:
        return "simulated"
    if figures.emulated:
        return "emulated"
    return "measured"


def _add_answers(registry: CollectorRegistry, comparisons: Iterable[ComparisonDocument]) -> None:
    best = Gauge(
        "orchestrator_best_throughput",
        "Throughput of the best deployment under the limits, in `unit`",
        (
            *("experiment", "workload", "model", "hardware", "slo", "deployment", "unit"),
            *("certain", "source"),
        ),
        registry=registry,
    )
    for document in comparisons:
        if not document.ranking:
            continue
        comparison = document.comparison
        winner = document.ranking[0].deployment
        best.labels(
            comparison.experiment,
            comparison.workload,
            document.model,
            comparison.hardware,
            comparison.slo.name,
            winner.label,
            document.unit,
            str(comparison.certain).lower(),
            _source(comparison),
        ).set(winner.throughput.estimate)
