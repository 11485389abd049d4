"""Has limits judged in the page and by the Python analysis, and compares what they find."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, get_args

import pytest

from orchestrator.analysis.intervals import Interval
from orchestrator.analysis.points import StoredPoint
from orchestrator.analysis.slo import parse_slo
from orchestrator.capacity.answers import RankedDeployment
from orchestrator.capacity.best import Comparison
from orchestrator.capacity.doubts import DoubtKind
from orchestrator.plan.current import Points, StoredExperiment
from orchestrator.report.page.payload import LATENCIES
from orchestrator.report.words import level_text, ranked_mark
from orchestrator.spec.load import Objective, Per, Slo

TRIPLES = 500
JUDGED = """
([group, limits, parts, per, prices]) => {
  const { payload, choices } = app.shown;
  const inSeconds = ({ stops, attainment }) => {
    const latencies = judge.LATENCIES.map((name, place) => [name, payload.stops[name][stops[place]]]);
    return { ...Object.fromEntries(latencies), attainment };
  };
  const notJudged = { ttft: null, tpot: null, e2e: null, attainment: null };
  const limitsOn = (part) => (Object.hasOwn(parts, part) ? inSeconds(parts[part]) : notJudged);
  Object.assign(choices, inSeconds(limits), { group, per, prices });
  choices.parts = Object.fromEntries(payload.groups[group].parts.map((part) => [part, limitsOn(part)]));
  choices.part = Object.keys(parts)[0] ?? "";
  const interval = (value) => value && [value.estimate, value.lower, value.upper];
  const { judged, ranking, open } = app.judgedNow();
  return {
    ranking: ranking.map((ranked) => [
      ranked.deployment.label, ranked.mark, ranked.judged.point.level,
      ...interval(ranked.throughput), ...interval(ranked.judged.attainment)]),
    ifSlower: ranking.map(({ ifSlower }) => ifSlower && [ifSlower.load, ifSlower.value]),
    attainment: Object.fromEntries(judged.map((each) => [each.point.point_id, interval(each.attainment)])),
    tests: Object.fromEntries(judged.map((each) => [
      each.point.point_id, each.tests.map(({ part, share }) => [part, interval(share)])])),
    open: Object.fromEntries(open.map((each) => [each.deployment.label, each.levels.map((level) => level.load)])),
    near: Object.fromEntries(open.map((each) => [each.deployment.label, each.near])),
  };
}
"""
# in the order in which the page judges them
PARTS = """() => {
  const [{ slos, parts }] = app.shown.payload.groups;
  return [...new Set([...Object.keys(slos[0]?.parts ?? {}), ...parts])];
}"""
HAS_ENERGY = """app.shown.payload.groups.some(({ points }) => (
  points.some((point) => point.power_w)))"""


@dataclass(frozen=True)
class Limits:
    """``stops``: limits on TTFT, TPOT and E2E as numbers of stops."""

    stops: list[int]
    attainment: float


@dataclass(frozen=True)
class Choices:
    """What a reader sets. ``limits``: those on all requests; ``parts``: those on parts of a mix,
    which take their place; ``prices``: USD per device and hour by hardware, where they are not the
    file's.
    """

    limits: Limits
    parts: Mapping[str, Limits]
    per: Per
    prices: Mapping[str, float]


@dataclass
class Compared:
    """How often there was something to compare."""

    ranked: Counter[Per] = field(default_factory=Counter)
    open_levels: int = 0
    near_levels: int = 0
    ranked_by_parts: int = 0


def random_choices(
    counts: Sequence[int],
    hardware: Sequence[str],
    parts: Sequence[str],
    units: Sequence[Per],
    triples: int,
) -> Iterator[Choices]:
    """Choices of a reader. In half of them one limit alone moved, as by a slider, which the page
    judges by its cumulative counts. ``counts``: of the stops of each latency. ``parts``: those of a
    mix: limits are on some of them, on all of them, or on all requests together. ``units``: what is
    ranked by.
    """
    chance = random.Random(20261128)
    stops: dict[str | None, list[int]] = {}
    for number in range(triples):
        if number % 2 == 0:
            subsets: list[Sequence[str]] = [parts, parts[:1], parts[1:], ()]
            limited = chance.choice(subsets) if parts else ()
            stops = {
                part: [chance.randrange(count) for count in counts] for part in (None, *limited)
            }
        else:
            part = list(stops)[-1]
            place = chance.randrange(len(counts))
            moved = chance.randrange(counts[place])
            stops[part] = [*stops[part][:place], moved, *stops[part][place + 1 :]]
        prices = {name: chance.choice([None, 0.0, 0.05, 2.1, 33.0]) for name in hardware}
        limits = {
            part: Limits(of_part, chance.choice([0.5, 0.9, 0.95, 0.99, 1.0]))
            for part, of_part in stops.items()
        }
        yield Choices(
            limits=limits[None],
            parts={part: limits[part] for part in limits if part is not None},
            per=chance.choice(units),
            prices={name: price for name, price in prices.items() if price is not None},
        )


def assert_judged_alike(
    page: Any, experiment: StoredExperiment, triples: int = TRIPLES
) -> Compared:
    """Under random limits the page finds in each group of an experiment what Python finds."""
    stops = page.evaluate("app.shown.payload.stops")
    groups = page.evaluate(
        "app.shown.payload.groups.map((group) => [group.experiment, group.hardware])"
    )
    hardware = sorted({name for of, name in groups if of == experiment.name})
    parts = page.evaluate(PARTS)
    counts = [len(stops[name]) for name in LATENCIES]
    units: Sequence[Per] = get_args(Per if page.evaluate(HAS_ENERGY) else Objective)
    every = list(random_choices(counts, hardware, parts, units, triples))
    slos = [_slo_of(stops, choices) for choices in every]
    points = experiment.points(*slos)
    compared = Compared()
    for place, choices in enumerate(every):
        judged = _judged_alone(points, place, choices.prices)
        comparisons = experiment.comparisons(judged, slos[place], choices.per)
        for group, (name, _) in enumerate(groups):
            if name == experiment.name:
                _compare(page, group, choices, comparisons, judged, compared)
    return compared


def _compare(
    page: Any,
    group: int,
    choices: Choices,
    comparisons: Sequence[Comparison],
    points: Points,
    compared: Compared,
) -> None:
    parts = {part: asdict(limits) for part, limits in choices.parts.items()}
    given = [group, asdict(choices.limits), parts, choices.per, choices.prices]
    found = page.evaluate(JUDGED, given)
    comparison = comparison_of(page, group, comparisons)
    ranking = comparison.ranking
    assert [row[0] for row in found["ranking"]] == [each.label for each in ranking], choices
    for row, each in zip(found["ranking"], ranking, strict=True):
        assert row[1] == ranked_mark(each), (choices, row)
        figures = [each.point.head.level, *bounds(each.throughput), *bounds(each.attainment)]
        assert row[2:] == pytest.approx(figures, abs=1e-9, rel=1e-9, nan_ok=True), (choices, row)
    for if_slower, each in zip(found["ifSlower"], ranking, strict=True):
        assert if_slower == _if_slower(each), choices
    shares = {point.head.point_id: point.attainment for point in points.current}
    for point_id, share in found["attainment"].items():
        expected = shares[point_id]
        assert share == (
            pytest.approx(bounds(expected), abs=1e-9, nan_ok=True) if expected else None
        )
    tests = {point.head.point_id: point.tests for point in points.current}
    for point_id, shares_of_parts in found["tests"].items():
        assert [part for part, _ in shares_of_parts] == [test.part for test in tests[point_id]]
        for (_, share), test in zip(shares_of_parts, tests[point_id], strict=True):
            assert share == pytest.approx(bounds(test.share), abs=1e-9, nan_ok=True), choices
    compared.ranked[choices.per] += len(ranking)
    compared.ranked_by_parts += len(ranking) if choices.parts else 0
    if ranking and not comparison.simulated:  # whose doubts are those of its model
        kinds = {"open": DoubtKind.OPEN_LEVELS, "near": DoubtKind.NEAR_THE_LIMIT}
        for name, kind in kinds.items():
            assert _without_empty(found[name]) == _levels_in_doubt(comparison, kind), choices
        compared.open_levels += len(_without_empty(found["open"]))
        compared.near_levels += len(_without_empty(found["near"]))


def _if_slower(ranked: RankedDeployment) -> object:
    held = ranked.if_slower
    if held is None:
        return None
    load = None if held.level is None else level_text(held.level)
    return [load, pytest.approx(held.throughput)]


def comparison_of(page: Any, group: int, comparisons: Sequence[Comparison]) -> Comparison:
    """The one that a group of the page takes part in."""
    identity = page.evaluate(
        """(group) => {
        const { content, ...group_ } = app.shown.payload.groups[group];
        const names = ["experiment", "workload", "model", "hardware", "emulated", "simulated", "source"];
        return { group: Object.fromEntries(names.map((name) => [name, group_[name]])), content }; }""",
        group,
    )
    (comparison,) = [
        each
        for each in comparisons
        if each.content == identity["content"]
        and any(_is_named(of, identity["group"]) for of in each.groups)
    ]
    return comparison


def _is_named(group: Any, names: Mapping[str, Any]) -> bool:
    return all(getattr(group, name) == value for name, value in names.items())


def _levels_in_doubt(comparison: Comparison, kind: DoubtKind) -> dict[str, list[str]]:
    levels: dict[str, list[str]] = {}
    for doubt in comparison.doubts:
        if doubt.kind is kind:
            for deployment in doubt.levels:
                texts = levels.setdefault(deployment.label, [])
                texts += map(level_text, deployment.levels)
    return {label: sorted(texts) for label, texts in levels.items()}


def _without_empty(levels: Mapping[str, list[str]]) -> dict[str, list[str]]:
    return {label: sorted(texts) for label, texts in levels.items() if texts}


def _slo_of(page_stops: Mapping[str, list[float]], choices: Choices) -> Slo:
    if not choices.parts:
        return parse_slo(",".join(_terms(page_stops, choices.limits, "")))
    terms: list[str] = []
    for part, limits in choices.parts.items():
        terms += _terms(page_stops, limits, f"{part}:")
    return parse_slo(",".join(terms))


def _terms(page_stops: Mapping[str, list[float]], limits: Limits, prefix: str) -> list[str]:
    """The limits as ``--slo`` has them. ``prefix``: of the part, as in ``chat:ttft<=1s``."""
    terms = [
        f"{prefix}{name}<={page_stops[name][stop]!r}s"
        for name, stop in zip(LATENCIES, limits.stops, strict=True)
    ]
    return [*terms, f"{prefix}attainment>={limits.attainment}"]


def _judged_alone(points: Points, place: int, prices: Mapping[str, float]) -> Points:
    """The points as if one of the SLOs were the only one that they were judged by."""
    under = points.under(place)
    current = tuple(_at_a_price(point, prices) for point in under.current)
    return Points(current, under.superseded)


def _at_a_price(point: StoredPoint, prices: Mapping[str, float]) -> StoredPoint:
    """The point at the price of its hardware, per device and hour; else at that of the file."""
    deployment = point.deployment
    price = prices.get(deployment.hardware)
    if price is None:
        return point
    return replace(point, deployment=replace(deployment, usd_per_hour=price * deployment.devices))


def bounds(interval: Interval) -> list[float]:
    return [interval.estimate, interval.lower, interval.upper]
