"""The engines of one deployment in virtual time: replicas, each of one or more data-parallel ranks.

A rank is a ``Batch`` of the emulator with a prefix cache. Its steps are those of an emulator that
runs in real time, without the delays that a real process has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.emulator.batch import Batch, refusal
from orchestrator.emulator.drafting_batch import batch_of
from orchestrator.emulator.model import Replica
from orchestrator.emulator.prefix import BLOCK_TOKENS
from orchestrator.simulation.contents import Cache
from orchestrator.simulation.requests import RequestEnd, VirtualRequest
from orchestrator.simulation.step_times import StepEnds
from orchestrator.workloads.segments import Segment


@dataclass(frozen=True, slots=True)
class FleetNeeds:
    """What a fleet has to keep track of. ``coupled``: a request that ends on one rank may be
    followed by a request to another, so no rank may run ahead. ``gaps``: the gaps between the
    tokens of each request.
    """

    coupled: bool = False
    prefix_caches: bool = False
    gaps: bool = False


class VirtualRank:
    """One data-parallel rank: its batch, its prefix cache, and when its steps ended."""

    def __init__(self, model: Replica, seed: str, wants: FleetNeeds) -> None:
        self.batch = batch_of(model, seed)
        self.cache = Cache(model.limits.kv_tokens) if wants.prefix_caches else None
        self._steps = StepEnds() if wants.gaps else None

    @property
    def requests(self) -> int:
        """The number of requests that decode or wait. A new request goes to the rank with the
        fewest.
        """
        return len(self.batch.decoding) + len(self.batch.waiting)

    def submit(self, request: VirtualRequest, segments: Sequence[Segment]) -> None:
        """Give the rank a request that is not refused."""
        if self.cache is not None:
            request.held = self.cache.take(segments, self.batch.kv_used)
            # the last token is computed in any case, and so is its block
            most_tokens = (request.input_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS
            request.cached_tokens = min(request.held.hit_tokens, most_tokens)
        request.rank = self
        request.sequence = self.batch.submit(
            request.sent_s,
            request.input_tokens,
            request.output_tokens,
            request.cached_tokens,
            request,
        )

    def advance(self, until_s: float) -> list[VirtualRequest]:
        """Run steps until a request ends, or up to ``until_s``. Returns the requests that ended."""
        finished = self.batch.advance(until_s=until_s)
        if self._steps is not None:
            self._steps.add(self.batch.step, self.batch.clock)
        ended: list[VirtualRequest] = []
        for sequence in finished:
            request = sequence.owner
            assert isinstance(request, VirtualRequest)
            request.first_token_s = sequence.first_token_s
            request.last_token_s = sequence.last_token_s
            request.finish(RequestEnd.OK, sequence.last_token_s)
            if sequence.given is not None:
                request.chunks = len(sequence.given)
            if self._steps is not None:
                request.gaps = self._steps.gaps(request.planned.index, sequence)
            ended.append(request)
        return ended

    def over(self, request: VirtualRequest, answer: Segment | None) -> None:
        """Give back the segments of a request that is over. ``answer``: its answer, if later
        prompts may contain that; else None.
        """
        if self.cache is not None and request.held is not None:
            self.cache.give_back(request.held, answer, self.batch.kv_used)

    def cancel(self, request: VirtualRequest) -> None:
        """Forget a request whose client has gone."""
        assert request.sequence is not None
        if not math.isnan(request.sequence.first_token_s):
            request.first_token_s = request.sequence.first_token_s
        self.batch.cancel(request.sequence)
        self.over(request, None)


class Fleet:
    """All ranks of a deployment. ``seed``: the seed of the jitter of their steps."""

    def __init__(
        self,
        model: Replica,
        replicas: int,
        ranks_per_replica: int,
        seed: int,
        needs: FleetNeeds,
    ) -> None:
        self.limits = model.limits
        self.replicas: list[list[VirtualRank]] = []
        for replica in range(replicas):
            ranks: list[VirtualRank] = []
            for rank in range(ranks_per_replica):
                ranks.append(VirtualRank(model, f"{seed} {replica} {rank}", needs))
            self.replicas.append(ranks)
        self._ranks = [rank for ranks in self.replicas for rank in ranks]
        self._coupled = needs.coupled and len(self._ranks) > 1

    def send(self, request: VirtualRequest, segments: Sequence[Segment]) -> bool:
        """Send a request to its replica. Returns whether the replica takes it."""
        ranks = self.replicas[request.replica]
        rank = ranks[0]
        if len(ranks) > 1:
            rank = min(ranks, key=lambda rank: rank.requests)
        batch = rank.batch
        if self.limits.max_requests is not None:
            running = len(batch.decoding) + len(batch.prefilling) + len(batch.waiting)
            if running >= self.limits.max_requests:
                request.refusal = "The server's request queue is full"
                request.finish(RequestEnd.QUEUE_FULL, request.sent_s)
                return False
        reason = refusal(self.limits, request.input_tokens, request.output_tokens)
        if reason is not None:
            request.refusal = reason
            request.finish(RequestEnd.REFUSED, request.sent_s)
            return False
        rank.submit(request, segments)
        return True

    def advance(self, until_s: float) -> list[VirtualRequest]:
        """Run all ranks up to ``until_s``, or until requests end, the rank that is furthest behind
        first. Returns the requests that ended; an empty list if all ranks have come to ``until_s``.
        """
        while True:
            rank = self._furthest_behind(until_s)
            if rank is None:
                return []
            ended = rank.advance(self._limit_s(rank, until_s))
            if ended:
                return ended

    def _furthest_behind(self, until_s: float) -> VirtualRank | None:
        """The rank that has come least far; None if all have come to ``until_s``."""
        behind: VirtualRank | None = None
        behind_s = until_s
        for rank in self._ranks:
            batch = rank.batch
            if batch.clock < behind_s and not batch.idle and not _begins_after(batch, until_s):
                behind = rank
                behind_s = batch.clock
        return behind

    def _limit_s(self, rank: VirtualRank, until_s: float) -> float:
        """How far a rank may run. If requests depend on one another, it may not run beyond the next
        end of a request on another rank.
        """
        if self._coupled:
            for other in self._ranks:
                if other is not rank and not other.batch.idle:
                    until_s = min(until_s, other.batch.earliest_end_s())
        return until_s


def _begins_after(batch: Batch, instant_s: float) -> bool:
    """Whether a batch has nothing to do until an instant."""
    if batch.decoding or batch.prefilling:
        return False
    return batch.waiting[0].ready_s >= instant_s
