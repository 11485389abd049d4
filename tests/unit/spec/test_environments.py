"""``environments``: the version of an engine as an axis, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.spec.experiment import parse_experiment
from orchestrator.spec.settings import EngineSettings
from tests.unit.spec.files import parsed, problem, problems, problems_in

VLLM = {
    "0.31": {"executable": "/opt/vllm-0.31"},
    "0.32": {"image": "vllm:v0.32", "container_runtime": "podman"},
}
TEXT = """\
version: 1
name: versions
model: org/model
environments:
  vllm:
    0.30: {{executable: /a}}
    0.3: {{executable: /b}}
    7: {{executable: /c}}
deployments: {deployments}
workloads: [{{name: chat, input_tokens: 100, output_tokens: 20}}]
load: {{levels: {{concurrency: [1]}}}}
"""


def text_with(versions: str) -> str:
    """The text with deployments of these versions, which are a YAML list."""
    grid = f"{{engine_version: {versions}}}"
    return TEXT.format(deployments=f"{{engine: vllm, vary: [{{grid: {grid}}}]}}")


def settings(**changes: Any) -> list[EngineSettings]:
    return [deployment.settings for deployment in parsed(**changes).combinations]


def versions(*names: Any, **more: Any) -> dict[str, Any]:
    return {"engine": "vllm", "vary": [{"grid": {"engine_version": list(names)}}], **more}


def test_every_version_lives_where_its_environment_says() -> None:
    first, second = settings(environments={"vllm": VLLM}, deployments=versions("0.31", "0.32"))
    assert (first.engine_version, first.executable, first.image) == ("0.31", "/opt/vllm-0.31", None)
    assert (second.executable, second.image, second.container_runtime) == (
        None,
        "vllm:v0.32",
        "podman",
    )


def test_versions_need_no_quotes_and_stay_as_they_are_written() -> None:
    experiment = parse_experiment(text_with('[0.30, 0.3, 7, "0.30"]'))
    places = [
        (deployment.settings.engine_version, deployment.settings.executable)
        for deployment in experiment.combinations
    ]
    assert places == [("0.30", "/a"), ("0.3", "/b"), ("7", "/c"), ("0.30", "/a")]


def test_a_version_that_replaces_a_merged_one_is_read_as_itself() -> None:
    deployments = '{<<: {engine_version: 0.30}, engine: vllm, engine_version: "7"}'
    (deployment,) = parse_experiment(TEXT.format(deployments=deployments)).combinations
    assert deployment.settings.executable == "/c"


def test_rules_see_where_a_version_lives() -> None:
    deployments = versions(
        "0.31", "0.32", exclude=["image is None"], derive={"max_num_seqs": "8 if image else 4"}
    )
    combinations = parsed(environments={"vllm": VLLM}, deployments=deployments).combinations
    assert [deployment.excluded_by for deployment in combinations] == ["image is None", None]
    assert [deployment.settings.max_num_seqs for deployment in combinations] == [4, 8]


def test_an_engine_without_environments_keeps_its_version_as_a_name() -> None:
    deployments = [
        versions("0.31"),
        {"engine": "transformers", "engine_version": "5.0", "executable": "/t"},
    ]
    _, other = settings(environments={"vllm": VLLM}, deployments=deployments)
    assert (other.engine_version, other.executable) == ("5.0", "/t")


def test_unknown_versions_stand_with_their_lines_and_the_nearest() -> None:
    assert problems_in(text_with("[0.30,\n 0.31,\n 0.30.1]")) == [
        (10, "'environments' has no '0.31' of vllm"),
        (11, "'environments' has no '0.30.1' of vllm"),
    ]
    assert "did you mean '0.32'?" in problem(
        environments={"vllm": VLLM}, deployments=versions("0.322")
    )


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "an environment is either an executable or an image (give one of them)"),
        (
            {"executable": "/a", "image": "b"},
            "an environment is either an executable or an image (give one of them)",
        ),
        ({"executable": "/a", "container_runtime": "docker"}, "'container_runtime' is for images"),
        ({"image": "b", "container_runtime": "dokcer"}, "did you mean 'docker'?"),
        (
            {"executble": "/a", "executable": "/a"},
            "unknown key 'executble' (did you mean 'executable'?)",
        ),
        ({"executable": ""}, "'executable' is empty"),
        ("/a", "must be a mapping (name: value), not '/a'"),
    ],
)
def test_what_an_environment_may_not_be(environment: Any, message: str) -> None:
    text = problem(environments={"vllm": {"0.31": environment}}, deployments=versions("0.31"))
    assert message in text


def test_an_engine_with_no_version_at_all_is_an_error() -> None:
    assert "'vllm' is empty" in problem(environments={"vllm": {}})


@pytest.mark.parametrize("name", ["executable", "image", "container_runtime"])
def test_a_place_given_twice_is_an_error_wherever_it_stands(name: str) -> None:
    place = "docker" if name == "container_runtime" else "/x"
    for deployments in (
        versions("0.31", **{name: place}),
        versions("0.31", derive={name: f"'{place}'"}),
    ):
        text = problem(environments={"vllm": VLLM}, deployments=deployments)
        assert text.startswith(f"'{name}' is ")
        assert "'environments'" in text


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("engine", "'engine' is given already"),
        ("engine_version", "'engine_version' cannot be derived"),
    ],
)
def test_what_environments_are_looked_up_by_cannot_be_derived(name: str, message: str) -> None:
    deployments = {"engine": "vllm", "derive": {name: "'0.31'"}}
    reported = problems(environments={"vllm": VLLM}, deployments=deployments)
    assert [entry.message for entry in reported] == [message]


@pytest.mark.parametrize(
    ("more", "where"),
    [({}, "on the nodes' PATH"), ({"executable": "/v"}, "/v"), ({"image": "i"}, "i")],
)
def test_two_versions_in_one_place_are_one_error(more: dict[str, str], where: str) -> None:
    deployments = versions("0.31", "0.32", **more)
    # four deployments, and so two pairs of the same
    deployments["vary"].append({"grid": {"tensor_parallel_size": [1, 2]}})
    text = problem(deployments=deployments)
    assert text.startswith(f"vllm '0.31' and '0.32' are the same: both are {where}")


def test_two_environments_of_one_place_are_an_error() -> None:
    both = {"0.31": {"executable": "/v"}, "0.32": {"executable": "/v"}}
    assert "are the same" in problem(
        environments={"vllm": both}, deployments=versions("0.31", "0.32")
    )


def test_a_version_needs_no_place_of_its_own_if_all_others_are_excluded() -> None:
    assert settings(deployments=versions("0.31"))
    assert settings(deployments=versions("0.31", "0.32", exclude=["engine_version == '0.32'"]))
