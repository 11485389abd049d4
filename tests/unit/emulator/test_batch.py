"""Continuous batching: the rules of the scheduler, and that a jump over many steps is the same as
taking them.
"""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from orchestrator.emulator.batch import Batch, Sequence, refusal
from orchestrator.emulator.profile import Constants
from orchestrator.emulator.step_costs import Chunk
from tests.unit.emulator.builders import IDEAL, a_replica

REQUEST = st.tuples(st.floats(0, 2), st.integers(1, 300), st.integers(1, 120), st.integers(0, 200))


def run(batch: Batch, max_steps: int = 2**31) -> None:
    while not batch.idle:
        batch.advance(max_steps)


def submitted(batch: Batch, requests: list[tuple[float, int, int, int]]) -> list[Sequence]:
    return [
        batch.submit(arrival, prompt, output, cached)
        for arrival, prompt, output, cached in sorted(requests)
    ]


@given(
    requests=st.lists(REQUEST, min_size=1, max_size=25),
    kv_tokens=st.sampled_from([450, 1000, 100_000]),
    stages=st.sampled_from([1, 2, 4]),
    window=st.sampled_from([None, 64]),
    budget=st.sampled_from([32, 256, 2048]),
    interval=st.sampled_from([None, 7, 30]),
)
@hypothesis_settings(max_examples=90, deadline=None)
def test_jumping_over_steps_gives_the_times_of_single_steps(
    requests: list[tuple[float, int, int, int]],
    kv_tokens: int,
    stages: int,
    window: int | None,
    budget: int,
    interval: int | None,
) -> None:
    config = {"model_type": "mistral", "sliding_window": window} if window else {}
    replica = a_replica(
        config=config,
        pipeline_parallel_size=stages,
        kv_cache_tokens=kv_tokens,
        max_num_batched_tokens=budget,
        max_num_seqs=8,
        max_model_len=450,
        scheduler_recv_interval=interval,
    )
    jumping, stepping = Batch(replica), Batch(replica)
    many, single = submitted(jumping, requests), submitted(stepping, requests)
    run(jumping)
    run(stepping, max_steps=1)
    assert jumping.step == stepping.step
    for sequence, other in zip(many, single, strict=True):
        assert sequence.first_token_s == pytest.approx(other.first_token_s, rel=1e-9)
        assert sequence.last_token_s == pytest.approx(other.last_token_s, rel=1e-9)
        assert sequence.preemptions == other.preemptions


@pytest.mark.parametrize("jitter", [0.2, 0.5])
def test_jumps_over_varying_steps_do_not_delay_an_arrival(
    jitter: float,
) -> None:
    # some 200 steps apart
    arrivals = np.cumsum(np.random.default_rng(0).exponential(3, 500)).tolist()
    ttft_s = []
    for seed, max_steps in enumerate((2**31, 1)):
        batch = Batch(a_replica(IDEAL.model_copy(update={"jitter": jitter})), seed)
        sequences = submitted(batch, [(arrival_s, 100, 300, 0) for arrival_s in arrivals])
        run(batch, max_steps)
        ttft_s.append([sequence.first_token_s - sequence.ready_s for sequence in sequences])
    jumping, stepping = ttft_s
    assert np.mean(jumping) == pytest.approx(np.mean(stepping), rel=0.05)
    assert np.quantile(jumping, [0.5, 0.9, 0.99]) == pytest.approx(
        np.quantile(stepping, [0.5, 0.9, 0.99]), rel=0.15
    )


@given(
    requests=st.lists(REQUEST, min_size=1, max_size=25), kv_tokens=st.sampled_from([420, 700, 5000])
)
@hypothesis_settings(max_examples=60, deadline=None)
def test_every_request_gets_exactly_its_tokens_and_leaves_nothing_behind(
    requests: list[tuple[float, int, int, int]], kv_tokens: int
) -> None:
    batch = Batch(a_replica(kv_cache_tokens=kv_tokens, max_num_seqs=8, max_num_batched_tokens=128))
    sequences = submitted(batch, requests)
    given_out = dict.fromkeys(sequences, 0)
    while not batch.idle:
        for sequence in batch.advance(max_steps=1):
            given_out[sequence] += 1
        for sequence in batch.decoding:
            given_out[sequence] += 1
        assert batch.kv_used <= kv_tokens
    assert [given_out[sequence] for sequence in sequences] == [
        sequence.output_tokens for sequence in sequences
    ]
    assert batch.kv_used == 0
    assert batch.context_tokens == 0
    assert batch.window_tokens == 0
    assert len(batch._free_room) == 0


def test_a_request_alone_takes_a_prefill_and_a_step_per_further_token() -> None:
    replica = a_replica(Constants(request_overhead_s=0.5, jitter=0.0))
    batch = Batch(replica)
    sequence = batch.submit(1.0, prompt_tokens=100, output_tokens=3)
    run(batch)
    steps = [replica.costs.mixed(1, context, 0.0, []) for context in (100, 101)]
    assert sequence.first_token_s == pytest.approx(
        1.5 + replica.costs.mixed(0, 0, 0.0, [Chunk(0, 100)])
    )
    assert sequence.last_token_s - sequence.first_token_s == pytest.approx(sum(steps))


@pytest.mark.parametrize("busy", [False, True])
def test_an_idle_engine_starts_with_the_first_of_simultaneous_requests_alone(
    busy: bool,
) -> None:
    replica = a_replica(
        IDEAL.model_copy(update={"token_interval_s": 15e-6, "request_overhead_s": 1e-3})
    )
    batch = Batch(replica)
    if busy:
        batch.submit(-1, 10, 50)
        batch.advance(1)
    wave = [batch.submit(batch.clock, 100, 5) for _ in range(4)]
    batch.advance(1)
    assert [sequence.prefilled_tokens for sequence in wave] == (
        [0, 0, 0, 0] if busy else [100, 0, 0, 0]
    )
    batch.advance(1)
    assert [sequence.prefilled_tokens for sequence in wave] == [100] * 4


def test_a_long_prompt_is_prefilled_in_chunks_beside_the_decodes() -> None:
    batch = Batch(a_replica(max_num_batched_tokens=100))
    short = batch.submit(0, 10, 50)
    batch.advance(1)
    long = batch.submit(0, 250, 2)
    for _ in range(2):
        batch.advance(1)
    # 99 a step: one token of the budget goes to the decode
    assert (long.prefilled_tokens, batch.step) == (198, 3)
    batch.advance(1)
    assert long.first_token_s == batch.clock
    assert short.tokens_at(batch.step) == 4


def test_where_prefills_go_first_decodes_pause_meanwhile() -> None:
    shared, first = (
        Batch(a_replica(IDEAL.model_copy(update={"prefill_first": rests})))
        for rests in (False, True)
    )
    for batch in (shared, first):
        batch.submit(0, 10, 50)
        batch.advance(1)
        batch.submit(0, 2000, 5)
        batch.advance(1)
        assert len(batch.decoding) == 2
    assert (
        [sequence.tokens_at(shared.step) for sequence in shared.decoding],
        shared.skipped_decodes,
    ) == (
        [2, 1],
        0,
    )
    assert (
        [sequence.tokens_at(first.step) for sequence in first.decoding],
        first.skipped_decodes,
    ) == (
        [1, 1],
        1,
    )


def test_new_requests_are_looked_for_at_intervals_and_after_every_prompt() -> None:
    replica = a_replica(
        IDEAL.model_copy(update={"prefill_first": True}), scheduler_recv_interval=10
    )
    batch = Batch(replica)
    first = batch.submit(0, 100, 50)
    batch.advance(1)
    assert first.first_token_s == batch.clock  # it came to an idle engine
    batch.advance(3)
    late = batch.submit(batch.clock, 100, 50)
    while not late.prefilled_tokens:
        batch.advance(1)
    assert first.tokens_at(batch.step) == 1 + 10
    batch.submit(batch.clock, 100, 50)
    batch.advance(1)
    assert (first.tokens_at(batch.step), len(batch.decoding)) == (1 + 10, 3)


@given(
    requests=st.lists(REQUEST, min_size=1, max_size=25), kv_tokens=st.sampled_from([420, 700, 5000])
)
@hypothesis_settings(max_examples=60, deadline=None)
def test_prefills_that_go_first_lose_no_token_either(
    requests: list[tuple[float, int, int, int]], kv_tokens: int
) -> None:
    constants = IDEAL.model_copy(update={"prefill_first": True})
    batch = Batch(
        a_replica(constants, kv_cache_tokens=kv_tokens, max_num_seqs=8, max_num_batched_tokens=128)
    )
    sequences = submitted(batch, requests)
    given_out = dict.fromkeys(sequences, 0)
    while not batch.idle:
        for sequence in batch.advance(max_steps=1):
            given_out[sequence] += 1
        for sequence in list(batch.decoding)[batch.skipped_decodes :]:
            given_out[sequence] += 1
    assert [given_out[sequence] for sequence in sequences] == [
        sequence.output_tokens for sequence in sequences
    ]
    assert (batch.kv_used, batch.context_tokens, batch.window_tokens) == (0, 0, 0)


def test_without_chunks_a_prompt_waits_until_it_fits_the_budget_whole() -> None:
    batch = Batch(a_replica(max_num_batched_tokens=100, enable_chunked_prefill=False))
    first, second = batch.submit(0, 60, 1), batch.submit(0, 60, 1)
    batch.advance()
    assert first.first_token_s == batch.clock
    assert second.prefilled_tokens == 0


def test_without_chunks_a_preempted_sequence_runs_again_although_it_outgrew_the_budget() -> None:
    batch = Batch(
        a_replica(kv_cache_tokens=220, max_num_batched_tokens=100, enable_chunked_prefill=False)
    )
    old = batch.submit(0, 90, 60)
    new = batch.submit(0, 90, 60)
    run(batch)
    assert (old.preemptions, new.preemptions) == (0, 1)
    assert new.prefill_tokens > 100
    assert new.last_token_s > old.last_token_s


def test_no_more_than_max_num_seqs_run_at_once() -> None:
    batch = Batch(a_replica(max_num_seqs=2))
    sequences = [batch.submit(0, 10, 5) for _ in range(3)]
    run(batch)
    assert sequences[2].scheduled_s == sequences[0].last_token_s


def test_when_the_cache_is_full_the_newest_is_preempted_and_computed_again() -> None:
    batch = Batch(a_replica(kv_cache_tokens=220))
    old, new = batch.submit(0, 100, 60), batch.submit(0, 100, 60)
    run(batch)
    assert (old.preemptions, new.preemptions) == (0, 1)
    assert old.last_token_s < new.last_token_s
    assert new.first_token_s == old.first_token_s  # its first token left before it was preempted


def computed(batch: Batch) -> int:
    """Tokens that are computed until all is over."""
    tokens = 0
    while not batch.idle:
        batch.advance(1)
        tokens += batch.computed_tokens
    return tokens


def test_free_blocks_of_a_preempted_sequence_are_used_again() -> None:
    once = 100 + 59 + 100 + 59  # the last token of an answer is never read
    # of 110 tokens the older one took 50: 3 blocks are left
    for caching, again in ((False, 110), (True, 110 - 48)):
        batch = Batch(a_replica(kv_cache_tokens=220, enable_prefix_caching=caching))
        for _ in range(2):
            batch.submit(0, 100, 60)
        assert computed(batch) == once + again
        assert batch.preemptions == 1
        assert batch.kv_used == 0
        assert len(batch._free_room) == 0


def test_room_that_was_given_back_first_is_taken_first() -> None:
    batch = Batch(a_replica(kv_cache_tokens=330))
    for prompt in (100, 100, 100):
        batch.submit(0, prompt, 200)
    batch.advance()
    while batch.preemptions < 2:
        batch.advance(1)
    first, second = batch.waiting[1], batch.waiting[0]
    left = {room.content_of: room.tokens for room in batch._free_room}
    assert left.get(first, 0) < left[second]
    batch.cancel(first)
    batch.cancel(second)
    assert not batch._free_room
    run(batch)
    assert batch.kv_used == 0


def test_cached_prompt_tokens_are_not_computed() -> None:
    cold, warm = Batch(a_replica()), Batch(a_replica())
    slow, fast = cold.submit(0, 1000, 1), warm.submit(0, 1000, 1, cached_tokens=960)
    run(cold)
    run(warm)
    assert fast.first_token_s < slow.first_token_s / 2


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_a_cancelled_request_frees_its_place_whatever_it_was_doing(steps: int) -> None:
    batch = Batch(
        a_replica(
            max_num_batched_tokens=100, config={"model_type": "mistral", "sliding_window": 32}
        )
    )
    other, sequence = batch.submit(0, 10, 20), batch.submit(0, 150, 20)
    for _ in range(steps):
        batch.advance(1)
    batch.cancel(sequence)
    run(batch)
    assert other.last_token_s == other.last_token_s
    assert sequence.last_token_s != sequence.last_token_s
    assert (batch.kv_used, batch.context_tokens, batch.window_tokens) == (0, 0, 0)
    batch.cancel(other)  # finished long ago: no effect


def test_the_newest_one_waiting_never_overtakes() -> None:
    batch = Batch(a_replica(kv_cache_tokens=300))
    running, large, small = (
        batch.submit(0, 200, 20),
        batch.submit(0, 200, 20),
        batch.submit(0, 10, 20),
    )
    run(batch)
    assert large.scheduled_s == running.last_token_s
    assert small.scheduled_s >= large.scheduled_s


@pytest.mark.parametrize(
    ("prompt", "output", "words"),
    [
        (8000, 193, "maximum context length is 8192"),
        (200, 200, "KV cache"),
        (120, 5, "without chunked prefill"),
    ],
)
def test_requests_that_can_never_run_are_refused_with_the_reason(
    prompt: int, output: int, words: str
) -> None:
    limits = a_replica(
        kv_cache_tokens=300, max_num_batched_tokens=100, enable_chunked_prefill=False
    ).limits
    assert words in (refusal(limits, prompt, output) or "")


def test_a_request_that_fits_is_not_refused() -> None:
    assert refusal(a_replica(kv_cache_tokens=300).limits, 100, 200) is None


def test_no_sequence_ends_before_the_earliest_end() -> None:
    model = a_replica()
    rng = random.Random(3)
    batch = Batch(model)
    arrival_s = 0.0
    for _ in range(200):
        arrival_s += rng.expovariate(40)
        batch.submit(arrival_s, rng.randint(1, 300), rng.randint(1, 60))
    looked = 0
    while not batch.idle:
        earliest_s = batch.earliest_end_s()
        looked += earliest_s > batch.clock
        ended: list[Sequence] = []
        while not ended and not batch.idle:
            ended = batch.advance(max_steps=1)
        assert all(sequence.last_token_s >= earliest_s - 1e-9 for sequence in ended)
    assert looked > 50


PREFILL_FIRST = IDEAL.model_copy(update={"prefill_first": True})


@pytest.mark.parametrize(
    ("constants", "settings"),
    [
        (PREFILL_FIRST, {}),  # the step of the short prompt has none of the decodes
        (IDEAL, {"pipeline_parallel_size": 2}),  # both sequences share the stages
    ],
)
def test_a_short_request_may_end_before_a_step_of_the_decodes_would(
    constants: Constants, settings: dict[str, int]
) -> None:
    batch = Batch(a_replica(constants, **settings))
    batch.submit(0, 8000, 100)
    while not batch.decoding:
        batch.advance(1)
    short = batch.submit(batch.clock, 1, 1)
    earliest_s = batch.earliest_end_s()
    while math.isnan(short.last_token_s):
        batch.advance(1)
    assert short.last_token_s >= earliest_s


def test_a_preemption_may_shorten_the_steps_until_the_earliest_end() -> None:
    batch = Batch(a_replica(kv_cache_tokens=8010))
    old = batch.submit(0, 4000, 100)
    batch.submit(0, 3900, 100)
    while len(batch.decoding) < 2:
        batch.advance(1)
    earliest_s = batch.earliest_end_s()
    while math.isnan(old.last_token_s):
        batch.advance(1)
    assert batch.preemptions > 0
    assert old.last_token_s >= earliest_s
