"""The step models of a plan's deployments."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from functools import cached_property

from orchestrator.emulator.step_costs import Costs
from orchestrator.plan.model import Deployment, Plan
from orchestrator.predict.predictor import (
    Configuration,
    NotPredictable,
    OfferedLoad,
    Predictor,
    StepModel,
)
from orchestrator.results.ids import digest
from orchestrator.simulation.point import SimulatedEngines

SEARCH_RULES = {"search", "control", "precision"}  # keys of a load


class EngineModels:
    """Makes the step models of a plan's deployments, as its predictions have them."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    @cached_property
    def _predictor(self) -> Predictor:
        plan = self._plan
        loads = [OfferedLoad(load.workload, load) for load in plan.loads]
        return Predictor(loads, plan.slos, plan.predictions, plan.seed, plan.assumptions)

    def step_model(self, deployment: Deployment) -> StepModel:
        """The step model of a deployment. Raises NotPredictable if the model has none for it."""
        starts = deployment.predicted.starts
        configuration = Configuration(deployment.settings, deployment.hardware, starts)
        return self._predictor.step_model(configuration)

    def rules_digest(self, deployment: Deployment) -> str:
        """A hash of what attempts at the same measurements of a deployment depend on: its model and
        the rules of searches.
        """
        model: str | None = None  # stays None if the deployment cannot be simulated
        with suppress(NotPredictable):
            model = model_digest(self.step_model(deployment))
        return digest([model, self._search_rules])

    @cached_property
    def _search_rules(self) -> list[object]:
        """What decides when probes end, as JSON; empty if no capacity is searched."""
        plan = self._plan
        searches: list[object] = [
            load.model_dump(mode="json", include=SEARCH_RULES)
            for load in plan.loads
            if load.searches
        ]
        if not searches:
            return []
        return [*searches, *(slo.model_dump(mode="json") for slo in plan.slos)]


def model_digest(model: StepModel) -> str:
    """A hash of everything in a model that decides on times. Models with equal hashes give equal
    times.
    """
    rank = model.rank
    costs: object = rank.costs
    if not isinstance(costs, Costs):
        costs = type(costs).__name__  # tables: their figures are those of the installed package
    limits = asdict(rank.limits)
    times: list[object] = [rank.request_overhead_s, rank.token_interval_s, rank.jitter]
    if rank.drafts is not None:
        times.append(asdict(rank.drafts))
    return digest([costs, limits, times])


def engines_of(deployment: Deployment, model: StepModel) -> SimulatedEngines:
    """The engines of a deployment with this step model."""
    settings = deployment.settings
    return SimulatedEngines(
        model.rank,
        settings.replicas,
        settings.data_parallel_size,
        settings.enable_prefix_caching is not False,
    )
