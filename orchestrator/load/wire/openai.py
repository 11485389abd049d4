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
    tokens = parsed.tokens
    for event in events:
        try:
            choices = event["choices"]
            usage = event.get("usage")
            if not choices:
                tokens.append(0)
                read_usage(usage, parsed)
                continue
            choice = choices[0]
            text = piece(choice)
            ids = choice.get("token_ids")
            if choice.get("finish_reason"):
                parsed.finish_reason = str(choice["finish_reason"])
            if ids is not None:
                tokens.append(len(ids))
                parsed.source = "token_ids"
            elif usage:
                tokens.append(_grown(usage, text, parsed))
            else:
                tokens.append(UNKNOWN if text else 0)
        except (KeyError, TypeError, AttributeError, IndexError):
            odd_event(event, parsed)
            continue
        if usage and ids is not None:
            read_usage(usage, parsed)
        if parsed.texts is not None:
            _collect(text, ids, parsed)


def _grown(usage: Any, text: str | None, parsed: Parsed) -> int:
    """Tokens of an event by how much usage grew since the one before."""
    before = parsed.output_tokens or 0
    total = read_usage(usage, parsed)
    if total is None:
        return UNKNOWN if text else 0
    parsed.source = "continuous_usage"
    return total - before


def _collect(text: str | None, ids: Any, parsed: Parsed) -> None:
    assert parsed.texts is not None
    if text:
        parsed.texts.append(text)
    if ids:
        parsed.token_ids = (parsed.token_ids or []) + list(ids)
