"""Decides the order in which deployments run: first by class (``QueueClass``), then those that span
several nodes, then those predicted best, then the longest. In the class CONTINUED, those that span
several nodes do not go first.
"""

import statistics
from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from orchestrator.plan.model import Deployment, DeploymentGroup, Plan
from orchestrator.spec.load import Objective

# Deployments predicted to reach this share of the best prediction count as equally good, because
# predictions are not more precise than that.
FRONT = 0.9


class QueueClass(IntEnum):
    """Launches of a lower class run first."""

    NORMAL = 0
    RISKY = 1  # the plan says that it may not fit
    CONTINUED = 2  # in a race, and probed already: deployments that were never probed go first


class QueuePosition(NamedTuple):
    """A launch's position in the queue: the smallest is admitted first."""

    queue_class: QueueClass
    goes_after_gangs: bool
    negative_priority: float
    negative_seconds: float


def queue_position(
    queue_class: QueueClass, is_gang: bool, priority: float, seconds: float
) -> QueuePosition:
    """The position of a launch in the queue; the smallest is admitted first.

    ``is_gang``: a replica spans several nodes; such launches go first, unless they are CONTINUED.
    ``priority``: see ``queue_priority``; for a launch that is CONTINUED, how much load the
    deployment may still hold. ``seconds``: how many seconds the launch is expected to take.

    The admission of a sweep orders its queue by it (sweep/admission.py), and so do the estimate of
    a plan's costs (plan/cost.py) and a simulated sweep (simulation/queue.py). In a sweep,
    ``DeploymentWork.queue_class`` decides the class (sweep/deployment_work.py), and
    ``LaunchQueue.waiting`` the priority (sweep/launch_queue.py).

    ``tests/unit/plan/test_order.py`` and ``tests/unit/sweep/test_admission_order.py`` guard this
    order.
    """
    goes_after_gangs = not is_gang and queue_class is not QueueClass.CONTINUED
    return QueuePosition(queue_class, goes_after_gangs, -priority, -seconds)


def queue_priority(plan: Plan) -> dict[str, float]:
    """Deployment id -> its priority in the queue, where the highest goes first; empty if the
    experiment wants the longest first.

    If all deployments will be measured, those that reach FRONT of the best prediction have priority
    1 and the others 0, and among equals the longest go first. In the exact order of the predictions
    a sweep would take up to a quarter longer (``benchmarks/cluster/packing.py``).
    """
    shares = predicted_share(plan) if plan.predictions.order else {}
    if plan.budget is not None or any(load.searches for load in plan.loads):
        return shares
    return {name: float(share >= FRONT) for name, share in shares.items()}


def predicted_share(plan: Plan) -> dict[str, float]:
    """Deployment id -> its predicted capacity as a share of the best that it is compared with: 1 is
    the predicted best.

    If there are several limits and workloads, the largest share counts. Deployments without a
    prediction get the median of the others; without any prediction the result is empty.
    """
    per = objective_of(plan)
    by_id: dict[str, list[PredictedStanding]] = {}
    best: dict[PredictedContest, float] = {}
    for deployment in plan.runnable():
        by_id[deployment.id] = standings(deployment, per)
        for standing in by_id[deployment.id]:
            best[standing.contest] = max(best.get(standing.contest, 0.0), standing.tokens_per_s)
    shares = {
        deployment_id: max(share_of_best(standing, best) for standing in of_deployment)
        for deployment_id, of_deployment in by_id.items()
        if of_deployment
    }
    if not shares:
        return {}
    median = statistics.median(shares.values())
    return {deployment_id: shares.get(deployment_id, median) for deployment_id in by_id}


def by_predicted_share(plan: Plan) -> Plan:
    """The plan with its deployments sorted by ``predicted_share``, those that do not run last."""
    shares = predicted_share(plan)
    return plan.with_deployments(
        sorted(plan.deployments, key=lambda deployment: -shares.get(deployment.id, -1.0))
    )


class PredictedContest(NamedTuple):
    """What deployments are compared in: one group of them, under one SLO, with one workload."""

    group: DeploymentGroup
    slo: str
    workload: str


class PredictedStanding(NamedTuple):
    """What a deployment is predicted to hold in a contest: output tokens/s per GPU, USD or
    deployment, with the interval that the known error of the prediction leaves.
    """

    contest: PredictedContest
    tokens_per_s: float
    lower: float
    upper: float


def objective_of(plan: Plan) -> Objective:
    """What throughput is divided by where deployments are compared by their predictions."""
    return next((load.objective for load in plan.loads if load.objective), "gpu")


def standings(deployment: Deployment, per: Objective) -> list[PredictedStanding]:
    """Where a deployment stands in every contest that a prediction is known for."""
    # predictions are stored per GPU
    units = max(1, deployment.devices) / (deployment.divisor(per) or 1.0)
    found: list[PredictedStanding] = []
    for slo, by_workload in deployment.predicted.capacities.items():
        for workload, capacity in by_workload.items():
            lower, upper = capacity.interval_per_gpu
            found.append(
                PredictedStanding(
                    contest=PredictedContest(deployment.group(per), slo, workload),
                    tokens_per_s=capacity.output_throughput_per_gpu * units,
                    lower=lower * units,
                    upper=upper * units,
                )
            )
    return found


def share_of_best(standing: PredictedStanding, best: Mapping[PredictedContest, float]) -> float:
    """A standing's throughput as a share of the best in its contest; 0 if the best is 0. ``best``:
    the highest throughput of each contest.
    """
    of_best = best[standing.contest]
    return standing.tokens_per_s / of_best if of_best else 0.0
