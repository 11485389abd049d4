"""Takes samples in a thread of its own while a point runs."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

_log = logging.getLogger(__name__)

# Samples that are kept. A point that lasts longer is sampled half as often, and every other sample
# that was taken until then is dropped, so that days of load fit into an agent's memory.
MOST_SAMPLES = 4_000
# A driver call that hangs must not hold up the end of a point.
STOP_LIMIT_S = 5.0

SampleT = TypeVar("SampleT")


class Sampler(Generic[SampleT]):
    """Calls ``take`` every ``interval_s`` and at ``stop``, and keeps what it returns except None.
    A call that raises leaves a gap.
    """

    def __init__(
        self,
        take: Callable[[], SampleT | None],
        interval_s: float,
        name: str,
        most_samples: int = MOST_SAMPLES,
    ) -> None:
        self._take = take
        self._interval_s = interval_s
        self._most_samples = most_samples
        self._samples: list[SampleT] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begins; the first sample is taken at once, in the sampler's thread."""
        self._thread.start()

    def start_with_sample(self) -> None:
        """Begins. Takes the first sample before it returns, so that this sample precedes the load."""
        self._keep()
        self._thread.start()

    def stop(self, limit_s: float = STOP_LIMIT_S) -> list[SampleT]:
        """Takes a last sample. Returns all samples in order of time. If ``take`` has not returned
        within ``limit_s``, those that it returned until then.
        """
        self._is_over.set()
        self._thread.join(limit_s)
        return list(self._samples)

    def hangs(self) -> bool:
        """Whether a call of ``take`` did not return in time for ``stop``."""
        return self._is_over.is_set() and self._thread.is_alive()

    def _run(self) -> None:
        if not self._samples:
            self._keep()
        next_s = time.monotonic() + self._interval_s
        while not self._is_over.wait(max(0.0, next_s - time.monotonic())):
            self._keep()
            if len(self._samples) >= self._most_samples:
                self._samples = self._samples[::2]
                self._interval_s *= 2
            # the next instant of the grid: late samples are not made up for
            missed = max(0.0, time.monotonic() - next_s) // self._interval_s
            next_s += (missed + 1) * self._interval_s
        self._keep()

    def _keep(self) -> None:
        try:
            sample = self._take()
        except Exception as error:  # a driver or /proc may do anything, and the load goes on
            _log.warning("no sample by %s: %r", self._thread.name, error)
            return
        if sample is not None:
            self._samples.append(sample)
