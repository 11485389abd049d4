"""What an earlier simulation left: its committed launches, which are repeated one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.base.errors import FailureKind
from orchestrator.simulation.stored import LaunchesToRepeat, PlanChanged, committed_launches
from tests.unit.simulation.builders import EXPERIMENT, planned, simulated


def test_each_launch_has_its_attempts_the_oldest_launch_first(tmp_path: Path) -> None:
    store, _ = simulated(planned(), tmp_path)
    launches = committed_launches(store, with_figures=False)
    assert len(launches) == 2
    first, second = launches
    assert first.manifest.created_unix_ns < second.manifest.created_unix_ns
    for launch in launches:
        assert len(launch.attempts) == 2
        for attempt_id, attempt in launch.attempts.items():
            assert attempt.committed.attempt_id == attempt_id
            assert attempt.failure is None


def test_a_failed_attempt_keeps_its_failure(tmp_path: Path) -> None:
    text = EXPERIMENT.replace("{tensor_parallel_size: 2}", "{cpu_offload_gb: 1}")
    store, _ = simulated(planned(text), tmp_path)
    failures = [
        attempt.failure
        for launch in committed_launches(store, with_figures=False)
        for attempt in launch.attempts.values()
        if attempt.failure is not None
    ]
    assert [failure.kind for failure in failures] == [FailureKind.NOT_SIMULATED] * 2
    assert all("weights offloaded" in failure.sentence for failure in failures)


def test_a_launch_or_an_attempt_that_is_not_stored_means_that_the_plan_has_changed(
    tmp_path: Path,
) -> None:
    store, _ = simulated(planned(), tmp_path)
    launches = committed_launches(store, with_figures=False)
    left = LaunchesToRepeat(launches)
    with pytest.raises(PlanChanged):
        left.launch("another")
    with pytest.raises(PlanChanged):
        launches[0].attempt("another")
    for launch in launches:
        assert left.launch(launch.manifest.launch_id) is launch
        left.note_repeated(launch)
    assert not left.are_left
    assert left.launch("another") is None  # it is new
