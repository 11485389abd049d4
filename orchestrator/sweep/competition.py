"""Which deployments of a plan race against each other, and which of them are started."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.capacity.outcomes import targets
from orchestrator.capacity.proposing import Shortlist
from orchestrator.capacity.race import Entrant, Race
from orchestrator.plan.model import Plan
from orchestrator.spec.load import Per


def race_of(plan: Plan) -> Race | None:
    """The race among the deployments that ``best`` would compare, by the objective in the file;
    None if the plan searches for no capacity. With concurrency levels nobody is beaten: more in
    flight is not more throughput.
    """
    load = next((load for load in plan.loads if load.searches), None)
    if load is None:
        return None
    per: Per = load.objective or "gpu"
    entrants = {}
    for group, deployments in plan.groups(per).items():
        have_devices = all(deployment.devices for deployment in deployments)
        # else per deployment, like ``best``
        group_per: Per = per if load.objective or have_devices else "deployment"
        for deployment in deployments:
            divisor = deployment.divisor(group_per)
            if divisor:
                settings = {
                    "hardware": deployment.hardware.name,
                    **deployment.settings.model_dump(),
                }
                entrants[deployment.id] = Entrant(group, divisor, settings)
    return Race(entrants, not load.races)


def shortlist_of(plan: Plan, race: Race | None, priority: Mapping[str, float]) -> Shortlist:
    """What chooses the deployments that are started: all, unless the plan searches for capacities
    and says otherwise. ``priority``: see ``queue_priority`` in ``plan/order.py``.
    """
    load = next((one for one in plan.loads if one.max_deployments or one.proposer), None)
    if race is None or load is None:
        return Shortlist(Race({}), {}, None)
    goals = {slo.name: shares[0] for slo, shares in zip(plan.slos, targets(plan.slos), strict=True)}
    return Shortlist(race, goals, plan.most_started, priority, load.proposer, plan.seed)
