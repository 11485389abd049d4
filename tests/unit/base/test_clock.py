"""The machine's clock, as everything that waits uses it."""

from __future__ import annotations

import threading
import time

from orchestrator.base.clock import Clock


def test_waiting_ends_at_once_when_the_event_is_set() -> None:
    event = threading.Event()
    event.set()
    assert Clock().wait(event, limit_s=60.0)


def test_waiting_ends_at_its_limit_without_the_event() -> None:
    clock = Clock()
    began_s = clock.now_s()
    assert not clock.wait(threading.Event(), limit_s=0.02)
    assert clock.now_s() - began_s >= 0.02


def test_sleep_lasts_as_long_as_asked() -> None:
    clock = Clock()
    began_s = clock.now_s()
    clock.sleep(0.02)
    assert clock.now_s() - began_s >= 0.02


def test_unix_time_is_that_of_the_machine() -> None:
    before_ns = time.time_ns()
    assert before_ns <= Clock().unix_ns() <= time.time_ns()


def test_a_spawned_function_runs_in_a_named_thread_of_its_own() -> None:
    names: list[str] = []
    has_run = threading.Event()

    def note_thread() -> None:
        names.append(threading.current_thread().name)
        has_run.set()

    Clock().spawn(note_thread, "launch d0")
    assert has_run.wait(60)
    assert names == ["launch d0"]
