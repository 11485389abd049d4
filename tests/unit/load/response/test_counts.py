"""Token counts, and the times of chunks, from what came."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.load.fast_path import fast_path_of
from orchestrator.load.in_flight import InFlight
from tests.in_flight import finish, gaps_us, tokens_per_chunk
from tests.integration.load_server import DONE, END, HEAD, chunk, event, token
from tests.unit.load.response.streams import (
    DIALECT,
    WIRE,
    done,
    ending,
    with_reads,
    with_tokens_at,
)

SPECULATIVE = replace(DIALECT, tokens_per_step=4)


def test_first_last_and_gaps_are_those_of_the_content() -> None:
    request = with_tokens_at(5_000_000, 7_000_400, 12_000_000)
    record = done(request)
    assert (record.first_token_ns, record.last_token_ns) == (5_000_000, 12_000_000)
    assert gaps_us(request) == array("i", [2000, 5000])


def test_events_of_a_token_each_are_counted_with_the_usage() -> None:
    request = with_tokens_at(5_000_000, 7_000_400, 12_000_000)
    record = done(request)
    assert (record.chunks, record.output_tokens, record.output_tokens_counted) == (3, 3, 3)
    assert record.token_count_source == "usage"
    assert record.itl_kind == "token"
    assert tokens_per_chunk(request) is None
    assert record.status == "ok"


@settings(max_examples=100, deadline=None)
@given(gaps=st.lists(st.integers(1, 5_000_000), min_size=1, max_size=80))
def test_rounding_gaps_to_microseconds_does_not_add_up(gaps: list[int]) -> None:
    instants = [1_000_000]
    for gap in gaps:
        instants.append(instants[-1] + gap)
    request = with_tokens_at(*instants)
    done(request)
    rounded = gaps_us(request)
    assert rounded is not None
    so_far_us = 0
    for gap_us, at_ns in zip(rounded, instants[1:], strict=True):
        so_far_us += gap_us
        assert abs(so_far_us * 1000 - (at_ns - instants[0])) <= 500


def test_events_of_one_read_share_its_time() -> None:
    both = chunk(token()) + chunk(token())
    last = chunk(token(finish="length")) + ending(5)
    request = with_reads((0, HEAD), (10, both), (20_000, both), (50_000, last), asked=5)
    record = done(request)
    assert gaps_us(request) == array("i", [0, 20, 0, 30])
    assert record.coalesced_chunks == 2
    assert request.coalesced_reads == 2


# -- events that come together


def lumps(*sizes: int, apart_us: int = 50, every_ms: int = 80) -> list[int]:
    """Instants of events that come so many together, each in a write of its own."""
    instants = []
    for lump, size in enumerate(sizes, start=1):
        start_ns = 1_000_000 * every_ms * lump
        instants += [start_ns + 1000 * apart_us * event for event in range(size)]
    return instants


def lumps_in_one_read(*sizes: int) -> InFlight:
    """Events that come so many together, all of a lump in one write."""
    reads = [(0, HEAD)]
    for lump, size in enumerate(sizes, start=1):
        reads.append((80_000_000 * lump, chunk(token()) * size))
    reads.append((250_000_000, ending(sum(sizes))))
    return with_reads(*reads, asked=sum(sizes))


def test_events_in_reads_of_their_own_came_together_if_hardly_apart() -> None:
    request = with_tokens_at(*lumps(8, 8, 8))
    record = done(request)
    assert record.chunks == 24
    assert record.coalesced_chunks == 21
    assert request.coalesced_reads == 0


@pytest.mark.parametrize(
    "instants", [range(10**6, 10**7, 100_000), lumps(8, 8, 8, apart_us=300)], ids=["fast", "apart"]
)
def test_events_further_apart_did_not_come_together(instants: list[int]) -> None:
    assert done(with_tokens_at(*instants)).coalesced_chunks == 0


@pytest.mark.parametrize("apart_us", [0, 50])
def test_the_events_of_one_speculative_step_are_one_chunk(apart_us: int) -> None:
    if apart_us:
        request = with_tokens_at(*lumps(4, 1, 3, apart_us=apart_us))
    else:
        request = lumps_in_one_read(4, 1, 3)
    record = done(request, SPECULATIVE)
    assert (record.chunks, record.coalesced_chunks, record.itl_kind) == (3, 0, "chunk")
    assert record.output_tokens == 8
    assert tokens_per_chunk(request) == array("h", [4, 1, 3])
    assert gaps_us(request) == array("i", [80_000 - 3 * apart_us, 80_000 + 2 * apart_us])
    assert record.first_token_ns == 80_000_000 + 3000 * apart_us
    assert record.last_token_ns == 240_000_000 + 2000 * apart_us


def test_more_tokens_than_a_speculative_step_makes_are_a_lump() -> None:
    assert done(with_tokens_at(*lumps(4, 8, 1)), SPECULATIVE).coalesced_chunks == 7


def test_two_events_of_a_whole_step_each_are_two_chunks() -> None:
    two_steps = chunk(token(token_ids=[1, 2, 3])) * 2
    last = chunk(token(finish="length", token_ids=[4])) + ending(7)
    request = with_reads((0, HEAD), (10_000, two_steps), (50_000_000, last), asked=7)
    assert done(request, SPECULATIVE).coalesced_chunks == 1
    assert tokens_per_chunk(request) == array("h", [3, 3, 1])


# -- tokens of a chunk


def test_a_total_over_fewer_chunks_does_not_say_what_each_held() -> None:
    events = [(1000 * at, chunk(token(finish="length" if at == 3 else None))) for at in (1, 2, 3)]
    request = with_reads((0, HEAD), *events, (9000, ending(8)), asked=8)
    record = done(request)
    assert (record.chunks, record.output_tokens, record.itl_kind) == (3, 8, "chunk")
    assert tokens_per_chunk(request) is None
    assert record.status == "ok"


def test_ids_tell_how_many_tokens_a_chunk_holds_even_without_text() -> None:
    events = [
        chunk(token(" a", token_ids=[1, 2])),
        chunk(token("", token_ids=[3])),  # held back text: a token all the same
        chunk(token("", token_ids=[])),
        chunk(token(" b", finish="length", token_ids=[4])),
    ]
    reads = [(1000 * at, data) for at, data in enumerate(events, start=1)]
    request = with_reads((0, HEAD), *reads, (9000, ending(4)), asked=4)
    record = done(request)
    assert tokens_per_chunk(request) == array("h", [2, 1, 1])
    assert gaps_us(request) == array("i", [1, 2])
    assert (record.chunks, record.output_tokens_counted) == (3, 4)
    assert record.token_count_source == "token_ids"
    assert record.status == "ok"


def test_usage_with_cached_tokens_reaches_the_record() -> None:
    usage_object = {
        "prompt_tokens": 8,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": 6},
    }
    last = chunk(event({"choices": [], "usage": usage_object})) + chunk(DONE) + END
    record = done(with_reads((0, HEAD), (5, chunk(token(finish="length"))), (9, last), asked=1))
    assert (record.input_tokens, record.cached_tokens) == (8, 6)


@pytest.mark.parametrize("number", [2**31, 2**70, -1, 1.5, "3", None, True])
def test_numbers_that_no_server_can_mean_are_not_taken(number: object) -> None:
    """Such numbers would not fit the columns, and cost every other row of the client."""
    odd_usage = event(
        {"choices": [], "usage": {"prompt_tokens": number, "completion_tokens": number}}
    )
    last = chunk(odd_usage) + chunk(DONE) + END
    record = done(with_reads((0, HEAD), (1, chunk(token())), (2, last), asked=1))
    assert (record.input_tokens, record.output_tokens) == (None, 1)
    assert record.token_count_source == "chunks"


def test_a_running_count_that_falls_tells_nothing_of_single_events() -> None:
    reads = [(0, HEAD)]
    for at, total in enumerate((2**31 - 1, 0, 2**31 - 1), start=1):
        falling = {"choices": [{"text": "a"}], "usage": {"completion_tokens": total}}
        reads.append((at, chunk(event(falling))))
    request = with_reads(*reads, (9, chunk(DONE) + END), asked=1)
    record = done(request)
    assert record.output_tokens_counted == 3
    assert record.token_count_source == "usage"
    assert tokens_per_chunk(request) is None


# -- reasoning


@pytest.mark.parametrize(
    ("thought", "ids", "hidden"),
    [(None, None, 6), ("Hm", None, 0), (None, [1], 6), (None, [1, 2, 3, 4], 0)],
)
def test_reasoning_that_was_never_streamed_is_hidden(
    thought: str | None, ids: list[int] | None, hidden: int
) -> None:
    """Two events of a chat, whose usage says 8 tokens, 6 of them reasoning. These were streamed if
    an event holds a thought, or if the events hold the ids of all 8 tokens. ``ids``: of each event.
    """
    token_ids = {} if ids is None else {"token_ids": ids}
    first = {"reasoning_content": thought} if thought else {"content": "a"}
    events: list[dict[str, Any]] = [
        {"choices": [{"delta": first, **token_ids}]},
        {"choices": [{"delta": {"content": "b"}, "finish_reason": "stop", **token_ids}]},
    ]
    details = {"completion_tokens": 8, "completion_tokens_details": {"reasoning_tokens": 6}}
    last = chunk(event({"choices": [], "usage": details})) + chunk(DONE) + END
    reads = [(1000 * at, chunk(event(data))) for at, data in enumerate(events, start=1)]
    request = with_reads((0, HEAD), *reads, (3000, last), asked=8)
    record = finish(request, "openai_chat", DIALECT)
    assert record.status == "ok"
    assert (record.chunks, record.output_tokens, record.hidden_tokens) == (2, 8, hidden)
    is_a_token_each = 8 - hidden == 2
    assert record.itl_kind == ("token" if is_a_token_each else "chunk")


@pytest.mark.parametrize("ahead", [False, True], ids=["at the end", "while it runs"])
@pytest.mark.parametrize("ids", [None, [7]], ids=["text", "token ids"])
@pytest.mark.parametrize(
    ("name", "thoughts"), [("reasoning_content", 300), ("reasoning", 3), ("", 0)]
)
def test_the_first_token_of_the_answer_is_told_from_the_first_thought(
    name: str, thoughts: int, ids: list[int] | None, ahead: bool
) -> None:
    """A chat of a token each 20 us; thoughts come first, and an event that holds nothing lies
    between.
    """
    token_ids = {} if ids is None else {"token_ids": ids}
    no_token_ids = {} if ids is None else {"token_ids": []}
    choices: list[dict[str, Any]] = [{"delta": {name: "Hm"}, **token_ids}] * thoughts
    choices += [{"delta": {"role": "assistant"}, **no_token_ids}]
    choices += [{"delta": {"content": "a"}, **token_ids}] * 299
    choices += [{"delta": {"content": "a"}, **token_ids, "finish_reason": "length"}]
    reads = [(0, HEAD)]
    for at, choice in enumerate(choices, start=1):
        reads.append((20_000 * at, chunk(event({"choices": [choice]}))))
    reads.append((reads[-1][0] + 1, chunk(DONE) + END))
    request = with_reads(*reads, asked=thoughts + 300)
    fast_path = fast_path_of(WIRE)
    assert fast_path is not None
    while ahead and fast_path.can_count(request):
        fast_path.count(request)
    record = finish(request, "openai_chat", DIALECT)
    assert (record.status, record.chunks) == ("ok", thoughts + 300)
    assert record.first_token_ns == (20_000 if thoughts else 40_000)
    assert record.first_answer_ns == (20_000 * (thoughts + 2) if thoughts else None)


def test_reasoning_without_an_answer_has_no_first_answer() -> None:
    first = {"choices": [{"delta": {"reasoning": "Hm"}, "finish_reason": None}]}
    last = {"choices": [{"delta": {"reasoning": "Hm"}, "finish_reason": "length"}]}
    request = with_reads(
        (0, HEAD), (5, chunk(event(first))), (9, chunk(event(last)) + chunk(DONE) + END), asked=2
    )
    record = finish(request, "openai_chat", DIALECT)
    assert record.status == "ok"
    assert record.first_token_ns == 5
    assert record.first_answer_ns is None
