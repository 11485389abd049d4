"""LMDeploy: command lines, and refusals with their reasons.

That its flags exist is checked in tests/contract/test_engine_flags.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.engines.problems import problems_of
from orchestrator.engines.registry import ENGINES
from orchestrator.spec.settings import Hardware
from tests.command_lines import by_flag
from tests.unit.engines.builders import H100, command_of, settings_of


def test_command_of_0_18() -> None:
    made = command_of(
        "lmdeploy",
        tensor_parallel_size=2,
        max_model_len=8192,
        kv_cache_dtype="int8",
        max_num_queued_reqs=5,
    )
    assert "from lmdeploy.cli import run; sys.argv += ['--api-keys'" in made.argv[2]
    assert by_flag(made.argv[3:]) == by_flag(
        "serve api_server /models/tiny --server-name 127.0.0.1 --server-port 21001 --model-name "
        "tiny-01L "
        "--backend turbomind --tp 2 --quant-policy int8 --session-len 8192 "
        "--max-concurrent-requests 5 "
        "--max-batch-size 1024 --max-prefill-token-num 8192"
    )
    assert made.notes[-1] == "a full queue makes requests wait; LMDeploy never refuses one"
    assert "turbomind" not in command_of("lmdeploy", extra_args={"--backend": "pytorch"}).argv


def test_requests_name_an_adapter_as_their_model() -> None:
    settings = settings_of("lmdeploy", lora_modules={"sql": "/a", "law": "acme/law"})
    for dialect in ENGINES["lmdeploy"].dialects(settings).values():
        assert dialect.adapter_fields("law") == {"model": "law"}


@pytest.mark.parametrize(
    ("accelerator", "sequences"),
    [
        ("A100-40GB", 384),
        ("H100-80GB", 1024),
        ("H200", 1024),
        ("B200", 128),
        ("L4", 128),
        ("any", 1024),
    ],
)
def test_batch_is_pinned_by_the_name_of_the_gpu(accelerator: str, sequences: int) -> None:
    pins = ENGINES["lmdeploy"].open_pins(
        settings_of("lmdeploy"), Hardware(name="x", accelerator=accelerator)
    )
    assert pins == {"max_num_seqs": sequences, "max_num_batched_tokens": 8192}


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"kv_cache_dtype": "fp8"}, "turbomind backend refuses fp8"),
        ({"enforce_eager": True}, "only LMDeploy's pytorch backend has it"),
        (
            {"lora_modules": {"sql": "/a"}},
            "lora_modules: only LMDeploy's pytorch backend has it (extra_args: {--backend: ",
        ),
        (
            {"lora_modules": {"sql": "/a"}, "max_lora_rank": 8},
            "max_lora_rank: LMDeploy takes adapters of any rank",
        ),
        (
            {"speculative": {"method": "mtp", "num_speculative_tokens": 1}},
            "only LMDeploy's pytorch backend",
        ),
        (
            {"revision": "abc"},
            "revision: LMDeploy takes the flag and serves the newest revision all the same",
        ),
        (
            {"nnodes": 2, "tensor_parallel_size": 2, "extra_args": {"--backend": "pytorch"}},
            "through Ray only",
        ),
        (
            {"data_parallel_size": 2, "extra_args": {"--backend": "pytorch"}},
            "starts a server per rank behind a proxy of its own",
        ),
        (
            {"enable_expert_parallel": True, "nnodes": 2, "tensor_parallel_size": 2},
            "has it on one node only",
        ),
        ({"load_format": "dummy"}, "reads the checkpoint's own weights only"),
        (
            {"speculative": {"method": "ngram", "num_speculative_tokens": 1}},
            "LMDeploy has no method ngram",
        ),
    ],
)
def test_unsupported_settings_are_refused_with_the_reason(
    fields: dict[str, Any], sentence: str
) -> None:
    problems = problems_of(ENGINES["lmdeploy"], settings_of("lmdeploy", **fields), H100)
    assert sentence in "\n".join(problems)
