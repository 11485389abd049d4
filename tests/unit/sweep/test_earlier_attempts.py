"""What a sweep does about the attempts of earlier ones: killed, failed, refused or spoilt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.analysis.points import load_points
from orchestrator.base.errors import (
    Failure,
)
from orchestrator.results.events import Event
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
    points,
)


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


@pytest.mark.parametrize(
    ("failure", "again"),
    [(OOM, False), (MISSING, True), (DIED, True), (NEVER, True), (PORT, True)],
    ids=lambda value: str(value)[:40],
)
def test_the_next_sweep_repeats_failures_except_wrong_configurations(
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


def test_a_wrong_configuration_is_tried_again_on_demand_or_once_changed(
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
