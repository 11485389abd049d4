"""A sweep from its queue to its rows on a simulated cluster: order, failures, retries, resume,
budget, nodes.
"""

from __future__ import annotations

import json
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from orchestrator.analysis.points import load_points
from orchestrator.analysis.slo import parse_slo
from orchestrator.base.errors import (
    Failure,
    FailureClass,
    FailureKind,
    InputError,
    Occupied,
    PlacementError,
)
from orchestrator.capacity.best import best
from orchestrator.capacity.doubts import Remedy
from orchestrator.cluster.base import (
    ACCELERATOR_LABEL,
    Bundle,
    ClientLost,
    Footprint,
    Growth,
    HostLost,
    NodeType,
)
from orchestrator.node.readiness import Ready
from orchestrator.plan.make import make_plan
from orchestrator.report.words import exclusion_text
from orchestrator.results.events import Event, Phase
from orchestrator.results.records import AnswerRow, LaunchRow, PointRow
from orchestrator.results.schemas import rows_of
from orchestrator.results.store import Manifest, Store
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.experiment import Budget, parse_experiment
from orchestrator.sweep import engine_start
from orchestrator.sweep import sweep as sweep_module
from orchestrator.sweep.admission import choose
from orchestrator.sweep.resource_request import RETURN_S, ROOM_S
from orchestrator.sweep.state import SweepState, used_up
from tests.unit.sweep.simulation import (
    EXPERIMENT,
    FakeAgent,
    Placed,
    World,
    node,
    outcomes,
    plan_of,
    reply,
    steps,
    sweep,
    world_of,
)

OOM = Failure(FailureKind.OOM_LOAD, "It ran out of memory.")
DIED = Failure(FailureKind.ENGINE_DEAD, "It died.", log_tail="last words")
NEVER = Failure(FailureKind.NEVER_READY, "It was not ready in time.")
PORT = Failure(FailureKind.PORT_TAKEN, "A port is taken.")
MISSING = Failure(FailureKind.NO_EXECUTABLE, "The engine is not installed.")
EIGHT = ", ".join(f"{{tensor_parallel_size: {gpus}}}" for gpus in (1, 2, 4, 8)) + ", " + ", ".join(
    f"{{tensor_parallel_size: {gpus}, max_num_seqs: 8}}" for gpus in (1, 2, 4, 8)
)  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path), "x")


def launches(store: Store) -> list[LaunchRow]:
    rows = rows_of(store.read("launches", include_failed=True), LaunchRow)
    return sorted(rows, key=lambda row: row.started_unix_ns)


def points(store: Store) -> list[PointRow]:
    return rows_of(store.read("points", include_failed=True), PointRow)


# What a launch does, whatever fails: (step, what it does instead, the steps of the first launch,
# rows of its points)
ORDER = [
    (
        "",
        None,
        "place lease start ready clients prepare first prepare load stop release",
        [("ok", None)],
    ),
    ("place", PlacementError("no"), "place", [("ok", None)]),
    ("lease", PlacementError("no"), "place lease stop release", [("ok", None)]),
    ("start", HostLost("gone"), "place lease start stop release", [("ok", None)]),
    ("ready", OOM, "place lease start ready stop release", [("failed", "bad_config")]),
    ("ready", DIED, "place lease start ready stop release", [("ok", None)]),
    ("ready", HostLost("gone"), "place lease start ready stop release", [("ok", None)]),
    (
        "clients",
        PlacementError("no"),
        "place lease start ready clients stop release",
        [("ok", None)],
    ),
    ("first", DIED, "place lease start ready clients prepare first stop release", [("ok", None)]),
    (
        "first",
        "lost",
        "place lease start ready clients prepare first clients prepare first prepare load stop release",
        [("ok", None)],
    ),
    (
        "load",
        DIED,
        "place lease start ready clients prepare first prepare load stop release",
        [("failed", "engine_crash"), ("ok", None)],
    ),
    (
        "load",
        "lost",
        "place lease start ready clients prepare first prepare load clients prepare load stop release",
        [("failed", "infra"), ("ok", None)],
    ),
    (
        "stop",
        HostLost("gone"),
        "place lease start ready clients prepare first prepare load stop release",
        [("ok", None)],
    ),
]


@pytest.mark.parametrize(
    ("step", "instead", "order", "rows"), ORDER, ids=lambda value: str(value)[:24]
)
def test_a_launch_does_its_steps_in_order_and_always_stops_and_releases(
    step: str, instead: Any, order: str, rows: list[tuple[str, str | None]], store: Store
) -> None:
    world = world_of(fails={step: [instead]} if step else {})
    sweep(world, plan_of(), store)
    first = order.split()
    assert world.log[: len(first)] == first
    assert outcomes(store) == rows
    assert world.held == {}
    assert steps(world)["place"] == steps(world)["release"] + (step == "place")


@pytest.mark.parametrize(("failure", "tries"), [(OOM, 1), (DIED, 2), (NEVER, 2), (PORT, 4)])
def test_a_start_is_tried_as_often_as_its_class_allows_then_every_open_measurement_is_a_failed_row(
    failure: Failure, tries: int, store: Store
) -> None:
    world = world_of(fails={"ready": [failure] * 9})
    report = sweep(world, plan_of(levels="1, 2"), store)
    assert steps(world)["ready"] == tries == failure.failure_class.retries + 1
    assert outcomes(store) == [("failed", str(failure.failure_class))] * 2
    assert (report.counts.measured, report.counts.failed) == (0, 2)
    assert [row.failure_kind for row in launches(store)] == [str(failure.kind)] * tries


def test_deaths_under_load_count_for_their_measurement_and_the_others_are_measured(
    store: Store,
) -> None:
    world = world_of(fails={"load": [DIED, None, DIED]})
    report = sweep(world, plan_of(levels="1, 2, 4"), store)
    # the first dies, is measured on the second launch; the second dies there and is measured on the
    # third
    assert outcomes(store) == [
        ("failed", "engine_crash"),
        ("ok", None),
        ("failed", "engine_crash"),
        ("ok", None),
        ("ok", None),
    ]
    assert (report.counts.measured, report.counts.failed, len(launches(store))) == (3, 0, 3)


def test_a_measurement_under_which_the_engine_dies_twice_is_given_up_and_the_next_one_measured(
    store: Store,
) -> None:
    world = world_of(fails={"load": [DIED, DIED]})
    report = sweep(world, plan_of(levels="1, 2"), store)
    assert outcomes(store) == [("failed", "engine_crash")] * 2 + [("ok", None)]
    assert (report.counts.measured, report.counts.failed) == (1, 1)
    assert {row.log_tail for row in points(store) if row.status == "failed"} == {"last words"}


def test_an_engine_found_dead_seconds_after_its_last_error_fails_the_point(store: Store) -> None:
    sweep(world_of(fails={"load": ["dying"]}), plan_of(), store)
    assert outcomes(store) == [("failed", "engine_crash"), ("ok", None)]
    assert {row.reason for row in points(store)} == {"It died late.", None}


def test_requests_that_are_refused_fail_the_point_once_and_the_engine_goes_on(store: Store) -> None:
    world = world_of(fails={"load": ["refused"]})
    report = sweep(world, plan_of(levels="1, 2"), store)
    assert outcomes(store) == [("failed", "bad_config"), ("ok", None)]
    assert (report.counts.failed, len(launches(store))) == (1, 1)


def test_an_engine_that_answers_nothing_gets_another_launch(store: Store) -> None:
    sweep(world_of(fails={"load": ["broken"]}), plan_of(), store)
    assert outcomes(store) == [("failed", "engine_crash"), ("ok", None)]
    assert [row.status for row in launches(store)] == ["failed", "ok"]


def test_a_point_that_its_clients_slowed_down_is_repeated_with_twice_as_many_up_to_the_clusters(
    store: Store,
) -> None:
    world = world_of(fails={"load": ["slow", "slow", "slow"]}, client_limit=4)
    sweep(world, plan_of(), store)
    assert world.crowds == [1, 2, 4]
    assert outcomes(store) == [("failed", "client_bound")] * 2 + [("ok", None)]
    assert [row.validity for row in points(store) if row.status == "ok"] == ["client_bound"]


def test_no_more_clients_are_asked_for_than_there_are_requests_in_flight(store: Store) -> None:
    world = world_of(fails={"load": ["slow", "slow"]}, client_limit=64)
    sweep(world, plan_of(levels="2"), store)
    assert world.crowds == [1, 2]


def test_a_repeated_attempt_sends_other_prompts_and_its_row_has_their_seed(store: Store) -> None:
    world = world_of(fails={"load": ["slow"]})
    sweep(world, plan_of(), store)
    seeds = [load.seed for load in world.loads]
    assert len(set(seeds)) == 2
    assert sorted(row.seed for row in points(store)) == sorted(seeds)


def test_a_measurement_that_loses_its_client_again_and_again_is_given_up(store: Store) -> None:
    world = world_of(fails={"load": ["lost"] * 9})
    report = sweep(world, plan_of(), store)
    tries = FailureClass.INFRA.retries + 1
    assert outcomes(store) == [("failed", "infra")] * tries
    assert (report.counts.failed, len(launches(store))) == (1, 1)


def test_the_requests_of_a_lost_client_are_rows(store: Store) -> None:
    sweep(world_of(fails={"load": ["lost"]}), plan_of(), store)
    rows = store.read("requests", include_failed=True)
    assert "lost" in rows.column("status").to_pylist()
    assert sum(row.requests_scheduled for row in points(store)) == rows.num_rows


@pytest.mark.parametrize(
    "error", [InputError("no tokenizer at /models/x"), ClientLost([0], "killed")]
)
def test_what_cannot_even_begin_is_a_row_that_says_why(error: Exception, store: Store) -> None:
    # the first is for the one request before the points
    world = world_of(fails={"prepare": [None, error]})
    sweep(world, plan_of(), store)
    row = min(points(store), key=lambda row: row.attempt_id)
    assert row.status == "failed"
    assert str(error) in str(row.reason)


def test_an_error_of_this_program_in_one_launch_does_not_end_the_sweep(store: Store) -> None:
    world = world_of(fails={"start": [ValueError("a bug")]})
    report = sweep(world, plan_of(), store)
    assert report.counts.measured == 1
    assert (launches(store)[0].failure_kind, launches(store)[0].failure_class) == (
        "internal",
        "infra",
    )


def test_infrastructure_is_tried_again_on_another_node_where_one_is_free(store: Store) -> None:
    world = world_of([node("a"), node("b")], fails={"ready": [PORT]})
    sweep(world, plan_of(), store)
    places = [row.placement_json for row in launches(store)]
    assert len(places) == 2
    assert '"node_id": "a"' in str(places[0])
    assert '"node_id": "b"' in str(places[1])


def test_named_hardware_runs_where_the_clusters_label_does_not_deny_it(store: Store) -> None:
    others = {
        name: node(name, **{ACCELERATOR_LABEL: kind})
        for name, kind in (("a", "A100"), ("b", "H100"))
    }
    report = sweep(world_of(list(others.values())), plan_of("{}, {tensor_parallel_size: 2}"), store)
    assert (report.counts.measured, report.counts.failed) == (2, 0)
    assert all('"node_id": "b"' in str(row.placement_json) for row in launches(store))


def test_running_again_measures_what_is_not_yet_committed_whenever_the_driver_died(
    store: Store, tmp_path: Path
) -> None:
    plan = plan_of("{tensor_parallel_size: 1}, {tensor_parallel_size: 2}", levels="1, 2")
    for commits in range(1, 5):
        there = Store.open(str(tmp_path / str(commits)), "x")
        with pytest.raises(Killed):
            sweep(world_of(), plan, Dying(there, commits))  # type: ignore[arg-type]
        assert len(there.winners()) < 4
        done = len(there.winners())
        again = world_of()
        report = sweep(again, plan, there)
        assert (report.counts.skipped, report.counts.measured) == (done, 4 - done)
        assert len(there.winners()) == 4
        assert len(again.loads) == 4 - done
    once_more = world_of()
    assert sweep(once_more, plan, there).counts.skipped == 4
    assert once_more.log == []


@pytest.mark.parametrize("table", ["requests", "points"])
def test_what_lost_a_file_is_measured_again_although_its_figures_were_computed(
    store: Store, tmp_path: Path, table: str
) -> None:
    sweep(world_of(), plan_of(), store)
    assert sum(rows.num_rows for rows in store.computed.scan([])) == 1
    for path in (tmp_path / "x" / "data" / table).rglob("*.parquet"):
        path.unlink()
    report = sweep(world_of(), plan_of(), Store.open(store.uri, "x"))
    assert (report.counts.skipped, report.counts.measured) == (0, 1)
    assert sweep(world_of(), plan_of(), Store.open(store.uri, "x")).counts.skipped == 1


@pytest.mark.parametrize(("interrupt_s", "files", "points"), [(None, 4, 12), (200.0, 3, 8)])
def test_figures_of_points_that_end_together_are_one_file_and_all_are_there_at_the_end(
    store: Store, tmp_path: Path, interrupt_s: float | None, files: int, points: int
) -> None:
    cases = ", ".join(f"{{max_num_seqs: {most}}}" for most in range(1, 5))
    sweep(
        world_of([node(name) for name in "abcd"]),
        plan_of(cases, levels="1, 2, 4"),
        store,
        interrupt_s,
    )
    assert len(list((tmp_path / "x" / "computed").glob("*/attempts/*.parquet"))) == files
    assert sum(rows.num_rows for rows in Store.open(store.uri, "x").computed.scan([])) == points


class Killed(BaseException):
    """The driver dies."""


class Dying:
    """A store after so many commits of which the driver is gone."""

    def __init__(self, store: Store, commits: int) -> None:
        self._store, self._left = store, commits

    def commit(self, manifest: Manifest) -> None:
        if not self._left:
            raise Killed
        self._left -= 1
        self._store.commit(manifest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


# two deployments of 4 GPUs, each 12 s of start (60 s are expected of the first), then two points of
# 70 s
TWO = "{tensor_parallel_size: 4}, {tensor_parallel_size: 4, max_num_seqs: 8}"


@pytest.mark.parametrize(
    ("budget", "measured"),
    [
        *(
            ("{gpu_hours: 0.05}", 0),
            ("{gpu_hours: 0.15}", 1),
            ("{wall: 160s}", 2),
            ("{gpu_hours: 9}", 4),
        ),
        *(("{usd: 0.5}", 0), ("{usd: 0.62}", 2), ("{usd: 32}", 4)),  # 0.001 for a second of a GPU
    ],
)
def test_a_budget_ends_the_sweep_and_what_is_left_out_is_no_failure(
    budget: str, measured: int, store: Store
) -> None:
    world, plan = world_of(), plan_of(TWO, levels="1, 2", more=f"budget: {budget}")
    state = SweepState()
    report = sweep(world, plan, store, state=state)  # one node, exclusive: one after the other
    assert (
        used_up(plan.budget or Budget(), state.spent(world.clock.now_s()), world.clock.now_s())
        is None
    )
    assert (report.counts.measured, report.counts.left_out, report.counts.failed) == (
        measured,
        4 - measured,
        0,
    )
    assert len(outcomes(store)) == measured
    assert (measured == 4) != any(
        "budget" in one.text for one in world.told if isinstance(one, Event)
    )


@pytest.mark.parametrize("budget", ["gpu_hours: 0.3415", "usd: 1.23"])
def test_a_launch_waits_for_what_the_points_of_others_leave_of_the_budget(
    budget: str, store: Store
) -> None:
    """From second 82 to 152 all 8 GPUs of a node run a point that the budget pays for (1,224 GPU
    seconds by then). The node that comes meanwhile would start an engine on 4 GPUs with what is not
    used yet.
    """
    world, state = world_of(), SweepState()
    world.clock.at(90.0, lambda: world.nodes.append(node("b")))
    plan = plan_of(
        "{tensor_parallel_size: 8}, {tensor_parallel_size: 4}", "1, 2", f"budget: {{{budget}}}"
    )
    report = sweep(world, plan, store, state=state)
    assert used_up(plan.budget or Budget(), state.spent(world.clock.now_s()), 0.0) is None
    assert (report.counts.measured, report.counts.left_out, steps(world)["start"]) == (2, 2, 1)


def test_a_launch_that_others_leave_nothing_of_the_budget_goes_on_when_they_used_less(
    store: Store,
) -> None:
    """Eight GPUs start an engine that dies at once; until then its start and first point count as
    spent.
    """
    world, state = (
        world_of(
            [node("a", gpus=1)],
            ready_after_s=60.0,
            autoscaler=True,
            fails={"ready": [None, OOM, None]},
        ),
        SweepState(),
    )
    world.clock.at(120.0, lambda: world.nodes.append(node("b")))
    plan = plan_of(
        "{tensor_parallel_size: 1}, {tensor_parallel_size: 8}",
        "1, 2, 3, 4, 5",
        "budget: {gpu_hours: 0.34}",
    )
    sweep(world, plan, store, state=state)
    assert [one.status for one in points(store)].count("ok") == 5
    assert state.spent(world.clock.now_s()).gpu_s <= 0.34 * 3600


def test_of_launches_that_could_start_at_once_only_those_do_that_the_budget_pays_for(
    store: Store,
) -> None:
    """It pays for the start and one point of one; together they would use it up with nothing
    measured.
    """
    world, state = world_of([node("a"), node("b")]), SweepState()
    report = sweep(
        world, plan_of(TWO, levels="1, 2", more="budget: {gpu_hours: 0.15}"), store, state=state
    )
    assert (report.counts.measured, steps(world)["start"]) == (1, 1)
    assert state.spent(world.clock.now_s()).gpu_s <= 0.15 * 3600


@pytest.mark.parametrize("usd", [0.5 + 0.25 * at for at in range(12)])
def test_no_budget_is_exceeded_side_by_side_whenever_nodes_come(usd: float, store: Store) -> None:
    world, state = world_of(), SweepState()
    for name, at_s in (("b", 30.0), ("c", 90.0), ("d", 125.0)):
        world.clock.at(at_s, partial(world.nodes.append, node(name)))
    sweep(world, plan_of(EIGHT, levels="1, 2", more=f"budget: {{usd: {usd}}}"), store, state=state)
    assert state.spent(world.clock.now_s()).usd <= usd


def test_no_engine_is_started_whose_start_the_budget_does_not_pay_for(store: Store) -> None:
    # 4 GPUs for 60 s of start and 72 s of a point are 0.147 GPU hours, the point alone 0.08
    world = world_of()
    report = sweep(
        world,
        plan_of("{tensor_parallel_size: 4}", levels="1, 2", more="budget: {gpu_hours: 0.1}"),
        store,
    )
    assert (report.counts.left_out, steps(world)["start"], len(launches(store))) == (2, 0, 0)


def test_a_point_counts_with_as_much_more_as_the_slowest_so_far_took(store: Store) -> None:
    # it starts until 12 s, the first point drains until 112 s; another one like that ends at 212 s
    world = world_of()
    world.fails["load"] = ["drains"]
    report = sweep(
        world,
        plan_of("{tensor_parallel_size: 4}", levels="1, 2", more="budget: {wall: 200s}"),
        store,
    )
    assert (report.counts.measured, report.counts.left_out) == (1, 1)


def test_an_interrupted_sweep_stops_its_engines_and_keeps_what_was_measured(store: Store) -> None:
    world = world_of([node("a"), node("b")])
    # in the second points
    report = sweep(world, plan_of(TWO, levels="1, 2"), store, interrupt_s=100.0)
    assert (report.interrupted, report.left) == (True, 2)
    assert (report.counts.measured, outcomes(store)) == (2, [("ok", None)] * 2)
    assert steps(world)["stop"] == steps(world)["release"] == 2
    assert world.held == {}
    assert sweep(world_of([node("a")]), plan_of(TWO, levels="1, 2"), store).counts.skipped == 2


# one launch places until 1, starts until 11, gives its first answers until 12, loads until 82, then
# the second point
@pytest.mark.parametrize(
    "when_s", [0.0, 0.5, 1.0, 5.0, 11.5, 12.0, 15.0, 40.0, 81.9, 82.0, 83.0, 120.0, 150.5]
)
def test_an_interrupt_in_any_phase_leaves_nothing_running_and_loses_nothing_that_was_measured(
    when_s: float, store: Store
) -> None:
    world = world_of()
    report = sweep(world, plan_of(levels="1, 2"), store, interrupt_s=when_s)
    assert report.interrupted
    assert report.left == 2 - report.counts.measured
    assert (world.held, outcomes(store)) == ({}, [("ok", None)] * report.counts.measured)
    assert len(launches(store)) == steps(world)["place"]
    logs = [store.read_log(row.log_uri) for row in launches(store) if row.log_uri]
    assert logs == [b"the log"] * steps(world)["start"]
    assert world.clock.now_s() < when_s + 5
    again = sweep(world_of(), plan_of(levels="1, 2"), store)
    assert (again.counts.skipped, again.counts.measured, again.left) == (
        report.counts.measured,
        report.left,
        0,
    )


def test_a_sweep_that_ends_by_itself_was_not_stopped(store: Store) -> None:
    # what the run's record says, and whether the storage is tried again afterwards
    stop = threading.Event()
    assert sweep(world_of(), plan_of(), store, stop=stop).counts.measured == 1
    assert not stop.is_set()


def test_an_interrupt_after_the_last_measurement_is_none(store: Store) -> None:
    report = sweep(world_of(), plan_of(), store, interrupt_s=82.5)  # its engine is being stopped
    assert (report.interrupted, report.counts.measured) == (False, 1)


def test_what_is_complete_is_committed_before_engines_are_waited_for(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    class GraceOver(BaseException):
        """`ray job stop` sends SIGKILL."""

    def never(agent: FakeAgent) -> None:
        raise GraceOver

    monkeypatch.setattr(FakeAgent, "stop", never)
    sweep(world_of(), plan_of(levels="1, 2"), store, interrupt_s=100.0)
    assert (outcomes(store), [row.status for row in launches(store)]) == ([("ok", None)], ["ok"])


@pytest.mark.parametrize(
    ("failure", "again"),
    [(OOM, False), (MISSING, True), (DIED, True), (NEVER, True), (PORT, True)],
    ids=lambda value: str(value)[:40],
)
def test_what_failed_is_tried_again_by_the_next_sweep_unless_its_configuration_is_wrong(
    failure: Failure, again: bool, store: Store
) -> None:
    plan = plan_of(levels="1, 2")
    sweep(world_of(fails={"ready": [failure] * 9}), plan, store)
    world = world_of()
    counts = sweep(world, plan, store).counts
    assert (counts.measured, counts.refused) == ((2, 0) if again else (0, 2))
    assert bool(world.log) == again
    told = [one.text for one in world.told if isinstance(one, Event) and one.kind == "refused"]
    assert told == ([] if again else [f"2 measurements {WRONG}"])


def disturbed(*_: object) -> World:
    return world_of(fails={"disturbed": [True]})


def test_what_was_spoilt_is_measured_again_and_the_valid_attempt_counts(store: Store) -> None:
    plan = plan_of(levels="1, 2")
    first = sweep(disturbed(), plan, store).counts
    assert (first.measured, first.spoilt) == (2, 2)
    world = world_of()
    second = sweep(world, plan, store).counts
    assert (second.measured, second.skipped, second.spoilt) == (2, 0, 0)
    told = [one.text for one in world.told if isinstance(one, Event) and one.kind == "open_again"]
    assert told == ["2 measurements open again: 2 disturbed"]
    assert {point.validity for point in load_points(store)} == {"valid"}
    assert [row.validity for row in rows_of(store.read("points"), PointRow)] == ["valid"] * 2
    third = sweep(world_of(), plan, store).counts
    assert (third.measured, third.skipped) == (0, 2), "a valid attempt counts for ever"


def test_what_is_spoilt_again_and_again_is_kept_after_so_many_tries(store: Store) -> None:
    done = [sweep(disturbed(), plan_of(), store).counts.measured for _ in range(4)]
    assert done == [1, 1, 1, 0], "once, and twice again"
    world = world_of()
    counts = sweep(world, plan_of(), store).counts
    assert (counts.measured, counts.skipped, counts.kept) == (0, 1, 1)
    told = [one.text for one in world.told if isinstance(one, Event) and one.kind == "kept"]
    assert told == ["1 measurement kept as they are: 1 disturbed; --again 3 tries once more"]
    assert sweep(world_of(), plan_of(), store, most_again=3).counts.measured == 1
    assert [point.validity for point in load_points(store)] == ["valid"]


def test_each_try_at_a_spoilt_measurement_sends_other_prompts(store: Store) -> None:
    for _ in range(2):
        sweep(disturbed(), plan_of(), store)
    assert len({row.seed for row in points(store)}) == 2


def test_nothing_spoilt_is_measured_again_if_the_user_wants_none(store: Store) -> None:
    sweep(disturbed(), plan_of(), store)
    assert sweep(world_of(), plan_of(), store, most_again=0).counts.measured == 0


WRONG = "failed before and would fail again; --retry-failed tries them again"


def test_a_wrong_configuration_is_tried_again_on_demand_or_once_it_is_another_one(
    store: Store,
) -> None:
    sweep(world_of(fails={"ready": [OOM]}), plan_of(), store)
    assert (
        sweep(world_of(fails={"ready": [OOM]}), plan_of(), store, retry_failed=True).counts.failed
        == 1
    )
    changed = plan_of("{tensor_parallel_size: 2}")
    assert sweep(world_of(), changed, store).counts.measured == 1
    assert sweep(world_of(), plan_of(), store, retry_failed=True).counts.measured == 1
    once_more = sweep(world_of(), plan_of(), store).counts
    assert (once_more.skipped, once_more.refused) == (1, 0)  # what is measured stays measured


def test_of_several_attempts_the_last_says_whether_it_is_tried_again(store: Store) -> None:
    sweep(world_of(fails={"load": ["refused"]}), plan_of(levels="1, 2"), store)
    counts = sweep(
        world_of(fails={"load": [DIED, DIED]}), plan_of(levels="1, 2"), store, retry_failed=True
    ).counts
    assert (counts.skipped, counts.failed) == (1, 1)
    assert sweep(world_of(), plan_of(levels="1, 2"), store).counts.measured == 1


def test_one_point_that_is_refused_keeps_no_other_from_being_measured(store: Store) -> None:
    sweep(world_of(fails={"load": ["refused", DIED, DIED]}), plan_of(levels="1, 2"), store)
    counts = sweep(world_of(), plan_of(levels="1, 2"), store).counts
    assert (counts.refused, counts.measured) == (1, 1)


REPEATED = "repeats: 4\nstarts: 2"


def starts(store: Store) -> list[tuple[int, int | None]]:
    """Repeat and start of every ok measurement, in the order in which they were measured."""
    rows = [row for row in points(store) if row.status == "ok"]
    return [(row.repeat, row.start) for row in sorted(rows, key=lambda row: row.started_unix_ns)]


def test_starts_share_the_repeats_of_every_point(store: Store) -> None:
    report = sweep(world_of(), plan_of(levels="1, 2", more=REPEATED), store)
    assert (report.counts.measured, len(launches(store))) == (8, 2)
    assert starts(store) == [(0, 0)] * 2 + [(1, 0)] * 2 + [(2, 1)] * 2 + [(3, 1)] * 2
    of = {row.start: row.launch_id for row in points(store)}
    assert all(of[row.start] == row.launch_id for row in points(store))
    assert len(set(of.values())) == 2


def test_a_launch_that_is_retried_is_no_other_start(store: Store) -> None:
    sweep(
        world_of(fails={"load": [None, DIED], "ready": [None, None, PORT]}),
        plan_of(more=REPEATED),
        store,
    )
    assert [row.status for row in launches(store)] == ["failed", "ok", "failed", "ok"]
    assert starts(store) == [(0, 0), (1, 0), (2, 1), (3, 1)]


@pytest.mark.parametrize("when_s", [100.0, 200.0, 300.0])
def test_a_sweep_that_goes_on_keeps_what_belongs_to_which_start(
    when_s: float, store: Store
) -> None:
    plan = plan_of(more=REPEATED)
    assert sweep(world_of(), plan, store, interrupt_s=when_s).interrupted
    sweep(world_of(), plan, store)
    assert sorted(starts(store)) == [(0, 0), (1, 0), (2, 1), (3, 1)]


def test_each_start_that_fails_counts_for_itself(store: Store) -> None:
    world = world_of(fails={"ready": [DIED, None, DIED]})
    assert sweep(world, plan_of(more="repeats: 2\nstarts: 2"), store).counts.measured == 2


@pytest.mark.parametrize(("keeps", "state"), [(False, "emptied"), (True, "unknown")])
def test_a_row_says_whether_the_prefix_cache_was_emptied_before_it(
    keeps: bool, state: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Dialect, "salted", lambda self, salt: self)  # an API without salts
    sweep(world_of(keeps_cache=keeps), plan_of(), store)
    assert [row.cache_state for row in points(store)] == [state]


def test_clients_know_how_many_tokens_a_speculative_step_may_make(store: Store) -> None:
    world = world_of()
    sweep(world, plan_of("{speculative: {method: ngram, num_speculative_tokens: 3}}"), store)
    assert [load.dialect.tokens_per_step for load in world.loads] == [4]


def test_every_attempt_has_a_salt_of_its_own_where_the_api_takes_one(store: Store) -> None:
    world = world_of()
    sweep(world, plan_of(levels="1, 2"), store)
    assert [row.cache_state for row in points(store)] == ["salted", "salted"]
    assert [load.dialect.extra_body["cache_salt"] for load in world.loads] == [
        load.attempt_id for load in world.loads
    ]
    assert len({load.attempt_id for load in world.loads}) == 2


@pytest.mark.parametrize(
    ("owner", "refuses", "state"),
    [
        ("vllm", False, "salted"),
        ("vllm", True, "unknown"),
        ("llamacpp", False, "unknown"),
        (None, False, "unknown"),
    ],
)
def test_an_endpoint_gets_a_salt_where_it_says_that_an_engine_with_one_owns_its_model(
    owner: str | None, refuses: bool, state: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"proofs": "name"} | ({"owned_by": owner} if owner else {})
    monkeypatch.setattr(engine_start, "wait_ready", lambda *given: Ready(said, "1.0"))
    world = world_of(fails={"first": ["refused", "refused", None]} if refuses else {})
    sweep(
        world,
        plan_of("{engine: endpoint, url: 'http://h:1', hardware: null}", levels="1, 2"),
        store,
    )
    assert [row.cache_state for row in points(store)] == [state] * 2
    salts = [load.dialect.extra_body.get("cache_salt") for load in world.loads]
    assert salts == [load.attempt_id if state == "salted" else None for load in world.loads]


@pytest.mark.parametrize(
    ("says", "salted", "counted"),
    [
        ([None, "refused", "refused", None], [True, False], [False, False]),
        ([None, "redirected"], [True, True], [False, False]),
        ([None, "uncounted"], [True, True], [False, True]),
    ],
)
def test_every_api_of_a_server_says_for_itself_what_it_takes(
    says: list[Any], salted: list[bool], counted: list[bool], store: Store
) -> None:
    chat = ", {name: chat, api: chat, input_tokens: 4, output_tokens: 2}]"
    text = EXPERIMENT.format(cases="{}", levels="1, 2").replace(
        "output_tokens: 2}]", "output_tokens: 2}" + chat
    )
    world, prompts = world_of(fails={"first": [*says]}), len(says)
    sweep(world, make_plan(parse_experiment(text, "x.yaml")), store)
    asked = {load.dialect.path: load for load in world.loads}
    assert [path.split("/")[-2] for path in asked] == ["v1", "chat"]
    assert ["cache_salt" in load.dialect.extra_body for load in asked.values()] == salted
    assert [load.count_text for load in asked.values()] == counted
    assert (len(world.loads), len(world.firsts)) == (4, prompts)
    assert {row.validity for row in points(store)} == {"valid"}


def test_an_endpoint_that_redirects_every_request_is_not_loaded_at_all(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_start, "wait_ready", lambda *given: Ready({"proofs": "name"}, "1.0"))
    world = world_of(fails={"first": ["redirected"]})
    sweep(
        world,
        plan_of("{engine: endpoint, url: 'http://h:1', hardware: null}", levels="1, 2"),
        store,
    )
    assert outcomes(store) == [("failed", "bad_config")] * 2
    assert [row.failure_kind for row in points(store)] == ["requests_refused"] * 2
    assert str(points(store)[0].reason).endswith("it is at /there.")
    assert (len(world.firsts), world.loads) == (1, [])


def test_a_node_that_is_lost_fails_its_launch_and_the_rest_is_measured_elsewhere(
    store: Store,
) -> None:
    world = world_of([node("a"), node("b")])
    world.clock.at(100.0, lambda: world.lose("a"))
    report = sweep(world, plan_of(levels="1, 2"), store)
    assert outcomes(store) == [("ok", None), ("failed", "infra"), ("ok", None)]
    assert report.counts.measured == 2
    assert "engine.log" in str(launches(store)[0].reason)


def test_a_node_that_joins_is_used_at_once(store: Store) -> None:
    world = world_of([node("a")])
    world.clock.at(20.0, lambda: world.nodes.append(node("b")))
    report = sweep(world, plan_of(TWO), store)
    assert world.most_held == 2
    assert report.wall_s < 120


def test_a_lost_node_is_waited_for_before_its_deployments_are_given_up(store: Store) -> None:
    world = world_of([node("a")])
    world.clock.at(40.0, lambda: world.lose("a"))
    world.clock.at(70.0, lambda: world.nodes.append(node("c")))
    assert sweep(world, plan_of(), store).counts.measured == 1


def test_a_node_that_came_late_and_was_lost_is_waited_for_anew(store: Store) -> None:
    world = world_of([])
    world.clock.at(3.0, lambda: world.nodes.append(node("a")))
    world.clock.at(45.0, lambda: world.lose("a"))
    world.clock.at(45.0 + RETURN_S - 20.0, lambda: world.nodes.append(node("c")))
    assert sweep(world, plan_of(), store).counts.measured == 1


def test_a_sweep_ends_with_what_the_cluster_raises_while_launches_are_chosen(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(footprints: object, taken: object) -> None:
        if footprints:
            raise RuntimeError("the cluster is gone")

    world = growing(1, 1)
    monkeypatch.setattr(world, "desire", refuse)
    with pytest.raises(RuntimeError, match="the cluster is gone"):
        sweep(world, plan_of(TWO), store)


def test_what_a_node_refuses_costs_its_own_launch_and_not_the_sweep(store: Store) -> None:
    world = world_of(fails={"start": [InputError("unknown engine 'theirs'"), None]})
    report = sweep(world, plan_of(TWO), store)
    assert (report.counts.measured, report.counts.failed) == (1, 1)
    assert {row.failure_kind for row in launches(store)} == {"bad_config", None}


@pytest.mark.parametrize("what", ["stop", "release"])
def test_a_launch_that_cannot_be_stopped_in_order_is_committed_and_the_others_go_on(
    store: Store, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def broken(self: object) -> None:
        raise OSError("the GPU is lost")

    monkeypatch.setattr(FakeAgent if what == "stop" else Placed, what, broken)
    world = world_of([node("a"), node("b")])
    report = sweep(world, plan_of(TWO), store)
    assert (report.counts.measured, report.counts.failed) == (2, 0)
    assert len(launches(store)) == 2
    assert any("GPU is lost" in event.text for event in world.told if isinstance(event, Event))


def test_a_lost_node_that_stays_away_gives_up_what_needs_it(store: Store) -> None:
    world = world_of([node("a")])
    world.clock.at(40.0, lambda: world.lose("a"))
    report = sweep(world, plan_of(), store)
    assert (report.counts.failed, launches(store)[-1].failure_kind) == (1, "no_room")
    assert 40 + RETURN_S <= report.wall_s < 60 + RETURN_S


def test_what_no_node_can_hold_is_given_up_with_the_sentence_why_and_the_others_go_on(
    store: Store,
) -> None:
    world = world_of([node("a", gpus=4)])
    report = sweep(
        world, plan_of("{tensor_parallel_size: 8}, {tensor_parallel_size: 4}, {replicas: 5}"), store
    )
    assert (report.counts.measured, report.counts.failed) == (1, 2)
    rows = [row for row in launches(store) if row.status == "failed"]
    assert {row.failure_kind for row in rows} == {"no_room"}
    assert {row.reason for row in rows} == {
        "No room: the cluster's 1 node cannot hold one node with 8 GPUs (H100-80GB), and it has no autoscaler.",
        "No room: the cluster's 1 node cannot hold 5 x one node with 1 GPU (H100-80GB), and it has no autoscaler.",
    }
    assert min(row.started_unix_ns for row in rows) >= 10**18 + ROOM_S * 1e9
    assert len(points(store)) == 3
    failed = [event for event in world.told if isinstance(event, Event) and event.kind == "failed"]
    assert [event.data["told"] for event in failed] == [True, True], "the launch said why"


def growing(up: int, can_add: int, **given: Any) -> World:
    return world_of(
        [node(f"up{at}") for at in range(up)],
        grows_by=[node(f"new{at}") for at in range(can_add)],
        autoscaler=True,
        **given,
    )


@pytest.mark.parametrize("up", [0, 1, 2])
def test_an_autoscaling_cluster_grows_for_the_whole_queue_and_all_run_side_by_side(
    up: int, store: Store
) -> None:
    world = growing(up, 8)
    report = sweep(world, plan_of(EIGHT), store)
    assert report.counts.measured == 8
    assert world.most_held == 8
    assert report.wall_s < 180  # 60 s until the nodes are there, then one launch each
    assert world.desired == []


def test_a_launch_waits_for_nobody_that_waits_for_nodes(store: Store) -> None:
    world = growing(1, 1, grow_after_s=500.0)
    sweep(
        world,
        plan_of(
            "{tensor_parallel_size: 8, nnodes: 2, pipeline_parallel_size: 2}, {tensor_parallel_size: 1}"
        ),
        store,
    )
    first, second = launches(store)
    assert first.placed_s is not None
    assert first.started_unix_ns - 10**18 < 1e9  # the small one, at once
    assert second.started_unix_ns - 10**18 >= 500e9


def test_every_rank_listens_at_its_own_address_and_meets_at_the_firsts(store: Store) -> None:
    world = world_of([node("a"), node("b")])
    sweep(world, plan_of("{tensor_parallel_size: 8, nnodes: 2, pipeline_parallel_size: 2}"), store)
    first, second = world.ranks
    assert (first.bind, second.bind) == (first.host, second.host)
    assert first.bind != second.bind
    assert first.master_host == second.master_host == first.host
    assert len({first.port, first.master_port, first.rpc_port, *first.extra_ports}) == 7


def test_the_first_rank_hears_how_the_others_download_and_waits_for_them(store: Store) -> None:
    world = world_of([node("a"), node("b"), node("c")], ready_after_s=40.0)
    sweep(
        world,
        plan_of(
            "{tensor_parallel_size: 8, nnodes: 2, pipeline_parallel_size: 2}, {max_num_seqs: 8}"
        ),
        store,
    )
    assert {name for name, _ in world.heard} == {world.ranks[0].host.removeprefix("10.0.0.")}
    sizes = [size for _, size in world.heard]
    assert len(sizes) >= 2 and sizes == sorted(set(sizes))


def test_a_node_that_does_not_say_what_it_has_of_the_model_ends_no_start(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(_: object) -> int:
        raise HostLost("no answer")

    monkeypatch.setattr(FakeAgent, "downloaded", silent)
    world = world_of([node("a"), node("b")], ready_after_s=40.0)
    report = sweep(
        world, plan_of("{tensor_parallel_size: 8, nnodes: 2, pipeline_parallel_size: 2}"), store
    )
    assert (report.counts.measured, world.heard) == (1, [])


def test_nodes_that_never_come_are_waited_for_as_long_as_the_user_said(store: Store) -> None:
    world = growing(0, 0)
    report = sweep(world, plan_of(), store, placement_timeout_s=300.0)
    assert report.counts.failed == 1
    assert 300 <= report.wall_s < 310
    (row,) = launches(store)
    assert "none was added within 300 s" in str(row.reason)


NODE8 = Footprint((Bundle(8, 1.0),))
SET_UP_S = 900.0


@pytest.mark.parametrize(
    ("says", "after_s", "why"),
    [
        (Growth(impossible=frozenset({NODE8})), 5.0, "its autoscaler has no type of node that could."),
        (Growth(refused={"spot": (2, "no capacity")}), 300.0,
         "none was added within 300 s (launches of nodes were refused: 2 x spot (no capacity))."),
        (Growth(silent="it has not reported"), 300.0, "none was added within 300 s (it has not reported)."),
        (Growth(coming={"h8": 1}), 1200.0, "none was added within 1200 s."),
    ],
)  # fmt: skip
def test_nodes_that_do_not_come_end_in_a_sentence_that_says_what_the_autoscaler_said(
    says: Growth, after_s: float, why: str, store: Store
) -> None:
    world = growing(0, 0, says=says)
    report = sweep(world, plan_of(), store, placement_timeout_s=300.0)
    assert after_s <= report.wall_s < after_s + 10
    (row,) = launches(store)
    assert str(row.reason).endswith(f"cannot hold one node with 1 GPU (H100-80GB), and {why}")
    told = [one.text for one in world.told if isinstance(one, Event) and one.kind == "autoscaler"]
    assert told == ([str(says)] if str(says) else [])


def test_node_types_that_no_label_tells_apart_are_told_once_when_nodes_are_asked_for(
    store: Store,
) -> None:
    types = tuple(NodeType(name, 8, 96.0, 4, {"accelerator": name}) for name in ("H100", "A10"))
    world = growing(0, 8, says=Growth(types=types))
    sweep(world, plan_of(EIGHT), store)
    (told,) = [
        one.text for one in world.told if isinstance(one, Event) and one.kind == "autoscaler"
    ]
    assert told.startswith(
        "for H100-80GB the autoscaler may add nodes of H100, A10: no label of the hardware"
    )


def test_a_node_that_takes_its_time_to_be_set_up_is_waited_for(store: Store) -> None:
    world = growing(0, 1, grow_after_s=SET_UP_S, says=Growth(coming={"h8": 1}))
    assert sweep(world, plan_of(), store, placement_timeout_s=300.0).counts.measured == 1


@pytest.mark.parametrize(("up", "can_add"), [(0, 8), (2, 8), (8, 0)])
def test_launches_hold_and_ask_for_no_more_nodes_than_the_user_allows(
    up: int, can_add: int, store: Store
) -> None:
    world = growing(up, can_add)
    assert sweep(world, plan_of(EIGHT), store, most_nodes=3).counts.measured == 8
    assert world.most_held == 3
    assert len(world.nodes) == max(up, 3)


def test_what_takes_more_nodes_than_the_user_allows_is_given_up_at_once(store: Store) -> None:
    gang = "{tensor_parallel_size: 8, nnodes: 2, pipeline_parallel_size: 2}"
    report = sweep(
        growing(0, 8), plan_of(f"{gang}, {{tensor_parallel_size: 8}}"), store, most_nodes=1
    )
    assert (report.counts.measured, report.counts.failed) == (1, 1)
    given_up = launches(store)[0]
    assert given_up.started_unix_ns - 10**18 < 2e9
    assert str(given_up.reason).endswith("and it takes 2 nodes where --max-nodes allows 1.")


def test_nobody_is_looked_for_while_nothing_changes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def counted(*given: Any) -> Any:
        looks.append(given)
        return choose(*given)

    monkeypatch.setattr(sweep_module, "choose", counted)
    sweep(world_of([node("a")]), plan_of(TWO), store)
    # who starts first, and that nobody else can; the same when it ended, and when nobody is left
    assert len(looks) <= 6


def test_no_more_nodes_are_desired_than_the_budget_pays_for(store: Store) -> None:
    world = growing(0, 8)
    # each is expected to hold 8 GPUs for 132 s, 0.29 GPU hours: the second begins within the
    # budget, a third would not
    cases = ", ".join(
        f"{{tensor_parallel_size: 8, max_num_seqs: {seqs}}}" for seqs in (8, 16, 32, 64)
    )
    sweep(world, plan_of(cases, more="budget: {gpu_hours: 0.4}"), store)
    assert world.most_held == 2


def test_two_launches_never_share_a_node_unless_the_file_says_so(
    store: Store, tmp_path: Path
) -> None:
    world = world_of([node("a")])
    sweep(world, plan_of(TWO), store)
    assert world.most_held == 1
    shared = world_of([node("a")])
    sweep(shared, plan_of(TWO, more="isolation: shared"), Store.open(str(tmp_path / "shared"), "x"))
    assert shared.most_held == 2


def test_what_others_hold_is_waited_for_and_leaves_no_row_but_an_event(store: Store) -> None:
    others = Occupied("host a is held by launch x of user 7")
    world = world_of(fails={"lease": [others] * 9 + [None]})
    report = sweep(world, plan_of(), store)
    assert outcomes(store) == [("ok", None)]
    assert (report.counts.measured, report.counts.failed) == (1, 0)
    assert [row.status for row in launches(store)] == ["ok"]
    assert [steps(world)[name] for name in ("place", "queue", "lease", "release")] == [1, 1, 10, 1]
    assert 85 < world.clock.now_s() < 100, "it asks every second, by the agents that it has"
    assert report.overhead < 0.2, "the waiting is not its own"
    told = store.read("events").to_pylist()
    assert [one["text"] for one in told if one["kind"] == "occupied"] == [f"it waits: {others}"]


def test_a_host_that_others_hold_keeps_no_other_host_waiting(store: Store) -> None:
    world = world_of([node("a"), node("b")], fails={"lease": [Occupied("held"), None]})
    sweep(world, plan_of(), store)
    assert outcomes(store) == [("ok", None)]
    assert world.clock.now_s() < 100
    assert json.loads(launches(store)[0].placement_json or "")[0]["node_id"] == "b"


def test_a_sweep_that_is_stopped_while_it_waits_for_others_leaves_nothing(store: Store) -> None:
    world = world_of(fails={"lease": [Occupied("held")] * 999})
    assert sweep(world, plan_of(), store, interrupt_s=100.0).interrupted
    assert (launches(store), outcomes(store), world.held) == ([], [], {})


def test_logs_that_the_dead_left_on_a_node_are_stored_and_then_dropped(store: Store) -> None:
    world = world_of(fails={"dead_logs": [None]})
    sweep(world, plan_of(), store)
    assert store.read_log(store.log_uri("01ABC/rank0.log")) == b"its last words"
    assert "drop 01ABC-x" in world.log


def test_events_of_a_sweep_are_stored_with_its_launches(store: Store) -> None:
    sweep(world_of(fails={"load": ["slow"]}), plan_of(), store)
    kinds = store.read("events").column("kind").to_pylist()
    assert kinds == ["sweep", "launch", "retry", "measured"]


def test_why_a_launch_was_admitted_is_stored(store: Store) -> None:
    sweep(world_of([node("a"), node("b")], fails={"ready": [PORT, None]}), plan_of(), store)
    told = [
        json.loads(one["data_json"])
        for one in store.read("events").to_pylist()
        if one["kind"] == "launch"
    ]
    assert [(one["nodes"], one["why"], one.get("avoided")) for one in told] == [
        (["a"], "first", None),
        (["b"], "first", ["a"]),
    ]


def test_events_after_the_last_launch_are_stored_when_the_sweep_ends(store: Store) -> None:
    world = world_of(fails={"stop": [RuntimeError("a rank hangs")]})
    # the launch is committed before its engine is stopped
    sweep(world, plan_of(), store, interrupt_s=40.0)
    told = [one.kind for one in world.told if isinstance(one, Event)]
    assert told[-1] == "stop_failed"
    assert [one["kind"] for one in store.read("events").to_pylist()] == told
    assert [one.kind for one in store.manifests()].count("sweep") == 1


def test_a_sweep_with_nothing_to_do_stores_nothing(store: Store) -> None:
    sweep(world_of(), plan_of(), store)
    before = store.manifests()
    sweep(world_of(), plan_of(), again := Store.open(store.uri, "x"))
    assert again.manifests() == before


@pytest.mark.parametrize("step_s", [-7200, 7200])
def test_a_wall_clock_that_is_set_meanwhile_costs_no_point_and_no_figure(
    step_s: int, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of()
    real = world.clock.unix_ns
    monkeypatch.setattr(
        world.clock, "unix_ns", lambda: real() + (step_s * 10**9 if world.clock.now_s() > 40 else 0)
    )
    report = sweep(world, plan_of(levels="1, 2"), store)
    assert (outcomes(store), len(launches(store))) == ([("ok", None)] * 2, 1)
    assert report.wall_s == pytest.approx(155, abs=3)


def test_waiting_for_nodes_that_never_come_is_no_overhead_of_the_program(store: Store) -> None:
    report = sweep(world_of([]), plan_of(), store)
    assert report.wall_s >= 5
    assert report.overhead < 0.05


def test_the_overhead_is_what_was_neither_start_nor_load(store: Store) -> None:
    report = sweep(world_of(), plan_of(), store)
    # 1 s to place, 10 s to start, 1 s first answers, 70 s of load, 1 s to stop, and a look a second
    # later
    assert report.wall_s == pytest.approx(84.5, abs=2)
    assert 0 < report.overhead < 0.1


def test_each_point_says_what_came_of_it_and_how_long_the_rest_will_take(store: Store) -> None:
    world, slos = world_of(), "slos: {interactive: {ttft: 500ms}, strict: {ttft: 1us}}"
    sweep(world, plan_of(TWO, levels="1, 2", more=slos), store)
    told = [one for one in world.told if isinstance(one, Event) and one.kind == "measured"]
    assert [one.text.split(":")[0] for one in told] == [
        "measured w 1 in flight",
        "measured w 2 in flight",
    ] * 2
    assert "TTFT p99 " in told[0].text
    assert told[0].text.endswith("100 % interactive, 0 % strict")
    # the second point, then a launch that will start in 11 s like the first one, and two points;
    # each took 70 s
    assert [one.data["left_s"] for one in told] == [221, 151, 70, 0]


def test_whoever_watches_hears_what_is_waited_for(store: Store) -> None:
    world = growing(0, 1)
    sweep(world, plan_of(), store)
    phases = [one for one in world.told if isinstance(one, Phase)]
    names = list(dict.fromkeys(one.name for one in phases if one.deployment != "sweep"))
    assert names == [
        "wait for nodes",
        "place",
        "start",
        "answers",
        "write requests",
        "warm-up",
        "measure",
        "store",
        "stop",
        "store the launch",
        "ended",
    ]
    waits = [one for one in phases if one.name == "wait for nodes"]
    assert {one.detail for one in waits} == {"one node with 1 GPU (H100-80GB)"}
    assert max(one.elapsed_s for one in waits) > 50
    assert "loading weights" in {one.says for one in phases if one.name == "start"}
    before = [one.name for one in phases if one.deployment == "sweep"]
    assert before[:4] == [
        "read what is measured already",
        "store the plan",
        "check the nodes",
        "ended",
    ]


def test_answers_are_asked_once_before_the_first_point_and_stored_with_their_launch(
    store: Store,
) -> None:
    world, plan = world_of(replies=[(reply(0, 5, 6), reply(1, 7, 8))]), plan_of(levels="1, 2")
    sweep(world, plan, store)
    assert [step for step in world.log if step in ("first", "load")] == ["first", "load", "load"]
    (launch,), rows = (
        launches(store),
        rows_of(store.read("answers", include_failed=True), AnswerRow),
    )
    assert [(row.launch_id, row.prompt, row.token_ids) for row in rows] == [
        (launch.launch_id, "prompt 0", (5, 6)),
        (launch.launch_id, "prompt 1", (7, 8)),
    ]
    assert {row.validity for row in points(store)} == {"valid"}
    assert store.read("requests").num_rows == sum(
        one.requests_scheduled for one in points(store)
    ), "they are no rows"
    sweep(world, plan, store)
    assert steps(world)["first"] == 1, "where nothing is left to measure nobody is asked"


NAN = float("nan")
NO_OUTPUT = [
    ([reply(at, 0, 0, logprob=NAN if at < 2 else -1.0) for at in range(8)], "in 2 of 8 answers"),
    (
        [reply(at, *[0] * 8) for at in range(8)],
        "all 64 tokens of 8 answers to different prompts are the same (id 0)",
    ),
    ([reply(at) for at in range(8)], "all 8 answers to fixed prompts are empty"),
    (
        [
            reply(at, *([3] * 8 if at % 2 else range(at, at + 8)), replica=at % 2)
            for at in range(16)
        ],
        "replica 1: all 64",
    ),
]


@pytest.mark.parametrize(("replies", "said"), NO_OUTPUT)
def test_what_a_broken_engine_serves_is_measured_and_never_valid(
    replies: Any, said: str, store: Store
) -> None:
    world = world_of(replies=[tuple(replies)])
    report = sweep(world, plan_of(), store)
    assert any(
        "8 in flight: broken_output" in item.text for item in world.told if isinstance(item, Event)
    )
    (row,) = points(store)
    assert (row.status, row.validity, report.counts.measured) == ("ok", "broken_output", 1)
    assert said in row.validity_reasons[0]
    (comparison,) = best(load_points(store), parse_slo("ttft<=1h,attainment>=0.5"))
    assert not comparison.ranking
    assert "broken_output" in exclusion_text(comparison.excluded[0])
    remedies = [doubt.remedy for doubt in comparison.doubts]
    assert remedies == [Remedy.REPAIR], "measuring it again decides nothing"


@pytest.mark.parametrize(
    "case", ["{engine: emulator, profile: h100-80gb}", "{tensor_parallel_size: 1}"]
)
def test_who_makes_answers_up_or_gives_none_is_not_called_broken(case: str, store: Store) -> None:
    emulated = "emulator" in case
    lost = {"first": ["lost", "lost"]}
    sweep(
        world_of(replies=[tuple(NO_OUTPUT[1][0])] if emulated else [], fails=lost),
        plan_of(case),
        store,
    )
    assert [row.validity for row in points(store)] == ["valid"]
    assert [
        any("fixed prompts" in text for text in row.validity_reasons) for row in points(store)
    ] == [not emulated]
    assert store.read("answers", include_failed=True).num_rows == 0


def test_what_is_judged_impossible_is_run_last_where_the_user_says_so_and_what_nothing_could_run_never(
    store: Store, tmp_path: Path
) -> None:
    eight = "model: meta-llama/Llama-3.1-8B-Instruct"
    plan = plan_of(
        f"{{{eight}, max_model_len: 200000}}, {{{eight}, quantization: gguf}}, {{{eight}}}"
    )
    assert [one.status for one in plan.deployments] == ["impossible", "impossible", "planned"]
    too_long, _, fits = (one.id for one in plan.deployments)
    assert sweep(world_of(), plan, store).counts.measured == 1
    assert [row.deployment_id for row in points(store)] == [fits]
    assert sweep(world_of(), plan.allowing(), store).counts.measured == 1, (
        "the other one is there already"
    )
    assert [row.deployment_id for row in launches(store)] == [fits, too_long]
    other = Store.open(str(tmp_path / "other"), "x")
    assert sweep(world_of(), plan.allowing(), other).counts.measured == 2
    assert [row.deployment_id for row in launches(other)] == [fits, too_long], "those go last"


def test_that_no_node_has_a_gpu_is_said_in_those_words(store: Store) -> None:
    sweep(world_of([node("a", 0)]), plan_of(), store)
    (row,) = launches(store)
    assert row.reason == (
        "No room: no node has a GPU, so the cluster's 1 node cannot hold one node with 1 GPU"
        " (H100-80GB), and it has no autoscaler."
    )
