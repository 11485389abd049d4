"""Answers of expensive calls are kept, but not too long."""

from __future__ import annotations

import pytest

from orchestrator.cluster.cached_for import MOST_S, SHARE, CachedFor


class Asked:
    """What was asked at which times, on a clock that moves a tenth of a second between two looks."""

    def __init__(self, *costs_s: float, least_s: float = 0.0) -> None:
        self.costs_s, self.now_s, self.used_s, self.at_s = costs_s, 0.0, 0.0, list[float]()
        self.cached = CachedFor(self.ask, least_s, lambda: self.now_s, lambda: self.used_s)

    def ask(self) -> int:
        self.used_s += self.costs_s[min(len(self.at_s), len(self.costs_s) - 1)]
        self.at_s.append(self.now_s)
        return len(self.at_s)

    def until(self, seconds: float) -> list[int]:
        answers = []
        while self.now_s < seconds:
            answers.append(self.cached())
            self.now_s = round(self.now_s + 0.1, 1)
        return answers


def test_an_expensive_question_takes_a_small_share_of_a_core() -> None:
    asked = Asked(0.02)
    answers = asked.until(300.0)
    assert 0.9 * SHARE < asked.used_s / asked.now_s < 1.1 * SHARE
    assert answers == sorted(answers)
    assert (answers[0], answers[-1]) == (1, len(asked.at_s))


def test_imports_and_a_pause_make_no_answer_old() -> None:
    asked = Asked(0.2, 0.0001, 0.5, 0.0001)  # the first imports, the collector pauses the third
    asked.until(30.0)
    assert asked.at_s[:4] == pytest.approx([0.0, 0.1, 0.2, 0.2 + MOST_S])


def test_a_cheap_question_is_asked_as_often_as_it_may_be() -> None:
    asked = Asked(0.0, least_s=3.0)
    asked.until(10.0)
    assert asked.at_s == pytest.approx([0.0, 3.0, 6.0, 9.0])
