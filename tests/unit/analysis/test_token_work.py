"""The work of a deployment is stored with it, and computed for rows of older versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.analysis.token_work import work_json, work_of, work_of_row
from orchestrator.catalog.work import MissingWork, StepWork
from orchestrator.spec.settings import EngineSettings, Hardware

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
H100 = Hardware(name="gpus", accelerator="H100")
CPU = Hardware(name="cpu")


def settings(**changes: object) -> EngineSettings:
    return EngineSettings.model_validate({"engine": "vllm", "model": MODEL, **changes})


def as_work(work: StepWork | MissingWork) -> StepWork:
    assert isinstance(work, StepWork)
    return work


def test_a_bandwidth_of_the_file_replaces_the_published_one_and_is_marked() -> None:
    own = Hardware(name="gpus", accelerator="H100", memory_bandwidth_gb_s=3000)
    peaks = as_work(work_of(settings(), own)).peaks
    assert (peaks.bandwidth_bytes_s, peaks.is_overridden) == (3e12, True)
    assert not as_work(work_of(settings(), H100)).peaks.is_overridden


@pytest.mark.parametrize(
    ("changes", "hardware", "reason"),
    [
        ({}, CPU, MissingWork.CPU),
        ({}, Hardware(name="x", accelerator="Abacus 3000"), MissingWork.DEVICE),
        ({"model": "nobody/nothing"}, H100, MissingWork.MODEL),
        ({"engine": "endpoint", "url": "http://127.0.0.1:1"}, H100, MissingWork.ENDPOINT),
        (
            {"roles": {"prefill": {"engine": "vllm", "model": MODEL},
                       "decode": {"engine": "vllm", "model": MODEL}}},
            H100,
            MissingWork.ROLES,
        ),
    ],
)  # fmt: skip
def test_what_is_not_known_has_its_reason(
    changes: dict[str, object], hardware: Hardware, reason: MissingWork
) -> None:
    assert work_of(settings(**changes), hardware) is reason
    stored = work_json(settings(**changes), hardware)
    assert work_of_row(stored, "{}", "", "") is reason


def test_an_emulator_has_the_work_of_what_it_imitates() -> None:
    emulated = settings(engine="emulator", profile="H200/meta-llama/Llama-3.3-70B-Instruct")
    work = as_work(work_of(emulated, CPU))
    assert work.peaks.device == "H200-141GB"
    assert work.step.weights > 100e9  # of 70 B parameters, whatever the deployment's model is


def test_an_emulator_whose_profile_is_gone_has_none(tmp_path: Path) -> None:
    emulated = settings(engine="emulator", profile=str(tmp_path / "gone.yaml"))
    assert work_of(emulated, CPU) is MissingWork.MODEL


def test_what_is_stored_counts_even_where_the_model_is_not_at_hand() -> None:
    stored = work_json(settings(), H100)
    elsewhere = json.dumps({"engine": "vllm", "model": "/not/here"})
    assert work_of_row(stored, elsewhere, "gpus", "H100") == work_of(settings(), H100)


@pytest.mark.parametrize("stored", [None, '{"step": {}}', '{"missing": "a newer reason"}'])
def test_rows_of_other_versions_are_computed_from_their_settings(stored: str | None) -> None:
    described = json.dumps({"engine": "vllm", "model": MODEL})
    assert work_of_row(stored, described, "gpus", "H100") == work_of(settings(), H100)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_rows_of_older_versions_have_experts_on_whole_replicas(engine: str) -> None:
    described = {"engine": engine, "model": "openai/gpt-oss-120b", "data_parallel_size": 4}
    work = as_work(work_of_row(None, json.dumps(described), "gpus", "H100"))
    of_one = as_work(work_of(settings(model="openai/gpt-oss-120b"), H100))
    ranks_with_experts = 1 if engine == "sglang" else 4
    assert work.step.experts == pytest.approx(of_one.step.experts / ranks_with_experts)


def test_a_row_without_hardware_is_that_of_a_server_that_others_started() -> None:
    assert work_of_row(None, "{}", "none", "none") is MissingWork.ENDPOINT


def test_settings_that_cannot_be_read_have_no_work() -> None:
    assert work_of_row(None, '{"engine": 1}', "gpus", "H100") is MissingWork.MODEL
