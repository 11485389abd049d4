"""A request under way: its head, and what its last reads show."""

from __future__ import annotations

import pytest

from orchestrator.load.http import BadHttp
from orchestrator.load.in_flight import InFlight
from tests.in_flight import sent_request

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def with_parts(*parts: bytes) -> InFlight:
    request = sent_request()
    request.parts = list(parts)
    request.times = list(range(len(parts)))
    return request


def test_a_head_over_several_reads_is_taken_off_the_body() -> None:
    request = with_parts(HEAD[:10], HEAD[10:] + b"5\r\n")
    assert request.read_head()
    assert request.head is not None and request.head.status == 200
    assert request.first_byte_ns == 0
    assert (request.parts, request.times, request.received) == ([b"5\r\n"], [1], 3)


def test_an_incomplete_head_stays() -> None:
    request = with_parts(HEAD[:10])
    assert not request.read_head()
    assert request.head is None
    assert request.parts == [HEAD[:10]]


def test_a_head_that_is_no_http_is_refused() -> None:
    with pytest.raises(BadHttp):
        with_parts(b"SSH-2.0-server\r\n").read_head()


@pytest.mark.parametrize(
    ("parts", "may_end"),
    [
        ([b"0\r\n\r\n"], True),
        ([b"5\r\nhello\r\n0", b"\r\n\r\n"], True),
        ([b"5\r\nhello\r\n", b"0\r\nx: y\r\n\r\n"], True),
        ([b"5\r\nhello\r\n"], False),
    ],
)
def test_a_line_that_begins_with_0_may_be_the_end(parts: list[bytes], may_end: bool) -> None:
    assert with_parts(*parts).may_end() == may_end


@pytest.mark.parametrize(
    ("parts", "is_silent"),
    [
        ([], True),
        ([b": ping\n\n"], True),
        ([b"da", b"ta: {}"], False),
        ([b": ping\n\n"] * 4, False),
    ],
)
def test_a_stream_is_silent_until_its_first_event(parts: list[bytes], is_silent: bool) -> None:
    assert with_parts(*parts).is_silent() == is_silent
