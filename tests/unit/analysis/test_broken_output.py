"""Output of an engine told from noise, by its answers to fixed prompts."""

from __future__ import annotations

import pytest

from orchestrator.analysis.broken_output import broken
from orchestrator.results.records import AnswerRow
from tests.unit.analysis.test_output_agreement import EIGHT, answer


def test_text_is_told_to_be_one_token_for_ever_only_where_all_answers_are() -> None:
    same = [answer(at, None, "!!!!!!!!") for at in range(8)]
    assert broken(same) == ["all 8 answers to different prompts repeat '!'"]
    assert broken([*same[1:], answer(0, None, "a word")]) == []
    assert broken(same[:3]) == [], "so few say nothing"
    assert broken([]) == []


NAN = float("nan")
# so few of each replica say nothing alone
SPREAD = [answer(at, (at, *[0] * 7), replica=at) for at in range(8)]


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (
            [answer(at, (at, *[0] * 7)) for at in range(8)],
            "all 56 tokens after the first of 8 answers",
        ),
        ([answer(at, (1, *([0] * 7 if at else range(7)))) for at in range(8)], None),
        (
            [answer(at, None, f"word{at}" + "!" * 7) for at in range(8)],
            "all 8 answers to different prompts repeat '!'",
        ),
        ([answer(at, None, f"I know {at}....") for at in range(8)], None),
        (SPREAD, "all 56 tokens after the first of 8 answers"),
        ([answer(0, (1, 2), logprobs=(NAN, NAN)), *SPREAD[1:3]], "replica 0: in 1 of 1 answers"),
        ([answer(0, (1, 2), logprobs=(-1.0, NAN)), *EIGHT[1:]], None),
        (
            [answer(at, one.token_ids, logprobs=(NAN, -1.0)) for at, one in enumerate(EIGHT)],
            "in 8 of 8 answers",
        ),
    ],
)
def test_noise_is_told_from_output_that_looks_odd(
    answers: list[AnswerRow], said: str | None
) -> None:
    found = broken(answers)
    assert found[0].startswith(said) if said else found == [], found
