"""TGI: command lines, and refusals with their reasons.

That its flags exist is checked in tests/contract/test_engine_flags.py.
"""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from orchestrator.engines.problems import problems_of
from orchestrator.engines.registry import ENGINES
from orchestrator.spec.settings import Hardware
from tests.command_lines import by_flag
from tests.unit.engines.builders import CPU, H100, command_of, settings_of

# The longest prompt leaves one token of max_model_len to the answer.
WHOLE_PROMPTS = {
    "enable_chunked_prefill": False,
    "max_model_len": 4097,
    "max_num_batched_tokens": 4097,
}


@pytest.mark.parametrize("folder", ["/tmp/orchestrator-01L-abcdef", "/scratch/" + 90 * "x"])
def test_socket_is_in_the_launch_folder_unless_its_path_is_too_long(
    folder: str,
) -> None:
    (path,) = by_flag(command_of("tgi", node={"workdir": folder}).argv)["--shard-uds-path"]
    assert path == (f"{folder}/shard" if len(folder) < 90 else "/tmp/tgi-01L-21001")
    assert len(f"{path}-100") <= 107


def test_command_of_3_3_7() -> None:
    made = command_of(
        "tgi",
        tensor_parallel_size=4,
        max_model_len=8192,
        max_input_len=4096,
        enable_prefix_caching=False,
    )
    assert by_flag(made.argv) == by_flag(
        "text-generation-launcher --model-id /models/tiny --hostname 127.0.0.1 --port 21001 "
        "--prometheus-port 21003 "
        "--master-port 21002 --shard-uds-path ./shard --num-shard 4 --max-total-tokens 8192 "
        "--max-input-tokens 4096 --max-batch-prefill-tokens 8192 --max-concurrent-requests 10000 "
        "--usage-stats off"
    )
    assert made.env["PREFIX_CACHING"] == "0"
    assert made.env["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert made.secrets == {"API_KEY": "k3y"}
    assert "max_num_queued_reqs=10000 was left open and is pinned" in made.notes
    assert "--max-concurrent-requests 128" in shlex.join(
        command_of("tgi", max_num_queued_reqs=128).argv
    )


def test_whole_prompts_are_accepted_if_a_batch_holds_the_longest() -> None:
    for given in (
        WHOLE_PROMPTS | {"max_num_batched_tokens": 4096},
        WHOLE_PROMPTS | {"enable_chunked_prefill": True},
    ):
        assert problems_of(ENGINES["tgi"], settings_of("tgi", **given), H100) == []


@pytest.mark.parametrize(
    ("accelerator", "given", "tokens"),
    [
        ("L4", {}, 4096),
        ("H100-80GB", {}, 8192),
        ("L4", {"max_model_len": 16384}, 4096),
        ("L4", {"max_model_len": 16384, "enable_chunked_prefill": False}, 16384),
        (
            "L4",
            {"max_model_len": 16384, "max_input_len": 9000, "enable_chunked_prefill": False},
            9000,
        ),
        ("H100-80GB", {"max_model_len": 2048, "enable_chunked_prefill": False}, 8192),
    ],
)
def test_batch_is_pinned_by_the_gpu_and_the_longest_prompt(
    accelerator: str, given: dict[str, Any], tokens: int
) -> None:
    pins = ENGINES["tgi"].open_pins(
        settings_of("tgi", **given), Hardware(name="x", accelerator=accelerator)
    )
    assert pins["max_num_batched_tokens"] == tokens


ON_CPU = {"max_input_len": 99}  # what it must be told there


def test_settings_for_a_cpu_are_accepted() -> None:
    assert problems_of(ENGINES["tgi"], settings_of("tgi", **ON_CPU), CPU) == []


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"max_input_len": None}, "max_input_len: on a CPU TGI's warm-up asks for more memory"),
        ({"dtype": "float32"}, "dtype: 'float32' is none of float16, bfloat16"),
        ({"quantization": "fp8"}, "quantization: TGI quantizes on GPUs only"),
    ],
)
def test_settings_unsupported_on_a_cpu_are_refused(fields: dict[str, Any], problem: str) -> None:
    settings = settings_of("tgi", **(ON_CPU | fields))
    (sentence,) = problems_of(ENGINES["tgi"], settings, CPU)
    assert sentence.startswith(problem)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size: TGI has no pipeline parallelism"),
        ({"nnodes": 2, "tensor_parallel_size": 2}, "nnodes: TGI runs on one node"),
        (
            {"dtype": "float16", "quantization": "awq"},
            "dtype: TGI refuses it together with quantization",
        ),
        ({"quantization": "exl2", "tensor_parallel_size": 2}, "exl2 cannot be sharded"),
        (
            {"max_input_len": 9, "max_model_len": 9},
            "max_input_len: 9 must be below max_model_len (9)",
        ),
        (WHOLE_PROMPTS | {"max_num_batched_tokens": 4095}, "4095 must hold a whole prompt (4096)"),
        (
            WHOLE_PROMPTS | {"max_input_len": 4098, "max_model_len": 5000},
            "4097 must hold a whole prompt (4098)",
        ),
        ({"max_num_queued_reqs": 0}, "0 would refuse every request"),
        (
            {"speculative": {"method": "eagle", "num_speculative_tokens": 1}},
            "TGI has no method eagle; it has ngram, medusa",
        ),
        (
            {"extra_args": {"--max-input-length": 5}},
            "--max-input-length is set by the field max_input_len",
        ),
    ],
)
def test_unsupported_settings_are_refused_with_the_reason(
    fields: dict[str, Any], sentence: str
) -> None:
    problems = problems_of(ENGINES["tgi"], settings_of("tgi", **fields), H100)
    assert sentence in "\n".join(problems)
