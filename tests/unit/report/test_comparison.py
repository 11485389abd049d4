"""Which points are pairs, and the value of a figure per start."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.analysis.difference import Verdict
from orchestrator.base.errors import InputError
from orchestrator.plan.current import StoredExperiment
from orchestrator.report.documents.comparison import (
    DifferenceRules,
    SweepComparison,
    compare_sweeps,
    metric_named,
)
from orchestrator.report.documents.comparison_defaults import ACROSS, GATED
from orchestrator.results.store import Store
from tests.unit.plan.stored_sweeps import planned, store_attempt
from tests.unit.report.stores import commit_starts, points_of

RULES = DifferenceRules(ACROSS, 0.03, tuple(metric_named(name) for name in GATED))


def compared(base: Store, new: Store, rules: DifferenceRules = RULES) -> SweepComparison:
    first, second = StoredExperiment(base), StoredExperiment(new)
    return compare_sweeps(first, second, rules, first.slos[0])


def store(tmp_path: Path, name: str) -> Store:
    return Store.open(str(tmp_path), name)


def test_the_value_of_a_start_is_the_mean_of_its_repeats(tmp_path: Path) -> None:
    plan = planned(max_num_seqs=[8])
    measured = store(tmp_path, "exp")
    measured.write_plan(plan.to_json())
    (point,) = plan.points
    for repeat, (start, ttft_ms) in enumerate([(0, 100), (0, 110), (1, 120)]):
        store_attempt(measured, plan, point, repeat=repeat, start=start, ttft_ms=ttft_ms)
    (stored,) = points_of(measured)
    values = metric_named("ttft_ms.p99").of_point(stored)
    assert values is not None
    assert values.values == pytest.approx((105, 120))
    shares = metric_named("attainment").of_point(stored)
    assert shares is not None
    assert shares.values == (1.0, 1.0)


def test_the_name_of_a_workload_does_not_matter(tmp_path: Path) -> None:
    base, new = store(tmp_path, "base"), store(tmp_path, "new")
    commit_starts(base, (100, 101))
    plan = planned(workload="talk")
    new.write_plan(plan.to_json())
    for point in plan.points:
        for start, ttft_ms in enumerate((100, 101)):
            store_attempt(new, plan, point, repeat=start, start=start, ttft_ms=ttft_ms)
    comparison = compared(base, new)
    assert len(comparison.changes) == 6
    assert not comparison.without_partner


def test_another_content_of_a_workload_is_no_partner(tmp_path: Path) -> None:
    base, new = store(tmp_path, "base"), store(tmp_path, "new")
    commit_starts(base, (100, 101), tokens=8)
    plan = planned(tokens=16)
    new.write_plan(plan.to_json())
    for point in plan.points:
        store_attempt(new, plan, point, tokens=16)
    comparison = compared(base, new)
    assert not comparison.changes
    assert [alone.side for alone in comparison.without_partner] == ["BASE", "BASE", "NEW", "NEW"]


def test_a_lower_attainment_is_a_difference_of_shares(tmp_path: Path) -> None:
    base, new = store(tmp_path, "base"), store(tmp_path, "new")
    commit_starts(base, (100, 101))
    commit_starts(new, (200, 201))  # no request meets the limit of 150 ms
    attainment = [each for each in compared(base, new).changes if each.metric.is_share]
    assert [each.change for each in attainment] == [-1.0, -1.0]
    assert {each.judged.verdict for each in attainment} == {Verdict.WORSE}


def test_without_limits_attainment_has_no_value(tmp_path: Path) -> None:
    base = store(tmp_path, "base")
    commit_starts(base, (100, 101))
    experiment = StoredExperiment(base)
    comparison = compare_sweeps(experiment, experiment, RULES, slo=None)
    assert {each.metric.name for each in comparison.without_value} == {"attainment"}
    assert len(comparison.changes) == 4


@pytest.mark.parametrize("name", ["ttft_ms", "ttft_ms.p42", "validity", "window_s"])
def test_what_is_no_figure_cannot_be_gated(name: str) -> None:
    with pytest.raises(InputError, match="unknown metric"):
        metric_named(name)


def test_latencies_get_worse_upwards_and_rates_downwards() -> None:
    assert not metric_named("itl_ms.mean").higher_is_better
    assert metric_named("request_throughput").higher_is_better
    assert metric_named("decode_throughput.p50").higher_is_better
