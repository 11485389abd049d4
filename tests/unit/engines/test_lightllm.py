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


def test_command() -> None:
    off = {"enable_prefix_caching": False, "enable_chunked_prefill": False}
    made = command_of("lightllm", tensor_parallel_size=2, max_model_len=9000, **off)
    assert by_flag(made.argv) == by_flag(
        "python3 -m lightllm.server.api_server --model_dir /models/tiny --model_name tiny-01L "
        "--host 127.0.0.1 "
        "--port 21001 --nccl_port 21002 --tp 2 --dp 1 --max_req_total_len 9000 "
        "--running_max_req_size 256 "
        "--disable_chunked_prefill --disable_dynamic_prompt_cache"
    )
    split = by_flag(command_of("lightllm").argv)  # server/api_start.py: its defaults
    assert (split["--running_max_req_size"], split["--batch_max_tokens"]) == (["256"], ["16384"])
    assert "--enable_ep_moe" in command_of("lightllm", enable_expert_parallel=True).argv
    ranks = by_flag(
        command_of("lightllm", data_parallel_size=8).argv
    )  # all on the 8 GPUs of one node
    assert ranks["--tp"] == ["8"]
    assert ranks["--dp"] == ["8"]
    assert settings_of("lightllm", data_parallel_size=8).world_size == 8
    assert ranks["--batch_max_tokens"] == ["2048"]
    draft = by_flag(
        command_of("lightllm", speculative={"method": "mtp", "num_speculative_tokens": 1}).argv
    )
    # of the model's own folder
    assert (draft["--mtp_mode"], draft["--mtp_step"]) == (["eagle_with_att"], ["1"])
    assert "--mtp_draft_model_dir" not in draft


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
