"""What several wires share: fields of a request body, error objects, usage, odd events."""

import json
import re
from collections.abc import Mapping
from typing import Any

import orjson

from orchestrator.load.wire.parsed import Parsed, count
from orchestrator.results.outcomes import ErrorClass
from orchestrator.spec.dialect import Dialect


def encode(
    fields: Mapping[str, Any], dialect: Dialect, of_the_prompt: Mapping[str, Any] | None = None
) -> bytes:
    """The body: the fields that the engine accepts, then the user's own for all requests and those
    of this prompt, always; a null there removes a field.
    """
    allowed = dialect.allowed_fields
    kept = {name: value for name, value in fields.items() if allowed is None or name in allowed}
    kept |= dialect.extra_body
    kept |= of_the_prompt or {}
    return orjson.dumps(
        {name: value for name, value in kept.items() if value is not None},
        option=orjson.OPT_SERIALIZE_NUMPY,
    )


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

    OpenAI's ``{"error": {"message", "code"}}``, TGI's ``{"error": "...", "error_type"}``, vLLM's
    older ``{"object": "error", "message"}``, ``{"type": "error", "message"}``.
    """
    if not isinstance(event, dict):
        return None
    error = event.get("error")
    if not error and "error" in (event.get("object"), event.get("type")):
        error = {name: value for name, value in event.items() if name not in ("object", "error")}
    if isinstance(error, dict):
        if not any(error.values()):
            return None
        inner = error_text(error)
        if inner is not None:
            return inner
        said = [
            str(error[key])
            for key in ("code", "type", "message")
            if error.get(key) not in (None, "")
        ]
        return " ".join(said) or json.dumps(error)
    if not error:
        return None
    kind = event.get("error_type")
    return f"{kind}: {error}" if kind else str(error)


def error_class(event: Any, said: str, status: int = 0) -> ErrorClass:
    """The class of an error object. ``said``: its message; ``status``: of HTTP, where it tells.

    A server that answered 200 before it examined the request refuses it in the stream: the status
    in the error object then counts like an HTTP status. TGI says 422 also when it is overloaded;
    only the words tell.
    """
    inner = event.get("error") if isinstance(event, dict) else None
    innermost = inner.get("error") if isinstance(inner, dict) else None
    objects = [one for one in (innermost, inner, event) if isinstance(one, dict)]
    names = ("http_status_code", "status_code", "code", "status")
    codes = {str(one[name]) for one in objects for name in names if name in one}
    status = next(
        (int(code) for code in sorted(codes) if re.fullmatch("[45][0-9][0-9]", code)), status
    )
    words = said.lower()
    if status == 429 or any(
        said in words for said in ("overloaded", "too many requests", "queue is full")
    ):
        return ErrorClass.HTTP_429
    if 400 <= status < 500 or "input validation" in words:
        return ErrorClass.HTTP_4XX
    return ErrorClass.STREAM_ERROR


def refuse(event: Any, said: str, parsed: Parsed) -> None:
    """Records an error object of a stream; it is a refusal where no token came before it."""
    parsed.fail(said, ErrorClass.STREAM_ERROR if parsed.has_content else error_class(event, said))


def decode(payloads: list[bytes]) -> list[Any]:
    """The JSON value of each payload; the bytes themselves where they are no JSON."""
    try:
        values: list[Any] = orjson.loads(b"[%b]" % b",".join(payloads))
    except orjson.JSONDecodeError:
        values = []
    # where a payload such as `1,2` shifted all that follow, each is decoded by itself
    return (
        values if len(values) == len(payloads) else [_decode_one(payload) for payload in payloads]
    )


def _decode_one(payload: bytes) -> Any:
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
    prompt_tokens, total = count(usage.get("prompt_tokens")), count(usage.get("completion_tokens"))
    if prompt_tokens is not None:
        parsed.input_tokens = prompt_tokens
    if (cached := _detail(usage, "prompt_tokens_details", "cached_tokens")) is not None:
        parsed.cached_tokens = cached
    if (thought := _detail(usage, "completion_tokens_details", "reasoning_tokens")) is not None:
        parsed.reasoning_tokens = thought
    if total is not None:
        parsed.output_tokens, parsed.total_event = total, len(parsed.tokens)
    return total


def text_of(value: Any) -> str:
    """The text of a field that should be a string: also of a list of parts, and of a part. Empty
    where it holds none.
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
    if isinstance(value, list) and all(count(one) is not None for one in value):
        return value
    return None


def collect_logprobs(said: Any, parsed: Parsed) -> None:
    """Records a list of log-probabilities. JSON has no NaN: servers write null for it."""
    values = [
        float(one) if isinstance(one, int | float) else float("nan")
        for one in (said if isinstance(said, list) else ())
    ]
    if values:
        parsed.logprobs = [*(parsed.logprobs or []), *values]


def _detail(usage: dict[str, Any], name: str, of: str) -> int | None:
    details = usage.get(name)
    return count(details.get(of)) if isinstance(details, dict) else None


# what a server says to keep a connection open
_HEARTBEAT = re.compile(
    rb"[\W_]*(ping|pong|heart[-_ ]?beat|keep[-_ ]?alive|processing|waiting)?[\W_]*", re.IGNORECASE
)
# fields of an event without choices that would hold text or the reason of a failure
_TELLING = frozenset(
    (
        *("content", "text", "delta", "message", "response", "output", "token", "generated_text"),
        *("meta_info", "detail", "details", "msg", "reason", "exception", "traceback"),
    )
)
_FAILING = ("error", "fail", "exception", "abort")


def odd_event(event: Any, parsed: Parsed) -> None:
    """Records an event without this API's fields: an error object, something that holds nothing
    (a heartbeat), or something that does not belong there.
    """
    said = error_text(event)
    if said is not None:
        refuse(event, said, parsed)
    elif _holds_nothing(event):
        parsed.ignored = parsed.ignored or str(event)[:1_000]
    elif parsed.garbage is None:
        parsed.garbage = f"not an event of this API: {str(event)[:1_000]}"
    parsed.tokens.append(0)


def is_heartbeat(name: bytes) -> bool:
    """Whether these bytes are nothing, or one of the words that keep a connection open."""
    return _HEARTBEAT.fullmatch(name) is not None


def _holds_nothing(event: Any) -> bool:
    if isinstance(event, str):
        event = event.encode()
    if isinstance(event, bytes):
        return is_heartbeat(event)
    if not isinstance(event, dict):
        return event is None or event == []
    for name, value in event.items():
        if value and name in _TELLING:
            return False
        if name in ("code", "status") and _says_failure(value):
            return False
    return not _says_failure(event.get("type")) and not _says_failure(event.get("event"))


def _says_failure(value: Any) -> bool:
    """Whether a code, a status or a type tells of a failure."""
    if isinstance(value, str) and not value.isdigit():
        return any(word in value.lower() for word in _FAILING)
    try:
        return int(value) >= 400
    except (TypeError, ValueError):
        return False
