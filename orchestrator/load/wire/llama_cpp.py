"""llama.cpp: ``POST /completion``. Events hold text and, when asked, token ids; the last one has ``stop: true``."""

from __future__ import annotations

from typing import Any

from orchestrator.load.wire import UNKNOWN, Parsed
from orchestrator.load.wire.common import count, encode, length_fields, odd_event
from orchestrator.load.workloads import Prompt
from orchestrator.spec.dialect import Dialect


class LlamaCpp:
    path = "/completion"
    read_choices = None
    takes_token_ids = True

    def body(self, prompt: Prompt, output_tokens: int, model: str, dialect: Dialect) -> bytes:
        fields: dict[str, Any] = {
            "prompt": prompt.flat(),
            "n_predict": output_tokens,
            "temperature": 0.0,
            "stream": True,
            "return_tokens": True,
        }
        return encode(fields | length_fields(output_tokens, dialect), dialect)

    def read(self, events: list[Any], parsed: Parsed) -> None:
        for event in events:
            try:
                text, ids = event["content"], list(event.get("tokens") or ())
                if event.get("stop"):
                    _read_end(event, parsed)
            except (KeyError, TypeError, AttributeError):
                odd_event(event, parsed)
                continue
            if ids:
                parsed.tokens.append(len(ids))
                parsed.source = "token_ids"
            else:  # the last event is empty; a build without return_tokens says nothing of counts
                parsed.tokens.append(UNKNOWN if text else 0)
            if parsed.texts is not None:
                parsed.texts.append(str(text))
                parsed.token_ids = (parsed.token_ids or []) + ids


def _read_end(event: dict[str, Any], parsed: Parsed) -> None:
    parsed.ended = True
    timings = event.get("timings") or {}
    stop_type = event.get("stop_type")
    parsed.finish_reason = str(stop_type) if stop_type else ("length" if event.get("stopped_limit") else "stop")
    for name, place in (("tokens_evaluated", "input_tokens"), ("tokens_predicted", "output_tokens")):
        if (said := count(event.get(name))) is not None:
            setattr(parsed, place, said)
    if (cached := count(timings.get("cache_n"))) is not None:
        parsed.cached_tokens = cached


WIRE = LlamaCpp()
