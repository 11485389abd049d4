"""What is said of a shortlist."""

from __future__ import annotations

from orchestrator.plan.model import LeftOut, Plan, PredictedShortlist
from orchestrator.report.shortlist_words import (
    left_out_event,
    left_out_text,
    shared_left_out_text,
    shortlist_lines,
)
from tests.unit.plan.stored_sweeps import planned

BEHIND = LeftOut(
    why="behind", workload="chat", slo="fast", leader="tp=2", highest=900.0, leader_lowest=1234.5
)
NOT_PREDICTED = LeftOut(why="not_predicted", reason="no term for a router")


def record(**changes: object) -> PredictedShortlist:
    """A shortlist of one of two deployments."""
    fields = {"size": 1, "source": "plan --predict", "considered": "", "of": 2, "listed": 1}
    return PredictedShortlist.model_validate({**fields, "candidates": 1, **changes})


def shortlisted(left_out: LeftOut, **changes: object) -> Plan:
    """The second of two deployments is left out."""
    plan = planned()
    first, second = plan.deployments
    limited = plan.with_deployments([first, second.model_copy(update={"left_out": left_out})])
    return limited.model_copy(update={"shortlist": record(**changes)})


def lines(plan: Plan) -> list[str]:
    assert plan.shortlist is not None
    return list(shortlist_lines(plan, plan.shortlist))


def test_one_line_counts_what_is_left_out_by_reason() -> None:
    assert lines(shortlisted(BEHIND)) == [
        "shortlist: 1 of 2 deployments by plan --predict; left out: 1 predicted behind"
    ]


def test_what_has_no_prediction_is_named_on_the_list_and_off_it() -> None:
    *_, listed, left_out = lines(shortlisted(NOT_PREDICTED, unpredicted=("tp=1", "tp=2")))
    assert listed == "on the shortlist without a prediction: tp=1, tp=2"
    assert left_out == "left out without a prediction, so they may be the best: emulator seqs=16"


def test_with_more_candidates_than_the_shortlist_has_room_for_a_line_says_which_size_has_room() -> (
    None
):
    no_room = BEHIND.model_copy(update={"why": "no_room"})
    (*_, last) = lines(shortlisted(no_room, candidates=2))
    assert last == "2 may be the best within the error: --shortlist 2 runs them all"
    first, *_ = lines(shortlisted(BEHIND, source="s3://bucket/simulated"))
    assert "by the simulation at s3://bucket/simulated" in first


def test_references_of_answers_say_why_they_are_on_the_list() -> None:
    (*_, last) = lines(shortlisted(BEHIND, references=("tp=1",)))
    assert last == "on the shortlist because answers are compared with theirs: tp=1"


def test_each_reason_has_a_sentence_and_one_that_others_share() -> None:
    assert left_out_text(BEHIND, record()) == (
        "predicted to hold at most 900 output tokens/s per GPU, tp=2 at least 1,234 "
        "(chat under fast)"
    )
    assert shared_left_out_text(BEHIND, record(per="usd")) == (
        "predicted to hold less than tp=2 does at the least: 1,234 output tokens per USD "
        "(chat under fast)"
    )
    no_room = BEHIND.model_copy(update={"why": "no_room"})
    text = "may hold as much as tp=2 (chat under fast), but those on the list are predicted better"
    assert left_out_text(no_room, record()) == text
    assert shared_left_out_text(no_room, record()) == text
    holds_nothing = BEHIND.model_copy(update={"highest": 0.0})
    text = "predicted to hold the limits at no load (chat under fast)"
    assert left_out_text(holds_nothing, record()) == text
    assert shared_left_out_text(holds_nothing, record()) == text
    without_limits = LeftOut(why="behind")
    assert "off the frontier" in left_out_text(without_limits, record())
    assert "off the frontier" in shared_left_out_text(without_limits, record())
    assert "not predicted (no term for a router)" in left_out_text(NOT_PREDICTED, record())


def test_the_event_has_the_reason_of_each_deployment() -> None:
    event = left_out_event(shortlisted(BEHIND))
    assert event.kind == "shortlist"
    (label, reason), *others = event.data["left_out"].items()
    assert (label, others) == ("emulator seqs=16", [])
    assert reason == left_out_text(BEHIND, record())
