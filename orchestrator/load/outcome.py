"""What became of a request: ok, or which way it failed. Slow is never a failure, and a failure is never slow."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.load.http import Head
from orchestrator.load.wire import Parsed
from orchestrator.spec.dialect import Dialect

STATUS_OF_CLASS = {"timeout": "timeout", "aborted": "aborted"}
INVALID = frozenset({"stream_error", "truncated", "no_end", "wrong_length", "garbage"})
MAX_ERROR = 500


@dataclass(frozen=True, slots=True)
class Outcome:
    """``status`` and ``error_class`` as in results/schemas.py; ``error`` in at most 500 characters."""

    status: str
    error_class: str | None = None
    error: str | None = None


OK = Outcome("ok")


def failed(error_class: str, error: str) -> Outcome:
    """The status that goes with a class: what was a response but not a whole one is ``invalid``."""
    if error_class == "aborted":
        return Outcome("aborted", None, error[:MAX_ERROR])
    status = "timeout" if error_class == "timeout" else "invalid" if error_class in INVALID else "error"
    return Outcome(status, error_class, error[:MAX_ERROR])


def of_status(head: Head, body: bytes) -> Outcome | None:
    """An answer that is not 200, with what its body says; None for 200."""
    if head.status == 200:
        return None
    said = body[: 4 * MAX_ERROR].decode("utf-8", "replace").strip()
    text = f"HTTP {head.status} {head.reason}: {said}".strip(": ")
    if head.status == 429:
        return failed("http_429", text)
    if 400 <= head.status < 500:
        return failed("http_4xx", text)
    if head.status >= 500:
        return failed("http_5xx", text)
    return failed("garbage", f"{text} {head.headers.get('location', '')}".strip())


def of_stream(parsed: Parsed, done: bool, asked: int, output_tokens: int | None, dialect: Dialect) -> Outcome:
    """A response with status 200 that came to its end.

    ``done``: the [DONE] marker was there. The length is judged only where the engine was told to keep it and the
    count is the engine's own.
    """
    if parsed.error is not None:
        return failed("stream_error", parsed.error)
    if parsed.garbage is not None:
        return failed("garbage", parsed.garbage)
    if not (done or parsed.ended) and (dialect.done_marker or parsed.finish_reason is None):
        return failed("no_end", "the stream ended without its end marker")
    if not any(parsed.tokens):
        return failed("wrong_length", "the stream held no token") if asked else OK
    counted = output_tokens is not None and (parsed.source is not None or parsed.output_tokens is not None)
    if dialect.length_control != "none" and counted and output_tokens != asked:
        return failed("wrong_length", f"{output_tokens} tokens came, {asked} were asked for")
    return OK
