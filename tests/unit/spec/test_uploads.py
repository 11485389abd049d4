"""Paths in the folder that a submitted job uploaded."""

from pathlib import Path

import pytest

from orchestrator.plan.identity import model_digest
from orchestrator.plan.make import load_plan
from orchestrator.spec.uploads import not_uploaded, shown_path

EXPERIMENT = """
version: 1
name: small
model: {id: ./models/tiny}
deployments: {engine: %s}
workloads: [{name: short, input_tokens: 16, output_tokens: 8}]
load: {levels: {concurrency: [2]}, duration: 1s, warmup: 0s}
"""


def upload(ray_folder: Path, name: str, engine: str = "vllm") -> Path:
    """The folder in which Ray unpacked a job's files, without its models."""
    folder = ray_folder / "session_2026-11-28_1" / "working_dir_files" / f"_ray_pkg_{name}"
    folder.mkdir(parents=True)
    (folder / "experiment.yaml").write_text(EXPERIMENT % engine)
    return folder


@pytest.mark.parametrize(
    ("path", "shown"),
    [("/tmp/ray/session_1/runtime_resources/working_dir_files/_ray_pkg_69ecd193f23a7b4a/.demo/model",
      ".demo/model"),
     ("/models/tiny", "/models/tiny"), ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
     ("/data/_ray_pkg_69ecd193f23a7b4a/model", "/data/_ray_pkg_69ecd193f23a7b4a/model")],
)  # fmt: skip
def test_a_path_in_an_uploaded_folder_is_shown_relative_to_it(path: str, shown: str) -> None:
    assert shown_path(path) == shown


def test_a_model_that_was_left_behind_is_named_with_what_to_do(tmp_path: Path) -> None:
    folder = upload(tmp_path, "69ec")
    plan = load_plan(folder / "experiment.yaml")
    sentence = (
        "models/tiny was not uploaded with the job (Ray leaves out what .gitignore and .rayignore "
        "name): give a path that every node has, or a name on the hub"
    )
    assert sentence in plan.notes
    (deployment,) = plan.deployments
    assert (deployment.status, deployment.reasons) == ("impossible", (sentence,))


def test_an_emulated_engine_needs_no_model_and_only_a_note_says_so(tmp_path: Path) -> None:
    folder = upload(tmp_path, "69ec", "emulator")
    plan = load_plan(folder / "experiment.yaml")
    assert plan.deployments[0].status != "impossible"
    assert any("models/tiny was not uploaded" in note for note in plan.notes)


def test_a_local_model_outside_the_upload_may_be_on_the_nodes_alone() -> None:
    assert not_uploaded("/models/that/only/nodes/have") is None


@pytest.mark.parametrize("with_model", [True, False])
def test_a_job_that_is_submitted_again_is_the_same_deployment(
    tmp_path: Path, with_model: bool
) -> None:
    identities = []
    for name in ("69ec", "ab12"):
        folder = upload(tmp_path, name, "emulator")
        if with_model:
            model = folder / "models" / "tiny"
            model.mkdir(parents=True)
            (model / "config.json").write_text('{"model_type": "llama"}')
            assert model_digest(str(model)) is not None
        plan = load_plan(folder / "experiment.yaml")
        identities.append([point.point_id for point in plan.points])
    assert identities[0] == identities[1]
