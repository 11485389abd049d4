"""The upper bound of prefix hits, computed without an engine: the part of a workload's prompts that a
prefix cache would hold if it never forgot anything.
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

BLOCK_TOKENS = 16  # a cache keeps whole blocks: the size is that of vLLM on GPUs


@dataclass(frozen=True, slots=True)
class Reuse:
    """``prompt_tokens``: of all prompts. ``cached_tokens``: those of them that a cache has, because an
    earlier prompt, or a prompt with its answer, began with the same tokens.
    """

    prompt_tokens: int
    cached_tokens: int

    @property
    def share(self) -> float:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def reuse_of(workload: Workload, seed: int, sessions: Sequence[int]) -> Reuse | None:
    """The reuse if these sessions are sent one after the other; None where the tokens of prompts
    are not known.
    """
    kind: WorkloadKind = workload.requests(NameOfDraw(), seed)
    if not are_known(workload, kind):
        return None
    kind.adapters = adapters_of(workload, seed)
    may_share_tokens = share_tokens(workload)
    contents = PromptContents(kind)
    cache = EndlessCache(BLOCK_TOKENS)
    prompt_tokens = 0
    cached_tokens = 0
    for session in sessions:
        for turn in range(kind.turns(session)):
            prompt_tokens += kind.input_tokens(session, turn)
            if not may_share_tokens:
                continue
            segments = contents.segments(session, turn, "measure")
            cached_tokens += cache.take(segments)
            answer = contents.answered(session, turn, kind.output_tokens(session, turn))
            if answer is not None:
                cache.keep(segments, answer)
    return Reuse(prompt_tokens, cached_tokens)
