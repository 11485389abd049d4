"""What was measured, a point a row: ``orchestrator results``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from orchestrator.analysis.intervals import Interval, share_interval
from orchestrator.analysis.measured import Measurement, Point
from orchestrator.analysis.metrics import FAILING
from orchestrator.analysis.slo import format_slo
from orchestrator.report.agreement import agreement_column, agreement_fields, agreement_text
from orchestrator.report.documents import Document, fields_of, metrics
from orchestrator.report.text import EMULATED, Cell, Column, figure, percentile, say, table
from orchestrator.results.records import LaunchRow, PointHead
from orchestrator.spec.load import Slo, load_text

_REPEAT_FIELDS = (
    *("measurement_id", "attempt_id", "launch_id", "repeat", "start", "seed", "status", "reason", "failure_class"),
    *("failure_kind", "validity", "validity_reasons", "clients", "window_start_ns", "window_end_ns"),
    "started_unix_ns",
)


def point_document(
    point: Point, slo: Slo | None = None, launches: Mapping[str, LaunchRow] | None = None, current: bool = True
) -> Document:
    """One point: deployment, load, status, validity, the metrics over its repeats, and each repeat alone.

    ``launches``: by id, of those where something failed: they hold the engine's log. ``current``: the plan asks for it.
    """
    head, deployment = point.head, point.deployment
    failed = [one.point for one in point.repeats if not one.ok]
    worst = failed[0] if failed else head
    launch = (launches or {}).get(worst.launch_id) if failed else None
    described = deployment if deployment.engine else None  # nobody wrote what it is
    return {
        **fields_of(head, "experiment", "point_id", "deployment_id"),
        "label": deployment.label,
        **fields_of(described, "engine", "model", "hardware", "devices", "usd_per_hour"),
        "settings": json.loads(deployment.settings_json),
        **fields_of(head, "workload", "control", "level", "arrivals"),
        "emulated": point.emulated,
        "current": current,
        "status": "ok" if point.used else "failed",
        **fields_of(worst, "reason", "failure_class", "failure_kind"),
        **fields_of(launch, "log_uri", "log_tail"),
        "validity": point.validity,
        "validity_reasons": [text for one in point.used or point.repeats for text in one.point.validity_reasons],
        "merged": {"of": len(point.repeats), "used": len(point.used), "failed": len(failed)},
        "starts": len(set(point.starts)),
        **metrics(point.figures),
        "output_token_throughput_interval": point.output_token_throughput(),
        **agreement_fields(point),
        **({"slo": _slo_document(slo, point.used, point.attainment)} if slo else {}),
        "repeats": [_repeat_document(one, slo) for one in point.repeats],
    }


def csv_lines(documents: Iterable[Document]) -> Iterator[Document]:
    """One line per point; of a point with several repeats also one per repeat. ``row`` tells: point | repeat."""
    for one in documents:
        repeats = one["repeats"]
        assert isinstance(repeats, list)
        shared = {name: value for name, value in one.items() if name != "repeats"}
        single = repeats[0] if len(repeats) == 1 else {}
        yield {"row": "point", **single, **shared}
        if not single:
            alone = {"row": "repeat", **shared, "merged": {}, "log_uri": None, "log_tail": None}
            yield from (alone | repeat for repeat in repeats)


def _repeat_document(one: Measurement, slo: Slo | None) -> Document:
    share = share_interval([one.verdicts.met]) if one.verdicts else None
    return {
        **fields_of(one.point, *_REPEAT_FIELDS),
        "attempts": one.attempts,
        **metrics(one.figures),
        "engine_side": one.engine_side,
        **({"slo": _slo_document(slo, [one] if one.verdicts else [], share)} if slo else {}),
    }


def _slo_document(slo: Slo, used: Sequence[Measurement], share: Interval | None) -> Document:
    judged = [(one, one.verdicts) for one in used if one.verdicts]
    met = sum(int(verdicts.met.sum()) for _, verdicts in judged)
    window_s = sum((one.point.window_end_ns - one.point.window_start_ns) / 1e9 for one, _ in judged)
    names = judged[0][1].by_limit if judged and share else {}
    return {
        "text": format_slo(slo),
        "attainment": share,
        "met": None if share is None else share.estimate >= slo.attainment,
        "by_limit": {
            name: float(np.concatenate([verdicts.by_limit[name] for _, verdicts in judged]).mean()) for name in names
        },
        "goodput": met / window_s if window_s > 0 else None,
    }


def points_text(points: Sequence[Point], slo: Slo | None = None, asked: str = "") -> Iterator[str]:
    """A table of the points that were measured for each thing that was measured; below them doubts and failures.

    ``asked``: what the points of each workload have in common beyond its name.
    """
    done = [point for point in points if point.used]
    failed = [point for point in points if not point.used]
    groups: dict[str, list[Point]] = {}
    for point in done:
        groups.setdefault(_measured(point), []).append(point)
    for title, group in groups.items():
        yield say(title + asked + (f" under {format_slo(slo)}" if slo else ""), "bold")
        yield from _table(group, slo)
        yield ""
    if any(point.emulated for point in points):
        yield say(EMULATED, "yellow")
    for point in done:
        yield from (say(f"{_name(point)}: {text}", "yellow") for text in _doubts(point))
    for point in failed:
        yield say(f"failed: {_name(point)}: {failure_text(point.head)}", "red")
    yield say(f"{len(done)} points measured, {len(failed)} failed", "dim")


def failure_text(row: PointHead | LaunchRow) -> str:
    """The sentence and what kind of failure it was."""
    kinds = [kind for kind in (row.failure_class, row.failure_kind) if kind]
    return f"{row.reason} ({': '.join(kinds)})" if kinds else str(row.reason)


def _table(points: Sequence[Point], slo: Slo | None) -> Iterator[str]:
    titles = ["load", "ok/all", "output\ntokens/s", "TTFT ms\np50, p99", "TPOT ms\np50, p99", "E2E ms\np50, p99"]
    columns = [Column("deployment", fold=True), *map(Column, [*titles, "attainment"] if slo else titles)]
    agreement, shares = agreement_column(points)
    rows = [[*_cells(point, slo), *share] for point, share in zip(points, shares, strict=True)]
    yield from table(columns + agreement, rows)
    yield from agreement_text(points)


def _measured(point: Point) -> str:
    """What stands in one table: ``chat of quickstart: some-org/model on h100``."""
    head, deployment = point.head, point.deployment
    where = f" on {deployment.hardware}" if deployment.hardware else ""
    return f"{head.workload} of {head.experiment}: {deployment.model}{where}{' (emulated)' if point.emulated else ''}"


def _cells(point: Point, slo: Slo | None) -> list[str | Cell]:
    figures, head = point.figures, point.head
    load = load_text(head.control, head.level)
    if len(point.repeats) > 1:
        load += f"\n{len(point.used)} of {len(point.repeats)}"
    share = _share_cell(point.attainment, slo) if slo else None
    answered = f"{figures.requests.ok}/{figures.requests.scheduled}"
    doubt = "" if point.validity == "valid" else "\n" + point.validity.replace("_backlog", "\n_backlog")
    latencies = (figures.ttft_ms, figures.tpot_ms, figures.e2e_ms)
    return [
        point.deployment.label + ("\nemulated" if point.emulated else ""),
        load,
        Cell(answered + doubt, "yellow" if doubt else None),
        _plus_minus(point.output_token_throughput()),
        *(
            f"{percentile(one, 0.5, figures.requests.ok)}\n{percentile(one, 0.99, figures.requests.ok)}"
            for one in latencies
        ),
        *([share] if share else []),
    ]


def _share_cell(share: Interval | None, slo: Slo) -> Cell:
    if share is None:
        return Cell("-")
    met = share.estimate >= slo.attainment
    text = f"{share.estimate:.3f} {'✓' if met else '✗'}\n{share.lower:.3f}-{share.upper:.3f}"
    return Cell(text, "green" if met else "red")


def _plus_minus(interval: Interval | None) -> str:
    return f"{figure(interval.estimate)}\n±{figure((interval.upper - interval.lower) / 2)}" if interval else "-"


def _doubts(point: Point) -> Iterator[str]:
    if point.validity != "valid":
        reasons = [text for one in point.used for text in one.point.validity_reasons]
        if point.validity == FAILING:
            requests = point.figures.requests
            kinds = ", ".join(f"{name} {count}" for name, count in point.figures.errors.items())
            reasons = [f"{requests.failed} of {requests.scheduled} requests failed ({kinds})"]
        yield f"{point.validity}: {'; '.join(reasons) or 'no reason was stored'}"
    elif doubtful := [one.point.validity for one in point.repeats if one.ok and not one.valid]:
        yield f"{len(doubtful)} of {len(point.repeats)} repeats are {', '.join(dict.fromkeys(doubtful))}"
    if failed := [one.point for one in point.repeats if not one.ok]:
        yield f"{len(failed)} of {len(point.repeats)} repeats failed: {failed[0].reason}"


def _name(point: Point) -> str:
    head = point.head
    badge = " (emulated)" if point.emulated else ""
    return f"{point.deployment.label}{badge}, {head.workload}, {load_text(head.control, head.level)}"
