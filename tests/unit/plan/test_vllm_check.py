"""What vLLM refuses becomes impossible in a plan (engines/vllm_check.py asks it)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import orchestrator.engines.vllm_check as vllm_check
from orchestrator.engines.vllm_check import (
    CommandVerdict,
    JudgedCommand,
    JudgeReport,
    Ruling,
    opinion_of_vllm,
)
from orchestrator.plan.model import Plan
from tests.unit.plan.files import grid, planned

VLLM = Path(__file__).resolve().parents[3] / ".engines" / "vllm"
H100 = {"h100": {"accelerator": "H100-80GB", "gpus_per_node": 8}}
CPU = "0.32.0+cpu"


ACCEPTED = CommandVerdict(Ruling.ACCEPTED)


def refused(sentence: str) -> CommandVerdict:
    return CommandVerdict(Ruling.REFUSED, sentence)


def answering(
    monkeypatch: pytest.MonkeyPatch, *verdicts: CommandVerdict, device: str = "cpu"
) -> list[JudgedCommand]:
    """Replaces vLLM by these verdicts; the command lines that it was asked about."""
    asked: list[JudgedCommand] = []

    def report(environment: object, commands: list[JudgedCommand]) -> JudgeReport:
        asked.extend(commands)
        return JudgeReport(CPU, device, verdicts)

    monkeypatch.setattr(vllm_check, "ask", report)
    return asked


def check_with_vllm(plan: Plan, environment: object) -> Plan:
    """As ``orchestrator plan --check-with-vllm`` does."""
    deployments = {
        deployment.id: (deployment.settings, deployment.hardware) for deployment in plan.runnable()
    }
    opinion = opinion_of_vllm(str(environment), deployments)
    return plan.refusing(opinion.refused, opinion.note)


def gpu_plan(**axes: list[Any]) -> Plan:
    return planned(hardware=H100, deployments={**grid(**axes), "hardware": "h100"})


@pytest.mark.usefixtures("judged")
def test_what_vllm_refuses_is_impossible_and_has_no_points(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(
        monkeypatch,
        ACCEPTED,
        refused("No such thing."),
        CommandVerdict(Ruling.UNKNOWN, "no config.json of org/model at hand"),
    )
    plan = gpu_plan(max_num_seqs=[1, 2, 4])
    assert plan.points_of(plan.deployments[1].id)
    checked = check_with_vllm(plan, "venv")
    assert [deployment.status for deployment in checked.deployments] == [
        "planned",
        "impossible",
        "planned",
    ]
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
    answering(monkeypatch, ACCEPTED, device="cuda")
    checked = check_with_vllm(gpu_plan(max_num_seqs=[1, 2, 4]), "venv")
    assert {deployment.status for deployment in checked.deployments} == {"planned"}
    said = (
        "vLLM 0.32.0+cpu accepts 1 and refuses 0 of 3 vllm deployments; 2 could not be judged: "
        "it was out of time"
    )
    assert checked.notes == (said,)


@pytest.mark.usefixtures("judged")
def test_a_cpu_build_knows_all_about_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, refused("No."))
    checked = check_with_vllm(planned(deployments={"engine": "vllm", "hardware": "cpu"}), "venv")
    assert checked.deployments[0].reasons == ("vLLM 0.32.0+cpu refuses it: No.",)


@pytest.mark.usefixtures("judged")
def test_only_runnable_vllm_deployments_of_that_version_are_asked_about(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = answering(monkeypatch, ACCEPTED, device="cuda")
    (tmp_path / "lib/python3.11/site-packages/vllm-0.32.0.dist-info").mkdir(parents=True)
    images = {"0.31": {"image": "a"}, "0.32": {"image": "b"}}
    deployments = [
        grid(engine_version=["0.31", "0.32"]),
        {"engine": "transformers"},
        {"engine": "vllm", "max_input_len": 5},
    ]
    plan = planned(deployments=deployments, environments={"vllm": images})
    checked = check_with_vllm(plan, tmp_path)
    assert len(asked) == 1
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


@pytest.mark.vllm
@pytest.mark.timeout(400)
@pytest.mark.skipif(not VLLM.exists(), reason=f"no vLLM environment in {VLLM}: make engines")
def test_real_vllm_refuses_in_its_own_words(tmp_path: Path) -> None:
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
    assert {deployment.status for deployment in plan.deployments} == {"planned"}
    checked = check_with_vllm(plan, VLLM)
    is_refused = [deployment.status == "impossible" for deployment in checked.deployments]
    assert is_refused == [False, False, False, True, True, False, False]
    reasons = [
        deployment.reasons[0]
        for deployment in checked.deployments
        if deployment.status == "impossible"
    ]
    for reason, words in zip(
        reasons,
        ["NOPE", "greater than or equal to -1"],
        strict=True,
    ):
        assert reason.startswith(f"vLLM {CPU} refuses it: ")
        assert words in reason
        assert "pydantic" not in reason
        assert "judges no GPU memory and no kernels" in reason
    judged = (
        "accepts 3 and refuses 2 of 7 vllm deployments; 2 could not be judged: no config.json of"
    )
    assert any(judged in note for note in checked.notes)
