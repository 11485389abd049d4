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
    """A function whose last answer is kept for ``least_s``, or longer where calling it more often
    would take more than SHARE of a core.

    The answer is kept whatever the arguments are: they matter only when the function is called
    again. The first call counts as free, because it also pays for imports. If several threads call
    at the same moment, each of them may call the function.

    ``now_s`` is the clock. ``cpu_s`` returns the CPU seconds that the calling thread has used.
    """

    def __init__(
        self,
        function: Callable[P, T],
        least_s: float = 0.0,
        now_s: Callable[[], float] = time.monotonic,
        cpu_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._function = function
        self._least_s = least_s
        self._now_s = now_s
        self._cpu_s = cpu_s
        self._last: _KeptAnswer[T] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        last = self._last  # read once: other threads may change it
        if last is not None and self._now_s() < last.until_s:
            return last.answer
        cpu_before_s = self._cpu_s()
        answer = self._function(*args, **kwargs)
        cost_s = 0.0
        if last is not None:
            cost_s = self._cpu_s() - cpu_before_s
        keep_s = max(self._least_s, min(cost_s / SHARE, MOST_S))
        self._last = _KeptAnswer(self._now_s() + keep_s, answer)
        return answer
