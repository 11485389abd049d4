"""OpenAI's completions and chat: each event has choices with a piece of the answer, perhaps usage.

Sources of token counts, best first: ``choices[].token_ids`` (return_token_ids), the growth of a
usage that every event carries (continuous_usage_stats). Otherwise the count per event is unknown.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from orchestrator.load.wire import (
    UNKNOWN,
    Parsed,
    collect_logprobs,
    decode,
    encode,
    length_fields,
    odd_event,
    read_usage,
)
from orchestrator.load.workloads import Prompt
from orchestrator.spec.dialect import Dialect

_TOKEN_IDS = re.compile(rb'"token_ids":\[([0-9][0-9,]*)\]')
_THOUGHT = (b'"reasoning_content":"', b'"reasoning":"')
_PIECE = re.compile(rb'"(?:text|content)":"[^"]')

# from a choice to its new text; "": content without text; None: no content
Piece = Callable[[dict[str, Any], Parsed], str | None]


@dataclass(frozen=True, slots=True)
class OpenAi:
    """``prompt_field``: the field of the body with the prompt. ``logprobs``: the value that asks
    for them.
    """

    prompt_field: Callable[[Prompt], dict[str, Any]]
    piece: Piece
    logprobs: int

    def body(self, prompt: Prompt, output_tokens: int, model: str, dialect: Dialect) -> bytes:
        asked = {"logprobs": self.logprobs} if dialect.logprobs else {}
        own = {**self.prompt_field(prompt), **_fields(output_tokens, model, dialect), **asked}
        return encode(own, dialect, prompt.fields)

    def read(self, payloads: list[bytes], parsed: Parsed) -> None:
        _read(decode(payloads), parsed, self.piece)

    def count(self, payloads: list[bytes], parsed: Parsed) -> bool:
        before, events = payloads[0].partition(b'"choices":[{')[0], len(payloads)
        cut = len(before) if all(map(bytes.startswith, payloads, repeat(before))) else 0
        joined = b"\n".join([payload[cut:] for payload in payloads])
        # a quote within a JSON string is written \", so what is found here are names of fields,
        # never text
        if (
            joined.count(b'"choices":[{') != events
            or b'"usage":{' in joined
            or b'"finish_reason":"' in joined
        ):
            return False
        found = _TOKEN_IDS.findall(joined)
        if len(found) == events:
            if self.piece is _delta and any(thought in joined for thought in _THOUGHT):
                return False  # decode, to find where the answer begins
            several = b"," in b"".join(found)
            parsed.tokens += [ids.count(b",") + 1 for ids in found] if several else [1] * events
            parsed.source = "token_ids"
            return True
        if found or len(_PIECE.findall(joined)) != events:
            return False
        parsed.tokens += [UNKNOWN] * events
        return True


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


def _text(choice: dict[str, Any], parsed: Parsed) -> str | None:
    text = choice["text"]
    return text if isinstance(text, str) else None


def _messages(prompt: Prompt) -> dict[str, Any]:
    return {
        "messages": [{"role": message.role, "content": message.text} for message in prompt.messages]
    }


def _delta(choice: dict[str, Any], parsed: Parsed) -> str | None:
    """Text of a delta: answer, refusal, reasoning or tool call, the first that is there. A role is
    no content.
    """
    delta = choice["delta"]
    text = delta.get("content") or delta.get("refusal")
    if text:
        parsed.answered = True
        return str(text)
    thought = delta.get("reasoning_content") or delta.get("reasoning")
    if thought:
        if not parsed.answered:
            parsed.thought_at = len(parsed.tokens)
        return str(thought)
    calls = delta.get("tool_calls") or (
        [delta["function_call"]] if delta.get("function_call") else []
    )
    return "".join(_called(call) for call in calls) or None


def _called(call: dict[str, Any]) -> str:
    function = call.get("function", call)
    return str(function.get("name") or "") + str(function.get("arguments") or "")


# vLLM, SGLang and others take token ids too
COMPLETIONS = OpenAi(lambda prompt: {"prompt": prompt.flat()}, _text, 1)
CHAT = OpenAi(_messages, _delta, True)


# -- reading events


def _read(events: list[Any], parsed: Parsed, piece: Piece) -> None:
    """Adds decoded events to ``parsed``. ``piece``: finds the new text in a choice."""
    tokens, texts = parsed.tokens, parsed.texts
    looks = texts is not None or piece is _delta
    for event in events:
        try:
            choices, usage = event["choices"], event.get("usage")
            if not choices:
                tokens.append(0)
                read_usage(usage, parsed)
                continue
            choice = choices[0]
            if choice.get("finish_reason"):
                parsed.finish_reason = str(choice["finish_reason"])
            ids = choice.get("token_ids")
            text = piece(choice, parsed) if looks or ids is None else None
            if ids is not None:
                count = len(ids)
                parsed.source = "token_ids"
                if usage:
                    read_usage(usage, parsed)
            else:
                count = _grown(usage, text, parsed) if usage else UNKNOWN if text else 0
            if texts is not None:
                _collect(text, ids, choice.get("logprobs"), parsed)
        except (KeyError, TypeError, AttributeError, IndexError):
            odd_event(event, parsed)
            continue
        tokens.append(count)


def _grown(usage: Any, text: str | None, parsed: Parsed) -> int:
    """Tokens of an event: by how much usage grew since the event before."""
    before = parsed.output_tokens or 0
    total = read_usage(usage, parsed)
    if total is None or (parsed.source is None and UNKNOWN in parsed.tokens):
        # a total that comes only at the end (transformers) is no running count
        return UNKNOWN if text else 0
    parsed.source = "continuous_usage"
    return max(total - before, 0)


def _collect(text: str | None, ids: Any, said: Any, parsed: Parsed) -> None:
    """Collects the reply. ``said``: a list of log-probabilities; in chat, and with llama.cpp, an
    object per token.
    """
    assert parsed.texts is not None
    each = (said or {}).get("content") or []
    collect_logprobs((said or {}).get("token_logprobs") or [one["logprob"] for one in each], parsed)
    ids = ids or [one["id"] for one in each if "id" in one]  # llama.cpp puts token ids here
    if text:
        parsed.texts.append(text)
    if ids:
        parsed.token_ids = (parsed.token_ids or []) + list(ids)
