"""What ``orchestrator compare`` prints.

One line stands for each figure of a pair, the worst first; then come the counts of the verdicts.
All that is worse or better is shown, and of the rest as many as fit into ``top`` lines.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from orchestrator.analysis.difference import Verdict
from orchestrator.analysis.metrics import are_too_few
from orchestrator.analysis.points import StoredPoint
from orchestrator.analysis.slo import format_slo
from orchestrator.base.grouping import values_by_key
from orchestrator.base.text import counted, listed
from orchestrator.report.documents.comparison import (
    InvalidSide,
    Metric,
    MetricChange,
    Pair,
    SweepComparison,
    WithoutPartner,
)
from orchestrator.report.formats import JsonObject
from orchestrator.report.origin import origin_texts
from orchestrator.report.text import FEW_MARK, FEW_TEXT, Column, figure
from orchestrator.report.words import NO_REASON, failed_requests_text, failure_text
from orchestrator.report.written_form import Form
from orchestrator.spec.load import Slo, in_json, load_text

_COLUMNS = (
    Column("deployment", fold=True),
    Column("load", is_left=True),
    Column("figure", is_left=True),
    Column("base", drop_rank=1),
    Column("new", drop_rank=1),
    Column("change (95 %)", is_left=True),
    Column("verdict", is_left=True),
)
_SHORT_NAMES = {
    "output_token_throughput": "tokens/s",
    "request_throughput": "requests/s",
    "ttft_ms": "TTFT",
    "tpot_ms": "TPOT",
    "itl_ms": "ITL",
    "e2e_ms": "e2e",
}
_STYLES = {
    Verdict.WORSE: "red",
    Verdict.BETTER: "green",
    Verdict.SAME: None,
    Verdict.UNDECIDED: "yellow",
}
ONE_START = "one start decides nothing: ask for `repeats: 2` and `starts: 2` in the file"
ONE_START_OF_A_SERVER = (
    "a server that already ran counts as one start, which decides nothing: to decide, let `run` "
    "start the engine, with `repeats: 2` and `starts: 2` in the file"
)
# the shares of false alarms are those of benchmarks/compare
TWO_STARTS = (
    "two starts a side: 5 % of false alarms over everything where all pairs spread alike between "
    "starts, up to 7.5 % where a few spread more; to be surer: `repeats: 3` and `starts: 3`"
)
OTHER_SEEDS = "the seeds differ: both sides drew other requests from the same workload"
WITH_ITSELF = "BASE and NEW are the same results, so nothing can differ"
MOST_ROWS = 12
_WIDEST_CHANGE = 9.995  # a larger relative change is shown as ">+999"


def comparison_text(comparison: SweepComparison, form: Form, top: int = MOST_ROWS) -> Iterator[str]:
    """The lines of the table, of what could not be compared, and of the counts."""
    has_counts = bool(comparison.changes or comparison.failed)
    if not has_counts:
        yield from form.note(counts_text(comparison), "bold")
    yield from _table_text(comparison, form, top)
    for text in failed_texts(comparison):
        yield from form.short_note(text, "red")
    for text in failing_texts(comparison):
        yield from form.short_note(text, "yellow")
    for text in not_compared_texts(comparison):
        yield from form.short_note(text, "yellow")
    for text in across_texts(comparison):
        yield from form.note(text)
    if comparison.is_with_itself:
        yield from form.note(WITH_ITSELF, "yellow")
    for text in not_measured_texts(comparison):
        yield from form.note(text)
    for text in changed_texts(comparison):
        yield from form.note(text, "yellow")
    for text in spread_texts(comparison):
        yield from form.note(text, "dim")
    for text in few_starts_texts(comparison):
        yield from form.note(text, "yellow")
    if has_counts:
        yield from form.note(counts_text(comparison), "bold")
    yield from form.closing()


def _table_text(comparison: SweepComparison, form: Form, top: int) -> Iterator[str]:
    """The figures of all pairs, as many as ``top`` allows."""
    count = len(comparison.changes)
    shown = _shown(comparison, top)
    if shown:
        yield from form.table(_COLUMNS, [_row(change) for change in shown])
    if len(shown) < count:
        yield from form.note(f" and {count - len(shown)} more: --top {count}", "dim")
    for text in few_texts(shown):
        yield from form.short_note(text, "dim")


def _shown(comparison: SweepComparison, top: int) -> list[MetricChange]:
    """All changes that are worse or better, and the first others up to ``top`` lines in all."""
    certain = comparison.counts[Verdict.WORSE] + comparison.counts[Verdict.BETTER]
    places = top - certain
    shown: list[MetricChange] = []
    for change in comparison.changes:
        if change.judged.verdict in (Verdict.WORSE, Verdict.BETTER):
            shown.append(change)
        elif places > 0:
            shown.append(change)
            places -= 1
    return shown


def counts_text(comparison: SweepComparison) -> str:
    """``30 figures of 10 pairs: 1 worse, 2 undecided, 27 same; 1 pair failed in NEW``."""
    texts: list[str] = []
    if comparison.changes:
        texts.append(_verdict_counts_text(comparison))
    if comparison.failed:
        texts.append(_failed_count_text(comparison))
    return "; ".join(texts) or "nothing could be compared"


def _verdict_counts_text(comparison: SweepComparison) -> str:
    pairs = {id(change.pair) for change in comparison.changes}  # a pair has a change per figure
    counts = [f"{count} {verdict}" for verdict, count in comparison.counts.items() if count]
    figures = counted(len(comparison.changes), "figure")
    return f"{figures} of {counted(len(pairs), 'pair')}: {', '.join(counts)}"


def _failed_count_text(comparison: SweepComparison) -> str:
    return f"{counted(len(comparison.failed), 'pair')} failed in NEW"


def headline_text(comparison: SweepComparison) -> str:
    """``2 of 6 figures are worse``, with ``1 pair failed in NEW`` before it where one did."""
    figures = counted(len(comparison.changes), "figure")
    worse = comparison.counts[Verdict.WORSE]
    undecided = comparison.counts[Verdict.UNDECIDED]
    worse_text = f"{worse} of {figures} {'is' if worse == 1 else 'are'} worse"
    if comparison.failed:
        failed_text = _failed_count_text(comparison)
        return f"{failed_text}; {worse_text}" if worse else failed_text
    if not comparison.changes:
        return "Nothing could be compared"
    if worse:
        return worse_text
    if undecided:
        return f"Nothing is certainly worse; {undecided} of {figures} undecided"
    return f"Nothing is worse, of {figures}"


def failed_texts(comparison: SweepComparison) -> Iterator[str]:
    """A sentence on each point of NEW that failed where BASE holds."""
    for point in comparison.failed:
        yield f"failed where BASE holds: {_point_text(point)}: {_failure_reason_text(point)}"


def failing_texts(comparison: SweepComparison) -> Iterator[str]:
    """A sentence on each point of NEW that failed more requests, which decides nothing."""
    for point in comparison.failing:
        yield f"more requests failed: {_point_text(point)}: {failed_requests_text(point)}"


def not_compared_texts(comparison: SweepComparison) -> Iterator[str]:
    """Sentences on the points and metrics that could not be compared."""
    for side in comparison.invalid:
        yield _invalid_text(side)
    yield from _partner_texts(comparison.without_partner)
    yield from _value_texts(comparison)


def across_texts(comparison: SweepComparison) -> Iterator[str]:
    """The option that makes pairs where there are none, because all points differ in one setting."""
    differences = [set(alone.differs_in) for alone in comparison.without_partner]
    has_other_load = any(alone.load_differs_in for alone in comparison.without_partner)
    if comparison.changes or not differences or has_other_load:
        return
    shared = sorted(set.intersection(*differences))
    if shared:
        across = ",".join([*comparison.rules.across, *shared])
        yield f"to compare all the same: --across {across}"


def few_starts_texts(comparison: SweepComparison) -> list[str]:
    """What the verdicts are worth where a side has two starts, and what to do where one has one."""
    texts = [TWO_STARTS] if comparison.rests_on_two_starts else []
    return texts + single_start_texts(comparison)


def single_start_texts(comparison: SweepComparison) -> list[str]:
    """What to do about figures that are undecided because a side has one start: a sentence for
    servers that already ran, and one for engines that can be started again.
    """
    single = [change for change in comparison.changes if change.judged.difference is None]
    is_forever = [_has_one_start_forever(change) for change in single]
    texts: list[str] = []
    if any(is_forever):
        texts.append(ONE_START_OF_A_SERVER)
    if not all(is_forever):
        texts.append(ONE_START)
    return texts


def _has_one_start_forever(change: MetricChange) -> bool:
    """Whether a side is a server that already ran: it counts as one start, and no sweep starts it
    again.
    """
    sides = (change.pair.base, change.pair.new)
    return not all(side.deployment.launched for side in sides)


def pair_text(pair: Pair) -> str:
    """The name that both deployments of a pair have, or ``before → after``."""
    base, new = pair.base.deployment.label, pair.new.deployment.label
    return new if base == new else f"{base} → {new}"


def change_text(change: MetricChange) -> str:
    """``-5.1% (-6.0 to -4.2)``; for a share, in points: ``-2.0 pt (-3.0 to -1.0)``."""
    interval = interval_text(change)
    text = change_alone_text(change)
    return f"{text} ({interval})" if interval else text


def change_alone_text(change: MetricChange) -> str:
    """``-5.1%``; for a share, in points: ``-2.0 pt``."""
    unit = " pt" if change.metric.is_share else "%"
    return f"{_percent(change.change)}{unit}"


def interval_text(change: MetricChange) -> str:
    """``-6.0 to -4.2``, in the unit of the change; empty where either side has one start."""
    interval = change.interval
    if interval is None:
        return ""
    low, high = interval
    return f"{_percent(low)} to {_percent(high)}"


def verdict_text(change: MetricChange) -> str:
    """``worse``, or ``undecided: 2 more starts``; of a server that already ran, ``undecided: one
    start``.
    """
    judged = change.judged
    if judged.verdict is not Verdict.UNDECIDED:
        return str(judged.verdict)
    if _has_one_start_forever(change):
        return "undecided: one start"
    if judged.more_starts is None:
        return "undecided: many more starts"
    return f"undecided: {counted(judged.more_starts, 'more start')}"


def comparison_object(comparison: SweepComparison) -> JsonObject:
    """The JSON of a comparison. Its names and their order are a promise to readers."""
    rules = comparison.rules
    sides = {"base": comparison.base, "new": comparison.new}
    return {
        **{
            name: {"uri": experiment.store.uri, "experiment": experiment.name}
            for name, experiment in sides.items()
        },
        "across": rules.across,
        "within": rules.within,
        "fail_on": [metric.name for metric in rules.metrics],
        "slo": None if comparison.slo is None else format_slo(comparison.slo),
        "regression": comparison.has_regressed,
        "counts": {str(verdict): count for verdict, count in comparison.counts.items()},
        "spread": {
            metric.name: None if spread is None else math.sqrt(spread.variance)
            for metric, spread in comparison.spreads.items()
        },
        "spread_is_even": {
            metric.name: None if spread is None else spread.is_even
            for metric, spread in comparison.spreads.items()
        },
        "rests_on_two_starts": comparison.rests_on_two_starts,
        "other_seeds": comparison.has_other_seeds,
        "environment": [
            {
                "hardware": fact.hardware,
                "fact": fact.title,
                "base": fact.base,
                "new": fact.new,
            }
            for fact in comparison.changed
        ],
        "failed": [
            {**_point_object(point), "why": _failure_reason_text(point)}
            for point in comparison.failed
        ],
        "failing": [
            {**_point_object(point), "why": failed_requests_text(point)}
            for point in comparison.failing
        ],
        "changes": [_change_object(change) for change in comparison.changes],
        "invalid": [
            {"side": side.side, **_point_object(side.point), "why": _reason_text(side.point)}
            for side in comparison.invalid
        ],
        "without_partner": [
            {
                "side": alone.side,
                **_point_object(alone.point),
                "ambiguous": alone.is_ambiguous,
                "differs_in": [*alone.load_differs_in, *alone.differs_in],
            }
            for alone in comparison.without_partner
        ],
        "without_value": [
            {**_point_object(lacking.pair.new), "metric": lacking.metric.name}
            for lacking in comparison.without_value
        ],
    }


def _change_object(change: MetricChange) -> JsonObject:
    difference = change.judged.difference
    low, high = change.interval or (None, None)
    return {
        **_point_object(change.pair.new),
        "base_deployment": change.pair.base.deployment.label,
        "metric": change.metric.name,
        "part": change.metric.part,
        "base": change.base.mean,
        "new": change.new.mean,
        "change": change.change,
        "change.lower": low,
        "change.upper": high,
        "p": None if difference is None else difference.p_two_sided,
        "base_starts": change.base.starts,
        "new_starts": change.new.starts,
        "verdict": str(change.judged.verdict),
        "more_starts": change.judged.more_starts,
        "base_emulated": change.pair.base.emulated,
        "emulated": change.pair.new.emulated,
        "simulated": change.pair.new.simulated,
    }


def _point_object(point: StoredPoint) -> JsonObject:
    head = point.head
    return {
        "deployment": point.deployment.label,
        "workload": head.workload,
        "control": head.control,
        "level": in_json(head.level),
    }


def _row(change: MetricChange) -> list[str]:
    return [
        pair_text(change.pair),
        point_load_text(change.pair.new),
        figure_text(change),
        value_text(change.metric, change.base.mean),
        value_text(change.metric, change.new.mean),
        change_text(change),
        verdict_text(change),
    ]


def metric_text(metric: Metric) -> str:
    """``TTFT p99``; of a part of a mix ``chat: TTFT p99``."""
    name = _SHORT_NAMES.get(metric.figure, metric.figure)
    text = name if metric.statistic is None else f"{name} {metric.statistic}"
    return text if metric.part is None else f"{metric.part}: {text}"


def figure_text(change: MetricChange) -> str:
    """``TTFT p99``, with FEW_MARK where a side has too few requests for it."""
    mark = FEW_MARK if _is_of_too_few(change) else ""
    return metric_text(change.metric) + mark


def few_texts(changes: Iterable[MetricChange]) -> list[str]:
    """What FEW_MARK means, where one of these figures has it."""
    return [FEW_TEXT] if any(_is_of_too_few(change) for change in changes) else []


def _is_of_too_few(change: MetricChange) -> bool:
    """Whether it is of a percentile for which a side has too few requests."""
    statistic = change.metric.statistic
    if statistic is None or not statistic.startswith("p"):
        return False
    quantile = int(statistic.removeprefix("p")) / 100
    for point in (change.pair.base, change.pair.new):
        figures = point.figures_of(change.metric.part)
        if figures is not None and are_too_few(figures.requests.ok, quantile):
            return True
    return False


def point_load_text(point: StoredPoint) -> str:
    """``chat 2 in flight``."""
    head = point.head
    return f"{head.workload} {load_text(head.control, head.level)}"


def value_text(metric: Metric, value: float) -> str:
    """A value in the unit of its column, to three digits; a share in percent."""
    return f"{value:.1%}" if metric.is_share else figure(value)


def _percent(change: float) -> str:
    if change > _WIDEST_CHANGE:
        return ">+999"
    return f"{100 * change:+.1f}"


def _point_text(point: StoredPoint) -> str:
    return f"{point.deployment.label}, {point_load_text(point)}"


def _reason_text(point: StoredPoint) -> str:
    if not point.used_repeats:
        return failure_text(point.head)
    return f"{point.validity}: {'; '.join(point.reasons) or NO_REASON}"


def _failure_reason_text(point: StoredPoint) -> str:
    """Why the engine of this point failed, or what was wrong with its output."""
    if point.engine_failures:
        return failure_text(point.engine_failures[0].head)
    return _reason_text(point)


def _invalid_text(side: InvalidSide) -> str:
    verb = "is" if side.point.used_repeats else "failed:"
    return f"not compared: {_point_text(side.point)}: {side.side} {verb} {_reason_text(side.point)}"


def _partner_texts(points: Sequence[WithoutPartner]) -> Iterator[str]:
    """A sentence for the points of a deployment that lack a partner for the same reason."""
    by_reason = values_by_key(
        ((alone.side, alone.point.deployment.label, _partner_reason(alone)), alone.point)
        for alone in points
    )
    for (side, label, reason), same in by_reason.items():
        if len(same) == 1:
            yield f"{side} only: {_point_text(same[0])}{reason}"
            continue
        # loads stand last, where a narrow terminal cuts
        loads = ", ".join(point_load_text(point) for point in same)
        yield f"{side} only: {label}{reason} ({loads})"


def _partner_reason(alone: WithoutPartner) -> str:
    if alone.is_ambiguous:
        return ": several points are alike apart from the settings of --across"
    differs_in = [*alone.load_differs_in, *alone.differs_in]
    if differs_in:
        return f": the nearest differs in {listed(differs_in)}"
    return ""


def _value_texts(comparison: SweepComparison) -> Iterator[str]:
    pairs_by_metric = Counter(lacking.metric for lacking in comparison.without_value)
    for metric, pairs in pairs_by_metric.items():
        remedy = ": give limits with --slo" if _needs_limits(metric, comparison.slo) else ""
        yield f"{metric.name} is not known of {counted(pairs, 'pair')}{remedy}"


def _needs_limits(metric: Metric, slo: Slo | None) -> bool:
    """Whether it is an attainment, and there are no limits on the requests that it is of."""
    if not metric.is_share:
        return False
    if slo is None:
        return True
    return metric.part is not None and slo.of_part(metric.part) is None


def not_measured_texts(comparison: SweepComparison) -> Iterator[str]:
    """Says that figures were emulated, simulated or imported, and on which side if on one alone."""
    pairs = [change.pair for change in comparison.changes]
    of_base = origin_texts([pair.base for pair in pairs])
    of_new = origin_texts([pair.new for pair in pairs])
    for text in dict.fromkeys([*of_base, *of_new]):
        if text not in of_new:
            yield f"BASE is {text}"
        elif text not in of_base:
            yield f"NEW is {text}"
        else:
            yield text


def changed_texts(comparison: SweepComparison) -> Iterator[str]:
    """A sentence on seeds, one on this program, and one on the hosts of each hardware class, where
    they are not the same on both sides.
    """
    if comparison.has_other_seeds:
        yield OTHER_SEEDS
    by_hardware = values_by_key((fact.hardware, fact) for fact in comparison.changed)
    for hardware, facts in by_hardware.items():
        texts = [f"{fact.title} {listed(fact.base)} → {listed(fact.new)}" for fact in facts]
        what = "the measuring program" if hardware is None else f"hosts of {hardware}"
        yield f"{what} changed, too, and may be the cause: {', '.join(texts)}"


def spread_texts(comparison: SweepComparison) -> Iterator[str]:
    """How much engine starts differ: a line for metrics whose pairs share one spread, and a line for
    metrics whose pairs differ in it.
    """
    even: list[str] = []
    uneven: list[str] = []
    for metric, spread in comparison.spreads.items():
        if spread is None:
            continue
        texts = even if spread.is_even else uneven
        texts.append(f"{metric_text(metric)} {math.sqrt(spread.variance):.1%}")
    if even:
        yield f"spread between starts, pooled over all pairs: {', '.join(even)}"
    if uneven:
        yield f"spread between starts, uneven over the pairs: {', '.join(uneven)}"
