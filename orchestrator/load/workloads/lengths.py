"""Token counts of requests, drawn in blocks so that any session's can be had without those before it."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from orchestrator.load.schedule import LENGTH_STREAM, stream
from orchestrator.spec.load import Lengths, Workload
from orchestrator.spec.units import MOST_TOKENS

BLOCK = 1024  # sessions


def draw(lengths: Lengths, size: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.int64]:
    """Token counts, at least 1, of the given shape."""
    if lengths.fixed is not None:
        return np.full(size, lengths.fixed, np.int64)
    if lengths.uniform is not None:
        return rng.integers(lengths.uniform.min, lengths.uniform.max, size, endpoint=True)
    shape = lengths.lognormal
    assert shape is not None
    # the mean is the distribution's own: E[X] = exp(mu + sigma^2 / 2)
    values = rng.lognormal(np.log(shape.mean) - shape.sigma**2 / 2, shape.sigma, size)
    return np.clip(np.round(values), shape.min, shape.max or MOST_TOKENS).astype(np.int64)


class SessionLengths:
    """Input and output token counts of every (session, turn) of a point."""

    def __init__(self, workload: Workload, turns: int, seed: int) -> None:
        asked = workload.input_tokens or Lengths(fixed=1)  # prompts of a file have their own

        def block(number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
            rng = stream(seed, LENGTH_STREAM, number)
            size = (BLOCK, turns)
            return draw(asked, size, rng), draw(workload.output_tokens, size, rng)

        self._block = lru_cache(maxsize=16)(block)

    def input_tokens(self, session: int, turn: int) -> int:
        return int(self._block(session // BLOCK)[0][session % BLOCK, turn])

    def output_tokens(self, session: int, turn: int) -> int:
        return int(self._block(session // BLOCK)[1][session % BLOCK, turn])
