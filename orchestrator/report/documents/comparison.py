"""Compares the points of two sweeps: the record from which ``orchestrator compare`` is written."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pydantic import ValidationError

from orchestrator.analysis.difference import (
    FALSE_ALARMS,
    Gated,
    Judged,
    Sides,
    StartValues,
    Verdict,
    judge_together,
    judged_spread,
    p_more_failed,
    spread_of_pairs,
)
from orchestrator.analysis.metrics import BROKEN
from orchestrator.analysis.points import (
    Attained,
    Repeat,
    StoredPoint,
    attained_by,
    attainment_of,
)
from orchestrator.analysis.start_spread import CommonSpread
from orchestrator.base.errors import FailureKind, InputError, ProblemsError
from orchestrator.base.grouping import values_by_key
from orchestrator.base.registry import unknown_name
from orchestrator.plan.current import Question, StoredExperiment
from orchestrator.report.documents.changed_environment import (
    ChangedFact,
    MeasuredSide,
    changed_facts,
)
from orchestrator.report.documents.comparison_defaults import ACROSS, EACH_PART
from orchestrator.results.records import Figures, RequestTotals
from orchestrator.results.stored_json import parsed_load, parsed_workload
from orchestrator.spec.load import Slo, Workload
from orchestrator.spec.settings import EngineSettings

ATTAINMENT = "attainment"
RATES = tuple(name for name in Figures.__slots__ if name.endswith("_throughput"))
LATENCIES = ("ttft_ms", "ttfo_ms", "tpot_ms", "itl_ms", "e2e_ms", "normalized_ttft_ms")
_DISTRIBUTED_RATES = ("prefill_throughput", "decode_throughput")
_GATED_STATISTICS = ("p50", "p90", "p95", "p99", "mean")  # fields of ``Distribution``


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure of points.

    ``statistic``: which one of a distribution; None: it is one number. ``part``: of the requests of
    this part of a mix, or of EACH_PART; None: of all requests.
    """

    figure: str
    statistic: str | None = None
    part: str | None = None

    @property
    def name(self) -> str:
        """``ttft_ms.p99``; of a part ``chat:ttft_ms.p99``, as limits on parts are written."""
        name = self.figure if self.statistic is None else f"{self.figure}.{self.statistic}"
        return name if self.part is None else f"{self.part}:{name}"

    @property
    def is_share(self) -> bool:
        """Whether it is a share: shares are compared by their difference, all else by the ratio."""
        return self.figure == ATTAINMENT

    @property
    def higher_is_better(self) -> bool:
        return self.figure not in LATENCIES

    def of_start(self, repeats: Sequence[Repeat]) -> float | None:
        """The mean over the repeats of one start; for a share, over all their requests.

        None: some repeat has no value.
        """
        if self.is_share:
            if not all(repeat.verdicts for repeat in repeats):
                return None
            share = attainment_of(self._tests_of_part(attained_by(repeats, 0)))
            return share.estimate if share is not None else None
        values: list[float] = []
        for repeat in repeats:
            figures = repeat.figures_of(self.part)
            value = None if figures is None else getattr(figures, self.figure)
            if value is not None and self.statistic is not None:
                value = getattr(value, self.statistic)
            if value is None or not 0 < value < math.inf:
                return None
            values.append(value)
        return sum(values) / len(values)

    def of_point(self, point: StoredPoint) -> StartValues | None:
        """The value of each start of a point; None: some start has none."""
        starts = values_by_key((repeat.head.start, repeat) for repeat in point.used_repeats)
        values = []
        for repeats in starts.values():
            value = self.of_start(repeats)
            if value is None:
                return None
            values.append(value)
        if not self.is_share:
            return StartValues(tuple(values))
        share = attainment_of(self._tests_of_part(point.tests))
        return StartValues(tuple(values), share.standard_error if share is not None else 0.0)

    def _tests_of_part(self, tests: Sequence[Attained]) -> list[Attained]:
        """The tests of this part's requests; all tests where it is of all requests."""
        return [test for test in tests if self.part in (None, test.part)]


@dataclass(frozen=True, slots=True)
class DifferenceRules:
    """How sweeps are compared.

    ``across``: settings that may differ within a pair. ``within``: the change that is tolerated,
    relative or, for a share, in points. ``metrics``: the metrics that are gated.
    """

    across: tuple[str, ...]
    within: float
    metrics: tuple[Metric, ...]

    def bound(self, metric: Metric) -> float:
        """The tolerated fall, on the scale on which the metric is compared."""
        return self.within if metric.is_share else -math.log1p(-self.within)

    def growth_bound(self, metric: Metric) -> float:
        """The tolerated growth, on the same scale."""
        return self.within if metric.is_share else math.log1p(self.within)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two points with the same load and the same settings, except those that may differ."""

    base: StoredPoint
    new: StoredPoint

    @property
    def parts(self) -> set[str]:
        """The parts of a mix that its requests are of; empty for other workloads."""
        return {of_part.part for side in (self.base, self.new) for of_part in side.part_figures}

    @property
    def has_other_seeds(self) -> bool:
        """Whether no schedule of NEW was drawn with a seed of BASE."""
        base_seeds = {repeat.head.seed for repeat in self.base.used_repeats}
        return base_seeds.isdisjoint(repeat.head.seed for repeat in self.new.used_repeats)


@dataclass(frozen=True, slots=True)
class MetricChange:
    """What became of one metric of a pair."""

    pair: Pair
    metric: Metric
    base: StartValues
    new: StartValues
    judged: Judged

    @property
    def change(self) -> float:
        """The difference of a share; else the relative change, where -0.05 is 5 % less."""
        return self._of_scale(_on_scale(self.metric, self.base, self.new).difference)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the change alone; None where either side has one start."""
        difference = self.judged.difference
        if difference is None:
            return None
        low = difference.estimate - difference.half_width
        high = difference.estimate + difference.half_width
        return self._of_scale(low), self._of_scale(high)

    @property
    def harm(self) -> float:
        """The change, with a sign such that a positive one is worse."""
        return -self.change if self.metric.higher_is_better else self.change

    def _of_scale(self, difference: float) -> float:
        if self.metric.is_share:
            return difference
        return math.expm1(min(difference, 100.0))  # with two starts, an interval may be endless


@dataclass(frozen=True, slots=True)
class InvalidSide:
    """A point that has a partner, but no figures that say how the engine did."""

    side: str
    point: StoredPoint


@dataclass(frozen=True, slots=True)
class WithoutPartner:
    """A point without a single partner on the other side.

    ``differs_in``: the settings in which the other side's nearest point at the same level differs.
    ``load_differs_in``: what else that point differs in, as ``duration_s`` or
    ``workload.input_tokens``; no ``--across`` makes it a pair. Both are empty where the other side
    has no such level. ``is_ambiguous``: the other side has such
    points, but several points of one side are alike apart from the settings of ``--across``.
    """

    side: str
    point: StoredPoint
    differs_in: tuple[str, ...] = ()
    load_differs_in: tuple[str, ...] = ()
    is_ambiguous: bool = False


@dataclass(frozen=True, slots=True)
class WithoutValue:
    """A metric that a side of a pair does not have."""

    pair: Pair
    metric: Metric


@dataclass(frozen=True, slots=True)
class SweepComparison:
    """What became of the points of BASE in NEW.

    ``changes``: the worst first. ``spreads``: by metric, the variance between starts that its pairs
    share; None: each pair is judged by its own starts alone. ``failed``: the points of NEW whose
    engine failed, gave broken output or failed more requests, where BASE's engine did not; their
    figures are not compared. ``failing``: the points of NEW that failed more requests, where a side
    has one start, which decides nothing. ``changed``: what else changed between both sides, of the points that are pairs.
    """

    base: StoredExperiment
    new: StoredExperiment
    rules: DifferenceRules
    slo: Slo | None
    changes: tuple[MetricChange, ...]
    spreads: Mapping[Metric, CommonSpread | None]
    failed: tuple[StoredPoint, ...]
    failing: tuple[StoredPoint, ...]
    invalid: tuple[InvalidSide, ...]
    without_partner: tuple[WithoutPartner, ...]
    without_value: tuple[WithoutValue, ...]
    changed: tuple[ChangedFact, ...]

    @property
    def is_with_itself(self) -> bool:
        """Whether both sides are the same stored experiment."""
        sides = {(side.store.uri, side.name) for side in (self.base, self.new)}
        return len(sides) == 1

    @property
    def has_other_seeds(self) -> bool:
        """Whether pairs were measured with requests that were drawn with other seeds."""
        return any(change.pair.has_other_seeds for change in self.changes)

    @property
    def counts(self) -> dict[Verdict, int]:
        counted = Counter(change.judged.verdict for change in self.changes)
        return {verdict: counted[verdict] for verdict in Verdict}

    @property
    def has_regressed(self) -> bool:
        """Whether anything gated is certainly worse, or a point of NEW failed."""
        return self.counts[Verdict.WORSE] > 0 or bool(self.failed)

    @property
    def rests_on_two_starts(self) -> bool:
        """Whether anything is worse or better by two starts a side and the spread of other pairs.

        The limit on false alarms is then that of pairs that spread alike between starts. Two starts
        do not show whether they do.
        """
        for change in self.changes:
            spread = self.spreads.get(change.metric)
            is_pooled = spread is not None and spread.deployments > 1
            has_two_starts = min(change.base.starts, change.new.starts) == 2
            is_certain = change.judged.verdict in (Verdict.WORSE, Verdict.BETTER)
            if is_certain and is_pooled and has_two_starts:
                return True
        return False

    @property
    def has_undecided(self) -> bool:
        """Whether anything gated is neither certainly worse or better nor certainly the same, was
        not compared because the point of a side is invalid, or fails more requests.
        """
        return self.counts[Verdict.UNDECIDED] > 0 or bool(self.invalid or self.failing)


def metric_named(name: str) -> Metric:
    """The metric of this name, such as ``ttft_ms.p99``, or of a part ``chat:ttft_ms.p99``.

    Raises InputError for a name that is no figure to be gated.
    """
    before, colon, of_requests = name.rpartition(":")
    known = [ATTAINMENT]
    known += [rate for rate in RATES if rate not in _DISTRIBUTED_RATES]
    for figure in (*LATENCIES, *_DISTRIBUTED_RATES):
        known += [f"{figure}.{statistic}" for statistic in _GATED_STATISTICS]
    if of_requests not in known:
        raise InputError(f"--fail-on: {unknown_name('metric', of_requests, known)}")
    figure, _, statistic = of_requests.partition(".")
    return Metric(figure, statistic or None, before if colon else None)


def compare_sweeps(
    base: StoredExperiment, new: StoredExperiment, rules: DifferenceRules, slo: Slo | None
) -> SweepComparison:
    """Pairs the points of two sweeps and judges their metrics.

    ``slo``: the SLO by which both sides are judged; None: attainment has no value. Raises
    InputError where the SLO needs a table that was deleted, and for a setting in ``across`` or a
    part of a metric that no point has.
    """
    slos = () if slo is None else (slo,)
    of_base = _keyed(base, base.points(*slos).current)
    of_new = _keyed(new, new.points(*slos).current)
    _check_across(rules.across, [*of_base, *of_new])
    pairing = _paired(of_base, of_new, rules.across)
    pairs = pairing.pairs
    valid: list[Pair] = []
    failed: list[StoredPoint] = []
    failing: list[StoredPoint] = []
    invalid: list[InvalidSide] = []
    for pair in pairs:
        if _engine_failed(pair.new) and _holds(pair.base):
            failed.append(pair.new)
            continue
        if _fails_more_requests(pair, rules, len(pairs)):
            failing.append(pair.new)
        spoilt = [
            InvalidSide(side, point)
            for side, point in (("BASE", pair.base), ("NEW", pair.new))
            if not _shows_the_engine(point)
        ]
        invalid += spoilt
        if not spoilt:
            valid.append(pair)
    _check_parts(rules.metrics, pairs)
    values = _values(valid, _metrics_of(valid, rules.metrics, slo))
    judged = _judged(values.measured, rules)
    return SweepComparison(
        base=base,
        new=new,
        rules=rules,
        slo=slo,
        changes=tuple(sorted(judged.changes, key=_place_by_harm)),
        spreads=judged.spreads,
        failed=tuple(failed),
        failing=tuple(failing),
        invalid=tuple(invalid),
        without_partner=tuple(pairing.without_partner),
        without_value=tuple(values.without_value),
        changed=changed_facts(
            MeasuredSide(base, [pair.base for pair in pairs], _client_versions(of_base)),
            MeasuredSide(new, [pair.new for pair in pairs], _client_versions(of_new)),
        ),
    )


@dataclass(frozen=True, slots=True)
class _KeyedPoint:
    """A point, with what must be alike in a pair.

    ``load``: everything but the deployment, each as JSON. ``settings``: each setting as JSON.
    ``client_version``: the version of this program that measured it; None: not known.
    """

    point: StoredPoint
    load: Mapping[str, str]
    settings: Mapping[str, str]
    client_version: str | None

    def key(self, across: Iterable[str]) -> str:
        left_out = set(across)
        kept = {name: text for name, text in self.settings.items() if name not in left_out}
        return json.dumps([self.load, kept], sort_keys=True)


@dataclass(frozen=True, slots=True)
class _Measured:
    """One metric of a pair before it is judged."""

    pair: Pair
    metric: Metric
    base: StartValues
    new: StartValues


def _keyed(experiment: StoredExperiment, points: Sequence[StoredPoint]) -> list[_KeyedPoint]:
    asked = experiment.asked_of(points)
    keyed = []
    for point in points:
        head, deployment = point.head, point.deployment
        question = asked.get(head.point_id)
        workload = _workload_alike(question, head.workload)
        rules = {} if question is None else parsed_load(question.load_json)
        load = {
            **{f"workload.{key}": value for key, value in workload.items()},
            "arrivals": head.arrivals,
            **rules,
            "level": [head.control, head.level],
            "simulated": point.simulated,
            "source": point.source,
            "assumed": deployment.prediction.assumed.stated() if point.simulated else {},
        }
        settings = {
            **deployment.settings,
            "engine": deployment.engine,
            "engine_version": deployment.engine_version,
            "hardware": deployment.hardware,
            "accelerator": deployment.accelerator,  # two may have been called by one name
            "devices": deployment.devices,
        }
        version = None if question is None else question.client_version
        keyed.append(_KeyedPoint(point, _as_json(load), _as_json(settings), version))
    return keyed


def _client_versions(points: Sequence[_KeyedPoint]) -> tuple[str, ...]:
    """The versions of this program that measured these points, without what it only imported."""
    measured = [each for each in points if each.point.source is None]
    return tuple(sorted({each.client_version for each in measured if each.client_version}))


def _as_json(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: json.dumps(value, sort_keys=True) for name, value in values.items()}


def _workload_alike(question: Question | None, name: str) -> dict[str, Any]:
    """What must be alike in the workloads of a pair: what requests contain, whatever its name is
    and wherever its files lie.

    Where the row of the point is not stored, only the name of its workload is known.
    """
    if question is None:
        return {"name": name}
    workload = parsed_workload(question.workload_json)
    try:
        return Workload.model_validate(workload).identity()
    except (ValidationError, ProblemsError):  # another tool's or release's: as it is stored
        workload.pop("name", None)
        return workload


def _check_across(across: Sequence[str], points: Sequence[_KeyedPoint]) -> None:
    """Raises InputError for a name that no point has and that is no setting of an engine. Settings
    that both sides leave open do not differ, so they may be named.
    """
    known = {name for point in points for name in point.settings}
    for name in across:
        if name not in {*known, *ACROSS, *EngineSettings.model_fields}:
            raise InputError(f"--across: {unknown_name('setting', name, known)}")


def _check_parts(metrics: Sequence[Metric], pairs: Sequence[Pair]) -> None:
    named = [metric.part for metric in metrics if metric.part not in (None, EACH_PART)]
    if not named or not pairs:
        return
    known = set[str]().union(*(pair.parts for pair in pairs))
    for part in named:
        if part is not None and part not in known:
            raise InputError(f"--fail-on: {unknown_name('part', part, known)}")


@dataclass(frozen=True, slots=True)
class _Pairing:
    """The pairs of two sweeps' points, and the points that are in none."""

    pairs: list[Pair]
    without_partner: list[WithoutPartner]


def _paired(
    of_base: Sequence[_KeyedPoint], of_new: Sequence[_KeyedPoint], across: Sequence[str]
) -> _Pairing:
    """Pairs the points that have the same key and are the only ones of their side that have it."""
    base_by_key = values_by_key((each.key(across), each) for each in of_base)
    new_by_key = values_by_key((each.key(across), each) for each in of_new)
    pairs: list[Pair] = []
    alone: list[WithoutPartner] = []
    for key in dict.fromkeys([*base_by_key, *new_by_key]):
        base = base_by_key.get(key, [])
        new = new_by_key.get(key, [])
        if len(base) == len(new) == 1:
            pairs.append(Pair(base[0].point, new[0].point))
        elif base and new:
            for side, points in (("BASE", base), ("NEW", new)):
                alone += [WithoutPartner(side, each.point, is_ambiguous=True) for each in points]
        else:
            alone += [_without_partner("BASE", each, of_new, across) for each in base]
            alone += [_without_partner("NEW", each, of_base, across) for each in new]
    return _Pairing(pairs, alone)


def _without_partner(
    side: str, point: _KeyedPoint, others: Sequence[_KeyedPoint], across: Sequence[str]
) -> WithoutPartner:
    """A point whose key no point of the other side has. ``others``: the points of that side."""
    nearest = _least_difference(point, others, across)
    return WithoutPartner(side, point.point, nearest.settings, nearest.load)


@dataclass(frozen=True, slots=True)
class _Difference:
    """The names of what two points differ in."""

    load: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()


def _least_difference(
    point: _KeyedPoint, others: Sequence[_KeyedPoint], across: Sequence[str]
) -> _Difference:
    """What the nearest of ``others`` at the same level differs in: it has the fewest differences
    in its load, and among these the fewest in its settings. Empty: there is no such level.
    """
    differences = [
        _difference(point, other, across)
        for other in others
        if other.load["level"] == point.load["level"]
    ]
    if not differences:
        return _Difference()
    differences.sort(key=lambda difference: len(difference.settings))
    return min(differences, key=lambda difference: len(difference.load))


def _difference(point: _KeyedPoint, other: _KeyedPoint, across: Sequence[str]) -> _Difference:
    load = _differing(point.load, other.load)
    if "workload.kind" in load:  # other keys of the workload say nothing more
        load = [name for name in load if not name.startswith("workload.")]
        load.append("workload.kind")
    settings = _differing(point.settings, other.settings)
    return _Difference(tuple(load), tuple(name for name in settings if name not in across))


def _differing(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    return [name for name in {**first, **second} if first.get(name) != second.get(name)]


def _shows_the_engine(point: StoredPoint) -> bool:
    return point.validity != BROKEN and any(repeat.shows_engine for repeat in point.used_repeats)


def _engine_failed(point: StoredPoint) -> bool:
    """Whether its engine failed in any repeat, after all retries, or gave broken output. What could
    not be simulated had no engine.
    """
    kinds = {repeat.head.failure_kind for repeat in point.engine_failures}
    return point.validity == BROKEN or bool(kinds - {FailureKind.NOT_SIMULATED})


def _holds(point: StoredPoint) -> bool:
    return _shows_the_engine(point) and not _engine_failed(point)


def _fails_more_requests(pair: Pair, rules: DifferenceRules, pairs: int) -> bool:
    """Whether the share of failed requests grew by more than is tolerated, and by more than chance
    explains if each request fails by itself (Fisher's exact test over all ``pairs``).

    That is no certain regression: starts of one engine may differ more than their requests, so this
    test raises false alarms where failures come by start. Repeats in which the engine fell behind
    do not count, since the load itself may have ended requests.
    """
    base = _requests(pair.base)
    new = _requests(pair.new)
    if base.scheduled == 0 or new.scheduled == 0:
        return False
    growth = new.failed / new.scheduled - base.failed / base.scheduled
    return growth > rules.within and p_more_failed(base, new) <= FALSE_ALARMS / pairs


def _requests(point: StoredPoint) -> RequestTotals:
    """The requests of its valid repeats, without those that this program cut off."""
    totals = [repeat.ended_requests for repeat in point.used_repeats if repeat.valid]
    return RequestTotals(
        scheduled=sum(each.scheduled for each in totals),
        ok=sum(each.ok for each in totals),
        failed=sum(each.failed for each in totals),
    )


def _metrics_of(pairs: Sequence[Pair], metrics: Sequence[Metric], slo: Slo | None) -> list[Metric]:
    """The metrics, each once; in place of one of each part of a mix, one of every part that pairs
    have. Of attainment these are the parts that the SLO limits.
    """
    parts = sorted(set[str]().union(*(pair.parts for pair in pairs)))
    limited = set() if slo is None else {group.part for group in slo.groups}
    expanded: dict[Metric, None] = {}
    for metric in metrics:
        if metric.part != EACH_PART:
            expanded[metric] = None
            continue
        for part in parts:
            if part in limited or not metric.is_share:
                expanded[replace(metric, part=part)] = None
    return list(expanded)


@dataclass(frozen=True, slots=True)
class _Values:
    """The values of metrics at pairs, and the pairs that lack one."""

    measured: list[_Measured]
    without_value: list[WithoutValue]


def _values(pairs: Sequence[Pair], metrics: Sequence[Metric]) -> _Values:
    """The values of each metric. A pair without a metric's part is left out."""
    values = _Values([], [])
    for metric in metrics:
        for pair in pairs:
            if metric.part is not None and metric.part not in pair.parts:
                continue
            base = metric.of_point(pair.base)
            new = metric.of_point(pair.new)
            if base is None or new is None:
                values.without_value.append(WithoutValue(pair, metric))
            else:
                values.measured.append(_Measured(pair, metric, base, new))
    return values


def _on_scale(metric: Metric, base: StartValues, new: StartValues) -> Sides:
    return Sides(base, new) if metric.is_share else Sides(base.logs(), new.logs())


@dataclass(frozen=True, slots=True)
class _Judged:
    """The changes with their verdicts. ``spreads``: by metric, the spread between starts that its
    pairs have in common; None: they have none.
    """

    changes: list[MetricChange]
    spreads: dict[Metric, CommonSpread | None]


def _judged(measured: Sequence[_Measured], rules: DifferenceRules) -> _Judged:
    """Judges everything that is gated together.

    The spread of a share depends on its size, so the spread of shares is never pooled.
    """
    all_sides = [_on_scale(each.metric, each.base, each.new) for each in measured]
    sides_by_metric = values_by_key(
        (each.metric, sides) for each, sides in zip(measured, all_sides, strict=True)
    )
    spread_by_metric = {
        metric: None if metric.is_share else spread_of_pairs(sides_of_metric)
        for metric, sides_of_metric in sides_by_metric.items()
    }
    gated = [
        Gated(
            sides,
            each.metric.higher_is_better,
            rules.bound(each.metric),
            judged_spread(sides, spread_by_metric[each.metric]),
            rules.growth_bound(each.metric),
        )
        for each, sides in zip(measured, all_sides, strict=True)
    ]
    changes = [
        MetricChange(each.pair, each.metric, each.base, each.new, judged)
        for each, judged in zip(measured, judge_together(gated), strict=True)
    ]
    common_spreads = {
        metric: None if spread is None else spread.common
        for metric, spread in spread_by_metric.items()
    }
    return _Judged(changes, common_spreads)


_ORDER = (Verdict.WORSE, Verdict.UNDECIDED, Verdict.SAME, Verdict.BETTER)


class _PlaceByHarm(NamedTuple):
    """The order of changes, the worst first: by verdict, then by harm."""

    verdict: int  # place in _ORDER
    minus_harm: float


def _place_by_harm(change: MetricChange) -> _PlaceByHarm:
    return _PlaceByHarm(_ORDER.index(change.judged.verdict), -change.harm)
