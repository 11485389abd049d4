"""What a line of a prompt file asks for is read, or the line is refused: no key disappears."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.workloads.entries import (
    ANSWER_LENGTHS,
    ANSWERS,
    REFUSED,
    SAMPLING,
    UNUSED,
    PromptEntry,
    read_entry,
)
from orchestrator.workloads.file_reading import EntryError


def read(**keys: Any) -> PromptEntry:
    line = read_entry({"prompt": "x", **keys}, "")
    assert line is not None
    return line


def reasons(entry: dict[str, Any]) -> list[str]:
    with pytest.raises(EntryError) as caught:
        read_entry(entry, entry)
    return list(caught.value.reasons)


@pytest.mark.parametrize("name", ANSWER_LENGTHS)
def test_every_name_of_an_answers_length_is_honoured(name: str) -> None:
    assert read(**{name: 7}).output_tokens == 7
    assert read(**{name: None}).output_tokens is None


def test_two_lengths_of_one_answer_must_agree() -> None:
    assert read(output_tokens=5, max_tokens=5).output_tokens == 5
    assert reasons({"prompt": "x", "output_tokens": 5, "max_tokens": 6}) == [
        "output_tokens 5 and max_tokens 6 are two lengths of one answer: give one"
    ]


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_key_that_would_change_a_request_is_refused_by_name(name: str) -> None:
    key = name.replace("*", "_x")
    (reason,) = reasons({"prompt": "x", key: "y"})
    assert reason == f"{key!r} is not sent: {REFUSED[name]}"
    assert read(**{key: None}) == read(**{key: ""}) == read(), "it asks for nothing"


def test_an_unknown_key_is_refused_unless_it_is_marked() -> None:
    (reason,) = reasons({"prompt": "x", "temprature": 0.5})
    assert reason.startswith("'temprature' is not sent: it is not known")
    assert read(_temprature=0.5).unused == {"_temprature"}


@pytest.mark.parametrize("value", [False, [], {}])
def test_an_unknown_key_is_refused_though_its_value_is_empty(value: object) -> None:
    (reason,) = reasons({"prompt": "x", "add_special_tokens": value})
    assert reason.startswith("'add_special_tokens' is not sent: it is not known")


@pytest.mark.parametrize("value", [None, ""])
def test_an_unknown_key_without_a_value_is_listed(value: object) -> None:
    assert read(temprature=value).unused == {"temprature"}


@pytest.mark.parametrize(
    ("name", "value"),
    [("tools", []), ("stream_options", {}), ("echo", False), ("skip_special_tokens", True)],
)
def test_a_key_with_the_value_that_servers_take_anyway_asks_for_nothing(
    name: str, value: object
) -> None:
    assert read(**{name: value}).unused == frozenset()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("skip_special_tokens", False), ("add_generation_prompt", False), ("stream", False)),
        *(("guided_json", {}), ("n", True), ("logprobs", 0)),
        *(("ignore_eos", False), ("min_tokens", 0)),
    ],
)
def test_a_false_or_empty_value_that_changes_a_request_is_refused(name: str, value: object) -> None:
    (reason,) = reasons({"prompt": "x", name: value})
    assert reason.startswith(f"{name!r} is not sent")


def test_a_key_is_of_one_kind_only() -> None:
    kinds = [set(ANSWER_LENGTHS), set(SAMPLING), set(UNUSED), set(ANSWERS)]
    assert len(set.union(*kinds)) == sum(map(len, kinds))
    for name in set.union(*kinds):
        assert read(**{name: 1}) is not None, name


@example({"": 1})
@given(st.dictionaries(st.text(max_size=12), st.integers(1, 9), max_size=4))
def test_no_key_of_a_line_disappears(keys: dict[str, int]) -> None:
    try:
        line = read(**keys)
    except EntryError:
        return
    used = {*line.unused, *line.fields, *(ANSWER_LENGTHS if line.output_tokens else ())}
    asked = {key for key, value in keys.items() if (key, value) not in (("n", 1), ("best_of", 1))}
    assert asked <= used


def test_only_one_key_may_say_what_is_sent() -> None:
    chat = [{"role": "user", "content": "y"}]
    assert reasons({"prompt": "x", "messages": chat}) == [
        '"prompt" and "messages" both say what is sent: give one of them'
    ]
    assert read(messages=None) == read()
    assert reasons({"prompt": "x", "hash_ids": [1]}) == [
        "'hash_ids' belong to 'input_length', which is missing"
    ]


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"role": "user", "content": "x", "tool_calls": [1]}, "'tool_calls' is not sent"),
        ({"role": "user", "content": "x", "name": "Bob"}, "'name' is not sent"),
        (
            {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {}}]},
            "and a text",
        ),
    ],
)
def test_what_a_message_holds_besides_its_text_is_refused(
    message: dict[str, Any], problem: str
) -> None:
    (reason,) = reasons({"messages": [message]})
    assert problem in reason


def test_all_keys_of_a_message_that_are_not_sent_are_named_with_what_to_do() -> None:
    message = {"role": "user", "content": "x", "country": "NO", "state": "Oslo", "toxic": False}
    assert reasons({"messages": [message]}) == [
        "message 1 of \"messages\": 'country', 'state' are not sent: only its role and its text "
        "are; to send messages without them, give 'leave_out: [country, state]' in 'columns'"
    ]


@pytest.mark.parametrize("name", ["messages", "conversations"])
def test_keys_of_messages_that_change_nothing_are_listed(name: str) -> None:
    speaker, text = ("role", "content") if name == "messages" else ("from", "value")
    asked = {speaker: "user", text: "x", "weight": 1, "markdown": None, "_own": 2}
    answered = {speaker: "assistant", text: "y", "language": "en", "tool_calls": None, "name": ""}
    entry = read_entry({name: [asked, answered], "id": 7}, "")
    assert entry is not None
    assert entry.unused == {"id", "weight", "markdown", "_own", "language"}


@pytest.mark.parametrize("name", ["user", "metadata", "service_tier", "store"])
def test_what_openais_api_has_about_a_request_is_listed(name: str) -> None:
    entry = read_entry({"prompt": "x", name: "y"}, "")
    assert entry is not None
    assert (entry.fields, entry.unused) == ({}, {name})


def said(*messages: tuple[str, str]) -> list[dict[str, str]]:
    return [{"from": speaker, "value": text} for speaker, text in messages]


@pytest.mark.parametrize(
    ("outputs", "problem"),
    [
        ({"grammar": "root ::= a"}, "'structured_outputs' is not sent: answers are checked"),
        ({"json": {}, "regex": "a"}, "needs one of"),
        ({"json": {"type": "nothing"}}, "the schema of 'structured_outputs' is no JSON schema"),
        ({"regex": "["}, "is no regular expression"),
        ({"regex": 7}, "is no regular expression"),
        ({"choice": []}, "is no list of texts"),
    ],
)
def test_structured_outputs_that_cannot_be_checked_are_refused(
    outputs: dict[str, Any], problem: str
) -> None:
    with pytest.raises(EntryError, match=re.escape(problem)):
        read_entry({"prompt": "hi", "structured_outputs": outputs}, "")


def test_an_answer_has_one_constraint() -> None:
    response_format = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}
    both = {"response_format": response_format, "structured_outputs": {"regex": "a"}}
    with pytest.raises(EntryError, match="both constrain the answer"):
        read_entry({"prompt": "hi"} | both, "")


@pytest.mark.parametrize("prompt", ["Say hi", [1, 2, 3]])
def test_an_answer_recorded_beside_a_prompt_or_its_token_ids_is_read(prompt: object) -> None:
    entry = read_entry({"prompt": prompt, "completion": "Hi"}, "")
    assert entry is not None
    assert entry.answer == "Hi"


def test_messages_that_are_not_sent_are_counted() -> None:
    talk = said(
        ("gpt", "Who is there?"),
        ("human", "Me"),
        ("gpt", "Hello"),
        ("gpt", "Again"),
        ("system", "Be brief"),
        ("human", "Why?"),
    )
    entry = read_entry({"conversations": talk}, "", sessions=True)
    assert entry is not None
    assert entry.unsent_messages == 3
    assert [turn.text for turn in entry.later_turns] == ["Why?"]
    whole = read_entry({"conversations": said(("human", "Me"), ("gpt", "Hello"))}, "", True)
    assert whole is not None
    assert whole.unsent_messages == 0


def test_a_session_that_begins_with_a_picture_alone_sends_it() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    talk = [
        {"role": "user", "content": [picture]},
        {"role": "assistant", "content": "A cat"},
        {"role": "user", "content": [picture]},
    ]
    entry = read_entry({"messages": talk}, "", sessions=True)
    assert entry is not None
    assert [len(message.images) for message in entry.messages] == [1]
    assert (entry.answer, entry.unsent_messages) == ("A cat", 0)


def test_messages_behind_the_recorded_answer_are_counted() -> None:
    chat = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "y"},
        {"role": "system", "content": "z"},
    ]
    entry = read_entry({"messages": chat}, "")
    assert entry is not None
    assert (entry.answer, entry.unsent_messages) == ("y", 1)


def test_what_stands_around_the_body_of_a_batch_is_not_dropped() -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "model": "m", "max_tokens": 4}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    entry = read_entry(line, "")
    assert entry is not None
    assert entry.unused == {"custom_id", "model"}
    assert reasons({**line, "method": "GET", "priority": 3}) == [
        "\"method\" is 'GET'; requests are sent by POST",
        "'priority' is not sent: it stands beside \"body\", not in it",
    ]
