"""Every wire of the registry, against streams recorded from engines and written after their
documentation.

``streams/*.http`` are whole HTTP responses: vLLM 0.32.0 (CPU build) and transformers 5.23 serve as
they came from the socket, TGI 3.3.7 and SGLang 0.5.23 without their chunks, all with the tiny model
of scripts/make_tiny_model.py. The others are written here, event by event.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.load.fast_path import fast_path_of
from orchestrator.load.http import END_MARK
from orchestrator.load.in_flight import InFlight
from orchestrator.load.wire.parsed import UNKNOWN, Parsed
from orchestrator.load.wire.wires import WIRES
from orchestrator.spec.dialect import Dialect
from orchestrator.workloads.kind import Message, Prompt
from tests.in_flight import finish, gaps_us, sent_request, tokens_per_chunk

ANY = Dialect("", "")
STREAMS = Path(__file__).parent / "streams"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def sse(*events: Any, done: bool = True, end: str = "\n") -> bytes:
    """A chunked response with one event per chunk."""
    texts = [event if isinstance(event, str) else "data: " + json.dumps(event) for event in events]
    texts += ["data: [DONE]"] if done else []
    chunks = [(text.replace("\n", end) + end * 2).encode() for text in texts]
    return HEAD + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


def tgi_token(index: int, **more: Any) -> dict[str, Any]:
    token = {"id": 100 + index, "text": f" t{index}", "logprob": -1.0, "special": False}
    return {"index": index, "token": token, "generated_text": None, "details": None, **more}


TGI_END = {"finish_reason": "length", "generated_tokens": 3, "seed": None, "input_length": 8}
TGI = sse(
    tgi_token(1),
    tgi_token(2),
    tgi_token(3, generated_text=" t1 t2 t3", details=TGI_END),
    done=False,
)


def sglang(text: str, total: int, **meta: Any) -> dict[str, Any]:
    meta = {
        "id": "x",
        "prompt_tokens": 8,
        "completion_tokens": total,
        "cached_tokens": 2,
        "finish_reason": None,
    } | meta
    return {"text": text, "meta_info": meta}


SGLANG = sse(
    sglang(" a", 1),
    sglang(" a b c", 3),
    sglang(" a b c d", 4, finish_reason={"type": "length", "length": 4}),
)

DELTAS = sse(
    {
        "choices": [
            {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        ]
    },
    ": ping",
    {"choices": [{"index": 0, "delta": {"reasoning_content": "Hm"}, "finish_reason": None}]},
    {"choices": [{"index": 0, "delta": {"content": "ä"}, "finish_reason": None}]},
    {
        "choices": [
            {"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}}
        ]
    },
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
    {
        "choices": [],
        "usage": {
            "prompt_tokens": 8,
            "completion_tokens": 3,
            "prompt_tokens_details": {"cached_tokens": 4},
        },
    },
)


@dataclass(frozen=True, slots=True)
class Case:
    """A response and what is in it."""

    raw: bytes
    wire: str
    tokens: list[int]  # of content events, in order
    source: str
    output: int
    finish: str | None
    status: str = "ok"
    error_class: str | None = None
    input: int | None = 8
    dialect: Dialect = Dialect("", "")


def recorded(name: str) -> bytes:
    return (STREAMS / f"{name}.http").read_bytes()


def recorded_body(name: str) -> bytes:
    """The body of a recording, which holds it without its chunks."""
    head, _, body = recorded(name).partition(b"\r\n\r\n")
    status = head.partition(b"\r\n")[0]
    return HEAD.replace(b"HTTP/1.1 200 OK", status) + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


PLAIN = Dialect("", "", length_control="generation_config", done_marker=False)
NATIVE = Dialect("", "", done_marker=False)
OC, CHAT = "openai_completions", "openai_chat"
ONES = [1] * 6


def refused(raw: bytes, wire: str, status: str, error_class: str, *tokens: int) -> Case:
    source = "native" if tokens else ""
    return Case(raw, wire, list(tokens), source, sum(tokens), None, status, error_class, None)


TGI_ERROR = sse(tgi_token(1), {"error": "Request failed", "error_type": "generation"}, done=False)
SGLANG_ABORT = sse(
    sglang(" a", 1), sglang(" a", 1, finish_reason={"type": "abort", "message": "oom"})
)
ABORTED = Case(
    SGLANG_ABORT, "sglang_generate", [1], "native", 1, "abort", "invalid", "stream_error"
)
CASES = {
    "vllm completions, token ids": Case(
        recorded("vllm-completions-token_ids"), OC, ONES, "token_ids", 6, "length"
    ),
    "vllm completions, continuous usage": Case(
        recorded("vllm-completions-continuous_usage"), OC, ONES, "continuous_usage", 6, "length"
    ),
    "vllm completions, usage": Case(
        recorded("vllm-completions-usage"), OC, ONES, "usage", 6, "length"
    ),
    "vllm chat, token ids": Case(
        recorded("vllm-chat-token_ids"), CHAT, ONES, "token_ids", 6, "length", input=30
    ),
    "vllm chat, usage": Case(
        recorded("vllm-chat-usage"), CHAT, ONES, "usage", 6, "length", input=30
    ),
    "vllm refuses ids in a stream": refused(
        recorded("vllm-completions-refused_ids"), OC, "error", "http_4xx"
    ),
    "vllm refuses a long prompt": refused(
        recorded("vllm-completions-too_long"), OC, "error", "http_4xx"
    ),
    "transformers completions": Case(
        recorded("transformers-completions"),
        OC,
        ONES,
        "usage",
        6,
        "length",
        input=14,
        dialect=PLAIN,
    ),
    "transformers chat": Case(
        recorded("transformers-chat"), CHAT, ONES, "usage", 6, "length", input=30, dialect=PLAIN
    ),
    "transformers refuses a field": refused(
        recorded("transformers-refused_field"), CHAT, "error", "http_4xx"
    ),
    "chat with all kinds of deltas": Case(DELTAS, CHAT, [1, 1, 1], "usage", 3, "tool_calls"),
    "tgi": Case(TGI, "tgi", [1, 1, 1], "native", 3, "length", dialect=NATIVE),
    "tgi, recorded": Case(
        recorded_body("tgi-generate_stream"),
        "tgi",
        [1] * 8,
        "native",
        8,
        "length",
        input=22,
        dialect=NATIVE,
    ),
    "tgi completions": Case(
        recorded_body("tgi-completions_stream"), OC, [1] * 8, "usage", 8, "length", input=22
    ),
    "tgi chat": Case(
        recorded_body("tgi-chat_stream"), CHAT, [1] * 8, "usage", 8, "length", input=38
    ),
    "sglang, recorded": Case(
        recorded_body("sglang-generate_stream"),
        "sglang_generate",
        [1] * 4,
        "native",
        4,
        "length",
        input=9,
    ),
    "sglang completions, token ids": Case(
        recorded_body("sglang-completions_ids_stream"),
        OC,
        [1] * 4,
        "token_ids",
        4,
        "length",
        input=5,
    ),
    "sglang chat": Case(
        recorded_body("sglang-chat_stream"), CHAT, [1] * 4, "usage", 4, "length", input=25
    ),
    "sglang refuses a long prompt": refused(
        recorded_body("sglang-too_long_stream"), OC, "error", "http_4xx"
    ),
    "tgi error": refused(TGI_ERROR, "tgi", "invalid", "stream_error", 1),
    "tgi overloaded": refused(recorded_body("tgi-overloaded_generate"), "tgi", "error", "http_429"),
    "tgi refuses a long prompt": refused(
        recorded_body("tgi-too_long_generate"), "tgi", "error", "http_4xx"
    ),
    "tgi overloaded, completions": refused(
        recorded_body("tgi-overloaded_completions"), OC, "error", "http_429"
    ),
    "tgi overloaded, chat": refused(
        recorded_body("tgi-overloaded_completions"), CHAT, "error", "http_429"
    ),
    "tgi refuses a long prompt, completions": refused(
        recorded_body("tgi-too_long_completions"), OC, "error", "http_4xx"
    ),
    "overloaded within an answer": Case(
        sse({"choices": [{"text": " a"}]}, {"error": {"message": "overloaded"}}),
        OC,
        [1],
        "chunks",
        1,
        None,
        "invalid",
        "stream_error",
        input=None,
    ),
    "sglang's queue is full": Case(
        sse(
            sglang(
                "",
                0,
                finish_reason={
                    "type": "abort",
                    "message": "The request queue is full.",
                    "status_code": 503,
                },
            )
        ),
        "sglang_generate",
        [],
        "",
        0,
        "abort",
        "error",
        "http_429",
    ),
    "given up by the engine": Case(
        sse({"choices": [{"text": " a", "finish_reason": "abort", "token_ids": [1]}]}),
        OC,
        [1],
        "token_ids",
        1,
        "abort",
        "invalid",
        "stream_error",
        input=None,
    ),
    "llama.cpp error": refused(
        sse('error: {"message": "lost"}', done=False), CHAT, "invalid", "stream_error"
    ),
    "sglang": Case(SGLANG, "sglang_generate", [1, 2, 1], "native", 4, "length"),
    "sglang aborted": ABORTED,
}
NAMES = sorted(CASES)


def in_flight(raw: bytes, cuts: list[int], asked: int) -> InFlight:
    """A request of which reads ending at ``cuts`` (and at the end) came back; read i happens at i
    microseconds.
    """
    edges = [0, *sorted({cut for cut in cuts if 0 < cut < len(raw)}), len(raw)]
    flight = sent_request(output_tokens=asked)
    for at, (start, end) in enumerate(pairwise(edges)):
        flight.parts.append(raw[start:end])
        flight.times.append(1000 * at)
        if flight.head is None:
            flight.read_head()
    assert flight.head is not None
    flight.end_marker = END_MARK if flight.head.chunked else b""
    return flight


def finished(
    flight: InFlight, wire: str, dialect: Dialect = ANY, with_fast_path: bool = True
) -> InFlight:
    finish(flight, wire, dialect, with_fast_path=with_fast_path)
    return flight


def read(case: Case, cuts: list[int]) -> InFlight:
    return finished(in_flight(case.raw, cuts, case.output or 1), case.wire, case.dialect)


def chunk_tokens(flight: InFlight) -> list[int]:
    """The tokens of each chunk."""
    tokens = tokens_per_chunk(flight)
    return [1] * flight.record.chunks if tokens is None else tokens.tolist()


def facts(flight: InFlight) -> tuple[Any, ...]:
    """All that must not depend on how the bytes were read."""
    record = flight.record
    return (
        chunk_tokens(flight),
        record.token_count_source,
        record.finish_reason,
        (record.input_tokens, record.cached_tokens),
        (record.output_tokens, record.output_tokens_counted),
        (record.status, record.error_class),
    )


def test_every_wire_is_tested() -> None:
    assert {case.wire for case in CASES.values()} == set(WIRES.shipped())


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_says_what_it_is_known_to_hold(name: str) -> None:
    case = CASES[name]
    flight = read(case, [])
    record = flight.record
    assert (record.status, record.error_class) == (case.status, case.error_class)
    assert chunk_tokens(flight) == case.tokens
    assert record.finish_reason == case.finish
    if case.tokens:
        assert record.token_count_source == case.source
        assert (record.input_tokens, record.output_tokens) == (case.input, case.output)


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_cut_at_any_one_byte_holds_the_same(name: str) -> None:
    case = CASES[name]
    whole = facts(read(case, []))
    for cut in range(1, len(case.raw)):
        assert facts(read(case, [cut])) == whole, cut


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_read_byte_by_byte_holds_the_same(name: str) -> None:
    case = CASES[name]
    assert facts(read(case, list(range(len(case.raw))))) == facts(read(case, []))


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_holds_the_same_without_the_fast_path(name: str) -> None:
    """Each event comes in a read of its own, as an engine that is not held up writes it."""
    case = CASES[name]
    cuts = [match.start() for match in re.finditer(rb"\r\n[0-9a-f]+\r\ndata: ", case.raw)]
    ends_of_chunks = [cut + 2 for cut in cuts]
    flight = in_flight(case.raw, ends_of_chunks, case.output or 1)
    fast_path = fast_path_of(case.wire)
    while fast_path is not None and fast_path.can_count(flight, 1):
        fast_path.count(flight)
    general = in_flight(case.raw, ends_of_chunks, case.output or 1)
    with_it = finished(flight, case.wire, case.dialect)
    without_it = finished(general, case.wire, case.dialect, with_fast_path=False)
    assert with_it.record == without_it.record
    assert with_it.gaps == without_it.gaps


@settings(max_examples=100, deadline=None)
@given(name=st.sampled_from(NAMES), cuts=st.lists(st.integers(1, 2500), max_size=60))
def test_a_stream_cut_anywhere_holds_the_same(name: str, cuts: list[int]) -> None:
    case = CASES[name]
    assert facts(read(case, cuts)) == facts(read(case, []))


@settings(max_examples=60, deadline=None)
@given(cuts=st.lists(st.integers(1, 2500), max_size=40))
def test_a_token_has_the_time_of_the_read_that_completed_its_event(cuts: list[int]) -> None:
    raw = CASES["vllm completions, token ids"].raw
    edges = np.array([*sorted({cut for cut in cuts if 0 < cut < len(raw)}), len(raw)])
    ends = [at + 1 for at in range(len(raw)) if raw[at : at + 3] == b"}\n\n"][:6]
    expected = [1000 * int(np.searchsorted(edges, end)) for end in ends]
    flight = read(CASES["vllm completions, token ids"], cuts)
    result = flight.record
    assert (result.first_token_ns, result.last_token_ns) == (expected[0], expected[-1])
    gaps = gaps_us(flight)
    assert gaps is not None
    assert gaps.tolist() == (np.diff(expected) // 1000).tolist()
    assert result.coalesced_chunks == 6 - len(set(expected))


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_other_line_ends_and_comments_change_nothing(end: str) -> None:
    events = [
        {"choices": [{"text": " a"}]},
        ": keep-alive",
        {"choices": [{"text": " b", "finish_reason": "stop"}]},
    ]
    case = Case(
        sse(*events, end=end), "openai_completions", [1, 1], "chunks", 2, "stop", dialect=PLAIN
    )
    assert facts(read(case, [])) == facts(read(replace(case, raw=sse(*events)), []))
    assert facts(read(case, list(range(0, len(case.raw), 3)))) == facts(read(case, []))


def test_invalid_utf8_spoils_a_character_and_not_the_stream() -> None:
    raw = sse({"choices": [{"text": "XX"}]}, {"choices": [{"text": " b", "finish_reason": "stop"}]})
    result = read(
        Case(
            raw.replace(b"XX", b"\xff\xc3"), "openai_completions", [], "", 2, "stop", dialect=PLAIN
        ),
        [],
    )
    assert (result.record.status, result.record.chunks) == ("ok", 2)


NAMES_IN_EVENTS = (  # noqa: SIM905 (shorter to read)
    "choices text delta content usage token token_ids meta_info error completion_tokens details "
    "stop tokens "
    "finish_reason tool_calls prompt_tokens cached_tokens prompt_tokens_details timings cache_n "
    "tokens_predicted "
    "output_token_logprobs output_ids"
).split()
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.sampled_from([2**31, 2**63])
    | st.text(max_size=3)
)
ODD_EVENTS = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(NAMES_IN_EVENTS), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("wire", sorted(WIRES))
@settings(max_examples=150, deadline=None)
@given(events=st.lists(ODD_EVENTS, max_size=5))
@example(events=[{"choices": [{"text": " a", "token_ids": 5}]}])
@example(events=[{"choices": [{"delta": {"tool_calls": [3]}}]}])
@example(events=[{"meta_info": {"completion_tokens": 1, "output_token_logprobs": 7}}])
@example(events=[{"meta_info": {"completion_tokens": 1, "output_token_logprobs": [[]]}}])
@example(events=[{"meta_info": {"completion_tokens": True, "prompt_tokens": True}}])
def test_no_event_makes_a_wire_raise(wire: str, events: list[Any]) -> None:
    for texts in (None, []):
        parsed = Parsed(texts=texts)
        WIRES[wire].read([json.dumps(event).encode() for event in events], parsed)
        assert len(parsed.tokens) == len(events)
        said = [parsed.input_tokens, parsed.output_tokens, parsed.cached_tokens]
        assert all(type(count) is int and -1 <= count < 2**31 for count in parsed.tokens)
        assert all(count is None or (type(count) is int and 0 <= count < 2**31) for count in said)


@settings(max_examples=60, deadline=None)
@given(raw=st.binary(max_size=300), wire=st.sampled_from(sorted(WIRES)))
def test_no_body_makes_reading_raise(raw: bytes, wire: str) -> None:
    flight = in_flight(
        HEAD + b"%x\r\n%b\r\n0\r\n\r\n" % (len(raw), raw) if raw else HEAD + b"0\r\n\r\n", [], 1
    )
    assert finished(flight, wire).record.status in ("ok", "invalid")


def compact(value: Any) -> bytes:
    """As engines write it."""
    return json.dumps(value, separators=(",", ":")).encode()


def long_stream(counts: list[int], ids: bool, texts: list[str]) -> tuple[bytes, list[int]]:
    """A chunked completions stream and where each chunk ends in it."""
    raw, ends = HEAD, [len(HEAD)]
    for at, (count, text) in enumerate(zip(counts, texts, strict=True)):
        choice = {
            "index": 0,
            "text": text,
            "logprobs": None,
            "finish_reason": "length" if at == len(counts) - 1 else None,
        }
        choice |= {"token_ids": list(range(count))} if ids else {}
        chunk = b"data: " + compact({"id": "x", "choices": [choice], "usage": None}) + b"\n\n"
        raw += b"%x\r\n%b\r\n" % (len(chunk), chunk)
        ends.append(len(raw))
    usage = {"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": sum(counts)}}
    tail = b"data: " + compact(usage) + b"\n\ndata: [DONE]\n\n"
    return raw + b"%x\r\n%b\r\n0\r\n\r\n" % (len(tail), tail), ends


@settings(max_examples=80, deadline=None)
@given(data=st.data(), length=st.integers(20, 120), ids=st.booleans(), early=st.booleans())
def test_plain_reads_counted_ahead_give_the_same_as_the_whole_stream(
    data: st.DataObject, length: int, ids: bool, early: bool
) -> None:
    """A stream that is read ahead, of which only some events are decoded, holds what it holds read
    at once.
    """
    counts = data.draw(
        st.lists(st.integers(1, 3) if ids else st.just(1), min_size=length, max_size=length)
    )
    texts = data.draw(
        st.lists(
            st.sampled_from([" a", ' "q"', "\\", "]", '"token_ids":[9', "é", "x\n"]),
            min_size=length,
            max_size=length,
        )
    )
    raw, ends = long_stream(counts, ids, texts)
    joined = data.draw(st.sets(st.sampled_from(range(len(ends))), max_size=6))
    cuts = [end for at, end in enumerate(ends) if at not in joined]
    extra = data.draw(st.lists(st.integers(1, len(raw)), max_size=3))
    flight = in_flight(raw, cuts + extra, sum(counts))
    fast_path = fast_path_of(OC)
    assert fast_path is not None
    if early and fast_path.can_count(flight, 10):
        fast_path.count(flight)
    short = finished(flight, OC).record
    general = in_flight(raw, cuts + extra, sum(counts))
    long = finished(general, OC, with_fast_path=False).record
    assert facts(flight) == facts(general)
    assert short.status == "ok"
    assert (short.first_token_ns, short.last_token_ns, short.coalesced_chunks, flight.coalesced_reads) == (
        long.first_token_ns, long.last_token_ns, long.coalesced_chunks, general.coalesced_reads,
    )  # fmt: skip
    assert gaps_us(flight) == gaps_us(general)


# -- requests

IDS = np.array([5, 6, 7], dtype=np.int32)
SAID = (("system", "sys"), ("user", " u1"), ("assistant", " r1"), ("user", " u2"))
TEXT = Prompt(tuple(Message(role, (text,), 1) for role, text in SAID), 4)
TOKENS = Prompt((Message("user", (IDS[:1], IDS[1:]), 3),), 3)
TAKES_TOKEN_IDS = ("openai_completions", "sglang_generate")


def body(wire: str, prompt: Prompt, **fields: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(
        WIRES[wire].body(prompt, 9, "m", Dialect(wire, "/", **fields))
    )
    return made


@pytest.mark.parametrize("wire", sorted(WIRES))
def test_a_request_honours_the_dialect(wire: str) -> None:
    text = body(wire, TEXT)
    assert text["stream"] is True
    assert "9" in json.dumps(text)
    allowed = body(wire, TEXT, allowed_fields=frozenset({"stream"}), extra_body={"mine": 1})
    assert allowed == {"stream": True, "mine": 1}
    assert "ignore_eos" not in json.dumps(body(wire, TEXT, length_control="none"))
    assert '"ignore_eos": true' in json.dumps(body(wire, TEXT, min_tokens_field="least"))
    assert '"least": 9' in json.dumps(body(wire, TEXT, min_tokens_field="least"))
    if wire in TAKES_TOKEN_IDS:
        assert "[5, 6, 7]" in json.dumps(body(wire, TOKENS))


def test_openai_fields_follow_the_dialect() -> None:
    full = body("openai_completions", TOKENS, return_token_ids=True, continuous_usage=True)
    usage = {"include_usage": True, "continuous_usage_stats": True}
    assert full == {
        "prompt": [5, 6, 7], "max_tokens": 9, "temperature": 0.0, "stream": True, "model": "m",
        "return_token_ids": True, "stream_options": usage, "ignore_eos": True, "min_tokens": 9,
    }  # fmt: skip
    plain = body(
        "openai_completions",
        TEXT,
        include_usage=False,
        model_field=False,
        length_control="generation_config",
    )
    config = json.loads(plain.pop("generation_config"))
    assert (config["max_new_tokens"], config["min_new_tokens"]) == (9, 9)
    assert plain == {"prompt": "sys u1 r1 u2", "max_tokens": 9, "temperature": 0.0, "stream": True}
    assert body("openai_completions", TEXT, logprobs=True)["logprobs"] == 1
    assert body("openai_chat", TEXT, logprobs=True)["logprobs"] is True


def test_fields_can_be_renamed_and_taken_out_and_lengths_left_to_the_model() -> None:
    """As newer models of OpenAI want it: they refuse max_tokens and any temperature."""
    natural = body(
        "openai_chat", TEXT, max_tokens_field="max_completion_tokens", length_control="natural",
        extra_body={"temperature": None, "top_p": 0.9},
    )  # fmt: skip
    assert "max_tokens" not in natural and "temperature" not in natural
    assert (natural["max_completion_tokens"], natural["top_p"]) == (9, 0.9)
    assert not {"ignore_eos", "min_tokens"} & natural.keys()


def test_chat_sends_the_conversation_as_messages() -> None:
    messages = body("openai_chat", TEXT)["messages"]
    assert [(message["role"], message["content"]) for message in messages] == [
        ("system", "sys"), ("user", " u1"), ("assistant", " r1"), ("user", " u2"),
    ]  # fmt: skip


def test_native_requests_use_their_own_names() -> None:
    tgi = body("tgi", TEXT, length_control="none")
    assert (tgi["inputs"], tgi["parameters"]["max_new_tokens"]) == ("sys u1 r1 u2", 9)
    sglang_body = body("sglang_generate", TOKENS)
    assert (sglang_body["input_ids"], sglang_body["sampling_params"]["max_new_tokens"]) == (
        [5, 6, 7],
        9,
    )
    assert body("sglang_generate", TEXT)["text"] == "sys u1 r1 u2"


# as vLLM and SGLang, as llama.cpp (and chat), each with a token whose log-probability is NaN: JSON
# has null for it
NAMED = sse(
    {
        "choices": [
            {"text": "a", "token_ids": [5], "logprobs": {"token_logprobs": [-0.5], "tokens": ["a"]}}
        ]
    },
    {
        "choices": [
            {
                "text": "b",
                "token_ids": [6],
                "logprobs": {"token_logprobs": [None]},
                "finish_reason": "length",
            }
        ]
    },
)
OBJECTS = sse(
    {
        "choices": [
            {"text": "a", "logprobs": {"content": [{"id": 5, "token": "a", "logprob": -0.5}]}}
        ]
    },
    {
        "choices": [
            {
                "text": "b",
                "logprobs": {"content": [{"id": 6, "logprob": None}]},
                "finish_reason": "length",
            }
        ]
    },
)
WITH_NAN: list[Any] = [[-0.5, 5, None], [None, 6, None]]
CUMULATIVE = sse(
    sglang("a", 1, output_token_logprobs=WITH_NAN[:1]),
    sglang("ab", 2, output_token_logprobs=WITH_NAN, finish_reason={"type": "length"}),
)


@pytest.mark.parametrize(
    ("wire", "raw", "text", "ids", "logprobs"),
    [
        ("openai_completions", CASES["vllm completions, token ids"].raw, " 928", 6, None),
        ("openai_completions", NAMED, "ab", 2, [-0.5, None]),
        ("openai_completions", OBJECTS, "ab", 2, [-0.5, None]),
        ("sglang_generate", SGLANG, " a b c d", None, None),
        ("sglang_generate", CUMULATIVE, "ab", None, [-0.5, None]),
        ("tgi", TGI, " t1 t2 t3", 3, [-1.0] * 3),
    ],
)
def test_a_reply_is_kept_where_it_is_needed(
    wire: str, raw: bytes, text: str, ids: int | None, logprobs: list[float | None] | None
) -> None:
    flight = in_flight(raw, [], 1)
    flight.parsed = Parsed(texts=[])
    finished(flight, wire)
    parsed = flight.parsed
    assert "".join(parsed.texts or []).startswith(text)
    assert ids is None or len(parsed.token_ids or []) == ids
    wanted = None if logprobs is None else [math.nan if one is None else one for one in logprobs]
    assert parsed.logprobs == (wanted and pytest.approx(wanted, nan_ok=True))


def test_usage_that_only_some_events_carry_is_no_running_count() -> None:
    events = [
        {"choices": [{"text": " a"}], "usage": {"prompt_tokens": 8, "completion_tokens": 1}},
        {"choices": [{"text": " b c"}]},
        {
            "choices": [{"text": " d", "finish_reason": "length"}],
            "usage": {"prompt_tokens": 8, "completion_tokens": 4},
        },
    ]
    parsed = Parsed()
    WIRES[OC].read([json.dumps(event).encode() for event in events], parsed)
    assert UNKNOWN in parsed.tokens
    flight = read(Case(sse(*events), "openai_completions", [], "", 4, "length"), [])
    result = flight.record
    assert (result.token_count_source, result.output_tokens, result.chunks, result.itl_kind) == (
        "usage",
        4,
        3,
        "chunk",
    )
    assert tokens_per_chunk(flight) is None


@pytest.mark.parametrize(
    ("wire", "field", "expected"),
    [
        ("openai_completions", "model", {"model": "sql"}),
        ("openai_chat", "lora_path", {"model": "m", "lora_path": "sql"}),
        ("sglang_generate", "lora_path", {"lora_path": "sql"}),
    ],
)
def test_a_request_names_its_adapter_in_the_field_of_its_engine(
    wire: str, field: str, expected: dict[str, str]
) -> None:
    asked = body(wire, replace(TEXT, adapter="sql"), adapter_field=field)
    assert expected.items() <= asked.items()
    assert "sql" not in json.dumps(body(wire, TEXT, adapter_field=field))


def test_tgi_and_llama_cpp_name_adapters_in_their_own_ways() -> None:
    asked = replace(TEXT, adapter="sql")
    of_tgi = body("tgi", asked, adapter_field="adapter_id")
    assert of_tgi["parameters"]["adapter_id"] == "sql"
    scales = {"law": [{"id": 0, "scale": 1.0}], "sql": [{"id": 1, "scale": 1.0}]}
    of_llama = body("openai_chat", asked, adapter_field="lora", adapter_values=scales)
    assert of_llama["lora"] == [{"id": 1, "scale": 1.0}]
