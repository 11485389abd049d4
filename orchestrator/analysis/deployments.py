"""Stored deployments: their settings, and what the plan predicted of them, parsed once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.analysis.prediction import NOTHING_PREDICTED, Prediction
from orchestrator.analysis.token_work import work_of_row
from orchestrator.catalog.work import MissingWork, StepWork
from orchestrator.results.ids import model_key
from orchestrator.results.records import DeploymentRow
from orchestrator.results.stored_json import parsed_prediction, parsed_settings


@dataclass(frozen=True, slots=True)
class StoredDeployment:
    """One engine configuration. ``settings``: empty where its row was never stored. ``work``: the
    computation and memory traffic that its tokens need, or why these are not known.
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
    prediction: Prediction
    work: StepWork | MissingWork = MissingWork.MODEL

    @property
    def launched(self) -> bool:
        """Whether its engine was started for the experiment; False for an endpoint."""
        return self.engine != "endpoint"

    @property
    def model_key(self) -> str:
        """A key that all checkpoints of one model share."""
        return model_key(self.model, self.prediction.start.parameters)

    @property
    def is_quantized(self) -> bool:
        """Whether its settings quantize the model, or its checkpoint is a quantized one."""
        return bool(self.quantization or self.prediction.start.checkpoint_quantization)


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
        settings=parsed_settings(row.settings_json),
        prediction=Prediction.from_document(parsed_prediction(row.predicted_json)),
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
        prediction=NOTHING_PREDICTED,
    )
