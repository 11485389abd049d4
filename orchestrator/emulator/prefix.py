"""The prefix cache of one data-parallel rank, as vLLM has it: blocks that prompts and answers leave
behind.
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass

BLOCK_TOKENS = 16
Prompt = list[int] | bytes  # token ids, or text of which 4 bytes count as a token


@dataclass(slots=True)
class HeldBlocks:
    """The blocks of the cache that one request holds while it runs."""

    hit_tokens: int
    blocks: list[int]  # hashes
    root: int  # hash that stands before the first block
    tail: Prompt  # of the prompt, after its last whole block


class PrefixCache:
    """Blocks by a hash of all that they hold and of all that stands before them.

    Blocks of running requests stay. The others are free: the oldest of them go when running
    sequences need the room.
    """

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity_tokens = capacity_tokens
        self._holders: Counter[int] = Counter()  # running requests that hold a block
        self._free: OrderedDict[int, None] = OrderedDict()  # oldest first
        self.queried_tokens = 0
        self.hit_tokens = 0

    def take(self, prompt: Prompt, salt: str, used_tokens: int) -> HeldBlocks:
        """Blocks for a prompt that comes in, which is in the cache from now on for requests with
        the same ``salt``.

        ``used_tokens``: KV that running sequences fill, here and in ``give_back``.
        """
        root = hash(salt)
        width = _block_width(prompt)
        blocks = _block_hashes(root, prompt)
        most_hits = (len(prompt) - 1) // width  # the last token is computed in any case
        hit_tokens = min(self._leading_hits(blocks), most_hits) * BLOCK_TOKENS
        for block in blocks:
            self._free.pop(block, None)
        self._holders.update(blocks)
        self._trim(used_tokens)
        self.queried_tokens += len(prompt) * BLOCK_TOKENS // width
        self.hit_tokens += hit_tokens
        return HeldBlocks(hit_tokens, blocks, root, prompt[len(blocks) * width :])

    def _leading_hits(self, blocks: list[int]) -> int:
        """How many blocks from the first on are in the cache."""
        for index, block in enumerate(blocks):
            if block not in self._holders and block not in self._free:
                return index
        return len(blocks)

    def give_back(self, held: HeldBlocks, answer: Prompt, used_tokens: int) -> None:
        """Free the blocks of a request that is over, and those of its answer, for later requests.
        The answer is of the prompt's type.
        """
        self._holders.subtract(held.blocks)
        if isinstance(held.tail, bytes) and isinstance(answer, bytes):
            text_after_blocks: Prompt = held.tail + answer
        else:
            text_after_blocks = [*held.tail, *answer]
        last_block = held.blocks[-1] if held.blocks else held.root
        for block in [*held.blocks, *_block_hashes(last_block, text_after_blocks)]:
            if self._holders[block] <= 0:
                del self._holders[block]
                self._free[block] = None
                self._free.move_to_end(block)
        self._trim(used_tokens)

    def _trim(self, used_tokens: int) -> None:
        """Forget the oldest free blocks, as far as running sequences leave no room for them."""
        most_blocks = max(0, self._capacity_tokens - used_tokens) // BLOCK_TOKENS
        while len(self._free) > most_blocks:
            self._free.popitem(last=False)

    def clear(self) -> None:
        """Forget every block that no running request holds; the counters go on."""
        self._free.clear()


def _block_width(prompt: Prompt) -> int:
    """Token ids of a block, or its bytes of text."""
    return BLOCK_TOKENS * 4 if isinstance(prompt, bytes) else BLOCK_TOKENS


def _block_hashes(before: int, prompt: Prompt) -> list[int]:
    """Hashes of the whole blocks of ``prompt``, each with all that stands before it. ``before``:
    hash of what stands before the first.
    """
    width = _block_width(prompt)
    hashes: list[int] = []
    for start in range(0, len(prompt) - width + 1, width):
        block = prompt[start : start + width]
        before = hash((before, block if isinstance(block, bytes) else tuple(block)))
        hashes.append(before)
    return hashes
