"""OpenAI chat: ``POST /v1/chat/completions``. A delta that holds only a role is not content; reasoning, tool calls
and refusals are."""

from __future__ import annotations

from typing import Any

from orchestrator.load.wire import Parsed
from orchestrator.load.wire.common import encode, openai_fields
from orchestrator.load.wire.openai import read, read_choices
from orchestrator.load.workloads import Prompt
from orchestrator.spec.dialect import Dialect

_OTHER = ("reasoning_content", "reasoning", "refusal")


def _piece(choice: dict[str, Any]) -> str | None:
    """Text of a delta: the answer, else what the model thought, refused or called."""
    delta = choice["delta"]
    text = delta.get("content")
    if text:
        return str(text)
    for name in _OTHER:
        if delta.get(name):
            return str(delta[name])
    calls = delta.get("tool_calls") or ([delta["function_call"]] if delta.get("function_call") else [])
    return "".join(_called(call) for call in calls) or None


def _called(call: dict[str, Any]) -> str:
    function = call.get("function", call)
    return str(function.get("name") or "") + str(function.get("arguments") or "")


class OpenAiChat:
    path = "/v1/chat/completions"
    takes_token_ids = False

    def body(self, prompt: Prompt, output_tokens: int, model: str, dialect: Dialect) -> bytes:
        messages = [{"role": "system", "content": prompt.prefix}] if prompt.prefix is not None else []
        for turn in prompt.earlier:
            messages.append({"role": "user", "content": turn.user})
            messages.append({"role": "assistant", "content": turn.reply})
        messages.append({"role": "user", "content": prompt.user})
        return encode({"messages": messages, **openai_fields(output_tokens, model, dialect)}, dialect)

    def read(self, events: list[Any], parsed: Parsed) -> None:
        read(events, parsed, _piece)

    def read_choices(self, choices: list[Any], parsed: Parsed) -> None:
        read_choices(choices, parsed, _piece)


WIRE = OpenAiChat()
