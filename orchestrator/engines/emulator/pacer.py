"""The batch in real time: runs the model one step ahead, waits for the step's end, then gives out its tokens."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Protocol, cast

from orchestrator.engines.emulator.batch import Batch, Sequence
from orchestrator.engines.emulator.timer import Timer


class Receiver(Protocol):
    """Who gets the tokens of a sequence (``Sequence.owner``)."""

    def prepare(self, last: bool) -> None:
        """Build the bytes of the next token while there is time."""
        ...

    def deliver(self) -> None:
        """Send them now."""
        ...


@dataclass(slots=True)
class Lag:
    """How late the tokens of steps left, seconds after the model's instant: the emulator's own error."""

    steps: int = 0
    first_sum_s: float = 0.0  # first token of each step
    last_sum_s: float = 0.0  # last token of each step
    last_max_s: float = 0.0
    step_lags_s: list[float] = field(default_factory=list)  # last tokens, the most recent 10,000 steps

    def add(self, first_s: float, last_s: float) -> None:
        self.steps += 1
        self.first_sum_s += first_s
        self.last_sum_s += last_s
        self.last_max_s = max(self.last_max_s, last_s)
        self.step_lags_s.append(last_s)
        if len(self.step_lags_s) > 20_000:
            del self.step_lags_s[:10_000]

    def summary(self) -> str:
        """One line: how late the last tokens of recent steps were."""
        if not self.steps:
            return "no steps"
        recent = sorted(self.step_lags_s)
        return (
            f"{self.steps} steps, last token late by {recent[len(recent) // 2] * 1e3:.3f} ms (median), "
            f"{recent[int(len(recent) * 0.99)] * 1e3:.3f} ms (p99), {self.last_max_s * 1e3:.3f} ms (max)"
        )


class Pacer:
    """Drives one batch on an event loop. All times are ``time.monotonic()``, which is also the batch's clock."""

    def __init__(self, batch: Batch, loop: asyncio.AbstractEventLoop) -> None:
        self.batch = batch
        self.lag = Lag()
        self._timer = Timer(loop, self._fire)
        self._due: list[Receiver] = []
        self._running = False

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
        self._timer.close()

    def _begin(self) -> None:
        """Run the model through the next step and arm the timer at its end."""
        batch = self.batch
        if batch.idle:
            self._running = False
            return
        finished = batch.advance(max_steps=1)
        due = [cast(Receiver, sequence.owner) for sequence in batch.decoding]
        for receiver in due:
            receiver.prepare(last=False)
        for sequence in finished:
            receiver = cast(Receiver, sequence.owner)
            receiver.prepare(last=True)
            due.append(receiver)
        self._due = due
        self._timer.arm(batch.clock)

    def _fire(self) -> None:
        """The step has ended: its tokens go out, the next one begins."""
        if not self._running:
            return
        end_s, due = self.batch.clock, self._due
        first_s = time.monotonic() - end_s
        for receiver in due:
            receiver.deliver()
        if due:
            self.lag.add(first_s, time.monotonic() - end_s)
        self._begin()
