"""Verdicts: what excludes a deployment, what makes it impossible or risky, and the reasons."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.engines.registry import ENGINES
from orchestrator.plan.verdict import models_missing_here, workload_mismatch
from orchestrator.spec.dialect import Dialect, openai
from orchestrator.spec.load import Workload
from orchestrator.spec.settings import EngineSettings
from tests.unit.plan.conftest import verdict
from tests.unit.plan.files import H100, grid, planned, statuses

pytestmark = pytest.mark.usefixtures("judged")
MISSPELLED = {"name": "w", "input_tokens": 9, "output_tokens": 9, "request": {"temprature": 1}}


def test_an_excluded_deployment_names_its_rule_and_has_no_points() -> None:
    plan = planned(
        deployments={**grid(tensor_parallel_size=[1, 2]), "exclude": ["tensor_parallel_size > 1"]}
    )
    assert statuses(plan) == {"vllm": "planned", "vllm tp=2": "excluded"}
    assert plan.deployments[1].reasons == ("by the rule: tensor_parallel_size > 1",)
    assert plan.points_of(plan.deployments[1].id) == []
    assert plan.runnable() == [plan.deployments[0]]


def test_a_misspelled_organisation_is_said_and_planned_as_the_well_known_model() -> None:
    plan = planned(model={"id": "metta-llama/Llama-3.1-8B-Instruct"})
    assert (
        "no config.json of metta-llama/Llama-3.1-8B-Instruct was found, here or on the hub: by its "
        "name it is planned as meta-llama/Llama-3.1-8B-Instruct"
    ) in plan.notes


@pytest.mark.parametrize(
    "model", ["meta-llama/Llama-3.1-8B-Instruct", "Meta-Llama/Llama-3.1-8B", "some-org/some-model"]
)
def test_a_model_of_the_same_organisation_or_an_unknown_one_is_taken_for_no_other(
    model: str,
) -> None:
    assert not [note for note in planned(model={"id": model}).notes if "is planned as" in note]


def test_a_setting_that_the_engine_lacks_is_impossible() -> None:
    plan = planned(deployments=grid(max_input_len=[None, 100]))
    assert [deployment.status for deployment in plan.deployments] == ["planned", "impossible"]
    assert "max_input_len" in plan.deployments[1].reasons[0]


def test_pinned_settings_are_judged(judged: Callable[..., None]) -> None:
    seen: list[tuple[int, int, int | None]] = []

    def look(settings: Any) -> Any:
        seen.append(
            (settings.max_num_seqs, settings.max_num_batched_tokens, settings.kv_cache_memory_bytes)
        )
        return verdict("fits")

    judged(look)
    cpu = {"engine": "vllm", "hardware": "cpu"}
    space = {**cpu, "env": {"VLLM_CPU_KVCACHE_SPACE": "2"}}
    plan = planned(
        hardware=H100,
        deployments=[{"engine": "vllm", "hardware": "h100", "max_num_seqs": 7}, cpu, space],
    )
    assert seen == [(7, 8192, None), (128, 2048, 1 << 30), (128, 2048, None)]
    assert [deployment.settings.max_num_batched_tokens for deployment in plan.deployments] == [
        None
    ] * 3


def test_feasibility_decides_on_the_status_with_its_reasons(judged: Callable[..., None]) -> None:
    judged(
        lambda settings: {
            1: verdict("impossible", "does not fit"),
            2: verdict("risky", "tight", max_num_seqs=100),
            4: verdict("fits", max_num_seqs=9000),
        }[settings.tensor_parallel_size]
    )
    plan = planned(deployments=grid(tensor_parallel_size=[1, 2, 4]))
    assert [
        (deployment.status, deployment.reasons, deployment.predicted.start.max_num_seqs)
        for deployment in plan.deployments
    ] == [
        ("impossible", ("does not fit",), None),
        ("risky", ("tight",), 100),
        ("planned", (), 9000),
    ]
    assert [deployment.label for deployment in plan.runnable()] == ["vllm tp=4", "vllm tp=2"]


def test_a_workload_longer_than_the_model_is_not_measured() -> None:
    workloads = [
        {"name": "fits", "input_tokens": 100, "output_tokens": 20},
        {"name": "long", "input_tokens": 4000, "output_tokens": 97},
    ]
    plan = planned(deployments={"engine": "vllm", "max_model_len": 4096}, workloads=workloads)
    (deployment,) = plan.deployments
    assert deployment.status == "planned"
    assert deployment.reasons == ()
    assert deployment.remarks == (
        (
            "workload 'long' needs at least 4,097 tokens a request, max_model_len is 4,096: not "
            "measured"
        ),
    )
    assert {point.workload.name for point in plan.points} == {"fits"}


def test_without_a_length_that_of_the_model_counts(
    judged: Callable[..., None],
) -> None:
    judged(lambda settings: verdict("fits", max_model_len=settings.max_model_len or 119))
    assert (
        planned(deployments=grid(max_model_len=[None, 120])).deployments[0].status == "impossible"
    )
    assert planned(deployments=grid(max_model_len=[None, 120])).deployments[1].status == "planned"


def test_when_no_workload_fits_the_deployment_is_impossible() -> None:
    workloads = [
        {
            "name": "talk",
            "kind": "conversations",
            "turns": 10,
            "input_tokens": 100,
            "output_tokens": 100,
        }
    ]
    plan = planned(deployments=grid(max_model_len=[1999, 2000]), workloads=workloads)
    assert [deployment.status for deployment in plan.deployments] == ["impossible", "planned"]


def test_when_some_requests_are_too_long_the_deployment_is_risky() -> None:
    workloads = [
        {
            "name": "mixed",
            "input_tokens": {"uniform": {"min": 10, "max": 5000}},
            "output_tokens": 100,
        }
    ]
    plan = planned(deployments={"engine": "vllm", "max_model_len": 4096}, workloads=workloads)
    assert plan.deployments[0].status == "risky"
    assert "up to 5,100 tokens" in plan.deployments[0].reasons[0]
    assert len(plan.points) == 2


def test_an_api_that_the_engine_lacks_is_impossible() -> None:
    workloads = [{"name": "chat", "input_tokens": 10, "output_tokens": 5, "api": "tgi"}]
    vllm, tgi = planned(
        workloads=workloads, deployments=[{"engine": "vllm"}, {"engine": "tgi"}]
    ).deployments
    assert (vllm.status, tgi.status) == ("impossible", "planned")
    assert vllm.reasons == ("workload 'chat' needs the API 'tgi'; vllm has chat, completions",)


@pytest.mark.parametrize("api", ["completions", "chat", "tgi", "native"])
def test_a_server_that_already_runs_may_have_any_api(api: str) -> None:
    endpoint = {"engine": "endpoint", "url": "http://h:1", "served_model_name": "m"}
    workloads = [{"name": "w", "input_tokens": 10, "output_tokens": 5, "api": api}]
    assert planned(deployments=endpoint, workloads=workloads).deployments[0].status == "planned"


def test_an_endpoint_needs_no_hardware_and_is_not_judged(judged: Callable[..., None]) -> None:
    judged(lambda settings: verdict("impossible", "would not fit"))
    plan = planned(
        deployments={"engine": "endpoint", "url": "http://h:1", "served_model_name": "m"}
    )
    (deployment,) = plan.deployments
    assert (deployment.status, deployment.hardware.name, deployment.devices) == (
        "planned",
        "none",
        0,
    )


def test_a_model_folder_without_a_tokenizer_is_impossible(
    tmp_path: Path,
) -> None:
    (tmp_path / "m").mkdir()
    (deployment,) = planned(tmp_path / "x.yaml", model="./m").deployments
    assert deployment.status == "impossible"
    assert deployment.reasons == (
        (
            f"{tmp_path}/m has no tokenizer.json, and prompts are made with it; give the setting "
            "'tokenizer'"
        ),
    )
    (tmp_path / "m" / "tokenizer.json").write_text("{}")
    assert planned(tmp_path / "x.yaml", model="./m").deployments[0].status == "planned"
    (elsewhere,) = planned(tmp_path / "x.yaml", model="/only/on/the/nodes").deployments
    assert elsewhere.status == "planned"
    assert elsewhere.remarks[0].startswith("/only/on/the/nodes is not on this machine")


def settings(**fields: Any) -> EngineSettings:
    return EngineSettings.model_validate({"engine": "vllm", "model": "m", **fields})


def workload(**fields: Any) -> Workload:
    return Workload.model_validate(
        {"name": "w", "input_tokens": 100, "output_tokens": 50, **fields}
    )


@pytest.mark.parametrize(("limit", "wrong"), [(None, False), (150, False), (149, True)])
def test_the_model_length_is_prompt_and_answer_together(limit: int | None, wrong: bool) -> None:
    assert (workload_mismatch(workload(), settings(), limit, openai()) is not None) == wrong


@pytest.mark.parametrize(
    ("limit", "lengths", "found"),
    [
        (99, {}, ("impossible", "every prompt of workload 'w' is longer, max_input_len is 99")),
        (100, {}, None),
        (100, {"shared_prefix_tokens": 1}, ("impossible", "every prompt")),
        (
            768,
            {"input_tokens": {"uniform": {"min": 700, "max": 900}}},
            ("risky", "about 6[4-8]% of the prompts of"),
        ),
        (900, {"input_tokens": {"uniform": {"min": 700, "max": 900}}}, None),
        (
            4000,
            {"input_tokens": {"lognormal": {"mean": 100, "sigma": 0.5}}},
            ("risky", "about 1% of the prompts"),
        ),
        (250, {"kind": "conversations", "turns": 2}, None),  # 100 + 50 + 100
        (
            249,
            {"kind": "conversations", "turns": 2},
            ("risky", "about 50% of the prompts of workload 'w' are longer"),
        ),
        # nobody counted them
        (1, {"kind": "file", "prompts": "texts.txt", "input_tokens": None}, None),
    ],
)
def test_a_limit_on_prompts_is_held_against_their_lengths(
    limit: int,
    lengths: dict[str, Any],
    found: tuple[str, str] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "texts.txt").write_text("Who wrote Faust?\n")
    monkeypatch.chdir(tmp_path)
    fields = {
        name: value
        for name, value in ({"input_tokens": 100} | lengths).items()
        if value is not None
    }
    asked = Workload.model_validate({"name": "w", "output_tokens": 50} | fields)
    told = workload_mismatch(asked, settings(engine="tgi", max_input_len=limit), None, openai())
    assert (told and told.status) == (found and found[0])
    assert told is None or found is None or re.search(found[1], told.sentence)


VLLM = openai(adapter_field="model")
ADAPTERS = {"names": ["sql", "law"], "base_share": 0.5}


@pytest.mark.parametrize(
    ("changes", "dialects", "words"),
    [
        ({"lora_modules": {"sql": "/a", "law": "/b", "more": "/c"}}, VLLM, None),
        ({"lora_modules": {"sql": "/a"}}, VLLM, "the LoRA adapter law, .* it serves sql "),
        ({}, VLLM, "the LoRA adapter sql, law, .* it serves none"),
        ({"lora_modules": {"sql": "/a", "law": "/b"}}, openai(), "vllm cannot name one"),
        ({"engine": "endpoint", "url": "http://x"}, VLLM, None),
    ],
)
def test_a_deployment_that_does_not_serve_an_adapter_is_not_asked_for_it(
    changes: dict[str, Any], dialects: dict[str, Dialect], words: str | None
) -> None:
    asked = workload(adapters=ADAPTERS)
    finding = workload_mismatch(asked, settings(**changes), None, dialects)
    if words is None:
        assert finding is None
    else:
        assert finding is not None
        assert finding.status == "impossible"
        assert re.search(f"workload 'w' asks for .*{words}", finding.sentence)


@pytest.mark.parametrize("api", ["completions", "chat"])
@pytest.mark.parametrize(
    "engine", ["vllm", "sglang", "tgi", "tensorrt_llm", "lmdeploy", "llama_cpp"]
)
def test_every_engine_that_serves_adapters_is_asked_for_them(engine: str, api: str) -> None:
    served = settings(engine=engine, lora_modules={"sql": "/a", "law": "/b"})
    dialects = ENGINES[engine].dialects(served)
    asked = workload(adapters=ADAPTERS, api=api)
    assert workload_mismatch(asked, served, None, dialects) is None
    without = settings(engine=engine)
    finding = workload_mismatch(asked, without, None, ENGINES[engine].dialects(without))
    assert finding is not None
    assert "it serves none" in finding.sentence


@pytest.mark.parametrize(
    ("changes", "dialects", "may_see", "found"),
    [
        ({}, VLLM, True, None),
        ({}, VLLM, False, ("risky", "the config.json of m has no vision_config")),
        ({}, openai(images=False), True, ("impossible", "requests to vllm cannot hold any")),
        ({"engine": "llama_cpp"}, openai(images=False), True, ("impossible", "--mmproj: FILE")),
    ],
)
def test_images_are_sent_only_where_something_can_see_them(
    changes: dict[str, Any],
    dialects: dict[str, Dialect],
    may_see: bool,
    found: tuple[str, str] | None,
) -> None:
    asked = workload(api="chat", images={"sizes": ["32x32"]})
    finding = workload_mismatch(asked, settings(**changes), None, dialects, may_see)
    assert (finding and finding.status) == (found and found[0])
    assert finding is None or found is None or found[1] in finding.sentence


def test_models_that_this_machine_lacks_are_named_once(tmp_path: Path) -> None:
    there = str(tmp_path)
    missing = str(tmp_path / "nomodel")
    settings = [
        EngineSettings(engine="vllm", model=missing),
        EngineSettings(engine="vllm", model=missing, tokenizer=there),
        EngineSettings(engine="vllm", model="org/on-the-hub"),
        EngineSettings(engine="vllm", model=str(tmp_path / "inside"), image="vllm:0.32"),
        EngineSettings(engine="emulator", model=str(tmp_path / "emulated")),
        EngineSettings(engine="endpoint", model=str(tmp_path / "served"), url="http://host"),
    ]
    assert models_missing_here(settings) == [
        f"{missing} is not there, and the engine on this machine shall load it: mend the path"
    ]


def test_a_misspelled_field_is_refused_for_a_stated_release() -> None:
    plan = planned(deployments=grid(engine_version=["0.33.0"]), workloads=[MISSPELLED])
    (deployment,) = plan.deployments
    assert deployment.status == "impossible"
    assert deployment.reasons[0].endswith("ignores: did you mean 'temperature'?")
    assert not [note for note in plan.notes if "temprature" in note]


def test_a_misspelled_field_is_noted_once_where_the_release_is_not_stated() -> None:
    plan = planned(deployments=grid(max_num_seqs=[8, 16]), workloads=[MISSPELLED])
    assert [deployment.status for deployment in plan.deployments] == ["planned", "planned"]
    (note,) = [note for note in plan.notes if "temprature" in note]
    assert "as may the release that runs: did you mean 'temperature'?" in note
