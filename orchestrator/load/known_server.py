"""An HTTP server of known timing for ``selfcheck``: what a client reports is compared with what was really sent.

It speaks OpenAI completions. A request names its own timing: fields ``ttft_ms`` and ``itl_ms`` of the body. Token i is
due at arrival + ttft + i * itl and leaves in a write of its own; the server keeps when it really left, so its own
lateness is never taken for the client's error. It holds no model and is no engine.
"""

from __future__ import annotations

import gc
import heapq
import os
import socket
import time
from array import array
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np
import orjson

from orchestrator.load.sockets import READ, Poller, raise_open_files_limit

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = (
    b'data: {"id":"cmpl-0","object":"text_completion","created":1,"model":"known","choices":[{"index":0,"text":" a",'
    b'"logprobs":null,"finish_reason":%b,"token_ids":[7]}],"usage":null}\n\n'
)
IDLE_NS = 1_000_000_000


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


TOKEN, LAST_TOKEN = _chunk(EVENT % b"null"), _chunk(EVENT % b'"length"')
END = _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


@dataclass(slots=True)
class _Stream:
    """One connection and the answer it is giving. ``last_ns``: when the request came, then when a token left."""

    sock: socket.socket
    received: bytes = b""
    sent: int = 0
    asked: int = 0
    itl_ns: int = 0
    last_ns: int = 0


class KnownServer:
    """Serves until told to stop through its pipe: ``stats`` answers and forgets what was sent so far."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._poller = Poller()
        self._streams: dict[int, _Stream] = {}
        self._due: list[tuple[int, int]] = []  # instant, fd
        self._ttft_ns = array("q")
        self._gaps_ns = array("q")
        self._late_ns = array("q")

    def serve(self, pipe: Connection) -> None:
        """Blocks until the pipe says ``stop`` or closes."""
        self._poller.register(self._listener.fileno(), READ)
        self._poller.register(pipe.fileno(), READ)
        try:
            while True:
                self._send_due()
                until_ns = self._due[0][0] if self._due else time.monotonic_ns() + IDLE_NS
                for fd, _ in self._poller.wait(until_ns):
                    if fd == pipe.fileno():
                        if pipe.recv() == "stop":
                            return
                        pipe.send(self._stats())
                    elif fd == self._listener.fileno():
                        self._accept()
                    elif fd in self._streams:
                        self._read(self._streams[fd])
        except EOFError:
            return
        finally:
            for stream in list(self._streams.values()):
                self._drop(stream)
            self._listener.close()
            self._poller.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._streams[sock.fileno()] = _Stream(sock)
            self._poller.register(sock.fileno(), READ)

    def _read(self, stream: _Stream) -> None:
        try:
            data = stream.sock.recv(65_536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(stream)
            return
        stream.received += data
        head, blank, body = stream.received.partition(b"\r\n\r\n")
        if not blank or len(body) < int(head.rpartition(b"Content-Length: ")[2]):
            return
        now = time.monotonic_ns()
        asked = orjson.loads(body)
        stream.received, stream.last_ns, stream.sent, stream.asked = b"", now, 0, asked["max_tokens"]
        stream.itl_ns = round(asked["itl_ms"] * 1e6)
        heapq.heappush(self._due, (now + round(asked["ttft_ms"] * 1e6), stream.sock.fileno()))

    def _send_due(self) -> None:
        due = self._due
        while due and due[0][0] <= (now := time.monotonic_ns()):
            at, fd = due[0]
            stream = self._streams.get(fd)
            if stream is not None and stream.sent < stream.asked:
                self._send(stream, at, now)
            if stream is not None and stream.sent < stream.asked:
                heapq.heapreplace(due, (at + stream.itl_ns, fd))
            else:
                heapq.heappop(due)

    def _send(self, stream: _Stream, due_ns: int, now: int) -> None:
        (self._gaps_ns if stream.sent else self._ttft_ns).append(now - stream.last_ns)
        self._late_ns.append(now - due_ns)
        data = HEAD if stream.sent == 0 else b""
        stream.sent, stream.last_ns = stream.sent + 1, now
        data += _last(stream.asked) if stream.sent == stream.asked else TOKEN
        try:
            stream.sock.send(data)
        except OSError:
            self._drop(stream)

    def _drop(self, stream: _Stream) -> None:
        fd = stream.sock.fileno()
        self._poller.unregister(fd)
        del self._streams[fd]
        stream.sock.close()

    def _stats(self) -> dict[str, float]:
        """Milliseconds; everything since the last question."""
        found = {"events": float(len(self._late_ns)), "cpu_s": time.process_time()}
        for name, values in (("ttft", self._ttft_ns), ("itl", self._gaps_ns), ("late", self._late_ns)):
            sample = np.array(values, dtype=np.float64) / 1e6 if values else np.zeros(1)
            found[f"{name}_mean_ms"] = float(sample.mean())
            found[f"{name}_p99_ms"] = float(np.quantile(sample, 0.99))
            del values[:]
        return found


def _last(tokens: int) -> bytes:
    """The last token, usage and the end."""
    usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": tokens}}
    return LAST_TOKEN + _chunk(b"data: " + orjson.dumps(usage) + b"\n\n") + END


def serve(pipe: Connection, core: int | None) -> None:
    """The life of a server process: says its port, then serves. ``core``: the only one it may use."""
    if core is not None:
        os.sched_setaffinity(0, {core})
    raise_open_files_limit()
    server = KnownServer()
    pipe.send(server.port)
    gc.disable()
    server.serve(pipe)
