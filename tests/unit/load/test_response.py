"""Responses to rows' content: times, gaps, counts, outcomes."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.load.fast_path import MIN_READS, FastPath, fast_path_of
from orchestrator.load.in_flight import InFlight
from orchestrator.load.request_record import RequestRecord
from orchestrator.load.response.http import END_MARK
from orchestrator.load.response.reader import ResponseReader
from orchestrator.load.wire.wires import WIRES
from orchestrator.results.outcomes import ErrorClass
from orchestrator.spec.dialect import Dialect
from tests.in_flight import finish, gaps_us, sent_request, tokens_per_chunk
from tests.integration.load_server import DONE, END, HEAD, chunk, event, token, usage

DIALECT = Dialect("openai_completions", "/v1/completions")
WIRE = "openai_completions"


def fast_path() -> FastPath:
    found = fast_path_of(WIRE)
    assert found is not None
    return found


def in_flight(*reads: tuple[int, bytes], asked: int = 3) -> InFlight:
    """Reads with the instant (ns) of each."""
    made = sent_request(output_tokens=asked)
    for at, data in reads:
        made.times.append(at)
        made.parts.append(data)
        if made.head is None:
            made.read_head()
    made.end_marker = END_MARK
    return made


def done(made: InFlight, dialect: Dialect = DIALECT) -> RequestRecord:
    return finish(made, WIRE, dialect)


def stream(*stamps: int) -> InFlight:
    """A token at each instant, then usage and the end a microsecond after the last."""
    tokens = [(at, chunk(token(finish="length" if at == stamps[-1] else None))) for at in stamps]
    tail = chunk(usage(8, len(stamps))) + chunk(DONE) + END
    return in_flight((0, HEAD), *tokens, (stamps[-1] + 1000, tail), asked=len(stamps))


def test_first_last_and_gaps_are_those_of_the_content() -> None:
    found = done(stream(5_000_000, 7_000_400, 12_000_000))
    assert (found.first_token_ns, found.last_token_ns) == (5_000_000, 12_000_000)
    assert gaps_us(found) == array("i", [2000, 5000])
    assert (
        found.chunks,
        found.output_tokens,
        found.output_tokens_counted,
        found.token_count_source,
    ) == (3, 3, 3, "usage")
    assert (found.itl_kind, tokens_per_chunk(found), found.status) == ("token", None, "ok")


@settings(max_examples=100, deadline=None)
@given(gaps=st.lists(st.integers(1, 5_000_000), min_size=1, max_size=80))
def test_rounding_gaps_to_microseconds_does_not_add_up(gaps: list[int]) -> None:
    stamps = [1_000_000]
    for gap in gaps:
        stamps.append(stamps[-1] + gap)
    found = done(stream(*stamps))
    assert gaps_us(found) is not None
    so_far_us = 0
    for gap_us, stamp in zip(gaps_us(found), stamps[1:], strict=True):
        so_far_us += gap_us
        assert abs(so_far_us * 1000 - (stamp - stamps[0])) <= 500


def test_events_of_one_read_share_its_time_and_are_counted() -> None:
    both = chunk(token()) + chunk(token())
    tail = chunk(token(finish="length")) + chunk(usage(8, 5)) + chunk(DONE) + END
    made = in_flight((0, HEAD), (10, both), (20_000, both), (50_000, tail), asked=5)
    found = done(made)
    assert gaps_us(found) == array("i", [0, 20, 0, 30])
    assert (found.coalesced_chunks, made.coalesced_reads) == (2, 2)


def lumps(*sizes: int, apart_us: int = 50, every_ms: int = 80) -> list[int]:
    """Instants of events that come so many together, each in a write of its own."""
    starts = [1_000_000 * every_ms * lump for lump in range(1, len(sizes) + 1)]
    return [
        start + 1000 * apart_us * at
        for start, size in zip(starts, sizes, strict=True)
        for at in range(size)
    ]


def test_events_hard_on_each_other_came_together_although_each_has_a_read_of_its_own() -> None:
    made = stream(*lumps(8, 8, 8))
    found = done(made)
    assert (found.coalesced_chunks, made.coalesced_reads, found.chunks) == (21, 0, 24)
    assert done(stream(*range(10**6, 10**7, 100_000))).coalesced_chunks == 0  # a fast engine
    assert done(stream(*lumps(8, 8, 8, apart_us=300))).coalesced_chunks == 0


@pytest.mark.parametrize("apart_us", [0, 50])
def test_the_events_of_one_speculative_step_are_one_chunk(apart_us: int) -> None:
    drafting = replace(DIALECT, tokens_per_step=4)
    made = stream(*lumps(4, 1, 3, apart_us=apart_us)) if apart_us else one_read_each(4, 1, 3)
    found = done(made, drafting)
    assert (found.chunks, found.coalesced_chunks, found.itl_kind) == (3, 0, "chunk")
    assert (found.output_tokens, tokens_per_chunk(found)) == (8, array("h", [4, 1, 3]))
    assert gaps_us(found) == array("i", [80_000 - 3 * apart_us, 80_000 + 2 * apart_us])
    assert (found.first_token_ns, found.last_token_ns) == (
        80_000_000 + 3000 * apart_us,
        240_000_000 + 2000 * apart_us,
    )


def one_read_each(*sizes: int) -> InFlight:
    """The same, each lump in one write."""
    reads = [
        (80_000_000 * at, b"".join([chunk(token())] * size))
        for at, size in enumerate(sizes, start=1)
    ]
    tail = chunk(usage(8, sum(sizes))) + chunk(DONE) + END
    return in_flight((0, HEAD), *reads, (250_000_000, tail), asked=sum(sizes))


def test_more_than_a_step_makes_is_a_lump_with_speculation_too() -> None:
    drafting = replace(DIALECT, tokens_per_step=4)
    assert done(stream(*lumps(4, 8, 1)), drafting).coalesced_chunks == 7
    # an event holds a whole step: two of them are two
    several = b"".join([chunk(token(token_ids=[1, 2, 3]))] * 2)
    tail = chunk(token(finish="length", token_ids=[4])) + chunk(usage(8, 7)) + chunk(DONE) + END
    found = done(in_flight((0, HEAD), (10_000, several), (50_000_000, tail), asked=7), drafting)
    assert (found.coalesced_chunks, tokens_per_chunk(found)) == (1, array("h", [3, 3, 1]))


def test_an_event_over_two_reads_has_the_time_of_the_second() -> None:
    whole = chunk(token(finish="length"))
    tail = chunk(usage(8, 1)) + chunk(DONE) + END
    for cut in range(1, len(whole) - 4):  # the last bytes are the empty line and the chunk's end
        found = done(in_flight((0, HEAD), (10, whole[:cut]), (99_000, whole[cut:] + tail), asked=1))
        assert found.first_token_ns == 99_000
    found = done(in_flight((0, HEAD), (10, whole[:-4]), (99_000, whole[-4:] + tail), asked=1))
    assert found.first_token_ns == 10


def test_a_known_total_over_fewer_chunks_says_that_nobody_knows_which_held_how_many() -> None:
    events = [(1000 * at, chunk(token(finish="length" if at == 3 else None))) for at in (1, 2, 3)]
    found = done(
        in_flight((0, HEAD), *events, (9000, chunk(usage(8, 8)) + chunk(DONE) + END), asked=8)
    )
    assert (found.chunks, found.output_tokens, found.itl_kind) == (3, 8, "chunk")
    assert tokens_per_chunk(found) is None
    assert found.status == "ok"


def test_ids_tell_how_many_tokens_a_chunk_holds_even_without_text() -> None:
    events = [
        chunk(token(" a", token_ids=[1, 2])),
        chunk(token("", token_ids=[3])),  # held back text: a token all the same
        chunk(token("", token_ids=[])),
        chunk(token(" b", finish="length", token_ids=[4])),
    ]
    reads = [(1000 * at, data) for at, data in enumerate(events, start=1)]
    found = done(
        in_flight((0, HEAD), *reads, (9000, chunk(usage(8, 4)) + chunk(DONE) + END), asked=4)
    )
    assert tokens_per_chunk(found) == array("h", [2, 1, 1])
    assert (found.chunks, found.output_tokens_counted, found.token_count_source, found.status) == (
        3,
        4,
        "token_ids",
        "ok",
    )
    assert gaps_us(found) == array("i", [1, 2])


def test_times_of_a_record_count_from_the_start_of_the_point() -> None:
    made = stream(5_000_000, 7_000_000)
    made.sent_ns = 4_000_000
    made.first_byte_ns = 4_500_000
    made.ended_ns = 8_000_000
    found = finish(made, WIRE, DIALECT, start_ns=1_000_000)
    assert (found.sent_ns, found.first_byte_ns, found.done_ns) == (3_000_000, 3_500_000, 7_000_000)
    assert (found.first_token_ns, found.last_token_ns) == (4_000_000, 6_000_000)


def test_what_came_of_a_cut_stream_is_kept() -> None:
    made = in_flight(
        (0, HEAD), (5000, chunk(token())), (7000, chunk(token())), (8000, b"33\r\ndata: {")
    )
    made.record.fail(ErrorClass.TRUNCATED, "cut")
    found = done(made)
    assert (found.status, found.error_class, found.chunks) == ("invalid", "truncated", 2)
    assert found.last_token_ns == 7000


def test_nothing_at_all_came() -> None:
    made = sent_request(output_tokens=3)
    made.record.fail(ErrorClass.CONNECT, "refused")
    found = done(made)
    assert (found.status, found.error_class) == ("error", "connect")
    assert (found.chunks, found.http_status, gaps_us(found)) == (0, None, None)


def test_a_broken_framing_is_garbage_unless_something_else_broke_first() -> None:
    broken = ((0, HEAD), (5, b"zz\r\n"))
    assert done(in_flight(*broken)).error_class == "garbage"
    timed_out = in_flight(*broken)
    timed_out.record.fail(ErrorClass.TIMEOUT, "no end")
    assert done(timed_out).error_class == "timeout"


def test_long_streams_are_counted_in_steps() -> None:
    made = stream(*range(1_000_000, 1_001_000_000, 1_000_000))
    steps = list(ResponseReader(WIRES[WIRE], DIALECT, fast_path(), 0).finish(made))
    assert len(steps) >= 4
    found = made.record
    assert (found.chunks, found.status) == (1000, "ok")


def test_reads_that_were_counted_ahead_are_dropped_and_nothing_else() -> None:
    made = stream(*range(1_000_000, 201_000_000, 1_000_000))
    before = sum(map(len, made.parts))
    while fast_path().can_count(made, MIN_READS):
        fast_path().count(made)
    assert len(made.event_ns) >= 160
    assert sum(map(len, made.parts)) < before / 4
    assert made.parts[-1].endswith(END)
    assert made.times[-1] == 200_001_000
    assert done(made).chunks == 200


@pytest.mark.parametrize("odd", ["reply needed", "not chunked"])
def test_what_is_not_plain_is_never_counted(odd: str) -> None:
    made = stream(*range(1_000_000, 101_000_000, 1_000_000))
    made.parsed.texts = [] if odd == "reply needed" else None
    made.end_marker = b"" if odd == "not chunked" else made.end_marker
    assert not fast_path().can_count(made, MIN_READS)
    assert len(made.parts) == 102


def test_usage_with_cached_tokens_reaches_the_row() -> None:
    details = {
        "prompt_tokens": 8,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": 6},
    }
    tail = chunk(event({"choices": [], "usage": details})) + chunk(DONE) + END
    found = done(in_flight((0, HEAD), (5, chunk(token(finish="length"))), (9, tail), asked=1))
    assert (found.input_tokens, found.cached_tokens) == (8, 6)


@pytest.mark.parametrize(
    ("thought", "ids", "hidden"),
    [(None, None, 6), ("Hm", None, 0), (None, [1], 6), (None, [1, 2, 3, 4], 0)],
)
def test_tokens_that_were_thought_and_never_streamed_are_known(
    thought: str | None, ids: list[int] | None, hidden: int
) -> None:
    """Two answer events of a chat; usage says 8 tokens (or what the ids and 6 more say), 6 of them
    thought.
    """
    shown = 2 if ids is None else 2 * len(ids)
    total = 8 if ids is None or len(ids) == 1 else shown
    more = {} if ids is None else {"token_ids": ids}
    first = {"reasoning_content": thought} if thought else {"content": "a"}
    choices = [
        {"delta": first, **more},
        {"delta": {"content": "b"}, "finish_reason": "stop", **more},
    ]
    details = {"completion_tokens": total, "completion_tokens_details": {"reasoning_tokens": 6}}
    events = [{"choices": [choice]} for choice in choices] + [{"choices": [], "usage": details}]
    made = in_flight(
        (0, HEAD), (1000, chunk(event(events[0]))), (2000, chunk(event(events[1]))), asked=total
    )
    made.parts.append(chunk(event(events[2])) + chunk(DONE) + END)
    made.times.append(3000)
    found = finish(made, "openai_chat", DIALECT)
    assert (found.status, found.output_tokens, found.hidden_tokens) == ("ok", total, hidden)
    shown_each = found.output_tokens - hidden == found.chunks
    assert found.itl_kind == ("token" if shown_each and ids in (None, [1]) else "chunk")


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
    more = {} if ids is None else {"token_ids": ids}
    deltas = [{name: "Hm"}] * thoughts + [{"role": "assistant"}] + [{"content": "a"}] * 300
    held = [more if "role" not in delta else {name: [] for name in more} for delta in deltas]
    choices = [{"delta": delta, **one} for delta, one in zip(deltas, held, strict=True)]
    choices[-1]["finish_reason"] = "length"
    reads = [
        (20_000 * (at + 1), chunk(event({"choices": [choice]})))
        for at, choice in enumerate(choices)
    ]
    last = (reads[-1][0] + 1, chunk(DONE) + END)
    made = in_flight((0, HEAD), *reads, last, asked=thoughts + 300)
    while ahead and fast_path().can_count(made):
        fast_path().count(made)
    found = finish(made, "openai_chat", DIALECT)
    first_ns = 20_000 if thoughts else 40_000
    assert (found.status, found.chunks, found.first_token_ns) == ("ok", thoughts + 300, first_ns)
    assert found.first_answer_ns == (20_000 * (thoughts + 2) if thoughts else None)


def test_thoughts_without_an_answer_have_no_first_one() -> None:
    thought = [
        {"choices": [{"delta": {"reasoning": "Hm"}, "finish_reason": end}]}
        for end in (None, "length")
    ]
    made = in_flight(
        (0, HEAD),
        *((at, chunk(event(one))) for at, one in zip((5, 9), thought, strict=True)),
        asked=2,
    )
    made.parts[-1] += chunk(DONE) + END
    finish(made, "openai_chat", DIALECT)
    assert (made.record.status, made.record.first_token_ns, made.record.first_answer_ns) == (
        "ok",
        5,
        None,
    )


def test_a_body_that_went_on_after_its_seeming_end_is_garbage() -> None:
    """A chunk of 4096 bytes that holds what looks like a chunk and an end: the connection's bytes
    are not ours.
    """
    inside = chunk(token()) + END
    found = done(in_flight((0, HEAD + b"1000\r\n"), (1_000_000, inside)))
    assert (found.status, found.error_class) == ("invalid", "garbage")


@pytest.mark.parametrize("said", [2**31, 2**70, -1, 1.5, "3", None, True])
def test_numbers_that_no_server_can_mean_are_not_taken(said: object) -> None:
    """They would not fit the columns, and cost every other row of the client."""
    event_bytes = event(
        {"choices": [], "usage": {"prompt_tokens": said, "completion_tokens": said}}
    )
    found = done(
        in_flight(
            (0, HEAD), (1, chunk(token())), (2, chunk(event_bytes) + chunk(DONE) + END), asked=1
        )
    )
    assert (found.input_tokens, found.output_tokens) == (None, 1)
    assert found.token_count_source == "chunks"


def test_a_running_count_that_falls_tells_nothing_of_single_events() -> None:
    events = [
        event({"choices": [{"text": "a"}], "usage": {"completion_tokens": n}})
        for n in (2**31 - 1, 0, 2**31 - 1)
    ]
    reads = [(at, chunk(one)) for at, one in enumerate(events, start=1)]
    found = done(in_flight((0, HEAD), *reads, (9, chunk(DONE) + END), asked=1))
    assert (found.output_tokens_counted, found.token_count_source, tokens_per_chunk(found)) == (
        3,
        "usage",
        None,
    )
