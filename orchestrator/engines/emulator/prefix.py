"""A prefix cache: blocks of prompts seen before, least recently used first out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

BLOCK_TOKENS = 16


class PrefixCache:
    """Counts the leading tokens of a prompt that are cached, in whole blocks, as vLLM's block hashes do."""

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity = max(1, capacity_tokens // BLOCK_TOKENS)
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self.queried_tokens = 0
        self.hit_tokens = 0

    def lookup(self, tokens: Sequence[int] | bytes) -> int:
        """Cached leading tokens of a prompt, which is in the cache from now on. Text counts 4 bytes as a token."""
        width = BLOCK_TOKENS * 4 if isinstance(tokens, bytes) else BLOCK_TOKENS
        blocks, chain, hits, missed = self._blocks, 0, 0, False
        for start in range(0, len(tokens) - width + 1, width):
            part = tokens[start : start + width]
            chain = hash((chain, part if isinstance(part, bytes) else tuple(part)))
            missed = missed or chain not in blocks
            hits += not missed
            blocks[chain] = None
            blocks.move_to_end(chain)
        while len(blocks) > self._capacity:
            blocks.popitem(last=False)
        self.queried_tokens += len(tokens) * BLOCK_TOKENS // width
        self.hit_tokens += hits * BLOCK_TOKENS
        return hits * BLOCK_TOKENS

    def clear(self) -> None:
        """Forget every block; the counters go on."""
        self._blocks.clear()
