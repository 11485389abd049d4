"""A batch in real time: each step of the model is computed ahead, and each of its tokens is written
at the instant at which the model says that it leaves.
"""

import asyncio
import math
import time
from collections.abc import Callable
from itertools import accumulate, islice
from typing import NamedTuple, Protocol, cast

from orchestrator.base.timer import LoopTimer
from orchestrator.emulator.batch import Batch, Sequence


class PreparedToken(NamedTuple):
    """The next token of a sequence, before it is due."""

    payload: bytes  # empty: nothing is written
    report_sent: bool  # ``Receiver.sent`` is to be called after it


class Receiver(Protocol):
    """Gets the tokens of a sequence (``Sequence.owner``)."""

    @property
    def write(self) -> Callable[[bytes], None]: ...

    def prepare(self, is_last: bool) -> PreparedToken:
        """Builds the bytes of the next token while there is time."""
        ...

    def sent(self) -> None:
        """Called when the token that was prepared has left."""
        ...


_BIN_S = 10e-6
_BINS = 5000  # errors beyond 50 ms are counted in the last one


class Lag:
    """How late the emulator writes its tokens, over its whole life: from the instant at which a
    token should leave until the kernel has its bytes.
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
        """The lateness, rounded up to 10 µs, that this share of all tokens did not exceed."""
        wanted = share * self.tokens
        tokens_up_to_bin = accumulate(self._counts)
        for bin_number, tokens in enumerate(tokens_up_to_bin, start=1):
            if tokens >= wanted:
                return bin_number * _BIN_S
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


# A sleeping process wakes 0.1 to 0.2 ms after its timer. So the timer is set this much before the
# first token of a step is due, and then the process watches the clock until it is due.
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
        """``stepped`` is called after every step with its duration in seconds, the number of tokens
        that it computed, and how many sequences got a token that was not their first.
        """
        self.batch = batch
        self._stepped = stepped
        self.lag = Lag()
        self._timer = LoopTimer(loop, self._wake)
        # what the next step writes: when, by which method, and the bytes
        self._due: list[tuple[float, Callable[[bytes], None], bytes]] = []
        self._report_to: list[Receiver] = []  # whose ``sent`` is called after the next step
        self._running = False
        self._first_s = math.inf  # instant of the next step's first token; inf: none is prepared

    def submit(
        self, prompt_tokens: int, output_tokens: int, cached: int, owner: Receiver
    ) -> Sequence:
        """Queues a request that arrived now."""
        sequence = self.batch.submit(time.monotonic(), prompt_tokens, output_tokens, cached, owner)
        if not self._running:
            self._running = True
            self._begin()
        return sequence

    def stall(self, seconds: float) -> None:
        """Makes the whole engine stand still."""
        self.batch.clock += seconds

    def catch_up(self) -> None:
        """Writes the tokens that are due. To be called before other work, which delays them."""
        if self._is_due():
            self._fire()

    def _is_due(self) -> bool:
        """Whether the next step's first token is due, or soon enough to watch the clock for it."""
        return self._first_s - time.monotonic() <= _EARLY_S

    def _wake(self) -> None:
        """Called by the timer of the event loop. The timer may go off a fraction of a millisecond
        early: then it is set again.
        """
        if self._is_due():
            self._fire()
        elif self._running:
            self._set_timer()

    def _set_timer(self) -> None:
        self._timer.arm(round((self._first_s - _EARLY_S) * 1e9))

    def close(self) -> None:
        """Stops writing tokens."""
        self._running = False
        self._first_s = math.inf
        self._timer.close()

    def _begin(self) -> None:
        """Runs the model through the next step, builds its tokens and sets the timer."""
        batch = self.batch
        if batch.idle:
            self._running = False
            return
        decoding_before = len(batch.decoding)
        finished = batch.advance(max_steps=1)
        # the oldest sequences got no token if the step held prompts only
        unfinished = list(islice(batch.decoding, batch.skipped_decodes, None))
        self._due = []
        self._report_to = []
        self._first_s = batch.instant_of(0, finished)
        for place, sequence in enumerate([*unfinished, *finished]):
            receiver = cast(Receiver, sequence.owner)
            token = receiver.prepare(is_last=place >= len(unfinished))
            if token.payload:
                due_s = self._first_s + place * batch.interval_s
                self._due.append((due_s, receiver.write, token.payload))
            if token.report_sent:
                self._report_to.append(receiver)
        if self._stepped is not None:
            step_s = batch.clock - batch.began_s
            later_tokens = decoding_before - batch.skipped_decodes
            self._stepped(step_s, batch.computed_tokens, later_tokens)
        self._set_timer()

    def _fire(self) -> None:
        """Ends the step: writes its tokens, and begins the next step."""
        # nothing is due while this runs: the end of a request may let another one in, whose arrival
        # calls ``catch_up``
        self._first_s = math.inf
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
        for receiver in self._report_to:
            receiver.sent()
        self._begin()
