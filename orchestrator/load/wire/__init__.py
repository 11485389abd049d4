"""Wires: one API each. A prompt becomes a request body; the decoded events of a finished stream become token counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from orchestrator.load.workloads import Prompt
from orchestrator.registry import Registry
from orchestrator.spec.dialect import Dialect

UNKNOWN = -1  # an event with content whose number of tokens the stream does not say


@dataclass(slots=True)
class Parsed:
    """What a stream said, filled event by event.

    ``tokens`` has one entry per event: the tokens it carried, 0 for none, UNKNOWN for content of unknown count.
    """

    tokens: list[int] = field(default_factory=list)
    source: str | None = None  # where counts come from: token_ids | continuous_usage | native; void when any is UNKNOWN
    input_tokens: int | None = None  # as the engine reported them
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None  # an error object within the stream
    ended: bool = False  # the marker of the end was there
    garbage: str | None = None  # the first thing that is not this wire's
    texts: list[str] | None = None  # the reply, collected only where the next turn needs it
    token_ids: list[int] | None = None

    def fail(self, error: str) -> None:
        """An error object of the stream; the first one counts."""
        if self.error is None:
            self.error = error[:500]


class Wire(Protocol):
    """One API. Stateless."""

    path: ClassVar[str]  # where engines usually serve it
    takes_token_ids: ClassVar[bool]  # the API has a place for a prompt of token ids

    def body(self, prompt: Prompt, output_tokens: int, model: str, dialect: Dialect) -> bytes:
        """The JSON body of one request for a stream of ``output_tokens`` tokens."""
        ...

    def read(self, events: list[Any], parsed: Parsed) -> None:
        """Adds decoded events to ``parsed``, one entry of ``parsed.tokens`` each. An event may be any JSON value."""
        ...

    @property
    def read_choices(self) -> Callable[[list[Any], Parsed], None] | None:
        """The same for events of which only ``choices[0]`` is at hand: they hold no usage, no error, and may be counted
        in any order. None: events of this API have no choices."""
        ...


WIRES: Registry[Wire] = Registry(
    "wires",
    {
        "openai_completions": "orchestrator.load.wire.openai_completions:WIRE",
        "openai_chat": "orchestrator.load.wire.openai_chat:WIRE",
        "tgi": "orchestrator.load.wire.tgi:WIRE",
        "llama_cpp": "orchestrator.load.wire.llama_cpp:WIRE",
        "sglang_generate": "orchestrator.load.wire.sglang_generate:WIRE",
    },
)
