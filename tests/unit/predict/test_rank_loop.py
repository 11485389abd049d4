"""The fast loop gives the times of ``Batch`` to the last digit, or gives up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from orchestrator.emulator.batch import Batch
from orchestrator.emulator.model import Replica
from orchestrator.emulator.step_costs import Costs
from orchestrator.predict.rank_loop import is_covered, serve
from tests.unit.emulator.builders import IDEAL, a_replica

REAL = IDEAL.model_copy(
    update={"step_overhead_s": 1e-3, "sequence_overhead_s": 1e-5, "token_interval_s": 15e-6}
    | {"request_overhead_s": 0.02, "layer_overhead_s": 3e-5, "prefill_layer_overhead_s": 1e-4}
)
MOE = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 1024,
    "model_type": "qwen3_moe",
}
CASES: dict[str, tuple[dict[str, Any], float]] = {
    "idle": ({}, 2.0),
    "busy": ({}, 60.0),
    "one slot": ({"max_num_seqs": 1}, 5.0),
    "small batches": ({"max_num_batched_tokens": 128}, 20.0),
    "whole prompts": ({"enable_chunked_prefill": False, "max_num_batched_tokens": 4096}, 40.0),
    "stages": ({"pipeline_parallel_size": 4}, 30.0),
    "all at once": ({}, np.inf),
}


def load(rate: float, seed: int = 3, count: int = 300) -> tuple[list[float], list[int], list[int]]:
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(1 / rate, count) if rate < np.inf else np.zeros(count)
    outputs = rng.integers(1, 120, count)
    return np.cumsum(gaps).tolist(), rng.integers(1, 600, count).tolist(), outputs.tolist()


def by_batch(
    model: Replica, seed: int, requests: tuple[list[float], list[int], list[int]]
) -> list[tuple[float, float, float]]:
    batch = Batch(model, seed)
    sequences = [batch.submit(*request) for request in zip(*requests, strict=True)]
    while not batch.idle:
        batch.advance()
    return [(one.scheduled_s, one.first_token_s, one.last_token_s) for one in sequences]


def both_agree(model: Replica, requests: tuple[list[float], list[int], list[int]]) -> None:
    assert is_covered(model)
    times = serve(model, 7, *requests)
    assert times is not None
    columns = (times.scheduled_s, times.first_token_s, times.last_token_s)
    assert list(zip(*columns, strict=True)) == by_batch(model, 7, requests)


@pytest.mark.parametrize("jitter", [0.0, 0.1])
@pytest.mark.parametrize("case", CASES)
def test_times_are_those_of_a_batch(case: str, jitter: float) -> None:
    settings, rate = CASES[case]
    model = a_replica(REAL.model_copy(update={"jitter": jitter}), **settings)
    both_agree(model, load(rate))


def test_experts_are_covered() -> None:
    both_agree(a_replica(REAL, MOE), load(30.0))


def test_a_cache_that_overflows_is_left_to_the_batch() -> None:
    model = a_replica(REAL, kv_cache_tokens=3000)
    requests = load(50.0)
    assert serve(model, 0, *requests) is None
    assert len(by_batch(model, 0, requests)) == len(requests[0])


def test_what_it_does_not_know_is_not_covered() -> None:
    model = a_replica()
    for change in ({"prefill_first": True}, {"recv_interval": 4}, {"max_requests": 9}):
        assert not is_covered(replace(model, limits=replace(model.limits, **change)))
    assert isinstance(model.costs, Costs)
    windowed = replace(model.costs, window=1024)
    assert not is_covered(replace(model, costs=windowed))
