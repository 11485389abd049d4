"""Words, flags and methods that an engine does not have, against the recorded command lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.engines import ENGINES, ROUTERS
from orchestrator.engines.command import Node
from orchestrator.engines.command_lines import FOLDER, Standing, command_lines, release_of
from orchestrator.engines.engine import program_of
from orchestrator.engines.problems import notes_of, problems_of
from orchestrator.spec.settings import EngineSettings, Hardware

GPU = Hardware(name="h100", accelerator="H100-80GB", gpus_per_node=8)
NEEDED = {"llama_cpp": {"max_model_len": 4096}}
RECORDED = sorted({*ENGINES.names(), *ROUTERS.names()} - {"emulator", "endpoint"})


def settings(engine: str, **given: Any) -> EngineSettings:
    values = {"engine": engine, "model": "m", **NEEDED.get(engine, {}), **given}
    return EngineSettings.model_validate(values)


def problems(engine: str, **given: Any) -> str:
    return "\n".join(problems_of(program_of(engine), settings(engine, **given), GPU))


@pytest.mark.parametrize("engine", RECORDED)
def test_a_flag_that_no_engine_has_is_refused(engine: str) -> None:
    assert "has no flag --banana-split" in problems(engine, extra_args={"--banana-split": 1})


@pytest.mark.parametrize(
    ("engine", "typo", "meant"),
    [
        ("vllm", "--async-schedulng", "--async-scheduling"),
        ("vllm", "--compilaton-config.mode", "--compilation-config"),
        ("sglang", "--moe-runer-backend", "--moe-runner-backend"),
        ("tgi", "--waiting-served-ration", "--waiting-served-ratio"),
        ("lmdeploy", "--num-tokens-per-itr", "--num-tokens-per-iter"),
        ("llama_cpp", "--flash-atn", "--flash-attn"),
        ("transformers", "--comple", "--compile"),
        ("vllm_router", "--polcy", "--policy"),
    ],
)
def test_a_mistyped_flag_is_refused_with_the_nearest(engine: str, typo: str, meant: str) -> None:
    assert f"has no flag {typo}; did you mean '{meant}'?" in problems(engine, extra_args={typo: 1})


@pytest.mark.parametrize(
    ("engine", "typo"),
    [
        ("vllm", "--max-num-batchd-tokens"),
        ("sglang", "--mem-fraction-statc"),
        ("tgi", "--max-totl-tokens"),
        ("lmdeploy", "--sesion-len"),
    ],
)
def test_typos_that_were_planned_are_refused(engine: str, typo: str) -> None:
    assert f"has no flag {typo}; did you mean" in problems(engine, extra_args={typo: 0.5})


@pytest.mark.parametrize("engine", sorted({*ENGINES.names()} - {"emulator", "endpoint"}))
@pytest.mark.parametrize(
    "field",
    ["dtype", "quantization", "kv_cache_dtype", "attention_backend", "load_format"],
)
def test_nonsense_in_a_number_format_is_refused_by_every_engine(engine: str, field: str) -> None:
    assert f"{field}: " in problems(engine, **{field: "banana"})


@pytest.mark.parametrize(
    ("field", "word", "meant"),
    [
        ("quantization", "FP8", "fp8"),
        ("quantization", "fp8-per-tensor", "fp8_per_tensor"),
        ("quantization", "compressed_tensors", "compressed-tensors"),
        ("kv_cache_dtype", "fp8_e4m4", "fp8_e4m3"),
        ("attention_backend", "FLASHINFR", "FLASHINFER"),
    ],
)
def test_vllm_names_the_word_that_was_meant(field: str, word: str, meant: str) -> None:
    assert (
        problems("vllm", **{field: word})
        == f"{field}: vLLM has no '{word}'; did you mean '{meant}'?"
    )


@pytest.mark.parametrize(
    "flags",
    [
        {"-O3": True},
        {"-O": 2},
        {"-O=1": True},
        {"-cc.pass_config.fuse_norm_quant": True},
        {"--compilation-config.mode": 3},
        {"--compilation_config": '{"mode":3}'},
        {"--no-async-scheduling": True},
        {"--disable-custom-all-reduce": True},
        {"--enable-custom-all-reduce": True},
        {"--async-sched": True},
        {"--max-cudagraph-capture-size=64": True},
        {"--moe-backend": "DEEP-GEMM"},
        {"--cudagraph-capture-sizes": [1, 2, 4]},
        {"--mm-processor-cache-gb": 0},
        {"--mm-processor-cache-type": "shm"},
        {"--max-model-len": "auto"},
        {"--default-chat-template-kwargs.thinking=true": True},
        {"--async-scheduling": False},
        {"--scheduling_policy": None},
    ],
    ids=lambda flags: next(iter(flags)),
)
def test_every_spelling_that_vllms_parser_takes_is_accepted(flags: dict[str, Any]) -> None:
    if "--scheduling_policy" in flags:
        assert "set by the field" in problems("vllm", extra_args=flags)
    else:
        assert problems("vllm", extra_args=flags) == ""


def test_a_key_of_a_json_flag_gets_true_and_false_as_values() -> None:
    extra = {"-cc.pass_config.fuse_norm_quant": False, "--eplb-config.log_balancedness": True}
    argv = ENGINES["vllm"].command(settings("vllm", extra_args=extra), GPU, Node(), "k").argv
    assert argv[-4:] == (
        *("-cc.pass_config.fuse_norm_quant", "false"),
        *("--eplb-config.log_balancedness", "true"),
    )


@pytest.mark.parametrize(
    ("engine", "flags", "sentence"),
    [
        ("vllm", {"--moe-backend": "tritn"}, "has no value 'tritn'; did you mean 'triton'?"),
        ("vllm", {"--async-scheduling": "yes"}, "takes no value, not 'yes'; write true"),
        ("vllm", {"--moe-backend": True}, "--moe-backend needs a value"),
        ("vllm", {"--moe-backend": ["triton", "cutlass"]}, "takes one value, not 2"),
        ("vllm", {"--max-num": 3}, "has no flag --max-num"),
        ("vllm", {"--disable-prefix-caching": True}, "set by the field enable_prefix_caching"),
        ("sglang", {"--moe_runner_backend": "triton"}, "has no flag --moe_runner_backend"),
    ],
)
def test_what_a_parser_would_refuse_is_refused(
    engine: str, flags: dict[str, Any], sentence: str
) -> None:
    assert sentence in problems(engine, extra_args=flags)


def test_a_plugins_word_is_taken_where_plugins_are_named() -> None:
    words = {"quantization": "ours", "load_format": "ours", "attention_backend": "OURS"}
    assert len(problems("vllm", **words).splitlines()) == 3
    assert problems("vllm", **words, env={"VLLM_PLUGINS": "ours"}) == ""
    assert "dtype: 'ours'" in problems("vllm", dtype="ours", env={"VLLM_PLUGINS": "ours"})


@pytest.mark.parametrize(
    ("given", "standing"),
    [
        ({}, Standing.ASSUMED),
        ({"executable": "/opt/nowhere/vllm"}, Standing.ASSUMED),
        ({"engine_version": "0.33"}, Standing.RECORDED),
        ({"engine_version": "v0.32.1"}, Standing.RECORDED),
        ({"image": "vllm/vllm-openai:v0.33.0-cu129"}, Standing.RECORDED),
        ({"engine_version": "0.34.0"}, Standing.NEWER),
        ({"image": "vllm/vllm-openai:v0.40.1"}, Standing.NEWER),
        ({"engine_version": "0.3"}, Standing.OTHER),
        ({"engine_version": "0.31"}, Standing.OTHER),
        ({"engine_version": "nightly"}, Standing.OTHER),
        ({"image": "acme/fork:latest"}, Standing.OTHER),
    ],
)
def test_a_release_is_recorded_newer_or_another(given: dict[str, Any], standing: Standing) -> None:
    release = release_of("vllm", settings("vllm", **given))
    assert release is not None
    assert release.standing is standing


def test_the_release_of_a_virtual_environment_is_read(tmp_path: Path) -> None:
    (tmp_path / "lib/python3.12/site-packages/vllm-0.32.0.dist-info").mkdir(parents=True)
    release = release_of("vllm", settings("vllm", executable=str(tmp_path)))
    assert release is not None
    assert (release.stated, release.command_line.version) == ("0.32.0", "0.32.0")


def test_a_word_that_a_release_unknown_here_may_have_is_a_note() -> None:
    given = {"quantization": "banana", "extra_args": {"--x": 1}, "engine_version": "0.34"}
    assert problems("vllm", **given) == ""
    first, second = notes_of(ENGINES["vllm"], settings("vllm", **given))
    assert first.startswith("vLLM 0.34 is newer than 0.33.0, 0.32.0, whose flags are known: ")
    assert "quantization: 'banana' is none of" in first
    assert second.endswith("extra_args: vLLM 0.33.0 has no flag --x")
    assert notes_of(ENGINES["vllm"], settings("vllm", engine_version="0.33")) == []
    assert notes_of(ENGINES["vllm"], settings("vllm", engine_version="nightly")) == [
        "the flags of vLLM nightly are not known, only those of 0.33.0, 0.32.0"
    ]


def test_a_method_that_was_removed_is_refused_with_the_release_that_has_it() -> None:
    drafts = {"method": "medusa", "model": "/heads", "num_speculative_tokens": 3}
    assert problems("vllm", speculative=drafts) == (
        "speculative: vLLM 0.33.0 has no method medusa; 0.32.0 has it: if that one runs, say "
        "engine_version: '0.32.0'"
    )
    assert problems("vllm", speculative=drafts, engine_version="0.32") == ""


@pytest.mark.parametrize("engine", RECORDED)
def test_every_recorded_release_is_whole(engine: str) -> None:
    lines = command_lines(engine)
    assert lines
    assert len({line.version for line in lines}) == len(lines)
    for line in lines:
        assert len(line.flags) > 20
        assert all(line.find(spelling) is flag for spelling, flag in line.flags.items())
    newest = json.loads((FOLDER / f"{engine}.json").read_text())
    assert newest["engine"] == engine
    assert newest["source"]


@pytest.mark.parametrize("engine", sorted({*ENGINES.names()} - {"emulator", "endpoint"}))
def test_the_newest_record_is_the_release_that_the_adapter_is_made_for(engine: str) -> None:
    assert ENGINES[engine].knows(command_lines(engine)[0].version)
    assert command_lines(engine)[0].version.startswith(ENGINES[engine].version)
    assert not ENGINES[engine].knows("99.0")
