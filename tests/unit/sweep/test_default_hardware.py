"""Hardware that the file leaves out: what it becomes, and that measurements on two kinds of it are
never mixed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.base.errors import ProblemsError
from orchestrator.cluster.base import ACCELERATOR_LABEL, Machine
from orchestrator.plan.make import make_plan
from orchestrator.plan.model import Deployment, Plan
from orchestrator.results.store import Store
from orchestrator.spec.experiment import parse_experiment
from orchestrator.sweep.attempt import Attempt
from orchestrator.sweep.commit import AttemptRecord, commit_attempt
from orchestrator.sweep.default_hardware import check_same, on_this_cluster
from tests.unit.plan.files import measurements

CORES = Machine("c", "10.0.0.1", cpus=8)
H100 = Machine("h", "10.0.0.2", gpus=8, labels={ACCELERATOR_LABEL: "H100"})
A100 = Machine("a", "10.0.0.3", gpus=8, labels={ACCELERATOR_LABEL: "A100"})
UNNAMED = Machine("u", "10.0.0.4", gpus=8)


def plan(**deployment: str) -> Plan:
    given = {"engine": "vllm"} | deployment
    text = f"""
version: 1
name: x
model: some-org/some-model
deployments: {given}
workloads: [{{name: w, input_tokens: 4, output_tokens: 2}}]
load: {{levels: {{concurrency: [1]}}}}
"""
    return make_plan(parse_experiment(text, "x.yaml"))


def here(made: Plan, *machines: Machine) -> Deployment:
    return on_this_cluster(made.deployments, machines)[0]


@pytest.mark.parametrize(
    ("machines", "accelerator"),
    [([CORES], "cpu"), ([CORES, H100, H100], "H100"), ([UNNAMED], "any")],
)
def test_it_is_what_the_cluster_has(machines: list[Machine], accelerator: str) -> None:
    assert here(plan(), *machines).hardware.accelerator == accelerator


def test_an_emulator_needs_no_gpu_and_what_is_named_stays() -> None:
    assert here(plan(engine="emulator"), H100, A100).hardware.accelerator == "cpu"
    assert here(plan(hardware="cpu"), H100).hardware.name == "cpu"


def test_several_kinds_of_gpus_are_refused() -> None:
    both = [
        one.model_copy(update={"label": name})
        for name in ("first", "second")
        for one in plan().deployments
    ]
    with pytest.raises(ProblemsError) as error:
        on_this_cluster([*both, *plan(engine="emulator").deployments], [H100, A100])
    assert [str(problem) for problem in error.value.problems] == [
        f"{name} names no hardware, and this cluster has several kinds: A100, H100; name one"
        for name in ("first", "second")
    ]


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (CORES, H100, "it was measured on cpu, and this cluster has H100"),
        (CORES, UNNAMED, "it was measured on cpu, and this cluster has any"),
        (H100, CORES, "it was measured on H100, and this cluster has cpu"),
        (H100, A100, "it was measured on H100, and this cluster has A100"),
        (H100, H100, None),
        (UNNAMED, H100, None),
    ],
)
def test_what_was_measured_elsewhere_is_not_continued(
    before: Machine, now: Machine, words: str | None, tmp_path: Path
) -> None:
    made, store = plan(), Store.open(str(tmp_path), "x")
    check_same(store, [here(made, now)], store.commits())  # nothing is measured yet
    (measurement,) = measurements(made)
    commit_attempt(store, AttemptRecord(here(made, before), made.points[0], measurement, Attempt()))
    if words is None:
        check_same(store, [here(made, now)], store.commits())
        return
    with pytest.raises(ProblemsError, match=words):
        check_same(store, [here(made, now)], store.commits())
