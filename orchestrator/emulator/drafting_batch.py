"""``Batch`` with speculative decoding: a step gives each sequence one token, and those of its drafts
that are accepted.

As in vLLM, all drafts count in ``max_num_batched_tokens``, and a step needs room for them in the KV
cache; what is rejected leaves it again. ``Batch`` takes many decode steps in one jump, because each
gives every sequence one token. With drafts each step gives other numbers of tokens, so they are
taken one by one.
"""

from __future__ import annotations

import random

import numpy as np

from orchestrator.base.arrays import Ints
from orchestrator.emulator.batch import PROMPT_STEP, Batch, GivenTokens, Sequence
from orchestrator.emulator.drafts import Drafts
from orchestrator.emulator.model import Replica
from orchestrator.emulator.step_costs import Chunk

_DRAWN_AT_ONCE = 4096


class DraftingBatch(Batch):
    """One data-parallel rank with drafts.

    The field ``earlier_tokens`` of its sequences counts all tokens that were given out so far, not
    only those before a preemption as in ``Batch``.
    """

    def __init__(self, replica: Replica, drafts: Drafts, seed: int | str = 0) -> None:
        """``seed``: of the jitter, and of which drafts are accepted."""
        super().__init__(replica, seed)
        self.tokens_per_decode = drafts.tokens + 1
        self._drafts = drafts
        self._random_drafts = np.random.default_rng(random.Random(f"{seed} drafts").getrandbits(64))
        # numbers of accepted drafts, drawn ahead as ``_normals`` is
        self._next_accepted: list[int] = []

    def earliest_end_s(self) -> float:
        """As in ``Batch``. The next step may end a sequence."""
        return self.clock

    def _decode_steps(self, max_steps: int, until_s: float) -> list[Sequence]:
        """Runs one step of decodes alone."""
        return self._step([])

    def _mixed_step(self, chunks: list[Chunk]) -> list[Sequence]:
        """Runs a step of decodes and prefill chunks."""
        return self._step(chunks)

    def _step(self, chunks: list[Chunk]) -> list[Sequence]:
        """Runs a step. Returns the sequences that finished."""
        decodes_pause = bool(chunks) and self.limits.prefill_first
        decoding = [] if decodes_pause else list(self.decoding)
        decodes = len(decoding)
        self.skipped_decodes = len(self.decoding) - decodes
        self.computed_tokens = decodes * self.tokens_per_decode
        self.computed_tokens += sum(chunk.tokens for chunk in chunks)
        context = self.context_tokens if decodes else 0
        windowed = self.window_tokens if decodes else 0.0
        step_s = self._drafts.step_s(decodes, context, windowed, chunks)
        self.clock += self._varied_s(step_s, 1)
        # the scheduler looks for new requests after every step with a prompt, as in ``Batch``
        self._steps_since_look += PROMPT_STEP if chunks else 1
        finished = self._give_out(decoding)
        begun = self._begin_decodes(finished)  # may add to ``finished``
        self._note_token_times(finished, begun)
        return finished

    def _give_out(self, decoding: list[Sequence]) -> list[Sequence]:
        """Gives each sequence the tokens of this step. Returns those that have all."""
        given_tokens = 0
        finished: list[Sequence] = []
        for sequence in decoding:
            remaining = sequence.output_tokens - sequence.earlier_tokens
            tokens = min(1 + self._accepted_drafts(), remaining)
            self._note(sequence, tokens)
            given_tokens += tokens
            if tokens == remaining:
                finished.append(sequence)
        self.context_tokens += given_tokens
        self._take(given_tokens)
        for sequence in finished:
            self._leave(sequence)
        return finished

    def _begin_decode(self, sequence: Sequence) -> bool:
        """As in ``Batch``: lets a sequence decode whose prefill gave a token. Returns True when that
        token was also its last one.
        """
        self._note(sequence, 1)
        remaining = sequence.output_tokens - sequence.earlier_tokens
        if remaining == 0:
            self._give_back(sequence.prefill_tokens)
            return True
        if self.costs.window:
            # on average a step finds half of the tokens that are still to come
            sequence.window_tokens = min(sequence.prefill_tokens + remaining / 2, self.costs.window)
            self.window_tokens += sequence.window_tokens
        self.decoding[sequence] = None
        self.context_tokens += sequence.prefill_tokens
        return False

    def _note(self, sequence: Sequence, tokens: int) -> None:
        """Notes that a sequence gives out tokens at the end of this step."""
        sequence.earlier_tokens += tokens
        if sequence.given is None:
            sequence.given = []
        sequence.given.append(GivenTokens(self.clock, tokens))

    def _context_of(self, sequence: Sequence) -> int:
        # the last token is not in the cache before the next step computes it
        return sequence.prompt_tokens + sequence.earlier_tokens - 1

    def _accepted_drafts(self) -> int:
        """How many drafts of the next sequence are accepted."""
        if not self._next_accepted:
            self._next_accepted = self._drawn_numbers().tolist()
        return self._next_accepted.pop()

    def _drawn_numbers(self) -> Ints:
        """Draws for _DRAWN_AT_ONCE sequences how many drafts come before the first rejected one."""
        drafts = self._drafts
        if drafts.acceptance >= 1:
            return np.full(_DRAWN_AT_ONCE, drafts.tokens)
        until_rejected = self._random_drafts.geometric(1 - drafts.acceptance, _DRAWN_AT_ONCE) - 1
        accepted: Ints = np.minimum(until_rejected, drafts.tokens)
        return accepted


def batch_of(replica: Replica, seed: int | str) -> Batch:
    """The batch of a rank, with drafts if its model has them."""
    if replica.drafts is not None:
        return DraftingBatch(replica, replica.drafts, seed)
    return Batch(replica, seed)
