"""Time and waiting, passed to everything that waits, so that tests need not sleep."""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple


class UnixSpan(NamedTuple):
    """A span of time by the driver's wall clock, from ``start_ns`` to right before ``end_ns``, in
    nanoseconds since 1970.
    """

    start_ns: int
    end_ns: int

    @property
    def length_s(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


class Clock:
    """The machine's clock; tests replace it."""

    def now_s(self) -> float:
        """The monotonic clock."""
        return time.monotonic()

    def unix_ns(self) -> int:
        return time.time_ns()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait(self, event: threading.Event, limit_s: float) -> bool:
        """Waits until the event is set, at most ``limit_s``. Returns whether it is set."""
        return event.wait(limit_s)

    def spawn(self, run: Callable[[], None], name: str) -> None:
        """Calls ``run`` in a thread of its own."""
        threading.Thread(target=run, name=name).start()
