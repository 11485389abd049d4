"""A server for load tests whose answers are written out byte by byte by the test.

It runs on a thread of its own. A behaviour is a coroutine (request, reader, writer) per request;
when it returns, the connection is kept open for the next one, unless it closed it.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Request:
    """A request as the server read it."""

    number: int  # counted from 0 over all requests
    connection: int  # counted from 0 over all connections
    head: bytes
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Behaviour = Callable[[Request, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(data: Any) -> bytes:
    # compact JSON, as engines write it
    text = data if isinstance(data, bytes) else json.dumps(data, separators=(",", ":")).encode()
    return b"data: " + text + b"\n\n"


def token(text: str = " a", finish: str | None = None, **more: Any) -> bytes:
    """One event of OpenAI completions."""
    return event({"choices": [{"index": 0, "text": text, "finish_reason": finish, **more}]})


def usage(prompt: int, completion: int) -> bytes:
    return event(
        {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}
    )


DONE = event(b"[DONE]")
END = b"0\r\n\r\n"


def stream(request: Request) -> list[bytes]:
    """The events of a good answer to an OpenAI completions request."""
    body = request.json
    count = body["max_tokens"]
    tokens = [token() for _ in range(count - 1)]
    return [*tokens, token(finish="length"), usage(len(body["prompt"]), count), DONE]


EVENT_S = 0.003  # between two events, so that none arrives together with the one before


async def answer_well(
    request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """A good answer, all at once."""
    writer.write(HEAD + b"".join(map(chunk, stream(request))) + END)
    await writer.drain()


async def answer_openai(
    request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """A good answer, an event at a time. It also lists its models."""
    if request.head.startswith(b"GET /v1/models "):
        body = b'{"object":"list","data":[{"id":"m1","object":"model"}]}'
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        return
    writer.write(HEAD)
    for event in stream(request):
        writer.write(chunk(event))
        await writer.drain()
        await asyncio.sleep(EVENT_S)
    writer.write(END)
    await writer.drain()


def reset(writer: asyncio.StreamWriter) -> None:
    """Closes with RST instead of FIN."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


# what a load asks of a server whose metrics it does not know
METRICS = re.compile(rb"GET /(?:prometheus/)?metrics ")
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


class Server:
    """The server: keeps its requests but those for metrics, and counts connections."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self.requests: list[Request] = []
        self.writers: list[asyncio.StreamWriter] = []  # of all connections
        self.connections = 0
        self.open = 0
        self.port = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection, self.connections = self.connections, self.connections + 1
        self.open += 1
        try:
            async for request in self._read(connection, reader):
                if METRICS.match(request.head):
                    writer.write(NOT_FOUND)
                    continue
                self.requests.append(request)
                await self._behaviour(request, reader, writer)
                if writer.is_closing():
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        except asyncio.CancelledError:  # the server stops; nobody awaits this task
            writer.transport.abort()
        finally:
            self.open -= 1
            writer.close()

    async def _read(self, connection: int, reader: asyncio.StreamReader) -> AsyncIterator[Request]:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                return
            header = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            length = int(header[1]) if header else 0
            yield Request(len(self.requests), connection, head, await reader.readexactly(length))


@contextmanager
def serving(
    behaviour: Behaviour, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> Iterator[Server]:
    """A running server on a free port; no thread or connection of it is left afterwards."""
    server = Server(behaviour)
    loop = asyncio.new_event_loop()
    started = threading.Event()
    stop = asyncio.Event()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Awaitable[None]:
        server.writers.append(writer)
        return server.handle(reader, writer)

    async def main() -> None:
        listener = await asyncio.start_server(
            connected, host, 0, limit=2**20, ssl=tls, backlog=4096
        )
        server.port = listener.sockets[0].getsockname()[1]
        started.set()
        await stop.wait()
        listener.close()
        # again, because a connection that was just accepted begins its task only now
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)
        # a task that was cancelled before it began has closed nothing
        for writer in server.writers:
            writer.transport.abort()
        await asyncio.sleep(0.01)  # the loop lets go of closed sockets in its next turns

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()), daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
