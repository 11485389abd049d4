"""The step-time model: what must follow from bandwidth, compute, parallelism and quantization."""

from __future__ import annotations

import math
from typing import Any

import pytest

from orchestrator.catalog.models import facts_from_config, known_configs
from orchestrator.catalog.work import StepWork, step_work
from orchestrator.emulator.model import replica
from orchestrator.emulator.step_costs import Chunk, Costs
from tests.unit.emulator.builders import IDEAL, a_replica, device, facts, settings


def decode_s(costs: Costs, sequences: int, context: int) -> float:
    return costs.mixed(sequences, context, 0.0, [])


def step_s(**changes: Any) -> float:
    """What a step costs in any case, with one constant that is not ideal."""
    constants, settings_of = changes.pop("constants"), changes
    return replica(
        settings(**settings_of), facts(), device(), IDEAL.model_copy(update=constants)
    ).costs.step_s


def test_a_small_decode_takes_the_time_to_read_the_weights_once() -> None:
    model = facts()
    read = 2 * (model.parameters.total - model.parameters.embedding)
    costs = a_replica().costs
    # A kernel takes a little more than the longer of reading and computing where both are long.
    assert costs.weights_s == pytest.approx(read / 1e12, rel=1e-6)
    assert decode_s(costs, 1, 0) == pytest.approx(costs.weights_s + costs.traffic_s, rel=1e-3)


def test_context_adds_the_time_to_read_its_keys_and_values() -> None:
    costs = a_replica().costs
    kv_bytes = 2 * 8 * 128 * 2 * 32
    assert decode_s(costs, 1, 1000) - decode_s(costs, 1, 0) == pytest.approx(1000 * kv_bytes / 1e12)


def test_a_long_prefill_takes_the_time_of_its_flops_and_its_activations() -> None:
    model, costs = facts(), a_replica().costs
    head = model.shape.vocab_size * model.shape.hidden_size
    products = math.hypot(
        costs.weights_s, (2 * (model.active_parameters - head) * 2048 + 2 * head) / 1e14
    )
    attention = 4 * 32 * 4096 * 2048 * 1024 / 1e14
    activations = 2048 * 32 * 2 * (8 * 4096 + 3 * 14336) / 1e12
    assert costs.mixed(0, 0, 0.0, [Chunk(0, 2048)]) == pytest.approx(
        products + attention + activations, rel=1e-6
    )


def test_tensor_parallelism_divides_the_work_and_adds_communication() -> None:
    alone, divided = a_replica().costs, a_replica(tensor_parallel_size=2).costs
    assert divided.token_s == pytest.approx(alone.token_s / 2)
    assert divided.weights_s == pytest.approx(
        alone.weights_s / 2, rel=0.01
    )  # norms are on every rank
    # what goes through norms is on every rank, too
    assert alone.traffic_s > divided.traffic_s > alone.traffic_s / 2
    slow = replica(settings(tensor_parallel_size=2), facts(), device(link_bytes_s=1e9), IDEAL).costs
    assert slow.traffic_s - divided.traffic_s == pytest.approx(64 * 4096 * 2 / 1e9, rel=1e-4)
    latency = {"collective_latency_s": 3e-6, "collective_rank_s": 1e-6}
    assert step_s(constants=latency) == 0
    assert step_s(constants=latency, tensor_parallel_size=8) == pytest.approx(64 * 11e-6)


def test_every_layer_has_a_floor_that_fp8_blocks_and_experts_raise() -> None:
    floor = {"layer_overhead_s": 1e-5, "block_fp8_layer_overhead_s": 2e-5}
    assert step_s(constants=floor) == pytest.approx(32e-5)
    assert step_s(constants=floor, quantization="fp8_per_block") == pytest.approx(96e-5)
    mixtral = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    constants = IDEAL.model_copy(update={"expert_layer_overhead_s": 1e-5})
    assert a_replica(constants, config=mixtral).costs.step_s == pytest.approx(32e-5)


def test_attention_computes_in_16_bit_whatever_the_weights_are() -> None:
    assert a_replica(quantization="fp8_per_tensor").costs.attend_s == a_replica().costs.attend_s


def test_a_latent_is_read_by_decodes_and_expanded_by_prefills() -> None:
    latent: dict[str, Any] = {
        "model_type": "deepseek_v2", "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
        "v_head_dim": 128, "num_attention_heads": 128,
    }  # fmt: skip
    costs = a_replica(config=latent).costs
    assert costs.attend_s == pytest.approx(2 * 128 * (128 + 64 + 128) * 32 / 1e14)
    # 128 heads: longer than reading
    assert costs.context_s == pytest.approx(2 * 128 * (512 + 64 + 512) * 32 / 1e14)


def test_experts_that_data_parallel_ranks_share_are_read_for_all_their_tokens() -> None:
    config = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    one_rank = a_replica(config=config).costs
    divided = a_replica(config=config, data_parallel_size=4).costs
    spread = a_replica(config=config, data_parallel_size=4, enable_expert_parallel=True).costs
    for shared in (divided, spread):
        assert shared.routing.expected_share(1) == one_rank.routing.expected_share(4)
        assert shared.experts_s == pytest.approx(one_rank.experts_s / 4)
    assert spread.traffic_s > one_rank.traffic_s  # their way there and back


def test_pipeline_parallelism_does_not_speed_up_one_request_but_a_batch() -> None:
    alone, divided = a_replica().costs, a_replica(pipeline_parallel_size=2).costs
    assert decode_s(divided, 1, 1000) == pytest.approx(decode_s(alone, 1, 1000))
    many = 2000
    assert decode_s(divided, many, 10) == pytest.approx(decode_s(alone, many, 10) / 2, rel=0.01)


def test_kv_heads_beyond_their_number_are_replicated_not_divided() -> None:
    eight, sixteen = a_replica(tensor_parallel_size=8), a_replica(tensor_parallel_size=16)
    assert sixteen.estimate.kv_bytes_per_token == eight.estimate.kv_bytes_per_token
    assert eight.estimate.kv_bytes_per_token == a_replica().estimate.kv_bytes_per_token / 8


def test_fp8_weights_halve_the_reading_and_double_the_peak() -> None:
    plain, fp8 = a_replica(), a_replica(quantization="fp8_per_tensor")
    assert fp8.costs.token_s == pytest.approx(plain.costs.token_s / 2)
    head = 128256 * 4096 * 2 / 1e12
    assert fp8.costs.weights_s - head == pytest.approx((plain.costs.weights_s - head) / 2, rel=0.01)
    assert fp8.limits.kv_tokens > plain.limits.kv_tokens


def test_a_step_reads_the_expected_number_of_distinct_experts() -> None:
    costs = a_replica(
        config={"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    ).costs
    assert costs.routing.expected_share(1) == pytest.approx(2 / 8)
    assert costs.routing.expected_share(4) == pytest.approx(1 - 0.75**4)
    assert costs.routing.expected_share(1000) == pytest.approx(1)


def test_sliding_layers_read_at_most_a_window() -> None:
    costs = a_replica(config={"model_type": "mistral", "sliding_window": 128}).costs
    assert costs.context_s == costs.attend_s == 0
    assert costs.mixed(0, 0, 0.0, [Chunk(4000, 1)]) == pytest.approx(
        costs.mixed(0, 0, 0.0, [Chunk(128, 1)]), rel=0.01
    )


def test_eager_mode_costs_time_in_every_layer() -> None:
    assert step_s(constants={"eager_layer_overhead_s": 6e-5}, enforce_eager=True) == pytest.approx(
        32 * 6e-5
    )


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("expert_parallel", [False, True])
def test_a_prediction_reads_the_bytes_that_measured_mbu_counts(
    engine: str, expert_parallel: bool
) -> None:
    model = facts_from_config("openai/gpt-oss-120b", known_configs()["openai/gpt-oss-120b"])
    assert model is not None
    described = settings(
        engine=engine,
        tensor_parallel_size=2,
        data_parallel_size=4,
        enable_expert_parallel=expert_parallel,
    )
    costs = replica(described, model, device(), IDEAL).costs
    work = step_work(model, described, device())
    assert isinstance(costs, Costs)
    assert isinstance(work, StepWork)
    assert costs.experts_s * 1e12 == pytest.approx(work.step.experts)
    assert costs.weights_s * 1e12 == pytest.approx(work.step.weights)
    assert costs.routing == work.step.routing
