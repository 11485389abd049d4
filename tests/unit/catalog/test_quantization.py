"""Which quantization needs a checkpoint made for it, engine by engine."""

from __future__ import annotations

import pytest

from orchestrator.catalog.quantization import needs_checkpoint


@pytest.mark.parametrize(
    ("engine", "method", "needed"),
    [
        ("vllm", "awq", True),
        ("vllm", "fp8", False),
        ("vllm", "fp8_per_tensor", False),
        ("sglang", "modelopt_fp8", True),
        ("sglang", "fp8", False),
        ("tgi", "exl2", True),
        ("tgi", "eetq", False),
        ("lmdeploy", "fp8", True),
        ("lmdeploy", "mxfp4", True),
        ("lmdeploy", "hf", False),
        ("lightllm", "vllm-fp8w8a8", False),
        ("transformers", "bnb-4bit", False),
    ],
)
def test_a_method_needs_its_checkpoint_or_quantizes_while_it_loads(engine: str, method: str, needed: bool) -> None:
    assert needs_checkpoint(engine, method) is needed
