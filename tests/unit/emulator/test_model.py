"""What one data-parallel rank holds, and the constants it is made of."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.emulator.model import replica
from orchestrator.emulator.profile import Constants
from tests.unit.emulator.builders import IDEAL, a_replica, device, facts, settings


def test_constants_that_are_not_given_are_those_of_the_engine() -> None:
    vllm = replica(settings(engine="vllm"), facts(), device(), Constants())
    sglang = replica(settings(engine="sglang"), facts(), device(), Constants())
    assert vllm.costs != sglang.costs
    assert not vllm.limits.prefill_first
    assert sglang.limits.prefill_first
    own = Constants(sequence_overhead_s=1.0)
    with_own = replica(settings(engine="sglang"), facts(), device(), own)
    assert with_own.costs.sequence_s == 1.0
    assert with_own.costs.weights_s == sglang.costs.weights_s


def test_a_latent_cache_is_not_divided_by_tensor_parallelism() -> None:
    config: dict[str, Any] = {
        "model_type": "deepseek_v2", "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
        "v_head_dim": 128,
    }  # fmt: skip
    alone = a_replica(config=config).estimate.kv_bytes_per_token
    assert alone == (512 + 64) * 2 * 32
    assert a_replica(config=config, tensor_parallel_size=8).estimate.kv_bytes_per_token == alone


def test_an_fp8_cache_holds_twice_the_tokens() -> None:
    assert a_replica(kv_cache_dtype="fp8").limits.kv_tokens == pytest.approx(
        2 * a_replica().limits.kv_tokens, abs=2
    )


def test_the_kv_capacity_is_what_the_user_fixed() -> None:
    assert a_replica(kv_cache_tokens=1234).limits.kv_tokens == 1234
    assert a_replica(kv_cache_memory_bytes=131072 * 1000).limits.kv_tokens == 1000


def test_open_batch_sizes_are_those_of_vllm_on_large_gpus() -> None:
    limits = replica(
        settings(max_num_seqs=None, max_num_batched_tokens=None), facts(), device(), IDEAL
    ).limits
    assert (limits.max_num_batched_tokens, limits.max_num_seqs) == (8192, 1024)
