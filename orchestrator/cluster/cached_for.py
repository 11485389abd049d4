"""Answers of expensive calls, kept so long that asking takes little of a core."""

import time
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
SHARE = 0.003  # of a core that the calls may take
# the oldest answer, whatever it cost: a pause of Python's collector is no reason to look away
MOST_S = 10.0


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
        self._last: tuple[float, T] | None = None  # until when it is good, and the answer

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        last = self._last
        if last is None or self._now_s() >= last[0]:
            before_s = self._used_s()
            answer = self._function(*args, **kwargs)
            cost_s = self._used_s() - before_s if last else 0.0
            keep_s = max(self._least_s, min(cost_s / SHARE, MOST_S))
            last = self._last = self._now_s() + keep_s, answer
        return last[1]
