"""The sampler: a sample at each end, a grid between them, and an end that no driver holds up."""

from __future__ import annotations

import threading
from itertools import count

from orchestrator.telemetry.sampler import Sampler


def test_samples_are_taken_at_both_ends_and_between() -> None:
    taken: list[int] = []
    third = threading.Event()

    def take() -> int:
        taken.append(len(taken))
        if len(taken) == 3:
            third.set()
        return taken[-1]

    sampler = Sampler(take, 0.001, "test")
    sampler.start_with_sample()
    assert taken, "the first sample lies before the load"
    assert third.wait(10)
    samples = sampler.stop()
    assert samples == taken and len(samples) >= 4
    assert not sampler._thread.is_alive()


def test_samples_that_failed_are_left_out() -> None:
    sampler: Sampler[int] = Sampler(lambda: None, 5.0, "test")
    sampler.start()
    assert sampler.stop() == []


def test_a_long_point_keeps_every_other_sample_and_takes_half_as_many() -> None:
    numbers = count()
    twenty_fifth = threading.Event()

    def take() -> int:
        number = next(numbers)
        if number == 25:
            twenty_fifth.set()
        return number

    sampler = Sampler(take, 0.0005, "test", most_samples=10)
    sampler.start()
    assert twenty_fifth.wait(10)
    samples = sampler.stop()
    assert len(samples) <= 11
    assert samples[0] == 0 and samples == sorted(samples), "the begin is still there"
    assert sampler._interval_s >= 0.0005 * 8


def test_a_call_that_hangs_does_not_hold_up_the_end() -> None:
    goes_on = threading.Event()
    second = threading.Event()
    numbers = count()

    def take() -> int:
        number = next(numbers)
        if number == 1:
            second.set()
            goes_on.wait(30)
        return number

    sampler = Sampler(take, 0.001, "test")
    sampler.start()
    assert second.wait(10)
    assert sampler.stop(limit_s=0.01) == [0]
    assert sampler.hangs()
    goes_on.set()


def test_a_call_that_raises_leaves_a_gap() -> None:
    numbers = count()
    third = threading.Event()

    def take() -> int:
        number = next(numbers)
        if number == 1:
            raise OSError("the process has just ended")
        if number == 3:
            third.set()
        return number

    sampler = Sampler(take, 0.001, "test")
    sampler.start()
    assert third.wait(10)
    assert sampler.stop()[:3] == [0, 2, 3]
    assert not sampler.hangs()
