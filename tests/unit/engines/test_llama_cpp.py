"""llama.cpp: command lines, and refusals with their reasons.

That its flags exist is checked in tests/contract/test_engine_flags.py.
"""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from orchestrator.engines.problems import problems_of
from orchestrator.engines.registry import ENGINES
from tests.command_lines import by_flag
from tests.unit.engines.builders import CPU, H100, command_of, settings_of

DRAFTING = {"method": "ngram", "num_speculative_tokens": 4}


def test_command_on_gpus_and_on_a_cpu() -> None:
    node = {"model_path": "/m/a.gguf", "cores": (0, 1)}
    made = command_of(
        "llama_cpp", node=node, tensor_parallel_size=2, max_model_len=1000, max_num_seqs=8
    )
    assert by_flag(made.argv) == by_flag(
        "llama-server --model /m/a.gguf --host 127.0.0.1 --port 21001 --alias tiny-01L --parallel "
        "8 --ctx-size 8192 "
        "--batch-size 2048 --ubatch-size 512 --gpu-layers all --split-mode tensor --fit off "
        "--metrics --no-webui"
    )
    assert made.secrets == {"LLAMA_API_KEY": "k3y"}
    line = shlex.join(
        command_of("llama_cpp", CPU, {"cores": (0, 1), "model_path": "acme/x:Q4_K_M"}).argv
    )
    assert "--hf-repo acme/x:Q4_K_M" in line
    assert "--gpu-layers 0 --threads 2" in line


def test_prefix_cache_is_switched_off_by_flag_and_in_every_request() -> None:
    engine = ENGINES["llama_cpp"]
    assert by_flag(command_of("llama_cpp", enable_prefix_caching=False).argv)["--cache-ram"] == [
        "0"
    ]
    assert "--cache-ram" not in by_flag(command_of("llama_cpp", enable_prefix_caching=True).argv)
    off = engine.dialects(settings_of("llama_cpp", enable_prefix_caching=False))
    assert off["chat"].extra_body == off["completions"].extra_body == {"cache_prompt": False}
    assert engine.dialects(settings_of("llama_cpp"))["chat"].extra_body == {}


def test_several_ranks_on_a_cpu_are_refused() -> None:
    assert "one rank on a CPU" in "\n".join(
        problems_of(ENGINES["llama_cpp"], settings_of("llama_cpp", tensor_parallel_size=2), CPU)
    )


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
            "splits tensors or layers, not both",
        ),
        ({"extra_args": {"-sm": "row"}}, "-sm is how tensor_parallel_size is done, which is 1"),
        ({"quantization": "q4_0"}, "a GGUF file has its own quantization"),
        ({"kv_cache_tokens": 9}, "max_num_seqs slots of max_model_len tokens; give these"),
        (
            {},
            (
                "max_model_len: llama.cpp cuts its KV cache into max_num_seqs slots; give the length "
                "of one"
            ),
        ),
        ({"extra_args": {"-t": 2}}, "-t is set by the key cpus_per_device of the hardware"),
        (
            {"extra_args": {"--model-draft": "/d"}, "speculative": DRAFTING},
            "--model-draft is set by the field speculative",
        ),
        ({"extra_args": {"--n-gpu-layers": 9}}, "--n-gpu-layers is set by this program"),
        ({"extra_args": {"--lora": "a"}}, "--lora is set by the field lora_modules"),
        ({"lora_modules": {"sql": "/a:b"}}, "takes no ',' and no ':' in the path of an adapter"),
        ({"extra_args": {"-np": 2}}, "-np is set by the field max_num_seqs"),
        (
            {"speculative": {"method": "suffix", "num_speculative_tokens": 1}},
            "llama.cpp has no method suffix",
        ),
    ],
)
def test_unsupported_settings_are_refused_with_the_reason(
    fields: dict[str, Any], sentence: str
) -> None:
    problems = problems_of(ENGINES["llama_cpp"], settings_of("llama_cpp", **fields), H100)
    assert sentence in "\n".join(problems)
