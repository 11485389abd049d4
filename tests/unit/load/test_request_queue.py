"""What is due when: simulated with an engine that takes a fixed time, without a clock."""

from __future__ import annotations

import heapq
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.load.request_queue import BACKOFF_NS, MAX_BACKOFF_NS, RequestQueue
from orchestrator.load.schedule import PlannedRequest, Schedule
from tests.unit.load.test_schedule import Each, point

SECOND = 1_000_000_000


def simulate(
    queue: RequestQueue, service_ns: int, failed: bool = False, until_ns: int = 100 * SECOND
) -> list[tuple[PlannedRequest, int]]:
    """Every request with the instant at which it was handed out; each is over ``service_ns`` later."""
    running: list[tuple[int, int, PlannedRequest]] = []
    given_out: list[tuple[PlannedRequest, int]] = []
    while True:
        instants = [running[0][0]] if running else []
        instants += [] if queue.next_due_ns is None else [queue.next_due_ns]
        now = min(instants, default=until_ns)
        if now >= until_ns:
            return given_out
        while running and running[0][0] <= now:
            queue.schedule_after(heapq.heappop(running)[2], now, failed)
        while (entry := queue.pop_due(now)) is not None:
            given_out.append((entry, now))
            heapq.heappush(running, (now + service_ns, len(given_out), entry))


def queue(
    turns: int = 1, think_time_s: float = 0.0, client: int = 0, clients: int = 1, **fields: Any
) -> RequestQueue:
    return RequestQueue(Schedule(point(**fields), Each(turns, think_time_s), client, clients))


@settings(max_examples=30, deadline=None)
@given(service_s=st.floats(0.001, 20), rate=st.floats(0.5, 50))
def test_an_open_loop_does_not_wait_for_answers(service_s: float, rate: float) -> None:
    handed_out = simulate(queue(value=rate), round(service_s * SECOND))
    assert [entry.due_ns for entry, _ in handed_out] == Schedule(
        point(value=rate), Each(1)
    ).due_ns.tolist()
    assert all(at == entry.due_ns for entry, at in handed_out)


@settings(max_examples=30, deadline=None)
@given(slots=st.integers(1, 9), requests=st.integers(1, 60), clients=st.integers(1, 4))
def test_a_closed_loop_keeps_its_number_in_flight(slots: int, requests: int, clients: int) -> None:
    indices = []
    for client in range(clients):
        fields: dict[str, Any] = {
            "control": "concurrency",
            "value": float(slots),
            "requests": requests,
            "duration_s": None,
        }
        pending = queue(client=client, clients=clients, **fields)
        handed_out = simulate(pending, SECOND)
        indices += [entry.index for entry, _ in handed_out]
        ends = [(at + SECOND, -1) for _, at in handed_out] + [(at, 1) for _, at in handed_out]
        level = peak = 0
        for _, step in sorted(ends):
            level += step
            peak = max(peak, level)
        assert peak <= len(Schedule(point(**fields), Each(1), client, clients).slot_starts)
    assert sorted(indices) == list(range(requests))


def test_a_slot_waits_its_think_time_after_the_answer() -> None:
    handed_out = simulate(queue(control="concurrency", value=1.0, think_time_s=0.5), SECOND)
    assert [entry.due_ns for entry, _ in handed_out] == [
        0,
        1.5 * SECOND,
        3 * SECOND,
        4.5 * SECOND,
        6 * SECOND,
        7.5 * SECOND,
        9 * SECOND,
    ]


def test_turns_of_a_conversation_follow_each_other() -> None:
    handed_out = simulate(
        queue(turns=3, think_time_s=2.0, value=3.0, requests=6, duration_s=None), SECOND
    )
    due = {entry.index: entry.due_ns for entry, _ in handed_out}
    assert sorted(due) == list(range(6))
    for first in (0, 3):
        assert due[first + 1] == due[first] + 3 * SECOND
        assert due[first + 2] == due[first] + 6 * SECOND


def test_a_turn_that_would_come_after_the_end_is_not_scheduled() -> None:
    handed_out = simulate(
        queue(turns=4, think_time_s=4.0, control="concurrency", value=1.0, duration_s=10.0), SECOND
    )
    assert [(entry.session, entry.turn) for entry, _ in handed_out] == [(0, 0), (0, 1)]


def test_a_slot_backs_off_until_its_next_success() -> None:
    pending = queue(control="concurrency", value=1.0, duration_s=1000.0)
    now, gaps = 0, []
    for _ in range(9):
        planned = pending.pop_due(now)
        assert planned is not None
        pending.schedule_after(planned, now, refused=True)
        assert pending.next_due_ns is not None
        gaps.append(pending.next_due_ns - now)
        now = pending.next_due_ns
    assert gaps[:3] == [BACKOFF_NS, 2 * BACKOFF_NS, 4 * BACKOFF_NS]
    assert gaps[-1] == MAX_BACKOFF_NS
    planned = pending.pop_due(now)
    assert planned is not None
    pending.schedule_after(planned, now, refused=False)
    assert pending.next_due_ns == now


def test_the_open_loop_never_backs_off() -> None:
    assert simulate(queue(), 1000, failed=True) == simulate(queue(), 1000)


def test_the_last_instant_is_known_when_nothing_more_can_follow() -> None:
    by_time = queue(control="concurrency", value=1.0, duration_s=10.0)
    assert by_time.last_ns(9 * SECOND) is None
    assert by_time.last_ns(10 * SECOND) == 10 * SECOND
    by_number = queue(control="concurrency", value=2.0, requests=2, duration_s=None)
    assert by_number.pop_due(SECOND) is not None
    assert by_number.pop_due(SECOND) is not None
    assert by_number.last_ns(SECOND) == 200_000  # the second slot's start


@settings(max_examples=30, deadline=None)
@given(
    turns=st.integers(1, 3),
    closed_s=st.floats(0.1, 20),
    control=st.sampled_from(["request_rate", "concurrency"]),
    requests=st.sampled_from([None, 40]),
)
def test_a_queue_that_is_closed_early_equals_one_of_that_duration(
    turns: int, closed_s: float, control: str, requests: int | None
) -> None:
    fields: dict[str, Any] = {
        "turns": turns,
        "control": control,
        "value": 3.0,
        "requests": requests,
    }
    whole, short = (
        queue(duration_s=length_s, **fields) for length_s in (10.0, min(closed_s, 10.0))
    )
    whole.close(round(closed_s * SECOND))
    assert simulate(whole, SECOND) == simulate(short, SECOND)
    assert whole.last_ns(20 * SECOND) == short.last_ns(20 * SECOND)
    assert list(whole.rest(20 * SECOND)) == []


@settings(max_examples=30, deadline=None)
@given(
    turns=st.integers(1, 3),
    requests=st.integers(1, 40),
    taken=st.integers(0, 10),
    open_loop=st.booleans(),
)
def test_requests_left_by_a_run_that_gives_up_are_all_named(
    turns: int, requests: int, taken: int, open_loop: bool
) -> None:
    control = (
        {"control": "request_rate", "value": 5.0}
        if open_loop
        else {"control": "concurrency", "value": 3.0}
    )
    pending = queue(turns=turns, requests=requests, duration_s=None, **control)
    taken_requests = []
    for _ in range(taken):
        planned = pending.pop_due(50 * SECOND)
        if planned is not None:
            taken_requests.append(planned)
    named = [entry.index for entry in pending.rest(50 * SECOND)]
    later = [
        turn.index for entry in taken_requests for turn in pending.later_turns(entry, 50 * SECOND)
    ]
    assert sorted([entry.index for entry in taken_requests] + later + named) == list(
        range(requests)
    )
    assert pending.next_due_ns is None
