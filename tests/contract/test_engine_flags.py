"""Every flag that we emit is one that the engine has, by lists recorded from its source
(engines/README.md).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.engines import tensorrt_llm
from orchestrator.engines.command import Node, iter_flags
from orchestrator.engines.problems import problems_of
from orchestrator.engines.registry import ENGINES
from orchestrator.engines.tensorrt_llm import CONFIG
from orchestrator.spec.settings import EngineSettings, Hardware
from tests.contract import recorded
from tests.contract.test_engines import GPU, NODE

RECORDED = recorded.WITH_FLAGS
OURS = {"emulator"}  # it has a parser of our own
CPU = Hardware(name="cpu")


def arguments(name: str, hardware: Hardware, node: Node, given: Mapping[str, Any]) -> list[str]:
    """The engine's command line from its first flag on. Before it stand the program, ``-c code`` or
    ``-m module`` of Python, a subcommand, the model.
    """
    engine = ENGINES[name]
    engine_settings = EngineSettings.model_validate(
        {"engine": name, "model": "acme/tiny"} | recorded.NEEDED.get(name, {}) | given
    )
    assert problems_of(engine, engine_settings, hardware) == []
    argv = list(engine.command(engine_settings, hardware, node, "key").argv[1:])
    while not argv[0].startswith("--"):
        argv.pop(0)
    return argv


def complaints(argv: list[str], flags: dict[str, Any]) -> list[str]:
    """What a parser with these flags would say. Words that start with one or two ``-`` and a letter
    are flags, and the words after one are its values.
    """
    sentences = []
    index = 0
    while index < len(argv):
        name = argv[index]
        values = []
        index += 1
        while index < len(argv) and not re.match(r"--?[A-Za-z]", argv[index]):
            values.append(argv[index])
            index += 1
        if name not in flags:
            sentences.append(f"{name} is unknown")
            continue
        kind = flags[name]["kind"]
        choices = flags[name].get("choices")
        if not takes(kind, len(values)):
            sentences.append(f"{name} is {kind} and got {values}")
        if choices:
            sentences += [
                f"{name} has no choice {value}" for value in values if value not in choices
            ]
    return sentences


def takes(kind: str, values: int) -> bool:
    """Whether a flag of this kind takes this number of values."""
    if kind == "bare":
        return values == 0
    if kind == "value":
        return values == 1
    if kind == "optional":
        return True
    return values > 0  # a list


def test_every_engine_is_recorded() -> None:
    launched = {name for name in ENGINES.shipped() if ENGINES[name].launches}
    assert set(RECORDED) | OURS == launched, (
        "an engine needs orchestrator/engines/recorded/NAME.json and a folder "
        "tests/contract/engines/NAME (README.md there)"
    )


@pytest.mark.parametrize("name", RECORDED)
def test_a_record_names_its_version_and_source(name: str) -> None:
    document = recorded.flags(name)
    assert document["engine"] == name
    assert document["version"]
    assert document["source"]
    assert document["flags"]


@pytest.mark.parametrize("name", RECORDED)
def test_every_metric_that_is_read_is_one_that_the_engine_has(name: str) -> None:
    recorded_metrics = recorded.flags(name).get("metrics", ())
    for terms in ENGINES[name].metrics.values():
        for term in terms.split(" + "):
            metric = term.partition("{")[0]
            family = re.sub("_(sum|count|total)$", "", metric)
            assert {metric, family} & set(recorded_metrics), metric


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("rank", [0, 1])
def test_every_flag_of_the_fullest_settings_is_known(name: str, rank: int) -> None:
    node = Node(
        rank=rank,
        port=21001,
        extra_ports=(21003,),
        devices=("0", "1"),
        launch_id="L",
        model_path="/models/tiny",
    )
    argv = arguments(name, GPU, node, recorded.fullest(name))
    assert complaints(argv, recorded.flags(name)["flags"]) == []


@pytest.mark.parametrize("name", RECORDED)
def test_every_flag_of_the_simplest_settings_is_known(name: str) -> None:
    hardware = CPU if name == "llama_cpp" else GPU
    assert complaints(arguments(name, hardware, NODE, {}), recorded.flags(name)["flags"]) == []


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("sglang", {"data_parallel_size": 2, "enable_chunked_prefill": False}),
        ("sglang", {"speculative": {"method": "ngram", "num_speculative_tokens": 3}}),
        ("lmdeploy", {"tensor_parallel_size": 4, "nnodes": 2, "kv_cache_dtype": "int8"}),
        (
            "llama_cpp",
            {"pipeline_parallel_size": 2, "max_model_len": 4096, "enable_prefix_caching": True},
        ),
        (
            "llama_cpp",
            {
                "speculative": {
                    "method": "ngram",
                    "num_speculative_tokens": 3,
                    "prompt_lookup_max": 4,
                }
            },
        ),
        ("tgi", {"dtype": "bfloat16"}),
        ("lightllm", {"max_num_batched_tokens": 640}),
    ],
)
def test_flags_that_exclude_the_fullest_settings_are_known_too(
    name: str, given: dict[str, Any]
) -> None:
    assert complaints(arguments(name, GPU, NODE, given), recorded.flags(name)["flags"]) == []


@pytest.mark.parametrize("name", [name for name in RECORDED if name != "tensorrt_llm"])
def test_no_value_is_taken_here_that_the_engine_refuses(name: str) -> None:
    flags = recorded.flags(name)["flags"]
    for _, flag in iter_flags(ENGINES[name].flags):
        recorded_choices = flags[flag.name].get("choices")
        if recorded_choices and flag.kind == "value":
            assert set(flag.choices) <= set(recorded_choices), flag.name


def test_every_key_of_tensorrts_file_is_known() -> None:
    engine_settings = EngineSettings.model_validate(
        {"engine": "tensorrt_llm", "model": "m"} | recorded.fullest("tensorrt_llm")
    )
    files = ENGINES["tensorrt_llm"].command(engine_settings, GPU, NODE, "key").files
    keys: set[str] = set()
    for key, value in json.loads(files[CONFIG]).items():
        if isinstance(value, dict) and value:
            keys |= {f"{key}.{inner}" for inner in value}
        else:
            keys.add(key)
    assert [key for key in keys if tensorrt_llm.unknown_key_problem(key)] == []
    assert len(keys) > 20


def test_the_check_itself_finds_what_is_wrong() -> None:
    flags = {
        "--a": {"kind": "bare"},
        "--b": {"kind": "value", "choices": ["x"]},
        "--c": {"kind": "list"},
    }
    assert complaints(["--a", "--b", "x", "--c", "1", "2"], flags) == []
    assert complaints(["--a", "1"], flags) == ["--a is bare and got ['1']"]
    assert complaints(["--b", "y"], flags) == ["--b has no choice y"]
    assert complaints(["--b"], flags) == ["--b is value and got []"]
    assert complaints(["--d"], flags) == ["--d is unknown"]
    assert complaints(["--b", "-1"], {"--b": {"kind": "value"}}) == []


@settings(deadline=None, max_examples=150)
@given(name=st.sampled_from(RECORDED), data=st.data())
def test_any_part_of_the_fullest_settings_gives_known_flags_or_is_refused(
    name: str, data: st.DataObject
) -> None:
    fullest = recorded.fullest(name)
    fields = data.draw(st.sets(st.sampled_from(sorted(fullest))))
    some_fields = {field: fullest[field] for field in fields}
    engine_settings = EngineSettings.model_validate({"engine": name, "model": "m"} | some_fields)
    if not problems_of(ENGINES[name], engine_settings, GPU):
        argv = arguments(name, GPU, NODE, engine_settings.without_defaults() | {"model": "m"})
        assert complaints(argv, recorded.flags(name)["flags"]) == []
