"""The load thread goes first while it loads, and only then."""

import gc
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


def test_the_thread_is_real_time_only_inside():
    def work():
        before, niceness = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
        with priority.scheduled("realtime") as given:
            inside, how = os.sched_getscheduler(0), given.how
        assert os.getpriority(os.PRIO_PROCESS, 0) == niceness
        policy_bits = ~os.SCHED_RESET_ON_FORK
        after = os.sched_getscheduler(0)
        return before & policy_bits, how, inside & policy_bits, after & policy_bits

    before, how, inside, after = in_a_thread(work)
    assert (how, inside) in (("realtime", os.SCHED_RR), ("nice", before))
    assert after == before


def test_without_the_right_to_real_time_the_niceness_is_lowered(monkeypatch):
    def refuse(*_):
        raise PermissionError

    values = [15]
    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    monkeypatch.setattr(os, "getpriority", lambda *_: values[-1])
    monkeypatch.setattr(os, "setpriority", lambda *args: values.append(args[2]))
    with priority.scheduled("realtime") as given:
        assert given.how == "nice"
        given.look(priority.WINDOW_NS, 0)
        given.look(2 * priority.WINDOW_NS, priority.WINDOW_NS)
        assert given.current == "nice"
    assert values == [15, priority.NICENESS, 15]


def test_a_thread_without_any_right_is_scheduled_normally(monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    monkeypatch.setattr(os, "setpriority", refuse)
    monkeypatch.setattr(os, "getpriority", lambda *_: 0)
    for wanted in ("realtime", "nice", "normal"):
        with priority.scheduled(wanted) as given:
            assert given.how == "normal"


def test_a_thread_is_real_time_only_if_that_is_wanted(monkeypatch):
    monkeypatch.setattr(os, "sched_setscheduler", lambda *_: pytest.fail("it is not wanted"))
    for wanted in ("nice", "normal"):
        with priority.scheduled(wanted) as given:
            assert given.how != "realtime"


def test_the_nearest_niceness_that_is_allowed_is_taken(monkeypatch):
    tried = []

    def only_from_five(_kind, _who, niceness):
        tried.append(niceness)
        if niceness < 5:
            raise PermissionError

    monkeypatch.setattr(os, "getpriority", lambda *_: 15)
    monkeypatch.setattr(os, "setpriority", only_from_five)
    priority.lower_niceness(3)
    assert tried == [3, 4, 5]


@pytest.mark.parametrize(("share", "realtime"), [(0.5, 1.0), (0.84, 1.0), (0.86, 0.8), (1.0, 0.8)])
def test_a_thread_that_fills_its_core_leaves_real_time_for_moments(monkeypatch, share, realtime):
    """The kernel would stop it for 50 ms of every second."""
    policies = []
    monkeypatch.setattr(
        os, "sched_setscheduler", lambda _pid, policy, _param: policies.append(policy)
    )
    monkeypatch.setattr(priority, "lower_niceness", lambda _wanted: None)
    beat_ns, beats = priority.WINDOW_NS // 5, 100
    with priority.scheduled("realtime") as given:
        schedulings = []
        for beat in range(1, beats + 1):
            given.look(beat * beat_ns, int(share * beat * beat_ns))
            schedulings.append(given.current)
    assert schedulings[10:].count("realtime") == pytest.approx(realtime * (beats - 10), abs=1)
    last = policies[-2] & ~os.SCHED_RESET_ON_FORK  # leaving the block set policies[-1]
    assert last == (os.SCHED_RR if schedulings[-1] == "realtime" else os.SCHED_OTHER)


@pytest.mark.parametrize("current", [-10, -15])
def test_a_lower_niceness_is_left_alone(monkeypatch, current):
    monkeypatch.setattr(os, "getpriority", lambda *_: current)
    monkeypatch.setattr(os, "setpriority", lambda *_: pytest.fail("nothing to change"))
    priority.lower_niceness(-10)


def test_objects_that_were_frozen_before_a_run_stay_frozen():
    gc.freeze()
    try:
        with priority.quiet_memory():
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
