"""What became of a request, judged by what came back: an answer without a stream, or a finished
stream.
"""

from __future__ import annotations

from orchestrator.load.http import Head
from orchestrator.load.in_flight import InFlight
from orchestrator.load.request_record import ERROR_CHARACTERS, RequestRecord
from orchestrator.load.wire.events import error_class
from orchestrator.load.wire.finish_reasons import is_failed_end
from orchestrator.load.wire.parsed import Parsed
from orchestrator.load.wire.wires import Wire
from orchestrator.results.outcomes import ErrorClass
from orchestrator.spec.dialect import Dialect


def judge_no_stream(record: RequestRecord, head: Head, body: bytes, wire: Wire) -> None:
    """Judges an answer without a stream: a status other than 200, or a body without events, mostly
    an error object.
    """
    message = body[:ERROR_CHARACTERS].decode("utf-8", "replace").strip()
    status = f"HTTP {head.status} {head.reason}"
    status_and_message = f"{status}: {message}".strip(": ")
    if head.status >= 400:
        record.fail(_class_of_status(head.status, message), status_and_message)
        return
    location = head.headers.get("location")
    if location is not None:
        record.fail(ErrorClass.GARBAGE, f"{status}: it is at {location} (give that URL)")
        return
    if head.status != 200:
        record.fail(ErrorClass.GARBAGE, status_and_message)
        return
    if record.error_class is not None:  # it failed while it was read: a timeout, a cut
        return
    parsed = Parsed()
    wire.read([body], parsed)
    if parsed.error is not None:
        record.fail(parsed.error_class, parsed.error)
    else:
        record.fail(ErrorClass.GARBAGE, f"no event stream: {message}")


def _class_of_status(status: int, message: str) -> ErrorClass:
    """The class of a status from 400 on. Some servers answer 503 when their queue is full."""
    by_message = error_class(None, message, status)
    if status < 500 or by_message is ErrorClass.HTTP_429:
        return by_message
    return ErrorClass.HTTP_5XX


def judge_stream(request: InFlight, dialect: Dialect, is_framed: bool) -> None:
    """Judges a finished stream with status 200. ``is_framed``: HTTP tells where it ends, so the
    stream was not cut off.
    """
    parsed = request.parsed
    record = request.record
    if parsed.error is not None:
        record.fail(parsed.error_class, parsed.error)
    elif parsed.finish_reason and is_failed_end(parsed.finish_reason):
        reason = parsed.finish_reason
        record.fail(ErrorClass.STREAM_ERROR, f"the engine gave up on it: finish_reason {reason}")
    elif parsed.garbage is not None:
        record.fail(ErrorClass.GARBAGE, parsed.garbage)
    elif not _has_end(request, dialect, is_framed):
        record.fail(ErrorClass.NO_END, "the stream ended without its end marker")
    elif not any(parsed.tokens):
        if record.output_tokens_asked:
            record.fail(ErrorClass.WRONG_LENGTH, _no_token(parsed))
    elif not request.ends_naturally:
        _judge_length(record, parsed, dialect)


def _has_end(request: InFlight, dialect: Dialect, is_framed: bool) -> bool:
    """Whether something tells that the stream is whole."""
    if request.done_marker_ns is not None or request.parsed.ended:
        return True
    if not request.parsed.finish_reason:
        return False
    return is_framed or not dialect.done_marker


def _judge_length(record: RequestRecord, parsed: Parsed, dialect: Dialect) -> None:
    """Fails an answer that has another length than was asked for.

    The length is judged where the engine was told to keep it and said how many tokens it sent. It
    is also judged where this answer came without a count, but an earlier trial request showed that
    the engine counts: then its events stand for its tokens.
    """
    if dialect.length_control in ("none", "natural"):
        return
    is_counted = record.output_tokens is not None and (
        parsed.source is not None or parsed.output_tokens is not None
    )
    if not is_counted and not dialect.reports_counts:
        return
    # some servers count reasoning tokens, some do not
    shown_tokens = (record.output_tokens or 0) - (record.hidden_tokens or 0)
    asked_tokens = record.output_tokens_asked
    if asked_tokens in (record.output_tokens, shown_tokens):
        return
    if is_counted:
        received = f"{record.output_tokens} tokens"
    else:
        received = f"{record.output_tokens} events and no count"
    record.fail(ErrorClass.WRONG_LENGTH, f"{received} came, {asked_tokens} were asked for")


def _no_token(parsed: Parsed) -> str:
    """The error text of a stream without a token."""
    if parsed.ignored is None:
        return "the stream held no token"
    return f"the stream held no token; it held {parsed.ignored}"
