"""A run of the step model stays the same under all limits in the ranges that it names."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.emulator.model import RankLimits, Replica
from orchestrator.predict.limit_ranges import LimitRange, LimitRanges
from orchestrator.predict.rank_loop import Arrival, ServedTimes, serve
from orchestrator.predict.simulate import RequestTimes, Trace, run
from tests.unit.emulator.builders import IDEAL, a_replica

REAL = IDEAL.model_copy(
    update={"step_overhead_s": 1e-3, "token_interval_s": 15e-6, "request_overhead_s": 0.02}
    | {"jitter": 0.1}
)
LIMITS = RankLimits(max_model_len=900, max_num_seqs=8, max_num_batched_tokens=512, kv_tokens=4000)
REQUESTS = 60
FOLLOWERS = 40


def rank(limits: RankLimits) -> Replica:
    return replace(a_replica(REAL), limits=limits)


def open_loop(limits: RankLimits, rate: float, seed: int) -> ServedTimes | None:
    rng = np.random.default_rng(seed)
    arrivals_s = np.cumsum(rng.exponential(1 / rate, REQUESTS)).tolist()
    prompts = rng.integers(1, 300, REQUESTS).tolist()
    return serve(rank(limits), seed, arrivals_s, prompts, rng.integers(1, 60, REQUESTS).tolist())


def closed_loop(limits: RankLimits, slots: int, seed: int) -> ServedTimes | None:
    rng = np.random.default_rng(seed)
    following = iter(rng.integers(1, 300, FOLLOWERS).tolist())

    def follow(ended_s: float) -> Arrival | None:
        prompt = next(following, None)
        return None if prompt is None else Arrival(ended_s, prompt, 30)

    return serve(rank(limits), seed, [0.0] * slots, [100] * slots, [20] * slots, follow)


def times_of(served: ServedTimes | None) -> list[list[float]] | None:
    if served is None:
        return None
    return [served.arrival_s, served.scheduled_s, served.first_token_s, served.last_token_s]


limits_of_ranks = st.builds(
    RankLimits,
    max_model_len=st.integers(400, 1000),
    max_num_seqs=st.integers(1, 70),
    max_num_batched_tokens=st.integers(300, 6000),
    kv_tokens=st.integers(500, 30_000),
    chunked_prefill=st.booleans(),
)


@given(limits_of_ranks, limits_of_ranks, st.sampled_from([2.0, 20.0, 200.0]), st.integers(0, 3))
def test_an_open_loop_is_the_same_under_all_limits_in_its_ranges(
    limits: RankLimits, others: RankLimits, rate: float, seed: int
) -> None:
    served = open_loop(limits, rate, seed)
    if served is not None and served.same_under.hold(others):
        assert times_of(open_loop(others, rate, seed)) == times_of(served)


@given(limits_of_ranks, limits_of_ranks, st.integers(1, 20), st.integers(0, 3))
def test_a_closed_loop_is_the_same_under_all_limits_in_its_ranges(
    limits: RankLimits, others: RankLimits, slots: int, seed: int
) -> None:
    served = closed_loop(limits, slots, seed)
    if served is not None and served.same_under.hold(others):
        assert times_of(closed_loop(others, slots, seed)) == times_of(served)


@pytest.mark.parametrize("name", ["max_num_seqs", "max_num_batched_tokens", "kv_tokens"])
def test_at_the_lowest_limits_of_its_ranges_a_run_is_the_same(name: str) -> None:
    generous = RankLimits(900, 500, 50_000, 500_000)
    served = open_loop(generous, 50.0, 1)
    assert served is not None
    allowed: LimitRange = getattr(served.same_under, name)
    assert 1 < allowed.lowest < getattr(generous, name)
    lowest = replace(generous, **{name: int(allowed.lowest)})
    assert times_of(open_loop(lowest, 50.0, 1)) == times_of(served)


@pytest.mark.parametrize(("name", "limit"), [("max_num_seqs", 3), ("max_num_batched_tokens", 64)])
def test_a_limit_that_was_reached_has_to_be_the_same(name: str, limit: int) -> None:
    limits = replace(RankLimits(900, 500, 50_000, 500_000), **{name: limit})
    served = open_loop(limits, 200.0, 1)
    assert served is not None
    assert getattr(served.same_under, name) == LimitRange(limit, limit)


def test_a_cache_that_made_a_request_wait_has_to_be_the_same() -> None:
    limits = RankLimits(900, 500, 50_000, kv_tokens=500)
    served = serve(rank(limits), 1, [0.0, 0.0], [300, 300], [2, 2])
    assert served is not None
    assert served.same_under.kv_tokens == LimitRange(500, 500)


def trace(lengths: list[int]) -> Trace:
    arrivals_s = np.arange(len(lengths)) * 0.1
    return Trace(arrivals_s, np.array(lengths), np.full(len(lengths), 10))


def served_by_ranks(lengths: list[int], ranks: int = 1) -> RequestTimes:
    return run(rank(LIMITS), trace(lengths), ranks, seed=5)


def test_the_longest_request_bounds_the_context() -> None:
    times = served_by_ranks([100, 290, 50])
    assert times.same_under is not None
    assert times.same_under.max_model_len == LimitRange(300, math.inf)


def test_where_a_request_is_refused_no_other_limits_will_do() -> None:
    times = served_by_ranks([100, 895, 50])
    assert np.isnan(times.last_token_s[1])
    assert times.same_under == LimitRanges.exactly(LIMITS)
    assert not times.same_under.hold(replace(LIMITS, max_model_len=1000))


def test_the_limits_of_several_ranks_suit_each_of_them() -> None:
    times = served_by_ranks([100, 290, 50, 20], ranks=2)  # the second rank has the longest
    assert times.same_under is not None
    assert times.same_under.max_model_len.lowest == 300
    assert times.same_under.max_num_batched_tokens.lowest == 291


def test_what_the_fast_loop_does_not_cover_has_no_ranges() -> None:
    model = rank(replace(LIMITS, prefill_first=True))
    assert run(model, trace([100, 50])).same_under is None
