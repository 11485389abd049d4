"""SGLang: command lines, and refusals with their reasons.

That its flags exist is checked in tests/contract/test_engine_flags.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.engines.problems import problems_of
from orchestrator.engines.registry import ENGINES
from orchestrator.telemetry.engine_metrics import normalize
from tests.command_lines import by_flag
from tests.unit.engines.builders import CPU, H100, command_of, settings_of


def test_command_of_0_5_23_on_two_nodes() -> None:
    given = {
        "tensor_parallel_size": 8,
        "pipeline_parallel_size": 2,
        "nnodes": 2,
        "max_model_len": 8192,
    }
    node = {"rank": 1, "extra_ports": (21009,), "master_host": "10.0.0.1"}
    command = command_of(
        "sglang", node=node, executable="/opt/sglang/bin/python", enforce_eager=True, **given
    )
    assert command.argv[:2] == ("/opt/sglang/bin/python", "-c")
    assert command.argv[2] == (
        "import os, sys; from sglang.cli.main import main; "
        "sys.argv += ['--api-key', os.environ['ENGINE_API_KEY']]; sys.exit(main())"
    )
    assert by_flag(command.argv[3:]) == by_flag(
        "serve --model-path /models/tiny --host 127.0.0.1 --port 21009 --served-model-name "
        "tiny-01L --tp-size 8 "
        "--pp-size 2 --dp-size 1 --context-length 8192 --max-running-requests 1024 "
        "--max-prefill-tokens 8192 "
        "--chunked-prefill-size 8192 --cuda-graph-backend-decode disabled "
        "--cuda-graph-backend-prefill disabled "
        "--nnodes 2 --node-rank 1 --dist-init-addr 10.0.0.1:21002 --enable-metrics "
        "--enable-cache-report "
        "--sampling-defaults openai"
    )
    assert command.secrets == {"ENGINE_API_KEY": "k3y"}
    assert command.env["SGL_FORCE_SHUTDOWN"] == "1"
    assert command.grace_s == 0.5
    assert command_of("sglang").grace_s is None


def test_command_with_speculation_and_without_chunks() -> None:
    spec = {"method": "eagle3", "num_speculative_tokens": 4, "model": "/d"}
    arguments = by_flag(
        command_of(
            "sglang", speculative=spec, enable_chunked_prefill=False, max_num_batched_tokens=99
        ).argv[3:]
    )
    assert arguments["--max-prefill-tokens"] == ["99"]
    assert arguments["--chunked-prefill-size"] == ["-1"]
    assert {
        flag: values for flag, values in arguments.items() if flag.startswith("--speculative")
    } == {
        "--speculative-algorithm": ["EAGLE3"],
        "--speculative-draft-model-path": ["/d"],
        "--speculative-num-steps": ["4"],
        "--speculative-eagle-topk": ["1"],
        "--speculative-num-draft-tokens": ["5"],
    }


def test_chats_ask_for_running_counts_and_completions_for_token_ids() -> None:
    dialects = ENGINES["sglang"].dialects(settings_of("sglang"))
    assert (dialects["chat"].return_token_ids, dialects["chat"].continuous_usage) == (False, True)
    assert dialects["completions"].return_token_ids


def test_every_rank_on_a_cpu_gets_its_own_cores() -> None:
    command = command_of(
        "sglang", CPU, {"cores": (0, 1, 2, 3)}, tensor_parallel_size=2, kv_cache_tokens=8192
    )
    assert by_flag(command.argv)["--device"] == ["cpu"]
    variables = {
        name: command.env[name] for name in command.env if name.startswith(("SGLANG", "OMP"))
    }
    bound = {"SGLANG_CPU_OMP_THREADS_BIND": "0,1|2,3", "OMP_NUM_THREADS": "2"}
    assert variables == {"SGLANG_USE_CPU_ENGINE": "1"} | bound
    assert not {"SGLANG_USE_CPU_ENGINE", "OMP_NUM_THREADS"} & command_of("sglang").env.keys()
    assert "--device" not in command_of("sglang").argv


NGRAM = {"method": "ngram", "num_speculative_tokens": 1}
ON_CPU = {"kv_cache_tokens": 99}  # what it must be told there


def test_settings_for_a_cpu_are_accepted() -> None:
    assert problems_of(ENGINES["sglang"], settings_of("sglang", **ON_CPU), CPU) == []


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"kv_cache_tokens": None}, "kv_cache_tokens: on a CPU SGLang fills the node's memory"),
        ({"speculative": NGRAM}, "speculative: SGLang's kernels for it are not part"),
        ({"cpu_offload_gb": 2}, "cpu_offload_gb: there is nothing to offload"),
        ({"quantization": "gptq"}, "quantization: leave gptq out, on a CPU"),
    ],
)
def test_settings_unsupported_on_a_cpu_are_refused(fields: dict[str, Any], problem: str) -> None:
    settings = settings_of("sglang", **(ON_CPU | fields))
    (sentence,) = problems_of(ENGINES["sglang"], settings, CPU)
    assert sentence.startswith(problem)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"max_input_len": 5}, "max_input_len: SGLang limits input and output together"),
        (
            {"data_parallel_size": 2, "nnodes": 2},
            "SGLang runs whole data-parallel ranks on one node only",
        ),
        ({"cpu_offload_gb": 1.5}, "SGLang takes whole GB"),
        (
            {"block_size": 64, "max_num_batched_tokens": 100},
            "must be a multiple of block_size (64)",
        ),
        (
            {"speculative": {"method": "medusa", "num_speculative_tokens": 1}},
            "SGLang has no method medusa",
        ),
        (
            {"speculative": {"method": "eagle", "num_speculative_tokens": 1}},
            "method eagle needs a model",
        ),
        ({"extra_args": {"--tensor-parallel-size": 2}}, "is set by the field tensor_parallel_size"),
        ({"extra_args": {"--device": "cpu"}}, "--device is set by this program"),
    ],
)
def test_unsupported_settings_are_refused_with_the_reason(
    fields: dict[str, Any], sentence: str
) -> None:
    problems = problems_of(ENGINES["sglang"], settings_of("sglang", **fields), H100)
    assert sentence in "\n".join(problems)


def test_prefill_times_are_those_of_one_rank_and_decode_times_are_not_told() -> None:
    ranks = [(0, 0), (1, 0), (0, 1)]  # every tensor-parallel rank and pipeline stage says the same
    lines = ["# TYPE sglang:per_stage_req_latency_seconds histogram"]
    for stage, seconds in (("prefill_forward", 1.5), ("request_process", 0.1)):
        for tensor_rank, stage_rank in ranks:
            labels = f'{{pp_rank="{stage_rank}",stage="{stage}",tp_rank="{tensor_rank}"}}'
            lines.append(f"sglang:per_stage_req_latency_seconds_sum{labels} {seconds}")
            lines.append(f"sglang:per_stage_req_latency_seconds_count{labels} 3")
    values = normalize("\n".join(lines) + "\n", ENGINES["sglang"].metrics)
    assert values == {"prefill_time_s_sum": 1.5, "prefill_time_count": 3.0}
