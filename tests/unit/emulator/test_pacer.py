"""The batch in real time, against a clock that moves a microsecond whenever it is looked at."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from orchestrator.emulator import pacer as module
from orchestrator.emulator.batch import Batch
from orchestrator.emulator.pacer import Lag, Pacer
from tests.unit.emulator.builders import IDEAL, a_replica

INTERVAL_S = 1e-4


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        self.now_s += 1e-6
        return self.now_s


class Client:
    """A request's receiver; notes when each of its tokens left."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.at_s: list[float] = []
        self.ended = 0

    def prepare(self, is_last: bool) -> module.PreparedToken:
        return module.PreparedToken(b"token", report_sent=is_last)

    def write(self, data: bytes) -> None:
        self.at_s.append(self._clock.now_s)

    def sent(self) -> None:
        self.ended += 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def pacer(clock: Clock) -> Pacer:
    loop = SimpleNamespace(add_reader=lambda *_: None, remove_reader=lambda *_: None)
    constants = IDEAL.model_copy(update={"token_interval_s": INTERVAL_S})
    return Pacer(Batch(a_replica(constants)), cast(asyncio.AbstractEventLoop, loop))


def run(pacer: Pacer, clock: Clock, step_s: float = 1e-4, steps: int = 10_000) -> None:
    """Call it often, as a timer would that is never late by more than ``step_s``."""
    for _ in range(steps):
        clock.now_s += step_s
        pacer.catch_up()


def test_every_token_leaves_at_the_instant_that_the_model_gives_it(
    pacer: Pacer, clock: Clock
) -> None:
    clients = [Client(clock) for _ in range(5)]
    sequences = [pacer.submit(100, 3, 0, client) for client in clients]
    run(pacer, clock)
    pacer.close()
    for client, sequence in zip(clients, sequences, strict=True):
        assert client.at_s[0] == pytest.approx(sequence.first_token_s, abs=1e-5)
        assert client.at_s[-1] == pytest.approx(sequence.last_token_s, abs=1e-5)
        assert (len(client.at_s), client.ended) == (3, 1)
    # the first one was alone in its first step
    lasts_s = sorted(client.at_s[-1] for client in clients[1:])
    assert [
        late - early for early, late in zip(lasts_s, lasts_s[1:], strict=False)
    ] == pytest.approx([INTERVAL_S] * 3, abs=1e-5)
    assert pacer.lag.tokens == 15
    assert pacer.lag.worst_s < 1e-5


def test_nothing_leaves_before_its_time(pacer: Pacer, clock: Clock) -> None:
    client = Client(clock)
    sequence = pacer.submit(100, 1, 0, client)
    clock.now_s = sequence.first_token_s - 1e-3
    pacer.catch_up()
    assert client.at_s == []
    # within the time a process needs to wake up: it waits for the instant
    clock.now_s = sequence.first_token_s - 1e-4
    pacer.catch_up()
    assert client.at_s == [pytest.approx(sequence.first_token_s, abs=5e-6)]
    pacer.close()


def test_a_late_step_is_counted_and_does_not_delay_the_next_ones(
    pacer: Pacer, clock: Clock
) -> None:
    client = Client(clock)
    sequence = pacer.submit(100, 4, 0, client)
    clock.now_s = sequence.first_token_s + 3e-3
    run(pacer, clock)
    pacer.close()
    assert pacer.lag.worst_s == pytest.approx(3.1e-3, abs=1e-5)
    assert client.at_s[-1] == pytest.approx(sequence.last_token_s, abs=1e-5)


def test_a_request_that_follows_another_waits_for_the_next_step(pacer: Pacer, clock: Clock) -> None:
    second = Client(clock)

    class Chained(Client):
        def sent(self) -> None:
            super().sent()
            pacer.submit(100, 1, 0, second)

    chained = Chained(clock)
    pacer.submit(100, 1, 0, chained)
    run(pacer, clock)
    pacer.close()
    assert (len(chained.at_s), len(second.at_s)) == (1, 1)
    assert pacer.batch.step == 2


def test_quantiles_of_the_error_are_upper_ends_of_their_bins() -> None:
    lag = Lag()
    assert lag.summary() == "no tokens"
    lag.add([5e-6] * 98 + [2e-3, 70e-3])
    assert lag.quantile_s(0.5) == pytest.approx(10e-6)
    assert lag.quantile_s(0.99) == pytest.approx(2.01e-3)
    assert lag.quantile_s(1.0) == pytest.approx(50e-3)  # all that is longer
    assert lag.summary() == "100 tokens, mean 0.725 ms, median 0.01 ms, p99 2.01 ms, max 70.000 ms"
