"""OpenAI completions: ``POST /v1/completions``. vLLM, SGLang and others take token ids as the prompt."""

from __future__ import annotations

from typing import Any

from orchestrator.load.wire import Parsed
from orchestrator.load.wire.common import encode, openai_fields
from orchestrator.load.wire.openai import read, read_choices
from orchestrator.load.workloads import Prompt
from orchestrator.spec.dialect import Dialect


def _piece(choice: dict[str, Any]) -> str | None:
    text = choice["text"]
    return text if isinstance(text, str) else None


class OpenAiCompletions:
    path = "/v1/completions"
    takes_token_ids = True

    def body(self, prompt: Prompt, output_tokens: int, model: str, dialect: Dialect) -> bytes:
        return encode({"prompt": prompt.flat(), **openai_fields(output_tokens, model, dialect)}, dialect)

    def read(self, events: list[Any], parsed: Parsed) -> None:
        read(events, parsed, _piece)

    def read_choices(self, choices: list[Any], parsed: Parsed) -> None:
        read_choices(choices, parsed, _piece)


WIRE = OpenAiCompletions()
