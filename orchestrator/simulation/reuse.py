"""How much of a workload's prompts a prefix cache that never forgets would have: the upper bound of
prefix hits, without any engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.simulation.contents import Cache, NameOfDraw, PromptContents, share_tokens
from orchestrator.spec.load import Workload
from orchestrator.workloads.kind import WorkloadKind

ENDLESS = 1 << 62  # tokens that the cache holds


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
    if not kind.input_tokens(0, 0):
        return None
    contents = PromptContents(kind)
    cache = Cache(ENDLESS)
    prompt_tokens = 0
    cached_tokens = 0
    for session in sessions:
        for turn in range(kind.turns(session)):
            tokens = kind.input_tokens(session, turn)
            prompt_tokens += tokens
            if not share_tokens(workload):
                continue
            held = cache.take(contents.segments(session, turn, "measure"), 0)
            # an engine always computes the last token of a prompt
            cached_tokens += min(held.hit_tokens, tokens - 1)
            answer = contents.answered(session, turn, kind.output_tokens(session, turn))
            cache.give_back(held, answer, 0)
    return Reuse(prompt_tokens, cached_tokens)
