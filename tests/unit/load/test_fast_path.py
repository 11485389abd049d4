"""The short way to count events: it counts as the general way does, or leaves the events to it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.load.fast_path import (
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
    piece = {"delta": {"content": text}} if chat else {"text": text}
    choice = {"index": 0, **piece, "logprobs": None, "finish_reason": None, "token_ids": ids}
    whole = {"id": "x", "model": "m", "choices": [choice | {"stop_reason": None}], "usage": None}
    return json.dumps(whole | fields, separators=(",", ":"), ensure_ascii=False).encode()


def short_way(events: list[bytes]) -> Parsed | None:
    parsed = Parsed()
    return parsed if count_same_shape(events, parsed) else None


def read(events: list[bytes]) -> Parsed:
    parsed = Parsed()
    CHAT.read(events, parsed)
    return parsed


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("with_ids", [True, False])
def test_plain_events_go_the_short_way(chat: bool, with_ids: bool) -> None:
    events = [
        event(text, [at * 37] if with_ids else None, chat) for at, text in enumerate(TEXTS * 3)
    ]
    parsed = short_way(events)
    assert parsed is not None
    assert parsed == read(events)
    assert parsed.tokens == [1 if with_ids else UNKNOWN] * len(events)


def test_an_empty_text_is_a_token_only_where_its_id_is_there() -> None:
    assert short_way([event(), event("")]) is None
    assert short_way([event("a", [1]), event("", [2])]) == read([event("a", [1]), event("", [2])])


# bytes of an event, and what stands there in an odd one
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
    expect_general_way(event(ids=ids), *ODD[odd], place)


@pytest.mark.parametrize("odd", ODD_IDS)
@pytest.mark.parametrize("place", [0, 1, 3])
def test_one_event_with_odd_ids_leaves_all_to_the_general_way(odd: str, place: int) -> None:
    expect_general_way(event(ids=[7]), b"[7]", ODD_IDS[odd], place)


def expect_general_way(plain: bytes, old: bytes, new: bytes, place: int) -> None:
    odd = plain.replace(old, new)
    assert odd != plain
    events = [plain] * 3
    events.insert(place, odd)
    parsed = Parsed()
    assert not count_same_shape(events, parsed)
    assert parsed == Parsed()


def test_ids_before_the_text_leave_all_to_the_general_way() -> None:
    before = b'{"choices":[{"token_ids":[7],"text":"a"}]}'
    assert short_way([before] * 4) is None
    assert short_way([before.replace(b"[7]", b"[7,8]")] * 4) is None


@given(
    texts=st.lists(
        st.text('a5"\\\n]\u00e9', max_size=6) | st.sampled_from(TEXTS), min_size=1, max_size=8
    ),
    ids=st.none() | st.lists(st.integers(0, 10**6), min_size=8, max_size=8),
    chat=st.booleans(),
    at=st.integers(0, 10**6),
    junk=st.none() | st.sampled_from([b'"', b"\\", b"\n", b"", b"7", b",", b"]", b"}", b'":"']),
)
def test_the_short_way_counts_as_the_general_way_does(
    texts: list[str], ids: list[int] | None, chat: bool, at: int, junk: bytes | None
) -> None:
    """One byte of one event may be replaced by others."""
    wire = CHAT if chat else COMPLETIONS
    events = [
        event(text, None if ids is None else [ids[place]], chat) for place, text in enumerate(texts)
    ]
    if junk is not None:
        changed = events[at % len(events)]
        place = at % len(changed)
        events[at % len(events)] = changed[:place] + junk + changed[place + 1 :]
    parsed, general = short_way(events), Parsed()
    if parsed is not None:
        assert count_any_shape(events, general)
        assert parsed == general
    if parsed is not None and junk is None:
        decoded = Parsed()
        wire.read(events, decoded)
        assert parsed == decoded


# -- which reads are counted


def fast_path() -> FastPath:
    counter = fast_path_of(WIRE)
    assert counter is not None
    return counter


def test_reads_that_were_counted_are_dropped_and_nothing_else() -> None:
    request = with_tokens_at(*range(1_000_000, 201_000_000, 1_000_000))
    bytes_before = sum(map(len, request.parts))
    while fast_path().can_count(request, MIN_READS):
        fast_path().count(request)
    assert len(request.event_ns) >= 160
    assert sum(map(len, request.parts)) < bytes_before / 4
    assert request.parts[-1].endswith(END)
    assert request.times[-1] == 200_001_000
    assert done(request).chunks == 200


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
