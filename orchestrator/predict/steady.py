"""Steady states of one data-parallel rank in closed form: what ``simulate`` would show of a long
run, in microseconds.

The state is the number of sequences that decode at once, b. A request decodes for one step per
token after its first, so requests end, and prompts come, at b / tokens per step (Little's law);
with Poisson arrivals the share of steps that hold a prompt is 1 - exp(-that). Waiting for prefills
is M/G/1 (Pollaczek and Khinchine), waiting for a free slot in open loop is Halfin and Whitt's
(Operations Research 29(3), 1981). Preemptions are left out.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from orchestrator.base.arrays import Floats
from orchestrator.emulator.model import Replica
from orchestrator.spec.load import Control

SAMPLES = 256  # requests that stand for a workload
_shuffled = np.random.default_rng(0).permutation
# each request has its own quantiles, the same in every state
_STRATA = (np.arange(SAMPLES) + 0.5) / SAMPLES
_WHEN, _KIND, _SLOT, _QUEUE = (_shuffled(_STRATA) for _ in range(4))
_NORMAL = ndtri(_shuffled(_STRATA))
_FULL = 0.98  # of the token budget: beyond it queues grow without end
# outputs that vary less than this end together, so that in a closed loop the next begin together
_ALIKE = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """``SAMPLES`` requests: prompt tokens to be computed, those found in the prefix cache, output
    tokens.
    """

    prompt: Floats
    cached: Floats
    output: Floats


@dataclass(frozen=True, slots=True)
class State:
    """With so many ``running`` sequences: requests/s; mean seconds of a step, of one without and
    with prompts; the share of those; what a token of a prompt adds to a step; how much of the time
    prompts are being prefilled.
    """

    running: float
    rate: float
    step_s: float
    decode_s: float
    mixed_s: float
    mixed_share: float
    prompt_token_s: float
    prefilling: float


class Rank:
    """One data-parallel rank of a replica under a demand. ``most``: sequences that run at once at
    the most.
    """

    def __init__(self, model: Replica, demand: Demand, control: Control) -> None:
        self._demand, self._open = demand, control == "request_rate"
        self._costs, self._overhead_s, limits = model.costs, model.request_overhead_s, model.limits
        output, length = demand.output, demand.prompt + demand.cached
        share, half_way = output / output.sum(), length + output / 2
        self._steps = max(0.5, float(output.mean()) - 1)  # of a request after its prefill
        self._context = float((share * half_way).sum())
        self._windowed = float((share * np.minimum(half_way, model.costs.window)).sum())
        self._prompt, self._cached = float(demand.prompt.mean()), float(demand.cached.mean())
        # 1 where all prompts are alike
        self._uneven = float((demand.prompt**2).mean()) / self._prompt**2
        self._lockstep = not self._open and float(output.std()) < _ALIKE * float(output.mean())
        self._rests, self._interval = limits.prefill_first, limits.recv_interval
        self._budget = limits.max_num_batched_tokens if limits.chunked_prefill else 1 << 30
        by_prefill = _FULL * limits.max_num_batched_tokens / (1 + self._prompt / self._steps)
        self.most = min(limits.max_num_seqs, limits.kv_tokens / self._context, max(1.0, by_prefill))
        self.at = lru_cache(maxsize=256)(self._at)

    @cached_property
    def full(self) -> State:
        """The state at its highest throughput."""
        return self.at(self.most)

    def _at(self, running: float) -> State:
        decodes = max(1, round(running))
        alone = decodes, round(decodes * self._context), decodes * self._windowed
        beside, budget = (
            ((0, 0, 0.0), self._budget) if self._rests else (alone, max(1, self._budget - decodes))
        )
        parts = max(1, math.ceil(self._prompt / budget))
        # chunks that come in a step
        chunk, due = self._prompt / parts, parts * running / self._steps
        met = due * self._interval  # by one look
        together = (
            max(1.0, min(running, budget / chunk))
            if self._lockstep
            else max(1.0, met / -math.expm1(-met))
        )
        together = min(together, budget / chunk) if parts == 1 else 1.0
        start = round(self._cached + (self._prompt - chunk) / 2)
        chunks = [(start, round(chunk))] * int(together)
        if last := round(together % 1 * chunk):
            chunks.append((start, last))
        decode_s, mixed_s = self._costs.mixed(*alone, []), self._costs.mixed(*beside, chunks)
        if self._rests:  # the prompts' step delays the next decode
            mixed_s += decode_s
        mixed_share = min(1.0, due / together)
        step_s = (1 - mixed_share) * decode_s + mixed_share * mixed_s
        rate, token_s = running / (self._steps * step_s), (mixed_s - decode_s) / (chunk * together)
        prefilling = min(_FULL, rate * self._prompt * (token_s + decode_s / budget))
        return State(running, rate, step_s, decode_s, mixed_s, mixed_share, token_s, prefilling)

    def _first_s(self, one: State) -> float:
        """Mean TTFT without waiting for a slot."""
        return float(self._ttft(one).mean())

    def in_flight(self, state: State) -> float:
        """Requests that run or are being prefilled."""
        return state.running + state.rate * self._first_s(state)

    def level(self, state: State) -> float:
        """The load that leads to a state: requests/s, or requests in flight."""
        return state.rate if self._open else self.in_flight(state)

    def under(self, level: float) -> State | None:
        """The state at a load; None: the rank cannot keep up with it (open loop)."""
        if level >= self.level(self.full):
            return None if self._open else self.full
        low = min(1e-6, self.most)
        if level <= self.level(self.at(low)):
            return self.at(low)
        return self.at(
            float(
                brentq(
                    lambda running: self.level(self.at(running)) - level, low, self.most, rtol=5e-3
                )
            )
        )

    def latencies(self, one: State, level: float) -> dict[str, Floats]:
        """Seconds of every sampled request at a load, by the names of limits (analysis/slo.py)."""
        output = self._demand.output
        over = 0.0 if self._open else max(0.0, level - self.in_flight(one)) / one.rate
        ttft = self._ttft(one) + (self._slot_wait_s(one) if self._open else over)
        prompt_s = self._prompt * one.prompt_token_s
        variance = (
            one.mixed_share
            * (1 - one.mixed_share)
            * self._uneven
            * prompt_s**2
            / np.maximum(1, output)
        )
        # the number that run is Poisson; its mean over a request's life varies by 2/3 of that
        if self._open:
            growth_s = (one.decode_s - self.at(1.0).decode_s) / max(1.0, one.running)
            # a burst makes steps longer, which makes it last longer
            variance = (variance + growth_s**2 * one.running * 2 / 3) / (1 - one.prefilling) ** 2
        tpot = np.maximum(one.step_s + _NORMAL * np.sqrt(variance), min(one.decode_s, one.step_s))
        longest_s = one.mixed_s if one.mixed_share > 0.01 else one.decode_s
        return {
            "ttft": ttft,
            "tpot": tpot,
            "e2e": ttft + (output - 1) * tpot,
            "itl_p99": np.full(SAMPLES, longest_s),
            "normalized_ttft": ttft / (self._demand.prompt + self._demand.cached),
        }

    def _ttft(self, one: State) -> Floats:
        """The rest of the step that runs when a request comes, or until it is looked for; prefills
        before its own; its own.
        """
        prompt = self._demand.prompt
        # share of the time in steps that hold a prompt
        in_mixed = one.mixed_share * one.mixed_s / one.step_s
        rest_s = _WHEN * np.where(in_mixed > _KIND, one.mixed_s, self._interval * one.decode_s)
        if one.running < 4:
            rest_s = np.where(-math.expm1(-one.running) > _QUEUE, rest_s, 0.0)  # whether any runs
        own_s = np.ceil(prompt / self._budget) * one.decode_s + prompt * one.prompt_token_s
        if self._lockstep:
            own_s = np.maximum(own_s, one.mixed_s)
        service_s = self._prompt * (one.prompt_token_s + one.decode_s / self._budget) * self._uneven
        load = one.prefilling
        # so many ask at the most
        idle = 1 - load if self._open else 1 - load + 1 / math.sqrt(max(1.0, one.running))
        wait_s = (
            np.maximum(0.0, np.log(load / _QUEUE)) * service_s / (2 * idle) if load > 0.01 else 0.0
        )
        return self._overhead_s + rest_s + own_s + wait_s

    def _slot_wait_s(self, one: State) -> Floats:
        """Seconds until a slot is free, of each sampled request: in open loop more may come than
        there are slots.
        """
        free, beta = (
            self.most - one.running,
            (self.most - one.running) / math.sqrt(max(one.running, 1e-9)),
        )
        if free <= 0:
            return np.full(SAMPLES, math.inf)
        if beta > 6:
            return np.zeros(SAMPLES)
        density = math.exp(-beta * beta / 2) / math.sqrt(2 * math.pi)
        waits = 1 / (1 + beta * float(ndtr(beta)) / density)  # share of the requests
        return np.maximum(0.0, np.log(waits / _SLOT)) * self._steps * one.step_s / free
