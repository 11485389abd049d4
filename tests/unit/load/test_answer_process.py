"""Answers are checked in a process of its own, which gives up what takes too long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from orchestrator.load.answer_check import ConstrainedAnswer
from orchestrator.load.answer_process import MOST_TIMEOUTS, AnswerProcess
from orchestrator.spec.constraint import Constraint, ConstraintKind

DIGITS = Constraint(ConstraintKind.REGEX, regex="[0-9]+")
# every way to divide the letters is tried before an answer without an end is no match
ENDLESS = Constraint(ConstraintKind.REGEX, regex="(a+)+b")
ENDLESS_SCHEMA = Constraint(
    ConstraintKind.JSON_SCHEMA, schema={"type": "string", "pattern": "^(a+)+b$"}
)
LETTERS = "a" * 64


@pytest.fixture
def process() -> Iterator[AnswerProcess]:
    with closing(AnswerProcess(limit_s=0.05)) as process:
        yield process


def answer(constraint: int, text: str) -> ConstrainedAnswer:
    return ConstrainedAnswer(constraint, text, "stop")


def test_an_answer_whose_check_has_no_end_is_unchecked_and_others_are_not(
    process: AnswerProcess,
) -> None:
    answers = [answer(0, "12"), answer(1, LETTERS), answer(1, "aab"), answer(0, "one")]
    assert process.check([DIGITS, ENDLESS], answers) == [True, None, True, False]


def test_a_pattern_within_a_schema_is_bounded_too(process: AnswerProcess) -> None:
    answers = [answer(0, f'"{LETTERS}"'), answer(0, '"aab"')]
    assert process.check([ENDLESS_SCHEMA], answers) == [None, True]


def test_constraints_that_come_later_are_known_by_their_numbers(process: AnswerProcess) -> None:
    assert process.check([DIGITS], [answer(0, "12")]) == [True]
    assert process.check([DIGITS, ENDLESS], [answer(1, "12"), answer(0, "12")]) == [False, True]


def test_after_many_such_answers_nothing_more_is_checked(process: AnswerProcess) -> None:
    answers = [answer(1, LETTERS)] * (MOST_TIMEOUTS + 1000) + [answer(0, "12")]
    assert process.check([DIGITS, ENDLESS], answers) == [None] * len(answers)


def test_a_process_that_was_killed_is_followed_by_another(process: AnswerProcess) -> None:
    assert process.check([DIGITS], [answer(0, "12")]) == [True]
    assert process._process is not None
    process._process.kill()
    process._process.wait()
    assert process.check([DIGITS], [answer(0, "12"), answer(0, "no")]) == [True, False]


def test_without_a_process_nothing_is_checked() -> None:
    with closing(AnswerProcess(python="/nowhere/python")) as process:
        assert process.check([DIGITS], [answer(0, "12")]) == [None]
