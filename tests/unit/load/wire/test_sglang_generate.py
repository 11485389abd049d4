"""Events of SGLang's /generate: whole texts and counts, or increments."""

from __future__ import annotations

import json
from typing import Any

from orchestrator.load.wire.parsed import UNKNOWN, Parsed
from orchestrator.load.wire.sglang_generate import WIRE
from orchestrator.results.outcomes import ErrorClass


def event(text: str, total: int, **meta: Any) -> dict[str, Any]:
    """``total``: tokens of the answer so far."""
    return {"text": text, "meta_info": {"completion_tokens": total, **meta}}


def read(*events: dict[str, Any]) -> Parsed:
    parsed = Parsed(texts=[])
    WIRE.read([json.dumps(data).encode() for data in events], parsed)
    return parsed


def test_a_text_that_did_not_change_is_no_content() -> None:
    parsed = read(event("a", 1), event("a", 1), event("ab", 2))
    assert parsed.tokens == [UNKNOWN, 0, UNKNOWN]  # UNKNOWN: some content


def test_a_growing_list_of_ids_is_content_without_text() -> None:
    parsed = read({"output_ids": [5]}, {"output_ids": [5, 6]})
    assert parsed.tokens == [UNKNOWN, UNKNOWN]


def test_a_text_that_begins_with_the_one_before_is_the_whole_answer() -> None:
    assert read(event("a", 1), event("ab", 2)).texts == ["ab"]


def test_any_other_text_is_an_increment_of_the_answer() -> None:
    assert read(event("a", 1), event("b", 2)).texts == ["a", "b"]


def test_log_probabilities_that_are_repeated_with_each_event_are_taken_once() -> None:
    first, second = [-0.5, 5, None], [-1.0, 6, None]
    whole = read(
        event("a", 1, output_token_logprobs=[first]),
        event("ab", 2, output_token_logprobs=[first, second]),
    )
    increments = read(
        event("a", 1, output_token_logprobs=[first]),
        event("ab", 2, output_token_logprobs=[second]),
    )
    assert whole.logprobs == increments.logprobs == [-0.5, -1.0]


def test_an_abort_is_an_error_with_the_message_of_the_engine() -> None:
    parsed = read(event("a", 1), event("a", 1, finish_reason={"type": "abort", "message": "oom"}))
    assert parsed.error == "aborted by the engine: oom"
    assert parsed.error_class is ErrorClass.STREAM_ERROR


def test_an_event_without_a_field_of_this_api_is_garbage() -> None:
    assert read({"content": "a"}).garbage is not None
