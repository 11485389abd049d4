"""Output of an engine told from noise, by its answers to fixed prompts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.analysis.broken_output import BrokenOutput, Sign, broken_output
from orchestrator.results.records import AnswerRow
from tests.unit.analysis.test_output_agreement import GOOD, answer

NAN = float("nan")
# of each replica alone there are too few answers to tell
ONE_OF_EACH_REPLICA = [answer(at, (at, *[0] * 7), replica=at) for at in range(8)]
SAME_TEXT = [answer(at, None, "!!!!!!!!") for at in range(8)]
AFTER_FIRST = BrokenOutput(Sign.SAME_TOKEN_AFTER_FIRST, 8, tokens=56, token_id=0)


@pytest.mark.parametrize(
    ("answers", "broken"),
    [
        (
            [answer(at, (7,) * 8) for at in range(8)],
            BrokenOutput(Sign.SAME_TOKEN, 8, tokens=64, token_id=7),
        ),
        ([answer(at, (at, *[0] * 7)) for at in range(8)], AFTER_FIRST),
        (SAME_TEXT, BrokenOutput(Sign.SAME_TEXT, 8, piece="!")),
        (
            [answer(at, None, f"word{at}" + "!" * 7) for at in range(8)],
            BrokenOutput(Sign.SAME_TEXT, 8, piece="!"),
        ),
        (
            [answer(at, row.token_ids, logprobs=(NAN, -1.0)) for at, row in enumerate(GOOD)],
            BrokenOutput(Sign.NAN, 8, answers_with_nan=8),
        ),
    ],
)
def test_noise_of_one_replica_is_recognized(answers: list[AnswerRow], broken: BrokenOutput) -> None:
    assert broken_output(answers) == [broken]


def test_empty_answers_are_no_output() -> None:
    empty = [replace(row, text="", token_ids=None) for row in GOOD]
    assert broken_output(empty) == [BrokenOutput(Sign.EMPTY, 8)]


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param([], id="none"),
        pytest.param(SAME_TEXT[:3], id="too few"),
        pytest.param([*SAME_TEXT[1:], answer(0, None, "a word")], id="one says something"),
        pytest.param(
            [answer(0, (1, *range(7))), *(answer(at, (1, *[0] * 7)) for at in range(1, 8))],
            id="one has other tokens",
        ),
        pytest.param([answer(at, None, f"I know {at}....") for at in range(8)], id="four dots"),
        pytest.param([answer(0, (1, 2), logprobs=(-1.0, NAN)), *GOOD[1:]], id="one NaN"),
    ],
)
def test_output_that_looks_odd_is_output(answers: list[AnswerRow]) -> None:
    assert broken_output(answers) == []


def test_replicas_with_few_answers_are_judged_together() -> None:
    assert broken_output(ONE_OF_EACH_REPLICA) == [AFTER_FIRST]


def test_a_replica_with_an_answer_of_nothing_but_nan_is_named() -> None:
    answers = [answer(0, (1, 2), logprobs=(NAN, NAN)), *ONE_OF_EACH_REPLICA[1:3]]
    assert broken_output(answers) == [BrokenOutput(Sign.NAN, 1, replica=0, answers_with_nan=1)]
