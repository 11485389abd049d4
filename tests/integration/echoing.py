"""A server that repeats every secret that it gets: in its log, and at every place of its answers.

    echoing.py PORT                       an endpoint: repeats the Authorization header
    echoing.py serve MODEL --port P ...   vLLM, as it is started: also prints its environment, and dies with the token

Before a secret stand so many letters that a cut after 60, 200 or 500 characters goes through the
secret.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote

FIRST = 30  # completions that are good: the fixed prompts among them
PADDING = [*range(24, 60, 4), *range(164, 200, 6), *range(464, 500, 6), *range(1970, 2000, 6)]
NAMES = (
    *("HF_TOKEN", "VLLM_API_KEY", "PLANTED_PASSWORD", "RAY_AUTH_TOKEN", "HTTPS_PROXY"),
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
)
counter = itertools.count()


def completion(text: str, **more: Any) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": None} | more
    return (
        b"data: "
        + json.dumps({"id": text, "object": "text_completion", "choices": [choice]}).encode()
        + b"\n\n"
    )


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model = "planted"
    key: str | None = None

    def log_message(self, format: str, *args: object) -> None:
        print("asked", self.said, *args, flush=True)

    @property
    def said(self) -> str:
        return str(self.headers.get("Authorization", "nothing"))

    def answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-You-Said", self.said)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            cards = [
                {"id": self.model, "owned_by": self.said, "max_model_len": 4096},
                {"id": self.said},
            ]
            self.answer(200, json.dumps({"data": cards}).encode())
        elif self.path == "/metrics":
            text = f'# HELP said {self.said}\nvllm:num_requests_running{{model_name="{self.said}"}} 1\n'
            self.answer(200, text.encode(), "text/plain")
        else:
            self.answer(
                200, json.dumps({"version": f"1.0+{self.said}", "said": self.said}).encode()
            )

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.key and self.said != f"Bearer {self.key}":
            return self.answer(401, json.dumps({"error": f"wrong key, not {self.key}"}).encode())
        number = next(counter)
        padding = "x" * PADDING[number % len(PADDING)] + " "
        if "DIE_AT" in os.environ and number >= int(os.environ["DIE_AT"]):
            die()
        if number < FIRST or number % 5 < 2:
            return self.stream(padding)
        if number % 5 == 2:
            return self.answer(500, f"{padding}{self.said}".encode())
        self.close_connection = True
        if number % 5 == 3:
            self.wfile.write(f"HTTP/1.1 200 OK\r\n{padding}{self.said}\r\n\r\n".encode())
            return None
        error = (
            completion("a")
            + b"data: "
            + json.dumps({"error": {"message": f"{padding}{self.said}"}}).encode()
            + b"\n\n"
        )
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + error)
        return None

    def stream(self, padding: str) -> None:
        usage = {"prompt_tokens": 16, "completion_tokens": 8, "total_tokens": 24}
        chunks = [completion(f" {padding}{self.said}")] * 7 + [
            completion(" end", finish_reason="length")
        ]
        last = (
            b"data: "
            + json.dumps({"id": "x", "choices": [], "usage": usage}).encode()
            + b"\n\ndata: [DONE]\n\n"
        )
        self.answer(200, b"".join([*chunks, last]), "text/event-stream")
        time.sleep(0.005)


def shout() -> None:
    for name in filter(os.environ.get, NAMES):
        value = os.environ[name]
        for count in PADDING:
            print("x" * count, value, flush=True)
        print(
            f"{name}={value}",
            repr({"k": value}),
            json.dumps({"k": value}),
            quote(value, safe=""),
            flush=True,
        )


def die() -> None:
    token = os.environ["HF_TOKEN"]
    print(
        f"ValueError: {'x' * 20} could not fetch https://hub.example/x?q={token} as {token}",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)


def main() -> None:
    port, host = int(sys.argv[1]) if sys.argv[1:2] != ["serve"] else 0, "127.0.0.1"
    if not port:
        arguments = dict(zip(sys.argv, sys.argv[1:], strict=False))
        port, host, Handler.model = (
            int(arguments["--port"]),
            arguments["--host"],
            arguments["--served-model-name"],
        )
        Handler.key = os.environ["VLLM_API_KEY"]
        shout()
        if os.environ.get("DIE_AT") == "0":
            die()
    threading.excepthook = lambda args: None
    ThreadingHTTPServer((host, port), Handler).serve_forever()


if __name__ == "__main__":
    main()
