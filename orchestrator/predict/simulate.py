"""Simulates a whole schedule in virtual time: when every request would get its tokens."""

from dataclasses import dataclass

import numpy as np

from orchestrator.base.arrays import Floats, Ints
from orchestrator.emulator.batch import Batch, Sequence, refusal
from orchestrator.emulator.model import RankLimits, Replica, replica
from orchestrator.emulator.profile import Profile, device_of, facts_of
from orchestrator.spec.settings import EngineSettings, Hardware


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order they arrive: seconds, prompt and output tokens, prompt tokens found in
    the prefix cache.
    """

    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    cached_tokens: Ints | None = None


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """Per request, in the schedule's order, seconds on the schedule's clock; NaN for requests that
    were refused.
    """

    scheduled_s: Floats
    first_token_s: Floats
    last_token_s: Floats
    preemptions: Ints


def simulate(
    profile: Profile, settings: EngineSettings, schedule: Trace, hardware: Hardware | None = None
) -> RequestTimes:
    """What a deployment's replicas would do with a schedule: dealt in turn to all replicas and
    data-parallel ranks.
    """
    facts = facts_of(profile, settings)
    device = device_of(profile, hardware or Hardware(name="emulated", accelerator="H100-80GB"))
    model = replica(settings, facts, device, profile.constants)
    return run(model, schedule, ranks=settings.replicas * settings.data_parallel_size)


def run(model: Replica, schedule: Trace, ranks: int = 1) -> RequestTimes:
    """Simulate with a model that is already built; rank r takes every ``ranks``-th request."""
    sequences: list[Sequence | None] = [None] * len(schedule.arrival_s)
    for rank in range(ranks):
        sequences[rank::ranks] = _run_rank(Batch(model, rank), schedule, slice(rank, None, ranks))
    return _times_of(sequences)


def run_closed(
    model: Replica,
    prompts: Ints,
    outputs: Ints,
    concurrency: int,
    ranks: int = 1,
    cached: Ints | None = None,
) -> tuple[Trace, RequestTimes]:
    """The same with a closed loop: the next request arrives when one of ``concurrency``, dealt to
    the ranks, finishes.

    A refused request is over when it comes. Ranks that get no share of the concurrency get no
    requests either.
    """
    ranks, arrivals = min(ranks, concurrency), np.zeros(len(prompts))
    sequences: list[Sequence | None] = [None] * len(prompts)
    columns = (prompts, outputs, np.zeros_like(prompts) if cached is None else cached)
    for rank in range(ranks):
        part, share = slice(rank, None, ranks), len(range(rank, concurrency, ranks))
        entries = list(zip(*(column[part].tolist() for column in columns), strict=True))
        arrivals[part], sequences[part] = _closed_rank(Batch(model, rank), entries, share)
    return Trace(arrivals, prompts, outputs, cached), _times_of(sequences)


def _closed_rank(
    batch: Batch, entries: list[tuple[int, int, int]], concurrency: int
) -> tuple[list[float], list[Sequence | None]]:
    arrivals: list[float] = []
    sequences: list[Sequence | None] = []
    running = 0

    def fill() -> None:
        nonlocal running
        while running < concurrency and len(sequences) < len(entries):
            prompt, output, hit = entries[len(sequences)]
            refused = _turned_away(batch.limits, running, prompt, output)
            arrivals.append(batch.clock)
            sequences.append(None if refused else batch.submit(batch.clock, prompt, output, hit))
            running += not refused

    fill()
    while not batch.idle:
        running -= len(batch.advance())
        fill()
    return arrivals, sequences


def _run_rank(batch: Batch, schedule: Trace, part: slice) -> list[Sequence | None]:
    cached = schedule.cached_tokens
    if cached is None:
        cached = np.zeros_like(schedule.prompt_tokens)
    columns = (schedule.arrival_s, schedule.prompt_tokens, schedule.output_tokens, cached)
    sequences: list[Sequence | None] = []
    running: list[Sequence] = []
    for arrival_s, prompt, output, hit in zip(
        *(column[part].tolist() for column in columns), strict=True
    ):
        if batch.limits.max_requests is not None:  # else nobody asks how many are here
            while not batch.idle and batch.clock < arrival_s:
                batch.advance(until_s=arrival_s)
            running = [one for one in running if not one.last_token_s <= arrival_s]
        if _turned_away(batch.limits, len(running), prompt, output):
            sequences.append(None)
            continue
        sequences.append(sequence := batch.submit(arrival_s, prompt, output, hit))
        running.append(sequence)
    while not batch.idle:
        batch.advance()
    return sequences


def _turned_away(limits: RankLimits, running: int, prompt: int, output: int) -> bool:
    """Whether it is refused: it can never run, or ``max_num_queued_reqs`` are already here."""
    most = limits.max_requests
    return (most is not None and running >= most) or refusal(limits, prompt, output) is not None


def _times_of(sequences: list[Sequence | None]) -> RequestTimes:
    nan = float("nan")
    rows = [
        (nan, nan, nan, 0)
        if one is None
        else (one.scheduled_s, one.first_token_s, one.last_token_s, one.preemptions)
        for one in sequences
    ]
    table = np.array(rows, dtype=np.float64).reshape(-1, 4)
    return RequestTimes(table[:, 0], table[:, 1], table[:, 2], table[:, 3].astype(np.int64))
