"""The upper bound of prefix hits, computed without an engine: the part of a workload's prompts that a
prefix cache would hold if it never forgot anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.spec.load import Workload
from orchestrator.workloads.adapters import adapters_of
from orchestrator.workloads.kind import WorkloadKind
from orchestrator.workloads.segments import (
    EndlessCache,
    NameOfDraw,
    PromptContents,
    Uncounted,
    are_known,
    known_parts,
    share_tokens,
    uncounted,
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


@dataclass(frozen=True, slots=True)
class WorkloadReuse:
    """The reuse of the prompts of a workload, as far as their tokens are known.

    ``by_part``: of each part of a mix whose tokens are known and of which there are prompts. A
    workload that is no mix has no names of parts: None stands for all its prompts. ``uncounted``: what the other prompts hold.
    """

    by_part: Mapping[str | None, Reuse]
    is_complete: bool
    uncounted: Sequence[Uncounted]

    @property
    def of_known(self) -> Reuse | None:
        """Of all prompts whose tokens are known; None: there are none."""
        if not self.by_part:
            return None
        return Reuse(
            sum(reuse.prompt_tokens for reuse in self.by_part.values()),
            sum(reuse.cached_tokens for reuse in self.by_part.values()),
        )

    @property
    def of_all(self) -> Reuse | None:
        """Of all prompts; None where the tokens of some are not known."""
        return self.of_known if self.is_complete else None

    def of_part(self, part: Workload) -> WorkloadReuse:
        """That of a part of a mix alone."""
        reuse = self.by_part.get(part.name)
        if reuse is None:
            return WorkloadReuse({}, is_complete=False, uncounted=uncounted(part))
        return WorkloadReuse({None: reuse}, is_complete=True, uncounted=())


def reuse_of(workload: Workload, seed: int, sessions: Sequence[int]) -> WorkloadReuse:
    """The reuse if these sessions are sent one after the other."""
    kind: WorkloadKind = workload.requests(NameOfDraw(), seed)
    known = known_parts(workload, kind)
    kind.adapters = adapters_of(workload, seed)
    may_share_tokens = share_tokens(workload)
    contents = PromptContents(kind)
    cache = EndlessCache(BLOCK_TOKENS)
    prompt_tokens: Counter[str | None] = Counter()
    cached_tokens: Counter[str | None] = Counter()
    for session in sessions:
        part = kind.part(session)
        if part not in known:
            continue
        for turn in range(kind.turns(session)):
            prompt_tokens[part] += kind.input_tokens(session, turn)
            if not may_share_tokens:
                continue
            segments = contents.segments(session, turn, "measure")
            cached_tokens[part] += cache.take(segments)
            answer = contents.answered(session, turn, kind.output_tokens(session, turn))
            if answer is not None:
                cache.keep(segments, answer)
    by_part = {
        part: Reuse(tokens, cached_tokens[part]) for part, tokens in prompt_tokens.items() if tokens
    }
    if are_known(workload, kind):
        return WorkloadReuse(by_part, is_complete=True, uncounted=())
    return WorkloadReuse(by_part, is_complete=False, uncounted=uncounted(workload))
