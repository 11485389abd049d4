"""The options ``--shortlist`` and ``--simulated`` of ``run`` and ``plan``, and what they do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from orchestrator.cli.numbers import WholeNumber

if TYPE_CHECKING:
    from orchestrator.plan.model import Plan

CommandT = TypeVar("CommandT", bound=Callable[..., Any])
_MOST = 1_000_000


def shortlist_options(command: CommandT) -> CommandT:
    """Adds the options to a command."""
    simulated = click.option(
        "--simulated",
        metavar="URI",
        help="With what `simulate` stored there, in place of `plan --predict`'s predictions.",
    )
    shortlist = click.option(
        "--shortlist",
        "shortlist_size",
        type=WholeNumber(1, _MOST),
        metavar="N",
        help="Run at most N deployments: those that may be the best by their predictions.",
    )
    return shortlist(simulated(command))


@dataclass(frozen=True, slots=True)
class ShortlistRequest:
    """The shortlist that a command line asks for.

    ``size``: how many deployments; None: no shortlist. ``simulated``: the URI of a simulation that
    predicts them; None: the plan's own predictions do.
    """

    size: int | None
    simulated: str | None

    @property
    def is_made(self) -> bool:
        """Whether anything is asked for."""
        return self.size is not None or self.simulated is not None

    def source(self, plan: Plan) -> str:
        """What predicts the deployments, in the words of a plan."""
        from orchestrator.plan.shortlist import PREDICTIONS

        if self.simulated is not None:
            return self.simulated
        profile = plan.predictions.profile
        return PREDICTIONS if profile is None else f"{PREDICTIONS} with {profile}"


@dataclass(frozen=True, slots=True)
class LimitedPlan:
    """The plan with predictions and the shortlist, and the lines to print about them."""

    plan: Plan
    lines: tuple[str, ...]


def limited(written: Plan, request: ShortlistRequest, earlier: Plan | None) -> LimitedPlan:
    """The plan with predictions, and with a shortlist where one is asked for or frozen in it.

    ``written``: the plan of the file, or a frozen plan. ``earlier``: the plan of the last run with
    these results. Raises InputError for a simulation that cannot be used, and where nothing is
    predicted.
    """
    from orchestrator.plan.shortlist import shortlisted, without_shortlist
    from orchestrator.report.origin import assumption_texts
    from orchestrator.report.shortlist_words import shortlist_lines

    if request.size is None:
        plan = _predicted(written, request)
    else:
        source = request.source(written)
        whole = without_shortlist(written)
        frozen = _first_continued(whole, (earlier, written), request.size, source)
        if frozen is not None:
            plan = frozen
        else:
            plan = shortlisted(_predicted(whole, request), request.size, source)
    lines: list[str] = []
    if plan.shortlist is not None:
        lines += shortlist_lines(plan, plan.shortlist)
        lines += [f"assumed: {text}" for text in assumption_texts(plan.assumptions)]
    if earlier is not None:
        lines += _changed_lines(plan, earlier)
    return LimitedPlan(plan, tuple(lines))


def _first_continued(
    whole: Plan, earlier_plans: tuple[Plan | None, ...], size: int, source: str
) -> Plan | None:
    from orchestrator.plan.shortlist import continued

    for earlier in earlier_plans:
        plan = continued(whole, earlier, size, source) if earlier is not None else None
        if plan is not None:
            return plan
    return None


def _predicted(plan: Plan, request: ShortlistRequest) -> Plan:
    from orchestrator.plan.predictions import with_predictions

    if request.simulated is None:
        return with_predictions(plan)
    from orchestrator.plan.simulated import with_simulation

    return with_simulation(plan, request.simulated)


def _changed_lines(plan: Plan, earlier: Plan) -> Iterator[str]:
    """A note if the last run had another shortlist; what it measured stays."""
    from orchestrator.plan.shortlist import ids_left_out
    from orchestrator.report.shortlist_words import among_text, source_text

    if earlier.shortlist is None or ids_left_out(plan) == ids_left_out(earlier):
        return
    was = f"{among_text(earlier.shortlist)} by {source_text(earlier.shortlist)}"
    now = "another shortlist" if plan.shortlist is not None else "all that can run, no shortlist"
    yield f"note: the last run was limited to {was}; this one has {now}; what was measured stays"
