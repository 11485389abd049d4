"""Stored deployments: their settings, and what the plan predicted of them, parsed once."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.analysis.token_work import work_of_row
from orchestrator.catalog.work import MissingWork, StepWork
from orchestrator.results.ids import model_key
from orchestrator.results.records import DeploymentRow
from orchestrator.spec.assumptions import NOTHING_ASSUMED, Assumptions

_MEMORY_FIGURES = (
    "weight_bytes",
    "kv_cache_memory_bytes",
    "kv_cache_tokens",
    "max_concurrency",
    "max_model_len",
)


@dataclass(frozen=True, slots=True)
class PredictedLevel:
    """What is predicted at a load level: median latencies in ms, output tokens/s. None: unknown."""

    workload: str
    control: str
    level: float
    ttft_ms: float | None
    tpot_ms: float | None
    output_throughput: float | None


@dataclass(frozen=True, slots=True)
class ErrorFactors:
    """The factors within which nine in ten predictions are right.

    ``ttft``: of TTFT. ``tpot``: of TPOT, and taken for every other figure, too, throughput among
    them. ``source``: what was measured to find them.
    """

    ttft: float
    tpot: float
    source: str = ""


@dataclass(frozen=True, slots=True)
class PredictedCapacity:
    """The highest load that is predicted to hold, and the output tokens/s there; 0: none holds.

    ``interval_per_gpu``: the output tokens/s per GPU between which nine in ten capacities lie.
    ``usd_per_million_tokens``: of output; None without a price.
    """

    control: str
    level: float
    output_throughput: float
    output_throughput_per_gpu: float
    interval_per_gpu: tuple[float, float]
    usd_per_million_tokens: float | None

    def document(self) -> dict[str, Any]:
        """The capacity as plan.json and ``predicted_json`` hold it."""
        return asdict(self) | {"interval_per_gpu": list(self.interval_per_gpu)}


def usd_per_million_tokens(usd_per_hour: float | None, tokens_per_s: float) -> float | None:
    """What a million tokens cost; None without a price or without tokens."""
    if usd_per_hour is None or not tokens_per_s:
        return None
    return usd_per_hour / tokens_per_s / 3600 * 1e6


@dataclass(frozen=True, slots=True)
class StoredPrediction:
    """What the plan predicts of a deployment.

    ``parameters``: of the model. ``memory``: figures of the engine's start, as
    ``plan/feasibility.py`` names them. ``capacities``: by SLO, then by workload.
    ``assumed``: what a simulation assumed of the deployment and of its loads.
    """

    parameters: int | None
    checkpoint_quantization: str | None
    memory: Mapping[str, float]
    levels: tuple[PredictedLevel, ...]
    error_factors: ErrorFactors | None
    capacities: Mapping[str, Mapping[str, PredictedCapacity]]
    simulated: bool = False  # all but memory comes from `orchestrator simulate`
    assumed: Assumptions = NOTHING_ASSUMED


@dataclass(frozen=True, slots=True)
class StoredDeployment:
    """One engine configuration. ``settings``: empty where its row was never stored. ``work``: what
    its tokens need, or why that is not known.
    """

    deployment_id: str
    label: str
    engine: str
    engine_version: str | None
    model: str
    hardware: str
    accelerator: str
    devices: int
    quantization: str | None
    kv_cache_dtype: str | None
    usd_per_hour: float | None
    settings: Mapping[str, object]
    prediction: StoredPrediction
    work: StepWork | MissingWork = MissingWork.MODEL

    @property
    def launched(self) -> bool:
        """Whether its engine was started for the experiment; False for an endpoint."""
        return self.engine != "endpoint"

    @property
    def model_key(self) -> str:
        """A key that all checkpoints of one model share."""
        return model_key(self.model, {"parameters": self.prediction.parameters})

    @property
    def is_quantized(self) -> bool:
        """Whether its settings quantize the model, or its checkpoint is a quantized one."""
        return bool(self.quantization or self.prediction.checkpoint_quantization)


@dataclass(frozen=True, slots=True)
class ComparedModel:
    """One model, in all the checkpoints that are compared.

    ``checkpoint``: an unquantized one if there is one. ``other_checkpoints``: how many others.
    """

    checkpoint: str
    other_checkpoints: int = 0


def compared_model(deployments: Sequence[StoredDeployment]) -> ComparedModel:
    """The model of these deployments, which serve checkpoints of one model."""
    names = {deployment.model for deployment in deployments}
    unquantized = {deployment.model for deployment in deployments if not deployment.is_quantized}
    return ComparedModel(min(unquantized or names), len(names) - 1)


def stored_deployment(row: DeploymentRow) -> StoredDeployment:
    return StoredDeployment(
        deployment_id=row.deployment_id,
        label=row.label,
        engine=row.engine,
        engine_version=row.engine_version,
        model=row.model,
        hardware=row.hardware,
        accelerator=row.accelerator,
        devices=row.devices,
        quantization=row.quantization,
        kv_cache_dtype=row.kv_cache_dtype,
        usd_per_hour=row.usd_per_hour,
        settings=json.loads(row.settings_json),
        prediction=prediction_of(json.loads(row.predicted_json or "{}")),
        work=work_of_row(row.work_json, row.settings_json, row.hardware, row.accelerator),
    )


def unknown_deployment(deployment_id: str) -> StoredDeployment:
    """Stands for a deployment of which only the id is stored."""
    return StoredDeployment(
        deployment_id=deployment_id,
        label=deployment_id,
        engine="",
        engine_version=None,
        model="",
        hardware="",
        accelerator="",
        devices=0,
        quantization=None,
        kv_cache_dtype=None,
        usd_per_hour=None,
        settings={},
        prediction=prediction_of({}),
    )


def prediction_of(predicted: Mapping[str, Any]) -> StoredPrediction:
    """Parses a prediction. ``predicted``: as plan.json and ``predicted_json`` hold it."""
    capacities = predicted.get("capacity", {})
    return StoredPrediction(
        parameters=predicted.get("parameters"),
        checkpoint_quantization=predicted.get("checkpoint_quantization"),
        memory={name: predicted[name] for name in _MEMORY_FIGURES if name in predicted},
        levels=tuple(_level(level) for level in predicted.get("levels", ())),
        error_factors=_error_factors(predicted.get("error", {})),
        capacities={
            slo: {
                workload: _capacity(capacity)
                for workload, capacity in by_workload.items()
                if capacity
            }
            for slo, by_workload in capacities.items()
        },
        simulated="simulated" in predicted,
        assumed=Assumptions.model_validate(predicted.get("assumed", {})),
    )


def _error_factors(error: Mapping[str, Any]) -> ErrorFactors | None:
    factors = error.get("within")
    if not factors:
        return None
    return ErrorFactors(factors["ttft"], factors["tpot"], error.get("source", ""))


def _level(level: Mapping[str, Any]) -> PredictedLevel:
    return PredictedLevel(
        workload=level["workload"],
        control=level["control"],
        level=float(level["level"]),
        ttft_ms=level["ttft_ms"],
        tpot_ms=level["tpot_ms"],
        output_throughput=level["output_throughput"],
    )


def _capacity(capacity: Mapping[str, Any]) -> PredictedCapacity:
    lowest, highest = capacity["interval_per_gpu"]
    return PredictedCapacity(
        control=capacity["control"],
        level=capacity["level"],
        output_throughput=capacity["output_throughput"],
        output_throughput_per_gpu=capacity["output_throughput_per_gpu"],
        interval_per_gpu=(lowest, highest),
        usd_per_million_tokens=capacity["usd_per_million_tokens"],
    )
