"""Wires, one per API: a prompt becomes a request body, and the events of a stream become token
counts.
"""

from typing import Protocol

from orchestrator.base.registry import Registry
from orchestrator.load.wire.parsed import Parsed
from orchestrator.spec.dialect import Dialect
from orchestrator.workloads.kind import Prompt


class Wire(Protocol):
    """One API. Stateless. ``running_source``: the source of token counts that is stored where each
    event of this API carries the total so far.
    """

    @property
    def running_source(self) -> str: ...

    def body(self, prompt: Prompt, output_tokens: int, model: str, dialect: Dialect) -> bytes:
        """The JSON body of one request for a stream of ``output_tokens`` tokens."""
        ...

    def read(self, payloads: list[bytes], parsed: Parsed) -> None:
        """Adds events to ``parsed``, one entry in ``parsed.tokens`` for each. A payload may be
        anything.
        """
        ...


WIRES: Registry[Wire] = Registry(
    "wires",
    {
        "openai_completions": "orchestrator.load.wire.openai:COMPLETIONS",
        "openai_chat": "orchestrator.load.wire.openai:CHAT",
        "tgi": "orchestrator.load.wire.tgi:WIRE",
        "sglang_generate": "orchestrator.load.wire.sglang_generate:WIRE",
    },
)
