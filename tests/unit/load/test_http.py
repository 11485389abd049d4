"""Heads and framing: whatever a server may send is taken in right or refused with a reason."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.load.http import (
    MAX_HEAD_BYTES,
    BadHttp,
    Head,
    parse_head,
    since_event_chunk,
    unwrap,
    unwrap_chunks,
)

CHUNKED = Head(200, "OK", {}, 0, True, None, True)


def head(*lines: str) -> Head:
    parsed = parse_head(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
    assert parsed is not None
    return parsed


def test_a_head_is_read_when_it_is_whole_and_not_before() -> None:
    raw = b"HTTP/1.1 200 Fine\r\nContent-Length: 5\r\nX-Y:  z \r\n\r\nhello"
    for cut in range(len(raw) - 5):
        assert parse_head(raw[:cut]) is None
    parsed = parse_head(raw)
    assert parsed is not None
    assert (parsed.status, parsed.reason, parsed.headers["x-y"], parsed.size) == (
        200,
        "Fine",
        "z",
        len(raw) - 5,
    )
    assert (parsed.chunked, parsed.length, parsed.keep_alive) == (False, 5, True)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("HTTP/1.1 200 OK", "Transfer-Encoding: chunked"), (True, None, True)),
        (
            ("HTTP/1.1 200 OK", "transfer-encoding: gzip, Chunked", "content-length: 7"),
            (True, None, True),
        ),
        (("HTTP/1.1 200 OK",), (False, None, False)),
        (("HTTP/1.1 200 OK", "Content-Length: 3", "Connection: close"), (False, 3, False)),
        (("HTTP/1.0 200 OK", "Content-Length: 3"), (False, 3, False)),
        (("HTTP/1.0 200 OK", "Content-Length: 3", "Connection: Keep-Alive"), (False, 3, True)),
        (("HTTP/1.1 204 No Content",), (False, 0, True)),
    ],
)
def test_how_a_body_ends_and_whether_the_connection_lives_on(
    lines: tuple[str, ...], expected: tuple[object, ...]
) -> None:
    parsed = head(*lines)
    assert (parsed.chunked, parsed.length, parsed.keep_alive) == expected


def test_interim_responses_are_passed_over() -> None:
    raw = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    assert parse_head(raw) is None
    parsed = parse_head(raw + b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")
    assert parsed is not None
    assert (parsed.status, parsed.size) == (201, len(raw) + 43)


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\n",
        # more digits than int() takes
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5_000 + b"\r\n\r\n",
        b"HTTP/1.1 \xb2\xb2\xb2 OK\r\n\r\n",  # superscript digits, which int() does not take
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * MAX_HEAD_BYTES,
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused(raw: bytes) -> None:
    with pytest.raises(BadHttp):
        parse_head(raw)


@settings(max_examples=200, deadline=None)
@given(raw=st.binary(max_size=200))
def test_random_bytes_never_raise_anything_else(raw: bytes) -> None:
    for start in (
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    ):
        try:
            parsed = parse_head(start + raw)
            if parsed is not None:
                unwrap([start + raw], parsed)
        except BadHttp:
            continue


def chunks_of(
    pieces: list[bytes], digits: str = "%x", extension: bytes = b"", trailers: bytes = b""
) -> bytes:
    framed = [
        (digits % len(piece)).encode() + extension + b"\r\n" + piece + b"\r\n" for piece in pieces
    ]
    return b"".join(framed) + b"0\r\n" + trailers + b"\r\n"


def check(raw: bytes, pieces: list[bytes]) -> None:
    """The body is the pieces, and of each of its bytes it is known with which read it came."""
    content = b"".join(pieces)
    for reads in ([raw], [raw[at : at + 1] for at in range(len(raw))]):
        body = unwrap(reads, CHUNKED)
        assert (body.content, body.complete, body.more) == (content, True, False)
    assert list(body.ends) == [*range(1, len(content) + 1)]
    assert bytes(raw[read] for read in body.reads) == content
    assert bool((np.diff(body.reads) > 0).all())


PIECES = st.lists(
    st.binary(min_size=1, max_size=20)
    | st.sampled_from([b"\r\n", b"0\r\n\r\n", b"5\r\nhello\r\n"]),
    min_size=1,
    max_size=6,
)


@settings(max_examples=200, deadline=None)
@given(
    pieces=PIECES,
    digits=st.sampled_from(["%x", "%X", "%04x"]),
    extension=st.sampled_from([b"", b";name=value", b" "]),
    trailers=st.sampled_from([b"", b"Server-Timing: x\r\n", b"Content-Length: 3\r\n"]),
)
@example(pieces=[b"data: {}\n\n"] * 6, digits="%x", extension=b"", trailers=b"")
def test_chunks_are_taken_apart_whatever_they_hold(
    pieces: list[bytes], digits: str, extension: bytes, trailers: bytes
) -> None:
    raw = chunks_of(pieces, digits, extension, trailers)
    check(raw, pieces)
    for more in (b"HTTP/1.1 200 OK", b"x"):  # bytes after the end are not ours
        rest = unwrap([raw + more], CHUNKED)
        assert (rest.content, rest.complete, rest.more) == (b"".join(pieces), True, True)


@settings(max_examples=100, deadline=None)
@given(pieces=PIECES, data=st.data())
def test_a_body_cut_short_is_incomplete_and_keeps_its_bytes(
    pieces: list[bytes], data: st.DataObject
) -> None:
    raw = chunks_of(pieces)
    cut = data.draw(st.integers(0, len(raw) - 1))
    body = unwrap([raw[:cut]], CHUNKED)
    assert not body.complete
    assert b"".join(pieces).startswith(body.content)


@pytest.mark.parametrize(
    "raw",
    [
        b"zz\r\nhello\r\n",
        b"-5\r\nhello\r\n",
        b"3\r\nhello\r\n",
        b"\r\n\r\n",
        b"x" * 5000,
        b"0x3\r\nabc\r\n",
    ],
)
def test_broken_chunks_are_refused(raw: bytes) -> None:
    with pytest.raises(BadHttp):
        unwrap([raw], CHUNKED)


def test_a_body_of_known_length_ends_there() -> None:
    parsed = parse_head(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
    assert parsed is not None
    body = unwrap([b"hel", b"lomore", b"!"], parsed)
    assert (body.content, body.ends, body.complete, body.more) == (b"hello", [3, 5, 5], True, True)
    assert not unwrap([b"hel"], parsed).complete


@settings(max_examples=200, deadline=None)
@given(
    before=st.lists(st.binary(max_size=40), max_size=3),
    after=st.lists(st.binary(min_size=1, max_size=40), max_size=20),
    end=st.sampled_from([b"0\r\n\r\n", b"0\r\n\r", b"0\r\nx: y\r\n\r\n", b""]),
)
def test_the_end_of_a_body_is_found_from_the_last_event_on(
    before: list[bytes], after: list[bytes], end: bytes
) -> None:
    framed = [b"%x\r\n%b\r\n" % (len(data), data) for data in after]
    event = b'data: {"x":1}\n\n'
    last_read = b"".join(framed[1:]) + end
    reads = [*before, b"%x\r\n%b\r\n" % (len(event), event), *framed[:1], last_read]
    tail = since_event_chunk(reads)
    assert tail is not None
    body = unwrap_chunks(tail)
    whole = unwrap(reads[len(before) :], CHUNKED)
    assert body.complete == whole.complete
    assert (event + b"".join(after)).endswith(body.content)
    # otherwise the last event of all may be one of these
    if not any(data.startswith(b"data: {") for data in after):
        assert b"".join(tail) == b"".join(framed) + end
        assert since_event_chunk([*framed, end]) is None
