"""Which deployments of a plan race against each other, and which of them are started."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from orchestrator.analysis.slo import first_target
from orchestrator.base.text import counted
from orchestrator.capacity.proposing import Shortlist
from orchestrator.capacity.race import Entrant, Race
from orchestrator.plan.model import Plan
from orchestrator.results.events import Event
from orchestrator.spec.load import Objective
from orchestrator.sweep.deployment_work import DeploymentWork


def race_of(plan: Plan) -> Race | None:
    """The race among the deployments that ``best`` would compare; None if the plan searches for no
    capacity.

    Deployments are compared per unit of the objective in the file. Without an objective they are
    compared per GPU or, where a deployment of the group has no devices, as a whole, as ``best``
    does. Where concurrency is searched, no deployment is beaten (``PlannedLoad.races``): more
    requests in flight are not more throughput.
    """
    searching_load = next((load for load in plan.loads if load.searches), None)
    if searching_load is None:
        return None
    entrants = entrants_of(plan, searching_load.objective)
    return Race(entrants, full_grid=not searching_load.races, targets=_first_targets(plan))


def entrants_of(plan: Plan, objective: Objective | None) -> dict[str, Entrant]:
    """The deployments that ``best`` would compare, by id. Those without a divisor are missing, for
    example those whose price is not known.
    """
    entrants: dict[str, Entrant] = {}
    for group, deployments in plan.groups(objective or "gpu").items():
        have_devices = all(deployment.devices for deployment in deployments)
        per: Objective = objective or ("gpu" if have_devices else "deployment")
        for deployment in deployments:
            divisor = deployment.divisor(per)
            if divisor:
                hardware = deployment.hardware.name
                settings = {"hardware": hardware, **deployment.settings.model_dump()}
                entrants[deployment.id] = Entrant(group, divisor, settings, per)
    return entrants


def shortlist_of(plan: Plan, race: Race | None, priority: Mapping[str, float]) -> Shortlist:
    """The choice of the deployments that are started: all of them, unless the plan searches for
    capacities and limits their number. ``priority``: see ``queue_priority`` in ``plan/order.py``.
    """
    limiting_load = next(
        (load for load in plan.loads if load.max_deployments or load.proposer), None
    )
    if race is None or limiting_load is None:
        return Shortlist(Race({}), targets={}, most=None)
    return Shortlist(
        race,
        targets=_first_targets(plan),
        most=plan.most_started,
        promise=priority,
        proposer=limiting_load.proposer,
        seed=plan.seed,
    )


def _first_targets(plan: Plan) -> dict[str, float]:
    """The share of requests that must meet the first test of each SLO, by the SLO's name."""
    return {slo.name: first_target(slo) for slo in plan.slos}


def choose_next(
    shortlist: Shortlist, queued: Mapping[str, DeploymentWork], running: Collection[str]
) -> str:
    """Put one more queued deployment on the shortlist, and return its id; a risky one only if there
    is no other. ``running``: see ``Shortlist.choose``.
    """
    others = shortlist.others(queued)
    not_risky = [key for key in others if queued[key].deployment.status != "risky"]
    return shortlist.choose(not_risky or others, running)


def not_started(deployments: int) -> Event:
    """The event that so many deployments are not started, because the shortlist is full."""
    number = counted(deployments, "deployment")
    text = f"not started: {number}, since max_deployments allows no more"
    return Event("not_started", text, data={"deployments": deployments})
