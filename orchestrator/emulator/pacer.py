"""The batch in real time: runs the model one step ahead, then gives out its tokens, each at its
stated instant.
"""

import asyncio
import math
import time
from collections.abc import Callable
from itertools import accumulate, islice
from typing import Protocol, cast

from orchestrator.base.timer import LoopTimer
from orchestrator.emulator.batch import Batch, Sequence


class Receiver(Protocol):
    """Gets the tokens of a sequence (``Sequence.owner``)."""

    @property
    def write(self) -> Callable[[bytes], None]: ...

    def prepare(self, is_last: bool) -> tuple[bytes, bool]:
        """The bytes of the next token, built while there is time, and whether ``sent`` must be
        called after it.
        """
        ...

    def sent(self) -> None:
        """Called when the token that was prepared has left."""
        ...


_BIN_S = 10e-6
_BINS = 5000  # errors beyond 50 ms are counted in the last one


class Lag:
    """The emulator's own error, over its whole life: from a token's stated instant until the kernel
    has its bytes.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.sum_s = 0.0
        self.worst_s = 0.0
        self._counts = [0] * _BINS

    def add(self, lates_s: list[float]) -> None:
        """The errors of one step's tokens."""
        self.tokens += len(lates_s)
        self.sum_s += sum(lates_s)
        self.worst_s = max([self.worst_s, *lates_s])
        for late_s in lates_s:
            self._counts[min(int(late_s / _BIN_S), _BINS - 1)] += 1

    def quantile_s(self, share: float) -> float:
        """Upper end of the bin (10 µs wide) that holds this share of all tokens."""
        for bins, tokens in enumerate(accumulate(self._counts), start=1):
            if tokens >= share * self.tokens:
                return bins * _BIN_S
        return self.worst_s

    def summary(self) -> str:
        """One line for the log."""
        if not self.tokens:
            return "no tokens"
        mean_ms = self.sum_s / self.tokens * 1e3
        median_ms = self.quantile_s(0.5) * 1e3
        p99_ms = self.quantile_s(0.99) * 1e3
        return (
            f"{self.tokens} tokens, mean {mean_ms:.3f} ms, median {median_ms:.2f} ms, "
            f"p99 {p99_ms:.2f} ms, max {self.worst_s * 1e3:.3f} ms"
        )


# A sleeping process is woken 0.1 to 0.2 ms after its timer, so it is woken this much before and
# looks at the clock.
_EARLY_S = 0.25e-3


class Pacer:
    """Drives one batch on an event loop. All times are ``time.monotonic()``, which is also the
    batch's clock.
    """

    def __init__(
        self,
        batch: Batch,
        loop: asyncio.AbstractEventLoop,
        stepped: Callable[[float, int, int], None] | None = None,
    ) -> None:
        """``stepped`` is called for every step with its seconds, its computed tokens, and the
        number of sequences that got a token and had one before.
        """
        self.batch = batch
        self._stepped = stepped
        self.lag = Lag()
        self._timer = LoopTimer(loop, self._wake)
        self._due: list[tuple[float, Callable[[bytes], None], bytes]] = []
        self._after: list[Receiver] = []
        self._running = False
        self._first_s = math.inf  # instant of the next step's first token; inf: none is prepared

    def submit(
        self, prompt_tokens: int, output_tokens: int, cached: int, owner: Receiver
    ) -> Sequence:
        """Queue a request that arrived now."""
        sequence = self.batch.submit(time.monotonic(), prompt_tokens, output_tokens, cached, owner)
        if not self._running:
            self._running = True
            self._begin()
        return sequence

    def stall(self, seconds: float) -> None:
        """Make the whole engine stand still."""
        self.batch.clock += seconds

    def catch_up(self) -> None:
        """Give out the tokens that are due; called before other work delays them."""
        if self._first_s - time.monotonic() <= _EARLY_S:
            self._fire()

    def _wake(self) -> None:
        """Called by the timer. The timer of an event loop may be a fraction of a millisecond early:
        then it is armed again.
        """
        if self._first_s - time.monotonic() <= _EARLY_S:
            self._fire()
        elif self._running:
            self._timer.arm(round((self._first_s - _EARLY_S) * 1e9))

    def close(self) -> None:
        """Stop giving out tokens."""
        self._running = False
        self._first_s = math.inf
        self._timer.close()

    def _begin(self) -> None:
        """Run the model through the next step, build its tokens and arm the timer."""
        batch = self.batch
        if batch.idle:
            self._running = False
            return
        decoding = len(batch.decoding)
        finished = batch.advance(max_steps=1)
        going_on = list(islice(batch.decoding, batch.resting, None))
        self._due = []
        self._after = []
        self._first_s = batch.instant_of(0, finished)
        for place, sequence in enumerate([*going_on, *finished]):
            receiver = cast(Receiver, sequence.owner)
            payload, wants_call = receiver.prepare(is_last=place >= len(going_on))
            if payload:
                due_s = self._first_s + place * batch.interval_s
                self._due.append((due_s, receiver.write, payload))
            if wants_call:
                self._after.append(receiver)
        if self._stepped is not None:
            step_s = batch.clock - batch.began_s
            self._stepped(step_s, batch.computed, decoding - batch.resting)
        self._timer.arm(round((self._first_s - _EARLY_S) * 1e9))

    def _fire(self) -> None:
        """The step has ended: its tokens go out, the next one begins."""
        self._first_s = math.inf  # what ends here lets other requests in: nothing is due meanwhile
        lates_s = []
        clock = time.monotonic
        now_s = clock()
        for due_s, write, payload in self._due:
            while now_s < due_s:
                now_s = clock()
            write(payload)
            now_s = clock()
            lates_s.append(now_s - due_s)
        self.lag.add(lates_s)
        for receiver in self._after:
            receiver.sent()
        self._begin()
