"""The step models of a plan's deployments."""

from __future__ import annotations

from functools import cached_property

from orchestrator.plan.model import Deployment, Plan
from orchestrator.predict.predictor import Configuration, OfferedLoad, Predictor, StepModel
from orchestrator.simulation.point import SimulatedEngines


class EngineModels:
    """Makes the step models of a plan's deployments, as its predictions have them."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    @cached_property
    def _predictor(self) -> Predictor:
        plan = self._plan
        loads = [OfferedLoad(load.workload, load) for load in plan.loads]
        return Predictor(loads, plan.slos, plan.predictions, plan.seed)

    def step_model(self, deployment: Deployment) -> StepModel:
        """Raises NotPredictable."""
        memory = deployment.predicted or {}
        configuration = Configuration(deployment.settings, deployment.hardware, memory)
        return self._predictor.step_model(configuration)


def engines_of(deployment: Deployment, model: StepModel) -> SimulatedEngines:
    """The engines of a deployment with this step model."""
    settings = deployment.settings
    return SimulatedEngines(
        model.rank,
        settings.replicas,
        settings.data_parallel_size,
        settings.enable_prefix_caching is not False,
    )
