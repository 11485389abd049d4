"""Events of OpenAI's completions and chat: what is content, and how many tokens it holds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.load.wire.openai import CHAT, COMPLETIONS
from orchestrator.load.wire.parsed import UNKNOWN, Parsed


def read(*events: dict[str, Any], collect: bool = False) -> Parsed:
    parsed = Parsed(texts=[] if collect else None)
    CHAT.read([json.dumps(event).encode() for event in events], parsed)
    return parsed


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"delta": fields}]}


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"content": "a"}, UNKNOWN),
        ({"content": [{"type": "text", "text": "a"}]}, UNKNOWN),
        ({"refusal": "no"}, UNKNOWN),
        ({"reasoning": "hm"}, UNKNOWN),
        ({"tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}, UNKNOWN),
        ({"tool_calls": [{"function": {"arguments": {}}}]}, 0),
        ({"role": "assistant", "content": ""}, 0),
        ({"content": None}, 0),
        ({}, 0),
    ],
)
def test_an_event_with_text_is_content(fields: dict[str, Any], tokens: int) -> None:
    assert read(delta(**fields)).tokens == [tokens]


def test_token_ids_count_the_tokens_of_an_event() -> None:
    parsed = Parsed()
    event = {"choices": [{"text": "", "token_ids": [5, 6]}]}
    COMPLETIONS.read([json.dumps(event).encode()], parsed)
    assert (parsed.tokens, parsed.source) == ([2], "token_ids")


def test_reasoning_is_a_thought_and_no_part_of_the_answer() -> None:
    parsed = read(delta(reasoning_content="hm"), delta(content="a"), collect=True)
    assert parsed.thoughts == [0]
    assert parsed.texts == ["hm", "a"]
    assert parsed.answer_texts == ["a"]


def test_a_tool_call_is_text_with_its_name_and_arguments() -> None:
    call = {"function": {"name": "add", "arguments": {"a": 1}}}
    assert read(delta(tool_calls=[call]), collect=True).texts == ['add{"a": 1}']


def test_a_running_usage_is_recorded_by_event() -> None:
    parsed = read(
        {**delta(content="a"), "usage": {"completion_tokens": 2}},
        {**delta(content="b"), "usage": {"completion_tokens": 3}},
    )
    assert parsed.running is not None
    assert parsed.running.growth == {0: 2, 1: 1}


def test_a_usage_without_choices_is_an_event_without_content() -> None:
    parsed = read({"choices": [], "usage": {"completion_tokens": 3}})
    assert (parsed.tokens, parsed.output_tokens) == ([0], 3)


@pytest.mark.parametrize("choices", ["text", ["text"], {"delta": {"content": "a"}}])
def test_choices_of_another_form_are_garbage(choices: Any) -> None:
    garbage = read({"choices": choices}).garbage
    assert garbage is not None and garbage.startswith("not choices of this API")


def test_an_error_within_a_choice_is_an_error() -> None:
    assert read({"choices": [{"error": {"message": "gone"}}]}).error == "gone"
