"""Steady states in closed form, against the simulation of the same model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.emulator.model import Replica, replica
from orchestrator.emulator.profile import Profile, device_of, facts_of
from orchestrator.predict.simulate import Trace, run, run_closed
from orchestrator.predict.steady import SAMPLES, Demand, Rank
from orchestrator.spec.load import Control
from orchestrator.spec.settings import EngineSettings, Hardware

SMALL, LARGE = "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.3-70B-Instruct"


def of(
    model: str,
    tensor: int,
    sequences: int,
    batched: int,
    engine: str = "emulator",
    interval: int | None = None,
) -> Replica:
    settings = EngineSettings(
        engine=engine, model=model, tensor_parallel_size=tensor, max_num_seqs=sequences,
        max_num_batched_tokens=batched, scheduler_recv_interval=interval,
    )  # fmt: skip
    profile, hardware = Profile(), Hardware(name="h", accelerator="H100-80GB")
    return replica(
        settings, facts_of(profile, settings), device_of(profile, hardware), profile.constants
    )


def lengths(mean: int, number: int, rng: np.random.Generator) -> np.ndarray:
    return np.maximum(2, rng.lognormal(np.log(mean) - 0.18, 0.6, number).astype(int))


def demand(prompt: int, output: int, spread: bool = True) -> Demand:
    rng = np.random.default_rng(1)
    both = (
        lengths(mean, SAMPLES, rng) if spread else np.full(SAMPLES, mean)
        for mean in (prompt, output)
    )
    asked, answered = (one.astype(float) for one in both)
    return Demand(asked, np.zeros(SAMPLES), answered)


@pytest.mark.parametrize(
    ("model", "prompt", "output", "control", "level"),
    [
        (of(SMALL, 1, 256, 8192), 600, 250, "request_rate", 2.0),
        (of(SMALL, 1, 256, 8192), 600, 250, "request_rate", 16.0),
        (of(SMALL, 1, 64, 2048), 600, 250, "request_rate", 10.0),
        (of(LARGE, 4, 256, 2048), 3000, 200, "request_rate", 1.0),
        (of(LARGE, 4, 256, 2048), 3000, 200, "request_rate", 2.0),
        # decodes rest while prompts are prefilled
        (of(SMALL, 1, 256, 8192, "sglang"), 600, 250, "request_rate", 8.0),
        (of(SMALL, 1, 256, 8192, "sglang"), 600, 250, "concurrency", 32),
        # new requests wait to be looked for
        (of(SMALL, 1, 256, 8192, "sglang", 30), 600, 250, "request_rate", 8.0),
        (of(SMALL, 1, 256, 8192, "sglang", 10), 600, 250, "concurrency", 4),
        (of(SMALL, 1, 256, 8192, "sglang", 30), 600, 250, "concurrency", 32),
        (of(LARGE, 4, 256, 8192, "sglang", 30), 3000, 200, "concurrency", 16),
        (of(SMALL, 1, 256, 8192), 600, 250, "concurrency", 1),
        (of(SMALL, 1, 256, 8192), 600, 250, "concurrency", 16),
        (of(SMALL, 1, 256, 8192), 600, 250, "concurrency", 512),
        (of(LARGE, 4, 256, 2048), 3000, 200, "concurrency", 16),
    ],
)
def test_steady_states_agree_with_long_simulations(
    model: Replica, prompt: int, output: int, control: Control, level: float
) -> None:
    """Medians of TPOT within a tenth (2 % in the median of these cases) and of TTFT within a third
    (10 %).
    """
    rng = np.random.default_rng(2)
    asked = demand(prompt, output)
    drawn = rng.integers(0, SAMPLES, 4000)
    prompts, outputs = asked.prompt[drawn].astype(int), asked.output[drawn].astype(int)
    if control == "concurrency":
        trace, seen = run_closed(model, prompts, outputs, int(level))
    else:
        trace = Trace(np.cumsum(rng.exponential(1 / level, len(drawn))), prompts, outputs)
        seen = run(model, trace)
    steady = slice(1000, 3000)
    first = np.median((seen.first_token_s - trace.arrival_s)[steady])
    per_token = np.median(((seen.last_token_s - seen.first_token_s) / (outputs - 1))[steady])
    begin, end = np.sort(trace.arrival_s)[[steady.start, steady.stop]]
    rate = outputs[(seen.last_token_s > begin) & (seen.last_token_s <= end)].sum() / (end - begin)

    rank = Rank(model, asked, control)
    state = rank.under(level)
    assert state is not None
    found = rank.latencies(state, level)
    assert np.median(found["tpot"]) == pytest.approx(per_token, rel=0.1)
    assert np.median(found["ttft"]) == pytest.approx(first, rel=0.35)
    assert state.rate * asked.output.mean() == pytest.approx(rate, rel=0.06)


def test_overload_has_no_steady_state_in_open_loop_and_waits_in_closed() -> None:
    model, asked = of(SMALL, 1, 8, 8192), demand(600, 250)
    opened, closed = Rank(model, asked, "request_rate"), Rank(model, asked, "concurrency")
    assert opened.under(1.01 * opened.full.rate) is None
    full = closed.under(100.0)
    assert full == closed.full
    waited = closed.latencies(full, 100.0)["ttft"].mean()
    # Little's law
    assert full.rate * (waited + closed._mean.steps * full.step_s) == pytest.approx(100, rel=0.02)


@given(
    st.sampled_from(["request_rate", "concurrency"]),
    st.integers(20, 4000),
    st.integers(2, 2000),
    st.booleans(),
)
def test_a_busier_state_is_a_higher_load_and_slower(
    control: Control, prompt: int, output: int, spread: bool
) -> None:
    rank = Rank(of(SMALL, 1, 128, 2048), demand(prompt, output, spread), control)
    states = [rank.at(running) for running in np.geomspace(0.01, rank.most, 12)]
    loads = [rank.level(state) for state in states]
    medians = [
        np.median(rank.latencies(state, load)["tpot"])
        for state, load in zip(states, loads, strict=True)
    ]
    assert all(later > 0.93 * earlier for earlier, later in zip(loads, loads[1:], strict=False))
    assert all(later > 0.93 * earlier for earlier, later in zip(medians, medians[1:], strict=False))
    assert all(np.isfinite(loads)) and all(np.isfinite(medians))


def test_a_state_is_found_again_by_its_load() -> None:
    rank = Rank(of(LARGE, 4, 256, 8192), demand(1000, 100), "request_rate")
    for running in (0.1, 3.0, 0.7 * rank.most):
        found = rank.under(rank.level(rank.at(running)))
        assert found is not None
        assert found.running == pytest.approx(running, rel=0.05)


def test_hardly_any_load_finds_the_rank_idle() -> None:
    rank = Rank(of(SMALL, 1, 256, 8192), demand(600, 1, spread=False), "request_rate")
    idle = rank.under(1e-12)
    assert idle is not None and idle.rate > 0
