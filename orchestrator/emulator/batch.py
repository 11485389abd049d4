"""Continuous batching with a virtual clock: which sequences a step holds, when it ends, who waits,
who is preempted.

The same object serves HTTP in real time (one step at a time) and simulates (many equal steps in one
jump). It follows the rules of vLLM's scheduler:

- Decodes come first, one token each. What is left of ``max_num_batched_tokens`` goes to chunks of
  prefills, in the order of arrival.
- A waiting request is admitted when a slot is free and its whole prompt fits the KV cache.
- When a decode finds no room, the newest sequence is preempted. Later it is computed again, except
  for those of its whole blocks that nobody has filled meanwhile. Of the free room, what was freed
  first is filled first; of a preempted sequence that is its last blocks.
- The scheduler looks for new requests before every step. With a ``recv_interval`` it looks as
  SGLang does: after so many steps of decodes alone, and after every step with a prompt.

The tokens of a step leave one after the other, ``token_interval_s`` apart, the middle one at the
step's end.
"""

import math
import random
from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from orchestrator.emulator.model import RankLimits, Replica
from orchestrator.emulator.prefix import BLOCK_TOKENS
from orchestrator.emulator.step_costs import Chunk

_NEVER = -1
# a step with a prompt counts as so many decode steps (SGLang's SchedulerRecvSkipper)
PROMPT_STEP = 1000


class Life(NamedTuple):
    """What a sequence gave out from a prefill to a preemption or to its end: the step of its first
    token, and how many tokens.
    """

    start_step: int
    tokens: int


class GivenTokens(NamedTuple):
    """Tokens that a sequence gave out at the end of a step, in seconds on the batch's clock."""

    at_s: float
    tokens: int


@dataclass(slots=True, eq=False)
class Sequence:
    """One request inside the batch. Times are seconds on the batch's clock, NaN until known."""

    ready_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int  # of the prompt, in the prefix cache
    owner: object  # what gets its tokens; the batch does not use it
    prefill_tokens: int  # the prompt, and after a preemption also what was generated before
    prefilled_tokens: int = 0
    earlier_tokens: int = 0  # given out before a preemption
    start_step: int = 0  # the step that gave its first token since the last prefill
    finish_step: int = _NEVER  # the step that gives its last token; _NEVER unless it decodes
    # tokens that a decode step reads in sliding-window layers, on average
    window_tokens: float = 0.0
    preemptions: int = 0
    scheduled_s: float = math.nan
    first_token_s: float = math.nan
    last_token_s: float = math.nan
    lives: list[Life] | None = None  # before the present one, if it was preempted
    # the tokens of each step, where one may give out several (drafting_batch.py); else None
    given: list[GivenTokens] | None = None

    def tokens_at(self, step: int) -> int:
        """Tokens given out by the end of ``step``."""
        if self.finish_step == _NEVER:
            return self.earlier_tokens
        return self.earlier_tokens + step - self.start_step + 1


class FreeRoom(NamedTuple):
    """Tokens of free KV cache. ``content_of``: the preempted sequence whose content is still there
    and can be used again; None: nobody needs what is there.
    """

    content_of: Sequence | None
    tokens: int


class Batch:
    """One data-parallel rank of a replica. Not thread-safe; pure but for its own state."""

    def __init__(self, replica: Replica, seed: int | str = 0) -> None:
        """``seed``: of the jitter. Batches of one seed vary alike, so each needs its own."""
        self.limits = replica.limits
        self.costs = replica.costs
        self.overhead_s = replica.request_overhead_s
        self.interval_s = replica.token_interval_s
        self._ready_s = -math.inf  # when the last request came to the scheduler
        self._looked_s = -math.inf  # when the scheduler last looked for new requests
        self._steps_since_look = 0
        self.tokens_per_decode = 1  # that a step computes of each sequence that decodes
        self.clock = 0.0  # end of the last step
        self.began_s = 0.0  # where the last steps began
        self.step = 0
        self.waiting: deque[Sequence] = deque()
        self.prefilling: deque[Sequence] = deque()
        self.decoding: dict[Sequence, None] = {}  # oldest first
        self.context_tokens = 0  # tokens that the next decode step reads
        self.window_tokens = 0.0  # those that it reads in sliding-window layers
        self.kv_used = 0
        # the oldest sequences of ``decoding`` that the last step gave no token
        self.skipped_decodes = 0
        self.preemptions = 0
        self.computed_tokens = 0  # in the last step
        self._jitter = replica.jitter
        self._random = np.random.default_rng(random.Random(seed).getrandbits(64))
        # drawn ahead, because one at a time they cost ten times as much
        self._normals: list[float] = []
        # The free KV cache in the order in which it is filled again. The order matters, and is kept,
        # only while preempted sequences have content there; else this is empty.
        self._free_room: deque[FreeRoom] = deque()
        # step -> the sequences that end with it, and a heap of these steps
        self._finishing: dict[int, list[Sequence]] = {}
        self._finish_steps: list[int] = []

    # --- requests in and out

    def submit(
        self,
        arrival_s: float,
        prompt_tokens: int,
        output_tokens: int,
        cached_tokens: int = 0,
        owner: object = None,
    ) -> Sequence:
        """Queues a request that ``refusal`` lets through. To be called in the order of arrival.

        Requests of one instant come to the scheduler one after the other, so an idle engine starts
        with the first of them alone.
        """
        self._ready_s = max(arrival_s + self.overhead_s, self._ready_s + self.interval_s)
        sequence = Sequence(
            ready_s=self._ready_s,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            cached_tokens=min(cached_tokens, prompt_tokens - 1),
            owner=owner,
            prefill_tokens=prompt_tokens,
        )
        self.waiting.append(sequence)
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        """Forgets a request whose client has gone. Does nothing once it is finished."""
        if sequence in self.decoding:
            self._leave(sequence)
        elif sequence in self.prefilling:
            self.prefilling.remove(sequence)
            self._give_back(sequence.prefill_tokens)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
            self._forget_content(sequence)

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not (self.decoding or self.prefilling or self.waiting)

    # --- time

    def earliest_end_s(self) -> float:
        """The instant before which no sequence that is here ends, whatever else arrives, unless it
        is cancelled.
        """
        if self._jitter or not self.decoding:
            return self.clock
        steps = self._finish_steps[0] - self.step
        for sequence in (*self.prefilling, *self.waiting):
            steps = min(steps, sequence.output_tokens - sequence.earlier_tokens)
        # The next steps may be shorter than a step of these decodes: prefills may go first, a
        # preemption may take decodes away, and more sequences may fill more pipeline stages. But no
        # step is shorter than that of one sequence without context.
        shortest = self.costs.decode(1, 0, 0.0)
        return self.clock + max(0, steps) * shortest.step_s

    def advance(self, max_steps: int = 2**31, until_s: float = math.inf) -> list[Sequence]:
        """Runs up to ``max_steps`` steps. Returns the sequences that finished in the last of them.

        Stops after a step that changes which sequences are in the batch, or that ends after
        ``until_s``; with jitter also some steps before ``until_s`` or the next arrival. Sets
        ``clock`` to the end of the last step. With nothing to run, the clock first moves on to the
        next arrival.
        """
        if not self.decoding and not self.prefilling:
            self.clock = max(self.clock, self.waiting[0].ready_s)
            self._steps_since_look = self.limits.recv_interval  # an idle engine looks all the time
        self.began_s = self.clock
        if self._steps_since_look >= self.limits.recv_interval:
            self._looked_s = self.clock
            self._steps_since_look = 0
        next_tokens = len(self.decoding) * self.tokens_per_decode
        if self.kv_used + next_tokens > self.limits.kv_tokens:
            self._make_room()
        if self.prefilling or (self.waiting and self.waiting[0].ready_s <= self._looked_s):
            chunks = self._schedule()
            if chunks:
                return self._mixed_step(chunks)
        return self._decode_steps(max_steps, until_s)

    def _make_room(self) -> None:
        """Preempts the newest sequences until every decode has room for its next tokens. One alone
        has room for all that it will give out.
        """
        while (
            len(self.decoding) + len(self.prefilling) > 1
            and self.kv_used + len(self.decoding) * self.tokens_per_decode > self.limits.kv_tokens
        ):
            if self.limits.prefix_caching and not self._free_room:
                # from here on the order of free room is kept; this room is free already
                self._free_room.append(FreeRoom(None, self.limits.kv_tokens - self.kv_used))
            if self.prefilling:
                victim = self.prefilling.pop()
                # its whole prompt had room since it was admitted; so far a part of it is computed
                self._give_back(victim.prefill_tokens - victim.prefilled_tokens)
                self._give_back(victim.prefilled_tokens, content_of=victim)
            else:
                victim = next(reversed(self.decoding))
                tokens_before_this_life = victim.earlier_tokens
                victim.earlier_tokens = victim.tokens_at(self.step)
                life = Life(victim.start_step, victim.earlier_tokens - tokens_before_this_life)
                victim.lives = [*(victim.lives or ()), life]
                self._leave(victim, may_return=True)
                victim.prefill_tokens = victim.prompt_tokens + victim.earlier_tokens
            victim.finish_step = _NEVER
            victim.prefilled_tokens = 0
            victim.cached_tokens = 0
            victim.preemptions += 1
            self.preemptions += 1
            self.waiting.appendleft(victim)

    def _give_back(self, tokens: int, content_of: Sequence | None = None) -> None:
        """Frees KV cache. ``content_of``: as in ``FreeRoom``."""
        self.kv_used -= tokens
        if self._free_room:
            self._free_room.append(FreeRoom(content_of, tokens))

    def _take(self, tokens: int) -> None:
        """Fills free KV cache; the room that was freed first is filled first."""
        self.kv_used += tokens
        while tokens > 0 and self._free_room:
            content_of, free_tokens = self._free_room.popleft()
            if free_tokens > tokens:
                self._free_room.appendleft(FreeRoom(content_of, free_tokens - tokens))
            tokens -= free_tokens

    def _reuse(self, sequence: Sequence, most_tokens: int) -> int:
        """Fills KV cache again with what is left of a preempted sequence's content, which lies in
        one piece. Returns the tokens: whole blocks, and at most ``most_tokens``. The rest of the
        content is given up.
        """
        reused = 0
        free_room: deque[FreeRoom] = deque()
        for room in self._free_room:
            if room.content_of is sequence:
                reused = min(room.tokens, most_tokens) // BLOCK_TOKENS * BLOCK_TOKENS
                room = FreeRoom(None, room.tokens - reused)
            free_room.append(room)
        has_content = any(room.content_of is not None for room in free_room)
        self._free_room = free_room if has_content else deque()
        self.kv_used += reused
        return reused

    def _forget_content(self, sequence: Sequence) -> None:
        """Gives up the content of a sequence that will not return: nobody else can use it."""
        self._reuse(sequence, most_tokens=0)

    def _schedule(self) -> list[Chunk]:
        """Hands out the step's token budget to prefills. Returns their chunks."""
        budget = self.limits.max_num_batched_tokens
        if not self.limits.prefill_first:
            budget -= len(self.decoding) * self.tokens_per_decode
        chunks: list[Chunk] = []
        for sequence in self.prefilling:
            budget = self._add_chunk(sequence, budget, chunks)
        while self.waiting and self._may_admit(self.waiting[0], budget):
            sequence = self.waiting.popleft()
            self.prefilling.append(sequence)
            reused = 0
            if sequence.preemptions:  # at least one token is computed, for the next one's logits
                reused = self._reuse(sequence, sequence.prefill_tokens - 1)
            self._take(sequence.prefill_tokens - reused)
            # after a preemption its own blocks count, else those of the prefix cache
            sequence.prefilled_tokens = reused or sequence.cached_tokens
            if math.isnan(sequence.scheduled_s):  # it was not preempted before
                sequence.scheduled_s = self.clock
            budget = self._add_chunk(sequence, budget, chunks)
        return chunks

    def _may_admit(self, sequence: Sequence, budget: int) -> bool:
        """Whether the scheduler has seen a waiting request and has room for it in this step."""
        return budget > 0 and sequence.ready_s <= self._looked_s and self._fits(sequence, budget)

    def _fits(self, sequence: Sequence, budget: int) -> bool:
        limits = self.limits
        running = len(self.decoding) + len(self.prefilling)
        if running == 0:
            # Alone in an empty engine a request that was accepted always runs. After a preemption its
            # prompt and its answer so far may exceed the budget even without chunked prefill.
            return True
        has_slot = running < limits.max_num_seqs
        next_tokens = (running + 1) * self.tokens_per_decode
        has_kv = self.kv_used + sequence.prefill_tokens + next_tokens <= limits.kv_tokens
        if not (has_slot and has_kv):
            return False
        return limits.chunked_prefill or sequence.prefill_tokens - sequence.cached_tokens <= budget

    @staticmethod
    def _add_chunk(sequence: Sequence, budget: int, chunks: list[Chunk]) -> int:
        """Adds the next chunk of a prefill, as far as the token budget reaches. Returns what is
        left of the budget.
        """
        tokens = min(sequence.prefill_tokens - sequence.prefilled_tokens, budget)
        if tokens > 0:
            chunks.append(Chunk(sequence.prefilled_tokens, tokens))
            sequence.prefilled_tokens += tokens
        return budget - tokens

    def _mixed_step(self, chunks: list[Chunk]) -> list[Sequence]:
        """Runs a step of decodes and prefill chunks. Returns the sequences that finished."""
        decodes_pause = self.limits.prefill_first and bool(self.decoding)
        self.skipped_decodes = len(self.decoding) if decodes_pause else 0
        decodes = len(self.decoding) - self.skipped_decodes
        self.computed_tokens = decodes + sum(chunk.tokens for chunk in chunks)
        if decodes:
            step_s = self.costs.mixed(decodes, self.context_tokens, self.window_tokens, chunks)
        else:
            step_s = self.costs.mixed(0, 0, 0.0, chunks)
        self.clock += self._varied_s(step_s, 1)
        self._steps_since_look += PROMPT_STEP
        if not decodes_pause:
            self.step += 1
            self.context_tokens += decodes
            self._take(decodes)
        finished = self._finished()
        begun = self._begin_decodes(finished)  # may add to ``finished``
        self._note_token_times(finished, begun)
        return finished

    def _begin_decodes(self, finished: list[Sequence]) -> list[Sequence]:
        """Lets the sequences decode whose prefill is done, and returns them. Those whose first
        token is their last one are added to ``finished``.
        """
        begun = []
        while (
            self.prefilling
            and self.prefilling[0].prefilled_tokens == self.prefilling[0].prefill_tokens
        ):
            sequence = self.prefilling.popleft()
            if self._begin_decode(sequence):
                finished.append(sequence)
            else:
                begun.append(sequence)
        return begun

    def _begin_decode(self, sequence: Sequence) -> bool:
        """Lets a sequence decode whose prefill is done and gave a token. Returns True when that
        token was also its last one.
        """
        remaining = sequence.output_tokens - sequence.earlier_tokens - 1
        sequence.start_step = self.step
        if remaining <= 0:
            self._give_back(sequence.prefill_tokens)
            return True
        finish_step = self.step + remaining
        sequence.finish_step = finish_step
        if self.costs.window:
            sequence.window_tokens = min(sequence.prefill_tokens + remaining / 2, self.costs.window)
            self.window_tokens += sequence.window_tokens
        self.decoding[sequence] = None
        self.context_tokens += sequence.prefill_tokens
        if finish_step in self._finishing:
            self._finishing[finish_step].append(sequence)
        else:
            self._finishing[finish_step] = [sequence]
            heappush(self._finish_steps, finish_step)
        return False

    def _decode_steps(self, max_steps: int, until_s: float) -> list[Sequence]:
        """Runs steps of decodes alone, as ``advance`` says. Returns the sequences that finished."""
        count = len(self.decoding)
        interval = self.limits.recv_interval
        self.computed_tokens = count
        self.skipped_decodes = 0
        first_s, growth_s = self.costs.decode(count, self.context_tokens, self.window_tokens)
        steps_to_finish = self._finish_steps[0] - self.step
        steps_to_full_kv = (self.limits.kv_tokens - self.kv_used) // count
        steps = min(max_steps, steps_to_finish, steps_to_full_kv)
        # The first request that waits ends the jump when it comes, if there is a slot for it. With
        # an interval a look must see it before it gets a slot, so its coming ends the jump even
        # where no slot is free; and once it has come, the jump ends at the next look.
        has_slot = count < self.limits.max_num_seqs
        if self.waiting and (has_slot or interval > 1):
            if self.waiting[0].ready_s > self.clock:
                until_s = min(until_s, self.waiting[0].ready_s)
            elif interval > 1:
                steps = min(steps, interval - self._steps_since_look)
        if steps > 1 and until_s < math.inf:
            due = _steps_in(max(0.0, until_s - self.clock), first_s, growth_s)
            # With jitter, when ``due`` steps end varies by ``jitter * sqrt(due)`` steps. The jump
            # ends three times that before ``until_s``, so that it is hardly ever too long.
            steps = min(steps, max(1, due - math.ceil(3 * self._jitter * math.sqrt(due))))
        steps_s = steps * first_s + growth_s * (steps * (steps - 1) / 2)
        self.clock += self._varied_s(steps_s, steps)
        self.step += steps
        # The scheduler looked after every ``interval`` steps of the jump. A look that is due at the
        # jump's end is made by the next ``advance``: the steps since the last look are from 1 to
        # ``interval``, not from 0 to ``interval`` - 1.
        self._steps_since_look = (self._steps_since_look + steps - 1) % interval + 1
        self.context_tokens += steps * count
        self._take(steps * count)
        finished = self._finished()
        self._note_token_times(finished, [])
        return finished

    def _varied_s(self, seconds: float, steps: int) -> float:
        """How long ``steps`` steps last this time, which take ``seconds`` on average: log-normal,
        the jitter of each step independent of the others.
        """
        if not self._jitter:
            return seconds
        if not self._normals:
            self._normals = self._random.standard_normal(256).tolist()
        variance = math.log1p(self._jitter**2 / steps)
        return seconds * math.exp(math.sqrt(variance) * self._normals.pop() - variance / 2)

    def _finished(self) -> list[Sequence]:
        """Takes the sequences that end with this step out of the batch, and returns them."""
        step = self.step
        if not self._finish_steps or self._finish_steps[0] != step:
            return []
        heappop(self._finish_steps)
        # A sequence that was preempted or cancelled is still listed here, and is listed twice if it
        # came back to the same step.
        listed = dict.fromkeys(self._finishing.pop(step))
        finished = [sequence for sequence in listed if sequence.finish_step == step]
        for sequence in finished:
            self._leave(sequence)
        return finished

    def instant_of(self, place: int, finished: list[Sequence]) -> float:
        """When the token at ``place`` of the last step leaves. The sequences of ``decoding`` have
        the first places, oldest first; those of ``finished`` follow.
        """
        tokens = len(self.decoding) - self.skipped_decodes + len(finished)
        return self.clock + (place - (tokens - 1) / 2) * self.interval_s

    def _note_token_times(self, finished: list[Sequence], begun: list[Sequence]) -> None:
        """Notes when the first tokens of ``begun`` leave, and the last ones of ``finished``."""
        if not finished and not begun:
            return
        # places as in ``instant_of``: those that began in this step are the newest of ``decoding``,
        # and ``finished`` follows them
        first_begun = len(self.decoding) - self.skipped_decodes - len(begun)
        when_s = self.instant_of(first_begun, finished)
        for index, sequence in enumerate(begun + finished):
            if math.isnan(sequence.first_token_s):  # it had none before a preemption either
                sequence.first_token_s = when_s
            if index >= len(begun):
                sequence.last_token_s = when_s
            when_s += self.interval_s

    def _leave(self, sequence: Sequence, may_return: bool = False) -> None:
        """Takes a sequence out of those that decode. ``may_return``: it was preempted, and may find
        its content again.
        """
        context_tokens = self._context_of(sequence)
        del self.decoding[sequence]
        sequence.finish_step = _NEVER
        self.context_tokens -= context_tokens
        self._give_back(context_tokens, content_of=sequence if may_return else None)
        self.window_tokens -= sequence.window_tokens

    def _context_of(self, sequence: Sequence) -> int:
        """Tokens of a sequence that decodes in the KV cache."""
        return sequence.prefill_tokens + self.step - sequence.start_step


def refusal(limits: RankLimits, prompt_tokens: int, output_tokens: int) -> str | None:
    """Why a request can never run; None when it can. ``Batch.submit`` takes only those that can."""
    total = prompt_tokens + output_tokens
    if total > limits.max_model_len:
        return (
            f"This model's maximum context length is {limits.max_model_len} tokens. However, you "
            f"requested {total} tokens ({prompt_tokens} in the prompt, {output_tokens} in the "
            "completion)."
        )
    if total > limits.kv_tokens:
        return f"The request needs {total} tokens of KV cache, the engine has {limits.kv_tokens}."
    if not limits.chunked_prefill and prompt_tokens > limits.max_num_batched_tokens:
        return (
            f"The prompt exceeds max_num_batched_tokens={limits.max_num_batched_tokens} "
            "without chunked prefill."
        )
    return None


def _steps_in(span_s: float, first_s: float, growth_s: float) -> int:
    """Fewest steps that last ``span_s``, the k-th of them ``first_s + k * growth_s`` long."""
    if growth_s <= 0:
        return max(1, math.ceil(span_s / first_s))
    # n steps last n * linear + n**2 * half
    half = growth_s / 2
    linear = first_s - growth_s / 2
    steps = (math.sqrt(linear * linear + 4 * half * span_s) - linear) / (2 * half)
    return max(1, math.ceil(steps))
