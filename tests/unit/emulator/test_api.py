"""Requests in, events out: the three APIs, the prefix cache and the metrics text."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from orchestrator.emulator.api import (
    Answer,
    OpenAIAnswer,
    Refused,
    Serving,
    TgiAnswer,
    parse_chat,
    parse_completion,
    parse_tgi,
)
from orchestrator.emulator.app import App
from orchestrator.emulator.flags import Options
from orchestrator.emulator.http import ClientConnection, HttpRequest
from orchestrator.emulator.metrics import Histograms, exposition
from orchestrator.emulator.prefix import PrefixCache
from orchestrator.emulator.profile import Profile
from orchestrator.engines.registry import ENGINES
from orchestrator.spec.settings import Hardware
from orchestrator.telemetry.engine_metrics import normalize
from tests.unit.emulator.builders import IDEAL, a_replica, settings

OPTIONS = Options(settings(), Hardware(name="emulated"), Profile(), "m")
SERVING = Serving(OPTIONS, a_replica(kv_cache_tokens=5000), vocab_size=1000)


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def events(raw: bytes) -> list[Any]:
    texts = [line.removeprefix(b"data:").strip() for line in raw.split(b"\n\n") if line]
    return [text.decode() if text == b"[DONE]" else json.loads(text) for text in texts]


def stream(answer: Answer) -> list[Any]:
    tokens = answer.output_tokens
    return events(
        b"".join(answer.event(index, index == tokens - 1) for index in range(tokens))
        + answer.close()
    )


def test_a_prompt_of_token_ids_counts_as_many_tokens() -> None:
    asked = parse_completion(body(model="m", prompt=[1, 2, 3], max_tokens=7, stream=True), SERVING)
    assert (asked.prompt_tokens, asked.output_tokens, asked.stream, asked.prompt) == (
        3,
        7,
        True,
        [1, 2, 3],
    )


def test_requests_with_another_salt_share_no_prefix() -> None:
    cache, prompt = PrefixCache(10_000), list(range(64))
    hits = [cache.take(prompt, salt, 0).hit_tokens for salt in ("", "", "one", "one", "two")]
    assert hits == [0, 48, 0, 48, 0]


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
    asked = parse_completion(
        body(prompt="four words are here"),
        replace(SERVING, count_tokens=lambda text: len(text.split())),
    )
    assert (asked.prompt_tokens, asked.output_tokens) == (4, 16)


def test_chat_ends_by_itself_when_no_limit_is_given() -> None:
    asked = parse_chat(body(messages=[{"role": "user", "content": "hi"}]), SERVING)
    assert (asked.output_tokens, asked.finish_reason) == (256, "stop")
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


RECORDED = Path(__file__).parents[2] / "contract" / "streams"


class Heard(ClientConnection):
    """A connection that keeps what it would send."""

    def __init__(self) -> None:
        super().__init__(lambda request, connection: None)
        self.sent = b""

    def write(self, data: bytes) -> None:
        self.sent += data

    def answer(self) -> tuple[int, str, str]:
        """Status, content type, body without its chunks."""
        head, _, rest = self.sent.partition(b"\r\n\r\n")
        kind = re.search(rb"content-type: (\S+)", head)
        assert kind
        text = b"".join(rest.split(b"\r\n")[1:-3:2]) if b"chunked" in head else rest
        return int(head.split()[1]), kind[1].decode().rstrip(";"), text.decode().strip()


def recorded(name: str) -> tuple[int, str, str]:
    """What the real TGI answered, 3.3.7."""
    head, _, text = (RECORDED / f"tgi-{name}.http").read_bytes().partition(b"\r\n\r\n")
    kind = re.search(rb"content-type: (\S+)", head)
    assert kind
    return int(head.split()[1]), kind[1].decode().rstrip(";"), text.decode().strip()


def shape(value: Any) -> Any:
    """Names and kinds of a JSON value, without what it says."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in value.items()}
    return (
        "number"
        if isinstance(value, int | float) and not isinstance(value, bool)
        else type(value).__name__
    )


@pytest.mark.parametrize(
    ("name", "path", "limit", "fields", "wording"),
    [
        ("overloaded_generate", "/generate_stream", 0, {"inputs": "x"}, "Model is overloaded"),
        ("overloaded_whole", "/generate", 0, {"inputs": "x"}, "Model is overloaded"),
        (
            "too_long_generate",
            "/generate_stream",
            9,
            {"inputs": "x " * 9999},
            "Input validation error: ",
        ),
        (
            "zero_new_tokens",
            "/generate",
            9,
            {"inputs": "x", "parameters": {"max_new_tokens": 0}},
            "Input validation",
        ),
        ("bad_json", "/generate_stream", 9, None, "Failed to parse the request body as JSON: "),
    ],
)
def test_refusals_are_answered_as_the_real_tgi_answers_them(
    name: str, path: str, limit: int, fields: dict[str, Any] | None, wording: str
) -> None:
    options, loop, connection = (
        replace(OPTIONS, max_concurrent_requests=limit),
        asyncio.new_event_loop(),
        Heard(),
    )
    app = App(replace(SERVING, options=options), loop, lambda text, level: None)
    try:
        raw = b'{"inputs":' if fields is None else body(**fields)
        app.handle(HttpRequest("POST", path, {}, raw), connection)
    finally:
        app.close()
        loop.close()
    (status, kind, said), theirs = connection.answer(), recorded(name)
    assert (status, kind) == theirs[:2]
    assert wording in said
    assert wording in theirs[2]
    if theirs[2].endswith("}"):
        mine, real = (json.loads(text.removeprefix("data: ")) for text in (said, theirs[2]))
        assert (mine.keys(), mine["error_type"]) == (real.keys(), real["error_type"])
    assert said.startswith("data: ") == theirs[2].startswith("data: ")


def test_tgis_events_have_the_fields_of_the_real_ones() -> None:
    real = [
        json.loads(line.removeprefix("data: "))
        for line in recorded("generate_stream")[2].split("\n\n")
    ]
    ours = stream(
        TgiAnswer(
            "id-1", "m", prompt_tokens=5, output_tokens=len(real), stream=True, vocab_size=1000
        )
    )
    assert [shape(event) for event in ours] == [shape(event) for event in real]
    assert [event["index"] for event in ours] == [event["index"] for event in real]


COMPLETION = OpenAIAnswer(
    "id-1", "m", prompt_tokens=5, output_tokens=3, stream=True, vocab_size=1000
)
CHAT = replace(COMPLETION, chat=True)


def test_a_completion_stream_has_one_event_per_token_then_the_end() -> None:
    *tokens, done = stream(COMPLETION)
    assert [event["choices"][0]["finish_reason"] for event in tokens] == [None, None, "length"]
    assert "".join(event["choices"][0]["text"] for event in tokens) == COMPLETION.text()
    assert done == "[DONE]"


def test_usage_and_token_ids_come_when_they_are_asked_for() -> None:
    asked = replace(
        COMPLETION,
        include_usage=True,
        continuous_usage=True,
        return_token_ids=True,
        cached_tokens=4,
    )
    *tokens, usage, _ = stream(asked)
    assert [event["usage"]["completion_tokens"] for event in tokens] == [1, 2, 3]
    assert [len(event["choices"][0]["token_ids"]) for event in tokens] == [1, 1, 1]
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8, "prompt_tokens_details": {"cached_tokens": 4},
    }  # fmt: skip


def test_a_decode_replica_computes_nothing_of_a_prompt_whose_kv_cache_it_is_given() -> None:
    prefill, decode = (
        replace(SERVING, options=replace(OPTIONS, role=role)) for role in ("prefill", "decode")
    )
    asked = parse_completion(
        body(prompt=[1] * 100, max_tokens=1, kv_transfer_params={"do_remote_decode": True}), prefill
    )
    given: Any = asked.whole()
    computed, loop = [], asyncio.new_event_loop()
    for serving, transfer in (
        (decode, given["kv_transfer_params"]),
        (decode, None),
        (SERVING, asked.whole()),
    ):
        app = App(serving, loop, lambda text, level: None)
        app.handle(
            HttpRequest(
                "POST", "/v1/completions", {}, body(prompt=[1] * 100, kv_transfer_params=transfer)
            ),
            Heard(),
        )
        (generation,) = app.active
        computed.append(100 - generation.sequence.cached)
        app.close()
    loop.close()
    assert computed == [1, 100, 100], "the last token of a prompt is always computed"
    alone: Any = replace(asked, gives=False).whole()
    assert "kv_transfer_params" not in alone


def test_the_steps_of_every_rank_replica_and_start_vary_by_themselves_and_again_alike() -> None:
    ranks, restless = (
        settings(data_parallel_size=2),
        a_replica(IDEAL.model_copy(update={"jitter": 0.5})),
    )
    server = replace(OPTIONS, settings=ranks, model="m-launch1")
    seconds, loop = [], asyncio.new_event_loop()
    for options in (server, replace(server, port=8001), replace(server, model="m-launch2"), server):
        app = App(
            replace(SERVING, options=options, replica=restless), loop, lambda text, level: None
        )
        for pacer in app.pacers:
            pacer.batch.submit(0, 100, 1)
            pacer.batch.advance()
            seconds.append(pacer.batch.clock)
        app.close()
    loop.close()
    assert len(set(seconds[:6])) == 6
    assert seconds[6:] == seconds[:2]


def test_every_data_parallel_rank_has_a_prefix_cache_of_its_own() -> None:
    """Requests that wait are dealt to the ranks in turn."""
    options, loop = (
        replace(OPTIONS, settings=settings(data_parallel_size=2)),
        asyncio.new_event_loop(),
    )
    app = App(replace(SERVING, options=options), loop, lambda text, level: None)
    asked = HttpRequest(
        "POST", "/v1/completions", {}, body(prompt=list(range(320)), max_tokens=1000)
    )
    for _ in range(6):
        app.handle(asked, Heard())
    hits = {
        pacer: [one.answer.cached_tokens for one, at in app.active.items() if at is pacer]
        for pacer in app.pacers
    }
    app.close()
    loop.close()
    assert list(hits.values()) == [[0, 304, 304]] * 2, (
        "the last block is computed for its last token"
    )


def test_a_chat_stream_begins_with_a_role_that_is_no_token() -> None:
    role, *tokens, _ = stream(CHAT)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(event["choices"][0]["delta"]["content"] for event in tokens) == COMPLETION.text()
    assert role["object"] == "chat.completion.chunk"


def test_a_tgi_stream_ends_with_its_details_and_without_a_marker() -> None:
    answer = TgiAnswer("id-1", "m", prompt_tokens=5, output_tokens=3, stream=True, vocab_size=1000)
    *tokens, last = stream(answer)
    assert [event["index"] for event in (*tokens, last)] == [1, 2, 3]
    assert tokens[0]["details"] is None
    assert last["generated_text"] == answer.text()
    assert last["details"]["generated_tokens"] == 3


@pytest.mark.parametrize("chat", [True, False])
def test_a_whole_answer_says_what_its_stream_says(chat: bool) -> None:
    whole = json.loads(orjson.dumps(replace(COMPLETION, stream=False, chat=chat).whole()))
    choice = whole["choices"][0]
    assert (choice["message"]["content"] if chat else choice["text"]) == COMPLETION.text()
    assert whole["usage"]["completion_tokens"] == 3


def test_names_with_quotes_stay_json() -> None:
    assert stream(replace(COMPLETION, model='a"b\\c'))[0]["model"] == 'a"b\\c'


def test_metrics_have_types_and_labels_that_stay_text() -> None:
    lines = exposition(
        'a"b', {"vllm:num_requests_running": 3, "vllm:prompt_tokens_total": 9}
    ).splitlines()
    assert 'vllm:num_requests_running{engine="0",model_name="a\\"b"} 3' in lines
    assert "# TYPE vllm:num_requests_running gauge" in lines
    assert "# TYPE vllm:prompt_tokens_total counter" in lines


def test_histograms_are_cumulative_and_end_with_everything() -> None:
    histograms = Histograms(max_model_len=1000)
    for value in (0.01, 0.02, 0.3):
        histograms.observe("inter_token_latency_seconds", value, times=2)
    lines = exposition("m", {}, histograms).splitlines()
    found = {
        line.partition(" ")[0]: float(line.split()[-1])
        for line in lines
        if "inter_token" in line and "{" in line
    }
    at = 'vllm:inter_token_latency_seconds_bucket{engine="0",model_name="m",le="%s"}'
    assert [found[at % bound] for bound in (0.01, 0.025, 0.2, 0.3, "+Inf")] == [2, 4, 4, 6, 6]
    assert found[
        'vllm:inter_token_latency_seconds_sum{engine="0",model_name="m"}'
    ] == pytest.approx(0.66)
    assert 'vllm:request_prompt_tokens_bucket{engine="0",model_name="m",le="1000.0"} 0' in lines
    assert not any('le="2000.0"' in line for line in lines if "prompt_tokens" in line)


def test_every_metric_that_is_read_of_it_can_be_read() -> None:
    names = ENGINES["emulator"].metrics
    assert normalize(exposition("m", dict.fromkeys(names.values(), 1.5)), names) == dict.fromkeys(
        names, 1.5
    )
