"""A loopback server of the answers in tests/hostile_streams.py, one token each 10 ms.

The first part of the path names the answer: ``http://127.0.0.1:PORT/NAME/v1/chat/completions``,
with spaces and commas as ``-``.
"""

from __future__ import annotations

import asyncio

from tests.hostile_streams import ANSWERS
from tests.integration.load_server import DONE, END, HEAD, Request, chunk, event, usage

MODELS = b'{"object":"list","data":[{"id":"m","object":"model"}]}'


def path_of(name: str) -> str:
    return name.replace(", ", "-").replace(" ", "-")


BY_PATH = {path_of(name): answer for name, answer in ANSWERS.items()}


async def answer_badly(
    request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """The answer that the path names; short ones, of a trial request, are plain."""
    method, path, _ = request.head.split(b" ", 2)
    if method == b"GET":
        found = path.endswith(b"/v1/models")
        status, body = (b"200 OK", MODELS) if found else (b"404 Not Found", b"{}")
        writer.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))
        return
    loop = asyncio.get_running_loop()
    began = loop.time()
    writer.write(HEAD)
    if request.json["max_tokens"] < 16:
        for at in range(request.json["max_tokens"]):
            finish = "length" if at else None
            choice = {"index": 0, "delta": {"content": " a"}, "finish_reason": finish}
            writer.write(chunk(event({"choices": [choice]})))
            await asyncio.sleep(0.01)
        writer.write(chunk(usage(8, request.json["max_tokens"])) + chunk(DONE) + END)
        return
    for step in BY_PATH[path.decode().split("/")[1]]():
        await asyncio.sleep(max(0.0, began + step.at_ms / 1e3 - loop.time()))
        writer.write(chunk(step.data))
        await writer.drain()
    writer.write(END)
    await writer.drain()
