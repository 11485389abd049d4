"""The load thread goes first while it loads, and only then."""

import os
import threading

import pytest

from orchestrator.load import priority


def in_a_thread(work):
    """What ``work`` returns, run on a thread of its own: priorities are a thread's."""
    out = []
    thread = threading.Thread(target=lambda: out.append(work()))
    thread.start()
    thread.join()
    return out[0]


def test_the_thread_is_real_time_inside_and_what_it_was_afterwards():
    def work():
        before = os.sched_getscheduler(0)
        with priority.first_in_line() as how:
            inside = os.sched_getscheduler(0)
        flag = ~os.SCHED_RESET_ON_FORK
        return before & flag, how, inside & flag, os.sched_getscheduler(0) & flag

    before, how, inside, after = in_a_thread(work)
    assert (how, inside) in (("rr", os.SCHED_RR), ("nice", before))
    assert after == before


def test_without_the_right_to_real_time_the_niceness_is_lowered(monkeypatch):
    def refuse(*_):
        raise PermissionError

    asked = []
    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    monkeypatch.setattr(os, "getpriority", lambda *_: 15)
    monkeypatch.setattr(os, "setpriority", lambda *args: asked.append(args[2]))
    with priority.first_in_line() as how:
        assert how == "nice"
    assert asked == [priority.NICENESS]


def test_the_nearest_niceness_that_is_allowed_is_taken(monkeypatch):
    asked = []

    def only_from_five(_kind, _who, niceness):
        asked.append(niceness)
        if niceness < 5:
            raise PermissionError

    monkeypatch.setattr(os, "getpriority", lambda *_: 15)
    monkeypatch.setattr(os, "setpriority", only_from_five)
    priority.lower_niceness(3)
    assert asked == [3, 4, 5]


@pytest.mark.parametrize("current", [-10, -15])
def test_a_thread_that_is_ahead_already_is_left_alone(monkeypatch, current):
    monkeypatch.setattr(os, "getpriority", lambda *_: current)
    monkeypatch.setattr(os, "setpriority", lambda *_: pytest.fail("nothing to change"))
    priority.lower_niceness(-10)
