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
IDENTITY_OF_GROUP = (
    "experiment",
    "workload",
    "model",
    "hardware",
    "emulated",
    "simulated",
    "source",
)
GROUP = """([index, names]) => {
  const group = app.shown.payload.groups[index];
  return { content: group.content, identity: names.map((name) => group[name]) };
}"""
# in the order in which the page judges them
PARTS = """() => {
  const [{ slos, parts }] = app.shown.payload.groups;
  return [...new Set([...Object.keys(slos[0]?.parts ?? {}), ...parts])];
}"""
HAS_ENERGY = """app.shown.payload.groups.some(({ points }) => (
  points.some((point) => point.power_w)))"""


@dataclass(frozen=True)
class Limits:
    """Limits as a reader sets them. ``stops``: at which stop of its slider the limit on TTFT, TPOT
    and E2E stands, counted from 0.
    """

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
    """Random choices of a reader. In every second one a single slider has moved since the one
    before, which the page judges by its cumulative counts.

    ``counts``: how many stops each latency has. ``parts``: those of a mix: limits are on some of
    them, on all of them, or on all requests together. ``units``: what is ranked by.
    """
    chance = random.Random(20261128)
    stops: dict[str | None, list[int]] = {}  # by part; None: of all requests
    for number in range(triples):
        if number % 2 == 0:
            subsets: list[Sequence[str]] = [parts, parts[:1], parts[1:], ()]
            limited_parts = chance.choice(subsets) if parts else ()
            stops = {}
            for part in (None, *limited_parts):
                stops[part] = [chance.randrange(count) for count in counts]
        else:
            last_part = list(stops)[-1]
            latency = chance.randrange(len(counts))
            moved_stops = list(stops[last_part])
            moved_stops[latency] = chance.randrange(counts[latency])
            stops[last_part] = moved_stops
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
    hardware = sorted({hardware for name, hardware in groups if name == experiment.name})
    parts = page.evaluate(PARTS)
    counts = [len(stops[name]) for name in LATENCIES]
    units: Sequence[Per] = get_args(Per if page.evaluate(HAS_ENERGY) else Objective)
    all_choices = list(random_choices(counts, hardware, parts, units, triples))
    slos = [_slo_of(stops, choices) for choices in all_choices]
    points = experiment.points(*slos)
    compared = Compared()
    for slo_index, choices in enumerate(all_choices):
        judged = _judged_alone(points, slo_index, choices.prices)
        comparisons = experiment.comparisons(judged, slos[slo_index], choices.per)
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
    """Compares what the page finds in one group under one reader's choices with the Python
    analysis.
    """
    parts = {part: asdict(limits) for part, limits in choices.parts.items()}
    arguments = [group, asdict(choices.limits), parts, choices.per, choices.prices]
    of_page = page.evaluate(JUDGED, arguments)
    comparison = comparison_of(page, group, comparisons)
    ranking = comparison.ranking
    _compare_ranking(of_page, ranking, choices)
    _compare_shares(of_page, points, choices)
    compared.ranked[choices.per] += len(ranking)
    if choices.parts:
        compared.ranked_by_parts += len(ranking)
    if ranking and not comparison.simulated:  # doubts about a simulated one are those of its model
        kinds = {"open": DoubtKind.OPEN_LEVELS, "near": DoubtKind.NEAR_THE_LIMIT}
        for name, kind in kinds.items():
            assert _without_empty(of_page[name]) == _levels_in_doubt(comparison, kind), choices
        compared.open_levels += len(_without_empty(of_page["open"]))
        compared.near_levels += len(_without_empty(of_page["near"]))


def _compare_ranking(
    of_page: Mapping[str, Any], ranking: Sequence[RankedDeployment], choices: Choices
) -> None:
    labels = [row[0] for row in of_page["ranking"]]
    assert labels == [ranked.label for ranked in ranking], choices
    for row, ranked in zip(of_page["ranking"], ranking, strict=True):
        assert row[1] == ranked_mark(ranked), (choices, row)
        figures = [ranked.point.head.level, *bounds(ranked.throughput), *bounds(ranked.attainment)]
        assert row[2:] == pytest.approx(figures, abs=1e-9, rel=1e-9, nan_ok=True), (choices, row)
    for if_slower, ranked in zip(of_page["ifSlower"], ranking, strict=True):
        assert if_slower == _if_slower(ranked), choices


def _compare_shares(of_page: Mapping[str, Any], points: Points, choices: Choices) -> None:
    """Compares the attainment of each point, and the share that each of its tests is about."""
    points_by_id = {point.head.point_id: point for point in points.current}
    for point_id, share in of_page["attainment"].items():
        attainment = points_by_id[point_id].attainment
        if attainment is None:
            assert share is None
        else:
            assert share == pytest.approx(bounds(attainment), abs=1e-9, nan_ok=True)
    for point_id, shares_of_parts in of_page["tests"].items():
        tests = points_by_id[point_id].tests
        assert [part for part, _ in shares_of_parts] == [test.part for test in tests]
        for (_, share), test in zip(shares_of_parts, tests, strict=True):
            assert share == pytest.approx(bounds(test.share), abs=1e-9, nan_ok=True), choices


def _if_slower(ranked: RankedDeployment) -> object:
    """The load and throughput of a deployment if its answers may be slower, as the page has them."""
    held = ranked.if_slower
    if held is None:
        return None
    load = None if held.level is None else level_text(held.level)
    return [load, pytest.approx(held.throughput)]


def comparison_of(page: Any, group: int, comparisons: Sequence[Comparison]) -> Comparison:
    """The comparison that a group of the page takes part in. ``group``: its index."""
    of_page = page.evaluate(GROUP, [group, IDENTITY_OF_GROUP])
    (comparison,) = [
        comparison
        for comparison in comparisons
        if comparison.content == of_page["content"]
        and of_page["identity"] in _identities(comparison)
    ]
    return comparison


def _identities(comparison: Comparison) -> list[list[Any]]:
    """The identities of a comparison's groups, as GROUP has them."""
    return [[getattr(group, name) for name in IDENTITY_OF_GROUP] for group in comparison.groups]


def _levels_in_doubt(comparison: Comparison, kind: DoubtKind) -> dict[str, list[str]]:
    """The levels of each deployment that doubts of a kind are about, by its label."""
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


def _judged_alone(points: Points, slo_index: int, prices: Mapping[str, float]) -> Points:
    """The points as if one of the SLOs were the only one that they were judged by."""
    under = points.under(slo_index)
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
