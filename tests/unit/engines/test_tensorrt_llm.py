"""TensorRT-LLM: command lines, and refusals with their reasons.

That its flags exist is checked in tests/contract/test_engine_flags.py.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.engines.problems import problems_of
from orchestrator.engines.registry import ENGINES
from tests.command_lines import by_flag
from tests.unit.engines.builders import H100, command_of, settings_of


def test_command_and_file_of_1_2() -> None:
    given = {
        "tensor_parallel_size": 4,
        "max_model_len": 8192,
        "enable_prefix_caching": False,
        "enforce_eager": True,
    }
    command = command_of("tensorrt_llm", **given)
    assert by_flag(command.argv) == by_flag(
        "trtllm-serve /models/tiny --host 127.0.0.1 --port 21001 --backend pytorch "
        "--extra_llm_api_options trtllm.yaml"
    )
    assert json.loads(command.files["trtllm.yaml"]) == {
        "tensor_parallel_size": 4,
        "pipeline_parallel_size": 1,
        "max_seq_len": 8192,
        "max_batch_size": 1024,
        "max_num_tokens": 8192,
        "kv_cache_config": {"enable_block_reuse": False},
        "cuda_graph_config": None,
        "return_perf_metrics": True,
        "enable_iter_perf_stats": True,
    }


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"method": "mtp"}, {"decoding_type": "MTP", "num_nextn_predict_layers": 3}),
        (
            {"method": "ngram", "prompt_lookup_max": 2},
            {"decoding_type": "NGram", "max_matching_ngram_size": 2},
        ),
        (
            {"method": "draft_model", "model": "/d"},
            {"decoding_type": "DraftTarget", "speculative_model_dir": "/d"},
        ),
    ],
)
def test_speculation_in_the_file(spec: dict[str, Any], expected: dict[str, Any]) -> None:
    command = command_of("tensorrt_llm", speculative={"num_speculative_tokens": 3} | spec)
    config = json.loads(command.files["trtllm.yaml"])["speculative_config"]
    assert config == (expected if spec["method"] == "mtp" else expected | {"max_draft_len": 3})


def test_requests_say_where_an_adapter_is_and_number_it() -> None:
    settings = settings_of("tensorrt_llm", lora_modules={"sql": "/a", "law": "/b"})
    for dialect in ENGINES["tensorrt_llm"].dialects(settings).values():
        # the example of its docs/source/features/lora.md
        assert dialect.adapter_fields("law") == {
            "lora_request": {"lora_name": "law", "lora_int_id": 2, "lora_path": "/b"}
        }
        assert dialect.adapter_fields(None) == {}
        assert dialect.allowed_fields is not None
        assert "lora_request" in dialect.allowed_fields


# the common name, and TensorRT-LLM's own one
@pytest.mark.parametrize("method", ["draft_model", "DraftTarget"])
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"engine_version": "1.3.0rc2"}, "Draft_Target"),
        (
            {"engine_version": "1.2", "image": "nvcr.io/nvidia/tensorrt-llm/release:1.3.0"},
            "DraftTarget",
        ),
        ({"image": "nvcr.io/nvidia/tensorrt-llm/release:1.3.0"}, "Draft_Target"),
        ({"image": "mirror:5000/release:v1.3.0-cu130@sha256:1c3"}, "Draft_Target"),
        ({"image": "nvcr.io/nvidia/tensorrt-llm/release:1.2.1"}, "DraftTarget"),
        ({"image": "mirror:5000/1.3.0/release"}, ""),
        # 25.04 is a month and no release of TensorRT-LLM
        ({"image": "nvcr.io/nvidia/tritonserver:25.04-trtllm-python-py3"}, ""),
        ({"image": "release@sha256:1c3"}, ""),
        ({}, ""),
    ],
)
def test_name_of_a_draft_model_depends_on_the_stated_release(
    given: dict[str, Any], expected: str, method: str
) -> None:
    """``expected``: empty: the release is not known, so one before 1.3 is assumed."""
    spec = {"method": method, "model": "/d", "num_speculative_tokens": 3}
    command = command_of("tensorrt_llm", speculative=spec, **given)
    config = json.loads(command.files["trtllm.yaml"])
    assert config["speculative_config"]["decoding_type"] == (expected or "DraftTarget")
    assert any("its release is not known" in note for note in command.notes) is (expected == "")
    without_draft_model = command_of("tensorrt_llm", **given)
    assert not any("release" in note for note in without_draft_model.notes), (
        "only the name of a draft model depends on the release"
    )


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({}, True),
        ({"engine_version": "1.2.0"}, True),
        ({"image": "nvcr.io/nvidia/tensorrt-llm/release:1.3.0"}, True),
        ({"engine_version": "1.1.0"}, False),
        ({"engine_version": "1.4.0"}, False),
        ({"image": "nvcr.io/nvidia/tensorrt-llm/release:2.0.1"}, False),
    ],
)
def test_unknown_key_is_refused_for_recorded_releases_and_noted_for_others(
    given: dict[str, Any], refused: bool
) -> None:
    given = given | {"extra_args": {"kv_cache_config.max_gpu_total_byte": 5}}
    sentence = "'kv_cache_config.max_gpu_total_byte' is not a key of TensorRT-LLM's file"
    assert (
        sentence
        in "\n".join(
            problems_of(ENGINES["tensorrt_llm"], settings_of("tensorrt_llm", **given), H100)
        )
    ) is refused
    assert refused or sentence in "\n".join(command_of("tensorrt_llm", **given).notes)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"quantization": "fp8"}, "TensorRT-LLM takes the quantization from the checkpoint"),
        ({"scheduling_policy": "fcfs"}, "'fcfs' is none of MAX_UTILIZATION"),
        ({"extra_args": {"--tp_size": 2}}, "is set by the field tensor_parallel_size"),
        (
            {"lora_modules": {"sql": "acme/sql"}},
            "lora_modules: sql: TensorRT-LLM reads adapters from folders alone",
        ),
        (
            {"lora_modules": {"sql": "/a", "law": "/b"}},
            "lora_modules: TensorRT-LLM must be told which modules several adapters change: "
            "extra_args: {lora_config.lora_target_modules: [attn_q",
        ),
        ({"max_loras": 2}, "max_loras: TensorRT-LLM needs lora_modules beside it"),
        (
            {"lora_modules": {"sql": "/a"}, "enable_lora": True},
            "enable_lora: TensorRT-LLM takes adapters wherever lora_modules names some",
        ),
        (
            {"lora_modules": {"sql": "/a"}, "extra_args": {"lora_config.lora_dir": ["/b"]}},
            "lora_config.lora_dir is set by the field lora_modules",
        ),
    ],
)
def test_unsupported_settings_are_refused_with_the_reason(
    fields: dict[str, Any], sentence: str
) -> None:
    problems = problems_of(ENGINES["tensorrt_llm"], settings_of("tensorrt_llm", **fields), H100)
    assert sentence in "\n".join(problems)
