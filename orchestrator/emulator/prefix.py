"""The prefix cache of one data-parallel rank, as vLLM has it: blocks that prompts and answers leave
behind.
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass

BLOCK_TOKENS = 16
Prompt = list[int] | bytes  # token ids, or text of which 4 bytes count as a token


@dataclass(slots=True)
class Held:
    """What one request holds of the cache while it runs."""

    hit_tokens: int
    blocks: list[int]
    root: int
    tail: Prompt  # of the prompt, after its last whole block


class PrefixCache:
    """Blocks by a hash of all that they hold and that stands before it.

    Those of running requests stay; the others are free, and the oldest of them go when running
    sequences need the room.
    """

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity_tokens = capacity_tokens
        self._held: Counter[int] = Counter()
        self._free: OrderedDict[int, None] = OrderedDict()  # oldest first
        self.queried_tokens = 0
        self.hit_tokens = 0

    def take(self, prompt: Prompt, salt: str, used_tokens: int) -> Held:
        """Blocks for a prompt that comes in, which is in the cache from now on for requests with
        the same ``salt``.

        ``used_tokens``: KV that running sequences fill, here and in ``give_back``.
        """
        root, width = hash(salt), _width(prompt)
        blocks = _chain(root, prompt)
        missing = (
            at
            for at, block in enumerate(blocks)
            if block not in self._held and block not in self._free
        )
        # the last token is computed
        hits = min(next(missing, len(blocks)), (len(prompt) - 1) // width) * BLOCK_TOKENS
        for block in blocks:
            self._free.pop(block, None)
        self._held.update(blocks)
        self._trim(used_tokens)
        self.queried_tokens += len(prompt) * BLOCK_TOKENS // width
        self.hit_tokens += hits
        return Held(hits, blocks, root, prompt[len(blocks) * width :])

    def give_back(self, held: Held, answer: Prompt, used_tokens: int) -> None:
        """A request is over: its blocks and those of its answer, which is of the prompt's type, may
        be found again.
        """
        self._held.subtract(held.blocks)
        whole = (
            held.tail + answer
            if isinstance(held.tail, bytes) and isinstance(answer, bytes)
            else [*held.tail, *answer]
        )
        for block in [*held.blocks, *_chain(held.blocks[-1] if held.blocks else held.root, whole)]:
            if self._held[block] <= 0:
                del self._held[block]
                self._free[block] = None
                self._free.move_to_end(block)
        self._trim(used_tokens)

    def _trim(self, used_tokens: int) -> None:
        room = max(0, self._capacity_tokens - used_tokens) // BLOCK_TOKENS
        while len(self._free) > room:
            self._free.popitem(last=False)

    def clear(self) -> None:
        """Forget every block that nobody holds; the counters go on."""
        self._free.clear()


def _width(tokens: Prompt) -> int:
    return BLOCK_TOKENS * 4 if isinstance(tokens, bytes) else BLOCK_TOKENS


def _chain(before: int, tokens: Prompt) -> list[int]:
    """Hashes of the whole blocks of ``tokens``, each with all that stands before it."""
    width, blocks = _width(tokens), []
    for start in range(0, len(tokens) - width + 1, width):
        part = tokens[start : start + width]
        before = hash((before, part if isinstance(part, bytes) else tuple(part)))
        blocks.append(before)
    return blocks
