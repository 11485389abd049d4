"""The emulator's model of an engine: how long a step takes, and what one replica can hold."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.catalog import memory
from orchestrator.catalog.accelerators import Accelerator
from orchestrator.catalog.models import ModelFacts
from orchestrator.emulator.drafts import Drafts
from orchestrator.emulator.profile import Constants, resolved
from orchestrator.emulator.step_costs import StepTimes, step_costs
from orchestrator.spec.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class RankLimits:
    """What one data-parallel rank of a replica takes at a time. ``kv_tokens`` is its KV capacity in
    tokens.
    """

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_tokens: int
    chunked_prefill: bool = True
    prefix_caching: bool = True
    # whether decodes wait while there is a prompt to prefill (SGLang); else both share a step
    prefill_first: bool = False
    max_requests: int | None = None  # the most that run or wait; others are refused at once
    recv_interval: int = 1  # decode steps between two looks for new requests


@dataclass(frozen=True, slots=True)
class Replica:
    """The model of one data-parallel rank: costs, limits and what they came from."""

    costs: StepTimes
    limits: RankLimits
    estimate: memory.MemoryEstimate
    request_overhead_s: float
    token_interval_s: float
    jitter: float = 0.0  # standard deviation of a step's length, as a share of it
    drafts: Drafts | None = None  # None: no speculative decoding


# bytes of the KV cache where a profile imitates a CPU whose memory is not known
_CPU_KV_BYTES = 4 * memory.GIB


def replica(
    settings: EngineSettings, facts: ModelFacts, device: Accelerator, constants: Constants
) -> Replica:
    """The model of one data-parallel rank of a deployment on a device. Constants that are not given
    are those typical of its engine. A pure function. Raises step_tables.NoRow where ``constants.tables``
    is set and the tables lack something.
    """
    constants = resolved(constants, settings.engine, device)
    estimate = memory.estimate_memory(facts, settings, device)
    if estimate.kv_cache_tokens is None:
        bounded = settings.model_copy(update={"kv_cache_memory_bytes": _CPU_KV_BYTES})
        estimate = memory.estimate_memory(facts, bounded, device)
    max_requests = None
    if settings.max_num_queued_reqs is not None:
        max_requests = -(-settings.max_num_queued_reqs // settings.data_parallel_size)
    limits = RankLimits(
        max_model_len=estimate.max_model_len,
        max_num_seqs=estimate.max_num_seqs,
        max_num_batched_tokens=estimate.max_num_batched_tokens,
        kv_tokens=estimate.kv_cache_tokens or 0,
        chunked_prefill=settings.enable_chunked_prefill is not False,
        prefix_caching=settings.enable_prefix_caching is not False,
        prefill_first=constants.prefill_first,
        max_requests=max_requests,
        recv_interval=settings.scheduler_recv_interval or 1,
    )
    costs: StepTimes = step_costs(settings, facts, device, constants)
    if constants.tables:
        from orchestrator.emulator.step_tables import tables_of  # a package that few have

        costs = tables_of(settings, facts, device, constants)
    return Replica(
        costs,
        limits,
        estimate,
        constants.request_overhead_s,
        constants.token_interval_s,
        constants.jitter,
    )
