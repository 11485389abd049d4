"""Requests in, events out: the three APIs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest

from orchestrator.emulator.api import (
    Completion,
    OpenAICompletion,
    Refused,
    Serving,
    TgiCompletion,
    parse_chat,
    parse_completion,
    parse_tgi,
)
from orchestrator.workloads.images import image_part, png
from tests.unit.emulator.builders import SERVING, body, recorded_tgi


def events(raw: bytes) -> list[Any]:
    texts = [line.removeprefix(b"data:").strip() for line in raw.split(b"\n\n") if line]
    return [text.decode() if text == b"[DONE]" else json.loads(text) for text in texts]


def stream(completion: Completion) -> list[Any]:
    last = completion.output_tokens - 1
    token_events = [completion.event(index, index == last) for index in range(last + 1)]
    return events(b"".join(token_events) + completion.closing_events())


def test_a_prompt_of_token_ids_counts_as_many_tokens() -> None:
    completion = parse_completion(
        body(model="m", prompt=[1, 2, 3], max_tokens=7, stream=True), SERVING
    )
    assert completion.prompt == [1, 2, 3]
    assert completion.prompt_tokens == 3
    assert completion.output_tokens == 7
    assert completion.stream


@pytest.mark.parametrize("parse", [parse_completion, parse_chat])
def test_a_salt_is_taken_as_vllm_takes_it(parse: Any) -> None:
    content = (
        {"prompt": [1]}
        if parse is parse_completion
        else {"messages": [{"role": "user", "content": "hi"}]}
    )
    assert parse(body(**content), SERVING).cache_salt == ""
    assert parse(body(**content, cache_salt="01A"), SERVING).cache_salt == "01A"
    for wrong in ("", 3):
        with pytest.raises(Refused, match="non-empty string"):
            parse(body(**content, cache_salt=wrong), SERVING)


def test_a_text_prompt_is_counted_by_the_tokenizer_of_the_server() -> None:
    completion = parse_completion(
        body(prompt="four words are here"),
        replace(SERVING, count_tokens=lambda text: len(text.split())),
    )
    assert (completion.prompt_tokens, completion.output_tokens) == (4, 16)


def test_chat_ends_by_itself_when_no_limit_is_given() -> None:
    completion = parse_chat(body(messages=[{"role": "user", "content": "hi"}]), SERVING)
    assert (completion.output_tokens, completion.finish_reason) == (256, "stop")
    limited = parse_chat(
        body(messages=[{"role": "user", "content": "hi"}], max_completion_tokens=9), SERVING
    )
    assert (limited.output_tokens, limited.finish_reason) == (9, "length")


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"prompt": []}, 400, "not empty"),
        ({"prompt": [1, "a"]}, 400, "one list of token ids"),
        ({"prompt": [1000]}, 400, "out of vocabulary"),
        ({"prompt": [1], "model": "other"}, 404, "does not exist"),
        ({"prompt": [1], "max_tokens": "9"}, 400, "whole number"),
        ({"prompt": [1], "max_tokens": 0}, 400, "at least 1"),
        ({"prompt": [1] * 4000, "max_tokens": 2000}, 400, "KV cache"),
        ({"prompt": [1], "n": 2}, 400, "one completion"),
        (
            {"prompt": [1], "stream_options": {"include_usage": True}},
            400,
            "only allowed when stream",
        ),
    ],
)
def test_wrong_completion_requests_are_refused_with_the_reason(
    fields: dict[str, Any], status: int, words: str
) -> None:
    with pytest.raises(Refused, match=words) as caught:
        parse_completion(body(**fields), SERVING)
    assert caught.value.status == status


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b"\xff"])
def test_bodies_that_are_no_json_objects_are_refused(raw: bytes) -> None:
    for parse in (parse_completion, parse_chat):
        with pytest.raises(Refused):
            parse(raw, SERVING)
    with pytest.raises(Refused):
        parse_tgi(raw, SERVING, True)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"inputs": ""}, "validation"),
        ({"inputs": "x", "parameters": {"max_new_tokens": 0}}, "validation"),
        ({"inputs": "x", "parameters": []}, ""),
        ({"inputs": 3}, ""),
    ],
)
def test_wrong_tgi_requests_are_validation_errors_or_not_even_understood(
    fields: dict[str, Any], kind: str
) -> None:
    with pytest.raises(Refused) as caught:
        parse_tgi(body(**fields), SERVING, True)
    assert (caught.value.status, caught.value.kind) == (422, kind)


def shape(value: Any) -> Any:
    """Names and kinds of a JSON value, without what it says."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in value.items()}
    return (
        "number"
        if isinstance(value, int | float) and not isinstance(value, bool)
        else type(value).__name__
    )


def test_tgis_events_have_the_fields_of_the_real_ones() -> None:
    real = [
        json.loads(line.removeprefix("data: "))
        for line in recorded_tgi("generate_stream").body.split("\n\n")
    ]
    ours = stream(
        TgiCompletion(
            "id-1", "m", prompt_tokens=5, output_tokens=len(real), stream=True, vocab_size=1000
        )
    )
    assert [shape(event) for event in ours] == [shape(event) for event in real]
    assert [event["index"] for event in ours] == [event["index"] for event in real]


COMPLETION = OpenAICompletion(
    "id-1", "m", prompt_tokens=5, output_tokens=3, stream=True, vocab_size=1000
)
CHAT = replace(COMPLETION, chat=True)


def test_a_completion_stream_has_one_event_per_token_then_the_end() -> None:
    *tokens, done = stream(COMPLETION)
    assert [event["choices"][0]["finish_reason"] for event in tokens] == [None, None, "length"]
    assert "".join(event["choices"][0]["text"] for event in tokens) == COMPLETION.text()
    assert done == "[DONE]"


def test_usage_and_token_ids_come_when_they_are_asked_for() -> None:
    completion = replace(
        COMPLETION,
        include_usage=True,
        continuous_usage=True,
        return_token_ids=True,
        cached_tokens=4,
    )
    *tokens, usage, _ = stream(completion)
    assert [event["usage"]["completion_tokens"] for event in tokens] == [1, 2, 3]
    assert [len(event["choices"][0]["token_ids"]) for event in tokens] == [1, 1, 1]
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8, "prompt_tokens_details": {"cached_tokens": 4},
    }  # fmt: skip


def test_a_chat_stream_begins_with_a_role_that_is_no_token() -> None:
    role, *tokens, _ = stream(CHAT)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(event["choices"][0]["delta"]["content"] for event in tokens) == COMPLETION.text()
    assert role["object"] == "chat.completion.chunk"


def test_a_tgi_stream_ends_with_its_details_and_without_a_marker() -> None:
    completion = TgiCompletion(
        "id-1", "m", prompt_tokens=5, output_tokens=3, stream=True, vocab_size=1000
    )
    *tokens, last = stream(completion)
    assert [event["index"] for event in (*tokens, last)] == [1, 2, 3]
    assert tokens[0]["details"] is None
    assert last["generated_text"] == completion.text()
    assert last["details"]["generated_tokens"] == 3


@pytest.mark.parametrize("chat", [True, False])
def test_a_whole_answer_says_what_its_stream_says(chat: bool) -> None:
    whole = json.loads(orjson.dumps(replace(COMPLETION, stream=False, chat=chat).document()))
    choice = whole["choices"][0]
    assert (choice["message"]["content"] if chat else choice["text"]) == COMPLETION.text()
    assert whole["usage"]["completion_tokens"] == 3


def test_names_with_quotes_stay_json() -> None:
    assert stream(replace(COMPLETION, model='a"b\\c'))[0]["model"] == 'a"b\\c'


def with_adapters(*names: str) -> Serving:
    return replace(SERVING, options=replace(SERVING.options, adapters=names))


def test_an_adapter_is_a_model_that_answers_in_other_words() -> None:
    serving = with_adapters("sql", "law")
    base = parse_completion(body(model="m", prompt=[1, 2, 3], max_tokens=4), serving)
    sql = parse_completion(body(model="sql", prompt=[1, 2, 3], max_tokens=4), serving)
    law = parse_completion(body(model="law", prompt=[1, 2, 3], max_tokens=4), serving)
    assert (base.model, base.adapter) == (serving.options.model, None)
    assert (sql.model, sql.adapter) == ("sql", "sql")
    assert len({base.text(), sql.text(), law.text()}) == 3
    assert len({base.cache_key, sql.cache_key, law.cache_key}) == 3


def test_an_adapter_that_is_not_served_is_refused() -> None:
    with pytest.raises(Refused, match="`math` does not exist"):
        parse_completion(body(model="math", prompt=[1]), with_adapters("sql"))
    parameters = {"adapter_id": "math", "max_new_tokens": 1}
    with pytest.raises(Refused, match="'math' is not served"):
        parse_tgi(body(inputs="a", parameters=parameters), with_adapters("sql"), stream=True)
    parameters["adapter_id"] = "sql"
    served = parse_tgi(body(inputs="a", parameters=parameters), with_adapters("sql"), stream=True)
    assert served.adapter == "sql"


def chat_with(*images: bytes) -> OpenAICompletion:
    parts = [json.loads(image) for image in images]
    content = [*parts, {"type": "text", "text": "look"}]
    return parse_chat(body(messages=[{"role": "user", "content": content}]), SERVING)


def test_a_picture_has_tokens_by_its_pixels_and_is_part_of_the_prompt() -> None:
    def picture(shade: int) -> bytes:
        return image_part(png(np.full((56, 84, 3), shade, np.uint8)))

    plain, one, two = chat_with(), chat_with(picture(1)), chat_with(picture(1), picture(2))
    assert one.prompt_tokens - plain.prompt_tokens == 6  # 56 x 84 / (28 x 28)
    assert two.prompt_tokens - plain.prompt_tokens == 12
    assert len({chat_with(picture(shade)).prompt for shade in (1, 2)}) == 2
    assert chat_with(picture(1)).prompt == one.prompt


def test_a_picture_elsewhere_is_refused() -> None:
    url = {"type": "image_url", "image_url": {"url": "http://a/b.png"}}
    with pytest.raises(Refused, match="data URLs only"):
        parse_chat(body(messages=[{"role": "user", "content": [url]}]), SERVING)
