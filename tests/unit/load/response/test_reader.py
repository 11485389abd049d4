"""From the reads of a response to a full record: instants, steps, and bodies that are broken."""

from __future__ import annotations

import pytest

from orchestrator.load.fast_path import fast_path_of
from orchestrator.load.response.reader import ResponseReader
from orchestrator.load.wire.wires import WIRES
from orchestrator.results.outcomes import ErrorClass
from tests.in_flight import finish, gaps_us, sent_request
from tests.integration.load_server import END, HEAD, chunk, token
from tests.unit.load.response.streams import (
    DIALECT,
    WIRE,
    done,
    ending,
    with_reads,
    with_tokens_at,
)


def test_instants_of_a_record_count_from_the_start_of_the_point() -> None:
    request = with_tokens_at(5_000_000, 7_000_000)
    request.sent_ns = 4_000_000
    request.first_byte_ns = 4_500_000
    request.ended_ns = 8_000_000
    record = finish(request, WIRE, DIALECT, start_ns=1_000_000)
    assert record.sent_ns == 3_000_000
    assert record.first_byte_ns == 3_500_000
    assert record.done_ns == 7_000_000
    assert (record.first_token_ns, record.last_token_ns) == (4_000_000, 6_000_000)


def test_an_event_over_two_reads_has_the_time_of_the_second() -> None:
    whole = chunk(token(finish="length"))
    empty_line_and_end_of_chunk = 4
    for cut in range(1, len(whole) - empty_line_and_end_of_chunk):
        rest = whole[cut:] + ending(1)
        record = done(with_reads((0, HEAD), (10, whole[:cut]), (99_000, rest), asked=1))
        assert record.first_token_ns == 99_000


def test_an_event_is_complete_before_its_empty_line() -> None:
    whole = chunk(token(finish="length"))
    rest = whole[-4:] + ending(1)
    record = done(with_reads((0, HEAD), (10, whole[:-4]), (99_000, rest), asked=1))
    assert record.first_token_ns == 10


def test_a_long_stream_is_read_in_steps() -> None:
    request = with_tokens_at(*range(1_000_000, 1_001_000_000, 1_000_000))
    reader = ResponseReader(WIRES[WIRE], DIALECT, fast_path_of(WIRE), 0)
    steps = list(reader.finish(request))
    assert len(steps) >= 4
    assert (request.record.chunks, request.record.status) == (1000, "ok")


def test_what_came_of_a_cut_stream_is_kept() -> None:
    request = with_reads(
        (0, HEAD), (5000, chunk(token())), (7000, chunk(token())), (8000, b"33\r\ndata: {")
    )
    request.record.fail(ErrorClass.TRUNCATED, "cut")
    record = done(request)
    assert (record.status, record.error_class) == ("invalid", "truncated")
    assert (record.chunks, record.last_token_ns) == (2, 7000)


def test_a_request_without_a_response_has_no_counts() -> None:
    request = sent_request(output_tokens=3)
    request.record.fail(ErrorClass.CONNECT, "refused")
    record = done(request)
    assert (record.status, record.error_class) == ("error", "connect")
    assert (record.chunks, record.http_status) == (0, None)
    assert gaps_us(request) is None


def test_a_broken_framing_is_garbage() -> None:
    assert done(with_reads((0, HEAD), (5, b"zz\r\n"))).error_class == "garbage"


def test_the_first_failure_of_a_request_counts() -> None:
    request = with_reads((0, HEAD), (5, b"zz\r\n"))
    request.record.fail(ErrorClass.TIMEOUT, "no end")
    assert done(request).error_class == "timeout"


def test_a_body_that_went_on_after_its_seeming_end_is_garbage() -> None:
    """A chunk of 4096 bytes that holds what looks like a chunk and an end: the connection's bytes
    are not ours.
    """
    inside = chunk(token()) + END
    record = done(with_reads((0, HEAD + b"1000\r\n"), (1_000_000, inside)))
    assert (record.status, record.error_class) == ("invalid", "garbage")


@pytest.mark.parametrize(
    ("coding", "is_refused"),
    [
        ("Identity", False),
        ("", False),
        ("none", False),
        (" identity , none", False),
        ("UTF-8", False),
        ("gzip", True),
        ("identity, BR", True),
    ],
)
def test_only_a_known_coding_is_refused(coding: str, is_refused: bool) -> None:
    request = with_tokens_at(1000, 2000, 3000)
    assert request.head is not None
    request.head.headers["content-encoding"] = coding
    assert (done(request).error is not None) == is_refused
