"""What several wires share: bodies, error objects, usage, odd events."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from orchestrator.load.wire.events import (
    collect_logprobs,
    decode,
    encode,
    error_class,
    error_text,
    is_heartbeat,
    length_fields,
    read_odd_event,
    read_usage,
    refuse,
    text_of,
    token_ids,
)
from orchestrator.load.wire.parsed import Parsed
from orchestrator.results.outcomes import ErrorClass
from orchestrator.spec.dialect import Dialect

# -- bodies


def test_a_null_of_the_user_removes_a_field_of_ours() -> None:
    dialect = Dialect("", "", extra_body={"temperature": None, "user": "u"})
    body = json.loads(encode({"temperature": 0.0, "stream": True}, dialect))
    assert body == {"stream": True, "user": "u"}


def test_fields_of_a_prompt_come_after_those_of_all_requests() -> None:
    dialect = Dialect("", "", extra_body={"top_p": 0.9, "user": "u"})
    body = json.loads(encode({}, dialect, {"top_p": 0.5}))
    assert body == {"top_p": 0.5, "user": "u"}


def test_only_our_own_fields_need_to_be_allowed() -> None:
    dialect = Dialect("", "", allowed_fields=frozenset({"stream"}), extra_body={"mine": 1})
    assert json.loads(encode({"stream": True, "temperature": 0.0}, dialect)) == {
        "stream": True,
        "mine": 1,
    }


@pytest.mark.parametrize("control", ["none", "natural"])
def test_lengths_that_cannot_be_controlled_have_no_fields(control: Any) -> None:
    assert length_fields(9, Dialect("", "", length_control=control)) == {}


def test_the_field_of_the_least_tokens_has_the_name_of_the_dialect() -> None:
    fields = length_fields(9, Dialect("", "", min_tokens_field="least"))
    assert fields == {"ignore_eos": True, "least": 9}


# -- error objects


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"error": {"message": "gone", "code": 500}}, "500 gone"),
        ({"error": "gone", "error_type": "generation"}, "generation: gone"),
        ({"object": "error", "message": "gone"}, "gone"),
        ({"type": "error", "message": "gone"}, "gone"),
        ({"error": {"type": "error", "message": "gone"}}, "gone"),
        ({"object": "error", "type": "BadRequest", "message": "gone"}, "BadRequest gone"),
        ({"error": {"error": {"message": "inside"}}}, "inside"),
        ({"error": {"reason": "other"}}, '{"reason": "other"}'),
        ({"error": {"message": ""}}, None),
        ({"error": None}, None),
        ({"choices": []}, None),
        ("no object", None),
    ],
)
def test_an_error_object_has_the_text_of_its_server(event: Any, text: str | None) -> None:
    assert error_text(event) == text


@pytest.mark.parametrize(
    ("event", "message", "http_status", "expected"),
    [
        ({"error": {"code": 429}}, "", 0, ErrorClass.HTTP_429),
        ({"error": {"code": "400"}}, "", 0, ErrorClass.HTTP_4XX),
        ({"error": {"error": {"status": 404}}}, "", 0, ErrorClass.HTTP_4XX),
        ({"error": {"code": 500}}, "", 400, ErrorClass.STREAM_ERROR),
        ({"error": {"code": "invalid_prompt"}}, "", 400, ErrorClass.HTTP_4XX),
        (None, "Model is overloaded", 422, ErrorClass.HTTP_429),
        (None, "Input validation error", 0, ErrorClass.HTTP_4XX),
        (None, "went away", 0, ErrorClass.STREAM_ERROR),
    ],
)
def test_the_class_of_an_error_is_by_its_status_and_its_words(
    event: Any, message: str, http_status: int, expected: ErrorClass
) -> None:
    assert error_class(event, message, http_status) is expected


def test_an_error_is_a_refusal_only_before_the_first_token() -> None:
    error = {"error": {"code": 400}}
    first, later = Parsed(), Parsed(tokens=[1])
    refuse(error, "too long", first)
    refuse(error, "too long", later)
    assert first.error_class is ErrorClass.HTTP_4XX
    assert later.error_class is ErrorClass.STREAM_ERROR


# -- JSON


def test_payloads_that_are_no_json_stay_bytes() -> None:
    assert decode([b'{"a":1}', b"ping"]) == [{"a": 1}, b"ping"]


def test_a_payload_of_two_values_does_not_shift_the_others() -> None:
    assert decode([b"1,2", b"3"]) == [b"1,2", 3]


def test_a_byte_that_is_no_utf_8_spoils_only_a_character() -> None:
    assert decode([b'{"text":"a\xff"}']) == [{"text": "a\ufffd"}]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "a"),
        (["a", {"type": "text", "text": "b"}], "ab"),
        ({"content": "c"}, "c"),
        (5, "5"),
        (None, ""),
        (True, ""),
        ({}, ""),
    ],
)
def test_a_text_may_come_as_parts(value: Any, text: str) -> None:
    assert text_of(value) == text


@pytest.mark.parametrize("value", [None, "5", [5, "6"], [5, -1], [5, 2**31], [True]])
def test_what_is_no_list_of_token_ids_is_none(value: Any) -> None:
    assert token_ids(value) is None


def test_usage_is_recorded_with_the_event_that_had_it() -> None:
    parsed = Parsed(tokens=[1, 1])
    details = {"cached_tokens": 4}
    usage = {"prompt_tokens": 8, "completion_tokens": 3, "prompt_tokens_details": details}
    assert read_usage(usage, parsed) == 3
    assert (parsed.input_tokens, parsed.cached_tokens, parsed.output_tokens) == (8, 4, 3)
    assert parsed.total_event == 2


@pytest.mark.parametrize("usage", [None, [], "x", {"completion_tokens": -1}])
def test_usage_of_another_form_has_no_total(usage: Any) -> None:
    assert read_usage(usage, Parsed()) is None


def test_null_log_probabilities_are_nan() -> None:
    parsed = Parsed()
    collect_logprobs([-0.5, None], parsed)
    collect_logprobs([-1], parsed)
    assert parsed.logprobs == pytest.approx([-0.5, math.nan, -1.0], nan_ok=True)


@pytest.mark.parametrize("values", [None, [], {"a": 1}])
def test_no_list_of_log_probabilities_is_none(values: Any) -> None:
    parsed = Parsed()
    collect_logprobs(values, parsed)
    assert parsed.logprobs is None


# -- odd events


@pytest.mark.parametrize("name", [b"", b"ping", b": keep-alive", b"HEARTBEAT", b"OK processing"])
def test_words_that_keep_a_connection_open_are_heartbeats(name: bytes) -> None:
    assert is_heartbeat(name) == (name != b"OK processing")


@pytest.mark.parametrize("event", [None, [], b"ping", "ping", {}, {"id": "x", "status": 200}])
def test_an_event_that_holds_nothing_is_ignored(event: Any) -> None:
    parsed = Parsed()
    read_odd_event(event, parsed)
    assert parsed.ignored is not None
    assert (parsed.garbage, parsed.error, parsed.tokens) == (None, None, [0])


@pytest.mark.parametrize("event", [b"hello", 7, {"text": "a"}, {"code": 500}, {"type": "failed"}])
def test_an_event_that_belongs_to_another_api_is_garbage(event: Any) -> None:
    parsed = Parsed()
    read_odd_event(event, parsed)
    assert parsed.garbage is not None
    assert parsed.garbage.startswith("not an event of this API")


def test_an_error_object_without_other_fields_is_an_error() -> None:
    parsed = Parsed()
    read_odd_event({"error": {"message": "gone"}}, parsed)
    assert (parsed.error, parsed.garbage) == ("gone", None)
