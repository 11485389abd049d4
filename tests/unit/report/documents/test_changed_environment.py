"""What changed around the engine between two sweeps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.analysis.points import StoredPoint
from orchestrator.plan.current import StoredExperiment
from orchestrator.report.documents.changed_environment import (
    ChangedFact,
    MeasuredSide,
    changed_facts,
)
from orchestrator.results.store import Store
from orchestrator.sweep.commit import commit_launch, launch_row
from tests.unit.plan.stored_sweeps import planned, store_attempt

HOST = {"cpu": "EPYC", "kernel": "5.15", "driver": "550"}


def side(tmp_path: Path, name: str, *hosts: dict[str, Any], version: str = "1.0") -> MeasuredSide:
    """A point with a start on each of these hosts, which all have names of their own."""
    store = Store.open(str(tmp_path), name)
    plan = planned(max_num_seqs=[8])
    store.write_plan(plan.to_json())
    (point,) = plan.points
    (deployment,) = plan.deployments
    for start, host in enumerate(hosts):
        environment = json.dumps({f"{name}-{start}": host})
        launch = replace(launch_row(deployment, plan.name, 1), environment_json=environment)
        commit_launch(store, deployment, launch)
        store_attempt(store, plan, point, repeat=start, start=start, launch_id=launch.launch_id)
    experiment = StoredExperiment(store)
    return MeasuredSide(experiment, experiment.points().current, (version,))


def of_image(measured: MeasuredSide, image: str) -> MeasuredSide:
    """The same side, whose file names this image."""

    def with_image(point: StoredPoint) -> StoredPoint:
        settings = {**point.deployment.settings, "image": image}
        return replace(point, deployment=replace(point.deployment, settings=settings))

    return replace(measured, points=[with_image(point) for point in measured.points])


def test_other_hosts_that_are_alike_have_not_changed(tmp_path: Path) -> None:
    base, new = side(tmp_path, "base", HOST, HOST), side(tmp_path, "new", HOST)
    assert changed_facts(base, new) == ()


def test_a_change_has_all_values_of_both_sides(tmp_path: Path) -> None:
    base = side(tmp_path, "base", HOST, {**HOST, "kernel": "6.1"})
    new = side(tmp_path, "new", {**HOST, "kernel": "6.8", "driver": "560"}, version="1.1")
    assert changed_facts(base, new) == (
        ChangedFact(None, "orchestrator", ("1.0",), ("1.1",)),
        ChangedFact("cpu", "kernel", ("5.15", "6.1"), ("6.8",)),
        ChangedFact("cpu", "GPU driver", ("550",), ("560",)),
    )


def test_what_is_not_known_of_a_side_has_not_changed(tmp_path: Path) -> None:
    base, early = side(tmp_path, "base", HOST), side(tmp_path, "early", {"cpu": "EPYC"})
    unversioned = replace(early, client_versions=())
    assert changed_facts(base, unversioned) == ()
    assert changed_facts(unversioned, base) == ()


def test_a_digest_counts_where_both_sides_name_the_same_image(tmp_path: Path) -> None:
    base = side(tmp_path, "base", {**HOST, "image": "sha256:a"})
    new = side(tmp_path, "new", {**HOST, "image": "sha256:b"})
    latest = of_image(base, "vllm:latest"), of_image(new, "vllm:latest")
    assert [fact.title for fact in changed_facts(*latest)] == ["image"]
    assert changed_facts(of_image(base, "vllm:0.31"), of_image(new, "vllm:0.32")) == ()
