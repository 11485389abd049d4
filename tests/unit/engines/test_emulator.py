"""The emulator as an engine: settings that it refuses, and how its process is started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.emulator.flags import options_of, parser
from orchestrator.engines.command import Node
from orchestrator.engines.problems import problems_of
from orchestrator.engines.registry import ENGINES
from orchestrator.spec.settings import EngineSettings, Hardware, Speculative

EMULATOR = ENGINES["emulator"]
H100 = Hardware(name="h100", accelerator="H100-80GB")
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def settings(**changes: Any) -> EngineSettings:
    return EngineSettings(**{"engine": "emulator", "model": LLAMA} | changes)


def test_the_emulator_says_that_it_is_one() -> None:
    assert EMULATOR.launches
    assert EMULATOR.emulated


def test_parallelism_batching_and_quantization_are_imitated() -> None:
    made = settings(
        tensor_parallel_size=4, pipeline_parallel_size=2, nnodes=2, quantization="fp8_per_tensor", max_num_seqs=128,
        enable_prefix_caching=False, kv_cache_dtype="fp8", enforce_eager=True, load_format="dummy",
    )  # fmt: skip
    assert problems_of(EMULATOR, made, H100) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"speculative": Speculative(method="ngram", num_speculative_tokens=3)},
            "speculative decoding",
        ),
        ({"guided_decoding_backend": "xgrammar"}, "what constrained answers cost"),
        ({"image": "x"}, "part of this program"),
        ({"profile": "no-such-gpu"}, "unknown accelerator"),
        ({"profile": "H100-80GB/no-such-model"}, "unknown model"),
        ({"extra_args": {"--no-such-flag": 1}}, "has no flag"),
        ({"extra_args": {"--port": 1}}, "set by this program"),
        ({"extra_args": {"--fault": "explode"}}, "--fault"),
        (
            {"extra_args": {"--profile": "A100-80GB/meta-llama/Llama-3.1-8B-Instruct"}},
            "the field profile",
        ),
        ({"extra_args": {"--set": ["max_num_seqs=1"]}}, "the fields themselves"),
    ],
)
def test_a_setting_that_the_timing_model_lacks_is_refused_with_the_reason(
    changes: dict[str, Any], words: str
) -> None:
    problems = problems_of(EMULATOR, settings(**changes), H100)
    assert len(problems) == 1
    assert words in problems[0]


def test_a_batch_without_chunked_prefill_holds_the_longest_prompt_as_vllms_does() -> None:
    pins = EMULATOR.pins(settings(enable_chunked_prefill=False, max_model_len=16384), H100)
    assert pins["max_num_batched_tokens"] == 16384


def test_all_problems_are_found_at_once() -> None:
    wrong = settings(kv_transfer_config={"k": 1}, cpu_offload_gb=1, extra_args={"--x": 1})
    assert len(problems_of(EMULATOR, wrong, H100)) == 3


def test_the_command_names_its_config_and_keeps_the_key_out_of_argv(tmp_path: Path) -> None:
    node = Node(port=21234, workdir=str(tmp_path), launch_id="L1", devices=("0",))
    faults = {"--fault": ["stall_at_request=3", "orphan"]}
    command = EMULATOR.command(
        settings(env={"A": "b"}, extra_args=faults), H100, node, "secret-key"
    )
    readable = " ".join(command.argv) + json.dumps(command.files) + json.dumps(command.env)
    assert "secret-key" not in readable
    assert "secret-key" in command.secrets.values()
    assert command.env["A"] == "b"
    for name, text in command.files.items():
        (tmp_path / name).write_text(text)
    options = options_of(parser().parse_args(command.argv[3:]))
    assert options.port == 21234
    assert options.model == EMULATOR.served_name(settings(), node)
    assert not options.headless
    assert options.profile.faults.stall_at_request == 3
    assert options.profile.faults.orphan
    assert options.settings.model == LLAMA
    assert options.hardware == H100


def test_ranks_above_zero_serve_nothing(tmp_path: Path) -> None:
    node = Node(rank=1, workdir=str(tmp_path))
    assert "--headless" in EMULATOR.command(settings(), H100, node, "k").argv
