"""Gaps between the tokens of simulated requests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from orchestrator.emulator.batch import Batch
from orchestrator.simulation.step_times import StepEnds
from tests.unit.emulator.builders import IDEAL, a_replica


@pytest.mark.parametrize("settings", [{}, {"kv_cache_tokens": 1500}, {"max_num_seqs": 2}])
def test_gaps_are_those_of_single_steps(settings: dict[str, Any]) -> None:
    """A batch that takes one step at a time knows when each token came."""
    constants = IDEAL.model_copy(update={"step_overhead_s": 1e-3, "token_interval_s": 1e-5})
    model = a_replica(constants, **settings)
    rng = np.random.default_rng(4)
    requests = [
        (at_s, int(rng.integers(1, 300)), int(rng.integers(2, 90)))
        for at_s in np.cumsum(rng.exponential(0.05, 60)).tolist()
    ]
    gaps: list[dict[int, list[int]]] = []
    for max_steps in (1, 2**31):
        batch, times = Batch(model), StepEnds()
        sequences = [batch.submit(*request) for request in requests]
        found: dict[int, list[int]] = {}
        while not batch.idle:
            ended = batch.advance(max_steps)
            times.add(batch.step, batch.clock)
            for sequence in ended:
                index = sequences.index(sequence)
                found[index] = list(times.gaps(index, sequence).gaps_us)
        gaps.append(found)
        for index, sequence in enumerate(sequences):
            assert len(found[index]) == sequence.output_tokens - 1
            whole_us = (sequence.last_token_s - sequence.first_token_s) * 1e6
            assert sum(found[index]) == pytest.approx(whole_us, abs=1)
    single, jumps = gaps
    for index in single:
        assert np.allclose(single[index], jumps[index], atol=60)
    assert any(sequence.preemptions for sequence in sequences) == ("kv_cache_tokens" in settings)
