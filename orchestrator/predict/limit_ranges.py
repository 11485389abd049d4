"""The limits of a rank under which a run of the step model stays the same.

A limit that was never reached changes nothing: under any higher one, and under any lower one that
would not have been reached either, every token comes at the same time. So deployments that differ
in such limits alone need to be simulated only once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from orchestrator.emulator.model import RankLimits


@dataclass(frozen=True, slots=True)
class LimitRange:
    """Values of one limit, both ends included."""

    lowest: float
    highest: float

    @classmethod
    def of(cls, limit: int, needed: int) -> LimitRange:
        """The values under which a run stays the same. ``needed``: the lowest value that the run
        would not have reached; more than ``limit`` where it was reached.
        """
        if needed > limit:
            return cls(limit, limit)
        return cls(needed, math.inf)

    def holds(self, limit: int) -> bool:
        return self.lowest <= limit <= self.highest

    def overlap(self, other: LimitRange) -> LimitRange:
        return LimitRange(max(self.lowest, other.lowest), min(self.highest, other.highest))


@dataclass(frozen=True, slots=True)
class LimitRanges:
    """The limits under which a run stays the same; those that have no range have to be equal."""

    chunked_prefill: bool
    max_model_len: LimitRange
    max_num_seqs: LimitRange
    max_num_batched_tokens: LimitRange
    kv_tokens: LimitRange

    @classmethod
    def exactly(cls, limits: RankLimits) -> LimitRanges:
        """These limits alone."""
        return cls(
            chunked_prefill=limits.chunked_prefill,
            max_model_len=LimitRange(limits.max_model_len, limits.max_model_len),
            max_num_seqs=LimitRange(limits.max_num_seqs, limits.max_num_seqs),
            max_num_batched_tokens=LimitRange(
                limits.max_num_batched_tokens, limits.max_num_batched_tokens
            ),
            kv_tokens=LimitRange(limits.kv_tokens, limits.kv_tokens),
        )

    def hold(self, limits: RankLimits) -> bool:
        """Whether a run under these limits is the same."""
        return (
            self.chunked_prefill == limits.chunked_prefill
            and self.max_model_len.holds(limits.max_model_len)
            and self.max_num_seqs.holds(limits.max_num_seqs)
            and self.max_num_batched_tokens.holds(limits.max_num_batched_tokens)
            and self.kv_tokens.holds(limits.kv_tokens)
        )

    def overlap(self, other: LimitRanges) -> LimitRanges:
        """The limits under which the runs of two ranks both stay the same."""
        return LimitRanges(
            chunked_prefill=self.chunked_prefill,
            max_model_len=self.max_model_len.overlap(other.max_model_len),
            max_num_seqs=self.max_num_seqs.overlap(other.max_num_seqs),
            max_num_batched_tokens=self.max_num_batched_tokens.overlap(
                other.max_num_batched_tokens
            ),
            kv_tokens=self.kv_tokens.overlap(other.kv_tokens),
        )
