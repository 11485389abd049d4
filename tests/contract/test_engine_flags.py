"""Every flag that we emit is one that the engine has, by lists recorded from its source (flags/README.md)."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.engines import ENGINES
from orchestrator.engines.base import Node
from orchestrator.engines.flags import Flag
from orchestrator.engines.tensorrt_llm import CONFIG
from orchestrator.spec.settings import EngineSettings, Hardware
from tests.contract.test_engines import GPU, NODE

# Checked by the engine alone: what it has differs by build.
OPEN = {"--attention-backend", "--distributed-executor-backend"}
FLAGS = Path(__file__).with_name("flags")
RECORDED = sorted(path.stem for path in FLAGS.glob("*.json"))
CPU = Hardware(name="cpu")
# Fields that go together, as many as the engine takes at once.
FULL: dict[str, dict[str, Any]] = {
    "sglang": {
        "revision": "abc", "tokenizer": "/t", "trust_remote_code": True, "hf_overrides": {"a": 1}, "dtype": "bfloat16",
        "tensor_parallel_size": 2, "pipeline_parallel_size": 2, "nnodes": 2, "enable_expert_parallel": True,
        "quantization": "fp8", "kv_cache_dtype": "fp8_e5m2", "max_model_len": 512, "max_num_seqs": 7,
        "max_num_batched_tokens": 640, "max_num_queued_reqs": 9, "scheduling_policy": "lpm", "stream_interval": 2,
        "enable_prefix_caching": False, "gpu_memory_utilization": 0.8, "kv_cache_tokens": 999, "block_size": 64,
        "cpu_offload_gb": 2, "enforce_eager": True, "guided_decoding_backend": "xgrammar", "load_format": "dummy",
        "enable_lora": True, "lora_modules": {"a": "/l"}, "max_loras": 2, "max_lora_rank": 8,
        "attention_backend": "fa3", "served_model_name": "x",
        "speculative": {"method": "eagle3", "num_speculative_tokens": 3, "model": "/d"},
    },
    "tgi": {
        "revision": "abc", "trust_remote_code": True, "tensor_parallel_size": 2, "quantization": "awq",
        "kv_cache_dtype": "fp8_e5m2", "max_model_len": 512, "max_input_len": 256, "max_num_seqs": 7,
        "max_num_batched_tokens": 640, "max_num_queued_reqs": 9, "enforce_eager": True,
        "gpu_memory_utilization": 0.8, "speculative": {"method": "ngram", "num_speculative_tokens": 3},
        "lora_modules": {"a": "/l"}, "enable_lora": True, "enable_prefix_caching": False,
        "enable_chunked_prefill": True, "attention_backend": "flashinfer", "guided_decoding_backend": "outlines",
    },
    "tensorrt_llm": {
        "revision": "abc", "tokenizer": "/t", "trust_remote_code": True, "tensor_parallel_size": 4,
        "pipeline_parallel_size": 2, "dtype": "bfloat16", "kv_cache_dtype": "fp8", "max_model_len": 512,
        "max_input_len": 256, "max_num_seqs": 7, "max_num_batched_tokens": 640, "enable_chunked_prefill": True,
        "enable_prefix_caching": False, "gpu_memory_utilization": 0.8, "kv_cache_tokens": 999, "block_size": 32,
        "stream_interval": 2, "scheduling_policy": "MAX_UTILIZATION", "attention_backend": "TRTLLM",
        "guided_decoding_backend": "xgrammar", "load_format": "dummy", "enable_expert_parallel": True,
        "enforce_eager": True, "enable_lora": True, "max_lora_rank": 8,
        "speculative": {"method": "eagle3", "num_speculative_tokens": 3, "model": "/d"},
    },
    "lmdeploy": {
        "revision": "abc", "trust_remote_code": True, "hf_overrides": {"a": 1}, "tensor_parallel_size": 2,
        "dtype": "float16", "quantization": "awq", "kv_cache_dtype": "fp8", "max_model_len": 512,
        "max_num_queued_reqs": 9, "enable_prefix_caching": True, "gpu_memory_utilization": 0.8, "block_size": 64,
        "enforce_eager": True, "distributed_executor_backend": "mp", "max_num_seqs": 7, "max_num_batched_tokens": 640,
        "kv_cache_tokens": 999, "enable_expert_parallel": True, "lora_modules": {"a": "/l"}, "enable_lora": True,
        "speculative": {"method": "eagle3", "num_speculative_tokens": 3, "model": "/d"},
        "guided_decoding_backend": "xgrammar", "served_model_name": "x", "extra_args": {"--backend": "pytorch"},
    },
    "lightllm": {
        "trust_remote_code": True, "tensor_parallel_size": 2, "data_parallel_size": 2, "nnodes": 2,
        "dtype": "bfloat16", "quantization": "vllm-fp8w8a8", "kv_cache_dtype": "triton_int8kv", "max_model_len": 512,
        "gpu_memory_utilization": 0.8, "kv_cache_tokens": 999,
        "enforce_eager": True, "max_num_seqs": 7, "max_num_batched_tokens": 640, "enable_chunked_prefill": False,
        "enable_prefix_caching": False, "served_model_name": "x", "enable_expert_parallel": True,
        "speculative": {"method": "mtp", "num_speculative_tokens": 1, "model": "/d"},
    },
    "llama_cpp": {
        "tensor_parallel_size": 2, "max_model_len": 512, "max_num_seqs": 7, "max_num_batched_tokens": 640,
        "kv_cache_dtype": "q8_0", "enable_prefix_caching": False, "served_model_name": "x",
        "speculative": {"method": "draft_model", "num_speculative_tokens": 3, "model": "/d.gguf"},
        "lora_modules": {"a": "/l"}, "enable_lora": True, "load_format": "mmap",
    },
}  # fmt: skip


def recorded(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((FLAGS / f"{name}.json").read_text())
    return document


def arguments(name: str, hardware: Hardware, node: Node, given: Mapping[str, Any]) -> list[str]:
    """What follows the program: from the first flag on, past ``-c code`` and ``-m module`` of Python."""
    engine = ENGINES[name]()
    made = EngineSettings.model_validate({"engine": name, "model": "acme/tiny"} | given)
    assert engine.problems(made, hardware) == []
    argv = list(engine.command(made, hardware, node, "k").argv[1:])
    argv = argv[2:] if argv[0] in ("-c", "-m") else argv
    return argv[next(index for index, word in enumerate(argv) if word.startswith("--")) :]


def complaints(argv: list[str], flags: dict[str, Any]) -> list[str]:
    """What a parser with these flags would say. A word that starts with ``-`` and a letter is a flag."""
    found, index = [], 0
    while index < len(argv):
        name = argv[index]
        values = []
        index += 1
        while index < len(argv) and not re.match(r"--?[A-Za-z]", argv[index]):
            values.append(argv[index])
            index += 1
        if name not in flags:
            found.append(f"{name} is unknown")
            continue
        kind, choices = flags[name]["kind"], flags[name].get("choices")
        if len(values) != {"bare": 0, "value": 1}.get(kind, len(values) or 1):
            found.append(f"{name} is {kind} and got {values}")
        found += [f"{name} has no choice {value}" for value in values if choices and value not in choices]
    return found


def test_every_engine_that_cannot_be_asked_is_recorded() -> None:
    assert set(RECORDED) == set(FULL) == set(ENGINES.names()) - {"vllm", "transformers", "endpoint", "emulator"}


@pytest.mark.parametrize("name", RECORDED)
def test_a_record_names_its_version_and_source(name: str) -> None:
    document = recorded(name)
    assert document["engine"] == name
    assert document["version"]
    assert document["source"]
    assert len(document["flags"]) > 30


@pytest.mark.parametrize("name", RECORDED)
def test_every_metric_that_is_read_is_one_that_the_engine_has(name: str) -> None:
    theirs = recorded(name)["metrics"]
    wanted = {term.partition("{")[0] for metric in ENGINES[name]().metrics for term in metric.name.split(" + ")}
    assert {name for name in wanted if name not in theirs and re.sub("_(sum|count)$", "", name) not in theirs} == set()


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("rank", [0, 1])
def test_every_flag_of_the_fullest_settings_is_known(name: str, rank: int) -> None:
    node = Node(
        rank=rank, port=21001, extra_ports=(21003,), devices=("0", "1"), launch_id="L", model_path="/models/tiny"
    )
    assert complaints(arguments(name, GPU, node, FULL[name]), recorded(name)["flags"]) == []


@pytest.mark.parametrize("name", RECORDED)
def test_every_flag_of_the_simplest_settings_is_known(name: str) -> None:
    hardware = CPU if name == "llama_cpp" else GPU
    assert complaints(arguments(name, hardware, NODE, {}), recorded(name)["flags"]) == []


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("sglang", {"data_parallel_size": 2, "enable_chunked_prefill": False}),
        ("sglang", {"speculative": {"method": "ngram", "num_speculative_tokens": 3}}),
        ("lmdeploy", {"tensor_parallel_size": 4, "nnodes": 2, "kv_cache_dtype": "int8"}),
        ("llama_cpp", {"pipeline_parallel_size": 2, "kv_cache_tokens": 4096, "enable_prefix_caching": True}),
        ("llama_cpp", {"speculative": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}}),
        ("tgi", {"dtype": "bfloat16"}),
        ("lightllm", {"max_num_batched_tokens": 640, "guided_decoding_backend": "xgrammar"}),
    ],
)
def test_flags_that_exclude_the_fullest_settings_are_known_too(name: str, given: dict[str, Any]) -> None:
    assert complaints(arguments(name, GPU, NODE, given), recorded(name)["flags"]) == []


@pytest.mark.parametrize("name", [name for name in RECORDED if name != "tensorrt_llm"])
def test_a_value_is_refused_here_exactly_if_the_engine_refuses_it(name: str) -> None:
    flags = recorded(name)["flags"]
    table: dict[str, Flag] = importlib.import_module(f"orchestrator.engines.{name}").TABLE
    for flag in table.values():
        theirs = flags[flag.name].get("choices")
        assert not theirs or flag.kind != "value" or set(flag.choices) <= set(theirs), flag.name
        assert not theirs or flag.choices or flag.name in OPEN, f"{flag.name} takes {theirs} only"


def test_every_key_of_tensorrts_file_is_known() -> None:
    made = EngineSettings.model_validate({"engine": "tensorrt_llm", "model": "m"} | FULL["tensorrt_llm"])
    files = ENGINES["tensorrt_llm"]().command(made, GPU, NODE, "k").files
    keys = {f"{key}.{inner}" if isinstance(value, dict) and value else key
            for key, value in json.loads(files[CONFIG]).items()
            for inner in (value if isinstance(value, dict) and value else [""])}  # fmt: skip
    assert keys <= set(recorded("tensorrt_llm")["yaml_keys"])
    assert len(keys) > 20


def test_the_check_itself_finds_what_is_wrong() -> None:
    flags = {"--a": {"kind": "bare"}, "--b": {"kind": "value", "choices": ["x"]}, "--c": {"kind": "list"}}
    assert complaints(["--a", "--b", "x", "--c", "1", "2"], flags) == []
    assert complaints(["--a", "1"], flags) == ["--a is bare and got ['1']"]
    assert complaints(["--b", "y"], flags) == ["--b has no choice y"]
    assert complaints(["--b"], flags) == ["--b is value and got []"]
    assert complaints(["--d"], flags) == ["--d is unknown"]
    assert complaints(["--b", "-1"], {"--b": {"kind": "value"}}) == []


@settings(deadline=None, max_examples=150)
@given(name=st.sampled_from(RECORDED), data=st.data())
def test_any_part_of_the_fullest_settings_gives_known_flags_or_is_refused(name: str, data: st.DataObject) -> None:
    fields = data.draw(st.sets(st.sampled_from(sorted(FULL[name]))))
    made = EngineSettings.model_validate(
        {"engine": name, "model": "m"} | {field: FULL[name][field] for field in fields}
    )
    if not ENGINES[name]().problems(made, GPU):
        assert complaints(arguments(name, GPU, NODE, made.given() | {"model": "m"}), recorded(name)["flags"]) == []
