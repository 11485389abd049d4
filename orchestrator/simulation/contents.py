"""Says which tokens prompts have in common, without their text: a prompt is a row of segments, and
equal segments stand for equal tokens.

The simulated prefix cache keeps whole segments, where an engine keeps blocks of 16 tokens. So a
segment leaves the cache as a whole.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from orchestrator.emulator.prefix import BLOCK_TOKENS
from orchestrator.workloads.drawn import Drawn
from orchestrator.workloads.file import FileRequests
from orchestrator.workloads.kind import Message, Part, WorkloadKind
from orchestrator.workloads.trace import TraceRequests


class Segment(NamedTuple):
    """A row of ``tokens`` tokens. Segments of the same name and length have the same tokens."""

    name: Hashable
    tokens: int


@dataclass(frozen=True, slots=True)
class HeldSegments:
    """What a running request holds of a cache. ``chain``: for each segment, a name of it and of all
    before it.
    """

    hit_tokens: int
    chain: list[int]
    tokens: list[int]


class Cache:
    """A prefix cache. A segment is known by a hash of itself and of everything before it. Segments
    of running requests stay; the others leave, the oldest first, when running sequences need the
    room.
    """

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity_tokens = capacity_tokens
        self._holders: Counter[int] = Counter()
        self._free: OrderedDict[int, int] = OrderedDict()  # tokens by segment, oldest first
        self._free_tokens = 0

    def take(self, segments: Sequence[Segment], used_tokens: int) -> HeldSegments:
        """Hold the segments of a prompt that comes in. ``used_tokens``: tokens in the KV cache of
        running sequences.
        """
        chain: list[int] = []
        tokens: list[int] = []
        before = 0
        hit_tokens = 0
        is_hit = True
        for segment in segments:
            before = hash((before, segment))
            chain.append(before)
            tokens.append(segment.tokens)
            if is_hit and (before in self._holders or before in self._free):
                hit_tokens += segment.tokens
            else:
                is_hit = False
            freed = self._free.pop(before, None)
            if freed is not None:
                self._free_tokens -= freed
            self._holders[before] += 1
        self._trim(used_tokens)
        return HeldSegments(hit_tokens // BLOCK_TOKENS * BLOCK_TOKENS, chain, tokens)

    def give_back(self, held: HeldSegments, answer: Segment | None, used_tokens: int) -> None:
        """Free the segments of a request that is over, and keep them and its answer for later
        requests as long as there is room.
        """
        for name, tokens in zip(held.chain, held.tokens, strict=True):
            self._holders[name] -= 1
            if self._holders[name] <= 0:
                del self._holders[name]
                self._keep(name, tokens)
        if answer is not None:
            before = held.chain[-1] if held.chain else 0
            name = hash((before, answer))
            if name not in self._holders:
                self._keep(name, answer.tokens)
        self._trim(used_tokens)

    def _keep(self, name: int, tokens: int) -> None:
        """Puts a segment at the end of the free ones, where it leaves last."""
        earlier_tokens = self._free.pop(name, 0)
        self._free[name] = tokens
        self._free_tokens += tokens - earlier_tokens

    def _trim(self, used_tokens: int) -> None:
        room = max(0, self._capacity_tokens - used_tokens)
        while self._free and self._free_tokens > room:
            _, tokens = self._free.popitem(last=False)
            self._free_tokens -= tokens


class NameOfDraw:
    """A prompter that makes a name for random tokens instead of the tokens themselves."""

    def make(self, rng: np.random.Generator, tokens: int) -> Part:
        return np.array([*rng.integers(0, 2**31, 2), tokens], dtype=np.int32)

    def count(self, text: str) -> int | None:
        return None

    def words(self) -> NameOfDraw:
        return self

    def slices(self, text: str) -> NameOfDraw:
        return self


class PromptContents:
    """The segments of the prompts of one point."""

    def __init__(self, kind: WorkloadKind) -> None:
        self._kind = kind
        self._history: dict[int, list[Segment]] = {}  # by session, until its last turn

    def segments(self, session: int, turn: int, phase: str) -> list[Segment]:
        """The segments of a prompt; the turns before it must be over."""
        if isinstance(self._kind, FileRequests):
            return [Segment(*part) for part in self._kind.parts(session)]
        if isinstance(self._kind, TraceRequests):
            return [Segment(*part) for part in self._kind.parts(session, turn)]
        prompt = self._kind.prompt(session, turn, phase, ())
        segments = _segments_of(prompt.messages[:-1])
        user = _segments_of(prompt.messages[-1:])
        history: list[Segment] = []
        if self._kind.sessions:
            if session not in self._history:
                self._history[session] = _segments_of(self._kind.history(session))
            history = self._history[session]
        segments += history
        if self._kind.sessions:
            history += user
        return segments + user

    def answered(self, session: int, turn: int, tokens: int) -> Segment | None:
        """The segment of an answer, which the next turn contains; None if there is no next turn."""
        if not self._kind.sessions or isinstance(self._kind, TraceRequests):
            return None  # what a trace says next is in its own prompts
        if turn + 1 >= self._kind.turns(session):
            self._history.pop(session, None)
            return None
        answer = Segment((session, turn), tokens)
        self._history[session].append(answer)
        return answer


def _segments_of(messages: Sequence[Message]) -> list[Segment]:
    """The segments of messages whose parts are names that ``NameOfDraw`` made."""
    segments: list[Segment] = []
    for message in messages:
        for part in message.content:
            assert isinstance(part, np.ndarray)
            tokens = int(part[-1])
            segments.append(Segment(part.tobytes(), tokens))
    return segments


def share_tokens(workload: object) -> bool:
    """Whether prompts of a workload may have more than a few tokens in common."""
    if isinstance(workload, Drawn):
        has_shared_parts = workload.shared_prefix_tokens > 0 or workload.documents is not None
        return workload.converses or has_shared_parts
    return True
