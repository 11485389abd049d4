"""LightLLM: command lines, and refusals with their reasons.

That its flags exist is checked in tests/contract/test_engine_flags.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.engines.problems import problems_of
from orchestrator.engines.registry import ENGINES
from tests.command_lines import by_flag
from tests.unit.engines.builders import H100, command_of, settings_of


def flags_of(**settings: Any) -> dict[str, list[str]]:
    return by_flag(command_of("lightllm", **settings).argv)


def test_command() -> None:
    off = {"enable_prefix_caching": False, "enable_chunked_prefill": False}
    assert flags_of(tensor_parallel_size=2, max_model_len=9000, **off) == by_flag(
        "python3 -m lightllm.server.api_server --model_dir /models/tiny --model_name tiny-01L "
        "--host 127.0.0.1 "
        "--port 21001 --nccl_port 21002 --tp 2 --dp 1 --max_req_total_len 9000 "
        "--running_max_req_size 256 "
        "--disable_chunked_prefill --disable_dynamic_prompt_cache"
    )
    assert "--enable_ep_moe" in flags_of(enable_expert_parallel=True)


def test_sizes_that_are_not_given_are_those_of_lightllm_itself() -> None:
    flags = flags_of()  # its defaults are in server/api_start.py
    assert flags["--running_max_req_size"] == ["256"]
    assert flags["--batch_max_tokens"] == ["16384"]


def test_data_parallel_ranks_take_a_gpu_each_of_one_node() -> None:
    flags = flags_of(data_parallel_size=8)
    assert flags["--tp"] == ["8"]
    assert flags["--dp"] == ["8"]
    assert settings_of("lightllm", data_parallel_size=8).world_size == 8
    assert flags["--batch_max_tokens"] == ["2048"]


def test_layers_that_predict_further_tokens_come_from_the_models_own_folder() -> None:
    flags = flags_of(speculative={"method": "mtp", "num_speculative_tokens": 1})
    assert flags["--mtp_mode"] == ["eagle_with_att"]
    assert flags["--mtp_step"] == ["1"]
    assert "--mtp_draft_model_dir" not in flags


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"data_parallel_size": 2, "tensor_parallel_size": 4},
            "data-parallel ranks have one GPU each",
        ),
        ({"enable_prefix_caching": False}, "LightLLM splits prompts only with it"),
        (
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 9, "max_model_len": 10},
            "must hold a whole prompt (10)",
        ),
        (
            {"kv_cache_dtype": "fp8kv_spt"},
            "needs the scales: extra_args: {--kv_quant_calibration_config_path",
        ),
        ({"revision": "abc"}, "revision: LightLLM reads a local folder"),
        ({"speculative": {"method": "ngram", "num_speculative_tokens": 1}}, "has no method"),
    ],
)
def test_unsupported_settings_are_refused_with_the_reason(
    fields: dict[str, Any], sentence: str
) -> None:
    problems = problems_of(ENGINES["lightllm"], settings_of("lightllm", **fields), H100)
    assert sentence in "\n".join(problems)
