"""Writes the page of a comparison of two sweeps: a table that needs no script, and two charts."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from orchestrator import __version__
from orchestrator.analysis.difference import Verdict
from orchestrator.analysis.slo import format_slo
from orchestrator.base.grouping import values_by_key
from orchestrator.report.comparison_text import (
    WITH_ITSELF,
    change_alone_text,
    change_text,
    changed_texts,
    counts_text,
    failed_texts,
    failing_texts,
    few_starts_texts,
    few_texts,
    figure_text,
    headline_text,
    interval_text,
    metric_text,
    not_compared_texts,
    not_measured_texts,
    pair_text,
    point_load_text,
    spread_texts,
    value_text,
    verdict_text,
)
from orchestrator.report.documents.comparison import Metric, MetricChange, SweepComparison
from orchestrator.report.formats import JsonObject
from orchestrator.report.page.inlined import inlined, page_templates
from orchestrator.spec.load import in_json, load_text

SCRIPTS = ("vendor/echarts.min.js", "charts.js", "drawing.js", "comparison.js")
MOST_CURVES = 4  # deployments in a chart, of which each has two curves
MOST_CHANGES = 40  # changes in a chart; the table has all
_AXES = {"concurrency": "requests in flight", "request_rate": "requests/s"}
_UNITS = {"output_token_throughput": "output tokens/s", "request_throughput": "requests/s"}


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """One line of the table: a figure of a pair, as text."""

    deployment: str
    load: str
    figure: str
    base: str
    new: str
    change: str
    interval: str
    verdict: str
    kind: Verdict


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A pair in a chart. ``level``: None: it is unlimited. ``text``: the change and its verdict."""

    level: float | str | None
    load: str
    base: float
    new: float
    text: str


@dataclass(frozen=True, slots=True)
class DeploymentCurve:
    """A deployment in a chart."""

    deployment: str
    points: tuple[CurvePoint, ...]


@dataclass(frozen=True, slots=True)
class CurveChart:
    """The curves of one figure over the levels of one workload.

    ``deployments``: how many there are, of which the worst are drawn.
    """

    title: str
    x_name: str
    y_name: str
    deployments: int
    curves: tuple[DeploymentCurve, ...]


@dataclass(frozen=True, slots=True)
class ChartedChange:
    """A change in the chart of changes, in percent or points. ``low``: None: there is one start."""

    name: str
    change: float
    low: float | None
    high: float | None
    verdict: Verdict
    text: str


@dataclass(frozen=True, slots=True)
class ChangeChart:
    """The changes of one figure, worst first, of which the first are drawn.

    ``lower`` and ``upper``: the changes that are tolerated, in ``unit``: percent or points.
    """

    title: str
    unit: str
    lower: float
    upper: float
    changes: tuple[ChartedChange, ...]


def comparison_page(comparison: SweepComparison) -> str:
    """The page as one text."""
    scripts = [inlined(name) for name in SCRIPTS] if comparison.changes else []
    return (
        page_templates()
        .get_template("comparison.html.j2")
        .render(
            comparison=comparison,
            created=datetime.now(UTC),
            version=__version__,
            headline=headline_text(comparison),
            counts=counts_text(comparison),
            rows=[_row(change) for change in comparison.changes],
            notes=_notes(comparison),
            not_compared=[*failed_texts(comparison), *not_compared_texts(comparison)],
            metrics=[metric.name for metric in comparison.rules.metrics],
            slo="" if comparison.slo is None else format_slo(comparison.slo),
            charts=_charts(comparison),
            scripts=scripts,
            style=inlined("style.css"),
        )
    )


def _notes(comparison: SweepComparison) -> list[str]:
    notes = [WITH_ITSELF] if comparison.is_with_itself else []
    notes += failing_texts(comparison)
    notes += few_texts(comparison.changes)
    notes += [*not_measured_texts(comparison), *changed_texts(comparison)]
    notes += spread_texts(comparison)
    notes += few_starts_texts(comparison)
    return notes


def _row(change: MetricChange) -> ChangeRow:
    new = change.pair.new
    return ChangeRow(
        deployment=pair_text(change.pair),
        load=point_load_text(new),
        figure=figure_text(change),
        base=value_text(change.metric, change.base.mean),
        new=value_text(change.metric, change.new.mean),
        change=change_alone_text(change),
        interval=interval_text(change),
        verdict=verdict_text(change),
        kind=change.judged.verdict,
    )


def _charts(comparison: SweepComparison) -> JsonObject:
    """What the script draws."""
    by_metric = values_by_key((change.metric, change) for change in comparison.changes)
    return {
        "curves": [
            asdict(chart)
            for metric, changes in by_metric.items()
            for chart in _curve_charts(metric, changes)
        ],
        "changes": [
            asdict(_change_chart(metric, changes, comparison))
            for metric, changes in by_metric.items()
        ],
    }


def _curve_charts(metric: Metric, changes: Iterable[MetricChange]) -> Iterator[CurveChart]:
    """One chart for each workload and control. ``changes``: of this metric, the worst first."""
    by_load = values_by_key(
        ((change.pair.new.head.workload, change.pair.new.head.control), change)
        for change in changes
    )
    for (workload, control), of_load in by_load.items():
        by_deployment = values_by_key((pair_text(change.pair), change) for change in of_load)
        curves = [
            DeploymentCurve(label, tuple(map(_curve_point, sorted(of_deployment, key=_level))))
            for label, of_deployment in list(by_deployment.items())[:MOST_CURVES]
        ]
        yield CurveChart(
            title=f"{metric_text(metric)} of {workload}",
            x_name=_AXES.get(control, control),
            y_name=_axis_text(metric),
            deployments=len(by_deployment),
            curves=tuple(curves),
        )


def _level(change: MetricChange) -> float:
    return change.pair.new.head.level


def _curve_point(change: MetricChange) -> CurvePoint:
    head = change.pair.new.head
    factor = 100 if change.metric.is_share else 1
    return CurvePoint(
        level=in_json(head.level),
        load=load_text(head.control, head.level),
        base=change.base.mean * factor,
        new=change.new.mean * factor,
        text=f"{change_text(change)}: {verdict_text(change)}",
    )


def _axis_text(metric: Metric) -> str:
    if metric.is_share:
        return f"{metric_text(metric)} (%)"
    if metric.figure in _UNITS:
        return _UNITS[metric.figure]
    unit = " (ms)" if metric.figure.endswith("_ms") else ""
    return f"{metric_text(metric)}{unit}"


def _change_chart(
    metric: Metric, changes: list[MetricChange], comparison: SweepComparison
) -> ChangeChart:
    within = comparison.rules.within
    return ChangeChart(
        title=metric_text(metric),
        unit="points" if metric.is_share else "%",
        lower=-100 * within,
        upper=100 * within,
        changes=tuple(map(_charted_change, changes[:MOST_CHANGES])),
    )


def _charted_change(change: MetricChange) -> ChartedChange:
    new = change.pair.new
    low, high = change.interval or (None, None)
    return ChartedChange(
        name=f"{pair_text(change.pair)}, {point_load_text(new)}",
        change=100 * change.change,
        low=None if low is None else 100 * low,
        high=None if high is None else 100 * high,
        verdict=change.judged.verdict,
        text=f"{change_text(change)}: {verdict_text(change)}",
    )
