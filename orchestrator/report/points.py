"""What was measured, one row per point: ``orchestrator results``."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from orchestrator.analysis.answers import called
from orchestrator.analysis.knee import knees
from orchestrator.analysis.measured import Attained, Measurement, Point, attained
from orchestrator.analysis.metrics import FAILING
from orchestrator.analysis.slo import JOINT, Verdicts, format_slo, shares
from orchestrator.base.text import grouped, listed
from orchestrator.capacity.best import group_of
from orchestrator.report.agreement import agreement_column, agreement_fields, agreement_text
from orchestrator.report.as_predicted import beside_column, beside_fields, beside_text
from orchestrator.report.documents import Document, fields_of, metrics
from orchestrator.report.text import EMULATED, Cell, Column, figure, p50_p99, plus_minus, say, table
from orchestrator.results.records import LaunchRow, PointHead
from orchestrator.spec.load import Slo, counted, load_text
from orchestrator.spec.settings import NO_HARDWARE

_REPEAT_FIELDS = (
    *(
        "measurement_id",
        "attempt_id",
        "launch_id",
        "repeat",
        "start",
        "seed",
        "status",
        "reason",
        "failure_class",
    ),
    *(
        "failure_kind",
        "validity",
        "validity_reasons",
        "clients",
        "window_start_ns",
        "window_end_ns",
    ),
    "started_unix_ns",
)


def point_document(
    point: Point,
    slos: Sequence[Slo] = (),
    launches: Mapping[str, LaunchRow] | None = None,
    current: bool = True,
    knees: Collection[str] = (),
) -> Document:
    """One point: deployment, load, status, validity, the metrics over its repeats, and each repeat
    alone.

    ``slos``: the SLOs it was judged by; the document's ``slo`` is the first of its ``slos``.
    ``launches``: by id, those on which something failed, for the engine's log. ``current``: the
    plan still asks for this point. ``knees``: ids of the points where a curve bends.
    """
    head, deployment = point.head, point.deployment
    failed = [one.point for one in point.repeats if not one.ok]
    worst = failed[0] if failed else head
    launch = (launches or {}).get(worst.launch_id) if failed else None
    described = deployment if deployment.engine else None  # its row was never stored
    return {
        "row": "point",
        **fields_of(head, "experiment", "point_id", "deployment_id"),
        "label": deployment.label,
        **fields_of(described, "engine", "model", "hardware", "devices", "usd_per_hour"),
        "settings": json.loads(deployment.settings_json),
        **fields_of(head, "workload", "control", "level", "arrivals"),
        "knee": head.point_id in knees,
        "emulated": point.emulated,
        "current": current,
        "status": "ok" if point.used else "failed",
        **fields_of(worst, "reason", "failure_class", "failure_kind"),
        **fields_of(launch, "log_uri", "log_tail"),
        "validity": point.validity,
        "validity_reasons": point.reasons,
        "merged": {"of": len(point.repeats), "used": len(point.used), "failed": len(failed)},
        "starts": len(set(point.starts)),
        **metrics(point.figures),
        "output_token_throughput_interval": point.output_token_throughput(),
        **agreement_fields(point),
        **beside_fields(point),
        **_slo_documents(slos, point.used, point.held),
        "repeats": [_repeat_document(one, slos) for one in point.repeats],
    }


def csv_lines(documents: Iterable[Document]) -> Iterator[Document]:
    """One line per point, per repeat (where a point has several) and per capacity. Column ``row``
    says which.
    """
    for one in documents:
        repeats = one.get("repeats")
        if not isinstance(repeats, list):
            yield {name: value for name, value in one.items() if name != "levels"}
            continue
        shared = {name: value for name, value in one.items() if name != "repeats"}
        single = repeats[0] if len(repeats) == 1 else {}
        yield {**single, **shared}
        if not single:
            alone = {**shared, "row": "repeat", "merged": {}, "log_uri": None, "log_tail": None}
            yield from (alone | repeat for repeat in repeats)


def _repeat_document(one: Measurement, slos: Sequence[Slo]) -> Document:
    held = [attained([verdicts]) for verdicts in one.verdicts]
    return {
        **fields_of(one.point, *_REPEAT_FIELDS),
        "attempts": one.attempts,
        **metrics(one.figures),
        "engine_side": one.engine_side,
        **_slo_documents(slos, [one] if one.verdicts else [], held),
    }


def _slo_documents(
    slos: Sequence[Slo], used: Sequence[Measurement], held: Sequence[tuple[Attained, ...]]
) -> Document:
    """``slos``: the result under each SLO; ``slo``: that under the first."""
    window_s = sum((one.point.window_end_ns - one.point.window_start_ns) / 1e9 for one in used)
    found = {
        slo.name: slo_document(
            slo, [one.verdicts[at] for one in used], held[at] if used else (), window_s
        )
        for at, slo in enumerate(slos)
    }
    return {"slo": found[slos[0].name], "slos": found} if slos else {}


def slo_document(
    slo: Slo, judged: Sequence[Verdicts], held: Sequence[Attained], window_s: float
) -> Document:
    """The result of an SLO over some repeats: ``attainment`` is that of its first test, ``met``
    whether all tests hold.

    ``held``: from ``attained``; ``window_s``: the windows of all repeats together.
    """
    joint = held and held[0].name == JOINT
    return {
        "text": format_slo(slo),
        "attainment": held[0].share if held else None,
        "met": all(one.share.estimate >= one.target for one in held) if held else None,
        "tests": [
            {
                "name": one.name,
                "target": one.target,
                "share": one.share,
                "met": one.share.estimate >= one.target,
            }
            for one in held
        ],
        "by_limit": shares(judged) if held else {},
        "goodput": sum(int(one.met.sum()) for one in judged) / window_s
        if joint and window_s > 0
        else None,
    }


def points_text(
    points: Sequence[Point], slos: Sequence[Slo] = (), asked: str = "", profile: bool = False
) -> Iterator[str]:
    """One table of points per workload, model and hardware; below them what is in doubt and what
    failed.

    ``asked``: what else the points of a workload have in common, for the heading. ``profile``:
    columns for prefill and decode in place of those about limits.
    """
    bends = knees(points)
    done = [point for point in points if point.used]
    for group in grouped((group_of(point), point) for point in done).values():
        limits = [slo_text(slo) for slo in slos]
        yield say(
            _measured(group) + asked + (f" under {limits[0]}" if len(limits) == 1 else ""), "bold"
        )
        yield from (f"  {text}" for text in limits if len(limits) > 1)
        if profile:
            yield from _profile(group)
        else:
            yield from _table([Shown(point, slos, point.head.point_id in bends) for point in group])
        yield ""
    yield from _below(points)


def _below(points: Sequence[Point]) -> Iterator[str]:
    """What is in doubt and what failed, below the tables of these points."""
    done = [point for point in points if point.used]
    failed = [point for point in points if not point.used]
    if any(point.emulated for point in points):
        yield say(EMULATED, "yellow")
    for point in done:
        yield from (say(f"{_name(point)}: {text}", "yellow") for text in _doubts(point))
        if note := _note(point):
            yield say(f"* {_name(point)}: {note}", "dim")
    yield from beside_text(done)
    for point in failed:
        yield say(f"failed: {_name(point)}: {failure_text(point.head)}", "red")
    yield say(f"{counted(len(done), 'point')} measured, {len(failed)} failed", "dim")


def load_runs_text(
    runs: Sequence[tuple[Sequence[Point], Sequence[Slo]]],
    remarks: Sequence[str] = (),
    profile: bool = False,
) -> Iterator[str]:
    """One table of several runs of ``orchestrator load``: a row per run and level. ``runs``: the
    points of each, with its limits; ``remarks``: in what they differ.
    """
    every = [point for points, _ in runs for point in points]
    rows = []
    for points, slos in runs:
        bends = knees(points)
        shown = [Shown(point, slos, point.head.point_id in bends) for point in points]
        rows += [one for one in shown if one.point.used]
    names = dict.fromkeys(point.deployment.model for point in every)
    limits = dict.fromkeys(slo_text(slo) for _, slos in runs for slo in slos)
    under = f" under {next(iter(limits))}" if len(limits) == 1 else ""
    yield say(f"{counted(len(runs), 'load run')}: {listed(list(names))}{under}", "bold")
    for points, slos in runs:
        name = points[0].deployment.label
        if len(names) > 1:
            yield f"  {name}: {points[0].deployment.model}"
        if len(limits) > 1 and slos:
            yield f"  {name}: {', '.join(slo_text(slo) for slo in slos)}"
    if rows:
        yield from _profile([one.point for one in rows]) if profile else _table(rows, "name")
        yield ""
    yield from (say(text, "yellow") for text in remarks)
    yield from _below(every)


def failure_text(row: PointHead | LaunchRow) -> str:
    """Why something failed, with the class and kind of the failure."""
    kinds = [kind for kind in (row.failure_class, row.failure_kind) if kind]
    return f"{row.reason} ({': '.join(kinds)})" if kinds else str(row.reason)


def slo_text(slo: Slo) -> str:
    """The limits, with the name that the file gives them."""
    return format_slo(slo) if slo.name == "slo" else f"{slo.name} ({format_slo(slo)})"


def _profile(points: Sequence[Point]) -> Iterator[str]:
    """Latency and throughput of prefill and decode: of a single request, except for the last
    columns.
    """
    titles = [
        "load",
        "TTFT ms\np50, p99",
        "prefill\ntokens/s",
        "TPOT ms\np50, p99",
        "decode\ntokens/s",
    ]
    columns = [
        Column("deployment", fold=True),
        *map(Column, [*titles, "all input\ntokens/s", "all output\ntokens/s"]),
    ]
    yield from table(columns, [_profile_cells(one) for one in points])


def _profile_cells(point: Point) -> list[str]:
    found, ok = point.figures, point.figures.requests.ok
    ttft, tpot = (p50_p99(one, ok) for one in (found.ttft_from_sent_ms, found.tpot_ms))
    prefill, decode = (
        figure(one.p50 if one else None)
        for one in (found.prefill_throughput, found.decode_throughput)
    )
    load = load_text(point.head.control, point.head.level)
    output = plus_minus(point.output_token_throughput())
    return [
        _label(point),
        load,
        ttft,
        prefill,
        tpot,
        decode,
        figure(found.input_token_throughput),
        output,
    ]


def _label(point: Point) -> str:
    return point.deployment.label + ("\nemulated" if point.emulated else "")


class Shown(NamedTuple):
    """A point in a table, with the limits that it was judged by; ``knee``: its curve bends there."""

    point: Point
    slos: Sequence[Slo]
    knee: bool


def _table(rows: Sequence[Shown], name: str = "deployment") -> Iterator[str]:
    """``name``: what the first column names."""
    points = [one.point for one in rows]
    most_slos = max(len(one.slos) for one in rows)
    titles = [
        "load",
        "ok/all",
        "output\ntokens/s",
        "TTFT ms\np50, p99",
        "TPOT ms\np50, p99",
        "E2E ms\np50, p99",
    ]
    several = [Column("attainment", fold=most_slos > 1)] if most_slos else []
    agreement, shares = agreement_column(points)
    prediction, ratios = beside_column(points)
    columns = [
        Column(name, fold=True),
        *map(Column, titles),
        *several,
        *agreement,
        *prediction,
    ]
    every = zip(rows, shares, ratios, strict=True)
    yield from table(
        columns, [[*_cells(row, bool(several)), *share, *ratio] for row, share, ratio in every]
    )
    yield from agreement_text(points)


def _measured(points: Sequence[Point]) -> str:
    """The heading of a table: ``chat of quickstart: some-org/model on h100``."""
    head, emulated = points[0].head, points[0].emulated
    where = called([point.deployment for point in points]) + on_hardware(
        points[0].deployment.hardware
    )
    return f"{head.workload} of {head.experiment}: {where}{' (emulated)' if emulated else ''}"


def on_hardware(name: str | None) -> str:
    """`` on h100``; empty for an endpoint, whose hardware is not known."""
    return f" on {name}" if name not in (None, NO_HARDWARE) else ""


def _cells(row: Shown, judged: bool) -> list[str | Cell]:
    """``judged``: the table has a column of attainment."""
    point = row.point
    figures, head = point.figures, point.head
    load = load_text(head.control, head.level) + ("\nknee" if row.knee else "")
    if len(point.repeats) > 1:
        load += f"\n{len(point.used)} of {len(point.repeats)}"
    answered = f"{figures.requests.ok}/{figures.requests.scheduled}{' *' if _note(point) else ''}"
    doubt = (
        "" if point.validity == "valid" else "\n" + point.validity.replace("_backlog", "\n_backlog")
    )
    latencies = (figures.ttft_ms, figures.tpot_ms, figures.e2e_ms)
    return [
        _label(point),
        load,
        Cell(answered + doubt, "yellow" if doubt else None),
        plus_minus(point.output_token_throughput()),
        *(p50_p99(one, figures.requests.ok) for one in latencies),
        *([_share_cell(point.held, row.slos)] if judged else []),
    ]


def _share_cell(held: Sequence[tuple[Attained, ...]], slos: Sequence[Slo]) -> Cell:
    """The share of each test and whether it holds; the interval too where there is a single test."""
    found = [
        (one, " ".join([slo.name] * (len(slos) > 1) + [one.name] * (one.name != JOINT)))
        for slo, tests in zip(slos, held, strict=True)
        for one in tests
    ]
    lines = [
        f"{one.share.estimate:.3f} {'✓' if one.share.estimate >= one.target else '✗'} {of}"
        for one, of in found
    ]
    if len(found) == 1:
        share = found[0][0].share
        lines = [lines[0].rstrip(), f"{share.lower:.3f}-{share.upper:.3f}"]
    hold = {one.share.estimate >= one.target for one, _ in found}
    styles = {
        frozenset({True}): "green",
        frozenset({False}): "red",
        frozenset({True, False}): "yellow",
    }
    return Cell("\n".join(lines) or "-", styles.get(frozenset(hold)))


def _doubts(point: Point) -> Iterator[str]:
    if point.validity != "valid":
        reasons = point.reasons
        if point.validity == FAILING:
            requests = point.figures.requests
            kinds = ", ".join(f"{name} {count}" for name, count in point.figures.errors.items())
            reasons = [f"{requests.failed} of {requests.scheduled} requests failed ({kinds})"]
        yield f"{point.validity}: {'; '.join(reasons) or 'no reason was stored'}"
    elif doubtful := [one.point.validity for one in point.repeats if one.ok and not one.valid]:
        yield f"{len(doubtful)} of {len(point.repeats)} repeats are {', '.join(dict.fromkeys(doubtful))}"
    if failed := [one.point for one in point.repeats if not one.ok]:
        yield f"{len(failed)} of {len(point.repeats)} repeats failed: {failed[0].reason}"


def _note(point: Point) -> str:
    """What a reader must know although the point is valid: the notes of its first repeat that has
    any.
    """
    noted = [
        one.point.validity_reasons for one in point.used if one.valid and one.point.validity_reasons
    ]
    if point.validity != "valid" or not noted:
        return ""
    return "; ".join(noted[0]) + (
        f" ({len(noted)} of {len(point.used)} repeats)" if len(point.used) > 1 else ""
    )


def _name(point: Point) -> str:
    head = point.head
    badge = " (emulated)" if point.emulated else ""
    return (
        f"{point.deployment.label}{badge}, {head.workload}, {load_text(head.control, head.level)}"
    )
