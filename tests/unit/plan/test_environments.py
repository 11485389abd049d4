"""The version of an engine as an axis of a plan: where each lives, what identifies it, what it may
not be.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.base.errors import Problem, ProblemsError
from orchestrator.plan.model import Plan
from tests.unit.plan.files import grid, planned

pytestmark = pytest.mark.usefixtures("judged")

IMAGES = {"0.31": {"image": "vllm:v0.31"}, "0.32": {"image": "vllm:v0.32"}}


def versions(environments: dict[str, Any], *, file: Path | str = "x.yaml", **more: Any) -> Plan:
    deployments = {**grid(engine_version=list(environments)), **more}
    return planned(file, environments={"vllm": environments}, deployments=deployments)


def refused(
    environments: dict[str, Any], *, engine: str = "vllm", file: Path | str = "x.yaml"
) -> list[Problem]:
    with pytest.raises(ProblemsError) as caught:
        planned(
            file,
            environments={engine: environments},
            deployments=grid(engine_version=list(environments)),
        )
    return caught.value.problems


def installed(folder: Path, version: str) -> str:
    (folder / f"lib/python3.11/site-packages/vllm-{version}.dist-info").mkdir(parents=True)
    return str(folder)


def test_a_deployment_holds_where_its_version_lives(tmp_path: Path) -> None:
    plan = versions(
        {"0.31": {"executable": "./vllm-0.31"}, "0.32": {"image": "i"}}, file=tmp_path / "x.yaml"
    )
    found = [
        (deployment.label, deployment.settings.executable, deployment.settings.image)
        for deployment in plan.deployments
    ]
    assert found == [
        ("vllm version=0.31", str(tmp_path / "vllm-0.31"), None),
        ("vllm version=0.32", None, "i"),
    ]


def test_labels_say_the_place_where_the_version_does_not_tell_it() -> None:
    deployments = [{"engine": "vllm", "image": name} for name in "ab"]
    assert [deployment.label for deployment in planned(deployments=deployments).deployments] == [
        "vllm image=a",
        "vllm image=b",
    ]


def test_the_installed_version_is_part_of_the_id() -> None:
    before = [deployment.id for deployment in versions(IMAGES).deployments]
    after = [
        deployment.id
        for deployment in versions({**IMAGES, "0.32": {"image": "vllm:v0.32-rebuilt"}}).deployments
    ]
    assert before[0] == after[0]
    assert before[1] != after[1]


def test_the_same_place_written_in_the_deployment_is_the_same_deployment() -> None:
    direct = planned(
        deployments={"engine": "vllm", "engine_version": "0.31", "image": "vllm:v0.31"}
    )
    assert direct.deployments[0].id == versions(IMAGES).deployments[0].id


def test_versions_that_no_deployment_uses_change_no_id() -> None:
    plan = planned(environments={"vllm": IMAGES}, deployments=grid(engine_version=["0.31"]))
    assert plan.deployments[0].id == versions(IMAGES).deployments[0].id


def test_a_virtual_environment_of_another_version_is_an_error(tmp_path: Path) -> None:
    place = installed(tmp_path / "venv", "0.32.0+cpu")
    (found,) = refused({"0.31": {"executable": place}})
    assert found.message == f"engine_version '0.31': {place} holds vllm 0.32.0+cpu"
    (found,) = refused({"0.31": {"executable": f"{place}/bin/vllm"}})
    assert "holds vllm 0.32.0+cpu" in found.message


@pytest.mark.parametrize("version", ["0.32", "0.32.0", "v0.32", "nightly"])
def test_a_virtual_environment_of_the_written_version_is_planned(
    version: str, tmp_path: Path
) -> None:
    plan = versions({version: {"executable": installed(tmp_path / "venv", "0.32.0+cpu")}})
    assert [deployment.status for deployment in plan.deployments] == ["planned"]


def test_a_place_that_is_only_on_the_nodes_is_believed() -> None:
    assert versions({"0.31": {"executable": "/not/on/this/machine"}}).runnable()


def test_an_unknown_engine_is_named_with_the_nearest() -> None:
    (found,) = refused({"0.31": {"image": "i"}}, engine="vlm")
    assert (found.message, found.hint) == ("unknown engine 'vlm'", "did you mean 'vllm'?")
