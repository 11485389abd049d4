"""The prefix cache of a simulated engine. It keeps whole segments (workloads/segments.py), where an
engine keeps blocks of 16 tokens. So a segment leaves the cache as a whole.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.emulator.prefix import BLOCK_TOKENS
from orchestrator.workloads.segments import Segment


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
            freed = self._free.pop(before, 0)
            self._free_tokens -= freed
            if is_hit:
                kept_tokens = segment.tokens if before in self._holders else freed
                hit_tokens += kept_tokens
                is_hit = kept_tokens == segment.tokens
            self._holders[before] += 1
        self._trim(used_tokens)
        return HeldSegments(hit_tokens // BLOCK_TOKENS * BLOCK_TOKENS, chain, tokens)

    def give_back(self, held: HeldSegments, answer: Segment | None, used_tokens: int) -> None:
        """Free the segments of a request that is over, and keep them and its answer for later
        requests as long as there is room. The last token of an answer was never computed into the
        cache.
        """
        for name, tokens in zip(held.chain, held.tokens, strict=True):
            self._holders[name] -= 1
            if self._holders[name] <= 0:
                del self._holders[name]
                self._keep(name, tokens)
        if answer is not None:
            before = held.chain[-1] if held.chain else 0
            name = hash((before, answer))
            if name not in self._holders and name not in self._free:
                self._keep(name, answer.tokens - 1)
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
