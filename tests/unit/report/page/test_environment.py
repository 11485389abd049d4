import json
from dataclasses import replace

from orchestrator.analysis.launches import load_launches
from orchestrator.plan.current import StoredExperiment
from orchestrator.report.documents.host_facts import HostFact
from orchestrator.report.documents.launch import LaunchDocument, launch_documents
from orchestrator.report.page.environment import (
    EngineVersions,
    HostDescription,
    measured_with,
)
from orchestrator.results.store import Store
from tests.unit.plan.stored_sweeps import planned, store_sweep
from tests.unit.report.stores import commit_answers

PLACES = [
    {"hostname": "node-1", "cores": [0, 1], "gpus": ["H100 GPU-a", "H100 GPU-b"]},
    {"hostname": "node-1", "cores": [1, 2], "gpus": ["H100 GPU-b"]},
    {"hostname": "node-2"},
]


def launches_of(store: Store) -> list[LaunchDocument]:
    """Both launches ran on all PLACES; the second one failed."""
    first, second = launch_documents(load_launches(store))
    placement = json.dumps(PLACES)
    return [
        replace(first, row=replace(first.row, placement_json=placement, engine_version="1.2")),
        replace(second, row=replace(second.row, placement_json=placement, status="failed")),
    ]


def test_versions_and_hosts_are_those_that_were_stored(tmp_path):
    store = Store.open(str(tmp_path), "exp")
    store_sweep(store, planned(), client_version="0.9")
    commit_answers(store, (1,), (1,))
    experiment = StoredExperiment(store)
    points = experiment.points().current
    environment = measured_with(experiment, points, launches_of(store))
    assert environment.measured_by == ("0.9",)
    assert environment.engines == (EngineVersions("emulator", ("1.2",), (), 1, 1),)
    assert [each.name for each in environment.hardware] == ["cpu"]
    assert environment.hosts == (
        HostDescription("node-1", ("H100 GPU-a", "H100 GPU-b"), 3, 2),
        HostDescription("node-2", (), 0, 2),
    )


def test_without_a_plan_and_launches_little_is_known(tmp_path):
    store = Store.open(str(tmp_path), "exp")
    environment = measured_with(StoredExperiment(store), [], [])
    assert environment.planned_by is None
    assert (environment.measured_by, environment.engines, environment.hosts) == ((), (), ())


def test_what_a_host_was_found_to_be_is_shown_with_all_that_changed(tmp_path):
    store = Store.open(str(tmp_path), "exp")
    store_sweep(store, planned())
    commit_answers(store, (1,), (1,))
    first, second = launches_of(store)
    found = {"cpu": "EPYC", "driver": "570", "gpus": [{"uuid": "GPU-a", "power_limit_w": 700.0}]}
    launches = [
        replace(first, environment={"node-1": found}),
        replace(second, environment={"node-1": {**found, "driver": "580", "system": None}}),
    ]
    hosts = measured_with(StoredExperiment(store), [], launches).hosts
    assert hosts[0].facts == (
        HostFact("CPU", ("EPYC",)),
        HostFact("GPU driver", ("570", "580")),
        HostFact("power limit", ("700 W",)),
    )
    assert hosts[1].facts == (), "of an earlier version"
