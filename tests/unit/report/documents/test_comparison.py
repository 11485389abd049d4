"""Which points are pairs, and the value of a figure per start."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.analysis.difference import Verdict
from orchestrator.analysis.slo import parse_slo
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
from orchestrator.spec.load import Slo
from tests.unit.plan.stored_sweeps import planned, store_attempt, store_sweep
from tests.unit.report.stores import commit_starts, points_of

RULES = DifferenceRules(ACROSS, 0.03, tuple(metric_named(name) for name in GATED))


LIMITS_OF_PARTS = parse_slo("chat:ttft<=130ms,rag:ttft<=1s,attainment>=0.9")


def compared(
    base: Store, new: Store, rules: DifferenceRules = RULES, slo: Slo | None = None
) -> SweepComparison:
    first, second = StoredExperiment(base), StoredExperiment(new)
    return compare_sweeps(first, second, rules, slo or first.slos[0])


def mixes(tmp_path: Path, *chat_ms: float) -> tuple[Store, Store]:
    """Two starts a side of a mix of chat and rag; in NEW chats have these TTFTs."""
    base, new = store(tmp_path, "base"), store(tmp_path, "new")
    commit_starts(base, [{"chat": 100, "rag": 400}, {"chat": 101, "rag": 401}], max_num_seqs=[8])
    slower = [{"chat": ttft, "rag": 400 + start} for start, ttft in enumerate(chat_ms)]
    commit_starts(new, slower, max_num_seqs=[8])
    return base, new


def rules_of(*names: str) -> DifferenceRules:
    return replace(RULES, metrics=tuple(map(metric_named, names)))


def verdicts(comparison: SweepComparison) -> dict[str, Verdict]:
    return {change.metric.name: change.judged.verdict for change in comparison.changes}


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


CONTENT = {
    "a trace": {"kind": "trace", "trace": "at.csv", "rows_digest": "0123456789abcdef"},
    "a file": {"kind": "file", "prompts": "at.json", "prompts_digest": "0123456789abcdef"},
    "a text": {
        "kind": "random",
        "input_tokens": 16,
        "output_tokens": 8,
        "content": {"text": "at.txt", "text_digest": "0123456789abcdef"},
    },
}


def mix_of(*contents: dict[str, Any]) -> dict[str, Any]:
    parts = [
        {"workload": f"part{number}", "content": {"name": f"part{number}", **content}}
        for number, content in enumerate(contents)
    ]
    return {"kind": "mix", "parts": parts}


@pytest.mark.parametrize(
    "workload", [*CONTENT.values(), mix_of(*CONTENT.values())], ids=[*CONTENT, "a mix"]
)
def test_files_count_by_their_content_and_not_by_their_folders(
    tmp_path: Path, workload: dict[str, Any]
) -> None:
    text = json.dumps({"name": "w", **workload})
    moved = text.replace('"at.', '"/elsewhere/at.')
    changed = text.replace("0123456789abcdef", "fedcba9876543210")
    sides = []
    for number, stored in enumerate((text, moved, changed)):
        sides.append(store(tmp_path, str(number)))
        commit_starts(sides[-1], (100,), max_num_seqs=[8], workload_json=stored)
    base, elsewhere, other = sides
    assert len(compared(base, elsewhere).changes) == 3
    assert not compared(base, other).changes


def test_another_accelerator_of_the_same_hardware_name_is_no_partner(tmp_path: Path) -> None:
    sides = []
    for name, accelerator in (("base", "H100-80GB"), ("new", "H200-141GB")):
        plan = planned(max_num_seqs=[8])
        (deployment,) = plan.deployments
        hardware = deployment.hardware.model_copy(update={"accelerator": accelerator})
        renamed = deployment.model_copy(update={"hardware": hardware})
        sides.append(store(tmp_path, name))
        store_sweep(sides[-1], plan.model_copy(update={"deployments": (renamed,)}))
    base, new = sides
    alone = compared(base, new).without_partner
    assert [each.differs_in for each in alone] == [("accelerator",), ("accelerator",)]
    across = replace(RULES, across=(*ACROSS, "accelerator"))
    assert len(compared(base, new, across).changes) == 3


def test_another_content_of_a_workload_is_no_partner(tmp_path: Path) -> None:
    base, new = store(tmp_path, "base"), store(tmp_path, "new")
    commit_starts(base, (100, 101), tokens=8)
    plan = planned(tokens=16)
    new.write_plan(plan.to_json())
    for point in plan.points:
        store_attempt(new, plan, point, tokens=16)
    comparison = compared(base, new)
    assert not comparison.changes
    assert {alone.load_differs_in for alone in comparison.without_partner} == {
        ("workload.output_tokens",)
    }
    assert [alone.side for alone in comparison.without_partner] == ["BASE", "BASE", "NEW", "NEW"]


def test_a_point_whose_engine_failed_at_one_start_failed(tmp_path: Path) -> None:
    base, new = store(tmp_path, "base"), store(tmp_path, "new")
    commit_starts(base, (100, 101), max_num_seqs=[8])
    plan = planned(max_num_seqs=[8])
    new.write_plan(plan.to_json())
    (point,) = plan.points
    store_attempt(new, plan, point)
    crash = {"status": "failed", "reason": "it died", "failure_class": "engine_crash"}
    store_attempt(new, plan, point, repeat=1, start=1, **crash)
    comparison = compared(base, new)
    assert [failed.head.point_id for failed in comparison.failed] == [point.point_id]
    assert comparison.has_regressed
    assert not compared(new, base).has_regressed


def with_failures(tmp_path: Path, name: str, *failed: int, **columns: Any) -> Store:
    """A point with a start for each number, in which so many of its 100 requests failed."""
    measured = store(tmp_path, name)
    plan = planned(max_num_seqs=[8])
    measured.write_plan(plan.to_json())
    (point,) = plan.points
    for start, count in enumerate(failed):
        store_attempt(measured, plan, point, repeat=start, start=start, failed=count, **columns)
    return measured


def test_more_failed_requests_are_listed_and_fail_nothing(tmp_path: Path) -> None:
    base, few, many = (
        with_failures(tmp_path, name, *failed)
        for name, failed in {"base": (0, 1), "few": (2, 2), "many": (4, 12)}.items()
    )
    rules = rules_of("output_token_throughput")
    listed = compared(base, many, rules)
    assert len(listed.failing) == 1
    assert not listed.has_regressed
    assert listed.has_undecided
    for first, second in ((base, few), (many, base), (many, many)):
        assert not compared(first, second, rules).failing


def test_more_failed_requests_at_one_start_are_listed_too(tmp_path: Path) -> None:
    base, new = with_failures(tmp_path, "base", 0, 0), with_failures(tmp_path, "new", 30)
    comparison = compared(base, new, rules_of("output_token_throughput"))
    assert len(comparison.failing) == 1
    assert not comparison.has_regressed
    assert verdicts(comparison) == {"output_token_throughput": Verdict.UNDECIDED}


def test_requests_that_the_load_may_have_ended_do_not_count(tmp_path: Path) -> None:
    base = with_failures(tmp_path, "base", 0, 0)
    behind = with_failures(tmp_path, "behind", 30, 30, validity="engine_bound_backlog")
    assert not compared(base, behind, rules_of("output_token_throughput")).failing


def test_requests_that_were_cut_off_are_no_failures(tmp_path: Path) -> None:
    base = with_failures(tmp_path, "base", 0, 0)
    ended = {"error_class": "aborted", "ended_early": "fails"}
    cut_off = with_failures(tmp_path, "cut_off", 60, 60, **ended)
    (point,) = points_of(cut_off)
    assert point.figures.requests.failed == 120
    assert point.validity == "valid"
    comparison = compared(base, cut_off, rules_of("output_token_throughput"))
    assert not comparison.failed
    assert not comparison.failing


def test_other_seeds_are_pairs_and_said(tmp_path: Path) -> None:
    base = with_failures(tmp_path, "base", 0, 0, seed=1)
    new = with_failures(tmp_path, "new", 0, 0, seed=2)
    comparison = compared(base, new)
    assert len(comparison.changes) == 3
    assert comparison.has_other_seeds
    assert not compared(base, base).has_other_seeds


def test_what_is_invalid_is_undecided(tmp_path: Path) -> None:
    base = with_failures(tmp_path, "base", 0, 0)
    spoilt = with_failures(tmp_path, "spoilt", 0, 0, validity="client_bound")
    comparison = compared(base, spoilt)
    assert comparison.has_undecided
    assert not comparison.has_regressed


def test_what_could_not_be_simulated_is_no_failure_of_an_engine(tmp_path: Path) -> None:
    base, new = store(tmp_path, "base"), store(tmp_path, "new")
    commit_starts(base, (100,), max_num_seqs=[8])
    plan = planned(max_num_seqs=[8])
    new.write_plan(plan.to_json())
    (point,) = plan.points
    store_attempt(
        new,
        plan,
        point,
        status="failed",
        reason="It cannot be simulated.",
        failure_class="bad_config",
        failure_kind="not_simulated",
    )
    assert not compared(base, new).has_regressed


@pytest.mark.parametrize(
    ("columns", "differs_in"),
    [
        ({"load_json": '{"measurement_version": 1, "duration_s": 5.0}'}, "duration_s"),
        ({"source": "vllm 0.9"}, "source"),
        ({"simulated": True}, "simulated"),
        ({"workload_json": '{"kind": "trace", "trace": "at.csv"}'}, "workload.kind"),
    ],
)
def test_what_differs_in_the_load_is_named(
    tmp_path: Path, columns: dict[str, Any], differs_in: str
) -> None:
    base, new = store(tmp_path, "base"), store(tmp_path, "new")
    commit_starts(base, (100,), max_num_seqs=[8])
    commit_starts(new, (100,), max_num_seqs=[8], **columns)
    of_base, of_new = compared(base, new).without_partner
    assert differs_in in of_base.load_differs_in
    assert of_base.load_differs_in == of_new.load_differs_in
    assert of_base.differs_in == ()


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


def test_a_slower_part_is_worse_where_the_whole_mix_is_the_same(tmp_path: Path) -> None:
    base, new = mixes(tmp_path, 120, 121)
    found = verdicts(compared(base, new, slo=LIMITS_OF_PARTS))
    assert found == {
        "chat:ttft_ms.p99": Verdict.WORSE,
        "output_token_throughput": Verdict.SAME,
        "ttft_ms.p99": Verdict.SAME,
        "attainment": Verdict.SAME,
        "rag:ttft_ms.p99": Verdict.SAME,
        "chat:attainment": Verdict.SAME,
        "rag:attainment": Verdict.SAME,
    }
    assert "chat:attainment" not in verdicts(compared(base, new))  # its limits are on all requests


def test_a_metric_of_a_part_is_that_of_its_requests(tmp_path: Path) -> None:
    base, new = mixes(tmp_path, 140, 141)  # above the limit of chats
    rules = rules_of("chat:ttft_ms.p50", "chat:attainment", "rag:attainment", "attainment")
    comparison = compared(base, new, rules, LIMITS_OF_PARTS)
    values = {change.metric.name: change.new.values for change in comparison.changes}
    assert values.pop("chat:ttft_ms.p50") == pytest.approx((140, 141))
    # without a part it is that of the part that is worst off
    assert values == {"chat:attainment": (0, 0), "rag:attainment": (1, 1), "attainment": (0, 0)}


def test_parts_are_gated_as_they_are_named(tmp_path: Path) -> None:
    base, new = mixes(tmp_path, 100, 101)
    rules = rules_of("chat:ttft_ms.p99", "*:ttft_ms.p99", "chat:ttft_ms.p99")
    names = [change.metric.name for change in compared(base, new, rules).changes]
    assert sorted(names) == ["chat:ttft_ms.p99", "rag:ttft_ms.p99"]  # each once
    with pytest.raises(InputError, match="unknown part 'chta'; did you mean 'chat'"):
        compared(base, new, rules_of("chta:ttft_ms.p99"))
    without_limits = compared(base, new, rules_of("chat:attainment")).without_value
    assert [lacking.metric.name for lacking in without_limits] == ["chat:attainment"]


def test_what_is_tolerated_is_the_same_share_up_and_down() -> None:
    latency, share = metric_named("ttft_ms.p99"), metric_named("attainment")
    assert math.expm1(RULES.growth_bound(latency)) == pytest.approx(0.03)
    assert math.expm1(-RULES.bound(latency)) == pytest.approx(-0.03)
    assert RULES.growth_bound(share) == RULES.bound(share) == 0.03


def test_latencies_get_worse_upwards_and_rates_downwards() -> None:
    assert not metric_named("itl_ms.mean").higher_is_better
    assert metric_named("request_throughput").higher_is_better
    assert metric_named("decode_throughput.p50").higher_is_better
