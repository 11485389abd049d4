"""What sessions are drawn from: turns, pauses, documents and where their content comes from."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.spec.load import MOST_TURNS
from orchestrator.spec.sessions import ContentSource, Documents, Pauses, Turns


def test_a_number_of_turns_is_stored_as_a_number() -> None:
    assert Turns.model_validate(3).model_dump() == 3


@pytest.mark.parametrize("turns", [0, MOST_TURNS + 1, {"uniform": {"min": 1, "max": 10**6}}])
def test_a_session_has_at_least_one_turn_and_not_too_many(turns: Any) -> None:
    with pytest.raises(ValidationError, match=r"turns"):
        Turns.model_validate(turns)


def test_the_longest_session_has_the_most_turns_that_are_drawn() -> None:
    assert Turns.model_validate({"uniform": {"min": 2, "max": 8}}).most == 8
    assert Turns.model_validate({"lognormal": {"mean": 4, "sigma": 1}}).most == MOST_TURNS


def test_a_pause_alone_is_stored_in_seconds() -> None:
    assert Pauses.model_validate("1500ms").model_dump() == 1.5


@pytest.mark.parametrize(
    ("pauses", "reason"),
    [
        ({}, "give one of"),
        ({"fixed": "1s", "exponential": {"mean": "8s"}}, "give one of"),
        ({"uniform": {"min": "9s", "max": "1s"}}, "9 s"),
    ],
)
def test_pauses_are_given_in_one_way_and_ascend(pauses: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        Pauses.model_validate(pauses)


@pytest.mark.parametrize(
    ("count", "reason"),
    [
        (4, "may have 4 documents, and the pool has 3"),
        ({"lognormal": {"mean": 2, "sigma": 1}}, "give max"),
    ],
)
def test_a_prompt_has_no_more_documents_than_the_pool(count: Any, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        Documents.model_validate({"count": count, "tokens": 10, "pool": 3})


@pytest.mark.parametrize("content", [{}, {"words": True, "text": "book.txt"}])
def test_content_is_words_or_a_text(content: dict[str, Any]) -> None:
    assert ContentSource.model_validate("words").words is True
    with pytest.raises(ValidationError, match="give words, or a text file"):
        ContentSource.model_validate(content)


def test_pauses_without_a_histogram_are_stored_as_before_there_were_any() -> None:
    drawn = Pauses.model_validate({"exponential": {"mean": "2s"}})
    assert "histogram" not in drawn.model_dump()
    binned = Pauses.model_validate({"histogram": [{"min": "1s", "max": "2s"}]})
    assert Pauses.model_validate(binned.model_dump(mode="json")) == binned
