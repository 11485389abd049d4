"""The beginning of the steady part of a run, where nobody gave a warm-up: seeded simulations whose
truth is known.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from orchestrator.analysis.metrics import steady_window
from orchestrator.base.arrays import Floats
from tests.unit.load.test_validity import poisson, processor_sharing, slots, table

Run = Callable[[float, int], tuple[Floats, Floats]]


def pipe(until_s: float, seed: int) -> tuple[Floats, Floats]:
    """10/s; each answer takes 10 s whatever else runs."""
    due_s = poisson(10.0, until_s, seed)
    return due_s, due_s + 10.0


def pipe_of_many_lengths(until_s: float, seed: int) -> tuple[Floats, Floats]:
    due_s = poisson(10.0, until_s, seed)
    return due_s, due_s + np.random.default_rng(seed).exponential(10.0, len(due_s))


def shared_steps(until_s: float, seed: int) -> tuple[Floats, Floats]:
    """As seen 2.56 times faster: 10/s are 80 % of what it can do, and then answers take 10 s."""
    due_s = poisson(10.0, until_s, seed)
    return due_s, processor_sharing(due_s * 2.5) / 2.5


def closed_loop(until_s: float, seed: int) -> tuple[Floats, Floats]:
    """100 in flight from the start on."""
    due_s = np.add.outer(10.001 * np.arange(until_s / 10), np.arange(100) * 2e-4).ravel()
    return due_s, due_s + 10.0


def window_s(due_s: Floats, done_s: Floats, duration_s: float) -> tuple[float, float]:
    due_ns, done_ns = ((instants * 1e9).astype(np.int64) for instants in (due_s, done_s))
    rows = table(len(due_s), scheduled_ns=due_ns, done_ns=done_ns)
    start_ns, end_ns = steady_window(None, duration_s, rows)
    return start_ns / 1e9, end_ns / 1e9


@pytest.mark.parametrize(
    ("run", "off"),
    [(pipe, 0.03), (pipe_of_many_lengths, 0.11), (shared_steps, 0.12), (closed_loop, 0.03)],
)
@pytest.mark.parametrize("duration_s", [50.0, 100.0, 500.0])
def test_from_where_a_run_is_steady_its_throughput_is_the_true_one(
    run: Run, off: float, duration_s: float
) -> None:
    """Counted from the empty server on it would be too low by one end-to-end time (10 s) of the
    run, or more.
    """
    shares = []
    for seed in range(10):
        due_s, done_s = run(duration_s, seed)
        start_s, end_s = window_s(due_s, done_s, duration_s)
        assert 3.0 <= start_s <= duration_s / 2
        assert end_s == duration_s
        shares.append(
            np.mean((done_s >= start_s) & (done_s < end_s)) * len(done_s) / (end_s - start_s) / 10.0
        )
    assert np.mean(shares) == pytest.approx(1.0, abs=off)


def test_little_is_cut_off_a_run_that_is_steady_from_the_start() -> None:
    """Answers of 50 ms in a minute."""
    begins = [
        window_s(due_s, due_s + 0.05, 60.0)[0]
        for due_s in (poisson(10.0, 60.0, seed) for seed in range(20))
    ]
    assert np.median(begins) < 1.0
    assert max(begins) < 30.0


@pytest.mark.parametrize("duration_s", [12.0, 19.0])
def test_a_run_shorter_than_two_end_to_end_times_has_no_steady_part(duration_s: float) -> None:
    due_s = np.arange(0.0, duration_s, 0.1)
    assert window_s(due_s, due_s + 10.0, duration_s) == (0.0, duration_s)


def test_one_slow_first_answer_is_not_taken_for_how_long_answers_take() -> None:
    """The first one waits for something that is made then; a second of the others is all that must
    be cut off.
    """
    due_s = np.arange(0.0, 60.0, 1.0)
    assert 0 < window_s(due_s, due_s + np.where(due_s == 0, 35.0, 1.0), 60.0)[0] < 30.0


def test_overload_has_none_or_begins_late_and_nothing_at_all_has_none() -> None:
    due_s = poisson(20.0, 100.0, 1)
    assert window_s(due_s, slots(due_s), 100.0)[0] > 20.0
    assert window_s(due_s[:0], due_s[:0], 100.0) == (0.0, 100.0)


def test_a_given_warm_up_is_the_begin_of_the_window() -> None:
    assert steady_window(2.0, 5.0, table(service_s=10.0)) == (2_000_000_000, 7_000_000_000)
    assert steady_window(0.0, 5.0, table(service_s=10.0)) == (0, 5_000_000_000)
