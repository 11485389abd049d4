"""The stream of OpenAI's completions and chat: choices with a piece of the answer, usage, an end.

Counts, best first: ``choices[].token_ids`` (return_token_ids), the growth of a usage that every event carries
(continuous_usage_stats), else unknown per event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orchestrator.load.wire import UNKNOWN, Parsed
from orchestrator.load.wire.common import odd_event, read_usage

Piece = Callable[[dict[str, Any]], str | None]  # a choice's new text; "": content without text; None: no content


def read(events: list[Any], parsed: Parsed, piece: Piece) -> None:
    """Adds events to ``parsed``. ``piece`` finds the new text within a choice."""
    tokens, texts = parsed.tokens, parsed.texts
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
            if ids is not None:
                count = len(ids)
                parsed.source = "token_ids"
                if usage:
                    read_usage(usage, parsed)
            else:
                text = piece(choice)
                count = _grown(usage, text, parsed) if usage else UNKNOWN if text else 0
            if texts is not None:
                _collect(piece(choice), ids, parsed)
        except (KeyError, TypeError, AttributeError, IndexError):
            odd_event(event, parsed)
            continue
        tokens.append(count)


def read_choices(choices: list[Any], parsed: Parsed, piece: Piece) -> None:
    """Adds choices of events that hold nothing else."""
    tokens = parsed.tokens
    for choice in choices:
        try:
            ids = choice.get("token_ids")
            if ids is not None:
                count = len(ids)
                parsed.source = "token_ids"
            else:
                count = UNKNOWN if piece(choice) else 0
            if choice.get("finish_reason"):
                parsed.finish_reason = str(choice["finish_reason"])
        except (KeyError, TypeError, AttributeError):
            odd_event(choice, parsed)
            continue
        tokens.append(count)


def _grown(usage: Any, text: str | None, parsed: Parsed) -> int:
    """Tokens of an event by how much usage grew since the one before."""
    before = parsed.output_tokens or 0
    total = read_usage(usage, parsed)
    if total is None or (parsed.source is None and UNKNOWN in parsed.tokens):
        return UNKNOWN if text else 0  # a total in the last event only (transformers) is no running count
    parsed.source = "continuous_usage"
    return max(total - before, 0)


def _collect(text: str | None, ids: Any, parsed: Parsed) -> None:
    assert parsed.texts is not None
    if text:
        parsed.texts.append(text)
    if ids:
        parsed.token_ids = (parsed.token_ids or []) + list(ids)
