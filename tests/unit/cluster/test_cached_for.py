"""Answers of expensive calls are kept, but not too long."""

from __future__ import annotations

import pytest

from orchestrator.cluster.cached_for import MOST_S, SHARE, CachedFor


class TimedCall:
    """A cached call of known costs, on a clock that moves a tenth of a second between two reads."""

    def __init__(self, *costs_s: float, least_s: float = 0.0) -> None:
        self.costs_s = (
            costs_s  # of the first calls; all later ones cost as much as the last of them
        )
        self.now_s = 0.0
        self.used_s = 0.0
        self.calls_at_s: list[float] = []
        self.cached = CachedFor(self.call, least_s, lambda: self.now_s, lambda: self.used_s)

    def call(self) -> int:
        self.used_s += self.costs_s[min(len(self.calls_at_s), len(self.costs_s) - 1)]
        self.calls_at_s.append(self.now_s)
        return len(self.calls_at_s)

    def read_until(self, seconds: float) -> list[int]:
        answers = []
        while self.now_s < seconds:
            answers.append(self.cached())
            self.now_s = round(self.now_s + 0.1, 1)
        return answers


def test_an_expensive_call_takes_a_small_share_of_a_core() -> None:
    timed = TimedCall(0.02)
    answers = timed.read_until(300.0)
    assert 0.9 * SHARE < timed.used_s / timed.now_s < 1.1 * SHARE
    assert answers == sorted(answers)
    assert (answers[0], answers[-1]) == (1, len(timed.calls_at_s))


def test_imports_and_a_pause_make_no_answer_old() -> None:
    timed = TimedCall(0.2, 0.0001, 0.5, 0.0001)  # the first imports, the collector pauses the third
    timed.read_until(30.0)
    assert timed.calls_at_s[:4] == pytest.approx([0.0, 0.1, 0.2, 0.2 + MOST_S])


def test_a_cheap_call_is_made_as_often_as_it_may_be() -> None:
    timed = TimedCall(0.0, least_s=3.0)
    timed.read_until(10.0)
    assert timed.calls_at_s == pytest.approx([0.0, 3.0, 6.0, 9.0])
