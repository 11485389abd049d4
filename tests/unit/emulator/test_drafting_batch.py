"""Batches with drafts: what a step gives out, what it needs room for, and that without drafts it is
the step of a ``Batch``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from orchestrator.emulator.batch import Batch, Sequence
from orchestrator.emulator.drafting_batch import DraftingBatch, batch_of
from orchestrator.emulator.drafts import Drafts, acceptance_of
from orchestrator.emulator.model import Replica
from orchestrator.emulator.step_costs import Costs
from tests.unit.emulator.builders import IDEAL, a_replica

LIMITED = {"kv_cache_tokens": 900, "max_num_batched_tokens": 128, "max_model_len": 450}


def with_drafts(tokens: int, share: float, **changes: Any) -> Replica:
    model = a_replica(IDEAL.model_copy(update={"token_interval_s": 1e-5}), **changes)
    assert isinstance(model.costs, Costs)
    acceptance = acceptance_of(share, tokens)
    return replace(model, drafts=Drafts(tokens, acceptance, model.costs, drafter=None))


def served(model: Replica, requests: list[tuple[float, int, int]], seed: int = 0) -> list[Sequence]:
    batch = batch_of(model, seed)
    sequences = [batch.submit(*request) for request in requests]
    while not batch.idle:
        batch.advance()
        assert batch.kv_used <= batch.limits.kv_tokens
    assert batch.kv_used == batch.context_tokens == 0
    assert batch.window_tokens == pytest.approx(0)
    return sequences


def several() -> list[tuple[float, int, int]]:
    rng = np.random.default_rng(4)
    return [
        (at_s, int(rng.integers(1, 300)), int(rng.integers(1, 120)))
        for at_s in np.cumsum(rng.exponential(0.05, 40)).tolist()
    ]


def accepted_share(sequences: list[Sequence], drafts: int) -> float:
    """Of the drafts of all steps but the last of each sequence, which may be cut."""
    steps = [given.tokens for sequence in sequences for given in (sequence.given or [])[1:-1]]
    return (sum(steps) - len(steps)) / (drafts * len(steps))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        LIMITED,
        {"config": {"model_type": "mistral", "sliding_window": 64}},
        {"scheduler_recv_interval": 7},
    ],
)
def test_a_batch_that_drafts_nothing_is_a_batch(changes: dict[str, Any]) -> None:
    model = with_drafts(0, 0.0, **changes)
    drafting, plain = served(model, several()), served(replace(model, drafts=None), several())
    assert sum(sequence.preemptions for sequence in plain) > 0 or changes is not LIMITED
    for sequence, other in zip(drafting, plain, strict=True):
        assert sequence.first_token_s == pytest.approx(other.first_token_s, rel=1e-9)
        assert sequence.last_token_s == pytest.approx(other.last_token_s, rel=1e-9)
        assert sequence.preemptions == other.preemptions


@pytest.mark.parametrize(("share", "steps"), [(0.0, 21), (1.0, 5)])
def test_a_step_gives_a_token_and_the_drafts_that_are_accepted(share: float, steps: int) -> None:
    (sequence,) = served(with_drafts(4, share), [(0.0, 100, 21)])
    given = [given.tokens for given in sequence.given or []]
    assert given == [1, *[21 // (steps - 1) if share else 1] * (steps - 1)]
    assert sum(given) == 21


@pytest.mark.parametrize("share", [0.1, 0.6])
def test_the_share_of_drafts_that_is_assumed_is_accepted_and_follows_from_the_seed(
    share: float,
) -> None:
    model = with_drafts(4, share)
    requests = [(0.0, 64, 500)] * 30
    sequences = served(model, requests)
    assert accepted_share(sequences, 4) == pytest.approx(share, abs=0.02)
    again, other = served(model, requests), served(model, requests, seed=1)
    assert [sequence.given for sequence in again] == [sequence.given for sequence in sequences]
    assert [sequence.given for sequence in other] != [sequence.given for sequence in sequences]


def test_full_kv_caches_preempt_and_every_answer_has_its_tokens() -> None:
    sequences = served(with_drafts(4, 0.6, **LIMITED), several())
    assert sum(sequence.preemptions for sequence in sequences) > 0
    for sequence in sequences:
        assert sum(given.tokens for given in sequence.given or []) == sequence.output_tokens
    (alone,) = served(with_drafts(4, 0.6, kv_cache_tokens=400), [(0.0, 350, 50)])
    assert alone.preemptions == 0


def test_drafts_count_in_the_tokens_of_a_step() -> None:
    batch = batch_of(with_drafts(4, 0.6, max_num_batched_tokens=64), 0)
    batch.submit(0.0, 32, 400)
    batch.advance()
    batch.submit(batch.clock, 500, 2)
    batch.advance()
    assert isinstance(batch, DraftingBatch)
    assert batch.computed_tokens == 64
    assert batch.prefilling[0].prefilled_tokens == 64 - 5


def test_a_model_without_drafts_has_a_plain_batch() -> None:
    assert type(batch_of(a_replica(), 0)) is Batch
