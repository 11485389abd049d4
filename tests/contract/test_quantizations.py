"""What engines say of ``quantization`` beside a checkpoint's own, held against their own code (quantizations.json)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.catalog.quantization import quantization_from_config
from orchestrator.engines import ENGINES

RECORDED = json.loads(Path(__file__).with_name("quantizations.json").read_text(encoding="utf-8"))
# vLLM refuses them whatever the checkpoint is, which `ModelRules.allowed_by` says; gpt-oss has a flag of its own for it
ELSEWHERE = {("vllm", "fbgemm_fp8", "fbgemm_fp8"), ("vllm", "mxfp4", "humming")}


@pytest.mark.parametrize("engine", RECORDED["asked"])
@pytest.mark.parametrize("name", RECORDED["checkpoints"])
def test_what_an_engine_takes_beside_a_checkpoints_own_method_is_what_is_judged(engine: str, name: str) -> None:
    checkpoint: dict[str, Any] = RECORDED["checkpoints"][name]
    asked, taken = RECORDED["asked"][engine], checkpoint[engine]
    stored, takes = quantization_from_config(checkpoint["config"]), ENGINES[engine].rules.takes
    assert stored and takes
    judged = {method for method in asked if takes(method, stored.method) and (engine, name, method) not in ELSEWHERE}
    on_gpus = set(checkpoint.get("on_gpus", {}).get(engine, ()))  # with kernels that a CPU does not have
    assert judged - on_gpus == set(asked if taken == "all" else taken)
    assert on_gpus <= judged
