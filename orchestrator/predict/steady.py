"""Finds steady states of one data-parallel rank in closed form. It takes microseconds to find what
``simulate`` would show of a long run.

The state is the number b of sequences that decode at once. A request decodes for one step per token
after its first, so b / tokens requests end, and as many prompts come, in each step (Little's law).
With Poisson arrivals, the share of steps that hold a prompt is 1 - exp(-b / tokens). Waiting for
prefills is M/G/1 (Pollaczek and Khinchine); waiting for a free slot in open loop follows Halfin and
Whitt (Operations Research 29(3), 1981). Preemptions are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from orchestrator.analysis.requests import RequestParts
from orchestrator.base.arrays import Floats
from orchestrator.emulator.model import Replica
from orchestrator.emulator.step_costs import Chunk
from orchestrator.spec.load import Control

SAMPLES = 256  # requests that stand for a workload
# Each sampled request has its own quantiles, which are the same in every state.
_shuffled = np.random.default_rng(0).permutation
_STRATA = (np.arange(SAMPLES) + 0.5) / SAMPLES
_ARRIVAL_IN_STEP = _shuffled(_STRATA)  # how far the step that runs still has to go
_KIND_OF_STEP = _shuffled(_STRATA)  # whether that step holds a prompt
_SLOT_WAIT = _shuffled(_STRATA)
_QUEUE_WAIT = _shuffled(_STRATA)
_TOKEN_TIME = ndtri(_shuffled(_STRATA))  # in standard deviations of a normal distribution
_FULL = 0.98  # share of the token budget beyond which queues grow without end
# Outputs whose lengths vary by less than this share end together, so that in a closed loop the next
# requests begin together.
_ALIKE = 0.05
_NO_LIMIT = 1 << 30  # tokens of a step without chunked prefill
_FEW_RUNNING = 4  # with fewer sequences than this a request may find the rank idle
_RARE = 0.01  # a share that is too small to matter
_FREE_SLOTS = 6  # standard deviations of free slots beyond which no request waits for one


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """``SAMPLES`` requests that stand for a workload: their prompt tokens that must be computed,
    those that the prefix cache has, and their output tokens. ``parts``: the parts of a mix that
    they are of; None for other workloads.
    """

    prompt: Floats
    cached: Floats
    output: Floats
    parts: RequestParts | None = None


@dataclass(frozen=True, slots=True)
class State:
    """What a rank does while ``running`` sequences decode at once."""

    running: float
    rate: float  # requests/s
    step_s: float  # mean of all steps
    decode_s: float  # mean of steps without prompts
    mixed_s: float  # mean of steps with prompts
    mixed_share: float  # share of steps that hold prompts
    prompt_token_s: float  # seconds that a token of a prompt adds to a step
    prefilling: float  # share of the time in which prompts are being prefilled


@dataclass(frozen=True, slots=True)
class _PromptLoad:
    """The prompts in a step that holds any."""

    chunks: list[Chunk]
    tokens: float  # mean number of tokens in all chunks together
    step_share: float  # share of steps that hold prompts


@dataclass(frozen=True, slots=True)
class _MeanRequest:
    """What an average request of a demand asks of a rank, in tokens and steps.

    ``steps``: those of its decode, after the prefill. ``context``: the tokens that a sequence
    attends to, on average over all steps; ``windowed``: the same with an attention window.
    ``prompt``: tokens to prefill. ``cached``: tokens of its prompt that are cached.
    ``unevenness``: mean square of the prompts over the square of their mean; 1 if all prompts have
    the same length.
    """

    steps: float
    context: float
    windowed: float
    prompt: float
    cached: float
    unevenness: float

    @classmethod
    def of(cls, demand: Demand, window: float) -> _MeanRequest:
        output = demand.output
        # a request counts as often as it has output tokens, each time with its prompt and half of
        # its output
        share = output / output.sum()
        half_way = demand.prompt + demand.cached + output / 2
        prompt = float(demand.prompt.mean())
        return cls(
            steps=max(0.5, float(output.mean()) - 1),
            context=float((share * half_way).sum()),
            windowed=float((share * np.minimum(half_way, window)).sum()),
            prompt=prompt,
            cached=float(demand.cached.mean()),
            unevenness=float((demand.prompt**2).mean()) / prompt**2,
        )


class Rank:
    """One data-parallel rank of a replica under a demand. ``most``: how many sequences can run at
    once.
    """

    def __init__(self, model: Replica, demand: Demand, control: Control) -> None:
        self._demand = demand
        self._is_open = control == "request_rate"
        self._costs = model.costs
        self._overhead_s = model.request_overhead_s

        self._mean = _MeanRequest.of(demand, model.costs.window)
        has_like_outputs = float(demand.output.std()) < _ALIKE * float(demand.output.mean())
        self._is_lockstep = not self._is_open and has_like_outputs

        limits = model.limits
        self._prefill_first = limits.prefill_first
        self._recv_interval = limits.recv_interval
        self._budget = limits.max_num_batched_tokens if limits.chunked_prefill else _NO_LIMIT
        # Of a step's token budget, a running sequence takes one token and, because each that ends
        # is followed by a new prompt, its share of the prompts.
        tokens_per_sequence = 1 + self._mean.prompt / self._mean.steps
        most_by_budget = _FULL * limits.max_num_batched_tokens / tokens_per_sequence
        most_by_memory = limits.kv_tokens / self._mean.context
        self.most = min(limits.max_num_seqs, most_by_memory, max(1.0, most_by_budget))
        self.at = lru_cache(maxsize=256)(self._at)  # the states are needed again and again

    @cached_property
    def full(self) -> State:
        """The state at its highest throughput."""
        return self.at(self.most)

    def _at(self, running: float) -> State:
        """The state in which so many sequences decode at once."""
        decodes = max(1, round(running))
        context = round(decodes * self._mean.context)
        windowed = decodes * self._mean.windowed
        decode_s = self._costs.mixed(decodes, context, windowed, [])
        budget = self._budget if self._prefill_first else max(1, self._budget - decodes)
        prompts = self._prompts_of_a_step(running, budget)
        if self._prefill_first:  # prompts have steps of their own, which delay the next decode
            mixed_s = self._costs.mixed(0, 0, 0.0, prompts.chunks) + decode_s
        else:
            mixed_s = self._costs.mixed(decodes, context, windowed, prompts.chunks)
        step_s = (1 - prompts.step_share) * decode_s + prompts.step_share * mixed_s
        rate = running / (self._mean.steps * step_s)
        prompt_token_s = (mixed_s - decode_s) / prompts.tokens
        prompt_tokens_per_s = rate * self._mean.prompt
        prefilling = prompt_tokens_per_s * (prompt_token_s + decode_s / budget)
        return State(
            running=running,
            rate=rate,
            step_s=step_s,
            decode_s=decode_s,
            mixed_s=mixed_s,
            mixed_share=prompts.step_share,
            prompt_token_s=prompt_token_s,
            prefilling=min(_FULL, prefilling),
        )

    def _prompts_of_a_step(self, running: float, budget: int) -> _PromptLoad:
        """The prompts in a step that holds any, while ``running`` sequences decode.

        ``budget``: the tokens of prompts that a step has room for.
        """
        chunks_per_prompt = max(1, math.ceil(self._mean.prompt / budget))
        tokens = self._mean.prompt / chunks_per_prompt  # of a chunk
        # chunks that come in a step, on average
        due = chunks_per_prompt * running / self._mean.steps
        together = 1.0  # a prompt of several chunks fills a step by itself
        if chunks_per_prompt == 1:
            together = self._chunks_together(running, due, budget / tokens)
        start = round(self._mean.cached + (self._mean.prompt - tokens) / 2)
        chunks = [Chunk(start, round(tokens))] * int(together)
        tokens_of_last = round(together % 1 * tokens)
        if tokens_of_last:
            chunks.append(Chunk(start, tokens_of_last))
        return _PromptLoad(chunks, tokens * together, min(1.0, due / together))

    def _chunks_together(self, running: float, due: float, room: float) -> float:
        """The mean number of chunks in a step that holds any, at most ``room``. ``due``: how many
        come in a step, on average.
        """
        if self._is_lockstep:
            return min(max(1.0, min(running, room)), room)
        # mean of a Poisson distribution without its zero
        seen = due * self._recv_interval  # chunks that one look for new requests finds
        return min(max(1.0, seen / -math.expm1(-seen)), room)

    def _unqueued_ttft_s(self, state: State) -> float:
        """Mean TTFT in seconds, without waiting for a slot."""
        return float(self._ttft(state).mean())

    def in_flight(self, state: State) -> float:
        """The mean number of requests that run or are being prefilled."""
        return state.running + state.rate * self._unqueued_ttft_s(state)

    def level(self, state: State) -> float:
        """The load that leads to a state: requests/s in open loop, else requests in flight."""
        return state.rate if self._is_open else self.in_flight(state)

    def under(self, level: float) -> State | None:
        """The state at a load; None if the rank cannot keep up with the load, in open loop."""
        if level >= self.level(self.full):
            return None if self._is_open else self.full
        least = min(1e-6, self.most)
        if level <= self.level(self.at(least)):
            return self.at(least)

        def excess(running: float) -> float:
            return self.level(self.at(running)) - level

        return self.at(float(brentq(excess, least, self.most, rtol=5e-3)))

    @property
    def parts(self) -> RequestParts | None:
        """The parts of a mix that the sampled requests are of."""
        return self._demand.parts

    def latencies(self, state: State, level: float) -> dict[str, Floats]:
        """The latencies of every sampled request at a load, in seconds, by the names of limits
        (analysis/slo.py).
        """
        output = self._demand.output
        if self._is_open:
            ttft = self._ttft(state) + self._slot_wait_s(state)
        else:
            waiting = max(0.0, level - self.in_flight(state))
            ttft = self._ttft(state) + waiting / state.rate
        tpot = self._tpot(state)
        longest_s = state.mixed_s if state.mixed_share > _RARE else state.decode_s
        return {
            "ttft": ttft,
            "tpot": tpot,
            "e2e": ttft + (output - 1) * tpot,
            "itl_p99": np.full(SAMPLES, longest_s),
            "normalized_ttft": ttft / (self._demand.prompt + self._demand.cached),
        }

    def _tpot(self, state: State) -> Floats:
        """Mean seconds of a step over the life of each sampled request. They are taken as normally
        distributed: they vary with how many of the request's steps hold prompts and, in open loop,
        with how many sequences run beside it.
        """
        tokens = np.maximum(1, self._demand.output)
        prompt_s = self._mean.prompt * state.prompt_token_s
        share = state.mixed_share
        variance = share * (1 - share) * self._mean.unevenness * prompt_s**2 / tokens
        if self._is_open:
            # The number of running sequences is Poisson distributed. The variance of its mean over
            # a request's life is 2/3 of that.
            growth_s = (state.decode_s - self.at(1.0).decode_s) / max(1.0, state.running)
            variance = variance + growth_s**2 * state.running * 2 / 3
            # a burst makes steps longer, and longer steps make the burst last longer
            variance = variance / (1 - state.prefilling) ** 2
        least_s = min(state.decode_s, state.step_s)
        tpot: Floats = np.maximum(state.step_s + _TOKEN_TIME * np.sqrt(variance), least_s)
        return tpot

    def _ttft(self, state: State) -> Floats:
        """Seconds to the first token of each sampled request, without waiting for a slot.

        A request waits for the end of the step that runs when it comes, or until the engine looks
        for new requests. Then come the prefills before its own, and its own.
        """
        prompt = self._demand.prompt
        own_s = np.ceil(prompt / self._budget) * state.decode_s + prompt * state.prompt_token_s
        if self._is_lockstep:
            own_s = np.maximum(own_s, state.mixed_s)
        rest_s = self._rest_of_step_s(state)
        return self._overhead_s + rest_s + own_s + self._prefill_wait_s(state)

    def _rest_of_step_s(self, state: State) -> Floats:
        """Seconds that the step which runs when a sampled request comes still takes."""
        mixed_time_share = state.mixed_share * state.mixed_s / state.step_s
        # without prompts, the engine looks for requests only after so many steps
        until_look_s = self._recv_interval * state.decode_s
        step_s = np.where(mixed_time_share > _KIND_OF_STEP, state.mixed_s, until_look_s)
        rest_s = _ARRIVAL_IN_STEP * step_s
        if state.running < _FEW_RUNNING:
            is_busy = -math.expm1(-state.running) > _QUEUE_WAIT
            rest_s = np.where(is_busy, rest_s, 0.0)
        return rest_s

    def _prefill_wait_s(self, state: State) -> Floats | float:
        """Seconds that each sampled request waits for prefills before its own (M/G/1)."""
        load = state.prefilling
        if load <= _RARE:
            return 0.0
        token_s = state.prompt_token_s + state.decode_s / self._budget
        service_s = self._mean.prompt * token_s * self._mean.unevenness
        idle = 1 - load
        if not self._is_open:  # only as many requests can queue as run
            idle = idle + 1 / math.sqrt(max(1.0, state.running))
        wait_s: Floats = np.maximum(0.0, np.log(load / _QUEUE_WAIT)) * service_s / (2 * idle)
        return wait_s

    def _slot_wait_s(self, state: State) -> Floats:
        """Seconds that each sampled request waits for a free slot, because in open loop more
        requests may come than there are slots.
        """
        free = self.most - state.running
        if free <= 0:
            return np.full(SAMPLES, math.inf)
        beta = free / math.sqrt(max(state.running, 1e-9))
        if beta > _FREE_SLOTS:
            return np.zeros(SAMPLES)
        density = math.exp(-beta * beta / 2) / math.sqrt(2 * math.pi)
        # Halfin and Whitt: the share of requests that have to wait
        waiting_share = 1 / (1 + beta * float(ndtr(beta)) / density)
        steps = np.maximum(0.0, np.log(waiting_share / _SLOT_WAIT)) * self._mean.steps
        wait_s: Floats = steps * state.step_s / free
        return wait_s
