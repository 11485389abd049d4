"""What a plan predicts of a deployment, as records and as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.analysis.prediction import (
    NOTHING_PREDICTED,
    ErrorFactors,
    PredictedStart,
    Prediction,
)

CAPACITY = {
    "control": "request_rate",
    "level": 24,
    "output_throughput": 192.0,
    "output_throughput_per_gpu": 96.0,
    "interval_per_gpu": [80.0, 120.0],
    "usd_per_million_tokens": None,
}
LEVEL = {
    "workload": "chat",
    "control": "concurrency",
    "level": 4,
    "ttft_ms": 40.0,
    "tpot_ms": None,
    "output_throughput": 400.0,
}
ERROR = {
    "ttft": 0.5,
    "tpot": 0.1,
    "source": "x",
    "within": {"ttft": 2.7, "tpot": 1.25},
    "counted": True,
}
START = {
    "weight_bytes": 10,
    "kv_bytes_per_token": None,
    "max_model_len": 2048,
    "max_num_batched_tokens": 512,
    "max_num_seqs": 8,
    "kv_cache_memory_bytes": None,
    "kv_cache_tokens": None,
}
UNDER_LOAD = {"levels": [LEVEL], "capacity": {"interactive": {"chat": CAPACITY}}, "error": ERROR}


@pytest.mark.parametrize(
    "document",
    [
        {},
        START | {"max_concurrency": 4.0, "parameters": 8000, "checkpoint_quantization": "awq"},
        {f"prefill.{name}": value for name, value in START.items()}
        | {f"decode.{name}": value for name, value in START.items()},
        START | UNDER_LOAD | {"no_row": "no row for TP=4", "assumed": {"drafts_accepted": 0.5}},
        START | {"simulated": "/results"} | UNDER_LOAD,
        START | {"not_predicted": "why", "error": ERROR},
        {"levels": [], "capacity": {"interactive": {}}, "error": ERROR},
    ],
)
def test_a_prediction_is_written_as_it_was_read(document: dict[str, Any]) -> None:
    prediction = Prediction.from_document(document)
    assert json.dumps(prediction.document()) == json.dumps(document)


def test_levels_capacities_and_errors_are_records() -> None:
    prediction = Prediction.from_document(START | UNDER_LOAD)
    assert prediction.start.weight_bytes == 10
    assert prediction.levels[0].level == 4.0
    assert prediction.levels[0].tpot_ms is None
    assert prediction.error_factors == ErrorFactors(ttft=2.7, tpot=1.25, source="x")
    capacity = prediction.capacity("interactive", "chat")
    assert capacity is not None
    assert capacity.interval_per_gpu == (80.0, 120.0)
    assert prediction.capacity("interactive", "batch") is None


def test_figures_of_roles_are_not_those_of_a_deployment_without_roles() -> None:
    prediction = Prediction.from_document({"decode.parameters": 8000})
    assert prediction.starts == {"decode": PredictedStart(parameters=8000)}
    assert prediction.start.parameters is None


def test_a_plan_that_predicts_no_load_has_no_levels() -> None:
    prediction = Prediction.from_document({"weight_bytes": 10, "not_predicted": "why"})
    assert prediction.levels == ()
    assert prediction.error_factors is None


def test_an_empty_document_predicts_nothing() -> None:
    assert Prediction.from_document({}) == NOTHING_PREDICTED


def test_an_error_without_factors_is_not_known() -> None:
    early = Prediction.from_document({"error": {"ttft": 0.2, "tpot": 0.1, "source": "points"}})
    assert early.error is None
