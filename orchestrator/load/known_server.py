"""An HTTP server of known timing for ``selfcheck``: what a client reports is compared with what was
really sent.

It speaks OpenAI completions and holds no model. A request sets its own timing, by the fields
``ttft_ms`` and ``itl_ms`` of its body. Token i is due at arrival + ttft + i * itl and is written by
itself. The server records when each token really left, so that its own lateness is never taken for
the client's error.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import os
import time
from array import array
from itertools import count
from multiprocessing.connection import Connection

import numpy as np
import orjson

from orchestrator.base.timer import LoopTimer
from orchestrator.emulator.http import STREAM_END, chunk
from orchestrator.load.sockets import raise_open_files_limit

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = (
    b'data: {"id":"cmpl-0","object":"text_completion","created":1,"model":"known","choices":[{"index":0,"text":" a",'
    b'"logprobs":null,"finish_reason":%b,"token_ids":[7]}],"usage":null}\n\n'
)


TOKEN, LAST_TOKEN = chunk(EVENT % b"null"), chunk(EVENT % b'"length"')
END = chunk(b"data: [DONE]\n\n") + STREAM_END


def _last(tokens: int) -> bytes:
    """The last token, usage and the end of the stream."""
    usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": tokens}}
    return LAST_TOKEN + chunk(b"data: " + orjson.dumps(usage) + b"\n\n") + END


class _Stream(asyncio.Protocol):
    """One connection and its current answer. ``last_ns``: when the request came, later when the
    last token left.
    """

    def __init__(self, server: KnownServer) -> None:
        self._server, self._received = server, b""
        self.sent = self.asked = self.itl_ns = self.last_ns = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.write = transport.write

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, blank, body = self._received.partition(b"\r\n\r\n")
        if not blank or len(body) < int(head.rpartition(b"Content-Length: ")[2]):
            return
        asked, self.last_ns = orjson.loads(body), time.monotonic_ns()
        self._received, self.sent, self.asked = b"", 0, asked["max_tokens"]
        self.itl_ns = round(asked["itl_ms"] * 1e6)
        self._server.due(self.last_ns + round(asked["ttft_ms"] * 1e6), self)

    def connection_lost(self, error: Exception | None) -> None:
        self.asked = 0


class KnownServer:
    """Serves until its pipe is closed; to whatever that says it answers with statistics since the
    last question.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._due: list[tuple[int, int, _Stream]] = []  # instant, tie, stream
        self._ties = count()
        self._ttft_ns, self._gaps_ns, self._late_ns = array("q"), array("q"), array("q")

    async def serve(self) -> None:
        """Sends its port through the pipe, then serves until that is closed."""
        loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        self._timer = LoopTimer(loop, self._send_due)
        listener = await loop.create_server(lambda: _Stream(self), "127.0.0.1", 0, backlog=4096)
        loop.add_reader(self._pipe.fileno(), self._told)
        self._pipe.send(listener.sockets[0].getsockname()[1])
        await self._stopped.wait()
        listener.close()
        loop.remove_reader(self._pipe.fileno())
        self._timer.close()

    def due(self, at_ns: int, stream: _Stream) -> None:
        """The stream's next token is due at ``at_ns``."""
        heapq.heappush(self._due, (at_ns, next(self._ties), stream))
        self._timer.arm(self._due[0][0])

    def _told(self) -> None:
        try:
            self._pipe.recv()
        except EOFError:
            self._stopped.set()
        else:
            self._pipe.send(self._stats())

    def _send_due(self) -> None:
        due = self._due
        while due and due[0][0] <= (now := time.monotonic_ns()):
            at, tie, stream = due[0]
            if stream.sent < stream.asked:
                self._send(stream, at, now)
            if stream.sent < stream.asked:
                heapq.heapreplace(due, (at + stream.itl_ns, tie, stream))
            else:
                heapq.heappop(due)
        if due:
            self._timer.arm(due[0][0])

    def _send(self, stream: _Stream, due_ns: int, now: int) -> None:
        (self._gaps_ns if stream.sent else self._ttft_ns).append(now - stream.last_ns)
        self._late_ns.append(now - due_ns)
        data = b"" if stream.sent else HEAD
        stream.sent, stream.last_ns = stream.sent + 1, now
        stream.write(data + (_last(stream.asked) if stream.sent == stream.asked else TOKEN))

    def _stats(self) -> dict[str, float]:
        """What happened since the last question, times in ms."""
        found = {"events": float(len(self._late_ns))}
        for name, values in (
            ("ttft", self._ttft_ns),
            ("itl", self._gaps_ns),
            ("late", self._late_ns),
        ):
            sample = np.array(values, dtype=np.float64) / 1e6 if values else np.zeros(1)
            found[f"{name}_mean_ms"] = float(sample.mean())
            found[f"{name}_p99_ms"] = float(np.quantile(sample, 0.99))
            del values[:]
        return found


def serve(pipe: Connection, core: int | None) -> None:
    """Main function of the server process. ``core``: the only one it may run on."""
    if core is not None:
        os.sched_setaffinity(0, {core})
    raise_open_files_limit()
    gc.disable()
    asyncio.run(KnownServer(pipe).serve())
