"""Bytes of weights and KV cache on one rank."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.catalog import memory
from orchestrator.catalog.accelerators import find
from orchestrator.catalog.models import ModelFacts, facts_from_config, known_configs
from orchestrator.engines.registry import ENGINES
from orchestrator.spec.settings import EngineSettings

LLAMA_70B, DEEPSEEK, GEMMA_3 = (
    "meta-llama/Llama-3.3-70B-Instruct",
    "deepseek-ai/DeepSeek-V3",
    "google/gemma-3-1b-it",
)


def facts(name: str, **changes: Any) -> ModelFacts:
    found = facts_from_config(name, known_configs()[name] | changes)
    assert found is not None
    return found


def settings(**values: Any) -> EngineSettings:
    return EngineSettings(**{"engine": "vllm", "model": "m"} | values)


def test_a_token_takes_320_kib_in_a_70b_and_69_in_deepseek_v3() -> None:
    assert memory.kv_bytes_per_token(facts(LLAMA_70B), settings(), 1) == 327_680
    assert memory.kv_bytes_per_token(facts(DEEPSEEK), settings(tensor_parallel_size=8), 1) == 70_272


@pytest.mark.parametrize(("tensor", "share"), [(1, 8), (2, 4), (8, 1), (16, 1), (64, 1)])
def test_a_rank_holds_its_kv_heads_and_at_least_one(tensor: int, share: int) -> None:
    one_head = 327_680 / 8
    assert (
        memory.kv_bytes_per_token(facts(LLAMA_70B), settings(tensor_parallel_size=tensor), 1)
        == share * one_head
    )


def test_pipeline_stages_hold_the_cache_of_their_own_layers() -> None:
    assert memory.kv_bytes_per_token(facts(LLAMA_70B), settings(), 4) == 327_680 / 4
    assert memory.kv_bytes_per_token(facts(LLAMA_70B), settings(), 3) == 327_680 / 80 * 27


@pytest.mark.parametrize(
    ("dtype", "element"),
    [
        (None, 2),
        ("auto", 2),
        ("fp8", 1),
        ("fp8_e4m3", 1),
        ("int8_per_token_head", 1),
        ("nvfp4", 0.5625),
        ("bfloat16", 2),
        ("float32", 4),
    ],
)
def test_bytes_of_one_kv_element(dtype: str | None, element: float) -> None:
    assert memory.kv_element_bytes(dtype, 2) == element


def test_sliding_layers_hold_a_window_and_one_step() -> None:
    gemma = facts(GEMMA_3)
    per_layer = 2 * 1 * 256 * 2
    held = memory.kv_bytes_per_sequence(gemma, settings(), 32768, batched_tokens=2048, block=16)
    window_blocks = -(-(512 - 1 + 2048) // 16) + 1
    assert held == per_layer * (4 * 32768 + 22 * window_blocks * 16)


def test_a_sequence_takes_whole_blocks() -> None:
    one = memory.kv_bytes_per_sequence(facts(LLAMA_70B), settings(), 17, 2048, block=16)
    assert one == 32 * 327_680


@given(layers=st.integers(1, 130), stages=st.integers(1, 16))
def test_every_layer_has_a_stage_and_stages_differ_by_one_at_most(layers: int, stages: int) -> None:
    counts = memory.layers_per_stage(layers, stages)
    assert (len(counts), sum(counts)) == (stages, layers)
    assert max(counts) - min(counts) <= 1


def test_left_over_layers_go_to_the_middle_stages() -> None:
    assert memory.layers_per_stage(30, 4) == [7, 8, 8, 7]


def test_weights_in_memory_by_dtype_and_quantization() -> None:
    plain = memory.weights(facts(LLAMA_70B))
    assert plain.total == 2 * facts(LLAMA_70B).parameters.total
    assert memory.weights(facts(LLAMA_70B), "float32").total == 2 * plain.total
    fp8 = memory.weights(facts(LLAMA_70B), quantization="fp8_per_tensor")
    assert fp8.embedding == plain.embedding  # embedding and lm_head stay as they are
    assert fp8.total == pytest.approx(72.7e9, rel=0.01)
    # its files: 65.25 GB
    assert memory.weights(facts("openai/gpt-oss-120b")).total == pytest.approx(65.25e9, rel=0.01)
    assert memory.weights(facts(DEEPSEEK)).total == pytest.approx(673e9, rel=0.01)


def test_tensor_parallel_ranks_hold_repeated_heads_norms_and_latents_whole() -> None:
    model, parts = facts(LLAMA_70B), memory.weights(facts(LLAMA_70B))
    on_16 = memory.weight_bytes_per_rank(model, parts, settings(tensor_parallel_size=16))
    assert on_16 == pytest.approx(
        (parts.embedding + parts.layers + parts.lm_head) / 16
        + parts.kv_projection / 8
        + parts.replicated
    )
    latents = memory.weights(facts(DEEPSEEK)).replicated
    assert latents == pytest.approx(
        61 * 7168 * (1536 + 512 + 64) + 2 * 58 * 256 * 7168, rel=0.01
    )  # 8-bit, routers 16-bit


def test_the_fullest_stage_counts() -> None:
    model, parts = facts(LLAMA_70B), memory.weights(facts(LLAMA_70B))
    inner = parts.layers + parts.kv_projection + parts.replicated
    three = memory.weight_bytes_per_rank(model, parts, settings(pipeline_parallel_size=3))
    # stages of 26, 27 and 27 layers: 27, 27 and 26
    assert three == pytest.approx(inner * 27 / 80 + parts.embedding)
    assert memory.layers_per_stage(80, 3) == [27, 27, 26]


def test_experts_lie_in_the_later_stages_where_the_first_layers_are_dense() -> None:
    model, parts = facts(DEEPSEEK), memory.weights(facts(DEEPSEEK))
    two = memory.weight_bytes_per_rank(model, parts, settings(pipeline_parallel_size=2))
    inner = parts.layers + parts.kv_projection + parts.replicated
    first, last = (
        inner * 31 / 61 + parts.experts * 28 / 58,
        inner * 30 / 61 + parts.experts * 30 / 58 + parts.lm_head,
    )
    assert first + parts.embedding < last
    assert two == pytest.approx(last, rel=1e-3)


def test_embedding_and_head_are_padded_to_64_tokens() -> None:
    even, odd = facts(LLAMA_70B), facts(LLAMA_70B, vocab_size=128256 - 63)
    held = [
        memory.weight_bytes_per_rank(one, memory.weights(one), settings()) for one in (even, odd)
    ]
    assert held[0] == held[1]


def test_experts_are_spread_over_expert_parallelism() -> None:
    model, parts = facts(DEEPSEEK), memory.weights(facts(DEEPSEEK))
    tensor = memory.weight_bytes_per_rank(model, parts, settings(tensor_parallel_size=8))
    wide = settings(tensor_parallel_size=8, data_parallel_size=4, enable_expert_parallel=True)
    assert tensor - memory.weight_bytes_per_rank(model, parts, wide) == pytest.approx(
        parts.experts * (1 / 8 - 1 / 32)
    )


@pytest.mark.parametrize(
    ("engine", "expert_parallel", "ranks", "tokens"),
    [
        ("vllm", False, 8, 32),
        ("vllm", True, 8, 32),
        ("sglang", True, 8, 32),
        ("sglang", False, 2, 8),
    ],
)
def test_a_rank_reads_the_experts_of_all_tokens_that_reach_it(
    engine: str, expert_parallel: bool, ranks: int, tokens: int
) -> None:
    """gpt-oss-120b with TP 2 and DP 4, 8 tokens on each data-parallel rank: 4 of 128 experts for
    each token, so 31 of 32 experts are not read by one token. In vLLM the 8 GPUs divide each expert
    (or, expert parallel, the experts), and the 32 tokens of all ranks choose among them. Without
    expert parallelism, a rank of SGLang is a replica: 2 GPUs divide each expert for 8 tokens.
    """
    model = facts("openai/gpt-oss-120b")
    step = memory.step_bytes(
        model,
        settings(
            engine=engine,
            tensor_parallel_size=2,
            data_parallel_size=4,
            enable_expert_parallel=expert_parallel,
        ),
    )
    assert step.experts == pytest.approx(memory.weights(model).experts / ranks)
    assert step.routing.expected_share(8) == pytest.approx(1 - (31 / 32) ** tokens)
    assert step.routing.most_share(8) == pytest.approx(min(1, tokens * 4 / 128))


def test_engines_of_whole_replicas_are_those_of_the_rules_of_feasibility() -> None:
    engines = {name for name in ENGINES if ENGINES[name].rules.whole_replicas}
    assert engines == memory.WHOLE_REPLICAS


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({}, "bfloat16"),
        ({"dtype": "float32"}, "float32"),
        ({"quantization": "fp8_per_tensor"}, "fp8"),
        ({"quantization": "awq"}, "bfloat16"),
        ({"quantization": "int8"}, "int8"),
        ({"quantization": "int8_per_channel_weight_only"}, "bfloat16"),
        # of experts alone: nothing of this model is quantized
        ({"quantization": "nvfp4_per_token"}, "bfloat16"),
        ({"quantization": "experts_int8"}, "bfloat16"),
    ],
)
def test_the_peak_follows_the_arithmetic_not_the_storage(values: dict[str, Any], kind: str) -> None:
    assert memory.compute_type(facts(LLAMA_70B), settings(**values)) == kind


@pytest.mark.parametrize(
    ("weights", "activations", "kind"),
    [
        ({"num_bits": 8, "type": "int", "strategy": "channel"}, {"num_bits": 8}, "int8"),
        ({"num_bits": 8, "type": "float", "strategy": "channel"}, {"num_bits": 8}, "fp8"),
        ({"num_bits": 8, "type": "float", "strategy": "channel"}, None, "bfloat16"),
        ({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}, None, "bfloat16"),
    ],
)
def test_the_peak_of_compressed_tensors_is_that_of_weights_and_activations(
    weights: dict[str, Any], activations: dict[str, Any] | None, kind: str
) -> None:
    scheme = {"group_0": {"weights": weights, "input_activations": activations}}
    stored = {"quant_method": "compressed-tensors", "config_groups": scheme}
    assert memory.compute_type(facts(LLAMA_70B, quantization_config=stored), settings()) == kind
    # the checkpoint's
    assert memory.compute_type(facts(DEEPSEEK), settings(quantization="nvfp4_per_token")) == "fp8"


def test_a_prediction_of_what_an_engine_will_report() -> None:
    small = memory.estimate_memory(
        facts("meta-llama/Llama-3.1-8B-Instruct"), settings(max_model_len=8192), find("H100-80GB")
    )
    assert small.kv_cache_tokens == pytest.approx(456_000, rel=0.02)
    assert small.max_concurrency == pytest.approx(55.7, rel=0.02)
    nothing = memory.estimate_memory(facts(LLAMA_70B), settings(max_model_len=8192), None)
    assert nothing.kv_cache_tokens is None
    assert nothing.max_concurrency is None


def test_a_share_of_free_memory_leaves_out_weights() -> None:
    """A tenth less of the 64 GiB beside the weights of an 8B, not of all 80."""

    def room(share: float, share_of: memory.ShareOf) -> float:
        given = settings(max_model_len=8192, gpu_memory_utilization=share)
        found = memory.estimate_memory(
            facts("meta-llama/Llama-3.1-8B-Instruct"), given, find("H100-80GB"), share_of
        )
        return (found.kv_cache_memory_bytes or 0) / memory.GIB

    assert room(0.9, "free") == pytest.approx(0.9 * room(1.0, "all"))
    assert room(1.0, "free") - room(0.9, "free") == pytest.approx(6.2, abs=0.2)
    assert room(0.9, "static") == pytest.approx(79.65 * 0.9 - 14.96, abs=0.1)
