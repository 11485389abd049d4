"""Stored deployments with their settings and predictions as records."""

from __future__ import annotations

from typing import Any

from orchestrator.analysis.deployments import (
    ComparedModel,
    compared_model,
    stored_deployment,
    unknown_deployment,
)
from orchestrator.analysis.prediction import NOTHING_PREDICTED
from orchestrator.results.records import DeploymentRow
from tests.unit.results.builders import deployment_row


def deployment(**row: Any) -> Any:
    return stored_deployment(DeploymentRow(**deployment_row("d0", **row)))


def test_settings_are_those_of_the_row() -> None:
    assert deployment(settings_json='{"engine": "vllm", "seed": 1}').settings == {
        "engine": "vllm",
        "seed": 1,
    }


def test_an_endpoint_was_not_launched() -> None:
    assert deployment(engine="vllm").launched
    assert not deployment(engine="endpoint").launched


def test_checkpoints_with_as_many_parameters_are_one_model() -> None:
    first = deployment(model="some/model", predicted_json='{"parameters": 8000}')
    second = deployment(model="some/model-awq", predicted_json='{"parameters": 8000}')
    assert first.model_key == second.model_key == "8000"
    assert deployment(model="some/model").model_key == "some/model"


def test_a_deployment_is_quantized_by_its_settings_or_its_checkpoint() -> None:
    assert not deployment().is_quantized
    assert deployment(quantization="fp8").is_quantized
    assert deployment(predicted_json='{"checkpoint_quantization": "awq"}').is_quantized


def test_a_compared_model_is_named_by_its_unquantized_checkpoint() -> None:
    quantized = deployment(model="a/m-fp8", quantization="fp8")
    plain = deployment(model="org/m")
    assert compared_model([quantized, plain]) == ComparedModel("org/m", 1)
    assert compared_model([plain, plain]) == ComparedModel("org/m", 0)


def test_without_an_unquantized_checkpoint_the_first_by_name_stands_for_the_model() -> None:
    awq, fp8 = (deployment(model=f"a/m-{kind}", quantization=kind) for kind in ("awq", "fp8"))
    assert compared_model([fp8, awq]) == ComparedModel("a/m-awq", 1)


def test_of_an_unknown_deployment_only_the_id_is_known() -> None:
    unknown = unknown_deployment("d9")
    assert unknown.label == "d9"
    assert unknown.settings == {}
    assert unknown.prediction == NOTHING_PREDICTED
