"""What launches hold: GPU time costs, clients keep off nodes, hosts of others rest."""

from __future__ import annotations

from collections import Counter

import pytest

from orchestrator.plan.model import Deployment
from orchestrator.results.phases import LaunchState
from orchestrator.spec.settings import EngineSettings, Hardware
from orchestrator.sweep.admission import Reservation, Spending
from orchestrator.sweep.launch_state import LaunchEvent
from orchestrator.sweep.resource_request import ResourceRequest
from orchestrator.sweep.state import MeasurementCounts, SweepState
from tests.unit.sweep.simulation import node


def deployment(accelerator: str = "cpu", name: str = "d", **settings: int) -> Deployment:
    return Deployment(
        id=name,
        label=name,
        settings=EngineSettings(engine="vllm", model="m", **settings),
        hardware=Hardware(name="h", accelerator=accelerator, usd_per_gpu_hour=3.6),
        status="planned",
    )


def rests_s(state: SweepState, now_s: float, longer: bool) -> list[int]:
    """For how long a host rests that is given back again and again."""
    machines, rests = [node("a"), node("b")], []
    for _ in range(7):
        state.rest("10.0.0.a", now_s, longer)
        rests.append(
            next(s for s in range(1, 100) if len(state.that_may_be_tried(machines, now_s + s)) == 2)
        )
        now_s += rests[-1]
    return rests


def test_a_host_that_was_given_back_rests_longer_where_others_may_come() -> None:
    state, machines = SweepState(), [node("a"), node("b")]
    assert state.that_may_be_tried(machines, 0.0) == machines
    assert rests_s(state, 0.0, longer=False) == [2] * 7
    state.wake("10.0.0.a")
    assert rests_s(state, 0.0, longer=True) == [2, 4, 8, 16, 32, 60, 60]
    state.wake("10.0.0.a")
    state.rest("10.0.0.a", 500.0, longer=True)
    assert state.that_may_be_tried(machines, 501.9) == [machines[1]]
    assert state.that_may_be_tried(machines, 502.0) == machines


def test_no_other_launch_is_started_where_one_waits_for_its_host() -> None:
    state, machines = SweepState(), [node("a"), node("b")]
    first, second = deployment(name="d"), deployment(name="e")
    for waiting in (first, second):
        state.admitted(waiting, Reservation(ResourceRequest(), (), 0.0))
        state.waits_for(waiting, "10.0.0.a")
    state.advance(first, LaunchEvent.HOSTS_TAKEN)
    assert state.that_may_be_tried(machines, 1e9) == [machines[1]]
    assert state.waiting() == ["e"]
    state.advance(second, LaunchEvent.STOP_BEGAN)
    assert state.that_may_be_tried(machines, 0.0) == machines


def test_devices_cost_nothing_while_their_launch_waits_for_its_host() -> None:
    state, gpus = SweepState(), deployment("H100-80GB", "g")
    state.admitted(gpus, Reservation(ResourceRequest(), (), 0.0))
    state.placed(gpus, 0.0)
    state.waits_for(gpus, "10.0.0.a")
    assert state.spent(1000.0) == Spending()
    state.placed(gpus, 1000.0)
    assert state.spent(1100.0).gpu_s == 100.0


def test_a_place_in_line_is_kept_for_the_same_hosts() -> None:
    state = SweepState()
    state.keep_place("ba", 7)
    assert [state.place_in_line("a"), state.place_in_line("ab"), state.place_in_line("ab")] == [
        *(0, 7, 0)
    ]
    state.keep_place("ab", 7)
    state.wake("b")
    assert state.place_in_line("ab") == 0


def test_gpus_cost_from_their_placement_to_their_release_and_cores_cost_nothing() -> None:
    state, gpus, cores = (
        SweepState(),
        deployment("H100-80GB", "g", tensor_parallel_size=2),
        deployment(),
    )
    state.placed(gpus, 100.0)
    state.placed(cores, 100.0)
    assert state.spent(150.0) == Spending(100.0, pytest.approx(0.1))
    assert state.released(gpus, 200.0) == 100.0
    assert state.released(cores, 300.0) == 200.0
    assert state.spent(900.0) == Spending(200.0, pytest.approx(0.2))
    assert state.released(gpus, 900.0) is None


def test_what_others_do_now_is_set_aside_until_its_estimated_end() -> None:
    state, first, second = (
        SweepState(),
        *(deployment("H100-80GB", name, tensor_parallel_size=2) for name in "ab"),
    )
    state.admitted(first, Reservation(ResourceRequest(), (), 0.0))
    state.set_aside(first, 100.0, 10.0)
    assert state.aside_for_others(50.0, second.id).gpu_s == 200.0, "it waits for its GPUs"
    state.placed(first, 60.0)
    assert state.aside_for_others(100.0, second.id).gpu_s == 120.0
    assert state.spent(100.0).gpu_s == 80.0
    assert (
        state.aside_for_others(100.0, first.id)
        == state.aside_for_others(500.0, second.id)
        == Spending()
    )
    state.set_aside(first, 70.0, 110.0)
    assert state.aside_for_others(110.0, second.id).gpu_s == 140.0
    state.released(first, 120.0)
    assert state.aside_for_others(120.0, second.id) == Spending()


def test_clients_keep_off_nodes_of_engines() -> None:
    state, need = SweepState(), ResourceRequest(())
    state.admitted(deployment(name="mine"), Reservation(need, (("a", "b"),), 0.0))
    state.admitted(deployment(name="other"), Reservation(need, (("b",), ("c",)), 0.0))
    assert state.avoid("mine") == {"a": 1, "b": 2, "c": 2}


def test_a_launch_that_queues_again_keeps_its_record_and_gives_back_its_nodes() -> None:
    state, waiting = SweepState(), deployment()
    record = state.launch(waiting)
    state.admitted(waiting, Reservation(ResourceRequest(), (("a",),), 0.0))
    for event in (LaunchEvent.HOST_HELD, LaunchEvent.STOP_BEGAN, LaunchEvent.REQUEUED):
        state.advance(waiting, event)
    assert state.free_nodes(waiting)
    assert state.launch(waiting) is record
    assert state.reservations() == []


def test_a_launch_that_has_ended_loses_its_record() -> None:
    state, measured = SweepState(), deployment()
    record = state.launch(measured)
    state.admitted(measured, Reservation(ResourceRequest(), (("a",),), 0.0))
    for event in (LaunchEvent.HOSTS_TAKEN, LaunchEvent.STOP_BEGAN, LaunchEvent.STOPPED):
        state.advance(measured, event)
    assert not state.free_nodes(measured)
    assert state.launch(measured) is not record


def test_a_deployment_that_queues_again_after_its_withdrawal_has_a_new_launch() -> None:
    state, beaten = SweepState(), deployment()
    record = state.launch(beaten)
    state.withdraw(beaten)
    assert record.state is LaunchState.REFUSED
    assert state.launch(beaten).state is LaunchState.QUEUED


def test_counts_add_up_each_by_itself() -> None:
    counts = MeasurementCounts(1, 2, 3, 4, 5, Counter({"disturbed": 6}), 7, 8)
    state = SweepState()
    state.count(counts)
    state.count(counts)
    doubled = MeasurementCounts(2, 4, 6, 8, 10, Counter({"disturbed": 12}), 14, 16)
    assert state.counts == doubled
