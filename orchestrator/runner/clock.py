"""Time, and waiting for it: given to whatever waits, so that tests need no sleep."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Clock:
    """The machine's, one for all threads of a sweep; tests give one of their own."""

    def now_s(self) -> float:
        """Monotonic."""
        return time.monotonic()

    def unix_ns(self) -> int:
        return time.time_ns()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait(self, event: threading.Event, limit_s: float) -> bool:
        """Until the event is set, at most so long; whether it is set."""
        return event.wait(limit_s)

    def spawn(self, run: Callable[[], None], name: str) -> None:
        """Run it on a thread of its own."""
        threading.Thread(target=run, name=name).start()
