"""Words of a comparison."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.analysis.difference import Judged, StartValues, Verdict
from orchestrator.analysis.start_spread import CommonSpread
from orchestrator.plan.current import StoredExperiment
from orchestrator.report.comparison_text import (
    ONE_START,
    ONE_START_OF_A_SERVER,
    OTHER_SEEDS,
    TWO_STARTS,
    change_text,
    changed_texts,
    comparison_object,
    comparison_text,
    few_starts_texts,
    metric_text,
    pair_text,
    single_start_texts,
    spread_texts,
    verdict_text,
)
from orchestrator.report.documents.changed_environment import ChangedFact
from orchestrator.report.documents.comparison import (
    DifferenceRules,
    MetricChange,
    Pair,
    compare_sweeps,
    metric_named,
)
from orchestrator.report.documents.comparison_defaults import ACROSS
from orchestrator.report.written_form import MarkdownForm
from orchestrator.results.store import Store
from tests.unit.report.stores import commit_starts


@pytest.fixture
def change(tmp_path: Path) -> MetricChange:
    store = Store.open(str(tmp_path), "exp")
    commit_starts(store, (100, 101))
    rules = DifferenceRules(ACROSS, 0.03, (metric_named("ttft_ms.p99"),))
    experiment = StoredExperiment(store)
    return compare_sweeps(experiment, experiment, rules, None).changes[0]


def test_a_change_has_its_interval_where_there_are_two_starts(change: MetricChange) -> None:
    assert change_text(change).startswith("+0.0% (-")
    single = replace(change, new=StartValues((150.0,)), judged=Judged(Verdict.UNDECIDED, None, 1))
    assert change_text(single) == "+49.3%"


def test_an_endless_interval_is_cut(change: MetricChange) -> None:
    assert change_text(replace(change, new=StartValues((1e6, 1e6)))).startswith(">+999% (")


def test_an_undecided_verdict_says_what_would_decide(change: MetricChange) -> None:
    said = []
    for more_starts in (1, 3, None):
        judged = Judged(Verdict.UNDECIDED, None, more_starts)
        said.append(verdict_text(replace(change, judged=judged)))
    assert said == [
        "undecided: 1 more start",
        "undecided: 3 more starts",
        "undecided: many more starts",
    ]


def of_servers(change: MetricChange) -> MetricChange:
    """The same change between a server that ``load`` measured before and after something."""
    base, new = (
        replace(point, deployment=replace(point.deployment, engine="endpoint", label=label))
        for point, label in ((change.pair.base, "before"), (change.pair.new, "after"))
    )
    undecided = Judged(Verdict.UNDECIDED, None, 1)
    return replace(change, pair=Pair(base, new), judged=undecided)


def test_a_server_that_already_runs_is_asked_for_no_second_start(
    change: MetricChange, tmp_path: Path
) -> None:
    of_engines = replace(change, judged=Judged(Verdict.UNDECIDED, None, 1))
    assert verdict_text(of_servers(change)) == "undecided: one start"
    experiment = StoredExperiment(Store.open(str(tmp_path), "exp"))
    rules = DifferenceRules(ACROSS, 0.03, (change.metric,))
    comparison = compare_sweeps(experiment, experiment, rules, None)

    def remedies(*changes: MetricChange) -> list[str]:
        return single_start_texts(replace(comparison, changes=changes))

    assert remedies(change) == []
    assert remedies(of_engines) == [ONE_START]
    assert remedies(of_servers(change)) == [ONE_START_OF_A_SERVER]
    assert remedies(of_servers(change), of_engines) == [ONE_START_OF_A_SERVER, ONE_START]


def test_a_pair_has_both_names_where_they_differ(change: MetricChange) -> None:
    assert pair_text(of_servers(change).pair) == "before → after"
    assert pair_text(change.pair) == change.pair.new.deployment.label


def test_figures_have_their_short_names() -> None:
    names = [
        "output_token_throughput",
        "ttft_ms.p99",
        "attainment",
        "normalized_ttft_ms.p50",
        "chat:tpot_ms.p50",
    ]
    texts = [metric_text(metric_named(name)) for name in names]
    assert texts == [
        "tokens/s",
        "TTFT p99",
        "attainment",
        "normalized_ttft_ms p50",
        "chat: TPOT p50",
    ]


def test_the_spread_between_starts_is_said_and_whether_pairs_share_it(tmp_path: Path) -> None:
    names = ("output_token_throughput", "ttft_ms.p99", "attainment")
    metrics = tuple(map(metric_named, names))
    rules = DifferenceRules(ACROSS, 0.03, metrics)
    even = CommonSpread(0.012**2, 20, True, deployments=10, prior_freedom=10)
    uneven = replace(even, variance=0.25**2, is_even=False)
    store = Store.open(str(tmp_path), "exp")
    commit_starts(store, (100, 101))
    experiment = StoredExperiment(store)
    comparison = compare_sweeps(experiment, experiment, rules, None)

    def lines(throughput: CommonSpread | None, ttft: CommonSpread | None) -> list[str]:
        spreads = dict(zip(metrics, (throughput, ttft, None), strict=True))
        return list(spread_texts(replace(comparison, spreads=spreads)))

    assert lines(None, None) == []
    pooled = "spread between starts, pooled over all pairs: tokens/s 1.2%"
    assert lines(even, even) == [f"{pooled}, TTFT p99 1.2%"]
    apart = "spread between starts, uneven over the pairs: TTFT p99 25.0%"
    assert lines(even, uneven) == [pooled, apart]
    assert max(map(len, lines(uneven, uneven))) <= 80


@pytest.mark.parametrize(
    ("before", "after", "rests"),
    [
        ((100, 101), (150, 151), True),
        ((100, 101, 102), (150, 151, 152), False),
        ((100, 101), (100, 101), False),  # nothing is worse
    ],
)
def test_verdicts_by_two_starts_say_how_often_they_err(
    tmp_path: Path, before: tuple[float, ...], after: tuple[float, ...], rests: bool
) -> None:
    base, new = Store.open(str(tmp_path / "a"), "exp"), Store.open(str(tmp_path / "b"), "exp")
    commit_starts(base, before)
    commit_starts(new, after)
    rules = DifferenceRules(ACROSS, 0.03, (metric_named("ttft_ms.p99"),))
    comparison = compare_sweeps(StoredExperiment(base), StoredExperiment(new), rules, None)
    assert (TWO_STARTS in few_starts_texts(comparison)) == rests
    assert comparison_object(comparison)["rests_on_two_starts"] == rests
    alone = replace(comparison, spreads=dict.fromkeys(comparison.spreads))
    assert not alone.rests_on_two_starts, "each pair is judged by its own starts"


def test_what_changed_around_the_engine_is_said_by_hardware(tmp_path: Path) -> None:
    experiment = StoredExperiment(Store.open(str(tmp_path), "exp"))
    comparison = compare_sweeps(experiment, experiment, DifferenceRules(ACROSS, 0.03, ()), None)
    changed = (
        ChangedFact(None, "orchestrator", ("0.1",), ("0.2",)),
        ChangedFact("h100", "kernel", ("5.15", "6.1"), ("6.8",)),
        ChangedFact("h100", "GPU driver", ("550",), ("560",)),
    )
    assert list(changed_texts(comparison)) == []
    assert list(changed_texts(replace(comparison, changed=changed))) == [
        "the measuring program changed, too, and may be the cause: orchestrator 0.1 → 0.2",
        "hosts of h100 changed, too, and may be the cause: kernel 5.15, 6.1 → 6.8, "
        "GPU driver 550 → 560",
    ]


def test_other_seeds_are_said(tmp_path: Path) -> None:
    rules = DifferenceRules(ACROSS, 0.03, (metric_named("ttft_ms.p99"),))
    sides = []
    for seed in (1, 2):
        store = Store.open(str(tmp_path / str(seed)), "exp")
        commit_starts(store, (100,), max_num_seqs=[8], seed=seed)
        sides.append(StoredExperiment(store))
    base, new = sides
    assert list(changed_texts(compare_sweeps(base, new, rules, None))) == [OTHER_SEEDS]


def test_all_that_changed_is_shown_and_the_rest_is_counted(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "exp")
    commit_starts(store, (100, 101))
    metrics = tuple(metric_named(name) for name in ("ttft_ms.p99", "ttft_ms.p50", "tpot_ms.p50"))
    experiment = StoredExperiment(store)
    comparison = compare_sweeps(
        experiment, experiment, DifferenceRules(ACROSS, 0.03, metrics), None
    )
    worse = Judged(Verdict.WORSE, None, None)
    better = Judged(Verdict.BETTER, None, None)
    first, *others, last = comparison.changes
    changes = (replace(first, judged=worse), *others, replace(last, judged=better))
    lines = list(comparison_text(replace(comparison, changes=changes), MarkdownForm(), top=1))
    rows = [line for line in lines if line.startswith("| emulator")]
    assert [row.split("|")[-2].strip() for row in rows] == ["worse", "better"]
    assert f" and {len(others)} more: --top {len(changes)}" in "\n".join(lines)
