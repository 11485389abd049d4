"""Whole schedules in virtual time."""

from __future__ import annotations

import time

import numpy as np
import pytest

from orchestrator.emulator.profile import load_profile
from orchestrator.predict.simulate import Trace, run, run_closed, simulate
from orchestrator.spec.settings import EngineSettings
from tests.unit.emulator.builders import IDEAL, a_replica


def schedule(rate: float, requests: int, prompt: int = 100, output: int = 20) -> Trace:
    rng = np.random.default_rng(7)
    return Trace(
        np.cumsum(rng.exponential(1 / rate, requests)),
        np.full(requests, prompt, np.int64),
        np.full(requests, output, np.int64),
    )


def test_an_idle_engine_answers_every_request_as_if_it_were_alone() -> None:
    slow = schedule(rate=0.01, requests=20)
    outcome = run(a_replica(), slow)
    ttft = outcome.first_token_s - slow.arrival_s
    assert np.allclose(ttft, ttft[0])


def test_beyond_its_capacity_the_queue_grows_and_the_throughput_does_not() -> None:
    model = a_replica()
    at = {rate: run(model, schedule(rate, 2000)) for rate in (200.0, 400.0)}
    throughput = {rate: 2000 / outcome.last_token_s.max() for rate, outcome in at.items()}
    assert throughput[400.0] == pytest.approx(throughput[200.0], rel=0.02)
    waits = at[400.0].scheduled_s - schedule(400.0, 2000).arrival_s
    assert waits[-1] > waits[1000] > waits[100]


def test_requests_that_do_not_fit_are_refused_and_marked() -> None:
    one = schedule(1, 3)
    mixed = Trace(one.arrival_s, np.array([10, 9000, 10]), one.output_tokens)
    outcome = run(a_replica(), mixed)
    assert np.isnan(outcome.last_token_s).sum() == 1
    assert np.isnan(outcome.first_token_s).tolist() == [False, True, False]


def test_replicas_share_the_requests_in_turn() -> None:
    load = schedule(rate=300, requests=400)
    one, two = run(a_replica(), load), run(a_replica(), load, ranks=2)
    assert two.last_token_s.max() < one.last_token_s.max()
    alone = Trace(load.arrival_s[1::2], load.prompt_tokens[1::2], load.output_tokens[1::2])
    assert np.array_equal(two.last_token_s[1::2], run(a_replica(), alone).last_token_s)


def test_a_closed_loop_keeps_its_concurrency() -> None:
    prompts, outputs = np.full(50, 100, np.int64), np.full(50, 20, np.int64)
    arrivals, outcome = run_closed(a_replica(), prompts, outputs, concurrency=5)
    for time_s in arrivals.arrival_s[10:]:
        in_flight = np.sum((arrivals.arrival_s <= time_s) & (outcome.last_token_s > time_s))
        assert in_flight == 5


def test_a_closed_loop_is_dealt_to_ranks_with_cached_tokens() -> None:
    prompts, outputs = np.full(64, 1000, np.int64), np.full(64, 20, np.int64)
    one, _ = run_closed(a_replica(), prompts, outputs, 16)
    two, _ = run_closed(a_replica(), prompts, outputs, 16, ranks=2)
    half, _ = run_closed(a_replica(), prompts[::2], outputs[::2], 8)
    assert two.arrival_s.max() < one.arrival_s.max()
    assert np.array_equal(two.arrival_s[::2], half.arrival_s)
    cached, _ = run_closed(a_replica(), prompts, outputs, 16, cached=np.full(64, 992, np.int64))
    assert cached.arrival_s.max() < one.arrival_s.max() / 2


def test_a_full_queue_refuses_in_open_and_in_closed_loop() -> None:
    load = schedule(rate=1000, requests=50, prompt=1000)
    free, full = (run(a_replica(max_num_queued_reqs=most), load) for most in (None, 4))
    assert not np.isnan(free.last_token_s).any()
    refused = np.isnan(full.last_token_s)
    assert 0 < refused.sum() < 50
    for arrival_s, turned_away in zip(load.arrival_s, refused, strict=True):
        here = np.sum((load.arrival_s < arrival_s) & (full.last_token_s > arrival_s))
        assert (here == 4) == turned_away
    trace, outcome = run_closed(
        a_replica(max_num_queued_reqs=4), load.prompt_tokens, load.output_tokens, 5
    )
    assert np.isnan(outcome.last_token_s).any()
    assert not np.isnan(trace.arrival_s).any()


@pytest.mark.parametrize(
    ("jitter", "rate", "output", "tail"),
    [(0.5, 0.05, 20, 1.2), (0.2, 0.3, 300, 1.05)],
    ids=["alone", "during decodes"],
)
def test_steps_that_vary_by_themselves_spread_the_tail_but_not_the_mean(
    jitter: float, rate: float, output: int, tail: float
) -> None:
    load = schedule(rate, requests=1000, output=output)
    calm, restless, again = (
        run(a_replica(IDEAL.model_copy(update={"jitter": value})), load).first_token_s
        - load.arrival_s
        for value in (0.0, jitter, jitter)
    )
    assert restless.mean() == pytest.approx(calm.mean(), rel=0.05)
    assert np.quantile(restless, 0.9) > tail * np.quantile(calm, 0.9)
    assert np.array_equal(restless, again)


def test_the_steps_of_every_rank_vary_by_themselves() -> None:
    model = a_replica(IDEAL.model_copy(update={"jitter": 0.5}))
    pair = Trace(
        *(np.repeat(column, 2) for column in (np.arange(9.0), np.full(9, 100), np.full(9, 20)))
    )
    closed = run_closed(model, pair.prompt_tokens, pair.output_tokens, 2, ranks=2)[1]
    for outcome in (run(model, pair, ranks=2), closed):
        assert not np.any(outcome.last_token_s[::2] == outcome.last_token_s[1::2])


def test_a_deployment_is_simulated_by_the_name_of_its_device_and_model() -> None:
    profile = load_profile("H100-80GB/Llama-3.1-8B")
    load = schedule(rate=5, requests=50, prompt=500, output=100)
    one = simulate(profile, EngineSettings(engine="emulator", model="any"), load)
    two = simulate(
        profile, EngineSettings(engine="emulator", model="any", tensor_parallel_size=2), load
    )
    tpot = [(outcome.last_token_s - outcome.first_token_s).mean() / 99 for outcome in (one, two)]
    assert 0.005 < tpot[0] < 0.012  # an H100 streams 15 GB of weights in 4.5 ms at its peak
    assert tpot[1] < 0.75 * tpot[0]


def test_fifty_thousand_requests_take_seconds_at_most() -> None:
    rng = np.random.default_rng(1)
    n = 50_000
    load = Trace(
        np.cumsum(rng.exponential(1 / 20, n)),
        rng.lognormal(6, 0.5, n).astype(np.int64) + 1,
        rng.lognormal(5, 0.5, n).astype(np.int64) + 1,
    )
    started_s = time.process_time()
    outcome = simulate(
        load_profile("H100-80GB/Llama-3.1-8B"), EngineSettings(engine="emulator", model="any"), load
    )
    assert not np.isnan(outcome.last_token_s).any()
    # benchmarks/emulator/timing.py measures it: under 1 s on a quiet core
    assert time.process_time() - started_s < 4
