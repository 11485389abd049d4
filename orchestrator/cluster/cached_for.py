"""Keeps the answers of expensive calls, so that the calls take only a small part of a core."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
SHARE = 0.003  # of a core that the calls may take
# An answer is kept no longer than this, whatever the call cost: a pause of Python's garbage
# collector may have made it look expensive.
MOST_S = 10.0


@dataclass(frozen=True, slots=True)
class _KeptAnswer(Generic[T]):
    """An answer, and until when it is kept."""

    until_s: float
    answer: T


class CachedFor(Generic[P, T]):
    """A function whose answer is kept for ``least_s``, or longer where calling it more often would
    take more than SHARE of a core.

    The cost of the first call does not count: it pays for imports. Threads that call at the same
    time may each pay.
    """

    def __init__(
        self,
        function: Callable[P, T],
        least_s: float = 0.0,
        now_s: Callable[[], float] = time.monotonic,
        used_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._function = function
        self._least_s = least_s
        self._now_s = now_s
        self._used_s = used_s
        self._last: _KeptAnswer[T] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        last = self._last  # read once: other threads may change it
        if last is not None and self._now_s() < last.until_s:
            return last.answer
        before_s = self._used_s()
        answer = self._function(*args, **kwargs)
        cost_s = self._used_s() - before_s if last is not None else 0.0
        keep_s = max(self._least_s, min(cost_s / SHARE, MOST_S))
        self._last = _KeptAnswer(self._now_s() + keep_s, answer)
        return answer
