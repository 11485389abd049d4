"""A server that misbehaves in every way we know: one row per request, of the right class, and
nothing hangs.
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import pytest

from orchestrator.analysis.metrics import figures, observe, steady_window
from orchestrator.analysis.slo import judge as judge_slo
from orchestrator.analysis.slo import limit_values
from orchestrator.load.client import LoadClient
from orchestrator.load.point import ClientResult, LoadPoint, Target
from orchestrator.load.validity import judge
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.load import Lengths, Level, Slo
from orchestrator.workloads.drawn import RandomWorkload
from tests.harness import AGAINST_THE_CLOCK
from tests.integration.load_server import (
    DONE,
    END,
    HEAD,
    Behaviour,
    Request,
    answer_well,
    chunk,
    event,
    reset,
    serving,
    stream,
    token,
    usage,
)

pytestmark = AGAINST_THE_CLOCK

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
DIALECT = Dialect("openai_completions", "/v1/completions", prompt_token_ids=True)
TOKENS = 4


def point(port: int, requests: int | None = 6, concurrency: int = 2, **fields: Any) -> LoadPoint:
    usual = {
        "targets": (Target(f"http://127.0.0.1:{port}", "m"),),
        "dialect": DIALECT,
        "workload": RandomWorkload(
            name="w",
            input_tokens=Lengths(fixed=8),
            output_tokens=Lengths(fixed=fields.pop("tokens", TOKENS)),
        ),
        "level": Level(control="concurrency", value=concurrency),
        "duration_s": None,
        "requests": requests,
        "request_timeout_s": 5.0,
        "drain_timeout_s": 5.0,
    }
    return LoadPoint(**(usual | fields))


def run(load_point: LoadPoint) -> ClientResult:
    client = LoadClient()
    client.prepare(load_point)
    return client.run(time.monotonic_ns())


def rows(behaviour: Behaviour, requests: int = 6, **fields: Any) -> list[dict[str, Any]]:
    with serving(behaviour) as server:
        result = run(point(server.port, requests, **fields))
    request_rows: list[dict[str, Any]] = result.requests.to_pylist()
    assert [row["request_index"] for row in request_rows] == list(range(requests))
    return request_rows


def only_outcome(request_rows: list[dict[str, Any]]) -> tuple[str, str | None]:
    """Status and error class, which all rows have in common."""
    outcomes = {(row["status"], row["error_class"]) for row in request_rows}
    assert len(outcomes) == 1, request_rows
    return outcomes.pop()


def answering(*parts: bytes, close: bool = False) -> Behaviour:
    """Every request is answered with these bytes."""

    async def behave(request: Request, reader: Reader, writer: Writer) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        if close:
            writer.close()

    return behave


def plain(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


GOOD = [token() for _ in range(TOKENS - 1)] + [token(finish="length"), usage(8, TOKENS), DONE]
CHUNKS = b"".join(map(chunk, GOOD))

ANSWERS: dict[str, tuple[Behaviour, tuple[str, str | None]]] = {
    "good": (answering(HEAD, CHUNKS, END), ("ok", None)),
    "429": (answering(plain("429 Too Many Requests", b'{"error":"busy"}')), ("error", "http_429")),
    "503": (answering(plain("503 Service Unavailable", b"overloaded")), ("error", "http_429")),
    "503 of a proxy": (
        answering(plain("503 Service Unavailable", b"no upstream")),
        ("error", "http_5xx"),
    ),
    "500 without a body": (
        answering(plain("500 Internal Server Error", b"")),
        ("error", "http_5xx"),
    ),
    "404": (answering(plain("404 Not Found", b'{"detail":"Not Found"}')), ("error", "http_4xx")),
    "a redirect": (
        answering(plain("307 Temporary Redirect", b"", "Location: /elsewhere")),
        ("invalid", "garbage"),
    ),
    "overloaded within a stream": (
        answering(
            HEAD,
            chunk(event({"error": {"message": "Model is overloaded", "http_status_code": 422}})),
            chunk(DONE),
            END,
        ),
        ("error", "http_429"),
    ),
    "compressed": (
        answering(
            HEAD.replace(b"chunked\r\n", b"chunked\r\nContent-Encoding: gzip\r\n"),
            chunk(b"\x1f\x8b\x08"),
            END,
        ),
        ("invalid", "garbage"),
    ),
    "given up": (
        answering(HEAD, *map(chunk, [*GOOD[:-3], token(finish="abort"), *GOOD[-2:]]), END),
        ("invalid", "stream_error"),
    ),
    "a 100 first": (answering(b"HTTP/1.1 100 Continue\r\n\r\n", HEAD, CHUNKS, END), ("ok", None)),
    "not HTTP": (answering(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), ("invalid", "garbage")),
    "random bytes": (answering(bytes(range(256)) * 20), ("invalid", "garbage")),
    "a chunk size that is no number": (
        answering(HEAD, b"zz\r\nhello\r\n", END),
        ("invalid", "garbage"),
    ),
    "a chunk longer than it says": (
        answering(HEAD, b"3\r\ndata: much more\r\n", END),
        ("invalid", "garbage"),
    ),
    "huge headers": (answering(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 400_000), ("invalid", "garbage")),
    "closed within the headers": (answering(HEAD[:40], close=True), ("invalid", "truncated")),
    "closed at once": (answering(close=True), ("error", "reset")),
    "cut within the stream": (answering(HEAD, CHUNKS[:200], close=True), ("invalid", "truncated")),
    "cut after the last event": (answering(HEAD, CHUNKS, close=True), ("invalid", "truncated")),
    "a body that ends early": (
        answering(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n", b"".join(GOOD), close=True),
        ("invalid", "truncated"),
    ),
    "until the connection closes": (
        answering(b"HTTP/1.1 200 OK\r\n\r\n", *GOOD, close=True),
        ("ok", None),
    ),
    "HTTP/1.0": (answering(b"HTTP/1.0 200 OK\r\n\r\n", *GOOD, close=True), ("ok", None)),
    "with its length": (answering(plain("200 OK", b"".join(GOOD))), ("ok", None)),
    "without its end marker": (answering(HEAD, b"".join(map(chunk, GOOD[:-1])), END), ("ok", None)),
    "without a reason to end": (
        answering(HEAD, *[chunk(token())] * TOKENS, END),
        ("invalid", "no_end"),
    ),
    "without its end marker, until the connection closes": (
        answering(b"HTTP/1.1 200 OK\r\n\r\n", *GOOD[:-1], close=True),
        ("invalid", "no_end"),
    ),
    "an error within the stream": (
        answering(
            HEAD,
            chunk(token()),
            chunk(event({"error": {"message": "dead", "code": 500}})),
            chunk(DONE),
            END,
        ),
        ("invalid", "stream_error"),
    ),
    "too few tokens": (
        answering(HEAD, chunk(token(finish="stop")), chunk(usage(8, 1)), chunk(DONE), END),
        ("invalid", "wrong_length"),
    ),
    "an empty stream": (answering(HEAD, chunk(DONE), END), ("invalid", "wrong_length")),
    "no stream but JSON": (
        answering(plain("200 OK", b'{"choices":[{"text":"whole answer"}]}')),
        ("invalid", "garbage"),
    ),
    "an error object with status 200": (
        answering(plain("200 OK", b'{"error":"no"}')),
        ("invalid", "stream_error"),
    ),
    "events that are no JSON": (
        answering(HEAD, chunk(b"data: {oops\n\n"), chunk(DONE), END),
        ("invalid", "garbage"),
    ),
    "trailers": (answering(HEAD, CHUNKS, b"0\r\nServer-Timing: a\r\nX: b\r\n\r\n"), ("ok", None)),
    "garbage after the end": (
        answering(HEAD, CHUNKS, END + b"more that nobody asked for"),
        ("ok", None),
    ),
    "everything in one write": (answering(HEAD + CHUNKS + END), ("ok", None)),
    "byte by byte": (answering(*[bytes([byte]) for byte in HEAD + CHUNKS + END]), ("ok", None)),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_every_answer_is_one_row_of_its_class(name: str) -> None:
    behaviour, expected = ANSWERS[name]
    began = time.monotonic()
    request_rows = rows(behaviour)
    assert only_outcome(request_rows) == expected
    assert time.monotonic() - began < 5.0
    for row in request_rows:
        assert row["done_ns"] >= row["sent_ns"] >= row["scheduled_ns"]
        assert (row["error"] is None) == (row["status"] == "ok")


def test_what_a_server_says_instead_of_an_answer_is_in_the_row() -> None:
    for name, words in {
        "a redirect": "it is at /elsewhere",
        "compressed": "Content-Encoding gzip",
        "given up": "abort",
    }.items():
        assert words in rows(ANSWERS[name][0], 1)[0]["error"]


@pytest.mark.parametrize("length", [{"requests": None, "duration_s": 0.3}, {"requests": 80}])
def test_a_stuck_answer_does_not_make_a_busy_client_look_idle(length: dict[str, Any]) -> None:
    async def behave(request: Request, reader: Reader, writer: Writer) -> None:
        await asyncio.sleep(1.5 if request.number == 3 else 0)
        await answer_well(request, reader, writer)

    with serving(behave) as server:
        stats = run(point(server.port, concurrency=4, tokens=64, **length)).stats
    assert stats.wall_s > 1.4
    assert stats.cpu_share > 2 * stats.cpu_s / stats.wall_s


def lumps(events: int, wait_s: float = 0.02) -> Behaviour:
    """A good answer that is written in lumps of this many events."""

    async def behave(request: Request, reader: Reader, writer: Writer) -> None:
        writer.write(HEAD)
        parts = list(map(chunk, stream(request)))
        for at in range(0, len(parts), events):
            await asyncio.sleep(wait_s)
            writer.write(b"".join(parts[at : at + events]))
            await writer.drain()
        writer.write(END)

    return behave


@pytest.mark.parametrize("events", [8, 1000])
def test_events_that_come_in_lumps_are_no_token_times(events: int) -> None:
    """A proxy gathers eight events, or the whole answer. There is then no TPOT and no ITL, and not
    one of zero that would meet every limit.
    """
    with serving(lumps(events)) as server:
        load_point = point(server.port, 8, tokens=32)
        result = run(load_point)
    verdict = judge(result.requests, [result.stats], load_point, 0)
    assert verdict.validity == "stream_buffered"
    window = steady_window(0.0, None, result.requests)
    measured = figures(observe(result.requests, result.token_events, window))
    assert (measured.tpot_ms, measured.itl_ms, measured.decode_throughput) == (None, None, None)
    assert measured.ttft_ms is not None and measured.output_token_throughput
    values = limit_values(result.requests, result.token_events, window)
    for limit in ({"tpot": 10.0}, {"itl_p99": 10.0}):
        assert not judge_slo(values, Slo(**limit)).met.any()
    assert judge_slo(values, Slo(ttft=10.0)).met.all()


def test_a_stream_of_single_events_is_not_buffered() -> None:
    with serving(lumps(1, 0.002)) as server:
        load_point = point(server.port, 4, tokens=16)
        result = run(load_point)
    assert judge(result.requests, [result.stats], load_point, 0).validity == "valid"
    window = steady_window(0.0, None, result.requests)
    measured = figures(observe(result.requests, result.token_events, window))
    assert measured.tpot_ms is not None and measured.tpot_ms.p50 > 1.5


@pytest.mark.parametrize("asked", [176, 16])
def test_hidden_tokens_count_for_throughput_and_not_for_the_time_between_tokens(asked: int) -> None:
    """16 of 176 tokens are shown, 10 ms apart. The time per token is 10 ms, whichever of both
    lengths was asked for.
    """

    async def behave(request: Request, reader: Reader, writer: Writer) -> None:
        writer.write(HEAD)
        for at in range(16):
            await asyncio.sleep(0.01)
            writer.write(chunk(token(finish="length" if at == 15 else None)))
            await writer.drain()
        usage_with_reasoning = {
            "prompt_tokens": 8,
            "completion_tokens": 176,
            "completion_tokens_details": {"reasoning_tokens": 160},
        }
        writer.write(
            chunk(event({"choices": [], "usage": usage_with_reasoning})) + chunk(DONE) + END
        )

    with serving(behave) as server:
        load_point = point(server.port, 4, tokens=asked)
        result = run(load_point)
    assert only_outcome(result.requests.to_pylist()) == ("ok", None)
    assert result.requests["hidden_tokens"].to_pylist() == [160] * 4
    window = steady_window(0.0, None, result.requests)
    measured = figures(observe(result.requests, result.token_events, window))
    assert measured.tpot_ms is not None and measured.tpot_ms.p50 >= 10.0
    assert measured.itl_ms is not None and measured.itl_ms.p50 >= 9.0
    assert measured.output_tokens is not None and measured.output_tokens.mean == 176
    verdict = judge(result.requests, [result.stats], load_point, 0)
    assert any("never streamed" in reason for reason in verdict.reasons)


def test_trailers_end_an_answer_at_once() -> None:
    """The connection is free for the next request when the last byte is here, not a quarter of a
    second later, which would be 15 seconds for 60 requests.
    """
    began = time.monotonic()
    assert only_outcome(rows(ANSWERS["trailers"][0], 60, concurrency=1)) == ("ok", None)
    assert time.monotonic() - began < 7.5


def test_a_long_answer_is_no_failure_of_the_time_to_drain() -> None:
    async def behave(request: Request, reader: Reader, writer: Writer) -> None:
        await asyncio.sleep(0.6)
        await answer_well(request, reader, writer)

    assert only_outcome(rows(behave, 2, request_timeout_s=5.0, drain_timeout_s=None)) == (
        "ok",
        None,
    )
    assert only_outcome(rows(behave, 2, request_timeout_s=0.3, drain_timeout_s=None)) == (
        "timeout",
        "timeout",
    )


def test_a_refused_connection_is_a_row_and_backs_off() -> None:
    with socket.socket() as bound:  # bound and not listening: nobody else takes the port
        bound.bind(("127.0.0.1", 0))
        result = run(point(bound.getsockname()[1], None, duration_s=1.0, drain_timeout_s=1.0))
    request_rows = result.requests.to_pylist()
    assert only_outcome(request_rows) == ("error", "connect")
    # two slots, 0.1 s doubling: not the thousands a second that are refused
    assert 2 <= len(request_rows) <= 20


def test_a_reset_in_the_stream_is_a_reset() -> None:
    async def behave(request: Request, reader: Reader, writer: Writer) -> None:
        writer.write(HEAD + chunk(token()))
        await writer.drain()
        await asyncio.sleep(0.02)
        reset(writer)

    request_rows = rows(behave)
    assert only_outcome(request_rows) == ("error", "reset")
    assert all(
        row["chunks"] == 1 and row["first_token_ns"] for row in request_rows
    )  # what came is kept


def test_a_silent_server_is_a_timeout() -> None:
    async def behave(request: Request, reader: Reader, writer: Writer) -> None:
        await asyncio.sleep(60)

    began = time.monotonic()
    assert only_outcome(rows(behave, 2, request_timeout_s=0.3)) == ("timeout", "timeout")
    assert time.monotonic() - began < 2.0


def test_an_endless_stream_is_a_timeout_and_its_tokens_are_counted() -> None:
    async def behave(request: Request, reader: Reader, writer: Writer) -> None:
        writer.write(HEAD)
        while True:
            writer.write(chunk(token()))
            await writer.drain()
            await asyncio.sleep(0.01)

    request_rows = rows(behave, 2, request_timeout_s=0.4)
    assert only_outcome(request_rows) == ("timeout", "timeout")
    assert all(row["chunks"] > 5 for row in request_rows)


def test_what_is_open_after_the_drain_time_is_a_timeout() -> None:
    async def behave(request: Request, reader: Reader, writer: Writer) -> None:
        await asyncio.sleep(60)

    request_rows = rows(behave, 2, drain_timeout_s=0.3, request_timeout_s=60.0)
    assert only_outcome(request_rows) == ("timeout", "timeout")
    assert "drain" in request_rows[0]["error"]


def test_slow_bytes_are_slow_not_failed() -> None:
    async def behave(request: Request, reader: Reader, writer: Writer) -> None:
        writer.write(HEAD)
        data = b"".join(map(chunk, stream(request))) + END
        for at in range(0, len(data), 40):
            writer.write(data[at : at + 40])
            await writer.drain()
            await asyncio.sleep(0.005)

    request_rows = rows(behave, 4)
    assert only_outcome(request_rows) == ("ok", None)
    assert all(row["last_token_ns"] - row["first_token_ns"] > 15e6 for row in request_rows)


def test_a_connection_closed_while_idle_costs_nothing() -> None:
    """Keep-alive connections that the server closes between two requests are replaced, not failed."""

    async def behave(request: Request, reader: Reader, writer: Writer) -> None:
        await answer_well(request, reader, writer)
        await asyncio.sleep(0.01)  # the client has sent the next request by now
        reset(writer)

    request_rows = rows(behave, 10)
    assert only_outcome(request_rows) == ("ok", None)


def test_a_stale_connection_is_retried_only_once() -> None:
    async def behave(request: Request, reader: Reader, writer: Writer) -> None:
        if request.number == 0:
            await answer_well(request, reader, writer)
            return
        writer.close()

    request_rows = rows(behave, 2, concurrency=1)
    assert [(row["status"], row["error_class"]) for row in request_rows] == [
        ("ok", None),
        ("error", "reset"),
    ]


def test_an_early_refusal_of_a_large_request_is_read() -> None:
    """The server answers 413 and closes while the client is still sending."""

    async def handle(reader: Reader, writer: Writer) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(plain("413 Content Too Large", b"too large", "Connection: close"))
            await writer.drain()
            await asyncio.sleep(0.2)
        finally:
            writer.transport.abort()

    with serving(answer_well) as server:
        server.handle = handle  # type: ignore[method-assign]
        big = RandomWorkload(
            name="w", input_tokens=Lengths(fixed=2_000_000), output_tokens=Lengths(fixed=TOKENS)
        )
        result = run(point(server.port, 1, workload=big))
    row = result.requests.to_pylist()[0]
    assert (row["status"], row["error_class"], row["http_status"]) == ("error", "http_4xx", 413)


def test_a_large_request_goes_out_whole_to_a_slow_reader() -> None:
    with serving(answer_well) as server:
        big = RandomWorkload(
            name="w", input_tokens=Lengths(fixed=500_000), output_tokens=Lengths(fixed=TOKENS)
        )
        result = run(point(server.port, 2, workload=big))
        assert [len(request.json["prompt"]) for request in server.requests] == [500_000] * 2
    assert only_outcome(result.requests.to_pylist()) == ("ok", None)


def test_connections_are_kept_and_none_is_left_open() -> None:
    with serving(answer_well) as server:
        result = run(point(server.port, 40, concurrency=4))
        assert server.connections == 4 == result.stats.sockets_opened
        deadline = time.monotonic() + 5
        while server.open and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.open == 0


def test_exactly_the_tenth_and_the_seventh_fail() -> None:
    """Every 10th request a 500, every 7th stream cut: these rows fail, no more and no fewer."""

    async def behave(request: Request, reader: Reader, writer: Writer) -> None:
        number = request.number + 1
        if number % 10 == 0:
            writer.write(plain("500 Internal Server Error", b"no"))
        elif number % 7 == 0:
            writer.write(HEAD + b"".join(map(chunk, stream(request)[:2])))
            await writer.drain()
            await asyncio.sleep(0.005)
            writer.close()
        else:
            await answer_well(request, reader, writer)
        await writer.drain()

    with serving(behave) as server:
        result = run(point(server.port, 210, concurrency=8))
        served = [tuple(request.json["prompt"]) for request in server.requests]
    request_rows = result.requests.to_pylist()
    kinds = [row["error_class"] for row in request_rows]
    assert len(set(served)) == 210  # nothing was sent twice
    assert kinds.count("http_5xx") == 21
    assert kinds.count("truncated") == 27  # 30 sevenths less 3 that are tenths too
    assert kinds.count(None) == 210 - 48
