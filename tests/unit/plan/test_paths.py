"""Paths of the experiment file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.base.errors import InputError, ProblemsError
from orchestrator.catalog.models import model_facts
from orchestrator.emulator.api import four_bytes
from orchestrator.emulator.profile import load_profile
from orchestrator.emulator.server import token_counter
from orchestrator.engines.vllm_check import ask
from orchestrator.plan.paths import Paths
from orchestrator.results.location import parse_location
from orchestrator.spec.settings import EngineSettings
from tests.unit.plan.files import planned


def resolved(folder: Path, **fields: Any) -> EngineSettings:
    settings = EngineSettings.model_validate({"engine": "vllm", "model": "org/model", **fields})
    return settings.each(Paths(folder).absolute)


def test_relative_paths_start_at_the_experiment_file(tmp_path: Path) -> None:
    one = resolved(
        tmp_path / "sub", executable="../engines/vllm", model="../model", tokenizer="./tokens"
    )
    assert one.executable == str(tmp_path / "engines" / "vllm")
    assert one.model == str(tmp_path / "model")
    assert one.tokenizer == str(tmp_path / "sub" / "tokens")


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert resolved(tmp_path, executable="./link").executable == str(tmp_path / "link")


def test_hub_names_commands_and_catalogue_names_stay(tmp_path: Path) -> None:
    one = resolved(
        tmp_path, executable="vllm", profile="H100-80GB/meta-llama/Llama-3.1-8B-Instruct"
    )
    assert (one.model, one.executable) == ("org/model", "vllm")
    assert one.profile == "H100-80GB/meta-llama/Llama-3.1-8B-Instruct"


def test_an_image_is_a_path_only_when_it_is_written_like_one(tmp_path: Path) -> None:
    assert resolved(tmp_path, image="./images/vllm").image == str(tmp_path / "images" / "vllm")
    assert resolved(tmp_path, image="images/vllm.sif").image == str(
        tmp_path / "images" / "vllm.sif"
    )
    for name in ("vllm/vllm-openai:v0.32.0", "docker://vllm/vllm-openai:v0.32.0"):
        assert resolved(tmp_path, image=name).image == name


def test_a_folder_beside_the_file_is_a_model(tmp_path: Path) -> None:
    (tmp_path / "org" / "model").mkdir(parents=True)
    assert resolved(tmp_path).model == str(tmp_path / "org" / "model")


def test_profiles_and_drafts_may_be_files(tmp_path: Path) -> None:
    draft = {"method": "draft_model", "num_speculative_tokens": 2, "model": "./draft"}
    one = resolved(tmp_path, profile="fast.yaml", speculative=draft)
    assert one.profile == str(tmp_path / "fast.yaml")
    assert one.speculative is not None
    assert one.speculative.model == str(tmp_path / "draft")


def test_home_and_environment_are_filled_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("MODELS", "/data/models")
    one = resolved(tmp_path, model="${MODELS}/llama", executable="~/venv")
    assert (one.model, one.executable) == ("/data/models/llama", "/home/me/venv")


UNKNOWN = "there is no home folder of '~nosuchuser' here"


@pytest.mark.parametrize("name", ["executable", "model", "tokenizer", "image", "profile"])
def test_the_home_of_an_unknown_user_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"'~nosuchuser/x': {UNKNOWN}"):
        resolved(tmp_path, **{name: "~nosuchuser/x"})


TRACE = {"process": "trace", "trace": "~nosuchuser/x"}


@pytest.mark.parametrize(
    "changes",
    [
        {"deployments": {"engine": "vllm", "executable": "~nosuchuser/x"}},
        {"model": {"id": "~nosuchuser/x"}},
        {"load": {"levels": {"request_rate": [1]}, "arrivals": TRACE}},
        {
            "workloads": [
                {"name": "w", "kind": "file", "prompts": "~nosuchuser/x", "output_tokens": 1}
            ]
        },
        {"predictions": {"profile": "~nosuchuser/x"}},
    ],
)
def test_a_file_in_the_home_of_an_unknown_user_is_a_problem(
    changes: dict[str, Any],
) -> None:
    with pytest.raises(ProblemsError, match=rf"x.yaml:1: .*{UNKNOWN}"):
        planned(**changes)


def test_other_paths_of_an_unknown_user_are_bad_input_or_nowhere() -> None:
    with pytest.raises(InputError, match=UNKNOWN):
        parse_location("~nosuchuser/results")
    with pytest.raises(InputError, match=UNKNOWN):
        ask("~nosuchuser/.venv", [])
    with pytest.raises(InputError, match=UNKNOWN):
        load_profile("~nosuchuser/profile.yaml")
    assert model_facts("~nosuchuser/m") is model_facts("~nosuchuser/m.gguf") is None
    assert token_counter("~nosuchuser/m") is four_bytes


def test_a_variable_that_is_not_set_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MODELS", raising=False)
    with pytest.raises(ValueError, match="'MODELS' is not set"):
        resolved(tmp_path, model="${MODELS}/llama")


def test_settings_without_paths_are_shared(tmp_path: Path) -> None:
    """A plan of 100,000 deployments holds each of them once."""
    settings = EngineSettings(engine="vllm", model="org/model")
    assert Paths(tmp_path).absolute(settings) is settings
    assert (
        Paths(tmp_path).absolute(settings.model_copy(update={"executable": "./venv"})).executable
        != "./venv"
    )
