"""Every flag that we emit is accepted by the engine's own parser, with the value that was meant."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from typing import Any

import pytest

from orchestrator.engines.command import Node
from orchestrator.engines.command_lines import FOLDER
from orchestrator.engines.problems import problems_of
from orchestrator.engines.registry import ENGINES
from orchestrator.spec.settings import EngineSettings, Hardware
from scripts import record_flags
from tests.command_lines import by_flag
from tests.contract.deployments import DEPLOYMENTS
from tests.contract.test_deployments import command_line
from tests.integration.engine_real import home_of

# What argparse calls these.
NAMED = {"--context-length": "context_length"}

CPU = Hardware(name="cpu")
GPU = Hardware(name="h100", accelerator="H100-80GB", gpus_per_node=8)
ALL: dict[str, dict[str, Any]] = {
    "vllm": {
        "revision": "abc", "tokenizer": "/t", "trust_remote_code": True, "hf_overrides": {"a": 1}, "dtype": "float32",
        "tensor_parallel_size": 2, "pipeline_parallel_size": 2, "enable_expert_parallel": False,
        "distributed_executor_backend": "mp", "quantization": "fp8_per_tensor", "kv_cache_dtype": "fp8",
        "max_model_len": 512, "max_num_seqs": 7, "max_num_batched_tokens": 777, "max_num_queued_reqs": 0,
        "scheduling_policy": "priority", "enable_chunked_prefill": True, "enable_prefix_caching": False,
        "stream_interval": 3, "gpu_memory_utilization": 0.55, "kv_cache_tokens": 12345, "block_size": 32,
        "cpu_offload_gb": 3.0, "enforce_eager": True, "load_format": "dummy",
        "speculative": {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 3},
        "attention_backend": "FLASH_ATTN", "served_model_name": "x", "nnodes": 2,
        "kv_transfer_config": {"kv_connector": "NixlConnector", "kv_role": "kv_both"},
    },
    "transformers": {
        "revision": "abc", "dtype": "float32", "quantization": "bnb-8bit", "trust_remote_code": True,
        "attention_backend": "sdpa", "gpu_memory_utilization": 0.5, "enforce_eager": True, "kv_cache_tokens": 1000,
        "max_num_batched_tokens": 99, "block_size": 32,
    },
}  # fmt: skip
# Reads a JSON list of argument lists, prints for each the parsed values, or the parser's complaint.
PARSERS = {
    "sglang": """
import argparse, contextlib, io, json, sys
from sglang.srt.server_args import ServerArgs
out = []
for argv in json.load(sys.stdin):
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            out.append({key: str(value) for key, value in vars(parser.parse_args(argv)).items()})
    except (SystemExit, argparse.ArgumentError) as error:
        out.append({"error": said.getvalue() or str(error)})
print(json.dumps(out))
""",
    "vllm": """
import argparse, contextlib, io, json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
out = []
for argv in json.load(sys.stdin):
    parser = make_arg_parser(FlexibleArgumentParser())
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            out.append({key: str(value) for key, value in vars(parser.parse_args(argv)).items()})
    except (SystemExit, argparse.ArgumentError) as error:
        out.append({"error": said.getvalue() or str(error)})
print(json.dumps(out))
""",
    "transformers": """
import json, sys
from transformers.cli.transformers import app
serve = app.commands["serve"]
out = []
for argv in json.load(sys.stdin):
    try:
        context = serve.make_context("serve", list(argv))
        out.append({key: str(value) for key, value in context.params.items()})
    except Exception as error:
        out.append({"error": getattr(error, "message", str(error))})
print(json.dumps(out))
""",
}


def parsed(engine: str, command_lines: list[list[str]]) -> list[dict[str, str]]:
    env = os.environ | {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [home_of(engine) / "bin/python", "-c", PARSERS[engine]],
        input=json.dumps(command_lines), capture_output=True, text=True, timeout=120, env=env, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[dict[str, str]] = json.loads(done.stdout.splitlines()[-1])
    return found


def arguments(engine: str, hardware: Hardware, node: Node, **given: Any) -> list[str]:
    settings = EngineSettings.model_validate({"engine": engine, "model": "acme/tiny"} | given)
    assert problems_of(ENGINES[engine], settings, hardware) == [] or "extra_args" in given
    return list(ENGINES[engine].command(settings, hardware, node, "k").argv[2:])


@pytest.mark.vllm
def test_vllm_accepts_every_flag_with_the_value_that_was_meant() -> None:
    bare, second, data, wrong = (
        arguments("vllm", CPU, Node(launch_id="L")),
        arguments("vllm", GPU, Node(rank=1, master_host="h", launch_id="L"), **ALL["vllm"]),
        arguments(
            "vllm",
            GPU,
            Node(rank=1, master_host="h", launch_id="L"),
            data_parallel_size=4,
            nnodes=2,
        ),
        arguments("vllm", CPU, Node(launch_id="L"), extra_args={"--no-such-flag": True}),
    )
    first = arguments("vllm", GPU, Node(launch_id="L"), **ALL["vllm"])
    answers = parsed("vllm", [bare, first, second, data, wrong])
    assert [answer.get("error") for answer in answers[:4]] == [None] * 4
    assert "--no-such-flag" in answers[4]["error"]
    given, headless = answers[1], answers[2]
    assert given["max_num_seqs"] == "7"
    assert given["num_gpu_blocks_override"] == "386"
    assert given["enable_prefix_caching"] == "False"
    assert given["host"] == "127.0.0.1"
    assert given["headless"] == "False"
    assert headless["headless"] == "True"
    assert (headless["nnodes"], headless["node_rank"], headless["master_addr"]) == ("2", "1", "h")
    assert answers[3]["data_parallel_start_rank"] == "2"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("vllm", "sglang")]
)
def test_the_engines_own_parser_takes_real_deployments_with_the_values_that_were_meant(
    name: str,
) -> None:
    """The flags in ``DEPLOYMENTS`` are those that the engine's documentation gives."""
    cases = DEPLOYMENTS[name]
    answers = parsed(name, [command_line(name, case) for case in cases.values()])
    for (case_name, case), answer in zip(cases.items(), answers, strict=True):
        assert "error" not in answer, (case_name, answer)
        for flag, values in by_flag(case.flags).items():
            if not flag or not values:
                continue
            parsed_value = answer[NAMED.get(flag, flag[2:].replace("-", "_"))]
            expected = (values[0], str(values), vllm_adapters(values))
            assert parsed_value in expected, (case_name, flag)


def vllm_adapters(values: Sequence[str]) -> str:
    """What vLLM's parser makes of the values of ``--lora-modules``: ``a=/adapters/a``."""
    adapters = [value.partition("=") for value in values]
    records = ", ".join(
        f"LoRAModulePath(name='{name}', path='{path}', base_model_name=None, "
        "is_3d_lora_weight=False)"
        for name, _, path in adapters
    )
    return f"[{records}]"


@pytest.mark.vllm
def test_vllm_finds_its_place_among_ranks_that_span_nodes() -> None:
    """vLLM's own arithmetic of which rank a node is (``AsyncEngineArgs.create_engine_config``) is
    not asked: it needs the model. What it is told is what its documentation of `--nnodes` wants:
    every node the same but its rank.
    """
    case = DEPLOYMENTS["vllm"]["DeepSeek, 2 ranks on four nodes"]
    (answer,) = parsed("vllm", [command_line("vllm", case)])
    assert (answer["nnodes"], answer["node_rank"], answer["data_parallel_size"]) == ("4", "1", "2")
    assert (answer["data_parallel_size_local"], answer["data_parallel_start_rank"]) == (
        "None",
        "None",
    )


@pytest.mark.transformers
def test_transformers_accepts_every_flag_with_the_value_that_was_meant() -> None:
    bare, full, wrong = (
        arguments("transformers", CPU, Node()),
        arguments("transformers", GPU, Node(port=21001), **ALL["transformers"]),
        arguments("transformers", CPU, Node(), extra_args={"--no-such-flag": True}),
    )
    answers = parsed("transformers", [bare, full, wrong])
    assert [answer.get("error") for answer in answers[:2]] == [None] * 2
    assert "no-such-flag" in answers[2]["error"]
    assert answers[1]["cb_num_blocks"] == "32"
    assert answers[1]["cb_use_cuda_graph"] == "False"
    assert answers[1]["port"] == "21001"
    assert answers[1]["continuous_batching"] == "True"


RECORDED_BY_PARSER = ["vllm", "sglang", "transformers", "vllm_router", "sglang_router"]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=getattr(pytest.mark, name.partition("_")[0]))
        for name in RECORDED_BY_PARSER
    ],
)
def test_what_is_recorded_of_a_release_is_what_its_installed_parser_takes(name: str) -> None:
    read = record_flags.read(name, home_of(name))
    files = [*FOLDER.glob(f"{name}.json"), *FOLDER.glob(f"{name}-*.json")]
    records = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    same = [record for record in records if record["version"] == read["version"]]
    assert len(same) == 1, f"{read['version']} is not recorded"
    assert read["flags"] == same[0]["flags"]
    for key in ("request_fields", "refusing_apis"):
        assert read.get(key) == same[0].get(key)
