"""The second opinion: what is made of vLLM's verdicts, and that one process within a limit gives
them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError, field_validator

import orchestrator.engines.vllm_check as vllm_check
from orchestrator.base.errors import InputError
from orchestrator.engines.vllm_check import Answer, ask, case_of, opinion_of_vllm
from orchestrator.engines.vllm_judge import LONGEST, of_device, of_environment, sentence_of
from orchestrator.plan.model import Plan
from orchestrator.spec.settings import EngineSettings, Hardware
from tests.unit.plan.files import grid, planned

VLLM = Path(__file__).resolve().parents[3] / ".engines" / "vllm"
H100 = {"h100": {"accelerator": "H100-80GB", "gpus_per_node": 8}}
CPU = "0.32.0+cpu"


def answering(
    monkeypatch: pytest.MonkeyPatch, *verdicts: dict[str, str], device: str = "cpu"
) -> list[Any]:
    """Replaces vLLM by these verdicts; the cases it was asked about."""
    seen: list[Any] = []

    def answer(environment: object, cases: list[Any]) -> Answer:
        seen.extend(cases)
        return Answer(CPU, device, verdicts)

    monkeypatch.setattr(vllm_check, "ask", answer)
    return seen


def check_with_vllm(plan: Plan, environment: object) -> Plan:
    """As ``orchestrator plan --check-with-vllm`` does."""
    found = opinion_of_vllm(
        str(environment), {one.id: (one.settings, one.hardware) for one in plan.runnable()}
    )
    return plan.refusing(found.refused, found.note)


def gpu_plan(**axes: list[Any]) -> Plan:
    return planned(hardware=H100, deployments={**grid(**axes), "hardware": "h100"})


@pytest.mark.usefixtures("judged")
def test_what_vllm_refuses_is_impossible_and_has_no_points(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(
        monkeypatch,
        {},
        {"refused": "No such thing."},
        {"unknown": "no config.json of org/model at hand"},
    )
    plan = gpu_plan(max_num_seqs=[1, 2, 4])
    assert plan.points_of(plan.deployments[1].id)
    checked = check_with_vllm(plan, "venv")
    assert [one.status for one in checked.deployments] == ["planned", "impossible", "planned"]
    assert checked.deployments[1].reasons == (
        (
            "vLLM 0.32.0+cpu refuses it: No such thing. (its CPU build judges no GPU memory and no "
            "kernels)"
        ),
    )
    assert not checked.points_of(checked.deployments[1].id)
    assert len(checked.points) == len(plan.points) - 2
    assert checked.notes == (
        "vLLM 0.32.0+cpu accepts 1 and refuses 1 of 3 vllm deployments; 1 could not be judged: "
        "no config.json of org/model at hand (its CPU build judges no GPU memory and no kernels)",
    )
    assert Plan.from_json(checked.to_json()) == checked


@pytest.mark.usefixtures("judged")
def test_what_there_was_no_time_for_stays_planned_and_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answering(monkeypatch, {}, device="cuda")
    checked = check_with_vllm(gpu_plan(max_num_seqs=[1, 2, 4]), "venv")
    assert {one.status for one in checked.deployments} == {"planned"}
    said = (
        "vLLM 0.32.0+cpu accepts 1 and refuses 0 of 3 vllm deployments; 2 could not be judged: "
        "it was out of time"
    )
    assert checked.notes == (said,)


@pytest.mark.usefixtures("judged")
def test_a_cpu_build_knows_all_about_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, {"refused": "No."})
    checked = check_with_vllm(planned(deployments={"engine": "vllm", "hardware": "cpu"}), "venv")
    assert checked.deployments[0].reasons == ("vLLM 0.32.0+cpu refuses it: No.",)


@pytest.mark.usefixtures("judged")
def test_only_runnable_vllm_deployments_of_that_version_are_asked_about(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = answering(monkeypatch, {}, device="cuda")
    (tmp_path / "lib/python3.11/site-packages/vllm-0.32.0.dist-info").mkdir(parents=True)
    images = {"0.31": {"image": "a"}, "0.32": {"image": "b"}}
    deployments = [
        grid(engine_version=["0.31", "0.32"]),
        {"engine": "transformers"},
        {"engine": "vllm", "max_input_len": 5},
    ]
    plan = planned(deployments=deployments, environments={"vllm": images})
    checked = check_with_vllm(plan, tmp_path)
    assert len(seen) == 1
    unknown = "the flags of vLLM 0.31 are not known, only those of 0.33.0, 0.32.0"
    assert checked.notes[0] == unknown
    assert (
        "accepts 1 and refuses 0 of 2 vllm deployments; 1 could not be judged" in checked.notes[1]
    )
    only_other = planned(deployments=grid(engine_version=["0.31"]), environments={"vllm": images})
    assert check_with_vllm(only_other, tmp_path).notes == (
        unknown,
        "vLLM 0.32.0 was not asked: no deployment runs that version",
    )


def test_the_command_line_is_the_one_that_would_be_run_without_its_container() -> None:
    settings = EngineSettings(
        engine="vllm", model="org/model", image="i", tensor_parallel_size=2, env={"A": "1"}
    )
    case = case_of(settings, Hardware(name="h100", accelerator="H100-80GB"))
    assert case["argv"][0] == "org/model"
    assert case["argv"][case["argv"].index("--tensor-parallel-size") + 1] == "2"
    assert case["argv"][case["argv"].index("--distributed-executor-backend") + 1] == "mp"
    assert case["env"]["A"] == "1"
    assert not case["cpu"]
    assert json.loads(json.dumps(case))
    draft = {
        "speculative": {"method": "eagle3", "model": "org/draft", "num_speculative_tokens": 3},
        "revision": "r",
    }
    drafting = case_of(
        EngineSettings(engine="vllm", model="org/model", **draft), Hardware(name="cpu")
    )
    assert drafting["models"] == [("org/model", "r"), ("org/draft", None)]


def environment(folder: Path, script: str) -> Path:
    """A folder with a bin/python that runs ``script`` in place of what it is given."""
    python = folder / "bin" / "python"
    python.parent.mkdir()
    (folder / "script.py").write_text(script)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -u -I "{folder / "script.py"}"\n')
    python.chmod(0o755)
    return folder


HEADER = 'print("some log line")\nprint(\'VERDICT {"version": "1", "device": "cpu"}\')\n'


def test_verdicts_are_found_among_other_output(tmp_path: Path) -> None:
    script = HEADER + 'import sys\nfor line in sys.stdin: print("log"); print("VERDICT {}")\n'
    assert ask(environment(tmp_path, script), [{"a": 1}, {"a": 2}]) == Answer("1", "cpu", [{}, {}])


def test_verdicts_given_in_time_count_and_nothing_is_left_running(tmp_path: Path) -> None:
    script = HEADER + (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
        "print('VERDICT {}')\ntime.sleep(600)\n"
    )
    answer = ask(environment(tmp_path, script), [{}, {}], limit_s=3.0)
    assert answer.verdicts == [{}]
    child = Path("/proc") / (tmp_path / "pid").read_text()
    until = time.monotonic() + 10
    while (
        child.exists()
        and "Z" not in (child / "stat").read_text().split()[2]
        and time.monotonic() < until
    ):
        time.sleep(0.05)
    assert not child.exists() or "Z" in (child / "stat").read_text().split()[2]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            "raise SystemExit('ModuleNotFoundError: no vllm')",
            "cannot be asked: ModuleNotFoundError: no vllm",
        ),
        (HEADER.replace("cpu", ""), "finds no device here"),
        ("import time; time.sleep(600)", "no answer within 1 s"),
    ],
)
def test_an_environment_that_cannot_be_asked_says_why(
    script: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        ask(environment(tmp_path, script), [{}], limit_s=1.0 if "sleep" in script else 60.0)


def test_a_folder_without_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no bin/python"):
        ask(tmp_path, [])


class Config(BaseModel):
    """Raises inside pydantic, as vLLM's own configuration does."""

    size: int

    @field_validator("size")
    @classmethod
    def _check(cls, value: int) -> int:
        texts = [
            "Size must be 1.",
            "Not supported on CUDA devices.",
            "Too long. This may cause CUDA errors.",
        ]
        raise ValueError(texts[value])


def refusal(make: Callable[[], object]) -> Exception:
    with pytest.raises(ValidationError) as caught:
        make()
    return caught.value


def test_sentences_are_vllms_own_without_pydantics_words() -> None:
    assert sentence_of(refusal(lambda: Config(size=0))) == "Size must be 1."
    assert sentence_of(AssertionError()) == "AssertionError"
    cut = sentence_of(ValueError("word " * 200))
    assert len(cut) <= LONGEST + 2
    assert cut.endswith("word …")


@pytest.mark.parametrize(("size", "about"), [(0, False), (1, True), (2, False)])
def test_a_refusal_that_opens_with_a_device_is_about_it(size: int, about: bool) -> None:
    assert of_device(refusal(lambda: Config(size=size))) is about


def test_a_refusal_that_a_platform_raised_is_about_the_device() -> None:
    code = compile(
        "def check(): raise ValueError('not here')",
        "/x/site-packages/vllm/platforms/cpu.py",
        "exec",
    )
    space: dict[str, Any] = {}
    exec(code, space)
    with pytest.raises(ValueError) as caught:
        space["check"]()
    assert of_device(caught.value)


@pytest.mark.parametrize(
    ("error", "about"),
    [
        (ModuleNotFoundError("No module named 'torchvision'"), True),
        (
            ValueError(
                "Model architectures ['Gemma3ForConditionalGeneration'] failed to be inspected."
            ),
            True,
        ),
        (ValueError("Model architectures ['Nope'] are not supported for now."), False),
    ],
)
def test_a_module_that_is_not_installed_is_no_refusal(error: Exception, about: bool) -> None:
    assert of_environment(error) is about


@pytest.mark.vllm
@pytest.mark.timeout(400)
@pytest.mark.skipif(not VLLM.exists(), reason=f"no vLLM environment in {VLLM}: make engines")
def test_real_vllm_refuses_in_its_own_words_what_we_have_no_rule_for(tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 512, "vocab_size": 512,
        "max_position_embeddings": 1024, "dtype": "bfloat16",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").write_text("{}")
    cases = [
        {},
        # a CPU has no such kernels
        {"quantization": "fp8", "kv_cache_dtype": "fp8", "tensor_parallel_size": 8},
        {"nnodes": 2, "tensor_parallel_size": 2, "pipeline_parallel_size": 2},
        {"attention_backend": "NOPE", "env": {"VLLM_PLUGINS": "ours"}},
        {"extra_args": {"--max-logprobs": -2}},
        {"model": "org/model-that-nobody-has"},
        {
            "speculative": {
                "method": "eagle3",
                "model": "org/draft-that-nobody-has",
                "num_speculative_tokens": 3,
            }
        },
    ]
    deployments = {"engine": "vllm", "hardware": "h100", "vary": [{"cases": cases}]}
    plan = planned(hardware=H100, model=str(tmp_path), deployments=deployments)
    assert {one.status for one in plan.deployments} == {"planned"}
    checked = check_with_vllm(plan, VLLM)
    assert [one.status == "impossible" for one in checked.deployments] == [
        False,
        False,
        False,
        True,
        True,
        False,
        False,
    ]
    reasons = [one.reasons[0] for one in checked.deployments if one.status == "impossible"]
    for reason, words in zip(
        reasons,
        ["NOPE", "greater than or equal to -1"],
        strict=True,
    ):
        assert reason.startswith(f"vLLM {CPU} refuses it: ")
        assert words in reason
        assert "pydantic" not in reason
        assert "judges no GPU memory and no kernels" in reason
    assert (
        "accepts 3 and refuses 2 of 7 vllm deployments; 2 could not be judged: no config.json of"
        in checked.notes[0]
    )


def test_an_operator_that_a_build_lacks_is_no_refusal() -> None:
    error = AttributeError(
        "'_OpNamespace' '_C' object has no attribute 'rms_norm_static_fp8_quant'"
    )
    assert of_environment(error)
    assert not of_environment(AttributeError("'LlamaConfig' object has no attribute 'x'"))
