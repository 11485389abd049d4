"""What the emulator's server is told at start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from orchestrator.engines.emulator.batch import refusal
from orchestrator.engines.emulator.model import Replica
from orchestrator.engines.emulator.profile import Faults


def four_bytes(text: str) -> int:
    """Tokens of a text where no tokenizer is at hand: one for every four bytes."""
    return max(1, len(text.encode()) // 4)


@dataclass(frozen=True, slots=True)
class Serving:
    """Everything the server was told at start."""

    model: str  # served name
    replica: Replica
    ranks: int = 1  # data-parallel ranks, each with its own batch
    faults: Faults = field(default_factory=Faults)
    api_key: str | None = None
    vocab_size: int = 32000
    prefix_caching: bool = True
    max_num_queued_reqs: int | None = None  # vLLM's limit on waiting and running requests: 503
    max_concurrent_requests: int = 128  # TGI's: 429, at once
    default_output_tokens: int = 256
    count_tokens: Callable[[str], int] = four_bytes

    def refusal(self, prompt_tokens: int, output_tokens: int) -> str | None:
        """Why a request can never run, None when it can."""
        return refusal(self.replica.limits, prompt_tokens, output_tokens)
