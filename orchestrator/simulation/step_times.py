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
        """The gaps of a sequence that has ended, rounded to 1 us with the remainder carried.

        Each of its lives goes from a prefill to a preemption or to its end. Tokens of one step,
        where drafts are accepted, come in one chunk.
        """
        if sequence.given is not None:
            times_s = np.array([given.at_s for given in sequence.given])
            tokens = array("h", [given.tokens for given in sequence.given])
            return TokenGaps(request_index, _gaps_us(sequence, times_s), tokens)
        last_life = Life(sequence.start_step, sequence.output_tokens - sequence.earlier_tokens)
        tokens_s = [self._token_times(life) for life in (*(sequence.lives or ()), last_life)]
        return TokenGaps(request_index, _gaps_us(sequence, np.concatenate(tokens_s)), None)

    def _token_times(self, life: Life) -> Floats:
        last_step = life.start_step + life.tokens - 1
        steps = np.arange(life.start_step, last_step + 1)
        # of all steps only those of this life: they are many, and each request asks for its own
        begin = bisect_right(self._steps, life.start_step) - 1
        end = bisect_left(self._steps, last_step) + 1
        times: Floats = np.interp(steps, self._steps[begin:end], self._ends_s[begin:end])
        return times


def _gaps_us(sequence: Sequence, times_s: Floats) -> array[int]:
    """The gaps between these times, of which the first and the last become exact. All others are
    put at the end of their step, which may lie before the first token's time, or after the last
    one's. The later time counts: no gap is negative.
    """
    times_s[0] = sequence.first_token_s
    times_s[-1] = sequence.last_token_s
    whole_us = np.round(np.maximum.accumulate(times_s) * 1e6).astype(np.int64)
    gaps_us = np.diff(whole_us).astype(np.int32)
    return array("i", gaps_us.tolist())
