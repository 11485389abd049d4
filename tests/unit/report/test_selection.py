"""Answers of stored experiments: what may win, what may share a ranking, and what is said where
there is none.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.base.errors import InputError
from orchestrator.capacity.doubts import Doubt, DoubtKind, Remedy
from orchestrator.plan.current import StoredExperiment
from orchestrator.plan.make import make_plan
from orchestrator.plan.model import Deployment, Plan
from orchestrator.plan.shortlist import shortlisted
from orchestrator.plan.simulated import with_simulation
from orchestrator.report.answer_table import AnswerView, answer_text
from orchestrator.report.selection import (
    answers,
    check_prices,
    limits,
    parse_prices,
    with_limits,
    with_shortlist_sizes,
)
from orchestrator.report.words import remedy_texts, verdict_text
from orchestrator.report.written_form import TextForm
from orchestrator.results.store import Store
from orchestrator.spec.experiment import parse_experiment
from orchestrator.spec.load import Slo
from tests.unit.plan.stored_sweeps import (
    EXPERIMENT,
    VALUES,
    invoke,
    planned,
    store_attempt,
    store_sweep,
)
from tests.unit.report.stores import (
    MODEL_ERROR,
    commit_shortlist_of_two,
    commit_simulation,
    with_model_error,
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path), "exp")


def changed(plan: Plan, label: str, **given: Any) -> Plan:
    """The plan with one deployment that is otherwise."""

    def one(deployment: Deployment) -> Deployment:
        return deployment.model_copy(update=given) if deployment.label == label else deployment

    return plan.model_copy(update={"deployments": tuple(map(one, plan.deployments))})


@pytest.mark.parametrize(
    "given",
    [{"status": "excluded"}, {"status": "impossible"}, {"unserved": ("chat",)}],
    ids=lambda given: str(given),
)
def test_what_the_plan_no_longer_asks_of_a_deployment_is_superseded(
    given: dict[str, Any], store: Store
) -> None:
    store_sweep(store, planned())
    store.write_plan(changed(planned(), "emulator seqs=16", **given).to_json())
    points = StoredExperiment(store).points()
    assert [one.deployment.label for one in points.current] == ["emulator seqs=8"]
    assert [one.deployment.label for one in points.superseded] == ["emulator seqs=16"]


@pytest.mark.parametrize("lost", ["deleted", "of another version with other ids"])
def test_without_a_plan_what_did_not_ask_the_same_shares_no_ranking(
    lost: str, store: Store, tmp_path: Path
) -> None:
    for tokens in (64, 8):
        store_sweep(store, planned(tokens=tokens), tokens=tokens)
    path = tmp_path / "exp" / "plan.json"
    if lost == "deleted":
        path.unlink()
    else:
        text = path.read_text().replace('"program_version": "', '"program_version": "0.')
        store.write_plan(text.replace('"id": "', '"id": "0'))
    found = answers(limits("ttft<=150ms", [StoredExperiment(store)])).comparisons
    assert [len(one.ranking) for one in found] == [2, 2]
    assert sorted('"output_tokens":{"fixed":64}' in one.content for one in found) == [False, True]
    shown = invoke("results", store.uri)
    assert shown.stdout.count("chat of exp: some-org/m on cpu, {") == 2
    assert "what is superseded is not known" in shown.stderr


def test_without_a_plan_what_asked_the_same_is_one_ranking(store: Store, tmp_path: Path) -> None:
    store_sweep(store, planned(levels=[2, 4]))
    (tmp_path / "exp" / "plan.json").unlink()
    (found,) = answers(limits("ttft<=150ms", [StoredExperiment(store)])).comparisons
    assert (len(found.ranking), found.content) == (2, "")
    assert "exp: it has no plan.json" in invoke("results", store.uri).stderr


def test_without_a_plan_what_did_not_ask_the_same_shares_no_curve(
    store: Store, tmp_path: Path
) -> None:
    store_sweep(store, planned(tokens=64, levels=[1, 2]), tokens=64)
    store_sweep(store, planned(tokens=8, levels=[3, 4]))
    (tmp_path / "exp" / "plan.json").unlink()
    shown = json.loads(invoke("results", store.uri, "--format", "json").stdout)
    assert [one["knee"] for one in shown] == [False] * 8


def test_what_the_plan_asks_for_and_nobody_measured_is_said(store: Store) -> None:
    store.write_plan(planned(levels=[2, 4]).to_json())
    (nothing, _) = answers(limits(None, [StoredExperiment(store)])).comparisons
    assert verdict_text(nothing) == "nothing that the plan asks for here is measured yet"
    (advice,) = remedy_texts(nothing)
    again = "run the experiment again: it goes on with emulator seqs=8, emulator seqs=16: "
    assert advice.startswith(f"{again}orchestrator run ")
    store_sweep(store, planned(levels=[2, 4]))
    assert "measured yet" not in " ".join(
        verdict_text(one) for one in answers(limits(None, [StoredExperiment(store)])).comparisons
    )


@pytest.mark.parametrize(
    ("most", "advice"),
    [
        (1, "give a larger max_deployments: no more are started"),
        (2, "run the experiment again: max_deployments allows 1 more"),
        (3, "run the experiment again: it goes on with emulator seqs=16, emulator seqs=32"),
    ],
)
def test_deployments_that_are_not_started_are_no_reason_to_run_again(
    most: int, advice: str, store: Store
) -> None:
    search = f"search: capacity, control: request_rate, max_deployments: {most}"
    text = EXPERIMENT.replace("levels: {{concurrency: {levels}}}", search)
    values = VALUES | {"max_num_seqs": [8, 16, 32]}
    plan = make_plan(parse_experiment(text.format(**values)))
    store.write_plan(plan.to_json())
    store_attempt(
        store, plan, next(one for one in plan.points if one.deployment_id == plan.deployments[0].id)
    )
    decide = [
        text
        for one in answers(limits(None, [StoredExperiment(store)])).comparisons
        for text in remedy_texts(one)
    ]
    assert [text for text in decide if text.startswith(advice)]


def test_nothing_is_missing_of_a_deployment_that_is_not_run(store: Store) -> None:
    plan = changed(planned(), "emulator seqs=16", status="excluded")
    store.write_plan(plan.to_json())
    (nothing, _) = answers(limits(None, [StoredExperiment(store)])).comparisons
    (advice,) = remedy_texts(nothing)
    again = "run the experiment again: it goes on with emulator seqs=8: "
    assert advice.startswith(f"{again}orchestrator run ")


def test_limits_that_need_a_deleted_table_cost_the_others_nothing(store: Store) -> None:
    slos = (Slo(name="gaps", itl_p99=0.1), Slo(name="fast", ttft=0.15, attainment=0.9))
    store_sweep(store, planned().model_copy(update={"slos": slos}))
    why = "a limit on itl_p99 needs the table token_events"
    done = invoke("best", store.uri)
    assert "under fast" in done.stdout
    assert f"exp: no answer under gaps: {why}" in done.stderr
    rankings = answers(limits(None, [StoredExperiment(store)]))
    end = "\n".join(answer_text(rankings, AnswerView(TextForm("best", 110), 110, 5)))
    assert f"note: no answer under gaps: {why}" in end
    with pytest.raises(InputError, match=why):
        answers(limits("gaps", [StoredExperiment(store)]))


def test_a_price_of_hardware_that_is_not_there_is_refused(store: Store, tmp_path: Path) -> None:
    store_sweep(store, planned())
    check_prices({"cpu": 2.0}, [StoredExperiment(store)])
    with pytest.raises(InputError, match="--price: unknown hardware 'cpus'; did you mean 'cpu'"):
        check_prices({"cpus": 2.0}, [StoredExperiment(store)])
    (tmp_path / "exp" / "plan.json").unlink()
    with pytest.raises(InputError, match="--price: unknown hardware 'h100'"):
        check_prices({"h100": 2.0}, [StoredExperiment(store)])


def test_a_price_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="--price 'h100=0'"):
        parse_prices(["h100=0"])


def test_points_that_were_read_already_are_not_read_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_sweep(store, planned(levels=[2, 4]))
    stored = [StoredExperiment(store)]
    expected = answers(limits(None, stored)).comparisons
    read = list(with_limits(None, stored))
    monkeypatch.setattr(StoredExperiment, "points", None)
    comparisons = answers(limits(None, stored), read=read).comparisons
    assert [each.slo.name for each in comparisons] == ["interactive", "tight"]
    for comparison, as_expected in zip(comparisons, expected, strict=True):
        ranking = [(each.label, each.attainment) for each in comparison.ranking]
        assert ranking == [(each.label, each.attainment) for each in as_expected.ranking]
        assert comparison.certainty is as_expected.certainty


def test_a_shortlist_has_room_for_what_may_be_best_in_any_ranking(store: Store) -> None:
    commit_shortlist_of_two(store, planned(max_num_seqs=[8, 16, 32]))
    experiment = StoredExperiment(store)
    comparison = answers(limits("interactive", [experiment])).comparisons[0]
    first, second = sorted(comparison.labels_within_model_error)
    rankings = [
        replace(
            comparison, doubts=(Doubt(DoubtKind.SIMULATED, others, Remedy.MEASURE, leader=first),)
        )
        for others in ((second,), ())
    ]
    command = "orchestrator run --shortlist 2 --simulated RESULTS"
    room = ", with room for what the file's other questions need"
    assert [remedy_texts(sized) for sized in with_shortlist_sizes(rankings, [experiment])] == [
        [f"measure these 2 ({command})"],
        [f"measure {first} ({command}{room})"],
    ]


def test_a_shortlist_of_all_deployments_is_a_run_without_one(store: Store) -> None:
    store_sweep(store, planned(max_num_seqs=[8, 16, 32]), simulated=True)
    experiment = StoredExperiment(store)
    comparison = answers(limits(None, [experiment])).comparisons[0]
    first, second, third = [ranked.label for ranked in comparison.ranking]
    rankings = [
        replace(
            comparison, doubts=(Doubt(DoubtKind.SIMULATED, others, Remedy.MEASURE, leader=first),)
        )
        for others in ((second,), (second, third))
    ]
    assert [remedy_texts(sized) for sized in with_shortlist_sizes(rankings, [experiment])] == [
        ["measure these 2 (orchestrator run measures all 3)"],
        ["measure these 3 (orchestrator run)"],
    ]


def test_a_shortlist_has_room_for_the_reference_of_answers(store: Store) -> None:
    slos = (
        Slo(name="interactive", ttft=0.15, attainment=0.9),
        Slo(name="alike", ttft=0.15, attainment=0.9, agreement=0.9),
    )
    plan = with_model_error(planned(max_num_seqs=[8, 16, 32, 64]), MODEL_ERROR)
    plan = plan.model_copy(update={"slos": slos})
    store.write_plan(plan.to_json())
    for point, ttft_ms in zip(plan.points, (5000, 100, 100, 5000), strict=True):
        store_attempt(store, plan, point, ttft_ms=ttft_ms, simulated=True)
    comparison = answers(limits("interactive", [StoredExperiment(store)])).comparisons[0]
    (doubt,) = [each for each in comparison.doubts if each.kind is DoubtKind.SIMULATED]
    contenders = comparison.labels_within_model_error
    assert contenders == {deployment.label for deployment in plan.deployments[1:3]}
    assert doubt.shortlist_size == 3
    limited = shortlisted(with_simulation(plan, store.uri), doubt.shortlist_size)
    assert contenders < {deployment.label for deployment in limited.runnable()}


@pytest.mark.parametrize(
    "given", [("--slo", "ttft<=200ms,attainment>=0.9"), ("--per", "deployment")], ids=["slo", "per"]
)
def test_for_a_question_that_is_not_the_plans_no_shortlist_is_proposed(
    given: tuple[str, str], store: Store
) -> None:
    commit_simulation(store)
    assert "to decide: measure all" in invoke("best", store.uri).stdout
    other = invoke("best", store.uri, *given).stdout
    assert "to decide: measure both" in other
    assert "--shortlist" not in other


def test_limits_that_repeat_those_of_the_file_ask_the_same_question(store: Store) -> None:
    commit_simulation(store)
    named = invoke("best", store.uri, "--slo", "interactive")
    repeated = invoke("best", store.uri, "--slo", "attainment>=90%,ttft<=0.15s")
    assert "to decide: measure all" in named.stdout
    assert repeated.stdout == named.stdout


def test_a_shortlist_has_room_for_what_may_be_best_under_limits_on_answers(store: Store) -> None:
    slos = (
        Slo(name="fast", ttft=0.01, attainment=0.9),
        Slo(name="alike", ttft=0.5, attainment=0.9, agreement=0.9),
    )
    plan = with_model_error(planned(), MODEL_ERROR).model_copy(update={"slos": slos})
    store.write_plan(plan.to_json())
    for point, ttft_ms, tokens in zip(plan.points, (1, 100), (8, 64), strict=True):
        store_attempt(store, plan, point, ttft_ms=ttft_ms, tokens=tokens, simulated=True)
    fast, *_ = answers(limits("fast", [StoredExperiment(store)])).comparisons
    (doubt,) = [each for each in fast.doubts if each.kind is DoubtKind.SIMULATED]
    assert (doubt.leader, doubt.deployments) == (plan.deployments[0].label, ())
    assert doubt.deployments_of_run == 2


def test_a_shortlist_counts_the_candidates_that_best_names(store: Store) -> None:
    """Both keep up with 2 req/s, and ask for a little less or more than the other there."""
    text = EXPERIMENT.format(**VALUES | {"levels": [2, 4]}).replace("concurrency", "request_rate")
    plan = with_model_error(make_plan(parse_experiment(text)), MODEL_ERROR)
    store.write_plan(plan.to_json())
    first, second = plan.deployments
    for point in plan.points:
        ttft_ms, tokens = 5000, 64
        if point.level.value == 2:
            ttft_ms, tokens = 10, 8 if point.deployment_id == first.id else 7
        store_attempt(store, plan, point, ttft_ms=ttft_ms, tokens=tokens, simulated=True)
    labels: set[str] = set()
    for comparison in answers(limits(None, [StoredExperiment(store)])).comparisons:
        labels |= comparison.labels_within_model_error
    assert labels == {first.label}
    limited = shortlisted(with_simulation(plan, store.uri), 2)
    assert limited.shortlist is not None
    assert limited.shortlist.candidates == 1
    assert [deployment.label for deployment in limited.runnable()] == [first.label]


@pytest.mark.parametrize(
    ("ttft_ms", "others"),
    [
        (60, ()),  # within 150 ms even if it takes twice as long
        (100, ("emulator seqs=16",)),  # if it takes twice as long, the first holds nothing
    ],
)
def test_the_first_may_be_beaten_where_its_limits_would_not_hold_on_a_slower_model(
    ttft_ms: float, others: tuple[str, ...], store: Store
) -> None:
    plan = with_model_error(planned(levels=[2]), MODEL_ERROR)
    store.write_plan(plan.to_json())
    first, second = plan.points
    store_attempt(store, plan, first, ttft_ms=ttft_ms, tokens=64, simulated=True)
    store_attempt(store, plan, second, ttft_ms=10, tokens=8, simulated=True)
    comparison = answers(limits("interactive", [StoredExperiment(store)])).comparisons[0]
    doubts = [doubt for doubt in comparison.doubts if doubt.kind is DoubtKind.SIMULATED]
    assert [doubt.deployments for doubt in doubts] == [others]
