"""What a shortlist leaves out and why, for people."""

from collections import Counter
from collections.abc import Iterator

from orchestrator.base.text import counted, listed
from orchestrator.plan.model import LeftOut, Plan, PredictedShortlist
from orchestrator.plan.shortlist import PREDICTIONS, size_for_all_candidates
from orchestrator.report.text import figure
from orchestrator.results.events import Event
from orchestrator.spec.load import Objective

_UNITS: dict[Objective, str] = {
    "gpu": "output tokens/s per GPU",
    "deployment": "output tokens/s",
    "usd": "output tokens per USD",
}
_SHORT_REASONS = {
    "behind": "predicted behind",
    "no_room": "may be as good",
    "not_predicted": "not predicted",
}


def shortlist_lines(plan: Plan, record: PredictedShortlist) -> Iterator[str]:
    """How many deployments run, how many are left out and why.

    Then come the deployments without a prediction: those on the list, and those left out.
    """
    yield f"shortlist: {among_text(record)} by {source_text(record)}{_left_out_counts(plan)}"
    if record.unpredicted:
        yield f"on the shortlist without a prediction: {listed(record.unpredicted)}"
    not_judged = [
        deployment.label
        for deployment in plan.deployments
        if deployment.left_out is not None and deployment.left_out.why == "not_predicted"
    ]
    if not_judged:
        yield f"left out without a prediction, so they may be the best: {listed(not_judged)}"
    if record.references:
        names = listed(record.references)
        yield f"on the shortlist because answers are compared with theirs: {names}"
    size = size_for_all_candidates(plan)
    if size is not None:
        yield (
            f"{record.candidates:,} may be the best within the error: --shortlist {size} runs "
            "them all"
        )


def among_text(record: PredictedShortlist) -> str:
    """``8 of 96 deployments``."""
    return f"{record.listed:,} of {counted(record.of, 'deployment')}"


def source_text(record: PredictedShortlist) -> str:
    """What predicted the deployments."""
    if record.source.startswith(PREDICTIONS):
        return record.source
    return f"the simulation at {record.source}"


def left_out_text(left_out: LeftOut, record: PredictedShortlist) -> str:
    """Why one deployment is left out."""
    if left_out.why == "not_predicted":
        return f"not predicted ({left_out.reason}), and no place is left"
    if left_out.why == "no_room":
        may = "may be on the frontier"
        if left_out.slo:
            may = f"may hold as much as {left_out.leader}{_where(left_out)}"
        return f"{may}, but those on the list are predicted better"
    if not left_out.slo:
        return _OFF_THE_FRONTIER
    if not left_out.highest:
        return f"predicted to hold the limits at no load{_where(left_out)}"
    return (
        f"predicted to hold at most {figure(left_out.highest)} {_UNITS[record.per]}, "
        f"{left_out.leader} at least {figure(left_out.leader_lowest or 0.0)}{_where(left_out)}"
    )


def left_out_event(plan: Plan) -> Event:
    """What the events of a run say of its shortlist."""
    assert plan.shortlist is not None
    first, *_ = shortlist_lines(plan, plan.shortlist)
    return Event("shortlist", first, data={"left_out": left_out_reasons(plan)})


def left_out_reasons(plan: Plan) -> dict[str, str]:
    """By label, why each deployment that a shortlist leaves out is left out."""
    reasons: dict[str, str] = {}
    for deployment in plan.deployments:
        if deployment.left_out is not None and plan.shortlist is not None:
            reasons[deployment.label] = left_out_text(deployment.left_out, plan.shortlist)
    return reasons


def shared_left_out_text(left_out: LeftOut, record: PredictedShortlist) -> str:
    """Why a deployment is left out, in words that are the same for others like it."""
    if left_out.why != "behind" or not left_out.slo or not left_out.highest:
        return left_out_text(left_out, record)
    return (
        f"predicted to hold less than {left_out.leader} does at the least: "
        f"{figure(left_out.leader_lowest or 0.0)} {_UNITS[record.per]}{_where(left_out)}"
    )


def _where(left_out: LeftOut) -> str:
    return f" ({left_out.workload} under {left_out.slo})"


# the reason where the file names no limits
_OFF_THE_FRONTIER = (
    "predicted off the frontier: at every load others are faster for a user and yield more, "
    "within the errors"
)


def _left_out_counts(plan: Plan) -> str:
    """How many deployments are left out for each reason, the commonest first."""
    counts = Counter(
        deployment.left_out.why for deployment in plan.deployments if deployment.left_out
    )
    if not counts:
        return ""
    parts = [f"{number:,} {_SHORT_REASONS[why]}" for why, number in counts.most_common()]
    return f"; left out: {', '.join(parts)}"
