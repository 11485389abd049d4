"""A gateway before an engine, in the ways that gateways get in the way: model lists that are shut or
name other models, statuses for fields that they do not know, paths and redirects of their own.

It serves completions and chat at ``root``, and answers well whatever it lets through.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from tests.integration.load_server import DONE, END, EVENT_S, HEAD, Request, chunk, event, usage

PLAIN = {"model", "prompt", "messages", "max_tokens", "temperature", "stream", "stream_options"}
HTML = b"<!doctype html><title>Sign in</title>"


@dataclass
class Gateway:
    """``list_status`` of the question for models; ``models`` that it lists. ``unknown_fields``: the
    status for requests with fields beyond PLAIN, or token ids. ``slash``: the status by which it
    sends whoever asks without a slash to the path with one. ``version``: what ``api-version`` has
    to be. ``takes``: the models that it knows, all if None.
    """

    root: str = "/v1"
    list_status: int = 200
    list_body: bytes | None = None
    models: tuple[str, ...] = ("m1",)
    unknown_fields: int | None = None
    slash: int | None = None
    version: str | None = None
    takes: tuple[str, ...] | None = None
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
            writer.write(said(404, b'{"detail":"Not Found"}'))
            return
        body = request.json
        if self.takes is not None and body["model"] not in self.takes:
            writer.write(said(404, b'{"error":{"message":"The model does not exist."}}'))
            return
        ids = not isinstance(body.get("prompt", ""), str)
        if self.unknown_fields and (not set(body) <= PLAIN or ids):
            writer.write(said(self.unknown_fields, b"something went wrong"))
            return
        await answer(request, writer, path.endswith("/chat/completions"))

    def _refuse_key(self, request: Request, method: str, path: str, query: str) -> bytes | None:
        if self.key is None or f"Bearer {self.key}".encode() in request.head:
            return None
        return said(401, b'{"error":{"message":"invalid key"}}')

    def _refuse_version(self, request: Request, method: str, path: str, query: str) -> bytes | None:
        if self.version is None or parse_qs(query).get("api-version") == [self.version]:
            return None
        return said(404, b'{"error":{"message":"Resource not found"}}')

    def _redirect(self, request: Request, method: str, path: str, query: str) -> bytes | None:
        if self.slash is None or path.endswith("/") or method == "GET":
            return None
        return said(self.slash, b"", f"Location: {path}/\r\n")

    def _list(self, request: Request, method: str, path: str, query: str) -> bytes | None:
        if method != "GET":
            return None
        if path.removesuffix("/") != f"{self.root}/models":
            return said(404, b"")
        body = self.list_body or json.dumps({"data": [{"id": one} for one in self.models]}).encode()
        return said(self.list_status, body)


def said(status: int, body: bytes, headers: str = "") -> bytes:
    head = f"HTTP/1.1 {status} Said\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def answer(request: Request, writer: asyncio.StreamWriter, chat: bool) -> None:
    """A good answer, an event at a time."""
    asked = request.json.get("max_tokens", 2)
    piece: Callable[[str | None], dict[str, object]] = (
        (lambda finish: {"delta": {"content": " a"}, "finish_reason": finish})
        if chat
        else (lambda finish: {"text": " a", "finish_reason": finish})
    )
    writer.write(HEAD)
    for index in range(asked):
        finish = "length" if index == asked - 1 else None
        writer.write(chunk(event({"choices": [{"index": 0, **piece(finish)}]})))
        await writer.drain()
        await asyncio.sleep(EVENT_S)
    prompt = request.json.get("prompt")
    tokens = len(prompt) if isinstance(prompt, list) else 8
    for part in (chunk(usage(tokens, asked)), chunk(DONE), END):
        writer.write(part)
