"""Servers that do anything at all, drawn by hypothesis: one row per request, no hang, nothing left
open.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Literal

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.results.schemas import REQUESTS
from tests.integration.load_server import (
    DONE,
    END,
    HEAD,
    Request,
    chunk,
    event,
    reset,
    serving,
    token,
    usage,
)
from tests.integration.test_load_hostile import point, run

GOOD = (
    HEAD + b"".join(map(chunk, [*[token()] * 3, token(finish="length"), usage(8, 4), DONE])) + END
)
PARTS = [
    b"", HEAD, END, GOOD, chunk(token()), chunk(DONE), chunk(event({"error": "x"})), b"data: {}\n\n", b"\r\n\r\n",
    b"0\r\n\r\n", b"5\r\nab", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
    (b"HTTP/1.1 503 No\r\nContent-Length: "
    b"0\r\n\r\n"), b"HTTP/1.1 100 Continue\r\n\r\n", b"\xff\xfe\x00",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Script:
    """What the server does with one request: writes, each cut into pieces, then an end."""

    writes: list[bytes]
    end: Literal["keep", "close", "reset"]

    async def play(self, writer: asyncio.StreamWriter) -> None:
        for data in self.writes:
            writer.write(data)
            await writer.drain()
            await asyncio.sleep(0)
        if self.end == "close":
            writer.close()
        elif self.end == "reset":
            reset(writer)


def cut(data: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted({edge % (len(data) + 1) for edge in at}), len(data)]
    return [data[a:b] for a, b in zip(edges, edges[1:], strict=False)]


WRITES = st.builds(
    lambda parts, at: cut(b"".join(parts), at),
    st.lists(st.sampled_from(PARTS) | st.binary(max_size=12), max_size=4),
    st.lists(st.integers(0, 2000), max_size=4),
)
SCRIPTS = st.lists(
    st.builds(Script, WRITES, st.sampled_from(["keep", "close", "reset"])), min_size=1, max_size=6
)
REQUESTS_SENT = 8


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scripts=SCRIPTS)
def test_any_server_leaves_one_row_per_request(scripts: list[Script]) -> None:
    async def behave(
        request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await scripts[request.number % len(scripts)].play(writer)

    began = time.monotonic()
    with serving(behave) as server:
        result = run(
            point(
                server.port,
                REQUESTS_SENT,
                concurrency=2,
                request_timeout_s=0.08,
                drain_timeout_s=1.0,
            )
        )
    assert time.monotonic() - began < 10
    rows = result.requests.to_pylist()
    assert [row["request_index"] for row in rows] == list(range(REQUESTS_SENT))
    result.requests.validate(full=True)
    known = REQUESTS.field("error_class").metadata[b"description"].decode()
    for row in rows:
        assert row["status"] in ("ok", "error", "invalid", "timeout")
        assert (row["error_class"] is None) == (row["status"] == "ok")
        assert row["error_class"] is None or row["error_class"] in known
        assert row["status"] != "ok" or (row["output_tokens"], row["http_status"]) == (4, 200)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    cuts=st.lists(st.integers(0, len(GOOD)), max_size=12),
    others=st.lists(st.binary(max_size=30), max_size=2),
)
def test_a_good_answer_is_ok_however_it_is_cut_and_whoever_misbehaves_beside_it(
    cuts: list[int], others: list[bytes]
) -> None:
    scripts = [Script(cut(GOOD, cuts), "keep"), *[Script([other], "close") for other in others]]
    answered: dict[tuple[int, ...], int] = {}

    async def behave(
        request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        kind = request.json["prompt"][0] % len(scripts)
        answered[tuple(request.json["prompt"])] = kind
        await scripts[kind].play(writer)

    with serving(behave) as server:
        rows = run(
            point(server.port, REQUESTS_SENT, concurrency=3, request_timeout_s=2.0)
        ).requests.to_pylist()
    good = sum(kind == 0 for kind in answered.values())
    assert sum(row["status"] == "ok" for row in rows) == good
    assert len(answered) == REQUESTS_SENT
