"""OpenAI's completions and chat: each event has choices with a piece of the answer, perhaps usage.

Sources of token counts, best first: ``choices[].token_ids`` (return_token_ids), the growth of a
usage that every event carries (continuous_usage_stats), where it is a running count. Otherwise the
count per event is unknown. An event with text is content, whatever is counted.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from orchestrator.load.wire.events import (
    collect_logprobs,
    decode,
    encode,
    error_text,
    length_fields,
    odd_event,
    read_usage,
    refuse,
    text_of,
    token_ids,
)
from orchestrator.load.wire.parsed import UNKNOWN, Parsed, count
from orchestrator.spec.dialect import Dialect
from orchestrator.workloads.kind import Prompt

# where a server puts its reasoning, and lists of parts of it
_THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking", "reasoning_details")


@dataclass(frozen=True, slots=True)
class Piece:
    """The new text of a choice. ``is_thought``: it is reasoning, no part of the answer."""

    text: str
    is_thought: bool = False


_NO_TEXT = Piece("")


@dataclass(frozen=True, slots=True)
class OpenAi:
    """``prompt_field``: the field of the body with the prompt. ``logprobs``: the value that asks
    for them.
    """

    prompt_field: Callable[[Prompt], dict[str, Any]]
    logprobs: int
    running_source: str = "continuous_usage"

    def body(self, prompt: Prompt, output_tokens: int, model: str, dialect: Dialect) -> bytes:
        asked = {"logprobs": self.logprobs} if dialect.logprobs else {}
        own = {**self.prompt_field(prompt), **_fields(output_tokens, model, dialect), **asked}
        return encode(own, dialect, prompt.fields)

    def read(self, payloads: list[bytes], parsed: Parsed) -> None:
        for event in decode(payloads):
            if isinstance(event, dict) and ("choices" in event or "usage" in event):
                _read(event, parsed)
            else:
                odd_event(event, parsed)


def _fields(output_tokens: int, model: str, dialect: Dialect) -> dict[str, Any]:
    """The fields that completions and chat share. Temperature 0 makes runs repeatable."""
    fields: dict[str, Any] = {
        dialect.max_tokens_field: output_tokens,
        "temperature": 0.0,
        "stream": True,
    }
    if dialect.model_field:
        fields["model"] = model
    if dialect.include_usage:
        fields["stream_options"] = {"include_usage": True}
        if dialect.continuous_usage:
            fields["stream_options"]["continuous_usage_stats"] = True
    if dialect.return_token_ids:
        fields["return_token_ids"] = True
    return fields | length_fields(output_tokens, dialect)


def _messages(prompt: Prompt) -> dict[str, Any]:
    return {
        "messages": [{"role": message.role, "content": message.text} for message in prompt.messages]
    }


# vLLM, SGLang and others take token ids too
COMPLETIONS = OpenAi(lambda prompt: {"prompt": prompt.flat()}, 1)
CHAT = OpenAi(_messages, True)


# -- reading events


def _read(event: dict[str, Any], parsed: Parsed) -> None:
    """Adds an event with choices or usage. What is absent, null or empty holds nothing."""
    choices, usage = event.get("choices"), event.get("usage")
    said = error_text(event)
    if said is not None:
        refuse(event, said, parsed)
    if not choices:
        read_usage(usage, parsed)
        parsed.tokens.append(0)
        return
    choice = choices[0] if isinstance(choices, list) else choices
    if not isinstance(choice, dict | None) or not isinstance(choices, list):
        parsed.garbage = parsed.garbage or f"not choices of this API: {str(choices)[:1_000]}"
    _read_choice(choice if isinstance(choice, dict) else {}, usage, parsed)


def _read_choice(choice: dict[str, Any], usage: Any, parsed: Parsed) -> None:
    said = error_text(choice)
    if said is not None:
        refuse(choice, said, parsed)
    parsed.finish(choice.get("finish_reason"))
    ids = token_ids(choice.get("token_ids"))
    piece = _piece(choice)
    has_text = piece.text != ""
    if piece.is_thought:
        parsed.thoughts.append(len(parsed.tokens))
    if usage:
        parsed.add_total(read_usage(usage, parsed), has_text, _may_hold_back(choice))
    if ids:
        parsed.source = "token_ids"
        tokens = len(ids)
    else:
        tokens = UNKNOWN if has_text else 0
    if parsed.texts is not None:
        _collect(piece, ids, choice.get("logprobs"), parsed)
    parsed.tokens.append(tokens)


def _piece(choice: dict[str, Any]) -> Piece:
    """New text: answer, refusal, reasoning or tool call, the first that is there. A role is no
    content.
    """
    text, delta = choice.get("text"), choice.get("delta")
    if text and (said := text_of(text)):
        return Piece(said)
    if not isinstance(delta, dict):
        return Piece(text_of(delta))
    for name in ("content", "refusal"):
        text = delta.get(name)
        if text and (said := text_of(text)):
            return Piece(said)
    for name in _THOUGHT_FIELDS:
        text = delta.get(name)
        if text and (said := text_of(text)):
            return Piece(said, is_thought=True)
    calls = delta.get("tool_calls") or delta.get("function_call")
    if not calls:
        return _NO_TEXT
    return Piece("".join(map(_called, calls if isinstance(calls, list) else [calls])))


def _called(call: Any) -> str:
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return text_of(function)
    return text_of(function.get("name")) + _arguments(function.get("arguments"))


def _arguments(said: Any) -> str:
    """Arguments of a tool call: JSON text, or an object of servers that send them whole."""
    if isinstance(said, dict | list):
        return json.dumps(said) if said else ""
    return text_of(said)


def _may_hold_back(choice: dict[str, Any]) -> bool:
    """Whether a choice without text may be one of an incomplete character: not the first one, that
    only names the role.
    """
    delta = choice.get("delta")
    return not (isinstance(delta, dict) and delta.get("role"))


def _collect(piece: Piece, ids: list[int] | None, logprobs: Any, parsed: Parsed) -> None:
    """Collects the reply. ``logprobs``: a list of them; in chat, and with llama.cpp, an object per
    token.
    """
    assert parsed.texts is not None
    if piece.text:
        parsed.texts.append(piece.text)
    if piece.text and not piece.is_thought:
        parsed.answer_texts.append(piece.text)
    said = logprobs if isinstance(logprobs, dict) else {}
    each = said.get("content")
    tokens = [token for token in each if isinstance(token, dict)] if isinstance(each, list) else []
    listed = said.get("token_logprobs")
    collect_logprobs(listed or [token.get("logprob") for token in tokens], parsed)
    # llama.cpp puts token ids here
    ids = ids or [token["id"] for token in tokens if count(token.get("id")) is not None]
    if ids:
        parsed.token_ids = (parsed.token_ids or []) + list(ids)
