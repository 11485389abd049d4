"""OpenAI's completions and chat: each event has choices with a piece of the answer, perhaps usage.

Sources of token counts, best first: ``choices[].token_ids`` (return_token_ids), the growth of a
usage that every event carries (continuous_usage_stats), where it is a running count. Otherwise the
count per event is unknown. An event with text is content, whatever is counted.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from orchestrator.load.wire.constraint_fields import option_fields
from orchestrator.load.wire.events import (
    collect_logprobs,
    decode,
    encode,
    error_text,
    length_fields,
    read_odd_event,
    read_usage,
    refuse,
    text_of,
    token_ids,
)
from orchestrator.load.wire.parsed import UNKNOWN, Parsed, whole_number
from orchestrator.spec.dialect import Dialect
from orchestrator.workloads.kind import Message, Prompt

_ANSWER_FIELDS = ("content", "refusal")
# where a server puts its reasoning, and lists of parts of it
_THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking", "reasoning_details")


@dataclass(frozen=True, slots=True)
class OpenAi:
    """Completions or chat. ``prompt_field``: the field of the body with the prompt. ``logprobs``:
    the value of the field that asks for log-probabilities.
    """

    prompt_field: Callable[[Prompt], dict[str, Any]]
    logprobs: int
    running_source: str = "continuous_usage"

    def body(self, prompt: Prompt, output_tokens: int, model: str, dialect: Dialect) -> bytes:
        fields = self.prompt_field(prompt) | _fields(output_tokens, model, dialect)
        fields |= dialect.adapter_fields(prompt.adapter)
        if dialect.logprobs:
            fields["logprobs"] = self.logprobs
        return encode(fields, dialect, option_fields(prompt, dialect))

    def read(self, payloads: list[bytes], parsed: Parsed) -> None:
        for event in decode(payloads):
            if isinstance(event, dict) and ("choices" in event or "usage" in event):
                _read(event, parsed)
            else:
                read_odd_event(event, parsed)


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


def _flat_prompt(prompt: Prompt) -> dict[str, Any]:
    """A text, or token ids, which vLLM, SGLang and others take too."""
    return {"prompt": prompt.flat()}


def _messages(prompt: Prompt) -> dict[str, Any]:
    return {"messages": chat_messages(prompt.messages)}


def chat_messages(messages: Iterable[Message]) -> list[Any]:
    """Messages as OpenAI's API has them. Pictures, and messages that are sent as they were
    recorded, are JSON already, which orjson copies.
    """
    written: list[Any] = []
    for message in messages:
        if message.recorded is not None:
            written.append(orjson.Fragment(message.recorded))
            continue
        content: Any = message.text
        if message.images:
            content = [*map(orjson.Fragment, message.images)]
            if message.text:
                content.append({"type": "text", "text": message.text})
        written.append({"role": message.role, "content": content})
    return written


COMPLETIONS = OpenAi(_flat_prompt, logprobs=1)
CHAT = OpenAi(_messages, logprobs=True)


# -- reading events


def _read(event: dict[str, Any], parsed: Parsed) -> None:
    """Adds an event with choices or usage. What is absent, null or empty holds nothing."""
    choices = event.get("choices")
    usage = event.get("usage")
    # this question takes a third of the time of the call, and nearly all events answer it with no
    if "error" in event or event.get("object") == "error" or "type" in event:
        _refuse_error(event, parsed)
    if not choices:
        read_usage(usage, parsed)
        parsed.tokens.append(0)
        return
    if isinstance(choices, list) and isinstance(choices[0], dict):
        _read_choice(choices[0], usage, parsed)
    else:
        _read_odd_choices(choices, usage, parsed)


def _read_odd_choices(choices: Any, usage: Any, parsed: Parsed) -> None:
    """Reads choices of another form than this API's, as far as they can be read. A null in place of
    a choice holds nothing.
    """
    if not isinstance(choices, list) or choices[0] is not None:
        parsed.garbage = parsed.garbage or f"not choices of this API: {str(choices)[:1_000]}"
    choice = choices if isinstance(choices, dict) else {}
    _read_choice(choice, usage, parsed)


def _read_choice(choice: dict[str, Any], usage: Any, parsed: Parsed) -> None:
    if "error" in choice or "object" in choice or "type" in choice:
        _refuse_error(choice, parsed)
    reason = choice.get("finish_reason")
    if reason:
        parsed.finish(reason)
    ids = token_ids(choice.get("token_ids"))
    answer = _answer(choice)
    thought = "" if answer else _thought(choice)
    if not answer and not thought:
        answer = _calls(choice)
    has_text = answer != "" or thought != ""
    if thought:
        parsed.thoughts.append(len(parsed.tokens))
    if usage:
        parsed.add_total(read_usage(usage, parsed), has_text, _may_hold_back(choice))
    if ids:
        parsed.source = "token_ids"
        tokens = len(ids)
    else:
        tokens = UNKNOWN if has_text else 0
    if parsed.texts is not None:
        _collect(answer, thought, ids, choice.get("logprobs"), parsed)
    parsed.tokens.append(tokens)


def _refuse_error(part: dict[str, Any], parsed: Parsed) -> None:
    """Records the error of an event or of a choice, whatever stands beside it."""
    message = error_text(part)
    if message is not None:
        refuse(part, message, parsed)


def _answer(choice: dict[str, Any]) -> str:
    """New text of the answer, or of a refusal. Empty where a choice holds something else, such as a
    role.
    """
    value = choice.get("text")
    if value:
        text = value if isinstance(value, str) else text_of(value)
        if text:
            return text
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return text_of(delta)
    return _first_text(delta, _ANSWER_FIELDS)


def _thought(choice: dict[str, Any]) -> str:
    """New text of the reasoning."""
    delta = choice.get("delta")
    return _first_text(delta, _THOUGHT_FIELDS) if isinstance(delta, dict) else ""


def _calls(choice: dict[str, Any]) -> str:
    """New text of tool calls."""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return ""
    calls = delta.get("tool_calls") or delta.get("function_call")
    if not calls:
        return ""
    if not isinstance(calls, list):
        calls = [calls]
    return "".join(map(_call_text, calls))


def _first_text(delta: dict[str, Any], names: Iterable[str]) -> str:
    """The text of the first of these fields that holds any."""
    for name in names:
        value = delta.get(name)
        if value:
            text = text_of(value)
            if text:
                return text
    return ""


def _call_text(call: Any) -> str:
    """The name and the arguments of a tool call, as far as an event holds them."""
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return text_of(function)
    return text_of(function.get("name")) + _arguments(function.get("arguments"))


def _arguments(arguments: Any) -> str:
    """Arguments of a tool call: JSON text, or an object of servers that send them whole."""
    if isinstance(arguments, dict | list):
        return json.dumps(arguments) if arguments else ""
    return text_of(arguments)


def _may_hold_back(choice: dict[str, Any]) -> bool:
    """Whether a choice without text may hold a part of a character, whose text comes later. The
    first choice, which only names the role, does not.
    """
    delta = choice.get("delta")
    return not (isinstance(delta, dict) and delta.get("role"))


def _collect(
    answer: str, thought: str, ids: list[int] | None, logprobs: Any, parsed: Parsed
) -> None:
    """Collects the reply. ``logprobs``: of completions, an object with a list of numbers; of chat,
    and with llama.cpp, one with an object per token.
    """
    assert parsed.texts is not None
    if answer:
        parsed.texts.append(answer)
        parsed.answer_texts.append(answer)
    elif thought:
        parsed.texts.append(thought)
    if not isinstance(logprobs, dict):
        logprobs = {}
    content = logprobs.get("content")
    tokens: list[dict[str, Any]] = []
    if isinstance(content, list):
        tokens = [token for token in content if isinstance(token, dict)]
    numbers = logprobs.get("token_logprobs")
    if not numbers:
        numbers = [token.get("logprob") for token in tokens]
    collect_logprobs(numbers, parsed)
    if not ids:  # llama.cpp puts token ids here
        ids = [token["id"] for token in tokens if whole_number(token.get("id")) is not None]
    if ids:
        parsed.token_ids = [*(parsed.token_ids or []), *ids]
