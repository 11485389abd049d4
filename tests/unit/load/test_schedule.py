"""The global schedule: the same for any number of clients, each planned with exactly one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.base.errors import InputError
from orchestrator.load.point import LoadPoint, Target
from orchestrator.load.schedule import SLOT_STAGGER_NS, PlannedRequest, Schedule, share
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.load import Arrivals, Lengths, Level
from orchestrator.workloads.drawn import RandomWorkload
from orchestrator.workloads.kind import Message, Prompt, WorkloadKind


class Silent(WorkloadKind):
    """Requests of which only the number is asked for."""

    def prompt(self, session: int, turn: int, phase: str, earlier: Sequence[Message]) -> Prompt:
        raise AssertionError("a schedule asks for no prompt")

    def output_tokens(self, session: int, turn: int) -> int:
        raise AssertionError("nor for a length")


class Each(Silent):
    """Sessions that all have the same number of turns."""

    def __init__(self, turns: int = 1, think_time_s: float = 0.0) -> None:
        self.mean_turns = float(turns)
        self.think_time_s = think_time_s
        self._turns = turns

    def turns(self, session: int) -> int:
        return self._turns


def point(control: str = "request_rate", value: float = 20.0, **fields: Any) -> LoadPoint:
    defaults: dict[str, Any] = {
        "targets": (Target("http://127.0.0.1:1", "m"),),
        "dialect": Dialect("openai_completions", "/v1/completions"),
        "workload": RandomWorkload(
            name="w", input_tokens=Lengths(fixed=4), output_tokens=Lengths(fixed=4)
        ),
        "level": Level(control=control, value=value),  # type: ignore[arg-type]
        "duration_s": 10.0,
        "seed": 11,
    }
    return LoadPoint(**(defaults | fields))


def of_clients(load_point: LoadPoint, turns: int, clients: int) -> list[Schedule]:
    return [Schedule(load_point, Each(turns), client, clients) for client in range(clients)]


def merged(schedules: list[Schedule]) -> list[PlannedRequest]:
    """Every first-turn planned of all clients, in order of request_index."""
    found = [
        planned
        for schedule in schedules
        for session in schedule.own_sessions()
        if (planned := schedule.request(session, 0)) is not None
    ]
    return sorted(found, key=lambda planned: planned.index)


@settings(max_examples=60, deadline=None)
@given(
    process=st.sampled_from(["constant", "poisson", "gamma"]),
    rate=st.floats(0.5, 200),
    seed=st.integers(0, 2**63),
    turns=st.integers(1, 4),
    clients=st.integers(2, 9),
)
def test_any_number_of_clients_has_the_same_merged_schedule(
    process: str, rate: float, seed: int, turns: int, clients: int
) -> None:
    load_point = point(value=rate, seed=seed, arrivals=Arrivals(process=process, burstiness=0.7))
    of_one_client = merged(of_clients(load_point, turns, 1))
    of_many = merged(of_clients(load_point, turns, clients))
    assert of_many == of_one_client
    assert len({planned.index for planned in of_many}) == len(of_many)


@settings(max_examples=30, deadline=None)
@given(requests=st.integers(1, 300), turns=st.integers(1, 5), clients=st.integers(1, 8))
def test_a_number_of_requests_is_kept_exactly(requests: int, turns: int, clients: int) -> None:
    schedules = of_clients(point(requests=requests, duration_s=None), turns, clients)
    indices: list[int] = []
    for schedule in schedules:
        for session in schedule.own_sessions():
            indices += indices_of(schedule, session)
            assert schedule.request(session, schedule.turns(session)) is None
    assert sorted(indices) == list(range(requests))


def indices_of(schedule: Schedule, session: int) -> list[int]:
    """The request_index of each turn of a session, within the schedule."""
    indices = []
    for turn in range(schedule.turns(session)):
        planned = schedule.request(session, turn, due_ns=0)
        if planned is not None:
            indices.append(planned.index)
    return indices


def test_merged_poisson_arrivals_have_dispersion_one() -> None:
    for clients in (1, 2, 8):
        schedules = of_clients(point(value=50.0, duration_s=2000.0), 1, clients)
        due_s = np.array([planned.due_ns for planned in merged(schedules)]) / 1e9
        counts = np.histogram(due_s, np.arange(0, 2000.5, 1.0))[0]
        assert counts.var() / counts.mean() == pytest.approx(1.0, abs=0.12)


def test_sessions_arrive_at_the_rate_of_requests_over_turns() -> None:
    plain, talks = (
        Schedule(point(duration_s=500.0), Each(1)),
        Schedule(point(duration_s=500.0), Each(4)),
    )
    assert plain.sessions is not None
    assert talks.sessions is not None
    assert plain.sessions / talks.sessions == pytest.approx(4.0, rel=0.1)


def test_seeds_and_levels_give_other_schedules() -> None:
    def due(**fields: Any) -> list[int]:
        return Schedule(point(**fields), Each(1)).due_ns.tolist()

    assert due() == due()
    assert due() != due(seed=12)
    assert due() != due(value=21.0)


def test_the_warm_up_comes_before_the_measured_part_and_both_end() -> None:
    schedule = Schedule(point(warmup_s=2.0, duration_s=3.0), Each(1))
    phases = [schedule.phase(due) for due in schedule.due_ns.tolist()]
    assert phases == sorted(phases, reverse=True)  # all of warmup, then all of measure
    assert {"warmup", "measure"} == set(phases)
    assert schedule.due_ns[-1] < 5_000_000_000
    # a turn that comes too late is not scheduled
    assert schedule.request(0, 0, due_ns=5_000_000_000) is None


@given(total=st.integers(1, 500), clients=st.integers(1, 20))
def test_shares_add_up_and_differ_by_one_at_most(total: int, clients: int) -> None:
    parts = [share(total, client, clients) for client in range(clients)]
    assert sum(parts) == total
    assert max(parts) - min(parts) <= 1


@given(slots=st.integers(1, 40), clients=st.integers(1, 12))
def test_slots_are_split_among_clients_even_if_they_do_not_divide(slots: int, clients: int) -> None:
    schedules = of_clients(point("concurrency", float(slots)), 1, clients)
    starts = [start for schedule in schedules for start in schedule.slot_starts]
    assert sorted(starts) == [slot * SLOT_STAGGER_NS for slot in range(slots)]


@given(cap=st.integers(1, 20), clients=st.integers(1, 12))
def test_max_in_flight_is_shared_among_clients_that_get_sessions(cap: int, clients: int) -> None:
    schedules = of_clients(point(max_in_flight=cap), 1, clients)
    caps = [
        schedule.cap for schedule in schedules if next(schedule.own_sessions(), None) is not None
    ]
    assert all(caps)
    assert sum(part or 0 for part in caps) == cap
    assert len(merged(schedules)) == schedules[0].sessions


def test_a_closed_loop_by_time_has_sessions_without_end() -> None:
    schedule = Schedule(point("concurrency", 3.0), Each(1), 1, 2)
    assert schedule.sessions is None
    stripe = schedule.own_sessions()
    assert [next(stripe) for _ in range(3)] == [1, 3, 5]


class Varying(Silent):
    """Sessions of 1, 2, 3, 1, 2, 3, ... turns."""

    mean_turns = 2.0

    def turns(self, session: int) -> int:
        return 1 + session % 3


@settings(max_examples=30, deadline=None)
@given(requests=st.integers(1, 200), clients=st.integers(1, 5), open_loop=st.booleans())
def test_sessions_may_have_different_numbers_of_turns(
    requests: int, clients: int, open_loop: bool
) -> None:
    level = ("request_rate", 50.0) if open_loop else ("concurrency", 8.0)
    load_point = point(*level, requests=requests, duration_s=None)
    schedule = Schedule(load_point, Varying())
    indices: list[int] = []
    for client in range(clients):
        for session in Schedule(load_point, Varying(), client, clients).own_sessions():
            indices += indices_of(schedule, session)
    assert sorted(indices) == list(range(requests))
    assert schedule.request(0, 1, 0) is None, "a session ends with its own last turn"


def test_a_ramp_of_conversations_ends_at_its_rate_of_requests() -> None:
    """Sessions of 4 requests: 100 requests/s are 25 sessions/s, and 300 at the end are 75."""
    ramp = Arrivals(process="ramp", to=300.0)
    due_s = Schedule(point(value=100.0, arrivals=ramp, duration_s=100.0), Each(4)).due_ns / 1e9
    assert np.sum(due_s < 10.0) * 4 == pytest.approx(1100, rel=0.2)
    assert np.sum(due_s >= 90.0) * 4 == pytest.approx(2900, rel=0.2)


def test_an_infinite_rate_is_all_at_once_and_needs_a_number() -> None:
    at_once = point(value=float("inf"), requests=7, duration_s=None)
    assert Schedule(at_once, Each(1)).due_ns.tolist() == [0] * 7
    with pytest.raises(InputError, match="needs a number of requests"):
        Schedule(point(value=float("inf")), Each(1))


def test_more_arrivals_than_memory_holds_are_refused() -> None:
    with pytest.raises(InputError, match="requests would be due"):
        Schedule(point(value=1e9), Each(1))


def test_arrivals_beyond_what_instants_can_hold_are_refused() -> None:
    with pytest.raises(
        InputError, match="the last request would be due after .* a point may take 1e\\+09 s"
    ):
        Schedule(point(value=1e-11, requests=5, duration_s=None), Each(1))


class MetInTheMiddle(Each):
    """Sessions of four turns; the first of them, as many as are running, are met at their third."""

    def __init__(self, running: int = 0) -> None:
        super().__init__(4)
        self._running = running

    def at_level(self, level: Level, arrivals: Arrivals) -> MetInTheMiddle:
        return MetInTheMiddle(level.slots)

    def first_turn(self, session: int) -> int:
        return 2 if session < self._running else 0


def test_a_session_that_has_begun_is_met_at_its_turn_and_counts_only_what_is_sent() -> None:
    closed = point("concurrency", 3.0, requests=13, duration_s=None)
    schedule = Schedule(closed, MetInTheMiddle().at_level(closed.level, closed.arrivals))
    first = [schedule.first_request(session, due_ns=0) for session in range(5)]
    places = [(request.index, request.turn) for request in first if request is not None]
    assert places == [(0, 2), (2, 2), (4, 2), (6, 0), (10, 0)]
    assert schedule.turns(4) == 3, "the last session is cut where the number of requests ends"
    assert schedule.known_requests() == 13
    later = schedule.request(1, 3, due_ns=5)
    assert later is not None and later.index == 3
    assert schedule.request(1, 4, due_ns=5) is None


def test_only_a_closed_loop_meets_sessions_that_have_begun() -> None:
    assert point("request_rate", 20.0).level.slots == 0
    assert point("concurrency", 20.0).level.slots == 20
