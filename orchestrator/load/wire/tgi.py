"""TGI: ``POST /generate_stream``, one token per event (LightLLM speaks it too). There is no [DONE]: the last event
carries the details. TGI itself has no way to ignore the end-of-sequence token."""

from __future__ import annotations

from typing import Any

from orchestrator.load.wire import Parsed
from orchestrator.load.wire.common import encode, length_fields, odd_event
from orchestrator.load.workloads import Prompt
from orchestrator.spec.dialect import Dialect


class Tgi:
    path = "/generate_stream"
    read_choices = None
    takes_token_ids = False

    def body(self, prompt: Prompt, output_tokens: int, model: str, dialect: Dialect) -> bytes:
        parameters: dict[str, Any] = {"max_new_tokens": output_tokens, "do_sample": False, "details": True}
        parameters |= length_fields(output_tokens, dialect)
        return encode({"inputs": prompt.flat(), "parameters": parameters, "stream": True}, dialect)

    def read(self, events: list[Any], parsed: Parsed) -> None:
        for event in events:
            try:
                token = event["token"]
                text, prompt_tokens = token["text"], token.get("prompt_tokens")
                if event.get("details") or event.get("finished") or event.get("generated_text") is not None:
                    _read_end(event, parsed)
            except (KeyError, TypeError, AttributeError):
                odd_event(event, parsed)
                continue
            parsed.tokens.append(1)
            parsed.source = "native"
            if isinstance(prompt_tokens, int):
                parsed.input_tokens = prompt_tokens
            if parsed.texts is not None:
                parsed.texts.append(str(text))


def _read_end(event: dict[str, Any], parsed: Parsed) -> None:
    parsed.ended = True
    details = event.get("details") or {}
    reason = details.get("finish_reason") or event.get("finish_reason")
    parsed.finish_reason = str(reason) if reason else None
    if isinstance(details.get("generated_tokens"), int):
        parsed.output_tokens = details["generated_tokens"]
    elif isinstance(event["token"].get("count_output_tokens"), int):
        parsed.output_tokens = event["token"]["count_output_tokens"]
    if isinstance(details.get("input_length"), int):
        parsed.input_tokens = details["input_length"]


WIRE = Tgi()
