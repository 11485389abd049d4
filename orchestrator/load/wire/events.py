"""Functions that several wires share, for request bodies, error objects, usage and odd events."""

import json
import re
from collections.abc import Mapping
from typing import Any

import orjson

from orchestrator.load.wire.parsed import Parsed, whole_number
from orchestrator.results.outcomes import ErrorClass
from orchestrator.spec.dialect import Dialect

_OVERLOADED = ("overloaded", "too many requests", "queue is full")
_MOST_NESTED = 3  # error objects within each other that are looked at for a status


def encode(
    fields: Mapping[str, Any], dialect: Dialect, prompt_fields: Mapping[str, Any] | None = None
) -> bytes:
    """The body of a request: of our ``fields`` those that the engine accepts, then the user's own
    for all requests and those of this prompt. A null among the user's removes a field.
    """
    allowed = dialect.allowed_fields
    body = {name: value for name, value in fields.items() if allowed is None or name in allowed}
    body |= dialect.extra_body
    body |= prompt_fields or {}
    without_nulls = {name: value for name, value in body.items() if value is not None}
    return orjson.dumps(without_nulls, option=orjson.OPT_SERIALIZE_NUMPY)


def length_fields(output_tokens: int, dialect: Dialect) -> dict[str, Any]:
    """The fields that tell an engine to answer with exactly ``output_tokens`` tokens."""
    if dialect.length_control == "generation_config":
        config = {
            "max_new_tokens": output_tokens,
            "min_new_tokens": output_tokens,
            "do_sample": False,
        }
        return {"generation_config": json.dumps(config)}
    if dialect.length_control in ("none", "natural"):
        return {}
    fields: dict[str, Any] = {"ignore_eos": True}
    if dialect.min_tokens_field:
        fields[dialect.min_tokens_field] = output_tokens
    return fields


def error_text(event: Any) -> str | None:
    """The message of an error object, whatever stands beside it; None where there is none, or where
    all of it is empty.

    The error object is the field ``error`` of an event (OpenAI's ``{"error": {"message", "code"}}``,
    TGI's ``{"error": "...", "error_type"}``), or the event itself (vLLM's older ``{"object":
    "error", "message"}``, ``{"type": "error", "message"}``).
    """
    if not isinstance(event, dict):
        return None
    error = event.get("error")
    if not error:
        is_error_itself = event.get("object") == "error" or event.get("type") == "error"
        if not is_error_itself:  # nearly every event of a stream
            return None
        error = _without_error_marks(event)
    if isinstance(error, dict):
        if not any(error.values()):
            return None
        inner = error_text(error)
        return _error_words(error) if inner is None else inner
    kind = event.get("error_type")
    return f"{kind}: {error}" if kind else str(error)


def _without_error_marks(event: dict[str, Any]) -> dict[str, Any]:
    """The fields of an event that is an error object, without those that only say so."""
    fields = dict(event)
    fields.pop("error", None)
    fields.pop("object", None)
    if fields.get("type") == "error":
        del fields["type"]
    return fields


def _error_words(error: dict[str, Any]) -> str:
    """The text of an error object: the fields that all servers use, or else the whole object."""
    words = []
    for name in ("code", "type", "message"):
        if error.get(name) not in (None, ""):
            words.append(str(error[name]))
    return " ".join(words) or json.dumps(error)


def error_class(event: Any, message: str, http_status: int = 0) -> ErrorClass:
    """The class of an error object. ``message``: its text; ``http_status``: of the response, where
    its status tells of an error.

    A server that answered 200 before it examined the request refuses it in the stream. The status
    in its error object then counts like an HTTP status. TGI uses status 422 for overload, too; only
    its words show the difference.
    """
    status = _status_of(event) or http_status
    words = message.lower()
    if status == 429 or any(phrase in words for phrase in _OVERLOADED):
        return ErrorClass.HTTP_429
    if 400 <= status < 500 or "input validation" in words:
        return ErrorClass.HTTP_4XX
    return ErrorClass.STREAM_ERROR


def _status_of(event: Any) -> int | None:
    """The lowest HTTP status from 400 on that an error object, or one inside it, holds."""
    statuses = []
    nested = event
    depth = 0
    while isinstance(nested, dict) and depth < _MOST_NESTED:
        for name in ("http_status_code", "status_code", "code", "status"):
            code = str(nested.get(name))
            if re.fullmatch("[45][0-9][0-9]", code):
                statuses.append(int(code))
        nested = nested.get("error")
        depth += 1
    return min(statuses, default=None)


def refuse(event: Any, message: str, parsed: Parsed) -> None:
    """Records an error object of a stream; it is a refusal where no token came before it."""
    if parsed.has_content:
        parsed.fail(message, ErrorClass.STREAM_ERROR)
    else:
        parsed.fail(message, error_class(event, message))


def decode(payloads: list[bytes]) -> list[Any]:
    """The JSON value of each payload; the bytes themselves where they are no JSON."""
    try:
        values: list[Any] = orjson.loads(b"[%b]" % b",".join(payloads))
    except orjson.JSONDecodeError:
        values = []
    if len(values) == len(payloads):
        return values
    # one of them is not JSON, or one like `1,2` became two values
    return [_decode_payload(payload) for payload in payloads]


def _decode_payload(payload: bytes) -> Any:
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError:
        pass
    try:  # invalid UTF-8 in a string spoils a character, not the event
        return orjson.loads(payload.decode("utf-8", "replace"))
    except orjson.JSONDecodeError:
        return payload


def read_usage(usage: Any, parsed: Parsed) -> int | None:
    """Records an OpenAI usage object. Returns its completion_tokens, None where it has none."""
    if not isinstance(usage, dict):
        return None
    prompt_tokens = whole_number(usage.get("prompt_tokens"))
    if prompt_tokens is not None:
        parsed.input_tokens = prompt_tokens
    cached_tokens = _detail(usage, "prompt_tokens_details", "cached_tokens")
    if cached_tokens is not None:
        parsed.cached_tokens = cached_tokens
    reasoning_tokens = _detail(usage, "completion_tokens_details", "reasoning_tokens")
    if reasoning_tokens is not None:
        parsed.reasoning_tokens = reasoning_tokens
    total = whole_number(usage.get("completion_tokens"))
    if total is not None:
        parsed.output_tokens = total
        parsed.total_event = len(parsed.tokens)  # the index that this event will get
    return total


def text_of(value: Any) -> str:
    """The text of a field that should be a string, and may be a part of a text or a list of parts.
    Empty where it holds no text.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(map(text_of, value))
    if isinstance(value, dict):
        return text_of(value.get("text") or value.get("content") or value.get("value"))
    if value is None or isinstance(value, bool):
        return ""
    return str(value)


def token_ids(value: Any) -> list[int] | None:
    """A list of token ids; None where it is anything else."""
    if not isinstance(value, list):
        return None
    for token_id in value:
        if whole_number(token_id) is None:
            return None
    return value


def collect_logprobs(values: Any, parsed: Parsed) -> None:
    """Records a list of log-probabilities. JSON has no NaN: servers write null for it."""
    if not isinstance(values, list) or not values:
        return
    if parsed.logprobs is None:
        parsed.logprobs = []
    for value in values:
        parsed.logprobs.append(float(value) if isinstance(value, int | float) else float("nan"))


def _detail(usage: dict[str, Any], details_name: str, name: str) -> int | None:
    """A count within one of a usage object's ``details``; None where it has none."""
    details = usage.get(details_name)
    return whole_number(details.get(name)) if isinstance(details, dict) else None


# what a server says to keep a connection open
_HEARTBEAT = re.compile(
    rb"[\W_]*(ping|pong|heart[-_ ]?beat|keep[-_ ]?alive|processing|waiting)?[\W_]*", re.IGNORECASE
)
# fields of an event without choices that would hold text or the reason of a failure
_CONTENT_FIELDS = frozenset(
    [
        "content",
        "text",
        "delta",
        "message",
        "response",
        "output",
        "token",
        "generated_text",
        "meta_info",
        "detail",
        "details",
        "msg",
        "reason",
        "exception",
        "traceback",
    ]
)
_FAILURE_WORDS = ("error", "fail", "exception", "abort")


def read_odd_event(event: Any, parsed: Parsed) -> None:
    """Records an event without this API's fields: an error object, something that holds nothing
    (a heartbeat), or something that does not belong there.
    """
    message = error_text(event)
    if message is not None:
        refuse(event, message, parsed)
    elif _holds_nothing(event):
        parsed.ignored = parsed.ignored or str(event)[:1_000]
    elif parsed.garbage is None:
        parsed.garbage = f"not an event of this API: {str(event)[:1_000]}"
    parsed.tokens.append(0)


def is_heartbeat(text: bytes) -> bool:
    """Whether a text is empty, or one of the words that keep a connection open."""
    return _HEARTBEAT.fullmatch(text) is not None


def _holds_nothing(event: Any) -> bool:
    """Whether an event holds neither text nor the reason of a failure."""
    if isinstance(event, str):
        event = event.encode()
    if isinstance(event, bytes):
        return is_heartbeat(event)
    if not isinstance(event, dict):
        return event is None or event == []
    for name, value in event.items():
        if value and name in _CONTENT_FIELDS:
            return False
        if name in ("code", "status") and _says_failure(value):
            return False
    return not _says_failure(event.get("type")) and not _says_failure(event.get("event"))


def _says_failure(value: Any) -> bool:
    """Whether a code, a status or a type tells of a failure."""
    if isinstance(value, str) and not value.isdigit():
        return any(word in value.lower() for word in _FAILURE_WORDS)
    try:
        return int(value) >= 400
    except (TypeError, ValueError):
        return False
