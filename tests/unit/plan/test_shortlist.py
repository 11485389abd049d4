"""Which deployments a shortlist has: the choice, its reasons, and what a later run continues with."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from orchestrator.analysis.prediction import Prediction
from orchestrator.base.errors import InputError
from orchestrator.plan.model import Deployment, Plan
from orchestrator.plan.shortlist import (
    PredictedCurve,
    continued,
    frontier_places,
    ids_left_out,
    shortlisted,
    size_for_all_candidates,
    size_with_room_for,
    without_shortlist,
)
from tests.unit.plan.files import planned
from tests.unit.plan.predicted import EXPERIMENT, deployments

COUNT = 12


def plan_of(count: int = COUNT, **changes: Any) -> Plan:
    seqs = [16 + number for number in range(count)]
    vary = [{"grid": {"max_num_seqs": seqs}}]
    return planned("x.yaml", **{**EXPERIMENT, "deployments": deployments(vary=vary), **changes})


def prediction(value: float, factor: float, tpot_ms: float = 20.0) -> dict[str, Any]:
    capacity = {
        "control": "request_rate",
        "level": value / 100,
        "output_throughput": value,
        "output_throughput_per_gpu": value,
        "interval_per_gpu": [value / factor, value * factor],
        "usd_per_million_tokens": None,
    }
    level = {
        "workload": "chat",
        "control": "request_rate",
        "level": 1.0,
        "ttft_ms": 100.0,
        "tpot_ms": tpot_ms,
        "output_throughput": value,
    }
    return {
        "levels": [level],
        "capacity": {"fast": {"chat": capacity}},
        "error": {
            "ttft": 0.2,
            "tpot": 0.1,
            "source": "a test",
            "within": {"ttft": factor, "tpot": factor},
            "counted": False,
        },
    }


def predicted(plan: Plan, predictions: list[dict[str, Any]]) -> Plan:
    pairs = zip(plan.deployments, predictions, strict=True)
    return plan.with_deployments(
        deployment.model_copy(
            update={"predicted": Prediction.from_document(deployment.predicted.document() | each)}
        )
        for deployment, each in pairs
    )


def labels(deployments: list[Deployment]) -> list[str]:
    return [deployment.label for deployment in deployments]


def test_what_may_lead_within_its_error_runs_and_the_rest_says_what_it_falls_behind() -> None:
    values = [100.0, 90.0, 60.0]
    plan = shortlisted(predicted(plan_of(3), [prediction(each, 1.1) for each in values]), 8)
    first, second, third = plan.deployments
    assert plan.runnable() == [first, second]
    assert third.left_out is not None
    assert third.left_out.why == "behind"
    assert third.left_out.leader == first.label
    assert third.left_out.highest == pytest.approx(66.0)
    assert third.left_out.leader_lowest == pytest.approx(100 / 1.1)
    record = plan.shortlist
    assert record is not None
    assert (record.listed, record.of, record.candidates, record.size) == (2, 3, 2, 8)


def test_of_more_candidates_than_asked_for_those_predicted_best_run() -> None:
    values = [80.0, 100.0, 90.0]
    plan = shortlisted(predicted(plan_of(3), [prediction(each, 2.0) for each in values]), 2)
    assert [deployment.left_out is None for deployment in plan.deployments] == [False, True, True]
    left_out = plan.deployments[0].left_out
    assert left_out is not None
    assert left_out.why == "no_room"


def test_what_has_no_prediction_takes_the_places_that_are_left_and_is_named() -> None:
    unknown = {"not_predicted": "nothing is known of it"}
    predictions = [prediction(100.0, 1.1), unknown, unknown, prediction(10.0, 1.1)]
    plan = shortlisted(predicted(plan_of(4), predictions), 2)
    assert [deployment.runs for deployment in plan.deployments] == [True, True, False, False]
    assert plan.shortlist is not None
    assert plan.shortlist.unpredicted == (plan.deployments[1].label,)
    left_out = [deployment.left_out for deployment in plan.deployments[2:]]
    assert [each.why for each in left_out if each] == ["not_predicted", "behind"]


def test_where_answers_are_compared_their_reference_runs() -> None:
    slos = {"fast": {"ttft": "500ms", "tpot": "20ms", "agreement": 0.9}}
    values = [10.0, 100.0, 90.0]
    plan = predicted(plan_of(3, slos=slos), [prediction(each, 1.2) for each in values])
    limited = shortlisted(plan, 2)
    assert ids_left_out(limited) == {plan.deployments[2].id}
    assert limited.shortlist is not None
    assert limited.shortlist.references == (plan.deployments[0].label,)


def test_the_size_that_runs_all_candidates_has_room_for_the_references_of_answers() -> None:
    slos = {"fast": {"ttft": "500ms", "tpot": "20ms", "agreement": 0.9}}
    values = [10.0, 100.0, 90.0, 95.0]
    plan = predicted(plan_of(4, slos=slos), [prediction(each, 1.2) for each in values])
    limited = shortlisted(plan, 2)
    assert limited.shortlist is not None
    assert limited.shortlist.candidates == 3
    assert size_for_all_candidates(limited) == 4  # the reference is not a candidate
    assert size_for_all_candidates(shortlisted(plan, 3)) == 4
    whole = shortlisted(plan, 4)
    assert len(whole.runnable()) == 4
    assert size_for_all_candidates(whole) is None


def test_the_size_that_runs_some_deployments_counts_what_takes_places_before_them() -> None:
    slos = {"fast": {"ttft": "500ms", "tpot": "20ms", "agreement": 0.9}}
    unknown = {"not_predicted": "nothing is known of it"}
    predictions = [prediction(each, 1.2) for each in (10.0, 100.0, 90.0, 20.0)]
    plan = predicted(plan_of(5, slos=slos), [*predictions, unknown])
    reference, best, second, behind, unpredicted = labels(list(plan.deployments))
    sizes = {reference: 1, best: 2, second: 3, unpredicted: 4}
    for label, size in sizes.items():
        assert size_with_room_for(plan, [label]) == size
        listed = shortlisted(plan, size).runnable()
        assert label in labels(listed)
        assert len(listed) == size
    assert size_with_room_for(plan, [second, best]) == 3
    assert size_with_room_for(plan, [behind, best]) == 2
    assert size_with_room_for(plan, [behind]) == 0


def test_limits_that_none_can_hold_make_no_deployment_a_candidate() -> None:
    slos = {"fast": {"ttft": "500ms"}, "never": {"ttft": "1us"}}
    predictions = [prediction(each, 1.1) for each in (100.0, 60.0)]
    for each in predictions:
        each["capacity"]["never"] = prediction(0.0, 1.0)["capacity"]["fast"]
    plan = shortlisted(predicted(plan_of(2, slos=slos), predictions), 2)
    first, second = plan.deployments
    assert plan.runnable() == [first]
    assert second.left_out is not None
    assert (second.left_out.slo, second.left_out.leader) == ("fast", first.label)
    assert plan.shortlist is not None
    assert plan.shortlist.candidates == 1


def test_a_deployment_that_holds_nothing_is_left_out_even_if_the_leader_may_hold_nothing() -> None:
    """The leader holds nothing if its latencies are longer by the error of its prediction."""
    leader, holds_nothing = prediction(100.0, 1.1), prediction(0.0, 1.1)
    leader["capacity"]["fast"]["chat"]["interval_per_gpu"] = [0.0, 110.0]
    plan = shortlisted(predicted(plan_of(2), [leader, holds_nothing]), 2)
    assert [deployment.runs for deployment in plan.deployments] == [True, False]


def test_where_no_deployment_may_hold_any_load_there_is_no_shortlist() -> None:
    plan = predicted(plan_of(2), [prediction(0.0, 1.1), prediction(0.0, 1.1)])
    assert size_with_room_for(plan, labels(list(plan.deployments))) is None
    with pytest.raises(InputError, match="no shortlist: .* hold the limits at no load"):
        shortlisted(plan, 2)


def test_without_any_prediction_there_is_no_shortlist() -> None:
    unknown = {"not_predicted": "the model has no term for a router"}
    unpredicted = predicted(plan_of(2), [unknown, unknown])
    assert size_with_room_for(unpredicted, labels(list(unpredicted.deployments))) is None
    with pytest.raises(InputError, match="nothing is predicted .*no term for a router"):
        shortlisted(predicted(plan_of(2), [unknown, unknown]), 2)


def test_without_limits_what_may_be_on_the_frontier_runs() -> None:
    predictions = [
        prediction(100.0, 1.05),
        prediction(50.0, 1.05, tpot_ms=5.0),
        prediction(40.0, 1.05, tpot_ms=25.0),
    ]
    plan = shortlisted(predicted(plan_of(3, slos={}), predictions), 3)
    *on_frontier, third = plan.deployments
    assert plan.runnable() == on_frontier
    assert third.left_out is not None
    assert (third.left_out.why, third.left_out.slo) == ("behind", "")


@pytest.mark.parametrize("seed", range(50))
def test_the_best_is_listed_whenever_true_values_lie_within_the_stated_errors(seed: int) -> None:
    rng = random.Random(seed)
    factors = [rng.uniform(1.0, 2.5) for _ in range(COUNT)]
    values = [rng.lognormvariate(5, 0.7) for _ in range(COUNT)]
    truth = [
        value * factor ** rng.uniform(-1, 1) for value, factor in zip(values, factors, strict=True)
    ]
    predictions = [prediction(*each) for each in zip(values, factors, strict=True)]
    plan = predicted(PLAN, predictions)
    best = plan.deployments[int(np.argmax(truth))]
    whole = shortlisted(plan, COUNT)
    assert best in whole.runnable()
    # with too few places for all candidates, one without a place is not called beaten
    size = rng.randint(1, COUNT)
    limited = shortlisted(plan, size)
    assert len(limited.runnable()) <= size
    left_out = limited.deployment(best.id).left_out
    assert left_out is None or left_out.why == "no_room"


PLAN = plan_of()


@pytest.mark.parametrize("seed", range(30))
def test_what_is_on_the_true_frontier_may_be_on_it_whenever_it_lies_within_the_errors(
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    curves: list[PredictedCurve] = []
    truths: list[PredictedCurve] = []
    for number in range(8):
        factor = float(rng.uniform(1.0, 1.6))
        speed, yields = rng.lognormal(3, 0.5, 4), rng.lognormal(6, 0.5, 4)
        curves.append(PredictedCurve(str(number), speed, yields, factor))
        off = factor ** rng.uniform(-1, 1, (2, 4))
        truths.append(PredictedCurve(str(number), speed * off[0], yields * off[1], 1.0))
    places = frontier_places(curves)
    for place, truth in zip(places, frontier_places(truths), strict=True):
        assert place.is_candidate or not truth.is_candidate
    assert max(place.share for place in places) == pytest.approx(1.0)


def test_the_same_command_continues_with_the_same_shortlist() -> None:
    plan = plan_of(3)
    first = shortlisted(predicted(plan, [prediction(each, 1.1) for each in (100, 90, 60)]), 2, "s")
    stored = Plan.from_json(first.to_json())
    again = continued(plan, stored, 2, "s")
    assert again is not None
    assert ids_left_out(again) == ids_left_out(first) == {plan.deployments[2].id}
    assert again.deployments[0].predicted == first.deployments[0].predicted
    assert again.shortlist == first.shortlist


@pytest.mark.parametrize(("size", "source"), [(1, "s"), (2, "other")])
def test_another_shortlist_is_chosen_anew(size: int, source: str) -> None:
    plan = plan_of(3)
    first = shortlisted(predicted(plan, [prediction(each, 1.1) for each in (100, 90, 60)]), 2, "s")
    assert continued(plan, first, size, source) is None


def test_a_shortlist_of_other_deployments_is_not_continued() -> None:
    predictions = [prediction(each, 1.1) for each in (100, 90, 60)]
    first = shortlisted(predicted(plan_of(3), predictions), 2, "s")
    assert continued(plan_of(4), first, 2, "s") is None


def test_without_its_shortlist_a_plan_runs_all() -> None:
    plan = predicted(plan_of(3), [prediction(each, 1.1) for each in (100, 90, 60)])
    limited = shortlisted(plan, 1)
    assert len(limited.runnable()) == 1
    assert without_shortlist(limited) == plan
    assert limited.points_of(plan.deployments[2].id) == []
