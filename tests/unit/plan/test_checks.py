"""Checks that need candidates, workloads and load together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.base.errors import ProblemsError
from orchestrator.plan import make
from tests.unit.plan.files import grid, only_problem, planned

pytestmark = pytest.mark.usefixtures("judged")


def test_an_api_without_deployments_is_a_problem_with_the_nearest_name() -> None:
    workloads = [{"name": "chat", "input_tokens": 10, "output_tokens": 5, "api": "chatt"}]
    problem = only_problem(workloads=workloads)
    assert problem.message == "no deployment has the API 'chatt'"
    assert problem.hint == "did you mean 'chat'?"


def test_an_api_without_deployments_is_found_beside_one_that_is_served() -> None:
    lengths = {"input_tokens": 10, "output_tokens": 5}
    served = {"name": "served", "api": "completions", **lengths}
    unserved = {"name": "unserved", "api": "chatt", **lengths}
    problem = only_problem(workloads=[served, unserved])
    assert problem.message == "no deployment has the API 'chatt'"


RECORDED = {"name": "w", "kind": "file", "prompts": "p.jsonl", "output_tokens": "file"}


@pytest.mark.parametrize(
    ("deployment", "model"),
    [
        ({"engine": "endpoint", "url": "http://h:1"}, "acme/none"),
        ({"engine": "llama_cpp"}, "acme/none:Q4_K_M"),
    ],
)
def test_recorded_answers_need_a_tokenizer(
    deployment: dict[str, Any], model: str, tmp_path: Path
) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    parts: dict[str, Any] = {
        "deployments": deployment,
        "model": model,
        "workloads": [RECORDED | {"prompts": str(tmp_path / "p.jsonl")}],
    }
    problem = only_problem(**parts)
    assert f"and there is none of {model} here" in problem.message
    assert problem.hint == "give 'tokenizer': a folder with tokenizer.json, or that file"
    (tmp_path / "tokenizer.json").write_text("{}")
    planned(**parts | {"model": {"id": model, "tokenizer": str(tmp_path)}})


def test_tables_that_are_not_installed_are_a_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("orchestrator.plan.checks.find_spec", lambda name: None)
    with pytest.raises(
        ProblemsError, match=r"the tables are not installed \(pip install .aiconfigurator-core"
    ):
        planned(predictions={"tables": True})


def test_too_many_measurements_are_refused_before_levels_are_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(make, "levels_of", None)
    levels = {"concurrency": [f"1 * {level}" for level in range(1, 1002)]}
    deployments = {"engine": "vllm", "vary": [{"grid": {"max_num_seqs": list(range(1, 1001))}}]}
    problem = only_problem(deployments=deployments, load={"levels": levels})
    assert problem.message.startswith(
        "1,000 deployments x 1,001 levels x 1 repeat are 1,001,000 measurements"
    )


def test_hardware_without_a_price_is_refused_where_dollars_decide() -> None:
    hardware = {
        "priced": {"accelerator": "H100-80GB", "usd_per_gpu_hour": 2.0},
        "unpriced": {"accelerator": "H200-141GB"},
    }
    load = {"search": "capacity", "control": "request_rate", "objective": "usd"}
    problem = only_problem(
        hardware=hardware,
        deployments=grid(hardware=["priced", "unpriced"]),
        load=load,
        slos={"fast": {"ttft": "1s", "attainment": 0.9}},
    )
    assert (
        problem.message == "'objective: usd' needs the price of all hardware, and unpriced has none"
    )
    assert problem.hint == "give usd_per_gpu_hour, or objective: gpu"


def test_an_unknown_accelerator_needs_its_memory() -> None:
    hardware = {"h100": {"accelerator": "H200-141G"}, "own": {"accelerator": "x", "memory_gb": 48}}
    problem = only_problem(hardware=hardware)
    assert problem.message == "unknown accelerator 'H200-141G'"
    assert problem.hint is not None
    assert problem.hint.startswith("did you mean 'H200-141GB'")
    assert problem.hint.endswith("? Else give memory_gb for one that the catalogue lacks")


def test_a_profile_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    problem = only_problem(file=file, predictions={"profile": "./no.yaml"})
    assert "no.yaml" in problem.message
    assert problem.hint == "orchestrator predict fit writes one"
