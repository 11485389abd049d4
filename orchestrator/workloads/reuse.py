"""How much of a workload's prompts a prefix cache that never forgets would have: the upper bound of
prefix hits, without any engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.spec.load import Workload
from orchestrator.workloads.adapters import adapters_of
from orchestrator.workloads.kind import WorkloadKind
from orchestrator.workloads.segments import (
    EndlessCache,
    NameOfDraw,
    PromptContents,
    are_known,
    share_tokens,
)

BLOCK_TOKENS = 16  # that an engine keeps together: vLLM's on GPUs


@dataclass(frozen=True, slots=True)
class Reuse:
    """Tokens of all prompts, and those that a prompt or an answer before them had in its place."""

    prompt_tokens: int
    cached_tokens: int

    @property
    def share(self) -> float:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def reuse_of(workload: Workload, seed: int, sessions: Sequence[int]) -> Reuse | None:
    """The reuse within these sessions, one after the other; None where the tokens of prompts are
    not known.
    """
    kind: WorkloadKind = workload.requests(NameOfDraw(), seed)
    if not are_known(workload, kind):
        return None
    kind.adapters = adapters_of(workload, seed)
    shares_tokens = share_tokens(workload)
    contents = PromptContents(kind)
    cache = EndlessCache(BLOCK_TOKENS)
    prompt_tokens = 0
    cached_tokens = 0
    for session in sessions:
        for turn in range(kind.turns(session)):
            prompt_tokens += kind.input_tokens(session, turn)
            if not shares_tokens:
                continue
            segments = contents.segments(session, turn, "measure")
            cached_tokens += cache.take(segments)
            answer = contents.answered(session, turn, kind.output_tokens(session, turn))
            if answer is not None:
                cache.keep(segments, answer)
    return Reuse(prompt_tokens, cached_tokens)
