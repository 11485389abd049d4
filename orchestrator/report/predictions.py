"""What a plan predicts for its deployments, best first: ``orchestrator plan --predict``."""

from collections.abc import Iterator

from orchestrator.analysis.slo import format_slo
from orchestrator.base.text import grouped, listed
from orchestrator.plan.model import Plan
from orchestrator.plan.order import predicted_share
from orchestrator.plan.predictions import DEFAULT_SLO, limits_of
from orchestrator.report.text import Column, figure, say, table
from orchestrator.spec.load import Slo, load_text

MOST_ROWS = 200


def predictions_text(plan: Plan) -> Iterator[str]:
    """A table per workload and SLO; then how far off predictions are, and which deployments have
    none.
    """
    for slo in limits_of(plan):
        for load in plan.loads:
            yield from _table(plan, load.workload.name, slo)
    for error in {
        str(found): found
        for one in plan.deployments
        if (found := (one.predicted or {}).get("error"))
    }.values():
        off = f"median error of predictions: {error['ttft']:.0%} (TTFT), {error['tpot']:.0%} (TPOT)"
        held = (
            "hold 9 in 10"
            if error.get("counted")
            else "would hold 9 in 10 if logarithms of errors were normal"
        )
        yield f"{off}, on {error['source']}; intervals {held}"
    for key, said in (
        ("no_row", "predicted by the formula, no tables"),
        ("not_predicted", "not predicted"),
    ):
        found = (
            (why, one.label) for one in plan.deployments if (why := (one.predicted or {}).get(key))
        )
        for why, labels in grouped(found).items():
            yield f"{said}: {why}: {listed(labels, most=8)}"
    if predicted_share(plan):
        order = (
            "'run' starts with those predicted best (predictions: {order: false}: with the longest)"
        )
        yield (
            order
            if plan.predictions.order
            else "the longest are run first (predictions: {order: false})"
        )
    yield ""


def _table(plan: Plan, workload: str, slo: Slo) -> Iterator[str]:
    rows = []
    for one in plan.deployments:
        found = (one.predicted or {}).get("capacity", {}).get(slo.name, {}).get(workload)
        if found is None:
            continue
        low, high = found["interval_per_gpu"]
        usd, best = found["usd_per_million_tokens"], found["output_throughput_per_gpu"]
        level = (
            load_text(found["control"], float(f"{found['level']:.3g}"))
            if found["level"]
            else "none holds"
        )
        cells = [
            one.label,
            level,
            figure(best),
            f"{figure(low)}-{figure(high)}",
            "-" if usd is None else f"{usd:.2f}",
        ]
        rows.append((-best, cells))
    if not rows:
        return
    name = "default limits (MLPerf interactive): " if slo is DEFAULT_SLO else f"{slo.name}: "
    yield say(f"predicted capacity of {workload} under {name}{format_slo(slo)}", "bold")
    titles = [
        "load",
        "output tokens/s\nper GPU",
        "9 in 10 within",
        "USD per million\noutput tokens",
    ]
    shown = [cells for _, cells in sorted(rows)[:MOST_ROWS]]
    yield from table([Column("deployment", fold=True), *map(Column, titles)], shown)
    if len(rows) > MOST_ROWS:
        yield f"… and {len(rows) - MOST_ROWS:,} more; --format json shows all"
    yield ""
