"""A gateway in front of an engine, with the troubles that gateways make: model lists that are closed
or name other models, refusals of unknown fields, paths and redirects of its own.

It serves completions and chat at ``root``, and gives a good answer to every request that it does
not refuse.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from tests.integration.load_server import DONE, END, EVENT_S, HEAD, Request, chunk, event, usage

PLAIN = {"model", "prompt", "messages", "max_tokens", "temperature", "stream", "stream_options"}
HTML = b"<!doctype html><title>Sign in</title>"


@dataclass
class Gateway:
    """The behaviour of a gateway, for ``load_server.serving``."""

    root: str = "/v1"
    list_status: int = 200  # of its list of models
    list_body: bytes | None = None  # None: a list of ``models``
    models: tuple[str, ...] = ("m1",)
    unknown_fields: int | None = None  # status for requests with fields beyond PLAIN, or token ids
    slash: int | None = None  # status of a redirect to the same path with a slash at its end
    version: str | None = None  # the only ``api-version`` that it accepts
    takes: tuple[str, ...] | None = None  # models of requests that it accepts; None: all
    key: str | None = None

    async def __call__(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        method, target, _ = request.head.decode().split(" ", 2)
        url = urlsplit(target)
        for refuse in (self._refuse_key, self._refuse_version, self._redirect, self._list):
            refusal = refuse(request, method, url.path, url.query)
            if refusal is not None:
                writer.write(refusal)
                return
        path = url.path.removesuffix("/") if self.slash else url.path
        if path not in (f"{self.root}/completions", f"{self.root}/chat/completions"):
            writer.write(response(404, b'{"detail":"Not Found"}'))
            return
        body = request.json
        if self.takes is not None and body["model"] not in self.takes:
            writer.write(response(404, b'{"error":{"message":"The model does not exist."}}'))
            return
        has_token_ids = not isinstance(body.get("prompt", ""), str)
        if self.unknown_fields and (not set(body) <= PLAIN or has_token_ids):
            writer.write(response(self.unknown_fields, b"something went wrong"))
            return
        await answer(request, writer, path.endswith("/chat/completions"))

    def _refuse_key(self, request: Request, method: str, path: str, query: str) -> bytes | None:
        if self.key is None or f"Bearer {self.key}".encode() in request.head:
            return None
        return response(401, b'{"error":{"message":"invalid key"}}')

    def _refuse_version(self, request: Request, method: str, path: str, query: str) -> bytes | None:
        if self.version is None or parse_qs(query).get("api-version") == [self.version]:
            return None
        return response(404, b'{"error":{"message":"Resource not found"}}')

    def _redirect(self, request: Request, method: str, path: str, query: str) -> bytes | None:
        if self.slash is None or path.endswith("/") or method == "GET":
            return None
        return response(self.slash, b"", f"Location: {path}/\r\n")

    def _list(self, request: Request, method: str, path: str, query: str) -> bytes | None:
        if method != "GET":
            return None
        if path.removesuffix("/") != f"{self.root}/models":
            return response(404, b"")
        body = self.list_body
        if body is None:
            body = json.dumps({"data": [{"id": model} for model in self.models]}).encode()
        return response(self.list_status, body)


def response(status: int, body: bytes, headers: str = "") -> bytes:
    head = f"HTTP/1.1 {status} Said\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def answer(request: Request, writer: asyncio.StreamWriter, chat: bool) -> None:
    """A good answer, an event at a time."""
    count = request.json.get("max_tokens", 2)
    text: dict[str, object] = {"delta": {"content": " a"}} if chat else {"text": " a"}
    writer.write(HEAD)
    for index in range(count):
        finish = "length" if index == count - 1 else None
        writer.write(chunk(event({"choices": [{"index": 0, **text, "finish_reason": finish}]})))
        await writer.drain()
        await asyncio.sleep(EVENT_S)
    prompt = request.json.get("prompt")
    tokens = len(prompt) if isinstance(prompt, list) else 8
    for part in (chunk(usage(tokens, count)), chunk(DONE), END):
        writer.write(part)
