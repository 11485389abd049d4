"""``orchestrator init`` writes a file that plans, whatever was answered, and asks only people."""

from __future__ import annotations

import json
from pathlib import Path

import click
import jsonschema
import pytest
from click.testing import CliRunner

from orchestrator.base.errors import InputError
from orchestrator.cli import init as init_module
from orchestrator.cli.main import cli
from orchestrator.cli.schema import schema_text
from orchestrator.engines.registry import ENGINES
from orchestrator.spec.document import parse_document
from orchestrator.spec.load import PRESETS
from tests.unit.cli.commands import Done, invoke

LAUNCHED = [name for name in ENGINES if ENGINES[name].launches]
# presets whose longest requests are longer than any context
ENDLESS = ("code_agent", "deep_research")


def written(folder: Path, *options: str) -> Path:
    file = folder / "sweep.yaml"
    assert invoke("init", str(file), *options).status == 0
    return file


def planned(file: Path) -> Done:
    done = invoke("plan", str(file))
    assert done.status == 0, done.stdout
    assert "impossible" not in done.stdout
    return done


@pytest.mark.parametrize("gpus", ["8 x H100-80GB", "1 x A100-80GB"])
@pytest.mark.parametrize("engine", LAUNCHED)
def test_the_file_plans_with_every_engine(engine: str, gpus: str, tmp_path: Path) -> None:
    file = written(tmp_path, "--engine", engine, "--gpus", gpus)
    assert "risky" not in planned(file).stdout or engine == "transformers"


@pytest.mark.parametrize("engine", [name for name in LAUNCHED if ENGINES[name].on_cpus])
def test_the_file_plans_on_cpus_and_for_an_emulator(engine: str, tmp_path: Path) -> None:
    gpus = "2 x L4-24GB" if ENGINES[engine].emulated else "cpu"
    planned(written(tmp_path, "--engine", engine, "--gpus", gpus, "--workload", "512/128"))


def test_the_file_of_an_emulator_runs_on_a_machine_with_one_core(tmp_path: Path) -> None:
    plan = planned(written(tmp_path, "--engine", "emulator", "--gpus", "8 x H100-80GB")).stdout
    assert "2 deployments: 2 planned" in plan
    assert plan.count("1 core ") == 2


def test_of_an_emulator_the_gpus_that_it_imitates_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(init_module, "can_ask", lambda: True)
    answers = "emulator\n\n2 x H100-80GB\n\n\n"
    done = CliRunner().invoke(cli, ["init", str(tmp_path / "sweep.yaml")], input=answers)
    assert "GPUs that the emulator imitates [8 x H100-80GB]: 2 x" in done.output


@pytest.mark.parametrize("preset", PRESETS.names())
def test_the_file_plans_with_every_preset(preset: str, tmp_path: Path) -> None:
    done = planned(written(tmp_path, "--workload", preset))
    assert ("requests of up to" in done.stdout) == (preset in ENDLESS)


@pytest.mark.parametrize("gpus", ["none", "16 x H100-80GB"])
def test_a_server_that_runs_is_an_endpoint(gpus: str, tmp_path: Path) -> None:
    options = ("--engine", "http://10.0.0.7:8000", "--model", "llama", "--gpus", gpus)
    file = written(tmp_path, *options, "--limits", "none")
    assert "endpoint" in planned(file).stdout
    assert ("of 16 GPUs" in planned(file).stdout) == (gpus != "none")
    assert "simulate" not in file.read_text()


@pytest.mark.parametrize(
    ("engine", "gpus", "is_compared"),
    [
        ("vllm", "8 x H100-80GB", True),
        ("emulator", "8 x A100-80GB", True),
        ("vllm", "8 x A100-80GB", False),
        ("tgi", "8 x H100-80GB", False),
        ("vllm", "cpu", False),
    ],
)
def test_a_simulation_is_proposed_where_the_model_was_compared(
    engine: str, gpus: str, is_compared: bool, tmp_path: Path
) -> None:
    file = written(tmp_path, "--engine", engine, "--gpus", gpus)
    assert ("orchestrator simulate" in file.read_text()) == is_compared


def test_gpus_that_cannot_be_simulated_are_said_with_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "mine" / "init.yaml"
    file.parent.mkdir()
    done = invoke("init", str(file), "--engine", "sglang", "--gpus", "2 x L40S-48GB")
    reason = "sglang on L40S-48GB cannot be simulated yet: measure with run"
    assert f"note: {reason}" in done.stderr
    text = file.read_text()
    assert f"# {reason}" in text
    assert f"#   orchestrator plan {file}\n" in text


def test_a_name_of_several_gpus_is_said_to_be_one(tmp_path: Path) -> None:
    done = invoke("init", str(tmp_path / "x.yaml"), "--gpus", "4 x A100")
    others = "A100-40GB, A100-PCIe-80GB"
    assert f"note: GPUs taken as A100-80GB; their name also fits {others} (--gpus)" in done.stderr


def test_the_gpus_of_a_server_are_not_guessed(tmp_path: Path) -> None:
    file = written(tmp_path, "--engine", "http://10.0.0.7:8000", "--model", "llama")
    assert "endpoint_gpus" not in file.read_text()


@pytest.mark.parametrize("limits", ["ttft<=500ms", "ttft_p95<=1s,e2e_p99.9<=30s", "reader=visual"])
def test_limits_are_those_of_the_answer(limits: str, tmp_path: Path) -> None:
    planned(written(tmp_path, "--limits", limits))


def test_an_editor_finds_the_schema_beside_the_file_and_has_no_complaint(tmp_path: Path) -> None:
    file = written(tmp_path)
    line, *_ = file.read_text().splitlines()
    schema = tmp_path / line.partition("$schema=")[2]
    assert schema.read_text("utf-8") == schema_text()
    content = parse_document(file.read_text(), str(file)).value
    jsonschema.Draft7Validator(json.loads(schema.read_text("utf-8"))).validate(content)
    assert content["name"] == "sweep"


def test_a_file_is_replaced_only_by_force(tmp_path: Path) -> None:
    file = written(tmp_path)
    file.write_text("mine")
    with pytest.raises(InputError, match="exists"):
        invoke("init", str(file))
    assert file.read_text() == "mine"
    written(tmp_path, "--force")
    assert file.read_text() != "mine"


def test_a_schema_of_another_version_is_replaced_only_by_force(tmp_path: Path) -> None:
    schema = tmp_path / "experiment.schema.json"
    schema.write_text("mine")
    written(tmp_path)
    assert schema.read_text() == "mine"
    written(tmp_path, "--force")
    assert schema.read_text("utf-8") == schema_text()


def test_without_a_terminal_nothing_is_asked_and_defaults_are_said(tmp_path: Path) -> None:
    done = invoke("init", str(tmp_path / "sweep.yaml"), "--engine", "sglang")
    assert "model: meta-llama/Llama-3.1-8B-Instruct (--model says otherwise)" in done.stderr
    assert "engine:" not in done.stderr


def test_at_a_terminal_questions_are_asked_until_an_answer_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(init_module, "can_ask", lambda: True)
    answers = ["vlm", "sglang", "", "8 x H999", "4xa100-80gb", "rag", "ttft<500", "ttft<=2s", ""]
    file = tmp_path / "sweep.yaml"
    done = CliRunner().invoke(cli, ["init", str(file)], input="\n".join(answers))
    assert done.exit_code == 0, done.output
    assert "did you mean 'vllm'?" in done.output
    assert "unknown accelerator 'H999'" in done.output
    text = file.read_text()
    assert "engine: sglang" in text
    assert "{accelerator: A100-80GB, gpus_per_node: 4}" in text
    assert "preset: rag" in text
    assert "limits: {ttft: 2s, attainment: 0.95}" in text


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
@pytest.mark.parametrize("workload", ["chat", "512/128"])
def test_a_url_of_one_api_gets_requests_of_that_api(
    path: str, workload: str, tmp_path: Path
) -> None:
    url = f"http://10.0.0.7:8000/v1/{path}"
    planned(written(tmp_path, "--engine", url, "--model", "llama", "--workload", workload))


@pytest.mark.parametrize("model", ["a: b", "it's", "{x}", "# no", "org/model"])
def test_a_model_is_text_whatever_it_contains(model: str, tmp_path: Path) -> None:
    file = written(tmp_path, "--model", model)
    assert parse_document(file.read_text(), str(file)).value["model"] == model


def test_a_folder_that_is_missing_is_said_before_anything_is_asked(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folder"):
        invoke("init", str(tmp_path / "none" / "sweep.yaml"))
    with pytest.raises(click.UsageError):
        invoke("init", str(tmp_path))


@pytest.mark.parametrize("workload", ["512/128", "1900/100", *PRESETS.names()])
def test_tgi_on_cpus_takes_every_prompt_of_the_workload(workload: str, tmp_path: Path) -> None:
    """Its warm-up takes memory by the longest prompt, so that is limited."""
    options = ("--engine", "tgi", "--gpus", "cpu", "--workload", workload)
    file = written(tmp_path, *options)
    assert "max_input_len" in file.read_text()
    planned(file)
