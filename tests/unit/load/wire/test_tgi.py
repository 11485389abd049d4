"""Events of TGI: a token each, and the details with the last one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.load.wire.parsed import Parsed
from orchestrator.load.wire.tgi import WIRE
from orchestrator.spec.dialect import TGI_STREAM
from orchestrator.workloads.kind import Message, Prompt


def read(*events: dict[str, Any]) -> Parsed:
    parsed = Parsed(texts=[])
    WIRE.read([json.dumps(event).encode() for event in events], parsed)
    return parsed


def token(token_id: int, text: str, **fields: Any) -> dict[str, Any]:
    return {"token": {"id": token_id, "text": text}, **fields}


def test_each_event_is_one_token() -> None:
    parsed = read(token(5, " a"), token(6, ""))
    assert parsed.tokens == [1, 1]
    assert parsed.source == "native"
    assert parsed.token_ids == [5, 6]
    assert "".join(parsed.texts or ()) == " a"


def test_the_details_end_the_stream_and_hold_its_counts() -> None:
    details = {"finish_reason": "length", "generated_tokens": 2, "input_length": 8}
    parsed = read(token(5, " a"), token(6, " b", generated_text=" a b", details=details))
    assert parsed.ended
    assert (parsed.finish_reason, parsed.output_tokens, parsed.input_tokens) == ("length", 2, 8)


def test_counts_within_the_last_token_are_taken_as_well() -> None:
    last = {"token": {"id": 6, "text": " b", "prompt_tokens": 8, "count_output_tokens": 2}}
    parsed = read(token(5, " a"), {**last, "finished": True, "finish_reason": "stop"})
    assert (parsed.finish_reason, parsed.output_tokens, parsed.input_tokens) == ("stop", 2, 8)


def test_an_event_after_the_end_is_no_part_of_the_answer() -> None:
    parsed = read(token(5, " a", generated_text=" a", details={}), token(6, " b"))
    assert (parsed.tokens, parsed.token_ids) == ([1, 0], [5])


def test_a_token_of_another_form_is_garbage() -> None:
    garbage = read({"token": "a"}).garbage
    assert garbage is not None and garbage.startswith("not a token of this API")


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({}, {"do_sample": False}),
        ({"temperature": 0}, {"do_sample": False}),
        ({"temperature": 0.7}, {"do_sample": True, "temperature": 0.7}),
        ({"top_k": 5}, {"do_sample": True, "top_k": 5}),
        ({"top_p": None}, {"do_sample": False}),
        ({"top_p": 0.9, "do_sample": False}, {"do_sample": False, "top_p": 0.9}),
    ],
)
def test_answers_are_sampled_where_sampling_is_asked_for(
    fields: dict[str, Any], sent: dict[str, Any]
) -> None:
    body = json.loads(
        WIRE.body(Prompt((Message("user", ("hi",), 1),), 1, fields), 9, "m", TGI_STREAM)
    )
    others = {"max_new_tokens": 9, "details": True}
    assert body["parameters"] == others | sent
