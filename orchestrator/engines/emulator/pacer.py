"""The batch in real time: runs the model one step ahead, waits for the step's end, then gives out its tokens."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Protocol, cast

from orchestrator.engines.emulator.batch import Batch, Sequence
from orchestrator.engines.emulator.timer import Timer


class Stream(Protocol):
    """Where the bytes of a token go."""

    def write(self, data: bytes) -> None: ...


class Receiver(Protocol):
    """Who gets the tokens of a sequence (``Sequence.owner``)."""

    @property
    def stream(self) -> Stream: ...

    def prepare(self, last: bool) -> tuple[bytes, bool]:
        """The bytes of the next token, built while there is time, and whether ``sent`` wants to be called after it."""
        ...

    def sent(self) -> None:
        """The token that was prepared has left."""
        ...


class Lag:
    """The emulator's own error: how far tokens left from the model's instant, in seconds, for each step."""

    def __init__(self) -> None:
        self.steps = 0
        self.sum_s = 0.0  # mean of the step's first and last token, signed: what it adds to mean latencies
        self.worst_s = 0.0
        self.recent_s: deque[float] = deque(maxlen=20_000)  # the worse of first and last token of a step, unsigned

    def add(self, first_s: float, last_s: float) -> None:
        worst_s = max(abs(first_s), abs(last_s))
        self.steps += 1
        self.sum_s += (first_s + last_s) / 2
        self.worst_s = max(self.worst_s, worst_s)
        self.recent_s.append(worst_s)

    def summary(self) -> str:
        """One line for the log."""
        if not self.steps:
            return "no steps"
        recent = sorted(self.recent_s)
        return (
            f"{self.steps} steps, mean {self.sum_s / self.steps * 1e3:+.3f} ms; worst token of a step: "
            f"median {recent[len(recent) // 2] * 1e3:.3f} ms, p99 {recent[int(len(recent) * 0.99)] * 1e3:.3f} ms, "
            f"max {self.worst_s * 1e3:.3f} ms"
        )


_WRITE_S = 8e-6  # one write to a loopback socket, until the first steps have shown what it takes here
_WRITE_MAX_S = 20e-6


class Pacer:
    """Drives one batch on an event loop. All times are ``time.monotonic()``, which is also the batch's clock.

    The tokens of a step leave one after the other, so the first goes out half a burst before the step's end and the
    last half a burst after it: on average they are on time.
    """

    def __init__(self, batch: Batch, loop: asyncio.AbstractEventLoop) -> None:
        self.batch = batch
        self.lag = Lag()
        self._timer = Timer(loop, self._fire)
        self._due: list[tuple[Stream, bytes]] = []
        self._after: list[Receiver] = []
        self._running = False
        self._write_s = _WRITE_S

    def submit(self, prompt_tokens: int, output_tokens: int, cached: int, owner: Receiver) -> Sequence:
        """Queue a request that arrived now."""
        sequence = self.batch.submit(time.monotonic(), prompt_tokens, output_tokens, cached, owner)
        if not self._running:
            self._running = True
            self._begin()
        return sequence

    def stall(self, seconds: float) -> None:
        """The whole engine stands still."""
        self.batch.clock += seconds

    def close(self) -> None:
        """Stop giving out tokens."""
        self._running = False
        self._timer.close()

    def _begin(self) -> None:
        """Run the model through the next step, build its tokens and arm the timer."""
        batch = self.batch
        if batch.idle:
            self._running = False
            return
        finished = batch.advance(max_steps=1)
        self._due, self._after = [], []
        for sequence in batch.decoding:
            self._prepare(cast(Receiver, sequence.owner), last=False)
        for sequence in finished:
            self._prepare(cast(Receiver, sequence.owner), last=True)
        self._timer.arm(batch.clock - len(self._due) * self._write_s / 2)

    def _prepare(self, receiver: Receiver, last: bool) -> None:
        payload, wants_call = receiver.prepare(last)
        if payload:
            self._due.append((receiver.stream, payload))
        if wants_call:
            self._after.append(receiver)

    def _fire(self) -> None:
        """The step has ended: its tokens go out, the next one begins."""
        if not self._running:
            return
        end_s, due = self.batch.clock, self._due
        if due:
            started_s = time.monotonic()
            for stream, payload in due:
                stream.write(payload)
            done_s = time.monotonic()
            self.lag.add(started_s - end_s, done_s - end_s)
            write_s = min(_WRITE_MAX_S, (done_s - started_s) / len(due))
            self._write_s += 0.05 * (write_s - self._write_s)
        for receiver in self._after:
            receiver.sent()
        self._begin()
