"""The order in which deployments run: by class (``QueueClass``), then those over several nodes, then
those predicted best, then the longest.
"""

import statistics
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

from orchestrator.plan.model import Deployment, Plan
from orchestrator.spec.load import Per

FRONT = 0.9  # of the best prediction: predictions are no better than that


class QueueClass(IntEnum):
    """Launches of a lower class run first."""

    NORMAL = 0
    RISKY = 1  # the plan says that it may not fit
    CONTINUED = 2  # of a race, and probed already: what was never probed goes first


def place(
    queue_class: QueueClass, gang: bool, priority: float, seconds: float
) -> tuple[QueueClass, bool, float, float]:
    """Sort key of a launch in the queue; the smallest runs first.

    ``gang``: a replica spans several nodes; such launches go first, unless they are CONTINUED. ``priority``: see ``queue_priority``; in a race, how
    far the deployment may still come. ``seconds``: how long it is expected to take.
    """
    goes_after_gangs = not gang and queue_class is not QueueClass.CONTINUED
    return queue_class, goes_after_gangs, -priority, -seconds


def queue_priority(plan: Plan) -> dict[str, float]:
    """Deployment id -> its priority in the queue, the highest first; empty when the experiment
    wants the longest first.

    Where all will be measured, 1 for those in FRONT and 0 for the others, so that of each the
    longest come first: all in the order of their predictions would take up to a quarter longer
    (``benchmarks/cluster/packing.py``).
    """
    shares = predicted_share(plan) if plan.predictions.order else {}
    if plan.budget is not None or any(load.searches for load in plan.loads):
        return shares
    return {name: float(share >= FRONT) for name, share in shares.items()}


def predicted_share(plan: Plan) -> dict[str, float]:
    """Predicted capacity of every deployment as a share of the best it is compared with: 1 is the
    predicted front.

    Of several limits and workloads the largest share counts. Deployments without a prediction get
    the median of all; without any prediction the result is empty.
    """
    best: dict[Any, float] = {}
    per: Per = next((load.objective for load in plan.loads if load.objective), "gpu")
    runnable = plan.runnable()
    values = {one.id: pairs for one in runnable if (pairs := list(_values(one, per)))}
    for key, value in (pair for pairs in values.values() for pair in pairs):
        best[key] = max(best.get(key, 0.0), value)
    shares = {
        name: max(value / best[key] if best[key] else 0.0 for key, value in pairs)
        for name, pairs in values.items()
    }
    middle = statistics.median(shares.values()) if shares else 0.0
    return {one.id: shares.get(one.id, middle) for one in runnable} if shares else {}


def by_predicted_share(plan: Plan) -> Plan:
    """The plan with its deployments sorted by ``predicted_share``; those that do not run come last."""
    shares = predicted_share(plan)
    return plan.with_deployments(
        sorted(plan.deployments, key=lambda one: -shares.get(one.id, -1.0))
    )


def _values(one: Deployment, per: Per) -> Iterator[tuple[Any, float]]:
    """(what is compared, output tokens/s per unit of ``per``) for every predicted capacity."""
    for slo, found in (one.predicted or {}).get("capacity", {}).items():
        for workload, capacity in found.items():
            whole = capacity["output_throughput_per_gpu"] * max(1, one.devices)
            yield (one.group(per), slo, workload), whole / (one.divisor(per) or 1.0)
