"""The sentences of a sweep about points and engines."""

from __future__ import annotations

import pytest

from orchestrator.analysis.broken_output import BrokenOutput, Sign
from orchestrator.sweep.words import broken_output_text


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        (
            BrokenOutput(Sign.NAN, 8, answers_with_nan=5),
            "in 5 of 8 answers to fixed prompts a log-probability is NaN",
        ),
        (BrokenOutput(Sign.EMPTY, 8), "all 8 answers to fixed prompts are empty"),
        (
            BrokenOutput(Sign.SAME_TOKEN, 8, tokens=64, token_id=0),
            "all 64 tokens of 8 answers to different prompts are the same (id 0)",
        ),
        (
            BrokenOutput(Sign.SAME_TOKEN_AFTER_FIRST, 8, replica=1, tokens=56, token_id=3),
            "replica 1: all 56 tokens after the first of 8 answers to different prompts are the"
            " same (id 3)",
        ),
        (
            BrokenOutput(Sign.SAME_TEXT, 8, piece="!"),
            "all 8 answers to different prompts repeat '!'",
        ),
    ],
)
def test_every_sign_of_broken_output_has_a_sentence(broken: BrokenOutput, text: str) -> None:
    assert broken_output_text(broken) == text
