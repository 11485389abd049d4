"""Wires, one per API: a prompt becomes a request body, and the events of a stream become token
counts.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from orchestrator.load.workloads import Prompt
from orchestrator.registry import Registry
from orchestrator.results.outcomes import ErrorClass
from orchestrator.spec.dialect import Dialect

MOST_COUNTED = 2**31 - 1  # tokens of a request that a column can hold
UNKNOWN = -1  # tokens of an event with content where the stream does not say how many


@dataclass(slots=True)
class Parsed:
    """What a stream said, filled event by event.

    ``tokens``: one entry per event, the number of tokens it carried; UNKNOWN where it had content
    of unknown count.
    """

    tokens: list[int] = field(default_factory=list)
    # where counts come from: token_ids | continuous_usage | native; void when any is UNKNOWN
    source: str | None = None
    input_tokens: int | None = None  # as the engine reported them
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    # index of the last event with reasoning before the answer; None: there was none
    thought_at: int | None = None
    answered: bool = False  # text of the answer itself has come
    finish_reason: str | None = None
    error: str | None = None  # an error object within the stream
    error_class: ErrorClass = ErrorClass.STREAM_ERROR
    ended: bool = False  # the end marker came
    garbage: str | None = None  # the first thing that does not belong to this API
    # the reply; collected only where it is a list, because the reply is needed
    texts: list[str] | None = None
    token_ids: list[int] | None = None
    # of the reply's tokens, where asked for; NaN where a token has none
    logprobs: list[float] | None = None

    @property
    def ids(self) -> tuple[int, ...] | None:
        """``token_ids``; None also where one of them cannot be a token id: a server may send
        anything.
        """
        told = self.token_ids
        return (
            tuple(told)
            if told is not None and all(count(one) is not None for one in told)
            else None
        )

    def fail(self, error: str, error_class: ErrorClass = ErrorClass.STREAM_ERROR) -> None:
        """Records an error object of the stream; the first one counts."""
        if self.error is None:
            self.error, self.error_class = error, error_class


class Wire(Protocol):
    """One API. Stateless."""

    def body(self, prompt: Prompt, output_tokens: int, model: str, dialect: Dialect) -> bytes:
        """The JSON body of one request for a stream of ``output_tokens`` tokens."""
        ...

    def read(self, payloads: list[bytes], parsed: Parsed) -> None:
        """Adds events to ``parsed``, one entry in ``parsed.tokens`` for each. A payload may be
        anything.
        """
        ...

    def count(self, payloads: list[bytes], parsed: Parsed) -> bool:
        """Counts events that hold nothing but tokens without decoding them. False: nothing was
        added, they must be read. The order of events does not matter.
        """
        ...


WIRES: Registry[Wire] = Registry(
    "wires",
    {
        "openai_completions": "orchestrator.load.wire.openai:COMPLETIONS",
        "openai_chat": "orchestrator.load.wire.openai:CHAT",
        "tgi": "orchestrator.load.wire.tgi:WIRE",
        "sglang_generate": "orchestrator.load.wire.sglang_generate:WIRE",
    },
)


# -- what several wires share: fields of a request, error objects, usage


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
    """The message of an error object; None where the event is no error object.

    OpenAI's ``{"error": {"message", "code"}}``, TGI's ``{"error": "...", "error_type"}``, vLLM's
    older ``{"object": "error", "message"}``.
    """
    if not isinstance(event, dict):
        return None
    error = event.get("error")
    if error is None and event.get("object") == "error":
        error = event
    if not error:
        return None
    if isinstance(error, dict):
        said = [
            str(error[key])
            for key in ("code", "type", "message")
            if error.get(key) not in (None, "")
        ]
        return " ".join(said) or json.dumps(error)
    kind = event.get("error_type")
    return f"{kind}: {error}" if kind else str(error)


def error_class(event: Any, said: str, status: int = 0) -> ErrorClass:
    """The class of an error object. ``said``: its message; ``status``: of HTTP, where it tells.

    A server that answered 200 before it examined the request refuses it in the stream: the status
    in the error object then counts like an HTTP status. TGI says 422 also when it is overloaded;
    only the words tell.
    """
    inner = event.get("error") if isinstance(event, dict) else None
    objects = [one for one in (inner, event) if isinstance(one, dict)]
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
    parsed.fail(said, ErrorClass.STREAM_ERROR if any(parsed.tokens) else error_class(event, said))


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


def count(value: Any) -> int | None:
    """A token count or id from a server; None where it is not a whole number that a column can
    hold.
    """
    # a bool is an int too, and no count
    return value if type(value) is int and 0 <= value <= MOST_COUNTED else None


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
        parsed.output_tokens = total
    return total


def collect_logprobs(said: Any, parsed: Parsed) -> None:
    """Records a list of log-probabilities. JSON has no NaN: servers write null for it."""
    values = [float(one) if isinstance(one, int | float) else float("nan") for one in said or ()]
    if values:
        parsed.logprobs = [*(parsed.logprobs or []), *values]


def _detail(usage: dict[str, Any], name: str, of: str) -> int | None:
    details = usage.get(name)
    return count(details.get(of)) if isinstance(details, dict) else None


def odd_event(event: Any, parsed: Parsed) -> None:
    """Records an event without this API's fields: an error object, or something that does not
    belong there.
    """
    parsed.tokens.append(0)
    said = error_text(event)
    if said is not None:
        refuse(event, said, parsed)
    elif parsed.garbage is None:
        parsed.garbage = f"not an event of this API: {str(event)[:1_000]}"
