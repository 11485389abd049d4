"""The prefix cache of one data-parallel rank, as in vLLM: it holds the blocks that prompts and
answers leave behind.
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
    root: int  # the hash before the first block
    tail: Prompt  # what follows the last whole block of the prompt


class PrefixCache:
    """Blocks, each known by a hash of its content and of everything before it.

    Blocks that running requests hold stay. The others are free; the oldest of them are dropped when
    running sequences need the room.
    """

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity_tokens = capacity_tokens
        self._holders: Counter[int] = Counter()  # running requests that hold a block
        self._free: OrderedDict[int, None] = OrderedDict()  # oldest first
        self.queried_tokens = 0
        self.hit_tokens = 0

    def take(self, prompt: Prompt, salt: str, used_tokens: int) -> HeldBlocks:
        """Takes the blocks of a prompt that comes in. From now on, requests with the same ``salt``
        find them in the cache.

        ``used_tokens``, here and in ``give_back``: tokens in the KV cache of running sequences.
        """
        root = hash(salt)
        width = BLOCK_TOKENS * _token_length(prompt)
        blocks = _block_hashes(root, prompt)
        most_hits = (len(prompt) - 1) // width  # the last token is computed in any case
        hit_tokens = min(self._leading_hits(blocks), most_hits) * BLOCK_TOKENS
        for block in blocks:
            self._free.pop(block, None)
        self._holders.update(blocks)
        self._trim(used_tokens)
        self.queried_tokens += len(prompt) // _token_length(prompt)
        self.hit_tokens += hit_tokens
        return HeldBlocks(hit_tokens, blocks, root, prompt[len(blocks) * width :])

    def _leading_hits(self, blocks: list[int]) -> int:
        """How many of these blocks, from the first on, are in the cache."""
        for index, block in enumerate(blocks):
            if block not in self._holders and block not in self._free:
                return index
        return len(blocks)

    def give_back(self, held: HeldBlocks, answer: Prompt, used_tokens: int) -> None:
        """Leaves the blocks of a request that is over, and those of its answer, to later requests.
        The answer has the prompt's type. Its last token is in no block: an engine computes a token
        into the cache when it makes the one after it.

        Its last blocks are dropped first, as in vLLM: the first ones are of use without them.
        """
        self._holders.subtract(held.blocks)
        answer = answer[: max(0, len(answer) - _token_length(answer))]
        if isinstance(held.tail, bytes) and isinstance(answer, bytes):
            text_after_blocks: Prompt = held.tail + answer
        else:
            text_after_blocks = [*held.tail, *answer]
        last_block = held.blocks[-1] if held.blocks else held.root
        blocks = [*held.blocks, *_block_hashes(last_block, text_after_blocks)]
        for block in reversed(blocks):
            if self._holders[block] <= 0:
                # that of an answer may be absent, which a Counter allows
                del self._holders[block]
                self._free[block] = None
                self._free.move_to_end(block)
        self._trim(used_tokens)

    def _trim(self, used_tokens: int) -> None:
        """Drops the oldest free blocks for which running sequences leave no room."""
        most_blocks = max(0, self._capacity_tokens - used_tokens) // BLOCK_TOKENS
        while len(self._free) > most_blocks:
            self._free.popitem(last=False)

    def clear(self) -> None:
        """Drops every block that no running request holds. The counters are kept."""
        self._free.clear()


def _token_length(prompt: Prompt) -> int:
    """What a token takes in a prompt: one id, or 4 bytes of text."""
    return 4 if isinstance(prompt, bytes) else 1


def _block_hashes(before: int, prompt: Prompt) -> list[int]:
    """The hash of each whole block of ``prompt`` and of everything before that block. ``before``:
    the hash of what precedes the first block.
    """
    width = BLOCK_TOKENS * _token_length(prompt)
    hashes: list[int] = []
    for start in range(0, len(prompt) - width + 1, width):
        block = prompt[start : start + width]
        before = hash((before, block if isinstance(block, bytes) else tuple(block)))
        hashes.append(before)
    return hashes
