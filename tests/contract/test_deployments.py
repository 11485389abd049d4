"""Deployments as people run them: the command line is one that the engine's own parser or source
takes.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

import pytest

from orchestrator.engines.command import Node, iter_flags
from orchestrator.engines.command_lines import command_lines
from orchestrator.engines.problems import problems_of
from orchestrator.engines.registry import ENGINES
from orchestrator.engines.tensorrt_llm import CONFIG, unknown_key_problem
from orchestrator.spec.settings import EngineSettings, Hardware
from tests.command_lines import by_flag
from tests.contract import recorded
from tests.contract.deployments import (
    BIG,
    CASE_NAMES,
    DEPLOYMENTS,
    DRAFT,
    KINDS,
    REFUSED,
    TENSORRT_FILES,
    WORDS,
    Case,
)
from tests.contract.test_engine_flags import complaints

H100 = Hardware(name="h100", accelerator="H100-80GB", gpus_per_node=8)


def command_line(engine: str, case: Case) -> list[str]:
    """The flags of rank 1 where there are several nodes; rank 0 is at 10.0.0.1:21001."""
    rank = 1 if case.settings.get("nnodes", 1) > 1 else 0
    node = Node(
        rank=rank, host=f"10.0.0.{rank + 1}", bind=f"10.0.0.{rank + 1}", port=21001, master_host="10.0.0.1",
        master_port=21002, rpc_port=21009, extra_ports=(21005, 21006, 21007), devices=tuple("01234567"), launch_id="L",
        role=case.role,
    )  # fmt: skip
    settings = EngineSettings.model_validate({"engine": engine} | case.settings)
    assert problems_of(ENGINES[engine], settings, H100) == []
    _, *arguments = ENGINES[engine].command(settings, H100, node, "k").argv
    if arguments[0] in ("-c", "-m"):
        arguments = arguments[2:]
    while not arguments[0].startswith("--"):
        arguments = arguments[1:]  # a subcommand, or a model
    return arguments


@pytest.mark.parametrize(("engine", "name"), CASE_NAMES)
def test_a_real_deployment_becomes_the_flags_that_the_engine_documents(
    engine: str, name: str
) -> None:
    case = DEPLOYMENTS[engine][name]
    argv = command_line(engine, case)
    values_by_flag = by_flag(argv)
    for flag, values in by_flag(case.flags).items():
        if not flag:
            continue
        assert flag in values_by_flag
        if values:
            assert values_by_flag[flag] == values
    if engine in recorded.WITH_FLAGS:
        assert complaints(argv, recorded.flags(engine)["flags"]) == []


LAUNCHED = [
    name for name in ENGINES.shipped() if ENGINES[name].launches and not ENGINES[name].emulated
]


@pytest.mark.parametrize("name", LAUNCHED)
@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_runs_each_kind_of_deployment_or_says_why_not(name: str, kind: str) -> None:
    is_run = kind in DEPLOYMENTS.get(name, {})
    reason = REFUSED.get(name, {}).get(kind)
    if not is_run and reason is None:
        fail(f"{name} needs {kind!r} in DEPLOYMENTS, or in REFUSED why not")
    if is_run and reason is not None:
        fail(f"{name} has {kind!r} both in DEPLOYMENTS and in REFUSED")
    if reason is None:
        return
    settings = EngineSettings.model_validate({"engine": name} | KINDS[kind])
    problems = problems_of(ENGINES[name], settings, H100)
    if not problems:
        fail(f"{name} refuses {kind!r} in REFUSED, but nothing of it is a problem to plan")
    if reason not in "\n".join(problems):
        said = "\n  ".join(problems)
        fail(f"REFUSED says of {name} and {kind!r}: {reason!r}; plan says:\n  {said}")


def fail(sentence: str) -> NoReturn:
    """Fails with this sentence alone, without the settings and their values above it."""
    pytest.fail(f"tests/contract/deployments.py: {sentence}", pytrace=False)


@pytest.mark.parametrize("name", DEPLOYMENTS["tensorrt_llm"])
def test_tensorrts_file_says_what_its_command_line_leaves_open(name: str) -> None:
    document = file_of(**DEPLOYMENTS["tensorrt_llm"][name].settings)
    expected = TENSORRT_FILES[name]
    assert {key: document[key] for key in expected} == expected
    assert [key for key in document if unknown_key_problem(key)] == []


def _spellings(engine: str) -> list[tuple[str, ...]]:
    """The spellings of every flag that has several and that a field sets."""
    flags = command_lines(engine)[0].flags
    spellings: dict[str, list[str]] = {}
    for spelling, flag in flags.items():
        spellings.setdefault(flag.name, []).append(spelling)
    names = {flags[flag.name].name for _, flag in iter_flags(ENGINES[engine].flags)}
    return [tuple(spellings[name]) for name in sorted(names) if len(spellings[name]) > 1]


@pytest.mark.parametrize(
    ("engine", "spellings"),
    [(engine, group) for engine in ("sglang", "vllm") for group in _spellings(engine)],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_no_spelling_of_a_flag_that_is_set_passes_through_extra_args(
    engine: str, spellings: tuple[str, ...]
) -> None:
    spec = {"method": "eagle3", "num_speculative_tokens": 3, "model": "/d"}
    for flag in spellings:
        given = BIG | {"engine": engine, "speculative": spec, "extra_args": {flag: "1"}}
        assert f"extra_args: {flag} is set by" in "\n".join(
            problems_of(ENGINES[engine], EngineSettings.model_validate(given), H100)
        )


@pytest.mark.parametrize(
    ("name", "flag", "owner"),
    [
        ("sglang", "--max-running", "the field max_num_seqs"),
        ("vllm", "--tensor-par", "the field tensor_parallel_size"),
        ("vllm", "--device-memory-utilization", "the field gpu_memory_utilization"),
        ("vllm", "--speculative-config.method", "the field speculative"),
        ("vllm", "-sc.method", "the field speculative"),
    ],
)
def test_the_beginning_of_a_flag_is_that_flag(name: str, flag: str, owner: str) -> None:
    drafts = {"method": "mtp", "num_speculative_tokens": 1}
    settings = EngineSettings.model_validate(
        {"engine": name, **BIG, "speculative": drafts, "extra_args": {flag: 4}}
    )
    assert f"extra_args: {flag} is set by {owner}" in "\n".join(
        problems_of(ENGINES[name], settings, H100)
    )


def without_variants(flag: str) -> str:
    return flag.replace("_", "-").replace("--no-", "--")


def owned_spellings(name: str) -> set[str]:
    """Every spelling of the flags that fields or this program set."""
    engine = ENGINES[name]
    owned = {flag.name for _, flag in iter_flags(engine.flags)}
    owned |= {*engine.reserved, *engine.aliases}
    owned |= {f"--{field}" for field in EngineSettings.model_fields}
    recorded_flags = command_lines(name)[0].flags
    owned_flags = [recorded_flags[spelling] for spelling in owned if spelling in recorded_flags]
    for spelling, flag in recorded_flags.items():
        if flag in owned_flags:
            owned.add(spelling)
    return {without_variants(spelling) for spelling in owned}


@pytest.mark.parametrize("name", recorded.WITH_FLAGS)
def test_no_flag_of_its_own_is_taken_for_the_beginning_of_another(name: str) -> None:
    owned = owned_spellings(name)
    for flag in recorded.flags(name)["flags"]:
        settings = EngineSettings.model_validate({"engine": name, **BIG, "extra_args": {flag: "1"}})
        problems = "\n".join(problems_of(ENGINES[name], settings, H100))
        if "set by" in problems:
            assert without_variants(flag) in owned, problems


def file_of(**given: Any) -> dict[str, Any]:
    settings = EngineSettings.model_validate({"engine": "tensorrt_llm", **BIG} | given)
    assert problems_of(ENGINES["tensorrt_llm"], settings, H100) == []
    document: dict[str, Any] = json.loads(
        ENGINES["tensorrt_llm"].command(settings, H100, Node(), "k").files[CONFIG]
    )
    return document


def test_keys_of_tensorrts_file_are_merged_into_it_and_are_no_flags() -> None:
    extra = {
        "enable_attention_dp": True,
        "kv_cache_config.host_cache_size": 1 << 30,
        "cuda_graph_config.batch_sizes": [1, 64],
    }
    document = file_of(extra_args=extra, kv_cache_dtype="fp8_e4m3", gpu_memory_utilization=0.8)
    assert document["enable_attention_dp"] is True
    assert document["kv_cache_config"] == {
        "dtype": "fp8",
        "free_gpu_memory_fraction": 0.8,
        "host_cache_size": 1 << 30,
    }
    assert document["cuda_graph_config"] == {"enable_padding": True, "batch_sizes": [1, 64]}
    assert file_of(max_num_seqs=96)["cuda_graph_config"] == {
        "enable_padding": True,
        "max_batch_size": 96,
    }
    assert file_of(enforce_eager=True)["cuda_graph_config"] is None


@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        ({"max_batch_size": 3}, "max_batch_size is set by the field max_num_seqs"),
        ({"kv_cache_config": None}, "kv_cache_config is set by the field kv_cache_dtype"),
        ({"max_batch_size.x": 3}, "max_batch_size.x is set by the field max_num_seqs"),
        (
            {"moe_config.backend": "X", "moe_config": None},
            "moe_config and moe_config.backend set the same",
        ),
        ({"cp_config..x": 3}, "'cp_config..x' is not a key"),
        ({"return_perf_metrics": False}, "is set by this program"),
        (
            {"enable_attention_pd": True},
            "'enable_attention_pd' is not a key of TensorRT-LLM's file (1.2 to 1.4.0rc0); did "
            "you mean 'enable_attention_dp'?",
        ),
        ({"kv_cache_config.host_cache_sise": 1}, "did you mean 'kv_cache_config.host_cache_size'?"),
        ({"enable_block_reuse": True}, "did you mean 'kv_cache_config.enable_block_reuse'?"),
        ({"quite_another": 1}, "'quite_another' is not a key"),
        ({"orchestrator_type": "ray"}, "waits there for GPUs that this launch holds"),
    ],
)
def test_unknown_and_conflicting_keys_of_tensorrts_file_are_refused(
    extra: dict[str, Any], sentence: str
) -> None:
    settings = EngineSettings.model_validate({"engine": "tensorrt_llm", **BIG, "extra_args": extra})
    assert sentence in "\n".join(problems_of(ENGINES["tensorrt_llm"], settings, H100))


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"speculative": DRAFT}, "Eagle"),
        ({"speculative": DRAFT | {"method": "draft_model"}}, "DraftTarget"),
        (
            {"speculative": DRAFT | {"method": "draft_model"}, "engine_version": "1.2.1"},
            "DraftTarget",
        ),
        (
            {"speculative": DRAFT | {"method": "draft_model"}, "engine_version": "v1.3.0rc26"},
            "Draft_Target",
        ),
    ],
)
def test_tensorrt_gets_the_words_for_drafts_that_its_release_knows(
    given: dict[str, Any], kind: str
) -> None:
    assert file_of(**given)["speculative_config"]["decoding_type"] == kind


def test_a_key_without_dashes_is_for_engines_that_read_a_file() -> None:
    settings = EngineSettings.model_validate(
        {"engine": "vllm", **BIG, "extra_args": {"enable_attention_dp": True}}
    )
    assert "is not a flag; write '--enable_attention_dp'" in "\n".join(
        problems_of(ENGINES["vllm"], settings, H100)
    )


# engines that run BIG; those without tensor parallelism refuse it
TENSOR_PARALLEL = [
    name for name in recorded.WITH_FLAGS if "70B on 8 GPUs" not in REFUSED.get(name, {})
]


@pytest.mark.parametrize(
    ("field", "word", "name"),
    [
        (field, word, name)
        for field, words in WORDS.items()
        for word in words
        for name in TENSOR_PARALLEL
    ],
)
def test_every_word_for_numbers_is_each_engines_own_or_refused(
    field: str, word: str, name: str
) -> None:
    backend = {"extra_args": {"--backend": "pytorch"}} if name == "lmdeploy" else {}
    settings = EngineSettings.model_validate({"engine": name, **BIG, field: word, **backend})
    problems = "\n".join(problems_of(ENGINES[name], settings, H100))
    own_words = WORDS[field][word]
    if name not in own_words:
        assert problems.startswith(f"{field}: ")
        return
    assert problems == ""
    command = ENGINES[name].command(settings, H100, Node(), "k")
    if name == "tensorrt_llm":
        assert json.loads(command.files[CONFIG])["kv_cache_config"]["dtype"] == own_words[name]
        return
    for field_name, flag in iter_flags(ENGINES[name].flags):
        if field_name == field:
            values = by_flag(command.argv).get(flag.name, [""])
            assert values == [own_words[name]]


def test_a_value_without_a_word_of_the_engine_is_refused_with_the_choices() -> None:
    settings = EngineSettings.model_validate({"engine": "lightllm", **BIG, "kv_cache_dtype": "fp8"})
    (problem,) = problems_of(ENGINES["lightllm"], settings, H100)
    words = "auto, int8, int4, None, int8kv, int4kv, fp8kv_sph, fp8kv_spt, fp8kv_dsa"
    assert problem == f"kv_cache_dtype: 'fp8' is none of {words}; LightLLM has no other"


def test_temporary_files_go_with_the_launch_unless_a_place_was_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def given(workdir: str = "/tmp/orchestrator-0/launch", **more: Any) -> dict[str, str]:  # noqa: S108
        settings = EngineSettings.model_validate({"engine": "vllm", **BIG, **more})
        return ENGINES["vllm"].command(settings, H100, Node(workdir=workdir), "k").env

    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setenv("USER", "me")
    monkeypatch.setenv("LOGNAME", "me")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    env = given()
    assert env["TMPDIR"] == "/tmp/orchestrator-0/launch"  # noqa: S108
    assert env["TORCHINDUCTOR_CACHE_DIR"] == "/tmp/torchinductor_me"  # noqa: S108 - where torch puts it by itself
    assert given("/" + "w" * 69)["TMPDIR"] == "/" + "w" * 69
    assert "TMPDIR" not in given("/" + "w" * 70)  # a socket's path there would be too long
    assert given(env={"TMPDIR": "/big"})["TMPDIR"] == "/big"
    assert "TORCHINDUCTOR_CACHE_DIR" not in given(env={"TMPDIR": "/big"})
    assert "TMPDIR" not in given(image="vllm/vllm-openai:v0.32.0")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/kernels")
    assert given()["TORCHINDUCTOR_CACHE_DIR"] == "/kernels"
    monkeypatch.setenv("TMPDIR", "/scratch")
    assert "TMPDIR" not in given()


def test_variables_may_differ_by_rank_and_unknown_placeholders_are_refused() -> None:
    env = {
        "NCCL_DEBUG_FILE": "{workdir}/nccl-{rank}.log",
        "OMP_PLACES": "{0,1}",
        "LEVELS": '{"a": 1}',
    }
    settings = EngineSettings.model_validate({"engine": "vllm", **BIG, "env": env})
    assert problems_of(ENGINES["vllm"], settings, H100) == []
    variables = ENGINES["vllm"].command(settings, H100, Node(rank=3, workdir="/w"), "k").env
    assert variables["NCCL_DEBUG_FILE"] == "/w/nccl-3.log"
    assert variables["OMP_PLACES"] == "{0,1}"
    assert variables["LEVELS"] == '{"a": 1}'
    wrong = settings.model_copy(update={"env": {"A": "{rnak}"}})
    assert "env: A holds {rnak}, which is none of {rank}, {host}" in "\n".join(
        problems_of(ENGINES["vllm"], wrong, H100)
    )
