"""What engines say of ``quantization`` beside a checkpoint's own, held against their own code
(quantizations.json).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.catalog.quantization import quantization_from_config
from orchestrator.engines.registry import ENGINES

RECORDED = json.loads(Path(__file__).with_name("quantizations.json").read_text(encoding="utf-8"))
# vLLM refuses them whatever the checkpoint is, which `ModelRules.allowed_by` says; gpt-oss has a
# flag of its own for it
ELSEWHERE = {("vllm", "fbgemm_fp8", "fbgemm_fp8"), ("vllm", "mxfp4", "humming")}


@pytest.mark.parametrize("engine", RECORDED["asked"])
@pytest.mark.parametrize("name", RECORDED["checkpoints"])
def test_what_an_engine_takes_beside_a_checkpoints_own_method_is_what_is_judged(
    engine: str, name: str
) -> None:
    checkpoint: dict[str, Any] = RECORDED["checkpoints"][name]
    asked, taken = RECORDED["asked"][engine], checkpoint[engine]
    stored, takes = (
        quantization_from_config(checkpoint["config"]),
        ENGINES[engine].rules.accepts_method,
    )
    assert stored and takes
    judged = {
        method
        for method in asked
        if takes(method, stored.method) and (engine, name, method) not in ELSEWHERE
    }
    # with kernels that a CPU does not have
    on_gpus = set(checkpoint.get("on_gpus", {}).get(engine, ()))
    assert judged - on_gpus == set(asked if taken == "all" else taken)
    assert on_gpus <= judged


@pytest.mark.parametrize(
    ("engine", "name", "asked", "effective"),
    [
        ("vllm", "mxfp4", "nvfp4_per_token", "mxfp4"),
        ("vllm", "awq", "awq_marlin", "awq_marlin"),
        ("sglang", "modelopt-fp8", "mxfp8", "modelopt"),
        ("sglang", "fp8", "nvfp4_online", "nvfp4_online"),
        ("sglang", "fp8", None, "fp8"),
    ],
)
def test_the_method_in_effect_is_the_checkpoints_where_the_engine_keeps_it(
    engine: str, name: str, asked: str | None, effective: str
) -> None:
    stored = quantization_from_config(RECORDED["checkpoints"][name]["config"])
    assert ENGINES[engine].rules.method(asked, stored) == effective
