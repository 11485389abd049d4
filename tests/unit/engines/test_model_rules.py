"""The method of quantization in effect, and extra_args that change what memory holds."""

from __future__ import annotations

import pytest

from orchestrator.catalog.quantization import Quantization, quantization_from_config
from orchestrator.engines.model_rules import ModelRules
from tests.unit.engines.builders import settings_of

FP8 = quantization_from_config({"quant_method": "fp8"})


@pytest.mark.parametrize(
    ("wanted", "stored", "method"),
    [
        (None, None, ""),
        ("awq", None, "awq"),
        (None, FP8, "fp8"),
        ("humming", FP8, "humming"),
    ],
)
def test_settings_choose_the_method_unless_they_leave_it_open(
    wanted: str | None, stored: Quantization | None, method: str
) -> None:
    assert ModelRules().method(wanted, stored) == method


def test_some_checkpoints_keep_their_own_method() -> None:
    rules = ModelRules(fixed_methods=frozenset({"fp8"}))
    assert rules.method("humming", FP8) == "fp8"


def test_flags_that_place_memory_otherwise_are_found_in_any_spelling() -> None:
    rules = ModelRules(moves_memory=("--cpu-moe",), whole_attention=("--attn-dp-size",))
    settings = settings_of(
        "vllm", extra_args={"--cpu_moe": True, "--attn-dp-size=2": True, "--seed": 3}
    )
    assert rules.memory_overrides(settings) == ["--cpu_moe", "--attn-dp-size=2"]


def test_a_flag_that_is_switched_off_moves_no_memory() -> None:
    rules = ModelRules(moves_memory=("--cpu-moe",))
    assert rules.memory_overrides(settings_of("vllm", extra_args={"--cpu-moe": False})) == []
