"""Simulates a whole schedule in virtual time, to find when every request would get its tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple

import numpy as np

from orchestrator.base.arrays import Floats, Ints
from orchestrator.emulator.batch import Batch, Sequence, refusal
from orchestrator.emulator.model import RankLimits, Replica, replica
from orchestrator.emulator.profile import Profile, device_of, facts_of
from orchestrator.predict.limit_ranges import LimitRanges
from orchestrator.predict.rank_loop import is_covered, serve
from orchestrator.spec.settings import EngineSettings, Hardware


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order in which they arrive."""

    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    cached_tokens: Ints | None = None  # tokens of the prompt that the prefix cache has


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """When each request of a trace was served, in seconds of the trace's clock; NaN if it was
    refused. ``same_under``: the limits of a rank under which all of this is the same; None: unknown.
    """

    scheduled_s: Floats
    first_token_s: Floats
    last_token_s: Floats
    preemptions: Ints
    same_under: LimitRanges | None = None


def simulate(
    profile: Profile, settings: EngineSettings, schedule: Trace, hardware: Hardware | None = None
) -> RequestTimes:
    """When a deployment's replicas would serve a schedule, whose requests are dealt in turn to all
    replicas and data-parallel ranks.
    """
    facts = facts_of(profile, settings)
    device = device_of(profile, hardware or Hardware(name="emulated", accelerator="H100-80GB"))
    model = replica(settings, facts, device, profile.constants)
    return run(model, schedule, ranks=settings.replicas * settings.data_parallel_size)


def run(model: Replica, schedule: Trace, ranks: int = 1, seed: int | None = None) -> RequestTimes:
    """Simulate with a model that is already built. Requests are dealt to the ranks in turn.
    ``seed``: the seed of the jitter; None: each rank's number is its seed.
    """
    table = np.tile(np.array(_REFUSED), (len(schedule.arrival_s), 1))
    ranges: list[LimitRanges] = []
    for rank in range(ranks):
        part = slice(rank, None, ranks)
        seed_of_rank = rank if seed is None else f"{seed} {rank}"
        served = _served_by_loop(model, seed_of_rank, schedule, part)
        if served is not None:
            table[part] = served.rows
            ranges.append(served.same_under)
            continue
        batch = Batch(model, seed_of_rank)
        sequences = _run_rank(batch, _requests_of(schedule, part))
        rows = [_row(sequence) for sequence in sequences]
        table[part] = np.array(rows).reshape(-1, len(_REFUSED))
    same_under = reduce(LimitRanges.overlap, ranges) if len(ranges) == ranks else None
    return replace(_times(table), same_under=same_under)


@dataclass(frozen=True, slots=True)
class _ServedByLoop:
    """The rows of one rank's requests, and the limits under which they are the same."""

    rows: Floats
    same_under: LimitRanges


def _served_by_loop(
    model: Replica, seed: int | str, schedule: Trace, part: slice
) -> _ServedByLoop | None:
    """One rank's requests by the fast loop; None if the loop does not cover them."""
    cached = schedule.cached_tokens
    if not is_covered(model) or (cached is not None and cached[part].any()):
        return None
    prompts = schedule.prompt_tokens[part]
    outputs = schedule.output_tokens[part]
    limits = model.limits
    is_served = prompts + outputs <= min(limits.max_model_len, limits.kv_tokens)
    if not limits.chunked_prefill:
        is_served &= prompts <= limits.max_num_batched_tokens
    times = serve(
        model,
        seed,
        schedule.arrival_s[part][is_served].tolist(),
        prompts[is_served].tolist(),
        outputs[is_served].tolist(),
    )
    if times is None:
        return None
    rows = np.tile(np.array(_REFUSED), (len(prompts), 1))
    rows[is_served, _SCHEDULED] = times.scheduled_s
    rows[is_served, _FIRST_TOKEN] = times.first_token_s
    rows[is_served, _LAST_TOKEN] = times.last_token_s
    rows[is_served, _PREEMPTIONS] = 0
    # under other limits other requests would be refused
    same_under = times.same_under if is_served.all() else LimitRanges.exactly(limits)
    return _ServedByLoop(rows, same_under)


class ClosedRun(NamedTuple):
    """The requests of a closed loop with their arrivals, and when they were served."""

    trace: Trace
    times: RequestTimes


def run_closed(
    model: Replica,
    prompts: Ints,
    outputs: Ints,
    concurrency: int,
    ranks: int = 1,
    cached: Ints | None = None,
) -> ClosedRun:
    """Simulate a closed loop: ``concurrency`` requests, dealt to the ranks, are in flight, and the
    next one arrives when one of them ends.

    A refused request is over as soon as it arrives. Ranks that get no share of the concurrency get
    no requests either.
    """
    ranks = min(ranks, concurrency)
    trace = Trace(np.zeros(len(prompts)), prompts, outputs, cached)
    sequences: list[Sequence | None] = [None] * len(prompts)
    for rank in range(ranks):
        part = slice(rank, None, ranks)
        share = len(range(rank, concurrency, ranks))
        loop = _ClosedLoop(Batch(model, rank), _requests_of(trace, part), share)
        loop.run()
        trace.arrival_s[part] = loop.arrivals_s
        sequences[part] = loop.sequences
    return ClosedRun(trace, _times_of(sequences))


class _Request(NamedTuple):
    arrival_s: float
    prompt: int
    output: int
    cached: int


def _requests_of(trace: Trace, part: slice) -> list[_Request]:
    """The requests of one rank."""
    cached = trace.cached_tokens
    if cached is None:
        cached = np.zeros_like(trace.prompt_tokens)
    columns = (trace.arrival_s, trace.prompt_tokens, trace.output_tokens, cached)
    lists = [column[part].tolist() for column in columns]
    return [_Request(*row) for row in zip(*lists, strict=True)]


class _ClosedLoop:
    """Keeps ``concurrency`` of the requests in flight on one rank, whatever their arrivals say."""

    def __init__(self, batch: Batch, requests: list[_Request], concurrency: int) -> None:
        self._batch = batch
        self._requests = requests
        self._concurrency = concurrency
        self._running = 0
        self.arrivals_s: list[float] = []
        self.sequences: list[Sequence | None] = []

    def run(self) -> None:
        self._fill()
        while not self._batch.idle:
            self._running -= len(self._batch.advance())
            self._fill()

    def _fill(self) -> None:
        batch = self._batch
        while self._running < self._concurrency and len(self.sequences) < len(self._requests):
            request = self._requests[len(self.sequences)]
            self.arrivals_s.append(batch.clock)
            if _is_refused(batch.limits, self._running, request):
                self.sequences.append(None)
                continue
            self.sequences.append(
                batch.submit(batch.clock, request.prompt, request.output, request.cached)
            )
            self._running += 1


def _run_rank(batch: Batch, requests: list[_Request]) -> list[Sequence | None]:
    """Serves each request when it arrives. Returns the sequence of each; None for a refused one."""
    sequences: list[Sequence | None] = []
    running: list[Sequence] = []
    for request in requests:
        arrival_s = request.arrival_s
        if batch.limits.max_requests is not None:  # otherwise it does not matter how many run
            while not batch.idle and batch.clock < arrival_s:
                batch.advance(until_s=arrival_s)
            running = [sequence for sequence in running if not _has_ended(sequence, arrival_s)]
        if _is_refused(batch.limits, len(running), request):
            sequences.append(None)
            continue
        sequence = batch.submit(arrival_s, request.prompt, request.output, request.cached)
        sequences.append(sequence)
        running.append(sequence)
    while not batch.idle:
        batch.advance()
    return sequences


def _has_ended(sequence: Sequence, now_s: float) -> bool:
    return sequence.last_token_s <= now_s  # NaN until its last token


def _is_refused(limits: RankLimits, running: int, request: _Request) -> bool:
    """Whether a request can never run, or finds as many requests as the rank takes at once."""
    if limits.max_requests is not None and running >= limits.max_requests:
        return True
    return refusal(limits, request.prompt, request.output) is not None


class _Row(NamedTuple):
    """The fields of ``RequestTimes`` of one request, in the order of the columns of a table."""

    scheduled_s: float
    first_token_s: float
    last_token_s: float
    preemptions: float


_SCHEDULED, _FIRST_TOKEN, _LAST_TOKEN, _PREEMPTIONS = range(len(_Row._fields))
_REFUSED = _Row(math.nan, math.nan, math.nan, 0.0)


def _times_of(sequences: list[Sequence | None]) -> RequestTimes:
    rows = [_row(sequence) for sequence in sequences]
    return _times(np.array(rows, dtype=np.float64).reshape(-1, len(_REFUSED)))


def _times(table: Floats) -> RequestTimes:
    """The times in a table that has a row for each request, with the fields of ``RequestTimes``."""
    return RequestTimes(
        scheduled_s=table[:, _SCHEDULED],
        first_token_s=table[:, _FIRST_TOKEN],
        last_token_s=table[:, _LAST_TOKEN],
        preemptions=table[:, _PREEMPTIONS].astype(np.int64),
    )


def _row(sequence: Sequence | None) -> _Row:
    """The row of one request. ``sequence``: None: it was refused."""
    if sequence is None:
        return _REFUSED
    return _Row(
        scheduled_s=sequence.scheduled_s,
        first_token_s=sequence.first_token_s,
        last_token_s=sequence.last_token_s,
        preemptions=sequence.preemptions,
    )
