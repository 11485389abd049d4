"""How weights are stored, by quantization_config: bits, groups, schemes and parts."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.catalog.models import facts_from_config
from orchestrator.catalog.quantization import (
    SHARES_OF_EXPERTS_ONLY,
    Quantization,
    online_quantization,
    quantization_from_config,
)
from tests.unit.catalog.configs import SMALL_LLAMA, SMALL_MOE


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, None),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 128},
            Quantization("awq", 4 + 20 / 128, group_size=128, scheme="int4 weights"),
        ),
        (
            {"quant_method": "gptq", "bits": 8, "group_size": -1},
            Quantization("gptq", 8, scheme="int8 weights"),
        ),
        ({"quant_method": "fp8"}, Quantization("fp8", 8, scheme="fp8 per tensor")),
        (
            {"quant_method": "fp8", "weight_block_size": [128, 128]},
            Quantization("fp8", 8 + 32 / 16384, block=(128, 128), scheme="fp8 per block"),
        ),
        (
            {"quant_method": "mxfp4"},
            Quantization(
                "mxfp4", 4.25, group_size=32, scheme="mxfp4", shares=SHARES_OF_EXPERTS_ONLY
            ),
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"},
            Quantization("modelopt_fp4", 4.5, group_size=16, scheme="fp4", kv_cache_dtype="fp8"),
        ),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True},
            Quantization("bitsandbytes", 4.13),
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {"weights": {"num_bits": 4, "strategy": "group", "group_size": 128}}
                },
            },
            Quantization("compressed-tensors", 4 + 20 / 128, group_size=128, scheme="int4 weights"),
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {
                        "targets": ["LlamaAttention"],
                        "weights": None,
                        "input_activations": {"num_bits": 8},
                    },
                    "group_1": {"weights": {"num_bits": 4, "type": "int", "strategy": "channel"}},
                },
            },
            Quantization("compressed-tensors", 4, scheme="int4 weights"),
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "kv_cache_scheme": {"num_bits": 8, "type": "float"},
            },
            Quantization("compressed-tensors", 16, kv_cache_dtype="fp8"),
        ),
        ({"quant_method": "something_new"}, Quantization("something_new", 8)),
        ({"quant_method": "fbgemm_fp8"}, Quantization("fbgemm_fp8", 8, scheme="fp8 per channel")),
        # as ModelOpt writes it
        ({"quant_algo": "FP8"}, Quantization("modelopt", 8, scheme="fp8 per tensor")),
        (
            {"quant_method": "modelopt_fp4"},
            Quantization("modelopt_fp4", 4.5, group_size=16, scheme="fp4"),
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"},
            Quantization("modelopt_fp4", 4.5, group_size=16, scheme="fp4 weights"),
        ),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {
                    "weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"},
                    "input_tensors": {"a": 1},
                },
            },
            Quantization("quark", 8, scheme="fp8 per tensor"),
        ),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {
                    "weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}
                },
            },
            Quantization("quark", 4.25, group_size=32, scheme="mxfp4"),
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {
                        "weights": {
                            "num_bits": 4,
                            "type": "float",
                            "strategy": "tensor_group",
                            "group_size": 16,
                        },
                        "input_activations": {"num_bits": 4},
                    }
                },
            },
            Quantization("compressed-tensors", 4.5, group_size=16, scheme="fp4"),
        ),
    ],
)
def test_every_kind_of_quantized_checkpoint(
    config: dict[str, Any] | None, expected: Quantization | None
) -> None:
    assert quantization_from_config(config) == expected


@pytest.mark.parametrize(
    ("named", "shares"),
    [
        ({"modules_to_not_convert": ["lm_head"]}, {"attention": 1, "mlp": 1}),
        ({"modules_to_not_convert": ["self_attn"]}, {"attention": 0, "mlp": 1}),
        (
            {"ignore": ["re:.*self_attn.*", "re:.*mlp\\.(gate|up)_proj"]},
            {"attention": 0, "mlp": 1 / 3},
        ),
        (
            {"exclude_modules": ["model.layers.0*", "model.layers.1.*"]},
            {"attention": 10 / 12, "mlp": 10 / 12},
        ),
        ({"ignore": ["model.language_model.layers.3.mlp*"]}, {"attention": 1, "mlp": 11 / 12}),
        (
            {"modules_to_not_convert": ["gate", "model.layers.{}.input_layernorm"]},
            {"attention": 1, "mlp": 1},
        ),
        ({"ignore": ["re:*("]}, {"attention": 1, "mlp": 1}),  # no pattern at all
    ],
)
def test_modules_left_alone_do_not_count_as_quantized(
    named: dict[str, Any], shares: dict[str, float]
) -> None:
    stored = {"quant_method": "fp8", **named}
    facts = facts_from_config("m", SMALL_LLAMA | {"quantization_config": stored})
    assert facts is not None
    assert facts.quantization is not None
    assert {part: facts.quantization.share(part) for part in shares} == pytest.approx(shares)


@pytest.mark.parametrize("is_nested", [False, True])
def test_a_mixed_checkpoint_has_the_bits_of_each_part(is_nested: bool) -> None:
    layers = {f"model.layers.{layer}.self_attn": {"quant_algo": "FP8"} for layer in range(12)}
    layers |= {f"model.layers.{layer}.mlp": {"quant_algo": "NVFP4"} for layer in range(6)}
    mixed: dict[str, Any] = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    if is_nested:
        mixed = {"quantization": mixed}
    facts = facts_from_config("m", SMALL_LLAMA | {"quantization_config": mixed})
    assert facts is not None
    assert facts.quantization is not None
    assert facts.quantization.bytes_of("attention", 2) == 1
    assert facts.quantization.bytes_of("mlp", 2) == pytest.approx((4.5 / 8 + 2) / 2)
    assert facts.quantization.bytes_of("lm_head", 2) == 2


def test_a_list_of_layers_counts_only_where_algorithms_are_mixed() -> None:
    stored = {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "quantized_layers": {"model.layers.0.mlp": {"quant_algo": "FP8"}},
    }
    assert quantization_from_config(stored) == Quantization(
        "modelopt_fp4", 4.5, group_size=16, scheme="fp4"
    )


def test_a_mixed_checkpoint_may_list_its_head() -> None:
    stored = {
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {"lm_head": {"quant_algo": "FP8"}},
    }
    facts = facts_from_config("m", SMALL_LLAMA | {"quantization_config": stored})
    assert facts is not None
    assert facts.quantization is not None
    assert facts.quantization.bytes_of("lm_head", 2) == 1
    assert facts.quantization.bytes_of("mlp", 2) == 2


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("fp8", Quantization("fp8", 8, scheme="fp8 per tensor")),
        (
            "experts_int8",
            Quantization("experts_int8", 8, scheme="int8 weights", shares=SHARES_OF_EXPERTS_ONLY),
        ),
        ("awq", None),
        (None, None),
    ],
)
def test_some_methods_quantize_while_loading(
    method: str | None, expected: Quantization | None
) -> None:
    assert online_quantization(method) == expected


def test_an_algorithm_of_experts_leaves_the_other_parts_in_eight_bits() -> None:
    stored = {"quant_method": "fp8", "moe_quant_algo": "NVFP4"}
    config = SMALL_LLAMA | {"expert_dtype": "fp4", "quantization_config": stored}
    facts = facts_from_config("m", config)
    assert facts is not None
    assert facts.quantization is not None
    assert facts.quantization.bytes_of("experts", 2) == 4.5 / 8
    assert facts.quantization.bytes_of("attention", 2) == 1


def test_only_experts_of_deepseek_v4_have_four_bits() -> None:
    quantization = quantization_from_config({"quant_method": "fp8", "expert_dtype": "fp4"})
    assert quantization is not None
    assert quantization.bytes_of("experts", 2) == 4.25 / 8
    assert quantization.bytes_of("attention", 2) == 1


@pytest.mark.parametrize("entry", ["model.layers.0.mlp", "layers.0.mlp.*", "re:.*layers\\.0\\.mlp"])
def test_a_module_is_named_by_path_pattern_or_expression(entry: str) -> None:
    stored = {"quant_method": "fp8", "ignore": [entry]}
    facts = facts_from_config("m", SMALL_LLAMA | {"quantization_config": stored})
    assert facts is not None
    assert facts.quantization is not None
    assert facts.quantization.share("mlp") == pytest.approx(11 / 12)


@pytest.mark.parametrize(
    ("entry", "experts", "shared_expert"),
    [
        ("experts", 0, 1),
        ("re:.*mlp\\.experts\\..*", 0, 1),
        ("model.layers.*.mlp.experts", 0, 1),
        ("model.layers.*.shared_experts", 1, 0),
        ("model.layers.*.mlp", 1, 0),  # as of Gemma 4, whose experts are beside its MLP
        ("model.layers.*", 0, 0),
    ],
)
def test_experts_are_left_alone_by_entries_that_mean_them(
    entry: str, experts: int, shared_expert: int
) -> None:
    stored = {"quant_method": "fp8", "ignore": [entry]}
    facts = facts_from_config("m", SMALL_MOE | {"quantization_config": stored})
    assert facts is not None
    assert facts.quantization is not None
    assert facts.quantization.share("experts") == experts
    assert facts.quantization.share("mlp") == shared_expert
