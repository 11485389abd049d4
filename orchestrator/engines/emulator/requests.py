"""Request bodies of the three APIs, checked the way the engines do, as one ``Asked`` and the prompt."""

from __future__ import annotations

import uuid
from typing import Any

import orjson

from orchestrator.engines.emulator.answers import Asked
from orchestrator.engines.emulator.serving import Serving

Json = dict[str, Any]
Prompt = list[int] | bytes


class Refused(Exception):
    """The request is wrong. ``kind`` is the error type of the OpenAI answer."""

    def __init__(self, message: str, status: int = 400, kind: str = "BadRequestError") -> None:
        self.status, self.kind = status, kind
        super().__init__(message)


def parse_completion(body: bytes, serving: Serving) -> tuple[Asked, Prompt]:
    """``/v1/completions``. Raises Refused."""
    value = _openai_body(body, serving)
    tokens, prompt = _prompt(value.get("prompt"), serving)
    limit = _whole(value, "max_tokens", 16)
    return _asked(value, "cmpl-", tokens, limit, serving), prompt


def parse_chat(body: bytes, serving: Serving) -> tuple[Asked, Prompt]:
    """``/v1/chat/completions``. Every message costs 4 tokens beside its text, as chat templates do. Raises Refused."""
    value = _openai_body(body, serving)
    messages = value.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages) or not messages:
        raise Refused("messages must be a list of objects that is not empty")
    text = "\n".join(f"{message.get('role')}: {_content(message.get('content'))}" for message in messages)
    tokens = serving.count_tokens(text) + 4 * len(messages)
    given = _whole(value, "max_completion_tokens", 0) or _whole(value, "max_tokens", 0)
    room = serving.replica.limits.max_model_len - tokens
    limit = given or max(1, min(serving.default_output_tokens, room))
    return _asked(value, "chatcmpl-", tokens, limit, serving, "length" if given else "stop"), text.encode()


def parse_tgi(body: bytes, serving: Serving, stream: bool | None) -> tuple[Asked, Prompt]:
    """TGI's native body; ``stream=None`` takes it from the body. Raises Refused."""
    value = _object(body)
    text, parameters = value.get("inputs"), value.get("parameters", {})
    if not isinstance(text, str) or not text:
        raise Refused("`inputs` must be a non-empty string", 422)
    if parameters is None:
        parameters = {}
    if not isinstance(parameters, dict):
        raise Refused("`parameters` must be an object", 422)
    tokens, limit = serving.count_tokens(text), _whole(parameters, "max_new_tokens", 100)
    refusal = _refusal(tokens, limit, serving)
    if refusal:
        raise Refused(f"Input validation error: {refusal}", 422)
    asked = Asked(
        request_id=uuid.uuid4().hex,
        model=serving.model,
        prompt_tokens=tokens,
        output_tokens=limit,
        stream=bool(value.get("stream")) if stream is None else stream,
        details=bool(parameters.get("details")),
        vocab_size=serving.vocab_size,
    )
    return asked, text.encode()


def _object(body: bytes) -> Json:
    try:
        value = orjson.loads(body)
    except ValueError as error:
        raise Refused(f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise Refused("the body is not a JSON object")
    return value


def _openai_body(body: bytes, serving: Serving) -> Json:
    value = _object(body)
    model = value.get("model")
    if model is not None and model != serving.model:
        raise Refused(f"The model `{model}` does not exist.", 404, "NotFoundError")
    if _whole(value, "n", 1) != 1 or value.get("echo") or value.get("best_of", 1) not in {None, 1}:
        raise Refused("the emulator gives one completion per request, without echo")
    return value


def _asked(value: Json, prefix: str, prompt_tokens: int, limit: int, serving: Serving, reason: str = "length") -> Asked:
    refusal = _refusal(prompt_tokens, limit, serving)
    if refusal:
        raise Refused(refusal)
    options = value.get("stream_options") or {}
    if options and not value.get("stream"):
        raise Refused("stream_options is only allowed when stream is true")
    include = bool(options.get("include_usage"))
    return Asked(
        request_id=prefix + uuid.uuid4().hex,
        model=serving.model,
        prompt_tokens=prompt_tokens,
        output_tokens=limit,
        stream=bool(value.get("stream")),
        finish_reason=reason,
        include_usage=include,
        continuous_usage=include and bool(options.get("continuous_usage_stats")),
        return_token_ids=bool(value.get("return_token_ids")),
        vocab_size=serving.vocab_size,
    )


def _refusal(prompt_tokens: int, output_tokens: int, serving: Serving) -> str | None:
    if output_tokens < 1:
        return f"the number of tokens to generate must be at least 1, got {output_tokens}"
    return serving.refusal(prompt_tokens, output_tokens)


def _prompt(prompt: Any, serving: Serving) -> tuple[int, Prompt]:
    """Token count and prompt. A list of one prompt is taken as that prompt."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return serving.count_tokens(prompt), prompt.encode()
    if not isinstance(prompt, list) or not prompt or not all(type(token) is int for token in prompt):
        raise Refused("prompt must be one string or one list of token ids, not empty")
    if max(prompt) >= serving.vocab_size or min(prompt) < 0:
        raise Refused(f"Token id {max(prompt)} is out of vocabulary")
    return len(prompt), prompt


def _content(content: Any) -> str:
    """A message's text; parts that are not text are left out."""
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")


def _whole(value: Json, name: str, otherwise: int) -> int:
    given = value.get(name)
    if given is None:
        return otherwise
    if type(given) is not int:
        raise Refused(f"{name} must be a whole number, got {given!r}")
    return given
