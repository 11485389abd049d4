"""What an engine has no kernel for: cut groups of weights, float32, and schemes on a CPU."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.catalog.quantization import Quantization
from orchestrator.engines.model_rules import ModelRules
from orchestrator.plan.kernels import status_of_cut_group
from orchestrator.spec.settings import Hardware

CPU = Hardware(name="cpu")
H100 = Hardware(name="h100", accelerator="H100-80GB", gpus_per_node=8)
EXPERTS = "moe_intermediate_size"


def stored(**fields: Any) -> Quantization:
    return Quantization(**({"method": "fp8", "scheme": "fp8", "bits": 8.0} | fields))


@pytest.mark.parametrize(
    ("rules", "width", "matrices", "hardware", "status"),
    [
        (ModelRules(), 64, EXPERTS, H100, "impossible"),
        (ModelRules(splits_blocks=True), 64, EXPERTS, H100, "risky"),
        (ModelRules(splits_blocks=True), 64, EXPERTS, CPU, "impossible"),
        (ModelRules(splits_blocks=True), 80, EXPERTS, H100, "impossible"),  # 16 inputs a group
        (ModelRules(splits_blocks=True), 64, "intermediate_size", H100, "impossible"),
        (ModelRules(splits_blocks=True), 80, "KV width", H100, "risky"),
    ],
)
def test_ranks_share_a_block_of_fp8_if_the_engine_splits_blocks(
    rules: ModelRules, width: int, matrices: str, hardware: Hardware, status: str
) -> None:
    blocks = stored(block=(128, 128))
    assert status_of_cut_group(rules, blocks, width, hardware, matrices) == status


@pytest.mark.parametrize(
    ("rules", "width", "matrices", "hardware", "status"),
    [
        (ModelRules(), 64, EXPERTS, H100, "risky"),
        (ModelRules(whole_groups=True), 64, EXPERTS, H100, "impossible"),
        (
            ModelRules(whole_groups=True, halved_groups=frozenset({"gptq"})),
            64,
            EXPERTS,
            H100,
            "risky",
        ),
        (
            ModelRules(whole_groups=True, halved_groups=frozenset({"gptq"})),
            48,
            EXPERTS,
            H100,
            "impossible",
        ),
        (
            ModelRules(whole_groups=True, halved_groups=frozenset({"gptq"})),
            64,
            EXPERTS,
            CPU,
            "impossible",
        ),
    ],
)
def test_ranks_share_groups_of_integers_where_the_engine_allows_it(
    rules: ModelRules, width: int, matrices: str, hardware: Hardware, status: str
) -> None:
    groups = stored(method="gptq", scheme="int4", group_size=128)
    assert status_of_cut_group(rules, groups, width, hardware, matrices) == status
