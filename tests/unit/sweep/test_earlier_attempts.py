"""What a sweep does about the attempts of earlier ones: killed, failed, refused or spoilt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.analysis.points import load_points
from orchestrator.base.errors import Failure
from orchestrator.results.records import PointRow
from orchestrator.results.schemas import rows_of
from orchestrator.results.store import Manifest, Store
from tests.unit.sweep.simulation import (
    World,
    plan_of,
    sweep,
    world_of,
)
from tests.unit.sweep.sweeps import (
    DIED,
    MISSING,
    NEVER,
    OOM,
    PORT,
    event_texts,
    points,
)

NOT_TRIED_AGAIN = "failed before and would fail again; --retry-failed tries them again"


class Killed(BaseException):
    """The driver dies."""


class StoreOfDyingDriver:
    """A store whose driver dies at the commit after ``commits`` commits."""

    def __init__(self, store: Store, commits: int) -> None:
        self._store = store
        self._commits_left = commits

    def commit(self, manifest: Manifest) -> None:
        if self._commits_left == 0:
            raise Killed
        self._commits_left -= 1
        self._store.commit(manifest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize("commits", [1, 2, 3, 4])
def test_running_again_measures_what_was_not_committed_before_the_driver_died(
    commits: int, store: Store
) -> None:
    plan = plan_of("{tensor_parallel_size: 1}, {tensor_parallel_size: 2}", levels="1, 2")
    with pytest.raises(Killed):
        sweep(world_of(), plan, StoreOfDyingDriver(store, commits))  # type: ignore[arg-type]
    committed = len(store.winners())
    assert committed < 4
    second_world = world_of()
    counts = sweep(second_world, plan, store).counts
    assert (counts.skipped, counts.measured) == (committed, 4 - committed)
    assert len(second_world.loads) == 4 - committed
    assert len(store.winners()) == 4


def test_running_again_does_nothing_once_all_is_measured(store: Store) -> None:
    plan = plan_of(levels="1, 2")
    sweep(world_of(), plan, store)
    world = world_of()
    assert sweep(world, plan, store).counts.skipped == 2
    assert world.log == []


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


@pytest.mark.parametrize("failure", [MISSING, DIED, NEVER, PORT], ids=lambda failure: failure.kind)
def test_the_next_sweep_tries_a_failed_launch_again(failure: Failure, store: Store) -> None:
    plan = plan_of(levels="1, 2")
    sweep(world_of(fails={"ready": [failure] * 9}), plan, store)
    world = world_of()
    counts = sweep(world, plan, store).counts
    assert (counts.measured, counts.refused) == (2, 0)
    assert event_texts(world, "refused") == []


def test_the_next_sweep_starts_no_wrong_configuration_again(store: Store) -> None:
    plan = plan_of(levels="1, 2")
    sweep(world_of(fails={"ready": [OOM]}), plan, store)
    world = world_of()
    counts = sweep(world, plan, store).counts
    assert (counts.measured, counts.refused) == (0, 2)
    assert world.log == []
    assert event_texts(world, "refused") == [f"2 measurements {NOT_TRIED_AGAIN}"]


def disturbed() -> World:
    """A world in which every measurement is disturbed."""
    return world_of(is_disturbed=True)


def test_what_was_spoilt_is_measured_again_and_the_valid_attempt_counts(store: Store) -> None:
    plan = plan_of(levels="1, 2")
    first = sweep(disturbed(), plan, store).counts
    assert (first.measured, first.spoilt.total()) == (2, 2)
    world = world_of()
    second = sweep(world, plan, store).counts
    assert (second.measured, second.skipped, second.spoilt.total()) == (2, 0, 0)
    assert event_texts(world, "open_again") == ["2 measurements open again: 2 disturbed"]
    assert {point.validity for point in load_points(store)} == {"valid"}
    assert [row.validity for row in rows_of(store.read("points"), PointRow)] == ["valid"] * 2
    third = sweep(world_of(), plan, store).counts
    assert (third.measured, third.skipped) == (0, 2), "a valid attempt counts for ever"


def test_what_is_spoilt_three_times_is_kept_until_the_user_allows_more_tries(
    store: Store,
) -> None:
    measured = [sweep(disturbed(), plan_of(), store).counts.measured for _ in range(4)]
    assert measured == [1, 1, 1, 0]
    world = world_of()
    counts = sweep(world, plan_of(), store).counts
    assert (counts.measured, counts.skipped, counts.kept) == (0, 1, 1)
    assert event_texts(world, "kept") == [
        "1 measurement kept as they are: 1 disturbed; --again 3 tries once more"
    ]
    assert sweep(world_of(), plan_of(), store, most_again=3).counts.measured == 1
    assert [point.validity for point in load_points(store)] == ["valid"]


def test_each_try_at_a_spoilt_measurement_sends_other_prompts(store: Store) -> None:
    for _ in range(2):
        sweep(disturbed(), plan_of(), store)
    assert len({row.seed for row in points(store)}) == 2


def test_with_again_0_nothing_spoilt_is_measured_again(store: Store) -> None:
    sweep(disturbed(), plan_of(), store)
    assert sweep(world_of(), plan_of(), store, most_again=0).counts.measured == 0


def test_a_changed_configuration_is_measured_although_the_one_before_was_wrong(
    store: Store,
) -> None:
    sweep(world_of(fails={"ready": [OOM]}), plan_of(), store)
    changed = plan_of("{tensor_parallel_size: 2}")
    assert sweep(world_of(), changed, store).counts.measured == 1


def test_a_wrong_configuration_is_tried_again_on_demand_until_it_is_measured(
    store: Store,
) -> None:
    sweep(world_of(fails={"ready": [OOM]}), plan_of(), store)
    second = sweep(world_of(fails={"ready": [OOM]}), plan_of(), store, retry_failed=True)
    assert second.counts.failed == 1
    third = sweep(world_of(), plan_of(), store, retry_failed=True)
    assert third.counts.measured == 1
    fourth = sweep(world_of(), plan_of(), store)
    assert (fourth.counts.skipped, fourth.counts.refused) == (1, 0)


def test_of_several_attempts_the_last_says_whether_it_is_tried_again(store: Store) -> None:
    plan = plan_of(levels="1, 2")
    # the server refuses the load of the first point, which no second try would change
    sweep(world_of(fails={"load": ["refused"]}), plan, store)
    # on demand it is tried again, and now the engine dies under it, as often as one sweep tries
    world = world_of(fails={"load": [DIED, DIED]})
    second = sweep(world, plan, store, retry_failed=True).counts
    assert (second.skipped, second.failed) == (1, 1)
    third = sweep(world_of(), plan, store).counts
    assert third.measured == 1


def test_a_refused_point_keeps_no_other_point_from_being_measured(store: Store) -> None:
    plan = plan_of(levels="1, 2")
    # the server refuses the load of the first point; under the second the engine dies, twice
    sweep(world_of(fails={"load": ["refused", DIED, DIED]}), plan, store)
    counts = sweep(world_of(), plan, store).counts
    assert (counts.refused, counts.measured) == (1, 1)
