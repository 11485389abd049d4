"""Which deployments of a sweep race against each other for the highest capacity."""

from __future__ import annotations

from collections.abc import Hashable

from orchestrator.plan.model import Deployment, Plan
from orchestrator.search import STRATEGIES
from orchestrator.search.racing import Entrant, Race
from orchestrator.spec.load import Per


def race_of(plan: Plan) -> Race | None:
    """The race among the deployments that ``best`` would compare, by the objective in the file; None if the plan
    searches for no capacity. With concurrency levels nobody is beaten: more in flight is not more throughput."""
    load = next((one for one in plan.loads if hasattr(STRATEGIES[one.search], "claims")), None)
    if load is None:
        return None
    per: Per = load.objective or "gpu"
    groups: dict[Hashable, list[Deployment]] = {}
    for one in plan.runnable():
        groups.setdefault(one.group(per), []).append(one)
    entrants = {}
    for group, some in groups.items():
        counted = load.objective or all(one.devices for one in some)  # else per deployment, like ``best``
        for one in some:
            if divisor := one.divisor(per if counted else "deployment"):
                entrants[one.id] = Entrant(group, divisor, one.settings.given())
    return Race(entrants, load.full_grid or load.control != "request_rate")
