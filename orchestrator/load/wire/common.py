"""What several wires share: fields of a request, error objects, usage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import orjson

from orchestrator.load.wire import Parsed
from orchestrator.spec.dialect import Dialect


def encode(fields: Mapping[str, Any], dialect: Dialect) -> bytes:
    """The body: fields the engine accepts, then the user's own, which are never left out."""
    allowed = dialect.allowed_fields
    kept = {name: value for name, value in fields.items() if allowed is None or name in allowed}
    return orjson.dumps(kept | dialect.extra_body, option=orjson.OPT_SERIALIZE_NUMPY)


def length_fields(output_tokens: int, dialect: Dialect) -> dict[str, Any]:
    """How an engine is told to answer with exactly so many tokens."""
    if dialect.length_control == "generation_config":
        config = {"max_new_tokens": output_tokens, "min_new_tokens": output_tokens, "do_sample": False}
        return {"generation_config": json.dumps(config)}
    if dialect.length_control == "none":
        return {}
    fields: dict[str, Any] = {"ignore_eos": True}
    if dialect.min_tokens_field:
        fields[dialect.min_tokens_field] = output_tokens
    return fields


def openai_fields(output_tokens: int, model: str, dialect: Dialect) -> dict[str, Any]:
    """The fields that completions and chat have in common. Temperature 0: a run can be repeated."""
    fields: dict[str, Any] = {"max_tokens": output_tokens, "temperature": 0.0, "stream": True}
    if dialect.model_field:
        fields["model"] = model
    if dialect.include_usage:
        fields["stream_options"] = {"include_usage": True}
        if dialect.continuous_usage:
            fields["stream_options"]["continuous_usage_stats"] = True
    if dialect.return_token_ids:
        fields["return_token_ids"] = True
    return fields | length_fields(output_tokens, dialect)


def error_text(event: Any) -> str | None:
    """The message of an error object, None when the event is none.

    OpenAI's ``{"error": {"message", "code"}}``, TGI's ``{"error": "...", "error_type"}``, vLLM's older
    ``{"object": "error", "message"}``.
    """
    if not isinstance(event, dict):
        return None
    error = event.get("error")
    if error is None and event.get("object") == "error":
        error = event
    if not error:
        return None
    if isinstance(error, dict):
        said = [str(error[key]) for key in ("code", "type", "message") if error.get(key) not in (None, "")]
        return " ".join(said) or json.dumps(error)
    kind = event.get("error_type")
    return f"{kind}: {error}" if kind else str(error)


def count(value: Any) -> int | None:
    """A number of tokens as a server says it; None when it is none that a column could hold."""
    return value if isinstance(value, int) and 0 <= value < 2**31 else None


def read_usage(usage: Any, parsed: Parsed) -> int | None:
    """Takes in an OpenAI usage object; returns its completion_tokens, None when it holds none."""
    if not isinstance(usage, dict):
        return None
    prompt_tokens, total = count(usage.get("prompt_tokens")), count(usage.get("completion_tokens"))
    if prompt_tokens is not None:
        parsed.input_tokens = prompt_tokens
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict) and (cached := count(details.get("cached_tokens"))) is not None:
        parsed.cached_tokens = cached
    if total is not None:
        parsed.output_tokens = total
    return total


def odd_event(event: Any, parsed: Parsed) -> None:
    """An event without this wire's fields: an error object, or something that does not belong there."""
    parsed.tokens.append(0)
    said = error_text(event)
    if said is not None:
        parsed.fail(said)
    elif parsed.garbage is None:
        parsed.garbage = f"not an event of this API: {str(event)[:200]}"
