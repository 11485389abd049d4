"""The last step of a plan: what each deployment is predicted to do under the experiment's load.

Predictions order a sweep and give its searches their first levels. They exclude nothing unless a
run asks for a shortlist (shortlist.py). No other step needs them, and no other module of this
package imports ``predict``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.plan.model import Deployment, Plan
from orchestrator.spec.load import Slo

if TYPE_CHECKING:
    from orchestrator.predict.predictor import Predictor

# used if a file names no limits: those of MLPerf Inference 5.0, Llama 2 70B interactive
# (mlcommons.org, April 2025)
DEFAULT_SLO = Slo(name="default", ttft=0.45, tpot=0.04, attainment=0.99)


def limits_of(plan: Plan) -> tuple[Slo, ...]:
    """The SLOs of the plan's file, or else the default one."""
    return plan.slos or (DEFAULT_SLO,)


def with_predictions(plan: Plan) -> Plan:
    """The plan with what ``Predictor.predict`` says of each deployment that runs. Predictions that
    come from a simulation (plan/simulated.py) stay as they are.
    """
    # imported late, here and below: it needs scipy, and most answers name no prediction
    from orchestrator.predict.predictor import OfferedLoad, Predictor

    loads = [OfferedLoad(load.workload, load) for load in plan.loads]
    predictor = Predictor(loads, limits_of(plan), plan.predictions, plan.seed, plan.assumptions)
    deployments = (
        _predicted(deployment, plan, predictor) if _is_to_predict(deployment) else deployment
        for deployment in plan.deployments
    )
    return plan.with_deployments(deployments)


def _is_to_predict(deployment: Deployment) -> bool:
    return deployment.runs and not deployment.predicted.simulated


def _predicted(deployment: Deployment, plan: Plan, predictor: Predictor) -> Deployment:
    from orchestrator.predict.predictor import Configuration

    levels = {
        load.workload.name: plan.levels_of(load, deployment.id)
        for load in plan.loads_of(deployment.id)
    }
    starts = deployment.predicted.starts
    configuration = Configuration(deployment.settings, deployment.hardware, starts)
    assumed = plan.assumptions.needed_for(plan.engine_facts(deployment))
    predicted = replace(predictor.predict(configuration, levels), starts=starts, assumed=assumed)
    return deployment.model_copy(update={"predicted": predicted})
