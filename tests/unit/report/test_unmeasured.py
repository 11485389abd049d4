"""What an experiment asks for and has no valid measurement of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.plan.current import StoredExperiment
from orchestrator.plan.make import make_plan
from orchestrator.plan.model import Plan
from orchestrator.report.unmeasured import unmeasured
from orchestrator.results.store import Store
from orchestrator.spec.experiment import parse_experiment
from orchestrator.spec.load import Level
from tests.unit.plan.stored_sweeps import (
    EXPERIMENT,
    SEARCH,
    VALUES,
    planned,
    store_attempt,
    store_sweep,
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path), "exp")


def unmeasured_of(store: Store) -> list[str]:
    experiment = StoredExperiment(store)
    return unmeasured(experiment, experiment.points())


@pytest.mark.parametrize(
    ("validity", "missing"),
    [
        ("valid", []),
        ("engine_bound_backlog", []),
        ("disturbed", ["2 disturbed"]),
        ("broken_output", ["2 broken_output"]),
    ],
)
def test_points_are_counted_by_their_verdict(
    store: Store, validity: str, missing: list[str]
) -> None:
    store_sweep(store, planned(), validity=validity)
    assert unmeasured_of(store) == missing


def test_what_failed_is_counted_as_failed(store: Store) -> None:
    store_sweep(store, planned(), status="failed", reason="It died.", failure_class="engine_crash")
    assert unmeasured_of(store) == ["2 failed"]


def searched(store: Store, *validities: str, **columns: Any) -> Plan:
    """A search of the first deployment: a probe at each of several levels, with these verdicts.

    ``columns``: other values of all probes' rows.
    """
    text = EXPERIMENT.format(**VALUES).replace("levels: {concurrency: [2]}", SEARCH)
    plan = make_plan(parse_experiment(text))
    store.write_plan(plan.to_json())
    for number, validity in enumerate(validities):
        level = Level(control="concurrency", value=number + 2)
        point = plan.point(plan.deployments[0].id, plan.loads[0], level)
        store_attempt(store, plan, point, validity=validity, **columns)
    return plan


def test_one_probe_that_tells_of_its_level_is_enough_for_a_search(store: Store) -> None:
    searched(store, "disturbed", "valid")
    assert unmeasured_of(store) == []


def test_of_a_search_without_such_a_probe_all_are_missing(store: Store) -> None:
    searched(store, "disturbed", "client_bound")
    assert sorted(unmeasured_of(store)) == ["1 client_bound", "1 disturbed"]


def test_a_verdict_that_no_load_changes_leaves_a_search_without_an_answer(store: Store) -> None:
    searched(store, "valid", "broken_output")
    assert unmeasured_of(store) == ["1 broken_output"]


def test_a_probe_that_ended_as_failing_tells_of_its_level(store: Store) -> None:
    searched(store, "invalid", ended_early="fails")
    assert unmeasured_of(store) == []
