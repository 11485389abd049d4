"""Why an engine cannot run settings: by its record, and by the recorded flags of its releases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.engines.problems import notes_of, problems_of
from orchestrator.engines.registry import ENGINES, ROUTERS, program_of
from orchestrator.spec.settings import EngineSettings, Hardware
from tests.unit.engines.builders import ACME, CPU, acme, settings_of

GPU = Hardware(name="h100", accelerator="H100-80GB", gpus_per_node=8)
NEEDED = {"llama_cpp": {"max_model_len": 4096}}
RECORDED = sorted({*ENGINES.shipped(), *ROUTERS.shipped()} - {"emulator", "endpoint"})


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
def test_mistyped_flags_are_refused_with_the_nearest(engine: str, typo: str) -> None:
    assert f"has no flag {typo}; did you mean" in problems(engine, extra_args={typo: 0.5})


@pytest.mark.parametrize("engine", sorted({*ENGINES.shipped()} - {"emulator", "endpoint"}))
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
def test_the_nearest_value_of_vllm_is_suggested(field: str, word: str, meant: str) -> None:
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


def test_values_of_plugins_are_accepted_where_plugins_are_named() -> None:
    words = {"quantization": "ours", "load_format": "ours", "attention_backend": "OURS"}
    assert len(problems("vllm", **words).splitlines()) == 3
    assert problems("vllm", **words, env={"VLLM_PLUGINS": "ours"}) == ""
    assert "dtype: 'ours'" in problems("vllm", dtype="ours", env={"VLLM_PLUGINS": "ours"})


def test_an_unknown_flag_of_an_unrecorded_release_is_a_note() -> None:
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


def test_a_removed_method_is_refused_with_the_release_that_has_it() -> None:
    drafts = {"method": "medusa", "model": "/heads", "num_speculative_tokens": 3}
    assert problems("vllm", speculative=drafts) == (
        "speculative: vLLM 0.33.0 has no method medusa; 0.32.0 has it: if that one runs, say "
        "engine_version: '0.32.0'"
    )
    assert problems("vllm", speculative=drafts, engine_version="0.32") == ""


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"block_size": 16}, "block_size: Acme has no such setting"),
        ({"tokenizer": "x"}, "tokenizer: Acme has no tokenizer"),
        ({"url": "http://x"}, "url: is for the engine `endpoint`; this one is launched"),
        ({"dtype": "int4"}, "dtype: 'int4' is none of half, float; Acme has no other"),
        (
            {"env": {"CUDA_VISIBLE_DEVICES": "0"}},
            "env: CUDA_VISIBLE_DEVICES is set by this program",
        ),
        ({"nnodes": 2}, "nnodes: Acme runs on one node"),
        (
            {"extra_args": {"--port": 1}},
            "extra_args: --port is set by this program; Acme would get it twice",
        ),
        ({"extra_args": {"--batch=3": True}}, "--batch=3 is set by the field max_num_seqs"),
        (
            {"extra_args": {"--no-ranks": True}},
            "--no-ranks is set by the field tensor_parallel_size",
        ),
        ({"extra_args": {"--tensor-parallel-size": 2}}, "is set by the field tensor_parallel_size"),
        ({"extra_args": {"--half-batch": 2}}, "--half-batch is set by the field max_num_seqs"),
        ({"lora_modules": {"a": "/a"}}, "Acme has no option for LoRA adapters"),
        (
            {"guided_decoding_backend": "x"},
            "guided_decoding_backend: Acme has no choice of what constrains answers",
        ),
        ({"extra_args": {"-b": 1}}, "-b is set by the field max_num_seqs"),
        ({"extra_args": {"more": 1}}, "'more' is not a flag; write '--more'"),
        (
            {"speculative": {"method": "mtp", "num_speculative_tokens": 1}},
            "Acme has no method mtp; it has ngram",
        ),
        (
            {"speculative": {"method": "ngram", "num_speculative_tokens": 1, "model": "/d"}},
            "speculative: method ngram has no model",
        ),
    ],
)
def test_each_problem_is_one_sentence(given: dict[str, Any], sentence: str) -> None:
    (problem,) = problems_of(ACME, acme(**given), GPU)
    assert sentence in problem


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"lora_modules": {"sql": "/a"}}, ""),
        ({"lora_modules": {}}, "lora_modules: names no adapter: leave it out"),
        (
            {"lora_modules": {"sql": "/a"}, "enable_lora": False},
            "enable_lora: is false, and lora_modules names adapters: leave one of them out",
        ),
        (
            {"lora_modules": {"m": "/a"}},
            "lora_modules: 'm' is the model's own name: give the adapter another",
        ),
    ],
)
def test_adapters_that_no_request_would_reach_are_refused(
    engine: str, given: dict[str, Any], sentence: str
) -> None:
    assert problems(engine, **given) == sentence


def test_flags_that_switch_off_what_no_workload_uses_are_accepted() -> None:
    leaving_out = {
        "--limit-mm-per-prompt": '{"image":0}',
        "--disable-grammar-support": True,
        "--no-enable-lora": True,
    }
    assert problems_of(ACME, acme(extra_args=leaving_out), GPU) == []


def test_cpus_and_several_nodes_are_refused_unless_the_record_has_them() -> None:
    assert problems_of(ACME, acme(), CPU) == ["hardware: Acme is run on GPUs only"]
    assert problems_of(replace(ACME, on_cpus=True), acme(), CPU) == []
    assert problems_of(replace(ACME, several_nodes=True), acme(nnodes=2), GPU) == []


@pytest.mark.parametrize("name", ["tensorrt_llm", "lmdeploy", "lightllm"])
def test_engines_for_gpus_refuse_a_cpu(name: str) -> None:
    problems = problems_of(ENGINES[name], settings_of(name), CPU)
    assert len(problems) == 1
    assert problems[0].startswith("hardware: ")
    assert problems[0].endswith("is run on GPUs only")


@pytest.mark.parametrize("name", ["tensorrt_llm", "lmdeploy", "lightllm"])
def test_engines_for_nvidias_gpus_refuse_amds(name: str) -> None:
    (problem,) = problems_of(
        ENGINES[name], settings_of(name), Hardware(name="mi", accelerator="MI325X")
    )
    assert problem.endswith("is run on NVIDIA's GPUs only")
