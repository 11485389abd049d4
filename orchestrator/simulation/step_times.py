"""Finds when each token of a simulated request came, for the gaps between its tokens."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

import numpy as np

from orchestrator.base.arrays import Floats
from orchestrator.emulator.batch import Life, Sequence
from orchestrator.load.request_record import TokenGaps


class StepEnds:
    """When the steps of a rank ended. Steps that a simulation jumps over are taken to be equally
    long.
    """

    def __init__(self) -> None:
        self._steps: list[int] = [0]
        self._ends_s: list[float] = [0.0]

    def add(self, step: int, end_s: float) -> None:
        """Note when a step ended, in seconds since the start. A step in which decoding sequences
        got no tokens comes with the number of the step before and is ignored; its time falls to the
        next one.
        """
        if step > self._steps[-1]:
            self._steps.append(step)
            self._ends_s.append(end_s)

    def gaps(self, request_index: int, sequence: Sequence) -> TokenGaps:
        """The gaps of a sequence that has ended, in whole microseconds whose sum is exact.

        Each of its lives goes from a prefill to a preemption or to its end. Tokens of one step,
        where drafts are accepted, come in one chunk.
        """
        if sequence.given is not None:
            times_s = np.array([given.at_s for given in sequence.given])
            tokens = array("h", [given.tokens for given in sequence.given])
            return TokenGaps(request_index, _gaps_us(sequence, times_s), tokens)
        last_life = Life(sequence.start_step, sequence.output_tokens - sequence.earlier_tokens)
        lives = [*(sequence.lives or ()), last_life]
        times_s = np.concatenate([self._token_times_s(life) for life in lives])
        return TokenGaps(request_index, _gaps_us(sequence, times_s), None)

    def _token_times_s(self, life: Life) -> Floats:
        """When the steps ended in which the tokens of a life came."""
        last_step = life.start_step + life.tokens - 1
        steps = np.arange(life.start_step, last_step + 1)
        # of all steps only those of this life: they are many, and each request asks for its own
        begin = bisect_right(self._steps, life.start_step) - 1
        end = bisect_left(self._steps, last_step) + 1
        times: Floats = np.interp(steps, self._steps[begin:end], self._ends_s[begin:end])
        return times


def _gaps_us(sequence: Sequence, times_s: Floats) -> array[int]:
    """The gaps between the tokens of a sequence. ``times_s``: when the step of each token ended.

    The first and the last token have their exact times in place of those of their steps. Another
    token's step may end before the first token's time, or after the last one's. Such a token counts
    as coming with the one before it, so that no gap is negative.
    """
    exact_s = times_s.copy()
    exact_s[0] = sequence.first_token_s
    exact_s[-1] = sequence.last_token_s
    ascending_s = np.maximum.accumulate(exact_s)
    whole_us = np.round(ascending_s * 1e6).astype(np.int64)
    gaps_us = np.diff(whole_us).astype(np.int32)
    return array("i", gaps_us.tolist())
