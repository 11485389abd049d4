"""Takes the steps of ``emulator/batch.py: Batch`` for one rank in a single loop. It finds the same
times to the last digit, in a quarter of the time.

The loop covers what most ranks do. If a rank does more (a preemption, tables of kernels, a sliding
window, a look for new requests only now and then, prompts that go before decodes), the loop gives
up, and the caller uses ``Batch``. ``tests/unit/predict/test_rank_loop.py`` compares the two.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import chain
from math import ceil, inf, sqrt
from operator import add
from typing import NamedTuple

import numpy as np

from orchestrator.emulator.model import Replica
from orchestrator.emulator.step_costs import Costs
from orchestrator.predict.limit_ranges import LimitRange, LimitRanges

NORMALS_AT_ONCE = 256  # as ``Batch`` draws them


class Arrival(NamedTuple):
    """A request: when it arrives, in seconds, and the tokens of its prompt and of its output."""

    arrival_s: float
    prompt: int
    output: int


# what follows a request of a closed loop that ended at this instant; None if nothing does
Follow = Callable[[float], Arrival | None]


@dataclass(frozen=True, slots=True)
class ServedTimes:
    """When each request arrived, was scheduled, and when its first and last token came, in
    seconds. ``same_under``: the limits under which all these times are the same.
    """

    arrival_s: list[float]
    scheduled_s: list[float]
    first_token_s: list[float]
    last_token_s: list[float]
    same_under: LimitRanges


@dataclass(frozen=True, slots=True)
class _NeededLimits:
    """Of each limit the lowest value that a run did not reach; more than the limit if it did."""

    max_num_seqs: int
    max_num_batched_tokens: int
    kv_tokens: int


def is_covered(model: Replica) -> bool:
    """Whether ``serve`` may simulate a rank of this model."""
    limits = model.limits
    return (
        isinstance(model.costs, Costs)
        and not model.costs.window
        and not limits.prefill_first
        and limits.recv_interval == 1
        and limits.max_requests is None
    )


def serve(
    model: Replica,
    seed: int | str,
    arrivals_s: list[float],
    prompts: list[int],
    outputs: list[int],
    follow: Follow | None = None,
) -> ServedTimes | None:
    """Serves requests that the rank does not refuse, in the order in which they arrive; None if the
    KV cache overflows, which only ``Batch`` simulates. ``seed``: the seed of the jitter.
    ``follow``: given for a closed loop; the requests that follow are added to the lists.
    """
    requests = _Requests(model, arrivals_s, prompts, outputs, follow)
    needed = _take_steps(model, requests, _normals(seed))
    return requests.times(_same_under(model, requests, needed)) if needed is not None else None


def _same_under(model: Replica, requests: _Requests, needed: _NeededLimits) -> LimitRanges:
    limits = model.limits
    lengths = map(add, requests.prompts, requests.outputs)
    longest = max(lengths, default=0)  # that is not refused
    return LimitRanges(
        chunked_prefill=limits.chunked_prefill,
        max_model_len=LimitRange.of(limits.max_model_len, longest),
        max_num_seqs=LimitRange.of(limits.max_num_seqs, needed.max_num_seqs),
        max_num_batched_tokens=LimitRange.of(
            limits.max_num_batched_tokens, needed.max_num_batched_tokens
        ),
        kv_tokens=LimitRange.of(limits.kv_tokens, max(longest, needed.kv_tokens)),
    )


def _take_steps(  # noqa: C901, PLR0912  (a call costs as much as a whole step)
    model: Replica, requests: _Requests, normals: Iterator[float]
) -> _NeededLimits | None:
    """Take steps until all requests are served. Returns None if the KV cache overflows.

    ``normals``: of the jitter. The names are those of ``Batch``. Requests are numbers: their places
    in the lists of ``requests``.
    """
    costs = model.costs
    assert isinstance(costs, Costs)
    kv_tokens = model.limits.kv_tokens
    max_num_seqs = model.limits.max_num_seqs
    max_num_batched_tokens = model.limits.max_num_batched_tokens
    chunked_prefill = model.limits.chunked_prefill
    interval_s = model.token_interval_s
    without_attention = costs.without_attention
    stages = costs.stages
    context_s = costs.context_s
    of_chunks = partial(_seconds_with_chunks, costs)
    jitter = model.jitter
    # local names are looked up several times faster than the names of modules
    exp, push, pop = math.exp, heappush, heappop
    variations: dict[int, tuple[float, float]] = {}  # number of steps -> ``_variation`` of them
    steps_alone_s: dict[int, float] = {}  # decodes -> seconds of a step without the attention

    prompts = requests.prompts
    outputs = requests.outputs
    ready_s = requests.ready_s
    start_steps = requests.start_steps
    scheduled_s = requests.scheduled_s
    first_token_s = requests.first_token_s
    last_token_s = requests.last_token_s
    add_followers = requests.add_followers if requests.are_followed else None

    clock = 0.0
    step = 0
    context = 0
    kv_used = 0
    decodes = 0
    waiting = 0  # index of the first request that waits; those after it wait, too
    prefilling: deque[list[int]] = deque()  # index of a request, computed tokens of its prompt
    finishing: dict[int, list[int]] = {}
    finish_steps: list[int] = []
    # the lowest limits that no step so far has reached; more than the limits where one has
    needed_seqs = needed_tokens = needed_kv = 1

    while True:
        if not decodes and not prefilling:
            if ready_s[waiting] == inf:
                return _NeededLimits(needed_seqs, needed_tokens, needed_kv)
            if ready_s[waiting] > clock:
                clock = ready_s[waiting]
        if kv_used + decodes > kv_tokens:
            return None
        chunks: list[tuple[int, int]] = []  # tokens computed before the chunk, tokens of the chunk
        if prefilling or ready_s[waiting] <= clock:
            budget = max_num_batched_tokens - decodes
            for prefill in prefilling:
                done = prefill[1]
                tokens = min(prompts[prefill[0]] - done, budget)
                if tokens > 0:
                    chunks.append((done, tokens))
                    prefill[1] = done + tokens
                budget -= tokens
            while budget > 0 and ready_s[waiting] <= clock:
                prompt = prompts[waiting]
                running = decodes + len(prefilling)
                if running + 2 > needed_seqs:
                    needed_seqs = running + 2
                kv_with_prompt = kv_used + prompt + running + 1
                if kv_with_prompt > needed_kv:
                    needed_kv = kv_with_prompt
                if running < max_num_seqs and kv_with_prompt <= kv_tokens:
                    if not chunked_prefill and prompt > budget:
                        needed_tokens = max_num_batched_tokens + 1
                        break
                elif running:
                    break
                tokens = prompt if prompt < budget else budget
                prefilling.append([waiting, tokens])
                kv_used += prompt
                scheduled_s[waiting] = clock
                chunks.append((0, tokens))
                budget -= tokens
                waiting += 1
            if max_num_batched_tokens - budget >= needed_tokens:
                needed_tokens = max_num_batched_tokens - budget + 1
        if not chunks:
            alone_s = steps_alone_s.get(decodes)
            if alone_s is None:
                alone_s = steps_alone_s[decodes] = without_attention(decodes, decodes)
            if stages == 1:
                first_s = alone_s + context * context_s
                growth_s = decodes * context_s
            else:
                in_flight = min(stages, decodes)
                first_s = alone_s + context * context_s / in_flight
                growth_s = decodes * context_s / in_flight
            steps = finish_steps[0] - step
            kv_at_finish = kv_used + steps * decodes
            if kv_at_finish > needed_kv:
                needed_kv = kv_at_finish
            if kv_at_finish > kv_tokens:
                steps = (kv_tokens - kv_used) // decodes
            if steps > 1 and decodes < max_num_seqs:
                span_s = ready_s[waiting] - clock
                if 0 < span_s < inf:
                    due = _steps_within(span_s, first_s, growth_s, jitter)
                    if due < steps:
                        steps = due
            step_s = steps * first_s + growth_s * (steps * (steps - 1) / 2)
            if jitter:
                variation = variations.get(steps)
                if variation is None:
                    variation = variations[steps] = _variation(jitter, steps)
                step_s *= exp(variation[0] * next(normals) - variation[1])
            clock += step_s
            step += steps
            context += steps * decodes
            kv_used += steps * decodes
            if finish_steps[0] != step:
                continue
            pop(finish_steps)
            finished = finishing.pop(step)
            for request in finished:
                tokens = prompts[request] + step - start_steps[request]
                context -= tokens
                kv_used -= tokens
            tokens = decodes
            decodes -= len(finished)
            when_s = clock + (decodes - (tokens - 1) / 2) * interval_s
            for request in finished:
                last_token_s[request] = when_s
                when_s += interval_s
            if add_followers is not None:
                add_followers(finished)
            continue

        step_s = of_chunks(decodes, context, chunks)
        if jitter:
            variation = variations.get(1)
            if variation is None:
                variation = variations[1] = _variation(jitter, 1)
            step_s *= exp(variation[0] * next(normals) - variation[1])
        clock += step_s
        step += 1
        context += decodes
        kv_used += decodes
        if kv_used > needed_kv:
            needed_kv = kv_used
        finished = []
        begun: list[int] = []
        if finish_steps and finish_steps[0] == step:
            pop(finish_steps)
            finished = finishing.pop(step)
            for request in finished:
                tokens = prompts[request] + step - start_steps[request]
                context -= tokens
                kv_used -= tokens
            decodes -= len(finished)
        while prefilling and prefilling[0][1] == prompts[prefilling[0][0]]:
            request = prefilling.popleft()[0]
            start_steps[request] = step
            if outputs[request] <= 1:
                kv_used -= prompts[request]
                finished.append(request)
                continue
            begun.append(request)
            decodes += 1
            context += prompts[request]
            finish_step = step + outputs[request] - 1
            if finish_step in finishing:
                finishing[finish_step].append(request)
            else:
                finishing[finish_step] = [request]
                push(finish_steps, finish_step)
        tokens = decodes + len(finished)
        when_s = clock + (decodes - len(begun) - (tokens - 1) / 2) * interval_s
        for request in begun:
            first_token_s[request] = when_s
            when_s += interval_s
        for request in finished:
            if outputs[request] <= 1:
                first_token_s[request] = when_s
            last_token_s[request] = when_s
            when_s += interval_s
        if add_followers is not None and finished:
            add_followers(finished)


class _Requests:
    """The requests of a rank in the order in which they arrive, and when each was served.

    ``ready_s``: when each reaches the scheduler; the last entry is infinite. ``start_steps``: the
    step after which each had its first token. Times are in seconds, NaN until they are known.
    """

    __slots__ = (
        "_follow",
        "_interval_s",
        "_overhead_s",
        "arrivals_s",
        "first_token_s",
        "last_token_s",
        "outputs",
        "prompts",
        "ready_s",
        "scheduled_s",
        "start_steps",
    )

    def __init__(
        self,
        model: Replica,
        arrivals_s: list[float],
        prompts: list[int],
        outputs: list[int],
        follow: Follow | None,
    ) -> None:
        count = len(arrivals_s)
        self._interval_s = model.token_interval_s
        self._overhead_s = model.request_overhead_s
        self._follow = follow
        self.arrivals_s = arrivals_s
        self.prompts = prompts
        self.outputs = outputs
        self.ready_s = _ready_s(model, arrivals_s)
        self.start_steps = [0] * count
        self.scheduled_s = [math.nan] * count
        self.first_token_s = [math.nan] * count
        self.last_token_s = [math.nan] * count

    @property
    def are_followed(self) -> bool:
        """Whether other requests may follow those that end, as in a closed loop."""
        return self._follow is not None

    def times(self, same_under: LimitRanges) -> ServedTimes:
        return ServedTimes(
            self.arrivals_s, self.scheduled_s, self.first_token_s, self.last_token_s, same_under
        )

    def add_followers(self, finished: list[int]) -> None:
        """Add the requests that follow these in a closed loop."""
        assert self._follow is not None
        for request in finished:
            following = self._follow(self.last_token_s[request])
            if following is not None:
                self._add(following)

    def _add(self, following: Arrival) -> None:
        ready_s = self.ready_s
        self.arrivals_s.append(following.arrival_s)
        self.prompts.append(following.prompt)
        self.outputs.append(following.output)
        ready_s[-1] = following.arrival_s + self._overhead_s
        if len(ready_s) > 1:
            ready_s[-1] = max(ready_s[-1], ready_s[-2] + self._interval_s)
        ready_s.append(math.inf)
        self.start_steps.append(0)
        for times in (self.scheduled_s, self.first_token_s, self.last_token_s):
            times.append(math.nan)


def _seconds_with_chunks(
    costs: Costs, decodes: int, context: int, chunks: list[tuple[int, int]]
) -> float:
    """Seconds of a step with chunks of prompts. ``context``: tokens that its decodes attend to.
    ``chunks``: of each, the tokens of its prompt that were computed before, and its own.
    """
    context_s = costs.context_s
    attend_s = costs.attend_s
    tokens = decodes
    attention_s = context * context_s
    for start, chunk_tokens in chunks:
        tokens += chunk_tokens
        computed_s = chunk_tokens * (start + chunk_tokens / 2) * attend_s
        read_s = start * context_s
        attention_s += computed_s if computed_s > read_s else read_s
    sequences = decodes + len(chunks)
    step_s = costs.prefill_s + costs.without_attention(sequences, tokens)
    if costs.stages == 1:
        return step_s + attention_s
    return step_s + attention_s / min(costs.stages, sequences)


def _steps_within(span_s: float, first_s: float, growth_s: float, jitter: float) -> int:
    """How many steps that only decode can be taken at once before a request comes in ``span_s``
    seconds: with jitter, some fewer than are expected to fit. At least 1.

    ``first_s``: seconds of the first step. ``growth_s``: by how many each later one is longer.
    """
    if growth_s <= 0:
        due = ceil(span_s / first_s)
    else:
        half = growth_s / 2
        linear = first_s - half
        root = sqrt(linear * linear + 4 * half * span_s)
        due = ceil((root - linear) / (2 * half))
    if due < 1:
        due = 1
    if jitter:
        due -= ceil(3 * jitter * sqrt(due))
        if due < 1:
            due = 1
    return due


def _ready_s(model: Replica, arrivals_s: Sequence[float]) -> list[float]:
    """When each request reaches the scheduler, in seconds; the last entry is infinite."""
    ready_s: list[float] = []
    before_s = -math.inf
    for arrival_s in arrivals_s:
        before_s = max(arrival_s + model.request_overhead_s, before_s + model.token_interval_s)
        ready_s.append(before_s)
    return [*ready_s, math.inf]


def _normals(seed: int | str) -> Iterator[float]:
    """Standard normal numbers without end, in the order in which ``Batch`` takes them."""
    return chain.from_iterable(_draws(seed))  # in C, once for each step


def _draws(seed: int | str) -> Iterator[Iterator[float]]:
    generator = np.random.default_rng(random.Random(seed).getrandbits(64))
    while True:
        yield reversed(generator.standard_normal(NORMALS_AT_ONCE).tolist())


def _variation(jitter: float, steps: int) -> tuple[float, float]:
    """The standard deviation of the logarithm of the length of ``steps`` steps, and half its
    square.
    """
    variance = math.log1p(jitter**2 / steps)
    return math.sqrt(variance), variance / 2
