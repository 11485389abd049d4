"""Timers that fire at an instant of the monotonic clock."""

from __future__ import annotations

import asyncio
import select
import time
from contextlib import closing

from orchestrator.base.timer import LoopTimer, Timer


def is_readable(timer: Timer, wait_s: float) -> bool:
    return bool(select.select([timer.fd], [], [], wait_s)[0])


def test_a_timer_fires_at_its_instant_and_not_before() -> None:
    with closing(Timer()) as timer:
        at_ns = time.monotonic_ns() + 50_000_000
        timer.set(at_ns)
        assert is_readable(timer, 5.0)
        assert time.monotonic_ns() >= at_ns


def test_a_timer_set_to_the_past_fires_at_once() -> None:
    with closing(Timer()) as timer:
        timer.set(1)
        assert is_readable(timer, 5.0)


def test_a_timer_set_to_zero_never_fires() -> None:
    with closing(Timer()) as timer:
        timer.set(time.monotonic_ns() + 20_000_000)
        timer.set(0)
        assert not is_readable(timer, 0.1)


def test_a_loop_timer_calls_back_once() -> None:
    calls: list[int] = []

    async def run() -> None:
        timer = LoopTimer(asyncio.get_running_loop(), lambda: calls.append(1))
        timer.arm(time.monotonic_ns() + 10_000_000)
        await asyncio.sleep(0.2)
        timer.close()

    asyncio.run(run())
    assert calls == [1]


def test_a_closed_loop_timer_does_not_call_back() -> None:
    calls: list[int] = []

    async def run() -> None:
        timer = LoopTimer(asyncio.get_running_loop(), lambda: calls.append(1))
        timer.arm(time.monotonic_ns() + 10_000_000)
        timer.close()
        await asyncio.sleep(0.1)

    asyncio.run(run())
    assert calls == []
