"""Profiles: what a file or a name says, and what follows from the deployment and its engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.base.errors import InputError, ProblemsError
from orchestrator.catalog.accelerators import Accelerator, find
from orchestrator.emulator.profile import (
    Constants,
    Profile,
    device_of,
    facts_of,
    load_profile,
    resolved,
    typical,
)
from orchestrator.spec.settings import EngineSettings, Hardware

H100 = Hardware(name="h100", accelerator="H100-80GB")
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def settings(**changes: Any) -> EngineSettings:
    return EngineSettings(**{"engine": "emulator", "model": LLAMA} | changes)


def profile_from(tmp_path: Path, text: str, name: str = "profile.yaml") -> Profile:
    (tmp_path / name).write_text(text)
    return load_profile(str(tmp_path / name))


def test_every_wrong_line_of_a_profile_is_reported(tmp_path: Path) -> None:
    wrong = (
        "accelerator: H100\n"
        "constants: {bandwidth_efficiency: -1}\n"
        "faults:\n"
        "  die_at_request: x\n"
        "  stat: oom\n"
    )
    with pytest.raises(ProblemsError) as caught:
        profile_from(tmp_path, wrong)
    problems = caught.value.problems
    assert {problem.file for problem in problems} == {str(tmp_path / "profile.yaml")}
    assert [
        (problem.line, problem.message.partition(" must")[0], problem.hint) for problem in problems
    ] == [
        (2, "'bandwidth_efficiency'", None),
        (4, "'die_at_request'", None),
        (5, "unknown key 'stat'", "did you mean 'start'?"),
    ]


def test_a_wrong_figure_of_a_profiles_device_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProblemsError, match="2: 'memory_gb' must be above 0, not -3"):
        profile_from(
            tmp_path, "accelerator:\n  {memory_gb: -3, bandwidth_gb_s: 1, tflops: {fp8: 1}}\n"
        )


@pytest.mark.parametrize("text", ["", "# nothing\n", "constants: {}\n"])
def test_an_empty_profile_is_that_of_the_deployment(tmp_path: Path, text: str) -> None:
    assert profile_from(tmp_path, text) == Profile()


BY_HAND = """
constants: {step_overhead_s: 1e-3, sequence_overhead_s: 2.5E-6, link_efficiency: 1, prefill_first: yes}
model: {rms_norm_eps: 0.000001}
default_output_tokens: 7
"""


def test_numbers_of_profiles_are_read_however_they_are_written(tmp_path: Path) -> None:
    constants = {
        "step_overhead_s": 1e-3,
        "sequence_overhead_s": 2.5e-06,
        "link_efficiency": 1.0,
        "prefill_first": True,
    }
    document = {"constants": constants, "model": {"rms_norm_eps": 1e-6}, "default_output_tokens": 7}
    expected = Profile.model_validate(document)
    texts = {
        "fit.yaml": yaml.safe_dump(document, sort_keys=False),  # as ``predict fit`` writes them
        "plain.json": json.dumps(document),
        "tabs.json": json.dumps(document, indent="\t"),
        "own.yml": BY_HAND,
    }
    for name, text in texts.items():
        assert profile_from(tmp_path, text, name) == expected, name


def bomb(depth: int) -> str:
    """YAML whose size is ``10**(depth - 1)``: each mapping merges the one before ten times."""
    lines = ["a0: &a0 {x: 1}"]
    for level in range(1, depth):
        merged = ", ".join([f"*a{level - 1}"] * 10)
        lines.append(f"a{level}: &a{level} {{<<: [{merged}]}}")
    return "\n".join(lines) + "\n"


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("merges.yaml", bomb(12), "holds more than 200,000 values"),
        ("deep.yaml", "[" * 3000, "is nested too deeply"),
        ("deep.json", '{"a":' * 100_000, "is nested too deeply"),
    ],
)
def test_a_profile_that_asks_for_too_much_is_refused(
    tmp_path: Path, name: str, text: str, words: str
) -> None:
    with pytest.raises(ProblemsError, match=words):
        profile_from(tmp_path, text, name)


def test_a_profile_can_describe_its_own_device_and_model(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(
        "accelerator: {name: new, memory_gb: 300, bandwidth_gb_s: 9000, tflops: {bfloat16: 3000}}\n"
        "model: {model_type: llama, hidden_size: 256, num_hidden_layers: 4,\n"
        "  num_attention_heads: 4, vocab_size: 1000}\n"
    )
    profile = load_profile(str(path))
    assert device_of(profile, H100).bandwidth_bytes_s == 9e12
    assert facts_of(profile, settings()).shape.num_hidden_layers == 4


@pytest.mark.parametrize("text", ["constants: [1", "model: {hidden_size: 4}"])
def test_broken_profiles_are_input_errors(tmp_path: Path, text: str) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(text)
    with pytest.raises(InputError):
        facts_of(load_profile(str(path)), settings())


def test_without_a_profile_the_deployments_own_model_and_device_are_imitated() -> None:
    hardware = Hardware(name="a", accelerator="A100-80GB", memory_gb=70)
    profile = load_profile(None)
    assert device_of(profile, hardware).name == "A100-80GB"
    assert device_of(profile, hardware).memory_bytes == 70 * 10**9
    assert facts_of(profile, settings(model="Qwen/Qwen3-8B")).model_type == "qwen3"


def test_unknown_devices_and_models_are_replaced_by_known_ones() -> None:
    assert device_of(load_profile(None), Hardware(name="cpu")).name == "H100-80GB"
    assert facts_of(load_profile(None), settings(model="never-heard-of")).model == LLAMA


def accelerator(name: str) -> Accelerator:
    result = find(name)
    assert result is not None
    return result


H100_80GB = accelerator("H100-80GB")
B200 = accelerator("B200-180GB")
A100 = accelerator("A100-80GB")


def test_constants_differ_by_engine() -> None:
    assert typical("vllm", B200).constants != typical("sglang", B200).constants


def test_other_architectures_inherit_the_constants_that_were_fitted() -> None:
    fitted = typical("vllm", H100_80GB)
    for device in (B200, A100):
        inherited = typical("vllm", device)
        assert inherited.fitted_on == fitted.architecture == "hopper"
        assert inherited.constants == fitted.constants


def test_inherited_constants_have_an_error_of_their_own_where_it_was_measured() -> None:
    fitted = typical("vllm", H100_80GB)
    inherited = typical("vllm", B200)
    assert inherited.architecture == "blackwell"
    assert inherited.source != fitted.source
    assert fitted.date
    assert inherited.date
    assert fitted.error
    assert inherited.error
    assert inherited.error != fitted.error


def test_the_error_is_not_known_where_nothing_was_compared() -> None:
    assert typical("vllm", A100).error is None
    assert typical("tgi", H100_80GB).error is None


def test_constants_of_a_profile_come_before_those_of_the_engine() -> None:
    own = Constants(sequence_overhead_s=1.0)
    constants = resolved(own, "sglang", H100_80GB)
    of_engine = resolved(Constants(), "sglang", H100_80GB)
    assert constants == of_engine.model_copy(update={"sequence_overhead_s": 1.0})
