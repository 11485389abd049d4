"""transformers serve: golden command lines, and every refusal with its reason."""

from __future__ import annotations

import pytest

from orchestrator.engines.command import Command, Node
from orchestrator.engines.problems import problems_of
from orchestrator.engines.transformers import ENGINE as TRANSFORMERS
from orchestrator.spec.settings import EngineSettings, Hardware
from tests.command_lines import by_flag

CPU = Hardware(name="cpu")
L4 = Hardware(name="l4", accelerator="L4", gpus_per_node=1)
NODE = Node(port=21001, launch_id="01L", cores=(0, 1), model_path="/models/tiny")


def settings(**given: object) -> EngineSettings:
    return EngineSettings.model_validate({"engine": "transformers", "model": "acme/tiny"} | given)


def command(hardware: Hardware = CPU, node: Node = NODE, **given: object) -> Command:
    return TRANSFORMERS.command(settings(**given), hardware, node, "k3y")


def test_golden_on_the_cpu() -> None:
    built = command(dtype="float32")
    assert by_flag(built.argv) == by_flag(
        "transformers serve /models/tiny --continuous-batching --device cpu --host 127.0.0.1 "
        "--port 21001 "
        "--dtype float32 --cb-max-batch-tokens 1024 --cb-num-blocks 64 --cb-block-size 256"
    )
    assert built.env["OMP_PLACES"] == "{0,1}"
    assert built.env["HF_HUB_OFFLINE"] == "1"
    assert built.secrets == {}
    assert len(built.notes) == 3


def test_golden_on_a_gpu_with_everything_set() -> None:
    built = command(
        L4, Node(port=1, devices=("3",), model_path="acme/tiny"), revision="abc", quantization="bnb-4bit",
        gpu_memory_utilization=0.5, enforce_eager=True, kv_cache_tokens=1000, block_size=32, max_num_batched_tokens=64,
        trust_remote_code=False, attention_backend="sdpa", extra_args={"--default-seed": 1},
    )  # fmt: skip
    assert by_flag(built.argv) == by_flag(
        "transformers serve acme/tiny@abc --continuous-batching --device cuda:0 --host 127.0.0.1 "
        "--port 1 "
        "--quantization bnb-4bit --no-trust-remote-code --attn-implementation sdpa "
        "--cb-max-memory-percent 0.5 "
        "--no-cb-use-cuda-graph --cb-max-batch-tokens 64 --cb-num-blocks 32 --cb-block-size 32 "
        "--default-seed 1"
    )
    assert built.env["CUDA_VISIBLE_DEVICES"] == "3"
    assert "OMP_PLACES" not in built.env
    assert built.notes == ()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"tensor_parallel_size": 2},
            "tensor_parallel_size: transformers serve has no tensor parallelism",
        ),
        (
            {"pipeline_parallel_size": 2},
            "pipeline_parallel_size: transformers serve has no pipeline parallelism",
        ),
        ({"nnodes": 2, "data_parallel_size": 2}, "nnodes: transformers serve runs on one node"),
        ({"max_model_len": 5}, "max_model_len: transformers serve takes what the model takes"),
        ({"max_num_seqs": 5}, "max_num_seqs: transformers serve limits a batch by tokens only"),
        (
            {"quantization": "awq"},
            "quantization: 'awq' is none of bitsandbytes, bnb-4bit, bnb-8bit",
        ),
        (
            {"enable_prefix_caching": False},
            "enable_prefix_caching: transformers serve always does this",
        ),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype: transformers serve has no such setting"),
        ({"image": "x/y"}, "nothing would prove that the server in a docker container is ours"),
        ({"extra_args": {"--no-continuous-batching": True}}, "is set by this program"),
    ],
)
def test_unsupported_settings_are_refused_with_the_reason(
    given: dict[str, object], sentence: str
) -> None:
    assert sentence in "\n".join(problems_of(TRANSFORMERS, settings(**given), CPU))


def test_settings_that_it_always_has_are_accepted() -> None:
    assert (
        problems_of(
            TRANSFORMERS, settings(enable_prefix_caching=True, enable_chunked_prefill=True), CPU
        )
        == []
    )


def test_requests_carry_only_known_fields_and_name_the_revision() -> None:
    for name, content in (("completions", "prompt"), ("chat", "messages")):
        dialect = TRANSFORMERS.dialects(settings())[name]
        assert dialect.allowed_fields is not None
        assert {content, "model", "stream", "generation_config"} <= dialect.allowed_fields
        assert (
            not {"ignore_eos", "min_tokens", "stream_options", "return_token_ids"}
            & dialect.allowed_fields
        )
        assert not dialect.done_marker
    assert TRANSFORMERS.served_name(settings(revision="abc"), NODE) == "/models/tiny@abc"
