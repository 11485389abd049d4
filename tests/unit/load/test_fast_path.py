"""The short way to count events, and the general way: each counts what decoding finds, or leaves
the events to the next.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.load.fast_path import (
    LAST_READS,
    MIN_READS,
    FastPath,
    count_any_shape,
    count_same_shape,
    fast_path_of,
)
from orchestrator.load.wire.openai import CHAT, COMPLETIONS
from orchestrator.load.wire.parsed import UNKNOWN, Parsed
from tests.integration.load_server import END
from tests.unit.load.response.streams import WIRE, done, with_tokens_at

TEXTS = (" the", "\n", '"', "\\", "a\\", '\\"', '\\\\"', 'say "hi"', "caf\u00e9", "5", '":[7]', "]")


def event(text: Any = " a", ids: Any = None, chat: bool = False, **fields: Any) -> bytes:
    """An event as vLLM writes it, with its fields in that order."""
    piece = {"delta": {"content": text}} if chat else {"text": text}
    choice = {
        "index": 0,
        **piece,
        "logprobs": None,
        "finish_reason": None,
        "token_ids": ids,
        "stop_reason": None,
    }
    whole = {"id": "x", "model": "m", "choices": [choice], "usage": None}
    return json.dumps(whole | fields, separators=(",", ":"), ensure_ascii=False).encode()


def short_way(events: list[bytes]) -> Parsed | None:
    parsed = Parsed()
    return parsed if count_same_shape(events, parsed) else None


def decoded(events: list[bytes], chat: bool = False) -> Parsed:
    wire = CHAT if chat else COMPLETIONS
    parsed = Parsed()
    wire.read(events, parsed)
    return parsed


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("with_ids", [True, False])
def test_plain_events_go_the_short_way(chat: bool, with_ids: bool) -> None:
    events: list[bytes] = []
    for index, text in enumerate(TEXTS * 3):
        token_ids = [index * 37] if with_ids else None
        events.append(event(text, token_ids, chat))
    parsed = short_way(events)
    assert parsed is not None
    assert parsed == decoded(events, chat)
    assert parsed.tokens == [1 if with_ids else UNKNOWN] * len(events)


def test_an_empty_text_is_a_token_only_where_its_id_is_there() -> None:
    assert short_way([event(), event("")]) is None
    with_ids = [event("a", [1]), event("", [2])]
    assert short_way(with_ids) == decoded(with_ids)


# (bytes of a plain event, what stands there in an odd one)
ODD = {
    "usage": (b'"usage":null', b'"usage":{"completion_tokens":2}'),
    "an end": (b'"finish_reason":null', b'"finish_reason":"length"'),
    "an error": (b'"usage"', b'"error":{"message":"went away"},"usage"'),
    "no text": (b'"text":" a"', b'"text":null'),
    "a list": (b'"text":" a"', b'"text":["a"]'),
    "a reasoning": (b'"logprobs"', b'"reasoning":"hm","logprobs"'),
    "two choices": (b'"choices":[{', b'"choices":[{"text":"b"},{'),
    "a text that ends early": (b" a", b'","finish_reason":"abort","x":"'),
    "an id in the text": (b" a", b'","token_ids":[7],"x":"'),
    "a text that ends late": (b" a", b" a\\"),
    "an escape that ends late": (b" a", b" a\\\\\\"),
    "two lines": (b" a", b" a\nb"),
    "cut off": (b',"usage":null}', b""),
    "only its end": (b'{"id":"x","model":"m"', b""),
}
# what stands in place of one id
ODD_IDS = {
    "no id": b"[]",
    "a null id": b"null",
    "two ids": b"[7,8]",
    "a text as id": b'["7"]',
    "a negative id": b"[-7]",
    "half an id": b"[7.5]",
    "ids twice": b'[7],"token_ids":[7]',
    "ids that end early": b'[7],"stop_reason":"abort","x":[7]',
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("ids", [None, [7]])
@pytest.mark.parametrize("place", [0, 1, 3])
def test_one_odd_event_leaves_all_to_the_general_way(
    odd: str, ids: list[int] | None, place: int
) -> None:
    plain_bytes, odd_bytes = ODD[odd]
    expect_general_way(event(ids=ids), plain_bytes, odd_bytes, place)


@pytest.mark.parametrize("odd", ODD_IDS)
@pytest.mark.parametrize("place", [0, 1, 3])
def test_one_event_with_odd_ids_leaves_all_to_the_general_way(odd: str, place: int) -> None:
    expect_general_way(event(ids=[7]), b"[7]", ODD_IDS[odd], place)


def expect_general_way(plain: bytes, plain_bytes: bytes, odd_bytes: bytes, place: int) -> None:
    """Of four events, the one at ``place`` has ``odd_bytes`` where the others have
    ``plain_bytes``.
    """
    odd = plain.replace(plain_bytes, odd_bytes)
    assert odd != plain
    events = [plain] * 3
    events.insert(place, odd)
    parsed = Parsed()
    assert not count_same_shape(events, parsed)
    assert parsed == Parsed()


def test_ids_before_the_text_leave_all_to_the_general_way() -> None:
    ids_first = b'{"choices":[{"token_ids":[7],"text":"a"}]}'
    assert short_way([ids_first] * 4) is None
    assert short_way([ids_first.replace(b"[7]", b"[7,8]")] * 4) is None


@given(
    texts=st.lists(
        st.text('a5"\\\n]\u00e9', max_size=6) | st.sampled_from(TEXTS), min_size=1, max_size=8
    ),
    ids=st.none() | st.lists(st.integers(0, 10**6), min_size=8, max_size=8),
    chat=st.booleans(),
    drawn_place=st.integers(0, 10**6),
    junk=st.none() | st.sampled_from([b'"', b"\\", b"\n", b"", b"7", b",", b"]", b"}", b'":"']),
)
def test_the_short_way_counts_as_the_general_way_does(
    texts: list[str], ids: list[int] | None, chat: bool, drawn_place: int, junk: bytes | None
) -> None:
    """One byte of one event may be replaced by ``junk``. Such an event may be no JSON any more, which
    only decoding notices.
    """
    events: list[bytes] = []
    for index, text in enumerate(texts):
        token_ids = None if ids is None else [ids[index]]
        events.append(event(text, token_ids, chat))
    if junk is not None:
        index = drawn_place % len(events)
        plain = events[index]
        place = drawn_place % len(plain)
        events[index] = plain[:place] + junk + plain[place + 1 :]
    parsed = short_way(events)
    if parsed is None:
        return
    of_any_shape = Parsed()
    assert count_any_shape(events, of_any_shape)
    assert parsed == of_any_shape
    if junk is None:
        assert parsed == decoded(events, chat)


# -- which reads are counted


def fast_path() -> FastPath:
    counter = fast_path_of(WIRE)
    assert counter is not None
    return counter


def test_reads_that_were_counted_are_dropped_and_nothing_else() -> None:
    tokens = 200
    request = with_tokens_at(*range(1_000_000, 201_000_000, 1_000_000))
    bytes_before = sum(map(len, request.parts))
    while fast_path().can_count(request, MIN_READS):
        fast_path().count(request)
    assert len(request.event_ns) >= tokens - LAST_READS - MIN_READS
    assert sum(map(len, request.parts)) < bytes_before / 4
    assert request.parts[-1].endswith(END)
    assert request.times[-1] == 200_001_000  # the end comes a microsecond after the last token
    assert done(request).chunks == tokens


def test_a_reply_that_is_needed_as_text_is_not_counted() -> None:
    request = with_tokens_at(*range(1_000_000, 101_000_000, 1_000_000))
    assert fast_path().can_count(request, MIN_READS)
    request.parsed.texts = []
    assert not fast_path().can_count(request, MIN_READS)


def test_a_body_without_chunks_is_not_counted() -> None:
    request = with_tokens_at(*range(1_000_000, 101_000_000, 1_000_000))
    request.end_marker = b""
    assert not fast_path().can_count(request, MIN_READS)


def test_a_running_stream_is_counted_only_when_many_reads_wait() -> None:
    request = with_tokens_at(*range(1_000_000, 101_000_000, 1_000_000))
    assert not fast_path().can_count(request)


def test_an_api_without_a_counter_has_no_fast_path() -> None:
    assert fast_path_of("tgi") is None
